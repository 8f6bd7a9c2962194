"""A replay that draws what surprised the learner more often, and corrects for doing so.

    insert --> leaf = max priority seen --> sample --> the learner's |td| --> update --> leaf

    leaf_i    p_i = (priority_i + eps)^alpha, times version_decay^(v - b_i) if set
    draw      P(i) = p_i / sum p, stratified: the sum cut into equal intervals, one draw in each
    weight    w_i = (N P(i))^-beta / max_j w_j = (min_j p_j / p_i)^beta, the maximum over the whole replay

Callers speak of priorities, the raw |td|; leaves hold the powers. Only `_leaves` goes from one to the other,
so alpha is applied once. Lifecycle of a leaf: empty (0), set at insert, changed by `update` as long as its
id is live, taken over by the item that overwrites the slot.

Ageing changes no leaf: as v grows all of them shrink by one factor, which cancels in P and w. A leaf holds
p_i * version_decay^(reference - b_i); when the exponents grow too far the reference moves (`_rebase`).

Invariants: a refused call has changed nothing; the trees depend on the leaves alone, so a replay loaded
from `state_dict` goes on to draw the very same samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from headway.buffer import sumtree
from headway.buffer.item_ring import ReplayStatistics, Ring, Sample, Spec, check_draw, num_items, staleness_of

MAX_PRIORITY = 1e100  # a million of them, aged, still have a finite sum
_MAX_LOG2_AGE = 500.0  # how far an aged leaf may outgrow the reference
_LEAST_LEAF = 2.0**-1000  # below, a live leaf could round to 0, which means empty


class PrioritizedReplay:
    """Prioritized experience replay over a ring of items.

    `alpha`: 0 draws uniformly, 1 in proportion to the priority. `beta_start` to `beta_end`: how much of the
    bias the weights undo, over the run; 1 is all of it. `eps`: raises the chance of items whose priority is 0.
    `version_decay`: below 1, items of older policies are drawn less; weights undo that too, and the oldest
    item sets their scale, so keep version_decay^(versions in the replay) well above 0.
    """

    def __init__(
        self,
        capacity: int,
        spec: Spec | None = None,
        *,
        alpha: float = 0.6,
        beta_start: float = 0.4,
        beta_end: float = 1.0,
        eps: float = 1e-6,
        version_decay: float | None = None,
        seed: int = 0,
    ) -> None:
        for name, value in (("alpha", alpha), ("beta_start", beta_start), ("beta_end", beta_end)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} must be in [0, 1], received {value!r}")
        if not 0 < eps < math.inf:
            raise ValueError(f"eps must be > 0, else an item of priority 0 is lost for ever, received {eps!r}")
        if version_decay is not None and not 0 < version_decay <= 1:
            raise ValueError(f"version_decay must be in (0, 1], received {version_decay!r}")
        self.alpha = alpha
        self.beta_start = beta_start
        self.beta_end = beta_end
        self.eps = eps
        self.version_decay = version_decay
        self._ring = Ring(capacity, spec)
        self._trees = sumtree.plant(capacity)
        self._random = np.random.default_rng(seed)
        self._max_priority = 1.0
        self._late_updates = 0
        self._reference = 0  # the version whose leaves are not aged

    def __len__(self) -> int:
        return len(self._ring)

    @property
    def capacity(self) -> int:
        return self._ring.capacity

    def beta_at(self, progress: float) -> float:
        """The exponent of the weights when this share of the run is done: linear, then constant."""
        if math.isnan(progress):
            raise ValueError("progress is nan")
        return self.beta_start + (self.beta_end - self.beta_start) * min(1.0, max(0.0, progress))

    def insert(
        self, items: Mapping[str, ArrayLike], version: ArrayLike = 0, priorities: ArrayLike | None = None
    ) -> np.ndarray:
        """Keep `items`, each field [N, ...], made by policy `version` (one or [N]); their ids [N].

        Without `priorities` [N] they enter with the largest priority seen, so that each is soon drawn once.
        """
        arrays, versions = self._ring.check(items, version)
        num = num_items(arrays)
        raw = np.full(num, self._max_priority) if priorities is None else checked_priorities(priorities, num)
        if self.version_decay is not None and num:
            self._rebase(int(versions.max()))
        slot = self._ring.end % self.capacity
        ids = self._ring.append(arrays, versions)
        leaves = self._leaves(raw, versions)
        head = self.capacity - slot  # the rest wraps around
        sumtree.set_range(*self._trees, slot, leaves[:head])
        if num > head:
            sumtree.set_range(*self._trees, 0, leaves[head:])
        return ids

    def sample(
        self,
        batch_size: int,
        *,
        beta: float | None = None,
        progress: float | None = None,
        version: int | None = None,
    ) -> Sample:
        """Draw `batch_size` items. `beta`, or the run's `progress` in [0, 1], sets the weights' exponent."""
        check_draw(batch_size, self._ring)
        if beta is not None and progress is not None:
            raise ValueError(f"beta={beta!r} and progress={progress!r} exclude each other")
        if beta is None:
            beta = self.beta_at(progress or 0.0)
        elif not 0 <= beta <= 1:
            raise ValueError(f"beta must be in [0, 1], received {beta!r}")
        trees = self._trees
        slots = sumtree.draw(trees.sums, trees.starts, self._random.random(batch_size))
        weights = leaf_weights(trees.sums, slots, trees.least, beta)
        ids, items, versions = self._ring.read(slots)
        return Sample(ids, items, weights, versions, staleness_of(versions, version))

    def update(self, ids: ArrayLike, priorities: ArrayLike) -> None:
        """Write back what the learner measured. Of equal ids the last wins; ids overwritten are counted, no more."""
        slots, late = self._ring.locate(ids)
        raw = checked_priorities(priorities, len(slots))
        if late:
            self._late_updates += late
            live = slots >= 0
            slots, raw = slots[live], raw[live]
        versions = self._ring.versions[slots] if self.version_decay is not None else slots
        sumtree.set_leaves(*self._trees, slots, self._leaves(raw, versions))

    def _leaves(self, priorities: np.ndarray, versions: np.ndarray) -> np.ndarray:
        """The leaves [N] of checked priorities [N]; the largest is remembered."""
        leaves, self._max_priority = leaf_powers(priorities, self.eps, self.alpha, self._max_priority)
        if self.version_decay is not None:
            leaves *= self.version_decay ** (self._reference - versions).astype(np.float64)
            np.maximum(leaves, _LEAST_LEAF, out=leaves)
        return leaves

    def _rebase(self, newest: int) -> None:
        """Move the reference to `newest` before leaves of that version overflow."""
        assert self.version_decay is not None
        if (newest - self._reference) * -math.log2(self.version_decay) <= _MAX_LOG2_AGE:
            return
        leaves = self._trees.sums[: len(self)] * self.version_decay ** float(newest - self._reference)
        sumtree.set_range(*self._trees, 0, np.maximum(leaves, _LEAST_LEAF))
        self._reference = newest

    def statistics(self) -> ReplayStatistics:
        ring = self._ring
        return ReplayStatistics(
            size=len(ring),
            capacity=ring.capacity,
            bytes=ring.nbytes + self._trees.sums.nbytes + self._trees.mins.nbytes,
            inserted=ring.end,
            late_updates=self._late_updates,
            total_priority=self._trees.total,
            max_priority=self._max_priority,
        )

    def _settings(self) -> dict[str, Any]:
        """What the saved leaves depend on."""
        return {
            "capacity": self.capacity,
            "alpha": self.alpha,
            "eps": self.eps,
            "version_decay": self.version_decay,
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "settings": self._settings(),
            "ring": self._ring.state_dict(),
            "leaves": self._trees.sums[: len(self)].copy(),
            "random": self._random.bit_generator.state,
            "max_priority": self._max_priority,
            "late_updates": self._late_updates,
            "reference": self._reference,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["settings"] != self._settings():
            raise ValueError(f"saved with {state['settings']}, cannot continue with {self._settings()}")
        self._ring.load_state_dict(state["ring"])
        self._trees = sumtree.plant(self.capacity)
        sumtree.set_range(*self._trees, 0, np.array(state["leaves"]))
        self._random.bit_generator.state = state["random"]
        self._max_priority = state["max_priority"]
        self._late_updates = state["late_updates"]
        self._reference = state["reference"]


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
def leaf_powers(priorities, eps, alpha, largest):
    """(priorities + eps)^alpha [N], and the largest priority so far."""
    powers = np.empty(priorities.size)
    for n in range(priorities.size):
        powers[n] = (priorities[n] + eps) ** alpha
        largest = max(largest, priorities[n])
    return powers, largest


@njit(cache=True, nogil=True)
def leaf_weights(leaves, slots, least, beta):
    weights = np.empty(slots.size, np.float32)
    for n in range(slots.size):
        weights[n] = (least / leaves[slots[n]]) ** beta
    return weights
