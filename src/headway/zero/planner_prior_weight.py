"""The share, 0..1, of somebody else's opinion of the actions at the root of a search. The rest is the policy's.

    fixed       the same everywhere
    annealed    from one share to another over the versions: much help at first, little later
    adaptive    by root: the less certain the policy is (its entropy), the more the other opinion counts

A share of 0 means that nobody need be asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

Mode = Literal["both", "world_model", "prior"]
"""Who plays: the search with the prior's help, the search alone, or the prior alone."""
RootWeight = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From logits [B, A] of the policy at the roots, and what is legal [B, A], to a share for each root [B]."""


class PriorWeight(Protocol):
    """A rule for the share."""

    def at(self, version: int) -> float | RootWeight:
        """The share in searches with this version of the policy, or how it follows from the roots."""
        ...


@dataclass(frozen=True, slots=True)
class FixedWeight:
    """The same share everywhere."""

    share: float

    def __post_init__(self) -> None:
        _check(share=self.share)

    def at(self, version: int) -> float | RootWeight:
        return self.share


@dataclass(frozen=True, slots=True)
class AnnealedWeight:
    """From `first` at version 0 in a straight line to `last` at version `versions`; after that `last`."""

    first: float
    last: float
    versions: int

    def __post_init__(self) -> None:
        _check(first=self.first, last=self.last)
        if self.versions < 1:
            raise ValueError(f"a share must change over at least 1 version, received {self.versions!r}")

    def at(self, version: int) -> float | RootWeight:
        return self.first + (self.last - self.first) * min(1.0, version / self.versions)


@dataclass(frozen=True, slots=True)
class AdaptiveWeight:
    """From `low` where the policy is certain to `high` where all that is legal is as likely, in between by its entropy.

    The entropy is divided by the most it can be, the logarithm of how many actions are legal.
    """

    low: float = 0.3
    high: float = 0.7

    def __post_init__(self) -> None:
        _check(low=self.low, high=self.high)
        if self.low > self.high:
            raise ValueError(f"the share must not fall from low={self.low!r} to high={self.high!r}")

    def at(self, version: int) -> float | RootWeight:
        return self.high if self.low == self.high else self.by_entropy

    def by_entropy(self, logits: np.ndarray, legal: np.ndarray) -> np.ndarray:
        """The share for each root [B], from logits [B, A] and what is legal [B, A]."""
        masked = np.where(legal, logits.astype(np.float64), -np.inf)
        highest = masked.max(axis=1, keepdims=True)
        shifted = masked - np.where(np.isfinite(highest), highest, 0.0)  # a game that is over has no legal action
        weights = np.exp(shifted)
        policy = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
        entropy = -(policy * np.log(np.maximum(policy, 1e-300))).sum(axis=1)
        most = np.log(np.maximum(legal.sum(axis=1), 2))
        return self.low + (self.high - self.low) * np.clip(entropy / most, 0.0, 1.0)


def _check(**shares: float) -> None:
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise ValueError(f"{name} is a share and must lie in 0..1, received {share!r}")
