"""From observations to a search: a model with the weights of one version, and memory that is used again.

    load(weights) --> plan(observations) --> begin (node 0 of every tree) --> search --> SearchResult
                         ^ and the past before them, for models that look back
                         ^ and what somebody else thinks of the actions there (`Prior`)

Collectors, reanalyzers and evaluators plan; which model they plan with is the recipe's choice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np

from headway.core.types_opaque import Weights
from headway.zero.planner_history import History, Past
from headway.zero.planner_prior_weight import RootWeight
from headway.zero.search_batched import choose_actions, search
from headway.zero.search_interface import Leaves, SearchResult, SearchSettings
from headway.zero.search_tree import Tree

Prior = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""What somebody else thinks of actions: observations [B, ...] as the model sees them, and what is legal [B, A] -->
probabilities [B, A] (sums need not be 1; a row of zeros is no opinion). The same answer to the same question, if a
search is to be repeatable."""


class SearchableModel(Protocol):
    """A model that can begin at observations: a `SearchModel` with a root."""

    def load(self, weights: Weights) -> None: ...

    def begin(self, obs: np.ndarray, num_nodes: int) -> Leaves:
        """Make room for `num_nodes` nodes in each tree; node 0 is what `obs` [B, ...] shows."""
        ...

    def expand(self, simulation: int, parents: np.ndarray, actions: np.ndarray) -> Leaves: ...


@runtime_checkable
class LooksBack(Protocol):
    """A model that wants to see what came before an observation."""

    context_steps: int
    """How many steps; 0: none after all."""

    def begin(self, obs: np.ndarray, num_nodes: int, past: Past | None = None) -> Leaves: ...


class Planner:
    """Searches with one model. Not for two threads at once: model and trees are its memory.

    `prior` is asked for its opinion of the roots of every search, which has the share `prior_weight` in theirs; with a
    share of 0 it is not asked.
    """

    def __init__(
        self,
        model: SearchableModel,
        settings: SearchSettings,
        *,
        prior: Prior | None = None,
        prior_weight: float = 0.0,
    ) -> None:
        if not 0 <= prior_weight <= 1:
            raise ValueError(f"prior_weight must lie in 0..1, received {prior_weight!r}")
        self.settings = settings
        self._prior = prior if prior_weight else None
        self._prior_weight = prior_weight
        self._model = model
        self._tree: Tree | None = None
        self._random = np.random.default_rng(0)
        self._looking_back = model if isinstance(model, LooksBack) else None
        self._history: History | None = None  # of the games that `best` plays
        self._begins: np.ndarray | None = None

    @property
    def context_steps(self) -> int:
        """How many steps before an observation the model wants to see."""
        return 0 if self._looking_back is None else self._looking_back.context_steps

    def history(self, obs: np.ndarray) -> History | None:
        """Where the past of games with observations [N, ...] is kept; None: the model does not look back."""
        return History(self.context_steps, obs) if self.context_steps else None

    def load(self, weights: object) -> None:
        """The weights to plan with. What `best` does by lot begins anew, so it depends on nothing else."""
        self._model.load(weights)
        self._random = np.random.default_rng(0)
        self._history = self._begins = None

    def plan(
        self,
        obs: np.ndarray,
        rng: np.random.Generator,
        *,
        legal: np.ndarray | None = None,
        to_play: np.ndarray | None = None,
        active: np.ndarray | None = None,
        noise: bool = True,
        past: Past | None = None,
        prior: np.ndarray | None = None,
        prior_weight: float | np.ndarray | RootWeight = 0.0,
    ) -> SearchResult:
        """Search from observations [B, ...]; `active` [B] leaves roots out, `past` is what came before.

        A `prior` [B, A] that is given takes, with its weight, the place of the planner's own. The weight is one for
        all, one for each root [B], or a function of what the model thinks of the roots.
        """
        leaves = self._begin(obs, past)
        roots = Leaves(leaves.rewards, leaves.values, leaves.logits, leaves.legal if legal is None else legal, to_play)
        if self._tree is None or self._tree.edges.shape[0] < len(obs):
            self._tree = Tree(len(obs), self.settings.num_simulations, leaves.logits.shape[1])
        share = prior_weight
        if prior is None and self._prior is not None:
            allowed = np.ones(leaves.logits.shape, bool) if legal is None else legal
            prior, share = np.asarray(self._prior(obs, allowed)), self._prior_weight
        if callable(share):
            allowed = np.ones(leaves.logits.shape, bool) if legal is None else legal
            share = 0.0 if prior is None else share(np.asarray(leaves.logits), allowed)
        return search(self._model, roots, self.settings, rng, noise, prior, share, self._tree, active)

    def _begin(self, obs: np.ndarray, past: Past | None) -> Leaves:
        num_nodes = self.settings.num_simulations + 1
        if past is None:
            return self._model.begin(obs, num_nodes)
        if self._looking_back is None:
            raise ValueError(f"{type(self._model).__name__} does not look back, received a past")
        return self._looking_back.begin(obs, num_nodes, past)

    def best(self, obs: np.ndarray, legal: np.ndarray | None) -> np.ndarray:
        """The most visited action [B] of searches without noise: for evaluation.

        A model that looks back is shown what `best` saw and did in each row since that row was last told to `forget`;
        if it never was, only what is given.
        """
        return self._chosen(obs, legal, 0.0, self._random)

    def drawn(self, obs: np.ndarray, legal: np.ndarray | None, seed: int) -> np.ndarray:
        """The same with actions [B] that are drawn in proportion to their visits."""
        return self._chosen(obs, legal, 1.0, np.random.default_rng(seed))

    def _chosen(
        self, obs: np.ndarray, legal: np.ndarray | None, temperature: float, rng: np.random.Generator
    ) -> np.ndarray:
        if self._begins is None or not self.context_steps:
            return self._by_visits(obs, legal, None, temperature, rng)
        history = self._history
        if history is None or len(history.past.lengths) != len(obs):
            history = self._history = History(self.context_steps, obs)
        history.forget(self._begins)
        actions = self._by_visits(obs, legal, history.past, temperature, rng)
        history.add(obs, actions)
        return actions

    def forget(self, begins: np.ndarray) -> None:
        """What `best` is asked next begins an episode in these rows [B]; rows are the same games until `load`."""
        self._begins = begins.copy()

    def _by_visits(
        self,
        obs: np.ndarray,
        legal: np.ndarray | None,
        past: Past | None,
        temperature: float,
        rng: np.random.Generator,
    ) -> np.ndarray:
        result = self.plan(obs, rng, legal=legal, noise=False, past=past)
        return choose_actions(result, temperature, rng, legal).astype(np.int64)
