"""Two simple players, and how to let one play whole games."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headway.envs.compiled_games_game_kernels import Array, below, kernel, seed_all
from headway.ppo.colorlines.rules import (
    CELLS,
    MOVES,
    RUN,
    WORTH,
    clear,
    points_for,
    reach,
    targets_of,
    tenths,
    touched,
)
from headway.ppo.colorlines.vector import ColorLines


@kernel
def _random_all(board: Array, labels: Array, rng: Array, out: Array) -> None:
    size = np.empty(CELLS, np.int64)  # of each component; 0 is none
    num_targets = np.empty(CELLS, np.int64)
    free = np.empty((1, CELLS), np.bool_)
    for index in range(len(board)):
        size[:] = 0
        for cell in range(CELLS):
            size[labels[index, cell]] += 1
        size[0] = 0
        total = 0
        for origin in range(CELLS):
            a, b, c, d = touched(labels[index], origin)
            num = (
                size[a] + (b != a) * size[b] + (c != a and c != b) * size[c] + (d != a and d != b and d != c) * size[d]
            )
            num_targets[origin] = num * (board[index, origin] != 0)
            total += num_targets[origin]
        k = below(rng, index, total)
        origin = 0
        while k >= num_targets[origin]:
            k -= num_targets[origin]
            origin += 1
        targets_of(board[index], labels[index], origin, origin + 1, free)
        target = -1
        while k >= 0:
            target += 1
            k -= free[0, target]
        out[index] = origin * CELLS + target


@kernel
def _joined(cells: Array, at: int, colour: int) -> tuple[int, bool]:
    """What a ball of `colour` put on the empty cell `at` adds to the potential; whether it completes a run."""
    worth, completes = 0, False
    for direction in range(4):
        ahead, behind = reach(cells, at, direction, colour), reach(cells, at, direction + 4, colour)
        completes |= ahead + behind + 1 >= RUN
        worth += WORTH[ahead + behind + 1] - WORTH[ahead] - WORTH[behind]
    return worth, completes


@kernel
def _greedy_all(board: Array, labels: Array, rng: Array, out: Array) -> None:
    free = np.empty((1, CELLS), np.bool_)
    after = np.empty(CELLS, np.uint8)
    placed = np.empty(1, np.int64)
    for index in range(len(board)):
        cells = board[index]
        before = tenths(cells)
        best, num_best = -MOVES, 0
        for origin in range(CELLS):
            colour = cells[origin]
            if colour == 0:
                continue
            targets_of(cells, labels[index], origin, origin + 1, free)
            cells[origin] = 0
            lost, _ = _joined(cells, origin, colour)
            for target in range(CELLS):
                if not free[0, target]:
                    continue
                gained, completes = _joined(cells, target, colour)
                value = gained - lost
                if completes:
                    after[:] = cells
                    after[target] = colour
                    placed[0] = target
                    value = 10 * points_for(clear(after, placed, 1)) + tenths(after) - before
                if value > best:
                    best, num_best = value, 0
                if value == best:
                    num_best += 1
                    if below(rng, index, num_best) == 0:
                        out[index] = origin * CELLS + target
            cells[origin] = colour


class VectorPlayer:
    """Chooses a move in every game of a vector; its draws are its own, one stream per game."""

    def __init__(self, kernel: Callable[..., None], num_envs: int, seed: int = 0) -> None:
        self._kernel = kernel
        self._rng = np.empty(num_envs, np.uint64)
        seed_all(np.uint64(seed), self._rng)

    def __call__(self, env: ColorLines) -> np.ndarray:
        out = np.empty(env.num_envs, np.int64)
        self._kernel(env.board, env._labels, self._rng, out)
        return out


def random_player(num_envs: int, seed: int = 0) -> VectorPlayer:
    """Any legal move, all equally likely."""
    return VectorPlayer(_random_all, num_envs, seed)


def greedy_player(num_envs: int, seed: int = 0) -> VectorPlayer:
    """The best points + potential right after the move, before balls appear; ties by lot."""
    return VectorPlayer(_greedy_all, num_envs, seed)


def play_games(choose: Callable[[ColorLines], np.ndarray], num_games: int, seed: int = 0) -> np.ndarray:
    """Scores [num_games] of one whole game each. The first game of every environment counts and no other: counting
    whichever ends first would favour the short ones."""
    env = ColorLines(num_games, seed, compact=True)
    scores = np.full(num_games, -1, np.int64)
    while (scores < 0).any():
        *_, info = env.step(choose(env))
        if "_final_obs" in info:
            first = info["_final_obs"] & (scores < 0)
            scores[first] = info["final_score"][first]
    return scores
