"""What is drawn at a position of a stream: the steps after it, and the n-step target of each of them.

    window     a position and the H steps after it: what a model is unrolled along
    target     z = sum_{j<n} gamma^j r + gamma^n v, for each step of a window; v is the bootstrap

A position is complete when the row H + n steps later is there, or the end of its episode (and after a truncation the
observation it was cut at).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from headway.zero.replay_stream_rings import TERMINATED, TRUNCATED, StreamRings


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """What is drawn at a position."""

    num_unroll_steps: int = 5
    """H: steps a model is unrolled along. More: it learns to be right further ahead, and each draw costs more."""
    td_steps: int = 5
    """n: rewards that are summed before the bootstrap. More: less trust in the value, more variance, older policies."""
    discount: float = 0.997

    def __post_init__(self) -> None:
        for name in ("num_unroll_steps", "td_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, received {getattr(self, name)!r}")
        if not 0 <= self.discount <= 1:
            raise ValueError(f"discount must be in [0, 1], received {self.discount!r}")

    @property
    def reach(self) -> int:
        """How many steps after a position its targets look."""
        return self.num_unroll_steps + self.td_steps


def segments_per_stream(capacity: int, num_streams: int, segment_steps: int, windows: Windows) -> int:
    """How many segments of each stream a replay holds; refuses one in which nothing would ever be complete."""
    held = capacity // (num_streams * segment_steps)
    least = 1 + -(-windows.reach // segment_steps)
    if held < least:
        raise ValueError(
            f"a replay of {capacity} steps holds {held} segments of {segment_steps} steps of each of "
            f"{num_streams} environments; it needs at least {least * num_streams * segment_steps} steps: a "
            f"position looks {windows.reach} steps ahead (num_unroll_steps + td_steps)"
        )
    return held


def gather(
    rings: StreamRings, rows: np.ndarray, fill: np.ndarray, windows: Windows
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The fields of a window at each row [B], as in DrawnWindows, and the rows [H + 1, B] to bootstrap at (-1: none).

    `fill` [H, B] are actions, of which those before the end of the episode are written over.
    """
    kept, steps, size = rings.steps, windows.num_unroll_steps, len(rows)
    shape, num_actions = kept.obs.shape[1:], kept.policies.shape[1]
    draw = {
        "obs": np.zeros((steps + 1, size, *shape), kept.obs.dtype),
        "actions": fill,
        "rewards": np.zeros((steps, size), np.float32),
        "policies": np.zeros((steps + 1, size, num_actions), np.float32),
    }
    draw |= {
        name: np.zeros((steps + 1, size), np.float32) for name in ("returns", "factors", "root_values", "mask", "ended")
    }
    bootstraps = np.full((steps + 1, size), -1, np.int64)
    _gather(
        *(kept.obs.reshape(len(kept.obs), -1), kept.actions, kept.rewards, kept.flags, kept.to_play),
        *(kept.policies, kept.values, rows, rings.rows_per_stream, windows.td_steps, windows.discount),
        *(draw["obs"].reshape(steps + 1, size, -1), fill, draw["rewards"], draw["policies"], draw["returns"]),
        *(draw["factors"], draw["root_values"], draw["mask"], draw["ended"], bootstraps),
    )
    return draw, bootstraps


def complete_until(rings: StreamRings, stream: int, first: int, windows: Windows) -> int:
    """The first of the stream's rows from `first` on that is not complete, or their end."""
    base, end = stream * rings.rows_per_stream, rings.ends[stream] * rings.segment_steps
    return int(_complete_until(rings.steps.flags, base, rings.rows_per_stream, first, end, windows.reach))


@njit(cache=True, nogil=True)
def _complete_until(flags, base, ring, first, end, reach):
    """The first of the stream's rows in [first, end) that is not complete, or `end`."""
    for row in range(first, end):
        is_complete = row + reach < end
        for ahead in range(row, min(row + reach, end)):
            flag = flags[base + ahead % ring]
            if flag & TERMINATED:
                is_complete = True
                break
            if flag & TRUNCATED:  # the observation it was cut at is in the next row
                is_complete = ahead + 1 < end
                break
        if not is_complete:
            return row
    return end


@njit(cache=True, nogil=True)
def _gather(
    obs,
    actions,
    rewards,
    flags,
    to_play,
    policies,
    values,
    rows,
    ring,
    td_steps,
    discount,
    out_obs,
    out_actions,
    out_rewards,
    out_policies,
    out_returns,
    out_factors,
    out_root_values,
    out_mask,
    out_ended,
    out_bootstraps,
):
    """One window a row. Everything was zero; what lies past the end of an episode stays so, but for `out_ended`."""
    steps = out_rewards.shape[0]
    for b in range(rows.size):
        base = rows[b] // ring * ring
        begin = rows[b] - base
        for k in range(steps + 1):
            row = base + (begin + k) % ring
            out_mask[k, b] = 1.0
            for f in range(obs.shape[1]):
                out_obs[k, b, f] = obs[row, f]
            for a in range(policies.shape[1]):
                out_policies[k, b, a] = policies[row, a]
            if k < steps:
                out_actions[k, b] = actions[row]
                out_rewards[k, b] = rewards[row]
            # the n-step target of this step
            mover, total, weight = to_play[row], 0.0, 1.0
            last = row
            is_over = False
            for _ in range(td_steps):
                sign = 1.0 if to_play[last] == mover else -1.0
                total += weight * sign * rewards[last]
                weight *= discount
                flag = flags[last]
                last = base + (last - base + 1) % ring
                if flag & TERMINATED:
                    is_over = True
                    break
                if flag & TRUNCATED:
                    break
            out_returns[k, b] = total
            if not is_over:
                out_factors[k, b] = weight if to_play[last] == mover else -weight
                out_root_values[k, b] = values[last]
                out_bootstraps[k, b] = last
            if flags[row] & (TERMINATED | TRUNCATED):
                if flags[row] & TERMINATED:
                    for ahead in range(k + 1, steps + 1):
                        out_ended[ahead, b] = 1.0
                break
