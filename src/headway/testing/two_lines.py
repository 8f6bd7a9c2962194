"""Toy stations with two learners of different pace, and the plain loop they must equal when no line has a lead.

    collector(first weights, second weights) --rollout--> first learner
                                             `----------> second learner

Both learners are `ToyLearner`s that begin with other weights; a rollout depends on the weights of both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from headway.coordinator.roles import LineStations, Stations
from headway.coordinator.settings import Settings
from headway.core.protocols import Learner
from headway.core.types import Batch, Rollout, Score, Snapshot, Ticket, derive_seed
from headway.core.types_opaque import SavedState, Weights
from headway.testing.toy_stations import SIZE, ToyLearner, ToyReplayLearner

SECOND = "second"


class PairCollector:
    """Sees through the weights of both lines, and carries a running sum."""

    def __init__(self, number: int, work: Callable[[Ticket], None] | None = None) -> None:
        self._work = work
        self._carried = np.full(SIZE, float(number))

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        if self._work is not None:
            self._work(ticket)
        noise = np.random.default_rng(ticket.seed).normal(size=SIZE)
        self._carried = 0.9 * self._carried + noise
        first, second = snapshot.payload["weights"], snapshot.others[SECOND].payload["weights"]
        seen = np.sin(first) + np.cos(second) + 0.1 * self._carried
        versions = np.array([snapshot.version, snapshot.others[SECOND].version])
        payload = {"seen": seen, "ticket": np.array([ticket.index]), "versions": versions}
        return Rollout(payload, steps=1 + ticket.seed % 7)

    def state_dict(self) -> SavedState:
        return self._carried

    def load_state_dict(self, state: SavedState) -> None:
        self._carried = state


class PairEngine(PairCollector):
    """Holds the weights of both lines itself."""

    def __init__(self, number: int, work: Callable[[Ticket], None] | None = None) -> None:
        super().__init__(number, work)
        self._held = Snapshot(-1, None)

    def apply(self, snapshot: Snapshot) -> None:
        self._held = snapshot

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        held = (self._held.version, self._held.others[SECOND].version)
        if held != (snapshot.version, snapshot.others[SECOND].version):
            raise RuntimeError(f"versions {held} were applied, and {ticket} flies with {snapshot}")
        return super().collect(ticket, self._held)


class SecondLearner(ToyLearner):
    """The same from other weights."""

    def __init__(self, work: Callable[[Batch], None] | None = None) -> None:
        super().__init__(work)
        self._weights = np.linspace(2.0, -0.5, SIZE)


class PairEvaluator:
    """A number that depends on the weights of both lines."""

    def evaluate(self, snapshot: Snapshot, seed: int) -> Score:
        first, second = snapshot.payload["weights"], snapshot.others[SECOND].payload["weights"]
        return Score(snapshot.version, float(first @ second), {SECOND: float(snapshot.others[SECOND].version)})


def two_line_stations(
    *,
    collect: Callable[[Ticket], None] | None = None,
    learn: Callable[[Batch], None] | None = None,
    learn_second: Callable[[Batch], None] | None = None,
    holds_weights: bool = False,
    replays: bool = False,
    first_replays: bool = False,
) -> Stations:
    """Two learners, one kind of collector. `replays`: the second learner keeps a replay; `first_replays`: the first."""
    collector = PairEngine if holds_weights else PairCollector
    second: Callable[[], Learner] = ToyReplayLearner if replays else partial(SecondLearner, learn_second)
    return Stations(
        collector=partial(collector, work=collect),
        learner=ToyReplayLearner if first_replays else partial(ToyLearner, learn),
        evaluator=PairEvaluator,
        lines={SECOND: LineStations(learner=second)},
    )


def plain_two_line_loop(settings: Settings) -> tuple[Weights, Weights, list[Score]]:
    """Collect, learn in one line, learn in the other, one after another: the last weights of both, and the scores."""
    assert settings.plan.updates is not None
    learners = {"": ToyLearner(), SECOND: SecondLearner()}
    published = {name: Snapshot(0, _copy(learner)) for name, learner in learners.items()}
    waiting: dict[str, list[Rollout]] = {"": [], SECOND: []}
    updates = dict.fromkeys(learners, 0)
    collectors = [PairCollector(number) for number in range(settings.collectors)]
    scores: list[Score] = []
    for index in range(settings.plan.updates * settings.tickets_per_batch):
        seat = index % settings.collectors
        used = {name: snapshot.version for name, snapshot in published.items()}
        snapshot = Snapshot(used[""], published[""].payload, {SECOND: published[SECOND]})
        ticket = Ticket(index, derive_seed(settings.seed, "ticket", index), used[""], seat)
        rollout = collectors[seat].collect(ticket, snapshot)
        companion = published[SECOND]
        for name, line in settings.all_lines.items():
            if index % line.every:
                continue
            waiting[name].append(rollout)
            if len(waiting[name]) < line.tickets_per_batch:
                continue
            learners[name].learn(Batch(published[name].version, tuple(waiting[name])))
            waiting[name].clear()
            updates[name] += 1
            if updates[name] % line.publish_every == 0:
                published[name] = Snapshot(published[name].version + 1, _copy(learners[name]))
                if (
                    not name
                    and settings.plan.evaluate_every
                    and published[""].version % settings.plan.evaluate_every == 0
                ):
                    both = Snapshot(published[""].version, published[""].payload, {SECOND: companion})
                    scores.append(PairEvaluator().evaluate(both, 0))
    return _copy(learners[""]), _copy(learners[SECOND]), scores


def _copy(learner: ToyLearner) -> dict[str, np.ndarray]:
    return {name: value.copy() for name, value in learner.snapshot().items()}
