"""Any causal language model of transformers token by token: slower than the decoders made for a family, and general.

    cache     one per layer, [R, heads, T, dim], padded on the left so that all rows end at the same place

The model itself runs over the padded batch, told by a mask and by positions what is padding. Rows that join, leave or
move make the batch be put together anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from headway.llm.engine.decoder import Drawn, Prompts, Reads, TreeLimits, copy_weights
from headway.llm.engine.decoder_sampling import draw, uniform
from headway.llm.engine.general_decoders_model_scores import ModelScores
from headway.llm.engine.protocol_engine import Sampling
from headway.llm.model.types import CausalModel, NamedWeights
from headway.llm.train.trees import ReplyTree

ATTENTION = {"full_attention", "sliding_attention"}
"""Kinds of layers that remember keys and values of each token, and nothing else."""
Layers = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer, [heads, length, dim]."""


class PaddedDecoder:
    """Holds a model and the caches of `rows` samples."""

    burst = 1

    def __init__(self, model: CausalModel, rows: int, context: int) -> None:
        self.rows, self.context = rows, context
        self.device = next(model.parameters()).device
        self._model = model.eval()
        self._parameters = dict(model.named_parameters())
        self._scores = ModelScores(self._model)
        self._caches: list[Layers | None] = [None] * rows
        self._batch: tuple[int, DynamicCache] | None = None  # put together for so many rows, newer than the caches
        self._next = torch.zeros(0, dtype=torch.int64)  # the places it goes on at
        self._lengths: list[int] = []
        self._start = 0

    def load(self, weights: NamedWeights) -> None:
        copy_weights(self._parameters, weights)

    @torch.no_grad()
    def prefill(self, prompts: Prompts) -> Tensor:
        self._take_apart()
        logits = []
        for tokens, rows in prompts:
            layers, last = _read(self._model, tokens[None].to(self.device))
            for row in rows:
                self._caches[row] = layers
            logits.append(last)
        return torch.cat(logits)

    @torch.no_grad()
    def extend(self, reads: Reads) -> Tensor:
        """Reads row after row: each has a past of its own length."""
        self._take_apart()
        logits = []
        for tokens, row, start in reads:
            past = [(keys[:, :start], values[:, :start]) for keys, values in self._caches[row] or ()] if start else []
            self._caches[row], last = _read(self._model, tokens[None].to(self.device), past)
            logits.append(last)
        return torch.cat(logits)

    @torch.no_grad()
    def advance(self, tokens: Tensor, places: Tensor, seeds: Tensor, counts: Tensor, sampling: Sampling) -> Drawn:
        count, longest = len(tokens), int(places.max())
        if self._batch is None or self._batch[0] != count or not torch.equal(places, self._next):
            self._take_apart()
            self._cut(places)
            self._batch = count, self._put_together(count, longest)
        self._next = places + 1
        ages = torch.arange(longest + 1).expand(count, -1) - (longest - places)[:, None]
        out = self._model(
            input_ids=tokens[:, None].to(self.device),
            attention_mask=(ages >= 0).long().to(self.device),
            position_ids=places[:, None].to(self.device),
            past_key_values=self._batch[1],
            use_cache=True,
        )
        drawn, log_probs = draw(out.logits[:, -1], uniform(seeds, counts).to(self.device), sampling)
        return drawn[None].cpu(), log_probs[None].cpu()

    def tree_limits(self) -> TreeLimits:
        return self._scores.limits

    def score(self, trees: Sequence[ReplyTree]) -> Tensor:
        return self._scores.read(trees)

    def move(self, source: int, target: int, length: int) -> None:
        self._take_apart()
        self._caches[target] = self._caches[source]

    def swap(self, one: int, other: int, length: int) -> None:
        self._take_apart()
        self._caches[one], self._caches[other] = self._caches[other], self._caches[one]

    def _cut(self, places: Tensor) -> None:
        """Forgets what a row remembers twice: one that stood still was fed its newest token again."""
        for row, place in enumerate(places.tolist()):
            layers = self._caches[row]
            assert layers is not None
            self._caches[row] = [(keys[:, :place], values[:, :place]) for keys, values in layers]

    def _put_together(self, count: int, longest: int) -> DynamicCache:
        for row in range(count, self.rows):
            self._caches[row] = _alone(self._caches[row])
        cache = DynamicCache()
        chosen = [layers for layers in self._caches[:count] if layers is not None]
        for number in range(len(chosen[0])):
            parts = []
            for which in range(2):
                first = chosen[0][number][which]
                whole = first.new_zeros(count, first.shape[0], longest, first.shape[2])
                for row, layers in enumerate(chosen):
                    part = layers[number][which]
                    whole[row, :, longest - part.shape[1] :] = part
                parts.append(whole)
            cache.update(parts[0], parts[1], number)
        self._lengths = [layers[0][0].shape[1] for layers in chosen]
        self._start = longest
        return cache

    def _take_apart(self) -> None:
        """Splits the batch into one cache per row again."""
        if self._batch is None:
            return
        count, cache = self._batch
        layers: list[Any] = cache.layers
        grown = layers[0].keys.shape[2] - self._start
        for row in range(count):
            length = self._lengths[row] + grown
            self._caches[row] = [(layer.keys[row, :, -length:], layer.values[row, :, -length:]) for layer in layers]
        self._batch = None


def remembers_by_attention(model: CausalModel) -> bool:
    """Says whether a model's memory is keys and values alone, which this decoder cuts and puts together."""
    if not ATTENTION.issuperset(getattr(model.config.get_text_config(), "layer_types", None) or ()):
        return False
    try:
        with torch.no_grad():
            layers, _ = _read(model, torch.zeros(1, 2, dtype=torch.int64, device=next(model.parameters()).device))
    except (AttributeError, TypeError, ValueError, RuntimeError, IndexError):  # each family says it in its own way
        return False
    return bool(layers) and all(keys.shape[1] == values.shape[1] == 2 for keys, values in layers)


def _alone(layers: Layers | None) -> Layers | None:
    """Returns a row's cache that keeps nothing else in memory: one that was taken apart is a view of its batch."""
    if layers is None or layers[0][0].untyped_storage().nbytes() == layers[0][0].nbytes:
        return layers
    return [(keys.clone(), values.clone()) for keys, values in layers]


def _read(model: CausalModel, tokens: Tensor, past: Layers | None = None) -> tuple[Layers, Tensor]:
    """Reads tokens [1, T], behind what is remembered of those before them; returns what is remembered then, and the
    logits of what comes next, [1, V]."""
    cache: Any = DynamicCache()  # the model's own would forget what is beyond a window
    for number, (keys, values) in enumerate(past or ()):
        cache.update(keys[None], values[None], number)
    out = model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return [(layer.keys[0], layer.values[0]) for layer in cache.layers], out.logits[:, -1]
