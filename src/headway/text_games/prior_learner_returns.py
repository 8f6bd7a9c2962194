"""What the steps of a segment turned out to be worth, beside what the search thought of the state they left.

    row         t     t+1   t+2  ...  t+n
    reward      r0    r1    r2
    target      r0 + g r1 + g^2 r2 + ... + g^n v(t+n)          v: the search's value at the root

A target ends with its episode: without a value where that terminated, with the value of the last observation (in the
row behind it) where it was cut. It never looks past the segment: at the last row it takes the value at the latest, but
where an episode terminates in that row, its reward is all that comes. So the last row itself has a target only there.
"""

from __future__ import annotations

import numpy as np

from headway.zero.segments import Floats, GameSegment


def step_targets(segment: GameSegment, td_steps: int, gamma: float) -> Floats:
    """Returns the target of each step, [T, N]; nan where a step is no experience or the segment ends too early."""
    rows, games = segment.actions.shape
    values, rewards = segment.values.astype(np.float64), segment.rewards.astype(np.float64)
    targets = np.full((rows, games), np.nan)
    for first in range(rows):
        total, factor = np.zeros(games), np.ones(games)
        is_open, is_known = segment.valid[first].copy(), np.zeros(games, bool)
        for row in range(first, min(first + td_steps, rows)):
            total += np.where(is_open, factor * rewards[row], 0.0)
            factor = factor * gamma
            is_known |= is_open & segment.terminated[row]
            is_open &= ~segment.terminated[row]
            if row + 1 == rows:
                break
            is_last = segment.truncated[row] | (row + 1 == first + td_steps)
            if row + 2 == rows:
                is_last |= ~segment.terminated[row + 1]
            total += np.where(is_open & is_last, factor * values[row + 1], 0.0)
            is_known |= is_open & is_last
            is_open &= ~is_last
        targets[first] = np.where(is_known, total, np.nan)
    return targets.astype(np.float32)


def step_advantages(segment: GameSegment, td_steps: int, gamma: float) -> Floats:
    """Returns how much better each step was than the search's value, [T, N]; nan as in the targets."""
    return step_targets(segment, td_steps, gamma) - segment.values
