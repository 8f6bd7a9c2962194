"""A learner and a replay in one place: the same draws, and the same bits, as with a replay in a role of its own.

    insert --> replay --> sample --> learn --> update

Nothing travels between the two, so this is the cheaper way where one machine has the memory and nobody else draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headway.core.protocols import Learner, OffersTargets, SharedReplay
from headway.core.types import Batch, LearnReport, Rollout, State
from headway.core.types_opaque import Weights


class WithReplay:
    """A learner that keeps its replay itself: `learn` gets an empty batch and draws its own."""

    def __init__(self, make_learner: Callable[[], Learner], make_replay: Callable[[], SharedReplay]) -> None:
        self._learner = make_learner()
        self._replay = make_replay()

    def insert(self, batch: Batch) -> None:
        self._replay.insert(batch)

    def learn(self, batch: Batch) -> LearnReport:
        draw = self._replay.sample(batch.version)
        numbers = {name: float(value) for name, value in self._replay.statistics().items()}
        report = self._learner.learn(Batch(batch.version, (draw,)))
        if report.feedback is not None:
            self._replay.update(report.feedback)
        samples = draw.steps if report.samples is None else report.samples
        return replace(report, metrics={**report.metrics, **numbers}, samples=samples, feedback=None)

    def oldest(self, version: int) -> Rollout | None:
        """What the replay wants to have reanalyzed, if it is one that does."""
        return self._replay.oldest(version) if isinstance(self._replay, OffersTargets) else None

    def refresh(self, targets: Rollout) -> None:
        assert isinstance(self._replay, OffersTargets)
        self._replay.refresh(targets)

    def snapshot(self) -> Weights:
        return self._learner.snapshot()

    def state_dict(self) -> State:
        return {"learner": self._learner.state_dict(), "replay": self._replay.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self._learner.load_state_dict(state["learner"])
        self._replay.load_state_dict(state["replay"])
