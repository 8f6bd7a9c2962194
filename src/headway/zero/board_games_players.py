"""Scripted players, and matches between players of any kind.

random_player     any legal move
minimax_player    looks `depth` moves ahead: 1 wins if it can, 2 also stops a win of the other, and so on
perfect_player    looks to the end: never loses tic-tac-toe (connect-four is too large for it)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headway.envs.compiled_games_game_kernels import Array, below, kernel, seed_all
from headway.zero.board_games_rules import TIC_TAC_TOE, Game, cell_of, has_run
from headway.zero.board_games_vector import BoardGames

Player = Callable[[BoardGames, np.ndarray], np.ndarray]
"""Actions [B] in the games it is asked about ([B] bool, none of them ended); what it says about others is not read."""

_WIN = 1000  # plus the moves left to look at then: sooner is better
_WORST = -2 * _WIN


@kernel
def _in_order(columns: int, drops: bool, k: int) -> int:
    """The k-th action to look at: columns from the middle outwards, because good ones first cut the most."""
    if not drops:
        return k
    middle = columns // 2
    return middle + (k + 1) // 2 if k % 2 else middle - k // 2


@kernel
def _negamax(
    mine: np.uint64, theirs: np.uint64, depth: int, rows: int, columns: int, run: int, drops: bool, stack: Array
) -> int:
    """The value for who is to move within `depth` moves; 0 where the look ahead ends.

    Alpha-beta without recursion, which numba cannot cache: stack [depth + 1, 6] holds for every move made the stones of
    who is to move and of the other, the bounds, the best so far and how many actions have been looked at.
    """
    num_actions = columns if drops else rows * columns
    ply = 0
    stack[0, 0], stack[0, 1], stack[0, 2], stack[0, 3], stack[0, 4], stack[0, 5] = (
        mine,
        theirs,
        _WORST,
        -_WORST,
        _WORST,
        0,
    )
    while True:
        here = stack[ply]
        mine, theirs = np.uint64(here[0]), np.uint64(here[1])
        both = mine | theirs
        if here[5] == 0:
            if ply == depth:
                here[4], here[5] = 0, num_actions
            for action in range(num_actions if ply < depth else 0):
                cell = cell_of(both, action, rows, columns, drops)
                if cell and has_run(mine | cell, rows, run):
                    here[4], here[5] = _WIN + depth - ply, num_actions
        cell = np.uint64(0)
        while here[5] < num_actions and here[2] < here[3] and cell == 0:
            cell = cell_of(both, _in_order(columns, drops, here[5]), rows, columns, drops)
            here[5] += 1
        if cell:
            below = stack[ply + 1]
            below[0], below[1], below[2], below[3] = theirs, mine | cell, -here[3], -here[2]
            below[4], below[5] = _WORST, 0
            ply += 1
            continue
        value = here[4] if here[4] > _WORST else 0  # a full board
        if ply == 0:
            return value
        ply -= 1
        stack[ply, 4] = max(stack[ply, 4], -value)
        stack[ply, 2] = max(stack[ply, 2], -value)


@kernel
def values_of(
    mine: np.uint64, theirs: np.uint64, depth: int, rows: int, columns: int, run: int, drops: bool, out: Array
) -> None:
    """What every action leads to, exact within `depth` moves: out [A]; the worst there is where illegal."""
    both, stack = mine | theirs, np.empty((depth, 6), np.int64)
    for action in range(len(out)):
        cell = cell_of(both, action, rows, columns, drops)
        if cell == 0:
            out[action] = _WORST
        elif has_run(mine | cell, rows, run):
            out[action] = _WIN + depth
        else:
            out[action] = -_negamax(theirs, mine | cell, depth - 1, rows, columns, run, drops, stack)


@kernel
def _minimax_all(
    stones: Array,
    to_play: Array,
    asked: Array,
    rng: Array,
    depth: int,
    rows: int,
    columns: int,
    run: int,
    drops: bool,
    out: Array,
) -> None:
    values = np.empty(columns if drops else rows * columns, np.int64)
    for index in range(len(out)):
        out[index] = 0
        if not asked[index]:
            continue
        player = to_play[index]
        values_of(stones[index, player], stones[index, 1 - player], depth, rows, columns, run, drops, values)
        num_best, best = 0, values.max()
        for action in range(len(values)):
            if values[action] == best:
                num_best += 1
                if below(rng, index, num_best) == 0:
                    out[index] = action


@kernel
def _random_all(
    stones: Array,
    to_play: Array,
    asked: Array,
    rng: Array,
    depth: int,
    rows: int,
    columns: int,
    run: int,
    drops: bool,
    out: Array,
) -> None:
    for index in range(len(out)):
        out[index] = 0
        if not asked[index]:
            continue
        both, num = stones[index, 0] | stones[index, 1], 0
        for action in range(columns if drops else rows * columns):
            if cell_of(both, action, rows, columns, drops):
                num += 1
                if below(rng, index, num) == 0:
                    out[index] = action


class ScriptedPlayer:
    """Chooses a move in every game of a vector; its draws are its own, one stream per game."""

    def __init__(self, choose: Callable[..., None], depth: int, num_envs: int, seed: int) -> None:
        self._choose, self._depth = choose, depth
        self._rng = np.empty(num_envs, np.uint64)
        seed_all(np.uint64(seed), self._rng)

    def __call__(self, games: BoardGames, asked: np.ndarray | None = None) -> np.ndarray:
        """Actions [B] int64 in the games it is `asked` about [B] bool; None: in all that go on. 0 in the rest."""
        out = np.empty(games.num_envs, np.int64)
        asked = ~games.ended if asked is None else asked & ~games.ended
        self._choose(games.stones, games.to_play, asked, self._rng, self._depth, *games.game.numbers, out)
        return out

    def state_dict(self) -> dict[str, np.ndarray]:
        return {"rng": self._rng.copy()}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        self._rng[:] = state["rng"]


def random_player(num_envs: int, seed: int = 0) -> ScriptedPlayer:
    """Any legal move, all equally likely."""
    return ScriptedPlayer(_random_all, 0, num_envs, seed)


def minimax_player(num_envs: int, depth: int, seed: int = 0) -> ScriptedPlayer:
    """The best move as far as `depth` moves ahead tell (its own counts); what looks the same, by lot.

    A win sooner is better than a win later, a loss later better than a loss sooner.
    """
    if depth < 1:
        raise ValueError(f"depth must be at least 1, received {depth!r}")
    return ScriptedPlayer(_minimax_all, depth, num_envs, seed)


def perfect_player(num_envs: int, seed: int = 0) -> ScriptedPlayer:
    """Plays tic-tac-toe to the end in its head."""
    return minimax_player(num_envs, TIC_TAC_TOE.num_cells, seed)


def play_match(game: str | Game, one: Player, other: Player, num_games: int) -> np.ndarray:
    """Results [num_games] int8 for `one`: 1 won, 0 drawn, -1 lost. It begins in the first half of the games (rounded
    up), the other in the rest. Both players must be made for vectors of `num_games`."""
    games = BoardGames(game, num_games, restarts=False)
    begins = np.arange(num_games) < (num_games + 1) // 2
    results = np.zeros(num_games, np.int8)
    while not games.ended.all():
        is_ones_turn = (games.to_play == 0) == begins
        asked = is_ones_turn & ~games.ended, ~is_ones_turn & ~games.ended
        actions = np.where(is_ones_turn, one(games, asked[0]), other(games, asked[1]))
        _, rewards, _ = games.step(actions)
        results += np.where(is_ones_turn, rewards, -rewards).astype(np.int8)
    return results
