"""What happens in a run, as typed events.

    coordinator --> Opened(time_s, ticket) --> RunHistory
                           |     ^
                           v     |
                        events.jsonl (written_events.py)

`time_s` is on the clock of the event log, which begins with the run and goes on with each resume. `line` names the line
an event belongs to; the first line of a run has the empty name, and where a run has several, what a flight used of the
other lines stands in `others`. Whoever adds an event adds its class here, its row in `written_events.py`, and its
meaning in `history.py`.

Events are named tuples: they cannot be changed, and making one costs little, for several come with every ticket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headway.core.types_opaque import JsonObject, SettingValue

Metrics = Mapping[str, Any]


# -- a ticket's life ----------------------------------------------------------------------------------


class Opened(NamedTuple):
    """A ticket occupies a slot of its line."""

    time_s: float
    ticket: int
    line: str = ""


class Started(NamedTuple):
    """A ticket takes off on a seat with the snapshot of a version (of each line)."""

    time_s: float
    ticket: int
    seat: int
    version: int
    others: Mapping[str, int] | None = None


class Landed(NamedTuple):
    """The rollout of a ticket is here; `span` holds the oldest and the newest version that made it."""

    time_s: float
    ticket: int
    span: Sequence[int]
    steps: int
    length: float
    size: int = 0
    others: Mapping[str, Sequence[int]] | None = None


class Reissued(NamedTuple):
    """A flight failed, and the same ticket flies again as this attempt (from 0)."""

    time_s: float
    ticket: int
    seat: int
    attempt: int
    why: str


class Requeued(NamedTuple):
    """A rollout is too old for its line, and the same ticket is collected again."""

    time_s: float
    ticket: int
    reason: str = "stale"
    line: str = ""


class Lost(NamedTuple):
    """A rollout that had landed is gone with the node that held it; the same ticket is collected again for its line.

    If it flies for another line already, this one waits for the same flight."""

    time_s: float
    ticket: int
    why: str
    line: str = ""


class Dropped(NamedTuple):
    """A ticket ends without being learned from in its line."""

    time_s: float
    ticket: int
    reason: str
    why: str
    line: str = ""


class BegunAnew(NamedTuple):
    """The collector of a ticket that was dropped as failed has begun new episodes, on this attempt to do so."""

    time_s: float
    ticket: int
    seat: int
    attempt: int


class Settled(NamedTuple):
    """These tickets are learned in their line, and their slots are free."""

    time_s: float
    tickets: Sequence[int]
    line: str = ""


# -- learning and versions ----------------------------------------------------------------------------


class UpdateBegan(NamedTuple):
    """An update begins on these tickets (none where a replay draws), while `version` is the newest of its line."""

    time_s: float
    update: int
    version: int
    tickets: Sequence[int]
    line: str = ""


class Updated(NamedTuple):
    """An update is done."""

    time_s: float
    update: int
    version: int
    tickets: Sequence[int]
    seconds: float
    metrics: Metrics
    samples: float | None = None
    """It trained on so many; logs of earlier versions do not say."""
    line: str = ""


class Inserted(NamedTuple):
    """These tickets are in the replay of their line."""

    time_s: float
    tickets: Sequence[int]
    version: int
    seconds: float = 0.0
    line: str = ""


class Drawn(NamedTuple):
    """A replay with its own role is asked for a draw."""

    time_s: float
    version: int
    line: str = ""


class WorkGiven(NamedTuple):
    """A replay gave the reanalyzer its oldest targets; it had the feedback of so many updates of this session."""

    time_s: float
    version: int
    targets: int
    feedback: int | None = None


class Refreshed(NamedTuple):
    """Targets were made again with this version and are in the replay."""

    time_s: float
    version: int
    targets: int
    seconds: float = 0.0
    feedback: int | None = None


class Published(NamedTuple):
    """A version of a line exists."""

    time_s: float
    version: int
    line: str = ""


class Restaged(NamedTuple):
    """The weights of the newest version were lost, and the learner has staged them again as it has them now."""

    time_s: float
    version: int
    line: str = ""


class PublishRetried(NamedTuple):
    """Handing a version on failed once."""

    time_s: float
    role: str
    version: int
    why: str


class LeadMoved(NamedTuple):
    """The auto lead of a line moved."""

    time_s: float
    version: int
    lead: float
    line: str = ""


# -- evaluation ---------------------------------------------------------------------------------------


class EvaluationBegan(NamedTuple):
    """An evaluation of a version (and of these of other lines) begins."""

    time_s: float
    version: int
    others: Mapping[str, int] | None = None


class EvaluationEnded(NamedTuple):
    """An evaluation is over; a failed one has no value and an error."""

    time_s: float
    version: int
    value: float | None
    metrics: Metrics
    error: str | None = None


class BestKept(NamedTuple):
    """No evaluation had a better score, and the weights are kept."""

    time_s: float
    version: int
    value: float


class EvaluationAbandoned(NamedTuple):
    """The run was interrupted before the score of this version."""

    time_s: float
    version: int


class EvaluationSkipped(NamedTuple):
    """A later version took the place of this one, which waited for its evaluation."""

    time_s: float
    version: int


# -- roles --------------------------------------------------------------------------------------------


class RoleBusy(NamedTuple):
    """A role begins with something."""

    time_s: float
    role: str
    what: str


class RoleWaits(NamedTuple):
    """A role begins to wait for something."""

    time_s: float
    role: str
    what: str


class Restarted(NamedTuple):
    """A role died or was late, and is built anew."""

    time_s: float
    role: str
    why: str


class Scaled(NamedTuple):
    """From here on the run has so many collectors: those that were added are built, those that are taken away get no
    further ticket; in a pinned run, none from `ticket` on."""

    time_s: float
    collectors: int
    before: int
    ticket: int | None = None


class Left(NamedTuple):
    """A collector that was taken away has ended, and what it carried is gone; `why` says what went wrong with that."""

    time_s: float
    role: str
    why: str = ""


class Noticed(NamedTuple):
    """The place where a role runs is going away."""

    time_s: float
    role: str
    why: str


class Moved(NamedTuple):
    """A role was built a second time in another place, and goes on there."""

    time_s: float
    role: str


# -- the run ------------------------------------------------------------------------------------------


class RunBegan(NamedTuple):
    """A session begins with these settings; `config` is the recipe with its own, where there is one."""

    time_s: float
    settings: Mapping[str, SettingValue]
    config: Mapping[str, SettingValue] | None = None


class GapFound(NamedTuple):
    """What came before is missing, or a part of it is."""

    time_s: float
    why: str


class PartBegan(NamedTuple):
    """A new part of a long log begins; `run` is the last line of a session's beginning, as it was written then."""

    time_s: float
    run: JsonObject


