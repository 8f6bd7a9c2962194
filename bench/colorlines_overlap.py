"""What asynchrony buys on a game: Colour Lines by PPO, where collecting takes about as long as learning.

    python bench/colorlines_overlap.py            three tables
    python bench/colorlines_overlap.py --quick    fewer updates and repeats

    plain          both sides compute: lead 1 against lead 0. They share the cores, the memory and, on threads, the
                   interpreter lock
    slow games     every step of the games waits as well, as for a simulator elsewhere
    evaluations    long ones: paused for, or beside the rest, at lead 1. The last has nothing left to run beside

The two ways of a row take turns, so that they meet the same noise; median (min..max) of the repeats. The floor is the
busiest side of the first way in the same repeat, max(collect, train, evaluate); what publishing leaves exposed is in
the wall clock, not in the floor. `of floor` is the floor over the second way's wall clock. The runs are pinned, so both
ways do the same work but for its order. One thread of torch a role. Nothing is asserted.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before anything imports torch; processes inherit it

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from figures import spread

from headway.coordinator.roles import LEARNER, Stations
from headway.coordinator.run_result import RunResult
from headway.core.types import derive_seed
from headway.ppo.colorlines.recipe import ColorLinesConfig, policy, stations
from headway.ppo.colorlines.vector_gymnasium_vector import ColorLinesVector
from headway.ppo.segments import SegmentCollector
from headway.runs.launch_session import launch

RUNTIMES = ("threads", "processes")


class SlowGames(ColorLinesVector):
    """Every step keeps its caller waiting."""

    def __init__(self, num_envs: int, *, wait_s: float, **options: Any) -> None:
        super().__init__(num_envs, **options)
        self._wait_s = wait_s

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        time.sleep(self._wait_s)
        return super().step(actions)


def collector(config: ColorLinesConfig, wait_s: float, number: int) -> SegmentCollector:
    options = {"shaping": config.shaping, "gamma": config.gamma, "reward_scale": config.reward_scale}
    games = partial(SlowGames, wait_s=wait_s) if wait_s else ColorLinesVector
    return SegmentCollector(
        partial(games, config.num_envs, compact=True, masks=False, **options),
        partial(policy, config),
        steps=config.segment_steps,
        seed=derive_seed(config.seed, "environment", number) % 2**31,
    )


@dataclass(frozen=True)
class Work:
    """What one run does."""

    name: str
    config: dict[str, Any]
    wait_s: float = 0.0

    def run(self, runtime: str, **more: Any) -> RunResult:
        config = ColorLinesConfig(**{**self.config, **more})
        parts = stations(config)
        wired = Stations(partial(collector, config, self.wait_s), parts.learner, parts.evaluator)
        return launch(wired, config.settings(), runtime=runtime)


# Milliseconds of one core: a segment of 8 games about 145, one pass over it about 130.
EVEN = {"num_envs": 8, "segment_steps": 32, "num_epochs": 1, "batch_size": 128, "width": 16, "evaluate_every": 0}
# A segment of 16 games about 115 and the waiting, two passes over it about 220.
WAITING = {"num_envs": 16, "segment_steps": 16, "num_epochs": 2, "batch_size": 128, "width": 16, "evaluate_every": 0}
EVALUATED = {**EVEN, "evaluate_every": 10, "eval_episodes": 64}


def busiest_s(result: RunResult) -> float:
    spent = result.time_spent
    work = (("collector", "collect"), (LEARNER, "learn"), ("evaluator", "evaluate"))
    return max(spent.total(role, activity) for role, activity in work)


def compare(work: Work, runtime: str, ways: dict[str, dict[str, Any]], repeats: int) -> None:
    """The two ways in turns, and a line."""
    for more in ways.values():
        work.run(runtime, **{**more, "updates": 2})  # compile, and warm the caches
    results: dict[str, list[RunResult]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, more in ways.items():
            results[name].append(work.run(runtime, **more))
    slow, fast = results.values()
    floors = [busiest_s(result) for result in slow]
    cells = [
        f"{work.name:12} {runtime:10}",
        f"{1000 * median(slow, lambda r: r.time_spent.mean('collector', 'collect')):8.1f}",
        f"{1000 * median(slow, lambda r: r.time_spent.mean(LEARNER, 'learn')):8.1f}",
        f"{spread([result.wall_s for result in slow], 2):>22}",
        f"{spread([result.wall_s for result in fast], 2):>22}",
        f"{statistics.median(floors):8.2f}",
        f"{spread([s.wall_s / f.wall_s for s, f in zip(slow, fast, strict=True)], 2):>22}",
        f"{spread([floor / f.wall_s for floor, f in zip(floors, fast, strict=True)], 2):>22}",
    ]
    print(" ".join(cells), flush=True)


def median(results: list[RunResult], of: Callable[[RunResult], float]) -> float:
    return statistics.median(of(result) for result in results)


def head(title: str, before: str, after: str) -> None:
    print(f"\n{title}")
    columns = f"{'collect':>8} {'train':>8} {before + ', s':>22} {after + ', s':>22} {'floor':>8}"
    print(f"{'':12} {'runtime':10} {columns} {'speed-up':>22} {'of floor':>22}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--updates", type=int)
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--wait-ms", type=float, default=7.0, help="of each step of the slow games")
    options = parser.parse_args()
    updates = options.updates or (12 if options.quick else 40)
    repeats = options.repeats or (2 if options.quick else 5)
    budget = {"updates": updates, "seed": 1}
    print(
        f"{updates} updates a run, {repeats} repeats, {os.cpu_count()} cores; collect and train in ms at the first way"
    )
    leads = {"lead 0": {"max_lead": 0}, "lead 1": {"max_lead": 1}}
    head("lead 1 against lead 0", *leads)
    for runtime in RUNTIMES:
        compare(Work("plain", EVEN | budget), runtime, leads, repeats)
        slow = Work(f"wait {options.wait_ms:g} ms", WAITING | budget, options.wait_ms / 1000)
        compare(slow, runtime, leads, repeats)
    postures = {"paused": {"evaluate_in_background": False}, "beside": {"evaluate_in_background": True}}
    head("evaluations every 10 updates, 64 whole games each; lead 1", *postures)
    for runtime in RUNTIMES:
        compare(Work("evaluations", EVALUATED | budget | {"max_lead": 1}), runtime, postures, repeats)


if __name__ == "__main__":
    main()
