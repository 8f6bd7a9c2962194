"""Environments whose step times differ: whoever is ready first, against lock-step.

    python bench/first_ready.py [--num_envs 16] [--mean_ms 2] [--repeats 5] [--steps 64] [--tickets 6]
    python bench/first_ready.py --env Acrobot-v1       another environment, and EnvPool's where it is installed

A step sleeps for a lognormal time with the given mean; sigma 1 makes the slowest of 16 about four times the mean. The
same policy (two layers of 64) collects the same segments through Gymnasium's SyncVectorEnv and AsyncVectorEnv (one
process each) and through the first-ready collector, in turns. `ideal` is what the drawn step times allow if nobody
waits for anybody and the policy costs nothing; `floor` is the same if a segment ends with its slowest environment,
which is the most that first ready can reach.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from headway.core.types import Snapshot, Ticket
from headway.envs.envpool_vector import knows
from headway.envs.gymnasium_vector import describe_spaces, make_vector, single_maker
from headway.ppo.first_ready import first_ready_collector
from headway.ppo.policy import Actor, ActorCritic
from headway.ppo.segments import SegmentCollector


class Sleeper(gym.Env[np.ndarray, np.int64]):
    """Sleeps for a lognormal time at every step, drawn from its own seed; the action does not matter."""

    def __init__(self, mean_s: float, sigma: float) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (8,))
        self.action_space = gym.spaces.Discrete(4)
        self._mu, self._sigma = np.log(mean_s) - sigma**2 / 2, sigma

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(8, np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        seconds = self.np_random.lognormal(self._mu, self._sigma)
        time.sleep(seconds)
        return np.full(8, min(seconds, 1.0), np.float32), seconds, False, False, {}


def policy(spec: Any) -> Actor:
    return Actor(ActorCritic(spec, (64, 64)))


def vector(kind: Any, make_env: Callable[[], Any], num_envs: int) -> Any:
    return kind([make_env] * num_envs, autoreset_mode=gym.vector.AutoresetMode.NEXT_STEP)


def measure(collector: Any, weights: Any, tickets: int) -> tuple[float, list[np.ndarray]]:
    """Seconds for some tickets after a first one, and how long each step slept: [T, N] for each."""
    collector.collect(Ticket(0, 0), Snapshot(0, weights))
    began = time.perf_counter()
    rollouts = [collector.collect(Ticket(index, index), Snapshot(0, weights)) for index in range(1, tickets + 1)]
    return time.perf_counter() - began, [rollout.payload.rewards for rollout in rollouts]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", help="a registered environment, instead of one that sleeps")
    parser.add_argument("--num_envs", type=int, default=16)
    parser.add_argument("--mean_ms", type=float, default=2.0)
    parser.add_argument("--sigma", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--tickets", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    num_envs, steps, tickets = options.num_envs, options.steps, options.tickets
    sleeper = partial(Sleeper, options.mean_ms / 1000, options.sigma)
    make_env = single_maker(options.env) if options.env else sleeper
    one = make_env()
    weights = ActorCritic(describe_spaces(one.observation_space, one.action_space), (64, 64)).state_dict()

    def lock_step(kind: Any, seed: int) -> Any:
        return SegmentCollector(partial(vector, kind, make_env, num_envs), policy, steps=steps, seed=seed)

    def first_ready(min_ready: int, seed: int) -> Any:
        sizes = {"num_envs": num_envs, "min_ready": min_ready}
        return first_ready_collector(make_env, policy, steps=steps, seed=seed, **sizes)

    ways: dict[str, Callable[[int], Any]] = {
        "SyncVectorEnv": partial(lock_step, gym.vector.SyncVectorEnv),
        "AsyncVectorEnv": partial(lock_step, gym.vector.AsyncVectorEnv),
        f"first ready, min_ready={num_envs}": partial(first_ready, num_envs),
        f"first ready, min_ready={max(1, num_envs // 4)}": partial(first_ready, max(1, num_envs // 4)),
        "first ready, min_ready=1": partial(first_ready, 1),
    }
    if options.env and knows(options.env):
        pool = partial(make_vector, options.env, num_envs, "envpool")
        ways["EnvPool"] = lambda seed: SegmentCollector(pool, policy, steps=steps, seed=seed)
    rates: dict[str, list[float]] = {name: [] for name in ways}
    ideals, floors = [], []
    for repeat in range(options.repeats):
        for name, build in ways.items():
            collector = build(1000 * repeat)
            is_slow = name == "SyncVectorEnv" and not options.env
            wall, slept = measure(collector, weights, 1 if is_slow else tickets)
            rates[name].append(num_envs * steps * len(slept) / wall)
            if hasattr(collector, "close"):
                collector.close()
            else:
                collector._env.close()
        if not options.env:
            ideals.append(num_envs / float(np.mean(slept)))
            floors.append(num_envs * steps * tickets / float(sum(each.sum(axis=0).max() for each in slept)))
    what = options.env or f"lognormal step time of mean {options.mean_ms:g} ms (sigma {options.sigma:g})"
    if not options.env:
        rates |= {"floor": floors, "ideal": ideals}
    best = max(statistics.median(values) for values in rates.values())
    print(f"{num_envs} environments, {what}, {steps} steps, {tickets} tickets, {options.repeats} repeats: steps/s")
    print(f"{'':28} {'median (min..max)':>28} {'of best':>9}")
    for name, values in rates.items():
        spread = f"{statistics.median(values):,.0f} ({min(values):,.0f}..{max(values):,.0f})"
        print(f"{name:28} {spread:>28} {statistics.median(values) / best:9.2f}")


if __name__ == "__main__":
    main()
