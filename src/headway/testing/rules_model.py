"""The rules of a board game as the model of a search: what a perfect MuZero would have learned.

Values are 0, or those of one random game played to its end from every new node.
"""

from __future__ import annotations

import numpy as np

from headway.zero.board_games_players import random_player
from headway.zero.board_games_vector import BoardGames
from headway.zero.search_interface import Leaves


class RulesModel:
    """A `SearchModel` of the games as they stand; every root may stand elsewhere.

    :param rollouts: seed of the random games that give the values; None: all values are 0
    """

    def __init__(self, games: BoardGames, num_simulations: int, *, rollouts: int | None = None) -> None:
        self._now = BoardGames(games.game, games.num_envs)
        self._now.load_state_dict(games.state_dict())
        self._nodes = {  # [S + 1, B, ...]
            name: np.zeros((num_simulations + 1, *array.shape), array.dtype)
            for name, array in games.state_dict().items()
        }
        self._player = None if rollouts is None else random_player(games.num_envs, rollouts)

    def roots(self) -> Leaves:
        return self._leaves(0, np.zeros(self._now.num_envs, np.float32))

    def expand(self, simulation: int, parents: np.ndarray, actions: np.ndarray) -> Leaves:
        columns = np.arange(len(parents))
        self._now.load_state_dict({name: nodes[parents, columns] for name, nodes in self._nodes.items()})
        return self._leaves(simulation + 1, self._now.step(actions)[1])

    def _leaves(self, node: int, rewards: np.ndarray) -> Leaves:
        for name, array in self._now.state_dict().items():
            self._nodes[name][node] = array
        values = np.zeros_like(rewards) if self._player is None else self._play_out(self._now)
        legal = self._now.masks()
        return Leaves(rewards, values, np.zeros(legal.shape, np.float32), legal, self._now.to_play)

    def _play_out(self, games: BoardGames) -> np.ndarray:
        """What who is to move got in a random game from here."""
        assert self._player is not None
        rest = BoardGames(games.game, games.num_envs, restarts=False)
        rest.load_state_dict(games.state_dict())
        values = np.zeros(games.num_envs, np.float32)
        while not rest.ended.all():
            mine = rest.to_play == games.to_play
            _, rewards, _ = rest.step(self._player(rest))
            values += np.where(mine, rewards, -rewards)
        return values