class Resumed(NamedTuple):
    """A checkpoint is restored; `others` holds version and updates of the other lines."""

    time_s: float
    version: int
    updates: int
    others: Mapping[str, Sequence[int]] | None = None


class Saved(NamedTuple):
    """A checkpoint is on disk."""

    time_s: float
    version: int


class SaveSkipped(NamedTuple):
    """This version was to be saved while an earlier one was still being written."""

    time_s: float
    version: int


class Looked(NamedTuple):
    """The run looked at itself: the lead, seconds by kind of role and activity, memory, processor time."""

    time_s: float
    lead: float
    spent: Mapping[str, Mapping[str, float]]
    rss: float
    memory: Mapping[str, float] = {}
    cpu_s: float | None = None
    others: Mapping[str, float] | None = None


class Alarmed(NamedTuple):
    """A threshold was passed (`on`), or all is well again."""

    time_s: float
    name: str
    on: bool
    value: float
    threshold: float


class Stopped(NamedTuple):
    """The learn loop of the first line has ended."""

    time_s: float
    reason: str


class Ended(NamedTuple):
    """The ledgers are closed; `returned` tickets were still live in the first line, in `others` in those."""

    time_s: float
    version: int
    updates: int
    returned: int
    others: Mapping[str, Sequence[int]] | None = None


class Failed(NamedTuple):
    """The run cannot go on."""

    time_s: float
    why: str


class Unknown(NamedTuple):
    """An event that this version of Headway does not know: it is kept and means nothing."""

    time_s: float
    kind: str
    fields: JsonObject


Event = (
    Opened
    | Started
    | Landed
    | Reissued
    | Requeued
    | Lost
    | Dropped
    | BegunAnew
    | Settled
    | UpdateBegan
    | Updated
    | Inserted
    | Drawn
    | WorkGiven
    | Refreshed
    | Published
    | Restaged
    | PublishRetried
    | LeadMoved
    | EvaluationBegan
    | EvaluationEnded
    | BestKept
    | EvaluationAbandoned
    | EvaluationSkipped
    | RoleBusy
    | RoleWaits
    | Restarted
    | Scaled
    | Left
    | Noticed
    | Moved
    | RunBegan
    | GapFound
    | PartBegan
    | Resumed
    | Saved
    | SaveSkipped
    | Looked
    | Alarmed
    | Stopped
    | Ended
    | Failed
    | Unknown
)
