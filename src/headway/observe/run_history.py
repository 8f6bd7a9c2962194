"""The story of a run, told from its event log: `read_story(folder)`.

    events.jsonl ---> read_story ---> Story: settings, roles and what each did when, tickets, updates, versions,
    config.yaml                              evaluations, queue sizes, lead, drops, looks, alarms

Everything that is shown of a run afterwards (the accounts, the trace, the report, the advice) is made from it, and so
is the status of a run that is still going on. It needs the standard library only. Who looks at a run again and again
keeps a `StoryReader`: it goes on where it was, and reads only what the log has gained.

The run may be finished, running or killed in the middle: the story ends with the last whole line of the log (`end_s`),
and what was under way then ends there too (`under_way` says which intervals those are). Times are seconds on the clock
of the event log; `began_at` says when that clock stood at zero, where it is known. A resumed run is one story with
several `sessions`.

    Interval    a role, busy with or blocked by something, from `begin` to `end`. Those of one role do not overlap; what
                lies between two of them is the coordinator's own moment
    Ticket      one unit of experience and how it ended. Of a ticket that was collected several times, `began`,
                `ended`, `span` and what follows from them are those of the last time
    staleness   version being trained minus the oldest version of the span, when the learner took the rollout.
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

from headway.core.naming import seat_name
from headway.observe.activities import Kind, kind_of
from headway.observe.folder import RunFolder
from headway.observe.log_parts import crc_before, lines_from
from headway.observe.recorder import parse_event

LEARNER, EVALUATOR = "learner", "evaluator"
OPEN, IN_FLIGHT, READY, TAKEN = range(4)
PHASES = ("open", "in flight", "ready", "taken")


@dataclass(slots=True)
class Interval:
    """What one role did, or waited for, for a while."""

    role: str
    kind: Kind
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
class Ticket:
    """One ticket's life. A time that has not come is None."""

    index: int
    opened: float
    collector: int | None = None
    """Its seat: collector `seat % collectors`, lane `seat // collectors`."""
    role: str | None = None
    """The seat's name, as in the intervals."""
    version: int | None = None
    """It took off with this one."""
    began: float | None = None
    ended: float | None = None
    """Its rollout landed."""
    taken: float | None = None
    """The learner took it, or it went into the replay."""
    settled: float | None = None
    """It was learned or dropped: its slot was free again."""
    how: str = "open"
    """`learned`, `dropped`, or where it was when the story ended: `open`, `in flight`, `ready`, `taken`."""
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
    def queue_s(self) -> float | None:
        """How long it waited for the learner."""
        return None if self.taken is None or self.ended is None else self.taken - self.ended


@dataclass(slots=True)
class Update:
    """One learn call."""

    number: int
    begin: float
    end: float
    version: int
    """It was trained while this one was the newest."""
    tickets: list[int]
    metrics: dict[str, Any]

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
    metrics: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(slots=True)
class Session:
    """One start of the run: the first, or a resume."""

    begin: float
    end: float
    settings: dict[str, Any]
    """What the `run` event says."""
    how: str = ""
    """`end`, `fail`, or nothing: it was killed, or it is still running."""
    why: str = ""
    """Why it stopped or failed."""


