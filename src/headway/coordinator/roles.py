"""What is built where it runs: a thin shell around each station.

The shell checks what the station returns, takes its state along and knows nothing of the run.
"""

from __future__ import annotations

import copy
import math
import numbers
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from headway.core.protocols import (
    BeginsAnew,
    Collector,
    Concurrent,
    Evaluator,
    Learner,
    OffersTargets,
    Pausable,
    Placement,
    Problem,
    Reanalyzer,
    ReplayLearner,
    Role,
    SavesBeside,
    SharedReplay,
    Stateful,
    TakesSnapshots,
    Tells,
    explain,
)
from headway.core.text_naming import learner_name
from headway.core.text_one_line import said
from headway.core.types import Batch, LearnReport, Rollout, Score, Snapshot, Span, Ticket, size_of
from headway.core.types_opaque import SavedState

DEFAULT_PLACEMENT = Placement()


@dataclass(frozen=True, slots=True)
class LineStations:
    """How to build the stations of one more line: its learner and, where it has a role of its own, its replay."""

    learner: Callable[[], Learner]
    replay: Callable[[], SharedReplay] | None = None
    learner_placement: Placement = DEFAULT_PLACEMENT
    replay_placement: Placement = DEFAULT_PLACEMENT


@dataclass(frozen=True, slots=True)
class Stations:
    """How to build each station, and where. Factories are called in the place where the role runs.

    `collector` gets the collector's number, 0 to collectors - 1, or a later one if some are added. `replay` is for a
    replay with a role of its own; one that lives inside the learner needs none.
    """

    collector: Callable[[int], Collector]
    learner: Callable[[], Learner]
    evaluator: Callable[[], Evaluator] | None = None
    reanalyzer: Callable[[], Reanalyzer] | None = None
    replay: Callable[[], SharedReplay] | None = None
    collector_placement: Placement = DEFAULT_PLACEMENT
    learner_placement: Placement = DEFAULT_PLACEMENT
    evaluator_placement: Placement = DEFAULT_PLACEMENT
    replay_placement: Placement = DEFAULT_PLACEMENT
    lines: Mapping[str, LineStations] = field(default_factory=dict)
    """The other lines of the run, under the names they have in the settings."""
    evaluator_of: Callable[[Collector], Evaluator] | None = None
    """In place of a role of its own: evaluations take place in the first collector's, with what it has (its engine).
    Only where they pause the run and what is in flight lands first. `evaluator` still builds one by itself."""

    most_collectors: int | None = None
    """Where something has a place for each collector (a replay with a stream for each): more than these cannot be added
    to a run that goes on."""

    @property
    def shares_collector(self) -> bool:
        """Is the first collector the evaluator too?"""
        return self.evaluator is not None and self.evaluator_of is not None

    @property
    def replay_names(self) -> list[str]:
        """The roles of the replays that have one of their own."""
        shared = {"": self.replay, **{name: line.replay for name, line in self.lines.items()}}
        return [replay_name(name) for name, replay in shared.items() if replay is not None]

    def roles(self, num_collectors: int, lanes: int = 1) -> list[Role]:
        """Learners first: they make the snapshots everybody else starts with."""
        roles = [Role(LEARNER, partial(LearnerRole, self.learner), self.learner_placement)]
        if self.replay is not None:
            roles.append(Role(REPLAY, partial(ReplayRole, self.replay), self.replay_placement))
        for name, line in self.lines.items():
            roles.append(Role(learner_name(name), partial(LearnerRole, line.learner), line.learner_placement))
            if line.replay is not None:
                roles.append(Role(replay_name(name), partial(ReplayRole, line.replay), line.replay_placement))
        roles += [self.collector_role(number, lanes) for number in range(num_collectors)]
        if self.evaluator is not None and not self.shares_collector:
            roles.append(Role(EVALUATOR, partial(EvaluatorRole, self.evaluator), self.evaluator_placement))
        if self.reanalyzer is not None:
            roles.append(Role(REANALYZER, partial(ReanalyzerRole, self.reanalyzer), self.evaluator_placement))
        return roles

    def collector_role(self, number: int, lanes: int = 1) -> Role:
        """One of the collectors."""
        lent = self.evaluator_of if self.shares_collector and number == 0 else None
        factory = partial(CollectorRole, partial(self.collector, number), lent)
        return Role(collector_name(number), factory, self.collector_placement, lanes)


LEARNER, EVALUATOR, REANALYZER, REPLAY = "learner", "evaluator", "reanalyzer", "replay"
WRITER = "writer"
"""On the board: what writes a checkpoint beside a learner that goes on."""
STATISTICS = "replay_statistics"  # in the info of a draw


def replay_name(line: str) -> str:
    """The role of a line's replay, where it has one of its own."""
    return f"{line}/{REPLAY}" if line else REPLAY


def collector_name(number: int) -> str:
    return f"collector-{number}"


def publisher_name(number: int) -> str:
    """Who hands versions to a collector in the middle of its work, on the board."""
    return f"publisher-{number}"


