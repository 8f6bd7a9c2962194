"""The toy problem with a replay in its own role: draws, weights, priorities and targets all mark the weights.

ToyCollector --> ToyReplay (the real prioritized one, small enough to overwrite) --> ToyDrawLearner
                      ^------------------ priorities by id ------------------------------+

ToyTargets is the same replay with targets that are made again, which ToyTargetLearner trains on:

ToyTargets --oldest--> ToyReanalyzer --refresh, by id--> ToyTargets
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from headway.coordinator.roles import Stations
from headway.coordinator.settings import Settings
from headway.core.rules import Tally
from headway.core.types import Batch, LearnReport, Rollout, Snapshot, Ticket, derive_seed
from headway.core.types_opaque import Payload, SavedState, Weights
from headway.replay.prioritized import PrioritizedReplay
from headway.testing.toy_stations import SIZE, ToyEvaluator, ToyLearner, Vector, toy_stations

Work = Callable[[Rollout], None]


class ToyReplay:
    """Keeps the last `capacity` rollouts, draws `draws` of them. `ballast` numbers make every draw heavy."""

    def __init__(self, draws: int = 4, capacity: int = 12, ballast: int = 0) -> None:
        self._draws = draws
        self._ballast = ballast
        self._kept = PrioritizedReplay(capacity, seed=3)

    def insert(self, batch: Batch) -> None:
        for rollout in batch.rollouts:
            self._kept.insert({name: values[None] for name, values in rollout.payload.items()}, batch.version)

    def sample(self, version: int) -> Rollout:
        drawn = self._kept.sample(self._draws, version=version)
        payload = {**drawn.items, "ids": drawn.ids, "weights": drawn.weights, "ballast": np.ones(self._ballast)}
        return Rollout(payload, steps=self._draws)

    def update(self, feedback: Payload) -> None:
        self._kept.update(feedback["ids"], feedback["priorities"])

    def statistics(self) -> dict[str, float]:
        numbers = self._kept.statistics()
        return {"replay_inserted": numbers.inserted, "replay_late": numbers.late_updates}

    def state_dict(self) -> SavedState:
        return self._kept.state_dict()

    def load_state_dict(self, state: SavedState) -> None:
        self._kept.load_state_dict(state)


class ToyDrawLearner(ToyLearner):
    """Folds what was drawn into the weights, each row by its own weight, and finds new priorities."""

    def __init__(self, work: Callable[[Batch], None] | None = None, ballast: int = 0) -> None:
        super().__init__(work)
        self._ballast = ballast

    def learn(self, batch: Batch) -> LearnReport:
        if self._work is not None:
            self._work(batch)
        (draw,) = batch.rollouts
        errors = []
        for seen, weight in zip(draw.payload["seen"], draw.payload["weights"], strict=True):
            errors.append(float(np.abs(seen - self._weights).mean()))
            self._momentum *= 0.7
            self._momentum += weight * seen
            self._weights += 0.05 * np.cos(self._momentum)
        feedback = {"ids": draw.payload["ids"], "priorities": np.array(errors), "ballast": np.ones(self._ballast)}
        return LearnReport({"error": sum(errors)}, feedback=feedback)

    def snapshot(self) -> dict[str, Vector]:
        return {"weights": self._weights, "ballast": np.ones(self._ballast)}


class ToyTargets(ToyReplay):
    """Keeps a target with each item, and hands out the two oldest, once for every update."""

    def __init__(self, draws: int = 4, capacity: int = 12) -> None:
        super().__init__(draws, capacity)
        self._targets: dict[int, tuple[int, np.ndarray]] = {}  # id -> version, target
        self._due = self._round = self._late = 0

    def insert(self, batch: Batch) -> None:
        for rollout in batch.rollouts:
            items = {name: values[None] for name, values in rollout.payload.items()}
            for identity in self._kept.insert(items, batch.version):
                self._targets[int(identity)] = (batch.version, np.zeros(SIZE))
                self._targets.pop(int(identity) - self._kept.capacity, None)

    def sample(self, version: int) -> Rollout:
        draw = super().sample(version)
        targets = np.stack([self._targets[int(identity)][1] for identity in draw.payload["ids"]])
        self._due += 1
        return Rollout({**draw.payload, "targets": targets}, steps=draw.steps)

    def oldest(self, version: int) -> Rollout | None:
        ids = sorted(self._targets, key=lambda identity: (self._targets[identity][0], identity))[:2]
        ids = [identity for identity in ids if version > self._targets[identity][0]]
        if not self._due or not ids:
            return None
        self._due -= 1
        self._round += 1
        before = np.stack([self._targets[identity][1] for identity in ids])
        return Rollout({"ids": np.array(ids), "before": before, "round": self._round}, steps=len(ids))

    def refresh(self, targets: Rollout) -> None:
        for identity, values in zip(targets.payload["ids"], targets.payload["values"], strict=True):
            if int(identity) in self._targets:
                self._targets[int(identity)] = (targets.payload["version"], np.array(values))
            else:
                self._late += 1

    def statistics(self) -> dict[str, float]:
        return {**super().statistics(), "rounds": self._round, "late": self._late}

    def state_dict(self) -> SavedState:
        return {"kept": super().state_dict(), "targets": self._targets, "counts": (self._due, self._round, self._late)}

    def load_state_dict(self, state: SavedState) -> None:
        super().load_state_dict(state["kept"])
        self._targets = dict(state["targets"])
        self._due, self._round, self._late = state["counts"]


class ToyTargetLearner(ToyDrawLearner):
    """Folds the targets of what was drawn into the weights too."""

    def learn(self, batch: Batch) -> LearnReport:
        (draw,) = batch.rollouts
        self._weights += 0.01 * np.sin(draw.payload["targets"]).sum(axis=0)
        return super().learn(batch)


class ToyReanalyzer:
    """Newer targets out of the weights and the older ones. `work` is called first: to wait, or to fail."""

    def __init__(self, work: Work | None = None) -> None:
        self._work = work

    def reanalyze(self, snapshot: Snapshot, work: Rollout) -> Rollout:
        if self._work is not None:
            self._work(work)
        noise = np.random.default_rng(work.payload["round"]).normal(size=SIZE)
        values = np.cos(snapshot.payload["weights"]) + 0.5 * work.payload["before"] + 0.1 * noise
        return Rollout({"ids": work.payload["ids"], "values": values, "version": snapshot.version}, steps=work.steps)


def toy_replay_stations(
    work: Callable[[Ticket], None] | None = None,
    learn_work: Callable[[Batch], None] | None = None,
    *,
    ballast: int = 0,
    evaluates: bool = False,
) -> Stations:
    """The toy problem with a shared replay, picklable if `work` is."""
    return Stations(
        collector=toy_stations(work).collector,
        learner=partial(ToyDrawLearner, learn_work, ballast),
        evaluator=ToyEvaluator if evaluates else None,
        replay=partial(ToyReplay, ballast=ballast),
    )


def toy_reanalysis_stations(work: Callable[[Ticket], None] | None = None, on_work: Work | None = None) -> Stations:
    """The toy problem with a shared replay and a reanalyzer, picklable if both functions are."""
    return Stations(
        collector=toy_stations(work).collector,
        learner=ToyTargetLearner,
        reanalyzer=partial(ToyReanalyzer, on_work),
        replay=ToyTargets,
    )


def plain_replay_loop(stations: Stations, settings: Settings) -> Weights:
    """The loop without us: collect until the ratio allows an update, draw, train, write back, reanalyze, again."""
    ratio, tally = settings.replay, Tally()
    assert ratio is not None
    assert stations.replay is not None
    assert settings.plan.updates is not None
    assert settings.tickets_per_version == 1
    learner = stations.learner()
    replay: Any = stations.replay()  # with targets to be made again, if there is a reanalyzer
    reanalyzer: Any = None if stations.reanalyzer is None else stations.reanalyzer()
    crew = [stations.collector(number) for number in range(settings.collectors)]
    snapshot, index = Snapshot(0, copy.deepcopy(learner.snapshot())), 0
    for _ in range(settings.plan.updates):
        while not ratio.may_learn(tally):
            ticket = Ticket(index, derive_seed(settings.seed, "ticket", index), snapshot.version)
            rollout = crew[index % len(crew)].collect(ticket, snapshot)
            replay.insert(Batch(snapshot.version, (rollout,)))
            tally.inserted += rollout.steps
            index += 1
        draw = replay.sample(snapshot.version)
        report = learner.learn(Batch(snapshot.version, (draw,)))
        replay.update(report.feedback)
        tally.sampled += draw.steps
        snapshot = Snapshot(snapshot.version + 1, copy.deepcopy(learner.snapshot()))
        while reanalyzer is not None and (work := replay.oldest(snapshot.version)) is not None:
            replay.refresh(reanalyzer.reanalyze(snapshot, work))
    return snapshot.payload