@dataclass(slots=True)
class Story:
    """Everything the event log of one run says."""

    folder: Path | None
    recipe: str
    config: dict[str, Any]
    """`config.yaml`; empty where there is none (a run of your own functions)."""
    environment: dict[str, Any]
    """`environment.json`: versions, machine, when it began; empty where there is none."""
    began_at: float | None
    """Seconds since 1970 when the clock of the log stood at zero."""
    summary: dict[str, Any] | None
    """`summary.json`, once the run is over."""

    sessions: list[Session] = field(default_factory=list)
    intervals: list[Interval] = field(default_factory=list)
    """In the order in which they ended."""
    under_way: dict[str, Interval] = field(default_factory=dict)
    """Role -> what it did when the log ended; also in `intervals`, up to `end_s`. Empty once the run is over."""
    tickets: dict[int, Ticket] = field(default_factory=dict)
    updates: list[Update] = field(default_factory=list)
    versions: list[Version] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    """Versions whose evaluation a later one took the place of."""
    queue: list[tuple[float, int, int, int, int]] = field(default_factory=list)
    """(time, open, in flight, ready, taken) after each change."""
    leads: list[tuple[float, float]] = field(default_factory=list)
    """(time, lead) after each change."""
    drops: Counter[str] = field(default_factory=Counter)
    reissued: list[tuple[float, int, str]] = field(default_factory=list)
    """(time, ticket, why): flights that failed and were flown again."""
    requeued: list[tuple[float, int]] = field(default_factory=list)
    lost: list[tuple[float, int, str]] = field(default_factory=list)
    restarts: list[tuple[float, str, str]] = field(default_factory=list)
    """(time, role, why)."""
    publish_retries: list[tuple[float, str, int, str]] = field(default_factory=list)
    """(time, role, version, why)."""
    saves: list[tuple[float, int]] = field(default_factory=list)
    """(time, version)."""
    looks: list[dict[str, Any]] = field(default_factory=list)
    """The `look` events as they are, with their time as `t`."""
    alarms: list[dict[str, Any]] = field(default_factory=list)
    """The `alarm` events as they are, with their time as `t`."""
    gap: str = ""
    """What is missing of the log, if anything is: then tickets may have no beginning."""
    num_events: int = 0

    @property
    def settings(self) -> dict[str, Any]:
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
    def version(self) -> int:
        return self.versions[-1].number if self.versions else 0

    @property
    def roles(self) -> list[str]:
        """Learner first, then collectors and their lanes in order, then everybody else."""
        return sorted({interval.role for interval in self.intervals} | set(self.under_way), key=role_order)


def role_order(role: str) -> tuple[int, str, int, int]:
    """Sorts roles as they are shown."""
    kind, _, rest = role.partition("-")
    number, _, lane = rest.partition("/")
    kinds = (LEARNER, "collector", "replay", EVALUATOR, "reanalyzer", "publisher")
    place = kinds.index(kind) if kind in kinds else len(kinds)
    return place, kind, int(number) if number.isdigit() else 0, int(lane) if lane.isdigit() else 0


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
    """What lies beside the log: the folder, the settings, the machine, how it ended."""
    story.folder = run.path
    story.recipe, story.config = run.read_config() if run.config.is_file() else ("", {})
    story.environment = _read_object(run.environment)
    story.began_at = story.environment.get("began_at")
    story.summary = _read_object(run.summary) or None


def tell(
    events: Iterable[Mapping[str, Any]],
    *,
    folder: Path | None = None,
    recipe: str = "",
    config: dict[str, Any] | None = None,
    environment: dict[str, Any] | None = None,
    summary: dict[str, Any] | None = None,
) -> Story:
    """The same from events in memory."""
    environment = environment or {}
    story = Story(folder, recipe, config or {}, environment, environment.get("began_at"), summary)
    teller = _Teller(story)
    where = "the log" if folder is None else str(folder / "events.jsonl")
    for event in events:
        teller.tell(event, where)
    teller.finish()
    return story


def tell_end(events: Iterable[Mapping[str, Any]]) -> Story:
    """What the last events of a log say: who does what, the newest version, how it ended. A `run` event comes first.

    Of a ticket whose beginning is not among them nothing is known but that it was there.
    """
    story = Story(None, "", {}, {}, None, None)
    story.gap = "only the end of the log is told"
    teller = _Teller(story)
    for event in events:
        teller.tell(event, "the end of the log")
    teller.finish()
    return story