class Traits(NamedTuple):
    """What a collector is like."""

    kind: str
    """The name of its class."""
    is_stateful: bool
    holds_weights: bool
    is_concurrent: bool
    can_pause: bool
    tells: bool
    """It can say what it is doing."""


Together = tuple[tuple[Snapshot, tuple[Ticket, ...]], ...]
"""The tickets of one call in their order: those that follow each other with the same weights share them on the way."""

SeveralCollected = tuple[tuple[Rollout, ...], SavedState, Problem | None, float]
"""What the tickets of one call made, the state after that, why the next one failed, if it did, and the seconds."""


class CollectorRole:
    """A collector and what it carries from one ticket to the next; perhaps it lends itself to an evaluator."""

    def __init__(
        self, build: Callable[[], Collector], evaluator_of: Callable[[Collector], Evaluator] | None = None
    ) -> None:
        self._build = build
        self._evaluator_of = evaluator_of
        self._begin(build())

    def _begin(self, collector: Collector) -> None:
        self.collector = collector
        self._evaluator: EvaluatorRole | None = None
        self._stateful = collector if isinstance(collector, Stateful) else None

    def traits(self) -> Traits:
        return Traits(
            type(self.collector).__name__,
            self._stateful is not None,
            isinstance(self.collector, TakesSnapshots),
            isinstance(self.collector, Concurrent) and self.collector.is_concurrent,
            isinstance(self.collector, Pausable),
            isinstance(self.collector, Tells),
        )

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> tuple[Rollout, SavedState]:
        rollout = self.collector.collect(ticket, snapshot)
        if not isinstance(rollout, Rollout):
            raise TypeError(f"collect must return a Rollout, received {type(rollout).__name__}")
        span = rollout.span
        if span is None and ticket.version is not None:
            span = Span(ticket.version, ticket.version)
        size = size_of(rollout.payload) if rollout.size is None else rollout.size
        stamped = Rollout(
            rollout.payload,
            rollout.steps,
            rollout.length,
            span,
            rollout.info,
            rollout.filtered,
            ticket.index,
            size,
            rollout.spans,
        )
        return stamped, None if self._stateful is None else self.state()

    def collect_several(self, flights: Together, within_s: float) -> SeveralCollected:
        """One after the other, up to the first that fails: what was made before it is not lost. When `within_s` have
        passed, what is left is not begun."""
        made: list[Rollout] = []
        state: SavedState = None
        problem: Problem | None = None
        began = time.perf_counter()
        for ticket, snapshot in ((ticket, snapshot) for snapshot, tickets in flights for ticket in tickets):
            if made and time.perf_counter() - began > within_s:
                break
            try:
                rollout, state = self.collect(ticket, snapshot)
            except Exception as error:
                problem = explain(error)
                break
            made.append(rollout)
        return tuple(made), state, problem, time.perf_counter() - began

    def state(self) -> SavedState:
        return None if self._stateful is None else copy.deepcopy(self._stateful.state_dict())

    def restore(self, state: object) -> None:
        assert self._stateful is not None
        self._stateful.load_state_dict(copy.deepcopy(state))

    def begin_anew(self, seed: int) -> SavedState:
        """Leave behind what led to a failure; the state after that. A collector that carries nothing stays as it is."""
        if isinstance(self.collector, BeginsAnew):
            self.collector.begin_anew(seed)
        elif self._stateful is not None:
            self.close()
            self._begin(self._build())
        return self.state()

    def apply(self, snapshot: Snapshot) -> None:
        assert isinstance(self.collector, TakesSnapshots)
        self.collector.apply(snapshot)

    def evaluate(self, snapshot: Snapshot, seed: int) -> Score:
        """Measures a version with what the collector has, which holds that version's weights afterwards."""
        assert self._evaluator_of is not None
        if self._evaluator is None:
            self._evaluator = EvaluatorRole(partial(self._evaluator_of, self.collector))
        return self._evaluator.evaluate(snapshot, seed)

    def pause(self) -> None:
        assert isinstance(self.collector, Pausable)
        self.collector.pause()

    def resume(self) -> None:
        assert isinstance(self.collector, Pausable)
        self.collector.resume()

    def doing(self) -> list[str]:
        assert isinstance(self.collector, Tells)
        return list(self.collector.doing())

    def close(self) -> None:
        """Called where the role ends and its process does not."""
        getattr(self.collector, "close", lambda: None)()


class _KeepsTargets:
    """A station whose state is saved, and which may have targets to be made again."""

    def __init__(self, station: Learner | SharedReplay) -> None:
        self._station = station

    def offers_targets(self) -> bool:
        return isinstance(self._station, OffersTargets)

    def oldest(self, version: int) -> Rollout | None:
        assert isinstance(self._station, OffersTargets)
        work = self._station.oldest(version)
        if work is not None and not isinstance(work, Rollout):
            raise TypeError(f"oldest must return a Rollout or None, received {type(work).__name__}")
        return work

    def refresh(self, targets: Rollout) -> None:
        assert isinstance(self._station, OffersTargets)
        self._station.refresh(targets)

    def state(self) -> SavedState:
        return copy.deepcopy(self._station.state_dict())

    def restore(self, state: object) -> None:
        self._station.load_state_dict(copy.deepcopy(state))  # an optimizer goes on in the tensors it is given


