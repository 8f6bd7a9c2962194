"""Numbers as classes: a value is squashed by h, then shared by the two nearest of evenly spaced bins.

    x --h--> y in [low, high] --> p[i], p[i + 1] with p[i] bins[i] + p[i + 1] bins[i + 1] = y      (`encode`)
    logits --softmax--> mean of the bins = y --h^-1--> x                                           (`decode`)

h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x keeps small numbers apart and large ones near. What is beyond the bins is
moved to the last of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

EPSILON = 1e-3


def squash(x: Tensor) -> Tensor:
    """h."""
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + EPSILON * x


def unsquash(y: Tensor) -> Tensor:
    """h^-1, in a form that subtracts no two nearly equal numbers."""
    size = y.abs() + 1 + EPSILON
    root = 2 * size / (1 + (1 + 4 * EPSILON * size).sqrt())
    return y.sign() * (root * root - 1)


@dataclass(frozen=True)
class Support:
    """`num_bins` bins from `low` to `high`, in squashed numbers: -50..50 reaches a value of about 2300."""

    low: float = -50.0
    high: float = 50.0
    num_bins: int = 101
    smoothing: float = 0.0
    """Share of every target that is spread over all bins. More: the network is never quite sure."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"a support needs low < high, received {self.low!r} and {self.high!r}")
        if self.num_bins < 2:
            raise ValueError(f"a support needs at least 2 bins, received {self.num_bins!r}")
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"smoothing must be in [0, 1), received {self.smoothing!r}")

    @property
    def step(self) -> float:
        return (self.high - self.low) / (self.num_bins - 1)

    @property
    def bins(self) -> Tensor:
        """[num_bins] float32, where each bin is."""
        return torch.linspace(self.low, self.high, self.num_bins)

    def encode(self, values: Tensor) -> Tensor:
        """Distributions [..., num_bins] of values [...]. That of NaN is NaN."""
        places = ((squash(values) - self.low) / self.step).clamp(0, self.num_bins - 1).unsqueeze(-1)
        lower = places.floor().clamp(max=self.num_bins - 2)
        upper_share = places - lower
        index = lower.nan_to_num().long()
        hot = torch.zeros(*values.shape, self.num_bins, dtype=values.dtype, device=values.device)
        hot.scatter_(-1, index, 1 - upper_share)
        hot.scatter_(-1, index + 1, upper_share)
        if self.smoothing:
            hot = hot * (1 - self.smoothing) + self.smoothing / self.num_bins
        return hot

    def decode(self, logits: Tensor) -> Tensor:
        """Values [...] of logits [..., num_bins]."""
        return unsquash(logits.softmax(-1) @ _bins_on(self, logits.device).to(logits.dtype))


@cache
def _bins_on(support: Support, device: torch.device) -> Tensor:
    """Taken there once: a copy for every question would stand in the way of whatever is captured on a GPU."""
    with torch.inference_mode(False):
        return support.bins.to(device)
