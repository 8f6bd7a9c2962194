"""The whole story of a run, told from its event log: `read_story(folder)`.

    events.jsonl ---> RunHistory ---> Story: settings, roles and what each did when, evaluations, looks, alarms;
    config.yaml                              for each line its tickets, updates, versions, queue sizes, lead, drops

Everything that is shown of a run afterwards (the accounts, the trace, the report, the advice) is made from it, and so
is the status of a run that is still going on. It needs the standard library only. Who looks at a run again and again
keeps a `StoryReader`: it goes on where it was, and reads only what the log has gained.

The run may be finished, running or killed in the middle: the story ends with the last whole line of the log (`end_s`),
and what was under way then ends there too (`under_way` says which intervals those are). Times are seconds on the clock
of the event log; `began_at` says when that clock stood at zero, where it is known. A resumed run is one story with
several `sessions`.

    RoleInterval  a role, busy with or blocked by something, from `begin` to `end`. Those of one role do not overlap;
                  what lies between two of them is the coordinator's own moment
    TicketLife    one unit of experience in one line, and how it ended
    staleness     version being trained minus the oldest version of the span, when the learner took the rollout.
                  `stale_in_flight` of it had come up when the rollout landed (where tickets are pinned: since their
                  version was fixed), `stale_in_queue` while it waited for the learner
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.core import events as ev
from headway.core.history import FIRST_LINE, RunHistory, RunListener
from headway.core.history_records import Evaluation, FinishedUpdate, RoleInterval, Session, TicketLife, Version
from headway.core.line_history import LineListener
from headway.core.opaque import JsonObject, SettingValue
from headway.observe.folder import RunFolder
from headway.observe.log_parts import crc_before, lines_from
from headway.observe.recorder import parse_event

LEARNER, EVALUATOR = "learner", "evaluator"
LoggedEvent = ev.Event | Mapping[str, SettingValue]
"""An event, typed or as it stands in the log."""


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

    sessions: list[Session] = field(default_factory=list)
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
    publish_retries: list[tuple[float, str, int, str]] = field(default_factory=list)
    """(time, role, version, why)."""
    saves: list[tuple[float, int]] = field(default_factory=list)
    """(time, version)."""
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

    def session_began(self, session: Session) -> None:
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
    kinds = (LEARNER, "collector", "replay", EVALUATOR, "reanalyzer", "publisher")
    place = kinds.index(kind) if kind in kinds else len(kinds)
    return place, kind, int(number) if number.isdigit() else 0, int(lane) if lane.isdigit() else 0, role


def read_story(folder: Path | RunFolder) -> Story:
    """The story of the run in this folder; anything that is no run is one clear line (ValueError)."""
    return StoryReader(folder).read()


class StoryReader:
    """Reads the story of a run again and again, each time only the lines that have come since.

    A log that was cut back or replaced (the run was resumed, or is another one) is read from its beginning.
    """

    def __init__(self, folder: Path | RunFolder) -> None:
        self._run = folder if isinstance(folder, RunFolder) else RunFolder(folder)
        self._begin()

    def _begin(self) -> None:
        self._teller = _Teller(Story(self._run.path, "", {}, {}, None, None))
        self._position = 0
        self._check = 0  # of the bytes that lie before it, by which it knows the log again

    def read(self) -> Story:
        """The story up to the last whole line. It is the same object each time, and grows with the log."""
        run = self._run
        if not run.path.is_dir():
            raise ValueError(f"no run folder at {run.path}")
        if not run.events.is_file():
            raise ValueError(f"{run.path} is not a run folder: it has no {run.events.name}")
        try:
            story = self._read_log()
            describe(story, run)
        except ValueError:
            self._begin()  # what cannot be told once cannot be gone on with
            raise
        return story

    def _read_log(self) -> Story:
        path = self._run.events
        try:
            if crc_before(path, self._position) != self._check:
                self._begin()
            teller, story = self._teller, self._teller.story
            teller.go_on()
            begin = self._position
            for line in lines_from(path, begin):
                teller.tell(parse_event(line, path, story.num_events + 1), str(path))
                self._position += len(line)
            if self._position > begin:
                self._check = crc_before(path, self._position)
        except OSError as error:
            raise ValueError(f"cannot read {path}: {error.strerror or error}") from None
        teller.finish()
        return story


def describe(story: Story, run: RunFolder) -> None:
    """Add to a story what lies beside the log: the folder, the settings, the machine, how the run ended."""
    story.folder = run.path
    story.recipe, story.config = run.read_config() if run.config.is_file() else ("", {})
    story.environment = _read_object(run.environment)
    story.began_at = story.environment.get("began_at")
    story.summary = _read_object(run.summary) or None


def tell(
    events: Iterable[LoggedEvent],
    *,
    folder: Path | None = None,
    recipe: str = "",
    config: JsonObject | None = None,
    environment: JsonObject | None = None,
    summary: JsonObject | None = None,
) -> Story:
    """The story that events in memory tell."""
    environment = environment or {}
    story = Story(folder, recipe, config or {}, environment, environment.get("began_at"), summary)
    return _tell_all(_Teller(story), events, "the log" if folder is None else str(folder / "events.jsonl"))


def tell_end(events: Iterable[LoggedEvent]) -> Story:
    """What the last events of a log say: who does what, the newest version, how it ended. A `run` event comes first.

    Of a ticket whose beginning is not among them nothing is known but that it was there.
    """
    story = Story(None, "", {}, {}, None, None, gap="only the end of the log is told")
    return _tell_all(_Teller(story), events, "the end of the log")


def _tell_all(teller: _Teller, events: Iterable[LoggedEvent], where: str) -> Story:
    for event in events:
        teller.tell(event, where)
    teller.finish()
    return teller.story


def _read_object(path: Path) -> JsonObject:
    """A JSON object; empty if there is none."""
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold an object, received {type(value).__name__}")
    return value


class _Teller:
    """Lets a history follow the events, and the story keep what it says.

    tell, tell, ... finish: the story is whole --> go_on: as if it had not been --> tell, tell, ... finish
    """

    def __init__(self, story: Story) -> None:
        self.story = story
        self._history = RunHistory(story, is_whole=not story.gap)
        self._unfinished = 0  # intervals that were under way when the log ended, and are told up to there

    def tell(self, event: LoggedEvent, where: str) -> None:
        """The next event of the log `where`."""
        story = self.story
        if not story.num_events and _kind(event) not in ("run", "gap"):
            raise ValueError(f"{where} is not the log of a run: it begins with {_kind(event)!r}")
        try:
            typed = ev.as_event(event)
            self._history.apply(typed)
            keep = _KEPT.get(type(typed))
            if keep is not None:
                keep(story, typed)
        except ValueError as error:
            raise ValueError(f"{where}, line {story.num_events + 1}: {error}") from None
        except (KeyError, TypeError, IndexError) as error:
            what = f"not a {_kind(event)!r} event of a run ({error!r})"
            raise ValueError(f"{where}, line {story.num_events + 1}: {what}") from None
        story.num_events += 1

    def finish(self) -> None:
        """The log is over: whatever is under way ends here."""
        story, now = self.story, self._history.time_s
        assert self._history.roles is not None
        under_way = self._history.roles.under_way
        if story.sessions:
            story.sessions[-1].end = now
        for interval in under_way.values():
            interval.end = now
        unfinished = [interval for interval in under_way.values() if interval.seconds > 0]
        story.intervals += unfinished
        self._unfinished = len(unfinished)
        story.under_way = {} if story.is_over else dict(under_way)

    def go_on(self) -> None:
        """The log has grown: what was under way still is."""
        if self._unfinished:
            del self.story.intervals[-self._unfinished :]
            self._unfinished = 0


def _kind(event: LoggedEvent) -> str:
    return ev.written_kind(event) if isinstance(event, tuple) else event["e"]


def _keep_requeued(story: Story, event: ev.Requeued) -> None:
    story.lines[event.line].requeued.append((event.time_s, event.ticket))


def _keep_lost(story: Story, event: ev.Lost) -> None:
    """Several lines may lose a rollout at once."""
    lost = (event.time_s, event.ticket, event.why)
    if story.lost[-1:] != [lost]:
        story.lost.append(lost)


def _keep_gap(story: Story, event: ev.GapFound) -> None:
    story.gap = event.why


_KEPT: dict[type[object], Callable[[Story, Any], None]] = {
    ev.Reissued: lambda story, event: story.reissued.append((event.time_s, event.ticket, event.why)),
    ev.Requeued: _keep_requeued,
    ev.Lost: _keep_lost,
    ev.PublishRetried: lambda story, event: story.publish_retries.append(tuple(event)),
    ev.EvaluationSkipped: lambda story, event: story.skipped.append(event.version),
    ev.Restarted: lambda story, event: story.restarts.append(tuple(event)),
    ev.GapFound: _keep_gap,
    ev.Saved: lambda story, event: story.saves.append(tuple(event)),
    ev.Looked: lambda story, event: story.looks.append(event),
    ev.Alarmed: lambda story, event: story.alarms.append(event),
}
"""What a story keeps as it is written."""
