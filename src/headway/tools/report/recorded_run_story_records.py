"""What the story of a run consists of: for each line its tickets, updates and versions, and for the run all the rest.

    RunHistory --tells--> Story (the run)         roles and what each did when, evaluations, looks, alarms
                            lines: LineStory      tickets, updates, versions, queue sizes, lead, drops

They keep whatever a history tells, and say nothing of where it was read: that is `run_history.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headway.core import events as ev
from headway.core.history import FIRST_LINE, RunListener
from headway.core.history_line_history import LineListener
from headway.core.history_records import Evaluation, FinishedUpdate, RoleInterval, RunSession, TicketLife, Version
from headway.core.types_opaque import JsonObject

LEARNER, EVALUATOR, WRITER = "learner", "evaluator", "writer"


@dataclass(slots=True)
class LineStory(LineListener):
    """What happened in one line of a run: it keeps whatever the history tells."""

    tickets: dict[int, TicketLife] = field(default_factory=dict)
    updates: list[FinishedUpdate] = field(default_factory=list)
    versions: list[Version] = field(default_factory=list)
    queue: list[tuple[float, int, int, int, int]] = field(default_factory=list)
    """(time, open, in flight, ready, taken) after each change."""
    leads: list[tuple[float, float]] = field(default_factory=list)
    """(time, lead) after each change."""
    drops: Counter[str] = field(default_factory=Counter)
    requeued: list[tuple[float, int]] = field(default_factory=list)

    @property
    def version(self) -> int:
        return self.versions[-1].number if self.versions else 0

    def ticket_opened(self, ticket: TicketLife) -> None:
        self.tickets[ticket.index] = ticket

    def tickets_moved(self, time_s: float, sizes: Sequence[int]) -> None:
        queue = self.queue
        if queue and queue[-1][0] == time_s:
            queue.pop()
        queue.append((time_s, *sizes))  # type: ignore[arg-type]  # four of them

    def ticket_settled(self, ticket: TicketLife) -> None:
        if ticket.reason is not None:
            self.drops[ticket.reason] += 1

    def update_ended(self, update: FinishedUpdate) -> None:
        self.updates.append(update)

    def version_published(self, version: Version) -> None:
        self.versions.append(version)

    def lead_moved(self, time_s: float, lead: float) -> None:
        self.leads.append((time_s, lead))


@dataclass(slots=True)
class Story(RunListener):
    """Everything the event log of one run says: it keeps whatever the history tells.

    `tickets`, `updates`, `versions`, `queue`, `leads`, `drops` and `requeued` are those of the first line; `lines` has
    those of all lines by name, the first under the empty name.
    """

    folder: Path | None
    recipe: str
    config: JsonObject
    """`config.yaml`; empty where there is none (a run of your own functions)."""
    environment: JsonObject
    """`environment.json`: versions, machine, when it began; empty where there is none."""
    began_at: float | None
    """Seconds since 1970 when the clock of the log stood at zero."""
    summary: JsonObject | None
    """`summary.json`, once the run is over."""

    sessions: list[RunSession] = field(default_factory=list)
    intervals: list[RoleInterval] = field(default_factory=list)
    """In the order in which they ended."""
    under_way: dict[str, RoleInterval] = field(default_factory=dict)
    """Role -> what it did when the log ended; also in `intervals`, up to `end_s`. Empty once the run is over."""
    lines: dict[str, LineStory] = field(default_factory=lambda: {FIRST_LINE: LineStory()})
    evaluations: list[Evaluation] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    """Versions whose evaluation a later one took the place of."""
    reissued: list[tuple[float, int, str]] = field(default_factory=list)
    """(time, ticket, why): flights that failed and were flown again."""
    lost: list[tuple[float, int, str]] = field(default_factory=list)
    restarts: list[tuple[float, str, str]] = field(default_factory=list)
    """(time, role, why)."""
    scaled: list[ev.Scaled] = field(default_factory=list)
    left: list[ev.Left] = field(default_factory=list)
    notices: list[tuple[float, str, str]] = field(default_factory=list)
    """(time, role, why): its place is going away."""
    moves: list[tuple[float, str]] = field(default_factory=list)
    publish_retries: list[tuple[float, str, int, str]] = field(default_factory=list)
    """(time, role, version, why)."""
    saves: list[tuple[float, int]] = field(default_factory=list)
    """(time, version)."""
    saves_skipped: list[int] = field(default_factory=list)
    """Versions."""
    looks: list[ev.Looked] = field(default_factory=list)
    alarms: list[ev.Alarmed] = field(default_factory=list)
    gap: str = ""
    """What is missing of the log, if anything is: then tickets may have no beginning."""
    num_events: int = 0

    def line_began(self, name: str) -> LineStory:
        return self.lines.setdefault(name, LineStory())

    def interval_ended(self, interval: RoleInterval) -> None:
        self.intervals.append(interval)

    def evaluation_began(self, evaluation: Evaluation) -> None:
        self.evaluations.append(evaluation)

    def session_began(self, session: RunSession) -> None:
        self.sessions.append(session)

    @property
    def first(self) -> LineStory:
        return self.lines[FIRST_LINE]

    @property
    def other_lines(self) -> dict[str, LineStory]:
        return {name: line for name, line in self.lines.items() if name != FIRST_LINE}

    @property
    def tickets(self) -> dict[int, TicketLife]:
        return self.first.tickets

    @property
    def updates(self) -> list[FinishedUpdate]:
        return self.first.updates

    @property
    def versions(self) -> list[Version]:
        return self.first.versions

    @property
    def queue(self) -> list[tuple[float, int, int, int, int]]:
        return self.first.queue

    @property
    def leads(self) -> list[tuple[float, float]]:
        return self.first.leads

    @property
    def drops(self) -> Counter[str]:
        return self.first.drops

    @property
    def requeued(self) -> list[tuple[float, int]]:
        return self.first.requeued

    @property
    def version(self) -> int:
        return self.first.version

    @property
    def settings(self) -> JsonObject:
        """Those of the last session; empty for a log without any."""
        return self.sessions[-1].settings if self.sessions else {}

    @property
    def seed(self) -> int:
        return int(self.settings.get("seed", 0))

    @property
    def begin_s(self) -> float:
        return self.sessions[0].begin if self.sessions else 0.0

    @property
    def end_s(self) -> float:
        return self.sessions[-1].end if self.sessions else 0.0

    @property
    def is_over(self) -> bool:
        """The log says how the last session ended."""
        return bool(self.sessions and self.sessions[-1].how)

    @property
    def roles(self) -> list[str]:
        """Learner first, then collectors and their lanes in order, then everybody else."""
        return sorted({interval.role for interval in self.intervals} | set(self.under_way), key=role_order)


def role_order(role: str) -> tuple[int, str, int, int, str]:
    """Sorts roles as they are shown."""
    own = role.rpartition("/")[2]  # of another line than the first: prior/learner
    kind, _, rest = role.partition("-")
    if own in (LEARNER, "replay"):
        kind, rest = own, ""
    number, _, lane = rest.partition("/")
    kinds = (LEARNER, "collector", "replay", EVALUATOR, "reanalyzer", "publisher", WRITER)
    place = kinds.index(kind) if kind in kinds else len(kinds)
    return place, kind, int(number) if number.isdigit() else 0, int(lane) if lane.isdigit() else 0, role
