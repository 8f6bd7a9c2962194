"""Where a PPO update is quicker: on one core, on four, or on a GPU (if there is one).

python bench/learner_device.py
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from headway.core.types import Batch, Rollout, Span
from headway.envs.gymnasium_vector import Discrete, Spec
from headway.ppo.learner import PPOLearner, PPOSettings
from headway.ppo.policy import ActorCritic
from headway.ppo.segments_segment import Segment

REPEATS = 5
STEPS = 64


@dataclass(frozen=True)
class Case:
    shape: tuple[int, ...]
    hidden: tuple[int, ...]
    copies: int
    minibatch_size: int

    def __str__(self) -> str:
        rows = STEPS * self.copies
        return f"observation {self.shape}, layers {self.hidden}, {rows} steps, minibatch {self.minibatch_size}"

    def network(self) -> ActorCritic:
        return ActorCritic(Spec(self.shape, Discrete(2)), self.hidden)

    def batch(self) -> Batch:
        rng, size = np.random.default_rng(0), (STEPS, self.copies)
        segment = Segment(
            obs=rng.normal(size=(STEPS + 1, self.copies, *self.shape)).astype(np.float32),
            actions=rng.integers(2, size=size),
            log_probs=np.full(size, np.log(0.5), np.float32),
            rewards=rng.normal(size=size).astype(np.float32),
            terminated=np.zeros(size, bool),
            truncated=np.zeros(size, bool),
            valid=np.ones(size, bool),
        )
        return Batch(0, (Rollout(segment, span=Span(0, 0)),))


CASES = [
    Case((4,), (64, 64), 32, 512),
    Case((128,), (256, 256), 32, 512),
    Case((1, 9, 9), (64, 64), 32, 256),
    Case((3, 32, 32), (256,), 16, 256),
]


def measure(case: Case, device: str, threads: int) -> list[float]:
    """Milliseconds per update, after one to warm up."""
    torch.set_num_threads(threads)
    settings = PPOSettings(minibatch_size=case.minibatch_size)
    learner = PPOLearner(case.network, settings, device=device)
    batch, times = case.batch(), []
    for _ in range(1 + REPEATS):
        began = time.perf_counter()
        learner.learn(batch)
        times.append(1e3 * (time.perf_counter() - began))
    return times[1:]


def main() -> None:
    rows = {"1 core": partial(measure, device="cpu", threads=1), "4 cores": partial(measure, device="cpu", threads=4)}
    if torch.cuda.is_available():
        rows[torch.cuda.get_device_name()] = partial(measure, device="cuda", threads=1)
    for case in CASES:
        for name, update in rows.items():
            times = update(case)
            middle, least, most = statistics.median(times), min(times), max(times)
            print(f"{case!s:75} {name:12} {middle:8.1f} ms ({least:.1f}..{most:.1f})", flush=True)


if __name__ == "__main__":
    main()
