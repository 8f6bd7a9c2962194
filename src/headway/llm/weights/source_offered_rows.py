"""One rank of a learner whose model is in shards: it offers its rows to engines, which come to every rank for them.

    rank 0   rows of each weight, engine's precision --> WeightSource  <---+
    rank 1   ...                                     --> WeightSource  <---+--- engine: Intake.plain(ShardedWeights)
    rank 2   ...                                     --> WeightSource  <---+

No rank ever has more than its own rows: nothing is gathered but what folds an adapter in, a layer at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from headway.coordinator.state_files_saved_beside import SavedBeside
from headway.core.types import Batch, LearnReport
from headway.core.types_opaque import SavedState, Weights
from headway.llm.weights.receiver_weight_layout import dtype_name
from headway.llm.weights.receiver_weight_link import LinkedRows, ShardedWeights
from headway.llm.weights.source_weight_source import WeightSource


class OfferedRows(Protocol):
    """Some rows of a weight, which are made when they are asked for."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def first(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def whole(self) -> tuple[int, ...]: ...
    @property
    def make(self) -> Callable[[], Tensor]: ...


class RankOfShards(Protocol):
    """A learner, one rank of it, that knows which rows it has."""

    @property
    def is_sharded(self) -> bool: ...
    @property
    def saves_beside(self) -> bool: ...
    def learn(self, batch: Batch) -> LearnReport: ...
    def snapshot(self) -> Mapping[str, Tensor]: ...
    def state_dict(self) -> SavedState: ...
    def load_state_dict(self, state: Any) -> None: ...
    def save_beside(self, folder: str) -> SavedBeside: ...
    def held_alike(self) -> Any: ...
    def published_rows(self) -> Sequence[OfferedRows] | None: ...


class OffersRows:
    """Is that learner, and offers its rows where the model is in shards."""

    def __init__(self, learner: RankOfShards, make_source: Callable[[], WeightSource]) -> None:
        self._learner = learner
        self._make_source = make_source
        self._source: WeightSource | None = None

    @property
    def offers(self) -> bool:
        return self._learner.is_sharded

    def offer(self) -> LinkedRows | None:
        """Freezes this rank's rows; None where another rank has the same."""
        rows = self._learner.published_rows()
        if rows is None:
            return None
        if self._source is None:
            self._source = self._make_source()
        specs = [(one.name, dtype_name(one.dtype), one.shape) for one in rows]
        kept = self._source.offer_each(specs, ((one.name, one.make()) for one in rows))
        return LinkedRows(kept, {one.name: (one.first, one.whole) for one in rows})

    def joined(self, parts: Sequence[LinkedRows | None]) -> ShardedWeights:
        return ShardedWeights(tuple(part for part in parts if part is not None))

    # -- the learner's face -------------------------------------------------------------------------

    def learn(self, batch: Batch) -> LearnReport:
        return self._learner.learn(batch)

    def snapshot(self) -> Weights:
        return self._learner.snapshot()

    def held_alike(self) -> object:
        return self._learner.held_alike()

    def state_dict(self) -> SavedState:
        return self._learner.state_dict()

    def load_state_dict(self, state: object) -> None:
        self._learner.load_state_dict(state)

    @property
    def saves_beside(self) -> bool:
        return self._learner.saves_beside

    def save_beside(self, folder: str) -> SavedBeside:
        return self._learner.save_beside(folder)
