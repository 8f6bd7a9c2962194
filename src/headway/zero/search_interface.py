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

from typing import Literal, NamedTuple, Protocol

import numpy as np
from pydantic import BaseModel, Field

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


class TreeSettings(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False):
    """Search: how a tree grows. Defaults are those of MuZero, but for the number of simulations."""

    num_simulations: int = Field(default=25, ge=1)
    """Simulations per move when collecting and reanalyzing. More: better targets, proportionally slower."""
    root: Root = "puct"
    """How the root chooses among its actions. puct: by visits, with noise and a temperature. gumbel: by halving among
    actions drawn without replacement; better with few simulations, and it has no temperature and no Dirichlet noise."""
    max_considered_actions: int = Field(default=16, ge=1)
    """gumbel: how many actions the root tries at all. Higher: less of each."""
    gumbel_scale: float = Field(default=1.0, ge=0)
    """gumbel: size of the noise when collecting. 0: the most likely actions are tried."""
    gumbel_c_visit: float = Field(default=50.0, ge=0)
    """gumbel: visits that values are trusted as if they had had. Higher: the improved policy is sharper."""
    gumbel_c_scale: float = Field(default=0.1, ge=0)
    """gumbel: weight of the values against the logits. Higher: sharper; at 1 targets are all but certain."""
    value_norm_floor: float = Field(default=0.01, gt=0)
    """Values that differ by less than this over a tree are not stretched to 0..1. Higher: small differences count less
    against the policy's opinion."""
    pb_c_base: float = Field(default=19652.0, gt=0)
    """Visits after which exploration in the tree starts to grow."""
    pb_c_init: float = Field(default=1.25, ge=0)
    """Weight of the policy's opinion in the tree against values. Higher: what the policy likes is tried more."""
    root_dirichlet_alpha: float = Field(default=0.3, gt=0)
    """puct: shape of the noise at the root when collecting. Lower: fewer actions get more of it."""
    root_noise_weight: float = Field(default=0.25, ge=0, le=1)
    """puct: share of the noise at the root. More explores more."""


class SearchSettings(TreeSettings):
    """How to search in a game."""

    discount: float = Field(default=0.997, ge=0, le=1)
    """Of rewards one step later. Never negative: `players` says whose rewards they are."""
    players: Literal[1, 2] = 1
    """1, or 2 with opposite interests."""


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
