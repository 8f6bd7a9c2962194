"""Priorities of items, kept as the leaves of a sum tree that draws by them.

    leaf_i    (priority_i + eps)^alpha; 0: nothing to draw there
    weight    w_i = (min_j leaf_j / leaf_i)^beta = (N P(i))^-beta, divided by the largest over all items

Callers speak of priorities, the raw |td|; leaves hold the powers, and only `powers` goes from one to the other, so
alpha is applied once.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from headway.replay import priority_tree_sumtree as sumtree

MAX_PRIORITY = 1e100  # a million of them, aged, still have a finite sum


class PriorityTree:
    """The leaves of `size` items, all empty at first. New items enter with the largest priority seen so far."""

    def __init__(self, size: int, *, alpha: float, eps: float = 1e-6) -> None:
        self._size = size
        self.alpha = alpha
        self._eps = eps
        self._trees = sumtree.plant(size)
        self.max_priority = 1.0

    @property
    def leaves(self) -> np.ndarray:
        """[size] float64, the tree's own memory."""
        return self._trees.sums[: self._size]

    @property
    def total(self) -> float:
        return self._trees.total

    @property
    def nbytes(self) -> int:
        return self._trees.sums.nbytes + self._trees.mins.nbytes

    def powers(self, priorities: np.ndarray) -> np.ndarray:
        """The leaves [N] of checked priorities [N]; the largest is remembered."""
        powers, self.max_priority = _powers(priorities, self._eps, self.alpha, self.max_priority)
        return powers

    def powers_of_new(self, num: int) -> np.ndarray:
        """The leaves of `num` items that nobody has judged yet."""
        return self.powers(np.full(num, self.max_priority))

    def set(self, slots: np.ndarray, leaves: np.ndarray) -> None:
        """Of equal slots [N] the last one wins."""
        sumtree.set_leaves(*self._trees, slots, leaves)

    def set_range(self, first: int, leaves: np.ndarray) -> None:
        """The leaves [N] of `first`, `first` + 1 and so on."""
        sumtree.set_range(*self._trees, first, leaves)

    def draw(self, uniforms: np.ndarray) -> np.ndarray:
        """Slots [N], stratified: the sum is cut into N equal intervals, and uniforms [N] in [0, 1) pick one in each."""
        return sumtree.draw(self._trees.sums, self._trees.starts, uniforms)

    def weights(self, slots: np.ndarray, beta: float) -> np.ndarray:
        """Importance weights [N] float32 of slots [N], at most 1."""
        return _weights(self._trees.sums, slots, self._trees.least, beta)

    def restore(self, leaves: np.ndarray, max_priority: float) -> None:
        """Go on from the first leaves of a saved tree; the others are empty."""
        self._trees = sumtree.plant(self._size)
        self.set_range(0, leaves)
        self.max_priority = max_priority


def checked_priorities(priorities: ArrayLike, num: int) -> np.ndarray:
    raw = np.array(priorities, np.float64, ndmin=1)  # a copy: read-only arrays would be compiled for again
    if raw.shape != (num,):
        raise ValueError(f"priorities must be [{num}], one per item, received {list(raw.shape)}")
    bad = _first_bad(raw)
    if bad >= 0:
        raise ValueError(
            f"priorities must be finite and >= 0 (and at most {MAX_PRIORITY:g}), "
            f"received {raw[bad]} at position {bad}; nothing was changed"
        )
    return raw


@njit(cache=True, nogil=True)
def _first_bad(priorities):
    for n in range(priorities.size):
        if not 0.0 <= priorities[n] <= MAX_PRIORITY:  # nan too
            return n
    return -1


@njit(cache=True, nogil=True)
def _powers(priorities, eps, alpha, largest):
    """(priorities + eps)^alpha [N], and the largest priority so far."""
    powers = np.empty(priorities.size)
    for n in range(priorities.size):
        powers[n] = (priorities[n] + eps) ** alpha
        largest = max(largest, priorities[n])
    return powers, largest


@njit(cache=True, nogil=True)
def _weights(leaves, slots, least, beta):
    weights = np.empty(slots.size, np.float32)
    for n in range(slots.size):
        weights[n] = (least / leaves[slots[n]]) ** beta
    return weights
