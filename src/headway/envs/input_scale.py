"""Observations brought to mean 0 and variance 1, feature by feature, by what was seen of them so far."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.envs.gymnasium_vector_brightness import BRIGHTEST

MEMORY = 1000
"""Batches after which the oldest begin to be forgotten."""
SMALLEST_VARIANCE = 1e-4
"""So that a feature that never changed does not explode when it does."""


def brightness(pictures: Tensor) -> Tensor:
    """The bytes of pictures as the numbers a network sees: 0..1."""
    return pictures / BRIGHTEST


class InputScale(nn.Module):
    """Moments that travel with the weights and are no weights: no gradient reaches them."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(num_features), requires_grad=False)
        self.variance = nn.Parameter(torch.ones(num_features), requires_grad=False)
        self.batches = nn.Parameter(torch.zeros(1), requires_grad=False)

    @torch.no_grad()
    def see(self, rows: Tensor) -> None:
        """Rows [N, F] of a batch, into the moments of all."""
        self.batches.add_(1)
        share = max(1.0 / float(self.batches), 1.0 / MEMORY)
        flat = rows.flatten(1)
        away = flat.mean(0) - self.mean
        self.variance.mul_(1 - share).add_(share * (flat.var(0, correction=0) + (1 - share) * away.square()))
        self.mean.add_(share * away)

    @property
    def scale(self) -> Tensor:
        return (self.variance + SMALLEST_VARIANCE).rsqrt()

    def forward(self, rows: Tensor) -> Tensor:
        return (rows - self.mean) * self.scale
