"""A learner whose weights stay with it: it publishes a handle, and engines come for them
(llm/weights/receiver_weight_link.py)."""

from __future__ import annotations

from collections.abc import Callable

from headway.coordinator.state_files_saved_beside import SavedBeside
from headway.core.protocols import Learner, SavesBeside
from headway.core.types import Batch, LearnReport
from headway.core.types_lent import Lent
from headway.core.types_opaque import SavedState, Weights
from headway.llm.weights.source_weight_source import WeightSource


class LinkedLearner:
    """`learner` may be one of several ranks as a whole: rank 0 publishes. With `only_gpu`, weights in the memory of the
    machine are published as they are: a runtime hands those on as quickly."""

    def __init__(
        self, learner: Learner, make_source: Callable[[], WeightSource] = WeightSource, *, only_gpu: bool = False
    ) -> None:
        self._learner = learner
        self._make_source = make_source
        self._only_gpu = only_gpu
        self._source: WeightSource | None = None

    def learn(self, batch: Batch) -> LearnReport:
        return self._learner.learn(batch)

    def snapshot(self) -> Weights:
        weights = self._learner.snapshot()
        if isinstance(weights, Lent):  # the ranks of a model in shards keep it themselves
            return weights
        if self._only_gpu and not any(tensor.is_cuda for tensor in weights.values()):
            return weights
        if self._source is None:
            self._source = self._make_source()
        return self._source.offer(weights)

    def state_dict(self) -> SavedState:
        return self._learner.state_dict()

    def load_state_dict(self, state: object) -> None:
        self._learner.load_state_dict(state)

    @property
    def saves_beside(self) -> bool:
        return getattr(self._learner, "saves_beside", False)

    def save_beside(self, folder: str) -> SavedBeside:
        assert isinstance(self._learner, SavesBeside)
        return self._learner.save_beside(folder)
