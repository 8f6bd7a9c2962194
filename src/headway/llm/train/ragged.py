"""Rows of different lengths, end to end: the layout of everything that is learned from token by token.

    values     a0 a1 a2 | b0 b1 | c0 c1 c2 c3     [N]
    row         0  0  0 |  1  1 |  2  2  2  2     [N]
    lengths     3         2       4               [R]

A row is a sequence of trained tokens (prompts, padding and what an environment said are left out), or a group
of rollouts. Sums over rows add up in a fixed order, so they give the same bits every time, on a GPU too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headway.llm.train.ragged_device_copies import send


@dataclass(frozen=True, slots=True)
class Ragged:
    """Which row each value belongs to. Rows may be empty."""

    lengths: Tensor  # [R]
    row: Tensor  # [N], never falling

    @classmethod
    def of(cls, lengths: Tensor | Sequence[int]) -> Ragged:
        lengths = torch.as_tensor(lengths, dtype=torch.int64)
        if lengths.device.type != "cpu":
            return cls(lengths, torch.repeat_interleave(lengths))
        return cls(lengths, torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths.numpy())))  # a tenth of torch's

    @property
    def num_rows(self) -> int:
        return len(self.lengths)

    @property
    def num_values(self) -> int:
        return len(self.row)

    def to(self, device: torch.device | str) -> Ragged:
        return Ragged(send(self.lengths, device), send(self.row, device))

    def sums(self, values: Tensor) -> Tensor:
        """[N] -> [R]; 0 for an empty row."""
        return self._reduce(values, "sum", 0.0)

    def means(self, values: Tensor) -> Tensor:
        """[N] -> [R]; 0 for an empty row."""
        return self.sums(values) / self.lengths.clamp(min=1)

    def largest(self, values: Tensor) -> Tensor:
        """[N] -> [R]; -inf for an empty row."""
        return self._reduce(values, "max", float("-inf"))

    def smallest(self, values: Tensor) -> Tensor:
        """[N] -> [R]; inf for an empty row."""
        return self._reduce(values, "min", float("inf"))

    def spread(self, per_row: Tensor) -> Tensor:
        """[R] -> [N]: each value gets what its row has."""
        return per_row[self.row]

    def _reduce(self, values: Tensor, how: str, empty: float) -> Tensor:
        if len(values) != self.num_values:
            raise ValueError(f"the layout has {self.num_values} values, received {len(values)}")
        return torch.segment_reduce(values, how, lengths=self.lengths, initial=empty, unsafe=True)
