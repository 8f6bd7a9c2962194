"""A replay that draws what surprised the learner more often, and corrects for doing so.

    insert --> leaf = max priority seen --> sample --> the learner's |td| --> update --> leaf

    leaf_i    p_i = (priority_i + eps)^alpha, times version_decay^(v - b_i) if set
    draw      P(i) = p_i / sum p, stratified: the sum cut into equal intervals, one draw in each
    weight    w_i = (N P(i))^-beta / max_j w_j = (min_j p_j / p_i)^beta, the maximum over the whole replay

Lifecycle of a leaf: empty (0), set at insert, changed by `update` as long as its id is live, taken over by the item
that overwrites the slot.

Ageing changes no leaf: as v grows all of them shrink by one factor, which cancels in P and w. A leaf holds
p_i * version_decay^(reference - b_i); when the exponents grow too far the reference moves (`_rebase`).

Invariants: a refused call has changed nothing; the trees depend on the leaves alone, so a replay loaded
from `state_dict` goes on to draw the very same samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from headway.core.types import State
from headway.replay.prioritized_item_ring import (
    DrawnItems,
    ItemRing,
    ReplayStatistics,
    Spec,
    check_draw,
    num_items,
    staleness_of,
)
from headway.replay.priority_tree import PriorityTree, checked_priorities

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
        self._ring = ItemRing(capacity, spec)
        self._tree = PriorityTree(capacity, alpha=alpha, eps=eps)
        self._random = np.random.default_rng(seed)
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
        raw = None if priorities is None else checked_priorities(priorities, num)
        if self.version_decay is not None and num:
            self._rebase(int(versions.max()))
        slot = self._ring.end % self.capacity
        ids = self._ring.append(arrays, versions)
        leaves = self._aged(self._tree.powers_of_new(num) if raw is None else self._tree.powers(raw), versions)
        head = self.capacity - slot  # the rest wraps around
        self._tree.set_range(slot, leaves[:head])
        if num > head:
            self._tree.set_range(0, leaves[head:])
        return ids

    def sample(
        self,
        batch_size: int,
        *,
        beta: float | None = None,
        progress: float | None = None,
        version: int | None = None,
    ) -> DrawnItems:
        """Draw `batch_size` items. `beta`, or the run's `progress` in [0, 1], sets the weights' exponent."""
        check_draw(batch_size, self._ring)
        if beta is not None and progress is not None:
            raise ValueError(f"beta={beta!r} and progress={progress!r} exclude each other")
        if beta is None:
            beta = self.beta_at(progress or 0.0)
        elif not 0 <= beta <= 1:
            raise ValueError(f"beta must be in [0, 1], received {beta!r}")
        slots = self._tree.draw(self._random.random(batch_size))
        weights = self._tree.weights(slots, beta)
        ids, items, versions = self._ring.read(slots)
        return DrawnItems(ids, items, weights, versions, staleness_of(versions, version))

    def update(self, ids: ArrayLike, priorities: ArrayLike) -> None:
        """Write back what the learner measured. Of equal ids the last wins; ids overwritten are counted, no more."""
        slots, late = self._ring.locate(ids)
        raw = checked_priorities(priorities, len(slots))
        if late:
            self._late_updates += late
            live = slots >= 0
            slots, raw = slots[live], raw[live]
        versions = self._ring.versions[slots] if self.version_decay is not None else slots
        self._tree.set(slots, self._aged(self._tree.powers(raw), versions))

    def _aged(self, leaves: np.ndarray, versions: np.ndarray) -> np.ndarray:
        """The leaves [N] of items made by `versions` [N], written over in place."""
        if self.version_decay is not None:
            leaves *= self.version_decay ** (self._reference - versions).astype(np.float64)
            np.maximum(leaves, _LEAST_LEAF, out=leaves)
        return leaves

    def _rebase(self, newest: int) -> None:
        """Move the reference to `newest` before leaves of that version overflow."""
        assert self.version_decay is not None
        if (newest - self._reference) * -math.log2(self.version_decay) <= _MAX_LOG2_AGE:
            return
        leaves = self._tree.leaves[: len(self)] * self.version_decay ** float(newest - self._reference)
        self._tree.set_range(0, np.maximum(leaves, _LEAST_LEAF))
        self._reference = newest

    def statistics(self) -> ReplayStatistics:
        ring = self._ring
        return ReplayStatistics(
            size=len(ring),
            capacity=ring.capacity,
            bytes=ring.nbytes + self._tree.nbytes,
            inserted=ring.end,
            late_updates=self._late_updates,
            total_priority=self._tree.total,
            max_priority=self._tree.max_priority,
        )

    def _settings(self) -> State:
        """What the saved leaves depend on."""
        return {
            "capacity": self.capacity,
            "alpha": self.alpha,
            "eps": self.eps,
            "version_decay": self.version_decay,
        }

    def state_dict(self) -> State:
        return {
            "settings": self._settings(),
            "ring": self._ring.state_dict(),
            "leaves": self._tree.leaves[: len(self)].copy(),
            "random": self._random.bit_generator.state,
            "max_priority": self._tree.max_priority,
            "late_updates": self._late_updates,
            "reference": self._reference,
        }

    def load_state_dict(self, state: State) -> None:
        if state["settings"] != self._settings():
            raise ValueError(f"saved with {state['settings']}, cannot continue with {self._settings()}")
        self._ring.load_state_dict(state["ring"])
        self._tree.restore(np.array(state["leaves"]), state["max_priority"])
        self._random.bit_generator.state = state["random"]
        self._late_updates = state["late_updates"]
        self._reference = state["reference"]
