"""The records a history is made of: a ticket's life, what a role did, an update, a version, an evaluation, a session.

Whoever follows a run (`history.py`) makes these and changes them for as long as they last; a time that has not come is
None. Times are seconds on the clock of the event log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from headway.core.types_opaque import JsonObject, SettingValue

OPEN, IN_FLIGHT, READY, TAKEN = range(4)
PHASES = ("open", "in flight", "ready", "taken")
RoleState = Literal["busy", "blocked"]


@dataclass(slots=True)
class TicketLife:
    """The life of one ticket in one line. Of a ticket that was collected several times, `began`, `ended`, `span` and
    what follows from them are those of the last time."""

    index: int
    opened: float
    phase: int | None = None
    """One of `PHASES`, by its place; None before it is known and after the end."""
    outcome: str = ""
    """`learned` or `dropped`, once it is settled."""
    collector: int | None = None
    """Its seat: collector `seat % collectors`, lane `seat // collectors`."""
    role: str | None = None
    """The seat's name, as in the intervals."""
    version: int | None = None
    """It took off with this one."""
    began: float | None = None
    ended: float | None = None
    """Its rollout landed."""
    waits_since: float | None = None
    """Since when the rollout waits for the learner; the time between two sessions does not count."""
    landed_at: int | None = None
    """The newest version when it landed."""
    taken: float | None = None
    """The learner took it, or it went into the replay."""
    settled: float | None = None
    """It was learned or dropped: its slot was free again."""
    reason: str | None = None
    """Of a drop: `stale`, `expired`, `filtered` or `failed`."""
    why: str = ""
    span: tuple[int, int] | None = None
    staleness: int | None = None
    stale_in_flight: int | None = None
    stale_in_queue: int | None = None
    steps: int = 0
    length: float = 0.0
    num_bytes: int = 0
    """Of its rollout, where known."""
    flights: int = 0
    """How often it took off."""
    update: int | None = None
    """The update that consumed it; none in a replay recipe."""

    @property
    def how(self) -> str:
        """`learned`, `dropped`, or where it is: `open`, `in flight`, `ready`, `taken`."""
        return self.outcome or PHASES[self.phase or OPEN]

    @property
    def queue_s(self) -> float | None:
        """How long it waited for the learner."""
        return None if self.taken is None or self.ended is None else self.taken - self.ended


@dataclass(slots=True)
class RoleInterval:
    """What one role did, or waited for, for a while."""

    role: str
    kind: RoleState
    what: str
    """What it was busy with (`collect`, `learn`, `evaluate`, ...) or waited for (`slot`, `data`, ...)."""
    begin: float
    end: float
    version: int | None = None
    """The version it used: collected, trained or evaluated with."""
    ticket: int | None = None
    update: int | None = None

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(slots=True)
class FinishedUpdate:
    """One learn call."""

    number: int
    begin: float
    end: float
    version: int
    """It was trained while this one was the newest."""
    tickets: list[int]
    metrics: JsonObject
    steps: int = 0
    """Environment steps (or tokens) behind it: all that its line had trained on or thrown away by then."""

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(slots=True)
class Version:
    """One published policy."""

    number: int
    published: float
    update: int | None
    """The last update that went into it; none for the initial one."""
    publish_s: float
    """From the end of that update until it was published: 0 unless handing it on had to be tried again."""
    first_used: float | None = None
    first_ticket: int | None = None
    """The first rollout that took off with it."""
    steps: int = 0
    """Environment steps (or tokens) behind it, as behind the last update that went into it."""

    @property
    def lag_s(self) -> float | None:
        """From the end of the update until somebody collected with it."""
        return None if self.first_used is None else self.publish_s + self.first_used - self.published


@dataclass(slots=True)
class Evaluation:
    """One evaluation of one version; `end` is None while it runs."""

    version: int
    begin: float
    end: float | None = None
    value: float | None = None
    metrics: JsonObject = field(default_factory=dict)
    error: str | None = None


@dataclass(slots=True)
class RunSession:
    """One start of the run: the first, or a resume."""

    begin: float
    end: float
    settings: JsonObject
    """What the `run` event says, with as many collectors as there are since."""
    how: str = ""
    """`end`, `fail`, or nothing: it was killed, or it is still running."""
    why: str = ""
    """Why it stopped or failed."""


Session = RunSession
"""Its former name, under which the metrics in checkpoints of earlier releases have it."""


def settings_of_line(settings: Mapping[str, SettingValue], line: str) -> Mapping[str, SettingValue]:
    """The settings of a line: those of the run, and above them what the `run` event says of that line in `lines`."""
    own = settings.get("lines", {}).get(line) if line else None
    return settings if not own else {**settings, **own}