class LearnerRole(_KeepsTargets):
    """A learner; learning and the snapshot that follows it are one call."""

    def __init__(self, build: Callable[[], Learner]) -> None:
        self.learner = build()
        super().__init__(self.learner)

    def state(self, folder: str | None = None) -> SavedState:
        """What must survive a restart; a learner that writes files writes them into `folder`, if there is one."""
        if folder is not None and isinstance(self.learner, SavesBeside) and self.learner.saves_beside:
            return self.learner.save_beside(folder)
        return super().state()

    def has_replay(self) -> bool:
        return isinstance(self.learner, ReplayLearner)

    def learn(self, batch: Batch, publish_as: int | None) -> tuple[LearnReport, Snapshot | None, str]:
        """The report, and with `publish_as` the snapshot of that version (or why it failed)."""
        report = self.learner.learn(batch)
        if not isinstance(report, LearnReport):
            raise TypeError(f"learn must return a LearnReport, received {type(report).__name__}")
        _check_finite(batch, report)
        if publish_as is None:
            return report, None, ""
        try:
            return report, self.snapshot(publish_as), ""
        except Exception as error:  # the update itself succeeded and must not be lost: the caller retries
            return report, None, f"{type(error).__name__}: {said(error)}"

    def insert(self, batch: Batch) -> None:
        assert isinstance(self.learner, ReplayLearner)
        self.learner.insert(batch)

    def snapshot(self, version: int) -> Snapshot:
        return Snapshot(version, self.learner.snapshot())


MUST_BE_FINITE = ("loss", "nll", "norm", "error")
"""How the names of those metrics end that a healthy update never reports as infinite or NaN."""
MAX_NAMED = 8


def _check_finite(batch: Batch, report: LearnReport) -> None:
    """Raises one line if a loss, a gradient or the new weights are not finite: the caller publishes and saves nothing
    of this update."""
    bad = [f"{name} is {value}" for name, value in report.metrics.items() if _is_infinite_or_nan(value)]
    if not any(one.partition(" ")[0].endswith(MUST_BE_FINITE) for one in bad):
        return
    tickets = [str(rollout.ticket) for rollout in batch.rollouts if rollout.ticket >= 0]
    data = "a draw of the replay"
    if tickets:
        more = f" and {len(tickets) - MAX_NAMED} more" if len(tickets) > MAX_NAMED else ""
        data = f"ticket{'s' * (len(tickets) > 1)} {', '.join(tickets[:MAX_NAMED])}{more}"
    raise FloatingPointError(
        f"the update on {data} at version {batch.version} is not finite: "
        f"{', '.join(bad)}; nothing of it was kept. "
        "Rewards that are too large for float32, or a learning_rate that is too high, do this"
    )


def _is_infinite_or_nan(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, int) and not math.isfinite(value)


class ReplayRole(_KeepsTargets):
    """A replay with a role of its own; a draw brings the replay's numbers along."""

    def __init__(self, build: Callable[[], SharedReplay]) -> None:
        self.replay = build()
        super().__init__(self.replay)

    def insert(self, batch: Batch) -> None:
        self.replay.insert(batch)

    def sample(self, version: int) -> Rollout:
        draw = self.replay.sample(version)
        if not isinstance(draw, Rollout):
            raise TypeError(f"sample must return a Rollout, received {type(draw).__name__}")
        if draw.steps < 1:
            raise ValueError(f"sample returned a draw of {draw.steps} samples; an update needs at least one")
        numbers = {name: float(value) for name, value in self.replay.statistics().items()}
        return replace(draw, info={**draw.info, STATISTICS: numbers}, ticket=-1)

    def update(self, report: LearnReport) -> None:
        self.replay.update(report.feedback)


class EvaluatorRole:
    """An evaluator; a plain number is a score too."""

    def __init__(self, build: Callable[[], Evaluator]) -> None:
        self.evaluator = build()

    def evaluate(self, snapshot: Snapshot, seed: int) -> Score:
        score = self.evaluator.evaluate(snapshot, seed)
        if isinstance(score, numbers.Real):
            score = Score(snapshot.version, float(score))
        if not isinstance(score, Score):
            raise TypeError(f"evaluate must return a Score or a number, received {type(score).__name__}")
        if score.value is None or math.isnan(score.value):
            raise ValueError(f"evaluate returned {score.value!r} as the score of version {snapshot.version}")
        return replace(score, version=snapshot.version)

    def close(self) -> None:
        getattr(self.evaluator, "close", lambda: None)()


class ReanalyzerRole:
    """A reanalyzer of work that a replay gave."""

    def __init__(self, build: Callable[[], Reanalyzer]) -> None:
        self.reanalyzer = build()

    def reanalyze_work(self, snapshot: Snapshot, work: Rollout) -> Rollout:
        targets = self.reanalyzer.reanalyze(snapshot, work)
        if not isinstance(targets, Rollout):
            raise TypeError(f"reanalyze must return the targets as a Rollout, received {type(targets).__name__}")
        return targets
