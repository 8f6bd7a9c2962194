"""The numbers of a run, derived from its events: a pure object, events in, points out.

    event ---> RunHistory ---> Metrics ---> a point, where the event is a

        look      the run looked at itself: totals, and what happened since the last look
        score     an evaluation is over: its numbers, at the version they belong to
        alarm     a threshold was passed, or all is well again
        resume    a checkpoint was restored: from here on everything happens again

The coordinator decides when an update ends; the recorder (`sinks.py`) decides when to look, and writes into the
log what only the running process knows: how long each kind of role was busy, its memory, the lead. So a recorded
log gives the same points again (`metrics_of`), also the log of a run that was killed.

`MEANINGS` is the schema; docs/metrics.md shows it.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headway.coordinator.activities import BETWEEN, CAUSES
from headway.core import events as ev
from headway.core.events_written_events import as_event
from headway.core.history import FIRST_LINE, RunHistory, RunListener
from headway.core.history_records import Evaluation, RunSession, settings_of_line
from headway.core.text_naming import learner_name
from headway.runs.metrics_line_metrics import LineMetrics, as_number, place
from headway.runs.metrics_metric_names import ALIASES as ALIASES
from headway.runs.metrics_metric_names import MEANINGS as MEANINGS
from headway.runs.metrics_metric_names import with_aliases as with_aliases

ROLES = {"collector": "collectors"} | {role: role for role in ("learner", "evaluator", "reanalyzer", "replay")}
FOR = {"learner": ("data", "evaluation"), "collectors": ("slot", "weights", "evaluation")}  # causes with a share each
MIB = 2**20
EVALUATIONS_FAILED = "run/evaluations_failed"


@dataclass(frozen=True, slots=True)
class Moment:
    """Where in a run something was measured."""

    time_s: float
    """On the clock of the event log; a resumed run goes on from its checkpoint."""
    update: int
    """For a score: the update that made its version, however late it comes."""
    version: int
    env_steps: int = 0
    """Environment steps (or tokens) behind that update: trained on, or thrown away."""


@dataclass(frozen=True, slots=True)
class Point:
    """Numbers of one moment."""

    moment: Moment
    values: dict[str, float]


def metrics_of(events: Iterable[ev.Event | Mapping[str, object]]) -> Iterator[Point]:
    """The points of a recorded run: `metrics_of(read_events(path))`."""
    metrics = Metrics()
    for event in events:
        point = metrics.apply(as_event(event))
        if point is not None:
            yield point


def load_metrics(pickled: bytes | None) -> Metrics | None:
    """The metrics that a checkpoint holds; None if it holds none, or those of another version of this library."""
    if pickled is None:
        return None
    try:
        metrics = pickle.loads(pickled)
    except (AttributeError, ImportError, TypeError, ValueError, pickle.UnpicklingError):
        return None
    return metrics if isinstance(metrics, Metrics) and metrics.is_current else None


class Metrics(RunListener):
    """Follows a run and adds up what happened. Totals only grow; an interval lasts from one look to the next."""

    def __init__(self) -> None:
        self._lines: dict[str, LineMetrics] = {}
        self._totals: Counter[str] = Counter(dict.fromkeys((*COUNTED_EVENTS.values(), EVALUATIONS_FAILED), 0))
        self._evaluated: Evaluation | None = None  # the last that has ended
        self._targets = 0  # reanalyzed since the look before
        self._looked_s = 0.0
        self._spent: Mapping[str, Mapping[str, float]] = {}  # at the look before
        self._cpu_s = 0.0
        self._history = RunHistory(self, is_whole=False, with_roles=False)

    @property
    def is_current(self) -> bool:
        """Whether everything is there that this release counts: those in a checkpoint may be of an earlier one."""
        return hasattr(self._history.first, "steps")

    def apply(self, event: ev.Event) -> Point | None:
        """Take an event in; what comes out is a point, if the event is one that gives one."""
        self._history.apply(event)
        step = _STEPS.get(type(event))
        return None if step is None else step(self, event)

    # -- what the history tells -----------------------------------------------------------------------

    def line_began(self, name: str) -> LineMetrics:
        line = self._lines[name] = LineMetrics()
        session = self._history.session if name else None  # the first line is there before there is a session
        if session is not None:
            line.begin_session(session.begin, settings_of_line(session.settings, name), (0, 0, 0, 0))
        return line

    def session_began(self, session: RunSession) -> None:
        """The roles of a session have spent no time yet."""
        for name, line in self._lines.items():
            settings = settings_of_line(session.settings, name)
            line.begin_session(session.begin, settings, self._history.line(name).sizes)
        self._begin_interval(session.begin, {}, 0.0)

    def evaluation_ended(self, evaluation: Evaluation) -> None:
        self._evaluated = evaluation

    def _begin_interval(self, time_s: float, spent: Mapping[str, Mapping[str, float]], cpu_s: float) -> None:
        self._looked_s, self._spent, self._cpu_s = time_s, spent, cpu_s
        self._targets = 0

    # -- points ---------------------------------------------------------------------------------------

    def _count(self, event: ev.Event) -> None:
        self._totals[COUNTED_EVENTS[type(event)]] += 1

    def _refresh(self, event: ev.Refreshed) -> None:
        self._targets += event.targets

    def _resume(self, event: ev.Resumed) -> Point:
        return Point(self._moment(event.time_s), self._of_lines(lambda name: place(self._history.lines[name])))

    def _score(self, event: ev.EvaluationEnded) -> Point | None:
        version, value = event.version, as_number(event.value)
        if value is None:
            self._totals[EVALUATIONS_FAILED] += 1
            return None
        session = self._history.session
        publish_every = 1 if session is None else session.settings.get("publish_every", 1)
        numbers = {f"evaluate/{name}": as_number(number) for name, number in event.metrics.items()}
        values = {name: number for name, number in numbers.items() if number is not None}
        values |= {"evaluate/score": value, "evaluate/version": float(version)}
        if self._evaluated is not None and self._evaluated.version == version:
            values["time/evaluate_s"] = event.time_s - self._evaluated.begin
        update = min(version * publish_every, self._history.first.updates)
        env_steps = self._lines[FIRST_LINE].steps_behind(version)
        return Point(Moment(round(event.time_s, 6), update, version, env_steps), values)

    def _look(self, event: ev.Looked) -> Point:
        """Totals, and what happened since the look before."""
        time_s, history = event.time_s, self._history
        values = {name: float(total) for name, total in self._totals.items()}
        values |= self._of_lines(lambda name: self._lines[name].values(time_s, history.lines[name]))
        if history.session is not None and "collectors" in history.session.settings:
            values["run/collectors"] = float(history.session.settings["collectors"])
        values["run/memory_mb"] = event.rss / MIB
        values |= {f"memory/{role}_mb": size / MIB for role, size in event.memory.items()}
        elapsed_s = time_s - self._looked_s
        if elapsed_s > 0:
            if self._targets:
                values["throughput/targets_per_s"] = self._targets / elapsed_s
            if event.cpu_s is not None:  # less than before, where a role's process was replaced
                values["run/cpu_cores"] = max(0.0, event.cpu_s - self._cpu_s) / elapsed_s
        names = ROLES | {learner_name(line): f"{line}/learner" for line in self._lines if line}
        for role, seconds in event.spent.items():
            if role in names:
                values |= _shares(names[role], seconds, self._spent.get(role, {}))
        for name, line in self._lines.items():
            line.begin_interval(time_s, history.lines[name].sizes)
        self._begin_interval(time_s, event.spent, event.cpu_s or 0.0)
        return Point(self._moment(time_s), values)

    def _alarm(self, event: ev.Alarmed) -> Point:
        return Point(self._moment(event.time_s), {f"alarms/{event.name}": float(event.on)})

    def _of_lines(self, of_line: Callable[[str], dict[str, float]]) -> dict[str, float]:
        """The numbers of all lines; those of another line than the first behind its name."""
        values = of_line(FIRST_LINE)
        for line in self._lines:
            if line != FIRST_LINE:
                values |= {f"{line}/{name}": value for name, value in of_line(line).items()}
        return values

    def _moment(self, time_s: float) -> Moment:
        first = self._history.first
        return Moment(round(time_s, 6), first.updates, first.version, first.steps)


def _shares(name: str, now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """Parts of the time a kind of role had; the rest was between two activities."""
    line, _, kind = name.rpartition("/")
    behind = f"{line}/" if line else ""
    spent = {activity: seconds - before.get(activity, 0.0) for activity, seconds in now.items()}
    whole = sum(spent.values())
    if whole <= 0:
        return {}
    waited: dict[str, float] = {}
    for activity, seconds in spent.items():
        if activity in CAUSES:
            cause = CAUSES[activity]
            waited[cause] = waited.get(cause, 0.0) + seconds
    in_all = sum(waited.values())
    shares = {f"{behind}busy/{kind}": 1 - (in_all + spent.get(BETWEEN, 0.0)) / whole}
    if kind in FOR:
        shares[f"{behind}waiting/{kind}"] = in_all / whole
        shares |= {f"{behind}waiting/{kind}_for_{cause}": waited.get(cause, 0.0) / whole for cause in FOR[kind]}
    return shares


COUNTED_EVENTS: dict[type[object], str] = {
    ev.Restarted: "run/restarts",
    ev.PublishRetried: "run/publish_retries",
    ev.EvaluationSkipped: "run/evaluations_skipped",
    ev.SaveSkipped: "run/saves_skipped",
}
"""Events that are counted one by one."""
_STEPS: dict[type[object], Callable[[Metrics, Any], Point | None]] = {
    **dict.fromkeys(COUNTED_EVENTS, Metrics._count),
    ev.Refreshed: Metrics._refresh,
    ev.Resumed: Metrics._resume,
    ev.EvaluationEnded: Metrics._score,
    ev.Looked: Metrics._look,
    ev.Alarmed: Metrics._alarm,
}
