"""How many steps of Colour Lines does one core make, and what do the two simple players score?

    PYTHONPATH=src python bench/colorlines.py

      random legal player (numba) ──moves──> env.step ──> observation, reward ──> env.masks (all 6561 moves)

Everything in one thread. The ways take turns in every repeat, so that they meet the same noise; median and min..max
of REPEATS. "per core" divides by the CPU time of this process, "wall" by the clock: on a busy machine they differ.
The reference is the tests' pure Python, which walks once from every ball for its mask. The original, which searched
a path for every pair of ball and cell, made 157 steps a second. Nothing is asserted.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from headway.ppo import colorlines as lines
from headway.ppo.colorlines import MOVES, ColorLines

REPEATS = 9
NUM_GAMES = 400


def vector(num_envs: int, *, num_calls: int, masks: bool = True, **options: float) -> Callable[[], int]:
    """Step `num_envs` games `num_calls` times."""
    env = ColorLines(num_envs, seed=1, **options)  # type: ignore[arg-type]
    player = lines.random_player(num_envs, seed=2)
    out = np.empty((num_envs, MOVES), np.bool_)

    def run() -> int:
        for _ in range(num_calls):
            env.step(player(env))
            if masks:
                env.masks(out)
        return num_envs * num_calls

    return run


def reference(num_steps: int) -> Callable[[], int]:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "unit"))
    import test_colorlines as slow

    draw = slow.Draws(1)
    choose = random.Random(2)
    board, coming = slow.start(draw)

    def run() -> int:
        nonlocal board, coming
        for _ in range(num_steps):
            moves = slow.legal(board)
            slow.turn(board, coming, choose.choice(list(moves)), draw)
            if all(board) or not any(board):
                board, coming = slow.start(draw)
        return num_steps

    return run


def main() -> None:
    ways = {
        "64 games, full masks": vector(64, num_calls=400),
        "64 games, full masks, compact": vector(64, num_calls=400, compact=True),
        "64 games, full masks, shaping": vector(64, num_calls=400, shaping=1.0, gamma=0.99),
        "64 games, no masks": vector(64, num_calls=400, masks=False),
        "1024 games, full masks": vector(1024, num_calls=25),
        "1 game, full masks": vector(1, num_calls=4000),
        "pure Python reference, full masks": reference(200),
    }
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for run in ways.values():
        run()  # compile, and leave the start positions behind
    for _ in range(REPEATS):
        for name, run in ways.items():
            wall, cpu = time.perf_counter(), time.process_time()
            num_steps = run()
            rates[name].append((num_steps / (time.process_time() - cpu), num_steps / (time.perf_counter() - wall)))
    print(f"{'steps a second':36}{'per core: median':>18}{'min..max':>20}{'wall: median':>16}{'min..max':>20}")
    for name, pairs in rates.items():
        columns = ""
        for rate, wide in zip(zip(*pairs, strict=True), (18, 16), strict=True):
            columns += f"{statistics.median(rate):>{wide},.0f}{f'{min(rate):,.0f}..{max(rate):,.0f}':>20}"
        print(f"{name:36}{columns}")

    print(f"\n{'points a game':36}{'mean':>10}{'standard error':>18}   over {NUM_GAMES} games")
    for name, player in (("random", lines.random_player), ("greedy one-ply", lines.greedy_player)):
        scores = lines.play_games(player(NUM_GAMES, seed=3), NUM_GAMES, seed=4)
        print(f"{name:36}{scores.mean():>10.2f}{scores.std(ddof=1) / NUM_GAMES**0.5:>18.2f}")


if __name__ == "__main__":
    main()
