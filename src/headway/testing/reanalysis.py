"""The toy problem with targets that are made again: every refresh leaves its mark on what is drawn, and on the weights.

ToyCollector --> ToyTargets --> ToyTargetLearner
                  |      ^
           oldest |      | refresh, by id
                  v      |
                ToyReanalyzer
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from headway.coordinate.roles import Stations
from headway.core.types import Batch, LearnReport, Rollout, Snapshot, Ticket
from headway.testing.fakes import SIZE, toy_stations
from headway.testing.shared_replay import ToyDrawLearner, ToyReplay

Work = Callable[[Rollout], None]


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

    def state_dict(self) -> Any:
        return {"kept": super().state_dict(), "targets": self._targets, "counts": (self._due, self._round, self._late)}

    def load_state_dict(self, state: Any) -> None:
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


def toy_reanalysis_stations(work: Callable[[Ticket], None] | None = None, on_work: Work | None = None) -> Stations:
    """The toy problem with a shared replay and a reanalyzer, picklable if both functions are."""
    return Stations(
        collector=toy_stations(work).collector,
        learner=ToyTargetLearner,
        reanalyzer=partial(ToyReanalyzer, on_work),
        replay=ToyTargets,
    )
