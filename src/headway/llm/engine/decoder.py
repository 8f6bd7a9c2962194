"""The seam between batching and a model: a decoder reads prompts and makes the next tokens of many samples at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from headway.core.text_naming import unknown
from headway.llm.engine.protocol_engine import EngineError, Sampling
from headway.llm.model.types import NamedWeights
from headway.llm.train.trees import ReplyTree

Prompts = list[tuple[Tensor, list[int]]]
"""Tokens [T] to read, and the rows to read them into."""
Reads = list[tuple[Tensor, int, int]]
"""Tokens [T >= 1] to read behind what a row has cached, the row, and how many of its places are cached."""
Drawn = tuple[Tensor, Tensor]
"""Tokens and their log-probabilities, [steps, R] each, in this machine's memory."""


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """Says which trees a decoder scores in one pass."""

    tokens: int
    """Padded tokens of all of them."""
    price: float = 0.0
    """What a pair of tokens costs, in tokens (trees.py)."""
    apart: bool = False
    """Only trees of one branch."""


class Decoder(Protocol):
    """A model with a cache of `rows` samples. Rows that take steps are always the first; others are kept."""

    rows: int
    context: int
    burst: int
    """Steps per `advance`: more than one where looking at a token costs more than making one."""
    device: torch.device

    def load(self, weights: NamedWeights) -> None: ...

    def prefill(self, prompts: Prompts) -> Tensor:
        """Read each prompt into its rows, from their beginning; logits of what comes next, [P, V]."""
        ...

    def extend(self, reads: Reads) -> Tensor:
        """Read more tokens into rows whose first places are cached; logits of what comes next, [n, V].

        Rows differ from each other. Where a decoder is exact, the numbers are those of reading token by token.
        """
        ...

    def advance(self, tokens: Tensor, places: Tensor, seeds: Tensor, counts: Tensor, sampling: Sampling) -> Drawn:
        """`burst` steps of the first R rows. tokens [R] are fed at places [R]; counts [R] tokens exist already."""
        ...

    def tree_limits(self) -> TreeLimits: ...

    def score(self, trees: Sequence[ReplyTree]) -> Tensor:
        """Log-probabilities of the branches' tokens at temperature 1, tree by tree and branch by branch: [N] float32.

        Nothing that rows have cached is touched.
        """
        ...

    def move(self, source: int, target: int, length: int) -> None:
        """Put a row's cache of so many tokens into another row's place."""
        ...

    def swap(self, one: int, other: int, length: int) -> None:
        """Let two rows change places, with their caches of at most so many tokens."""
        ...


@runtime_checkable
class StepsBesideReading(Protocol):
    """A decoder whose `extend` gives the bits of `advance`, so that one pass may do both."""

    def extend(self, reads: Reads, steps: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Reads, and lets the first R rows take a step: their tokens [R] at their places [R]. Logits [n + R, V]."""
        ...

    steps_beside_reading: bool


def room_for_rows(
    size: tuple[int, ...], dtype: torch.dtype, device: torch.device, *, rows: int, context: int
) -> tuple[Tensor, Tensor]:
    """The cache of keys and values, zeros of that size each. One line where there is no memory for it."""
    try:
        return torch.zeros(size, dtype=dtype, device=device), torch.zeros(size, dtype=dtype, device=device)
    except RuntimeError as error:  # on a GPU, and where the machine says so at once
        if "alloc" not in str(error) and not isinstance(error, torch.OutOfMemoryError):
            raise
        gb = 2 * math.prod(size) * dtype.itemsize / 1e9
        raise EngineError(
            f"there is no memory for the cache of {rows:,} rows of {context:,} tokens ({gb:.1f} GB on {device}): "
            "set fewer engine_rows, or --engine vllm, which has pages for the tokens in use"
        ) from error


@torch.no_grad()
def copy_weights(places: Mapping[str, Tensor], weights: NamedWeights) -> None:
    """New numbers for a model's weights, all of them or those that changed. Refuses before anything is changed."""
    for name, part in weights.items():
        if name not in places:
            raise ValueError(unknown("weight", name, places))
        if tuple(places[name].shape) != tuple(part.shape):
            raise ValueError(f"{name} has the shape {tuple(part.shape)}, not {tuple(places[name].shape)}")
    for name, part in weights.items():
        places[name].copy_(torch.as_tensor(part))
