"""Rewards brought to one scale: divided by the deviation of the discounted returns that were seen so far.

    G <- gamma * G + r, for every environment; 0 where an episode ends          r / sqrt(var(G)), within +-10

Only what is learned from is scaled: returns of episodes are reported as the environment gives them, and evaluations see
nothing of it. It is done to whole segments, step by step, so it does not matter in which order environments arrived.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headway.ppo.segments_segment import Segment

MOST = 10.0
LEAST_VARIANCE = 1e-8


class RewardSigns:
    """Rewards as -1, 0 and 1, as Atari's games are usually learned: their points differ by orders of magnitude."""

    def begin_episodes(self) -> None:
        """Nothing is remembered."""

    def scaled(self, segment: Segment) -> Segment:
        return replace(segment, rewards=np.sign(segment.rewards))


class RewardScale:
    """The moments of one collector's environments. They go with it over a restart where its environments do."""

    def __init__(self, gamma: float) -> None:
        self._gamma = gamma
        self._returns = np.zeros(0)
        self._count, self._mean, self._squares = 0, 0.0, 0.0  # as Welford has them

    @property
    def variance(self) -> float:
        return self._squares / self._count if self._count > 1 else 1.0

    def begin_episodes(self) -> None:
        """What was seen stays known; the environments are others."""
        self._returns = np.zeros(0)

    def scaled(self, segment: Segment) -> Segment:
        """The segment with rewards [T, N] on one scale. Steps that only reset an environment are not looked at."""
        steps, num_envs = segment.rewards.shape
        if len(self._returns) != num_envs:
            self._returns = np.zeros(num_envs)
        scaled = np.zeros_like(segment.rewards)
        ended = segment.terminated | segment.truncated
        for step in range(steps):
            valid = segment.valid[step]
            returns = np.where(valid, self._gamma * self._returns + segment.rewards[step], self._returns)
            self._see(returns[valid])
            by = np.sqrt(self.variance + LEAST_VARIANCE)
            scaled[step] = np.clip(segment.rewards[step] / by, -MOST, MOST)
            self._returns = np.where(ended[step], 0.0, returns)
        return replace(segment, rewards=scaled)

    def _see(self, values: np.ndarray) -> None:
        """Several values into the moments of all."""
        if not len(values):
            return
        total = self._count + len(values)
        away = float(values.mean()) - self._mean
        self._squares += float(((values - values.mean()) ** 2).sum()) + away**2 * self._count * len(values) / total
        self._mean += away * len(values) / total
        self._count = total
