"""Compares the engine's log-probabilities with the trainer's, for tokens whose weights the trainer has had.

    a batch has tokens of the version being trained --> compared in the pass that computes the gradient: free
    it has none (a lead) --> these weights are copied --> a later batch has their tokens --> some are read with the copy

There is one copy of the trained weights at most, and none in a run without a lead: where they are if it is small, so
that it costs no time, else in the memory of the machine. To read with it the model takes the copy and gets its own
weights back, bit for bit. Of several ranks the first one keeps and reads, and tells the others; of a model in shards
every rank keeps its own, and all read together.

What counts is a token whose reply began with the same weights: further on in a reply that got new weights under way
the engine's cache is of older ones, and the difference would be no mistake of the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import torch
from torch import Tensor

from headway.llm.train import grpo_loss_diagnostics as diagnostics
from headway.llm.train.model_in_training_policy import TokenPolicy
from headway.llm.train.optimizer_trained_weights import TrainedWeights
from headway.llm.train.replies import MicrobatchSizes, Replies
from headway.llm.train.sharding import Shards
from headway.ranks.rank import ALONE, Rank

SHARE = 8
"""One reply of so many is read again, ..."""
MIN_TOKENS = 64
"""... or more, until there are so many tokens."""
SMALL_BYTES = 2 * 1024**3
"""A copy of so much stays on the device of the weights."""


class EngineCheck:
    """Measures how far the engine's log-probabilities are from the trainer's, whose live weights are `trained`.

    A version is copied every `every` versions at most; 0: never.
    """

    def __init__(
        self,
        policy: TokenPolicy,
        trained: TrainedWeights,
        every: int,
        rank: Rank = ALONE,
        shards: Shards | None = None,
    ) -> None:
        self._rank = rank
        self._shards = shards
        self._policy = policy
        self._weights = trained
        self._trained = trained.named
        self._every = every
        self._copied: tuple[int, dict[str, Tensor]] | None = None
        self._due = 0
        self.version: int | None = None
        """Of the last batch. While it stays the same, updates move the weights away from it (`publish_every`)."""

    @torch.no_grad()
    def mismatch(
        self, data: Replies, version: int, sizes: MicrobatchSizes, *, is_free: bool
    ) -> dict[str, float] | None:
        """Returns `mismatch_*` before the first step of an update; nothing where there is nothing to compare.

        None: there are tokens of these very weights, and with `is_free` the update itself computes what is needed.
        """
        is_at_version, self.version = version != self.version, version
        if is_at_version and len(data.begun_by(version)):
            return None if is_free else self._on_first_rank(data, version, sizes, {})
        found: dict[str, float] = {}
        if self._copied is not None:
            copied, weights = self._copied
            if len(data.begun_by(copied)):
                found = self._on_first_rank(data, copied, sizes, weights)
                self._copied = None
            elif copied < int(data.versions.min()):
                self._copied = None  # its tokens were dropped
        if self._copied is None and is_at_version and self._every and version >= self._due:
            kept = self._trained if self._reads else {}
            is_small = sum(part.nbytes for part in kept.values()) <= SMALL_BYTES
            self._copied = (
                version,
                {name: part.detach().to(part.device if is_small else "cpu", copy=True) for name, part in kept.items()},
            )
            self._due = version + self._every
        return found

    def _on_first_rank(
        self, data: Replies, version: int, sizes: MicrobatchSizes, weights: dict[str, Tensor]
    ) -> dict[str, float]:
        """Compares with these weights, or with the live ones, on the first rank, and tells all of them."""
        numbers = torch.zeros(len(diagnostics.MISMATCH), dtype=torch.float64, device=data.log_probs.device)
        if self._reads:
            with self._with_weights(weights) if weights else nullcontext():
                found = self._compare(data, version, sizes)
        if self._rank.index == 0:
            numbers.copy_(torch.tensor([found[name] for name in diagnostics.MISMATCH], dtype=torch.float64))
        self._rank.add_up(numbers)
        return dict(zip(diagnostics.MISMATCH, numbers.tolist(), strict=True))

    @property
    def _reads(self) -> bool:
        return self._rank.index == 0 or self._shards is not None

    def _compare(self, data: Replies, version: int, sizes: MicrobatchSizes) -> dict[str, float]:
        numbers = data.begun_by(version)
        tokens = np.cumsum(data.sequences.lengths.numpy()[numbers])
        enough = max(len(data.starts) // SHARE, int(np.searchsorted(tokens, MIN_TOKENS)) + 1)
        here, there = [], []
        for part in data.microbatches_of(numbers[:enough], sizes):
            counts = data.versions[part.places] == version
            here.append(self._policy.drawn_log_probs(part.trees).float()[counts])
            there.append(data.log_probs[part.places][counts])
        return diagnostics.mismatch(torch.cat(here), torch.cat(there))

    @contextmanager
    def _with_weights(self, weights: dict[str, Tensor]) -> Iterator[None]:
        """Gives the model other weights for a while, and keeps its own in their place."""
        self._exchange(weights)
        try:
            yield
        finally:
            self._exchange(weights)

    def _exchange(self, weights: dict[str, Tensor]) -> None:
        self._weights.before_change()
        if self._shards is not None:
            self._shards.forget_gathered()
        for name, live in self._trained.items():
            if live.device.type == "cpu" and self._shards is None:
                live.data, weights[name] = weights[name], live.data
            else:
                weights[name] = overwrite(live, weights[name])


def overwrite(live: Tensor, values: Tensor) -> Tensor:
    """Puts values into a tensor where it is; returns what was in it, on the device of the values."""
    before = live.detach().to(values.device, copy=True)
    live.data.copy_(values)
    return before
