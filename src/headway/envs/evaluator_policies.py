"""What an evaluation needs of a policy."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from headway.core.types_opaque import Weights


class BestActions(Protocol):
    """Acts without chance."""

    def load(self, weights: Weights) -> None: ...

    def best(self, obs: np.ndarray, mask: np.ndarray | None, /) -> np.ndarray:
        """Actions [N, ...] for observations [N, ...], of those that `mask` [N, A] allows."""
        ...


@runtime_checkable
class Remembers(Protocol):
    """A policy that remembers what it saw is told where episodes begin."""

    def forget(self, begins: np.ndarray, /) -> None:
        """What it is asked next begins an episode in these rows [N]."""
        ...
