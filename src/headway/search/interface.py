"""What a search asks, what it is told, and what it answers: plain arrays, one row per root.

    roots: Leaves ──> search(model, roots, settings, rng) ──> SearchResult
                         │        ^
       parents, actions  v        │  Leaves
                        model.expand        once per simulation, all roots in one batch

B roots, S simulations, A actions. Simulation s makes node s + 1 in every tree; node 0 is the root. So a model keeps
what it knows about nodes (latents, keys and values) in arrays [S + 1, B, ...] and never sees the trees.

Views. A reward is that of the step into the node, seen by the player who made the step. A value is seen by the player
who is to move at the node. With two players G = r + discount * G' becomes G = r - discount * G' wherever the player
changes, so a model never turns a sign itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, get_args

import numpy as np

from headway.core.naming import unknown

Root = Literal["puct", "gumbel"]


class Leaves(NamedTuple):
    """What the model says about one new node per root. A node without a legal action is the end of a game: its value is
    what the player who would move there gets, usually 0, because the reward of the last step already says who won."""

    rewards: np.ndarray  # [B] float32, of the step into the node; not read at the root
    values: np.ndarray  # [B] float32
    logits: np.ndarray  # [B, A] float32
    legal: np.ndarray | None = None  # [B, A] bool; None: every action is legal
    to_play: np.ndarray | None = None  # [B] int8, 0 or 1; None: one player, or two who take turns


class SearchModel(Protocol):
    """Owns its latents by node number."""

    def expand(self, simulation: int, parents: np.ndarray, actions: np.ndarray) -> Leaves:
        """Node `simulation` + 1 of every tree: what follows `actions` at `parents`.

        Both arrays are the search's own memory and change with the next simulation: copy what is kept. A simulation
        that ends at the end of a game asks again for the step that led there, and ignores the answer. Rows of roots
        that are not active ask for their first legal action (0 if there is none), and are ignored too.

        :param parents: [B] int32, node numbers in 0..simulation
        :param actions: [B] int32, legal at those nodes
        """
        ...


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How to search. Defaults are those of MuZero, but for the number of simulations."""

    num_simulations: int = 25
    """New nodes per root and search. More: better targets, proportionally slower."""
    discount: float = 0.997
    """Of rewards one step later, in 0..1. Never negative: `players` says whose rewards they are."""
    pb_c_base: float = 19652.0
    """Visits after which exploration starts to grow. Lower: it grows earlier."""
    pb_c_init: float = 1.25
    """Weight of the prior against the values. Higher: actions the policy likes are tried more."""
    root_dirichlet_alpha: float = 0.3
    """Of the noise in the root's prior. Lower: fewer actions get more of it."""
    root_noise_weight: float = 0.25
    """Share of the noise in the root's prior."""
    value_norm_floor: float = 0.01
    """Values that differ by less than this over the whole tree are not stretched to 0..1. Higher: small differences
    count less against the prior."""
    players: int = 1
    """1, or 2 with opposite interests."""
    root: Root = "puct"
    """puct: the root chooses like any node, the policy is the share of visits. gumbel: sequential halving among actions
    drawn without replacement, the policy is improved by completed values; better with few simulations."""
    max_considered_actions: int = 16
    """gumbel: how many actions the root tries at all. Higher: less of each."""
    gumbel_scale: float = 1.0
    """gumbel: size of the noise. 0: the most likely actions are tried."""
    gumbel_c_visit: float = 50.0
    """gumbel: visits that values are trusted as if they had had, from the beginning."""
    gumbel_c_scale: float = 0.1
    """gumbel: weight of the values, 0..1 over a tree, against the logits. Higher: the improved policy is sharper; at 1
    it is all but certain after any search."""

    def __post_init__(self) -> None:
        for name in ("num_simulations", "max_considered_actions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, received {getattr(self, name)!r}")
        for name in ("discount", "root_noise_weight"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in 0..1, received {getattr(self, name)!r}")
        for name in ("pb_c_base", "root_dirichlet_alpha", "value_norm_floor"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be above 0, received {getattr(self, name)!r}")
        for name in ("pb_c_init", "gumbel_scale", "gumbel_c_visit", "gumbel_c_scale"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must not be negative, received {getattr(self, name)!r}")
        if self.players not in (1, 2):
            raise ValueError(f"players must be 1 or 2, received {self.players!r}")
        if self.root not in get_args(Root):
            raise ValueError(unknown("root", self.root, get_args(Root)))


class SearchResult(NamedTuple):
    """What came of a search. Rows of roots that were not active are zero. Nothing here is the tree's own memory."""

    visits: np.ndarray  # [B, A] int32; the sum over A is the number of simulations
    policies: np.ndarray  # [B, A] float32, the policy target
    values: np.ndarray  # [B] float32, of the root, seen by the player to move there
    q: np.ndarray  # [B, A] float32, r + discount * V of every action, seen by the same; 0 where never visited
    parents: np.ndarray  # [B, S + 1] int32, as the model was asked; -1 for the root
    actions: np.ndarray  # [B, S + 1] int32, the step from the parent; -1 for the root
    mean_depths: np.ndarray  # [B] float32, steps from the root to a new node
    max_depths: np.ndarray  # [B] int32
    choices: np.ndarray | None  # [B] int32: the action that won the halving; None without a Gumbel root
