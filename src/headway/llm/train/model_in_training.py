"""A causal language model in training: what every learner of one keeps and does alike.

    load --> the model, without dropout --> its layout (kernels_layouts.py) and its kernels (kernels.py)
         --> sizes of microbatches
         --> the weights that are trained, with AdamW (llm/train/optimizer_trained_weights.py)

With it go the number of updates and the dice of the learner, so that its state is all there is to go on from.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headway.coordinator.state_files_saved_beside import SavedBeside, SavedSoon
from headway.core.types import State
from headway.llm.engine.gpu_share import GpuShare
from headway.llm.model.adapters import plain_weights
from headway.llm.model.loading_models import context_length
from headway.llm.model.types import CausalModel
from headway.llm.train.fixed_order import fix_order
from headway.llm.train.kernels import choose_kernels
from headway.llm.train.kernels_kernel_settings import KernelSettings
from headway.llm.train.kernels_layouts import choose_layout
from headway.llm.train.model_in_training_policy import autocast
from headway.llm.train.optimizer_trained_weights import OptimizerSettings, TrainedWeights
from headway.llm.train.replies import Microbatch, MicrobatchSizes, Replies
from headway.llm.train.shard_files import Rows, SavedShards
from headway.llm.train.shard_files_shard_writer import ShardWriter
from headway.llm.train.sharding import shard_model
from headway.llm.train.sharding_published_rows import PublishedRows, published_rows
from headway.llm.train.trees import pair_price
from headway.llm.train.without_dropout import without_dropout
from headway.ranks.rank import Rank


class ModelInTraining:
    """Builds a model, trains it step by step, publishes it, and goes on from a saved state bit for bit."""

    def __init__(
        self,
        load: Callable[[], CausalModel],
        settings: OptimizerSettings,
        *,
        layout: str,
        kernels: KernelSettings,
        microbatch_tokens: int,
        publish_dtype: torch.dtype | None,
        seed: int,
        rank: Rank,
        shard_ranks: int | None = None,
    ) -> None:
        self.model = without_dropout(load())
        self.shards = shard_model(self.model, rank, shard_ranks)
        found = choose_layout(self.model, layout)
        attention, compiling = kernels.trainer_attention, kernels.compile_trainer
        self.kernels = choose_kernels(self.model, found, attention, compiling, microbatch_tokens, autocast)
        apart, windows = found == "rows", self.kernels.windows
        device = next(self.model.parameters()).device
        if device.type == "cuda" and windows is None:
            fix_order()
        price = 0.0 if apart or windows is not None else pair_price(self.model)
        tables = [m for m in self.model.modules() if isinstance(m, nn.Embedding)]  # of tokens, and perhaps of positions
        positions = context_length(self.model.config) if len(tables) > 1 else sys.maxsize
        self.sizes = MicrobatchSizes(microbatch_tokens, price, device, apart, windows, positions)
        self.gpu = GpuShare(device, kernels.trainer_gpu_share)
        if self.shards is not None:
            self.shards.forget_gathered()  # or what it read for the layout would be taken for its weights
        trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        if not trained:
            raise ValueError("the model has no weights to train")
        self.trained = TrainedWeights(trained, settings, settings.learning_rate, rank)
        self.random = np.random.default_rng(seed)
        self.updates = 0
        self.saves_beside = shard_ranks is not None
        self._writer = ShardWriter()
        self._publish_dtype = publish_dtype
        self._rank = rank

    @property
    def device(self) -> torch.device:
        return self.sizes.device

    def step(self) -> Tensor:
        """Adds the gradients up over ranks and takes a step; returns their norm."""
        self.trained.add_up_gradients()
        norm = self.trained.clip()
        self.trained.step()
        return norm

    def in_step(self, parts: Iterator[Microbatch], data: Replies) -> Iterator[Microbatch]:
        """Yields the microbatches of this rank. With shards all ranks make the same passes: one that has fewer than
        another gets fillers, whose results nobody uses."""
        if self.shards is None:
            yield from parts
            return
        mine = list(parts)
        missing = self._rank.most(len(mine)) - len(mine)
        yield from mine
        for _ in range(missing):
            (filler,) = data.microbatches_of(np.zeros(1, np.int64), self.sizes)
            yield replace(filler, is_filler=True)

    def published(self) -> dict[str, Tensor]:
        """Returns what training has changed, as an engine wants it: plain weights under the model's own names."""
        return plain_weights(self.model, self._publish_dtype)

    def published_rows(self) -> list[PublishedRows] | None:
        """Returns the same of a model in shards: this rank's rows. None where another rank has the same rows."""
        assert self.shards is not None
        self.shards.forget_gathered()
        return published_rows(self.model, self._publish_dtype) if self.shards.is_first_replica else None

    def state_dict(self) -> State:
        return {
            **self.trained.state_dict(),
            "updates": self.updates,
            "random": self.random.bit_generator.state,
        }

    def save_beside(self, folder: str, others: Mapping[str, TrainedWeights], rest: Mapping[str, Any]) -> SavedSoon:
        """Begins to write this rank's rows of everything, and of the `others` by their names, into files of its own."""
        parts: dict[str, Rows] = {}
        for name, one in {"policy": self.trained, **others}.items():
            parts |= one.parts(name)
            one.before_change = self._writer.before_change
        note = self._writer.begin(Path(folder), self._rank.index, parts)
        own = {"policy": self.trained.rest(), "updates": self.updates, "random": self.random.bit_generator.state}
        return SavedSoon(folder, {}, {**own, **rest}, (note,))

    def load_state_dict(self, state: State | SavedBeside) -> None:
        if isinstance(state, SavedBeside):
            rest = state.rest
            self.trained.load_parts("policy", SavedShards(Path(state.folder)), rest["policy"])
        else:
            rest = state
            self.trained.load_state_dict(state)
        self.updates = rest["updates"]
        self.random.bit_generator.state = rest["random"]
        if self.shards is not None:
            self.shards.forget_gathered()


class LearnsAModel:
    """What every learner of one model shows of it. Whoever keeps more (a critic) says more, and loads it again."""

    _training: ModelInTraining

    def snapshot(self) -> dict[str, Tensor]:
        """Returns what training has changed, as an engine wants it: plain weights under the model's own names."""
        return self._training.published()

    def held_alike(self) -> dict[str, Any]:
        """Returns the weights that are the same on every rank."""
        return self._training.trained.alike()

    @property
    def is_sharded(self) -> bool:
        return self._training.shards is not None

    def published_rows(self) -> list[PublishedRows] | None:
        """Returns what this rank publishes, where no rank has the whole model."""
        return self._training.published_rows()

    def state_dict(self) -> State:
        return self._training.state_dict()

    @property
    def saves_beside(self) -> bool:
        """Its state goes into files, shard by shard."""
        return self._training.saves_beside

    def save_beside(self, folder: str) -> SavedSoon:
        return self._training.save_beside(folder, {}, {})

    def load_state_dict(self, state: State | SavedBeside) -> None:
        self._training.load_state_dict(state)
