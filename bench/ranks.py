"""Does a second learner rank pay? One learner on one batch: one rank, one rank with two threads, two ranks.

    PYTHONPATH=src python bench/ranks.py

      a rollout, collected once ──> learn(batch), again and again

The learner is alone: nobody collects, so two ranks have two cores. The ways take turns in every repeat, so that they
meet the same noise; median and min..max of REPEATS. "CPU" is the time of all ranks together, "busiest" that of the one
that had most to do: on a machine that does other things as well it says what two free cores would give. Then what a sum
of the gradient and a call with the batch cost by themselves. Nothing is asserted.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headway.core.types import Batch, LearnReport, Snapshot, Ticket
from headway.ppo import recipe_ppo as ppo
from headway.ppo.cartpole import CartPoleConfig
from headway.ppo.colorlines import recipe as colorlines
from headway.ppo.colorlines.recipe import ColorLinesConfig
from headway.ranks.rank import ALONE, Rank
from headway.ranks.rank_processes import RankProcesses
from headway.ranks.ranked_learner import RankedLearner

REPEATS = 7
MINIBATCHES = (256, 1024)  # moves a gradient step
Spent = tuple[float, float, float]  # seconds of the clock, of all CPUs, of the busiest rank


def of_colorlines(minibatch: int) -> tuple[Any, Callable[[Rank], Any]]:
    """2048 moves a batch."""
    config = ColorLinesConfig(num_envs=64, segment_steps=32, batch_size=minibatch, num_epochs=1)
    return colorlines.stations(config), partial(colorlines._learner, config)


def of_cartpole() -> tuple[Any, Callable[[Rank], Any]]:
    """The recipe as it is."""
    config = CartPoleConfig()
    return ppo.stations(config), partial(ppo._learner, config, ppo._spec_of(config))


class Sums:
    """Adds up a vector, and does nothing else."""

    def __init__(self, size: int, rank: Rank) -> None:
        self._rank, self._vector = rank, torch.ones(size)

    def learn(self, batch: Batch) -> LearnReport:
        for _ in range(batch.version):
            self._rank.add_up(self._vector)
        return LearnReport()

    def snapshot(self) -> None: ...
    def state_dict(self) -> None: ...
    def load_state_dict(self, state: None) -> None: ...


def pids_of(ranked: RankedLearner) -> list[int]:
    peers = ranked._peers
    assert isinstance(peers, RankProcesses)
    return list(peers.pids.values())


def cpu_s(pids: list[int]) -> np.ndarray:
    """Of this process and of others that still run."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = [used.ru_utime + used.ru_stime]
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        seconds.append((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
    return np.array(seconds)


def measure(work: Callable[[], Any], times: int, pids: list[int], threads: int = 1) -> Spent:
    """Each time."""
    torch.set_num_threads(threads)
    wall, cpu = time.perf_counter(), cpu_s(pids)
    for _ in range(times):
        work()
    wall, cpu = (time.perf_counter() - wall) / times, (cpu_s(pids) - cpu) / times
    torch.set_num_threads(1)
    return wall, float(cpu.sum()), float(cpu.max())


def show(name: str, spent: list[Spent], alone: list[Spent] | None = None) -> None:
    text = f"{name:30}"
    for values in zip(*spent, strict=True):
        text += _columns([1e3 * value for value in values], 9, 18)
    for place in (0, 2) if alone else ():
        text += _columns([one[place] / here[place] for one, here in zip(alone or (), spent, strict=True)], 8, 12)
    print(text, flush=True)


def _columns(values: list[float], wide: int, wider: int) -> str:
    return f"{statistics.median(values):>{wide}.2f}{f'{min(values):.2f}..{max(values):.2f}':>{wider}}"


def compare(name: str, recipe: tuple[Any, Callable[[Rank], Any]], times: int) -> None:
    stations, make_learner = recipe
    torch.set_num_threads(1)
    one = make_learner(ALONE)
    rollout = stations.collector(0).collect(Ticket(0, 1, 0), Snapshot(0, one.snapshot()))
    batch, size = Batch(0, (rollout,)), len(one._step.flat)
    two, sums = RankedLearner(make_learner, 2, RankProcesses), RankedLearner(partial(Sums, size), 2, RankProcesses)
    ways: dict[str, Callable[[], Spent]] = {
        "one rank": lambda: measure(lambda: one.learn(batch), times, []),
        "one rank, two torch threads": lambda: measure(lambda: one.learn(batch), times, [], threads=2),
        "two ranks": lambda: measure(lambda: two.learn(batch), times, pids_of(two)),
        "(a sum of the gradient)": lambda: measure_sums(sums),
        "(a call with the batch)": lambda: measure(lambda: sums.learn(batch), 20, pids_of(sums)),
    }
    for way in ways.values():
        way()  # compile
    spent: dict[str, list[Spent]] = {way: [] for way in ways}
    for _ in range(REPEATS):
        for way, work in ways.items():
            spent[way].append(work())
    print(f"\n{name}: {rollout.steps} steps a batch, {size} parameters; load {os.getloadavg()[0]:.1f}")
    titles = [(9, "wall ms"), (18, ""), (9, "CPU ms"), (18, ""), (9, "busiest"), (18, ""), (8, "faster"), (12, "")]
    titles += [(8, "busiest"), (12, "")]
    print(" " * 30 + "".join(f"{title or 'min..max':>{wide}}" for wide, title in titles))
    for way, times_spent in spent.items():
        show(way, times_spent, spent["one rank"] if way in ("two ranks", "one rank, two torch threads") else None)
    two.close()
    sums.close()


def measure_sums(sums: RankedLearner, times: int = 100) -> Spent:
    wall, cpu, busiest = measure(lambda: sums.learn(Batch(times, ())), 1, pids_of(sums))
    return wall / times, cpu / times, busiest / times


def main() -> None:
    for minibatch in MINIBATCHES:
        compare(f"Colour Lines, {minibatch} moves a gradient step", of_colorlines(minibatch), times=1)
    compare("CartPole, as the recipe is", of_cartpole(), times=10)


if __name__ == "__main__":
    main()
