"""Many games of one kind in one vector, stepped by one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from headway.core.text_naming import unknown
from headway.envs.compiled_games_states import require_state
from headway.zero.board_games_rules import GAMES, Game, ended_all, first_illegal, masks_all, planes_all, step_all


class BoardGames:
    """`num_envs` games stepped together; both players act through `step`, in turns.

    :param game: "tic_tac_toe", "connect_four", or rules of your own
    :param restarts: a game that has ended shows its last position; its next action, whatever it is, starts it again
        with reward 0 (Gymnasium's "next step" mode). False: it stays ended, for matches
    """

    def __init__(self, game: str | Game, num_envs: int, *, restarts: bool = True) -> None:
        if isinstance(game, str):
            if game not in GAMES:
                raise ValueError(unknown("board game", game, GAMES))
            game = GAMES[game]
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, received {num_envs!r}")
        if (game.rows + 1) * game.columns > 64:
            raise ValueError(f"a board must fit in 64 bits, (rows + 1) * columns; received {game}")
        self.game, self.num_envs, self.restarts = game, num_envs, restarts
        # What the games are: read as you like, written by `reset`, `step` and `load_state_dict` only.
        self.stones = np.zeros((num_envs, 2), np.uint64)  # bits of the first and of the second player
        self.to_play = np.zeros(num_envs, np.int8)  # 0 or 1; in an ended game who would be next
        self.length = np.zeros(num_envs, np.int32)
        self.ended = np.zeros(num_envs, np.bool_)

    def reset(self) -> np.ndarray:
        """Start every game anew. There is nothing to seed."""
        for array in self._arrays().values():
            array[:] = 0
        return self.observation()

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One move in every game; an illegal one raises before anything has changed.

        :param actions: [B] integers; in a game that has ended any will do
        :return: observation [B, 2, R, C] of who is to move now, reward [B] float32 of who moved, ended [B] bool
        """
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs,) or actions.dtype.kind not in "iu":
            raise ValueError(f"actions must be {self.num_envs} integers, got {actions.dtype} of {actions.shape}")
        actions = actions.astype(np.int64)
        illegal = first_illegal(self.stones, self.ended, actions, *self.game.numbers)
        if illegal >= 0:
            allowed = ", ".join(map(str, np.flatnonzero(self.masks()[illegal])))
            raise ValueError(f"game {illegal}: action {actions[illegal]} is illegal; allowed: {allowed}")
        rewards = np.empty(self.num_envs, np.float32)
        state = self.stones, self.to_play, self.length, self.ended
        step_all(*state, actions, *self.game.numbers, self.restarts, rewards)
        return self.observation(), rewards, self.ended.copy()

    def observation(self) -> np.ndarray:
        """[B, 2, rows, columns] uint8, the top row first: the stones of who is to move, then those of the other."""
        out = np.empty((self.num_envs, 2, self.game.rows, self.game.columns), np.uint8)
        planes_all(self.stones, self.to_play, out)
        return out

    def masks(self) -> np.ndarray:
        """Legal actions [B, A] bool; none in a game that has ended."""
        out = np.empty((self.num_envs, self.game.num_actions), np.bool_)
        masks_all(self.stones, self.ended, *self.game.numbers, out)
        return out

    def play(self, index: int, actions: Sequence[int]) -> None:
        """Moves in one game, for positions of tests and examples; the other games stay as they are."""
        only = BoardGames(self.game, 1)
        for name, array in only._arrays().items():
            array[0] = self._arrays()[name][index]
        for action in actions:
            if only.ended[0]:
                raise ValueError(f"game {index} is over before action {action}")
            only.step(np.array([action]))
        for name, array in self._arrays().items():
            array[index] = only._arrays()[name][0]

    def text(self, index: int = 0) -> str:
        """One board in lines: x began, o is the other."""
        rows, columns = self.game.rows, self.game.columns
        marks = np.full((rows, columns), ".")
        for player, mark in enumerate("xo"):
            for row in range(rows):
                for column in range(columns):
                    if int(self.stones[index, player]) >> (column * (rows + 1) + rows - 1 - row) & 1:
                        marks[row, column] = mark
        return "\n".join(" ".join(line) for line in marks)

    # -- checkpoints

    def state_dict(self) -> dict[str, np.ndarray]:
        """Everything the games depend on, copied."""
        return {name: array.copy() for name, array in self._arrays().items()}

    def _arrays(self) -> dict[str, np.ndarray]:
        return {"stones": self.stones, "to_play": self.to_play, "length": self.length, "ended": self.ended}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from there, bit for bit. What is not a position of this game is refused."""
        mine = self._arrays()
        require_state(state, mine)
        stones = np.ascontiguousarray(state["stones"])
        counts = np.unpackbits(stones.view(np.uint8), axis=1).reshape(-1, 2, 64).sum(axis=2, dtype=np.int64)
        column, board = (1 << self.game.rows) - 1, 0
        for number in range(self.game.columns):
            board |= column << (number * (self.game.rows + 1))
        over = np.empty(self.num_envs, np.bool_)
        ended_all(stones, *self.game.numbers, over)
        wrong = (
            ((stones[:, 0] & stones[:, 1]) != 0)
            | ((stones & ~np.uint64(board)) != 0).any(axis=1)
            | (counts.sum(axis=1) != state["length"])
            | (counts[:, 0] - counts[:, 1] != state["length"] % 2)
            | (state["to_play"] != state["length"] % 2)
            | (over != state["ended"])
        )
        if wrong.any():
            raise ValueError(f"game {np.flatnonzero(wrong)[0]}: not a position of {self.game.name}")
        for name, array in mine.items():
            array[:] = state[name]