def _read_object(path: Path) -> dict[str, Any]:
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
    """Follows the events. Every role is in at most one interval, every live ticket in one phase.

    tell, tell, ... finish: the story is whole --> go_on: as if it had not been --> tell, tell, ... finish
    """

    def __init__(self, story: Story) -> None:
        self.story = self._story = story
        self._ended = 0  # intervals that were under way when the log ended, and are told up to there
        self._under_way: dict[str, Interval] = {}  # then
        self._now = 0.0
        self._version = 0
        self._collectors = self._lanes = 1
        self._sizes = [0, 0, 0, 0]
        self._phases: dict[int, int] = {}  # live tickets
        self._landed_at: dict[int, int] = {}  # ticket -> newest version when it landed
        self._evaluating: Evaluation | None = None
        self._taking: Sequence[int] = ()  # tickets of the update under way
        self._used = -1  # the newest version somebody has collected with
        self._names: dict[int, str] = {}  # of the seats
        self._notes: dict[str, Callable[[float, Mapping[str, Any]], None]] = {
            "run": self._run,
            "gap": self._gap,
            "resume": self._resume,
            "open": self._open,
            "start": self._start,
            "land": self._land,
            "reissue": self._reissue,
            "requeue": self._requeue,
            "lose": self._lose,
            "drop": self._drop,
            "settle": self._settle,
            "update": self._update,
            "learn": self._learn,
            "insert": self._insert,
            "publish": self._publish,
            "publish_retry": self._publish_retry,
            "lead": self._lead,
            "evaluate": self._evaluate,
            "score": self._score,
            "skip_evaluation": self._skip_evaluation,
            "busy": self._busy,
            "wait": self._wait,
            "restart": self._restart,
            "save": self._save,
            "look": self._look,
            "alarm": self._alarm,
            "stop": self._stop,
            "end": self._end,
            "fail": self._end,
        }

    def tell(self, event: Mapping[str, Any], where: str) -> None:
        """The next event of the log `where`."""
        if not self._story.num_events and event["e"] not in ("run", "gap"):
            raise ValueError(f"{where} is not the log of a run: it begins with {event['e']!r}")
        try:
            self._note(event)
        except (KeyError, TypeError, IndexError) as error:
            line = self._story.num_events + 1
            raise ValueError(f"{where}, line {line}: not a {event['e']!r} event of a run ({error!r})") from None

    def _note(self, event: Mapping[str, Any]) -> None:
        if self._story.gap:
            self._meet(event)
        note = self._notes.get(event["e"])
        if note is not None:
            note(event["t"], event)
        self._now = max(self._now, event["t"])
        self._story.num_events += 1

    def finish(self) -> None:
        """The log is over: whatever is under way ends here."""
        story = self._story
        if story.sessions:
            story.sessions[-1].end = self._now
        before = len(story.intervals)
        for interval in story.under_way.values():
            interval.end = self._now
            if interval.seconds > 0:
                story.intervals.append(interval)
        self._ended = len(story.intervals) - before
        self._under_way = dict(story.under_way)
        if story.is_over:
            story.under_way.clear()
        for index, phase in self._phases.items():
            story.tickets[index].how = PHASES[phase]

    def go_on(self) -> None:
        """The log has grown: what was under way still is."""
        if self._ended:
            del self._story.intervals[-self._ended :]
            self._ended = 0
        if self._under_way:
            self._story.under_way = self._under_way
            self._under_way = {}

    # -- roles --------------------------------------------------------------------------------------

    def _enter(
        self, role: str, time_s: float, what: str, version: int | None = None, ticket: int | None = None
    ) -> Interval:
        self._leave(role, time_s)
        interval = Interval(role, kind_of(what), what, time_s, time_s, version, ticket)
        self._story.under_way[role] = interval
        return interval

    def _leave(self, role: str, time_s: float) -> None:
        interval = self._story.under_way.pop(role, None)
        if interval is not None and time_s > interval.begin:
            interval.end = time_s
            self._story.intervals.append(interval)

    def _busy(self, time_s: float, fields: Mapping[str, Any]) -> None:
        role, what = fields["r"], fields["w"]
        before = self._story.under_way.get(role)
        version = ticket = None
        if what == "evaluate":
            version = None if self._evaluating is None else self._evaluating.version
        elif before is not None and what in ("apply", "collect"):  # in the middle of a ticket
            version, ticket = before.version, before.ticket
        self._enter(role, time_s, what, version, ticket)

    def _wait(self, time_s: float, fields: Mapping[str, Any]) -> None:
        before = self._story.under_way.get(fields["r"])
        interval = self._enter(fields["r"], time_s, fields["w"])
        if before is not None and fields["w"] in ("applying", "weights", "retry"):
            interval.version, interval.ticket = before.version, before.ticket

    def _seat(self, seat: int) -> str:
        name = self._names.get(seat)
        if name is None:
            name = self._names[seat] = seat_name(seat, self._collectors, self._lanes)
        return name

    def _restart(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._story.restarts.append((time_s, fields["role"], fields["why"]))

    # -- tickets ------------------------------------------------------------------------------------

    def _move(self, time_s: float, index: int, phase: int | None) -> None:
        """From the phase it is in to another, or out."""
        sizes, phases = self._sizes, self._phases
        before = phases.pop(index, None)
        if before is not None:
            sizes[before] -= 1
        if phase is not None:
            phases[index] = phase
            sizes[phase] += 1
        queue = self._story.queue
        if queue and queue[-1][0] == time_s:
            queue.pop()
        queue.append((time_s, *sizes))  # type: ignore[arg-type]  # four of them

    def _open(self, time_s: float, fields: Mapping[str, Any]) -> None:
        index = fields["k"]
        self._story.tickets[index] = Ticket(index, time_s)
        self._move(time_s, index, OPEN)

    def _start(self, time_s: float, fields: Mapping[str, Any]) -> None:
        index, seat, version = fields["k"], fields["c"], fields["v"]
        ticket = self._story.tickets[index]
        ticket.collector, ticket.role, ticket.version = seat, self._seat(seat), version
        ticket.began, ticket.ended = time_s, None
        ticket.flights += 1
        if version > self._used:
            self._use(time_s, version, index)
        self._move(time_s, index, IN_FLIGHT)
        self._enter(ticket.role, time_s, "collect", version, index)

    def _use(self, time_s: float, version: int, index: int) -> None:
        self._used = version
        for known in reversed(self._story.versions):
            if known.number <= version:
                if known.number == version:
                    known.first_used, known.first_ticket = time_s, index
                return

    def _land(self, time_s: float, fields: Mapping[str, Any]) -> None:
        index = fields["k"]
        ticket = self._story.tickets[index]
        ticket.ended, ticket.steps, ticket.length = time_s, fields["n"], fields["l"]
        ticket.span = (fields["v"][0], fields["v"][1])
        ticket.num_bytes = fields.get("b", 0)
        self._landed_at[index] = self._version
        self._move(time_s, index, READY)
        self._end_flight(time_s, ticket)

    def _end_flight(self, time_s: float, ticket: Ticket) -> None:
        """Its seat is free, unless it is doing something else by now."""
        if ticket.role is not None:
            interval = self._story.under_way.get(ticket.role)
            if interval is not None and interval.ticket == ticket.index:
                self._leave(ticket.role, time_s)

    def _reissue(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._story.reissued.append((time_s, fields["k"], fields["why"]))
        self._end_flight(time_s, self._story.tickets[fields["k"]])
        self._move(time_s, fields["k"], OPEN)

    def _requeue(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._story.requeued.append((time_s, fields["k"]))
        self._story.tickets[fields["k"]].ended = None
        self._move(time_s, fields["k"], OPEN)

    def _lose(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._story.lost.append((time_s, fields["k"], fields["why"]))
        self._story.tickets[fields["k"]].ended = None
        self._move(time_s, fields["k"], OPEN)

    def _drop(self, time_s: float, fields: Mapping[str, Any]) -> None:
        index = fields["k"]
        ticket = self._story.tickets[index]
        ticket.settled, ticket.how, ticket.reason, ticket.why = time_s, "dropped", fields["reason"], fields["why"]
        self._story.drops[fields["reason"]] += 1
        if self._phases.get(index) == IN_FLIGHT:
            self._end_flight(time_s, ticket)
        self._move(time_s, index, None)

    def _settle(self, time_s: float, fields: Mapping[str, Any]) -> None:
        for index in fields["k"]:
            ticket = self._story.tickets[index]
            ticket.settled, ticket.how = time_s, "learned"
            self._move(time_s, index, None)

    def _take(self, begin: float, now: float, indices: Iterable[int], version: int, update: int | None) -> None:
        for index in indices:
            ticket = self._story.tickets[index]
            ticket.taken = begin if ticket.ended is None else max(begin, ticket.ended)
            ticket.update = update
            if ticket.span is not None:
                landed_at = max(ticket.span[0], self._landed_at.pop(index, version))
                ticket.staleness = version - ticket.span[0]
                ticket.stale_in_flight = landed_at - ticket.span[0]
                ticket.stale_in_queue = version - landed_at
            self._move(now, index, TAKEN)

    # -- learning and versions ----------------------------------------------------------------------

    def _update(self, time_s: float, fields: Mapping[str, Any]) -> None:
        """Its rollouts are with the learner. Those of an update that came to nothing are back."""
        for index in self._taking:
            if self._phases.get(index) == TAKEN:
                self._move(time_s, index, READY)
        self._taking = fields["k"]
        for index in self._taking:
            self._move(time_s, index, TAKEN)
        interval = self._enter(LEARNER, time_s, "learn", fields["v"])
        interval.update = fields["u"]

    def _learn(self, time_s: float, fields: Mapping[str, Any]) -> None:
        begin = max(0.0, time_s - fields["d"])
        self._taking = ()
        if fields["k"]:
            self._take(begin, time_s, fields["k"], fields["v"], fields["u"])
        interval = self._story.under_way.get(LEARNER)
        if interval is None or interval.update != fields["u"]:  # something else came in between: a second attempt
            interval = self._enter(LEARNER, begin if interval is None else max(begin, interval.begin), "learn")
            interval.version, interval.update = fields["v"], fields["u"]
        self._leave(LEARNER, time_s)
        self._story.updates.append(
            Update(fields["u"], begin, time_s, fields["v"], list(fields["k"]), dict(fields["m"]))
        )

    def _insert(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._take(time_s - fields.get("d", 0.0), time_s, fields["k"], fields["v"], None)

    def _publish(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._version = fields["v"]
        last = self._story.updates[-1] if self._story.updates else None
        made_by = None if last is None or not self._version else last.number
        publish_s = 0.0 if last is None or made_by is None else time_s - last.end
        self._story.versions.append(Version(self._version, time_s, made_by, publish_s))

    def _publish_retry(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._story.publish_retries.append((time_s, fields["role"], fields["v"], fields["why"]))

    def _lead(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._note_lead(time_s, fields["lead"])

    def _note_lead(self, time_s: float, lead: float) -> None:
        leads = self._story.leads
        if not leads or leads[-1][1] != lead:
            leads.append((time_s, float(lead)))

    # -- evaluation ---------------------------------------------------------------------------------

    def _evaluate(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._evaluating = Evaluation(fields["v"], time_s)
        self._story.evaluations.append(self._evaluating)

    def _score(self, time_s: float, fields: Mapping[str, Any]) -> None:
        known = self._evaluating
        if known is None or known.version != fields["v"]:
            return
        known.end, known.value, known.error = time_s, fields["value"], fields["error"] or None
        known.metrics = dict(fields["m"])
        self._evaluating = None

    def _skip_evaluation(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._story.skipped.append(fields["v"])

    # -- the run ------------------------------------------------------------------------------------

    def _run(self, time_s: float, fields: Mapping[str, Any]) -> None:
        """A session begins; what the one before had under way ended when it did."""
        story = self._story
        for role in list(story.under_way):
            self._leave(role, self._now)
        if story.sessions:
            story.sessions[-1].end = self._now
        settings = {name: value for name, value in fields.items() if name not in ("t", "e", "config")}
        story.sessions.append(Session(time_s, time_s, settings))
        self._collectors, self._lanes = settings.get("collectors", 1), settings.get("lanes", 1)
        self._names.clear()
        if not isinstance(settings.get("max_lead"), str) and "max_lead" in settings:
            self._note_lead(time_s, settings["max_lead"])

    def _gap(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._story.gap = fields["why"]

    def _meet(self, event: Mapping[str, Any]) -> None:
        """Of a ticket whose beginning is not in the log nothing is known but that it was there."""
        tickets = event.get("k", ())
        for index in tickets if isinstance(tickets, list | tuple) else (tickets,):
            if index not in self._story.tickets:
                self._story.tickets[index] = Ticket(index, event["t"])

    def _resume(self, time_s: float, fields: Mapping[str, Any]) -> None:
        """What was in flight flies again."""
        self._version = fields["v"]
        for index, phase in list(self._phases.items()):
            if phase == IN_FLIGHT:
                self._move(time_s, index, OPEN)

    def _save(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._story.saves.append((time_s, fields["v"]))

    def _look(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._story.looks.append(dict(fields))
        self._note_lead(time_s, fields["lead"])

    def _alarm(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._story.alarms.append(dict(fields))

    def _stop(self, time_s: float, fields: Mapping[str, Any]) -> None:
        self._story.sessions[-1].why = fields["reason"]

    def _end(self, time_s: float, fields: Mapping[str, Any]) -> None:
        session = self._story.sessions[-1]
        session.how, session.why = fields["e"], fields.get("why", session.why)
