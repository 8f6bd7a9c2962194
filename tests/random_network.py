"""A network that knows nothing, to compare searches on: fixed random weights, random legality and turns on top.

latent [D] of a node = tanh(latent of its parent @ W + embedding of the action); every head is a random projection of
it.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from headway.zero.search_interface import Leaves


class RandomNetwork:
    """A `SearchModel`. The same arguments give the same network; a search needs a new one.

    :param legality: "all", "none said", "some" (at least one), or "ends" (some nodes, never a root, have none)
    :param turns: whether it says who is to play, at random
    :param ties: heads are rounded to few values, so that scores are often equal
    """

    def __init__(
        self,
        num_roots: int,
        num_actions: int,
        num_simulations: int,
        seed: int = 0,
        *,
        legality: Literal["all", "none said", "some", "ends"] = "none said",
        turns: bool = False,
        ties: bool = False,
        width: int = 8,
    ) -> None:
        rng = np.random.default_rng(seed)
        self._legality, self._turns, self._ties = legality, turns, ties
        self._step = rng.normal(size=(width, width)).astype(np.float32)
        self._embedding = rng.normal(size=(num_actions, width)).astype(np.float32)
        self._heads = rng.normal(size=(width, 2 + 2 * num_actions + 2)).astype(np.float32)
        self._latents = np.zeros((num_simulations + 1, num_roots, width), np.float32)
        self._latents[0] = rng.normal(size=(num_roots, width))

    def roots(self) -> Leaves:
        return self._leaves(self._latents[0], is_root=True)

    def expand(self, simulation: int, parents: np.ndarray, actions: np.ndarray) -> Leaves:
        above = self._latents[parents, np.arange(len(parents))]
        self._latents[simulation + 1] = np.tanh(above @ self._step + self._embedding[actions])
        return self._leaves(self._latents[simulation + 1])

    def _leaves(self, latents: np.ndarray, is_root: bool = False) -> Leaves:
        said = latents @ self._heads
        if self._ties:
            said = np.round(said)
        num_actions = (said.shape[1] - 4) // 2
        rewards, values, turn, ended = said[:, :4].T.copy()
        legal = None
        if self._legality != "none said":
            legal = np.ones((len(said), num_actions), bool)
        if legal is not None and self._legality != "all":
            allowed = said[:, 4 + num_actions :]
            legal = allowed >= np.minimum(0, allowed.max(axis=1, keepdims=True))
            if self._legality == "ends" and not is_root:
                legal &= (ended < 1)[:, None]
        to_play = (turn > 0).astype(np.int8) if self._turns else None
        return Leaves(rewards, values, said[:, 4 : 4 + num_actions].copy(), legal, to_play)
