"""Games played by search: what collector, replay, learner and reanalyzer hand to each other.

collector --GameSegment--> replay --DrawnWindows--> learner
                            ^  |
          SearchedTargets --+  +--OldTargets--> reanalyzer
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headway.replay.records import restore_fields

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class GameSegment:
    """T steps of N games with one version of the policy, a search for each step. The arrays are never written to."""

    obs: np.ndarray  # [T, N, ...]: bytes where the environment has bytes, pictures with channels first
    actions: npt.NDArray[np.int32]  # [T, N]
    rewards: Floats  # [T, N], of who acted
    terminated: Bools  # [T, N]: the episode ended, no value after it
    truncated: Bools  # [T, N]: the episode was cut, its last observation, in the next row, still has a value
    valid: Bools  # [T, N]: False where the step only reset a game and is no experience
    to_play: npt.NDArray[np.int8]  # [T, N]: who acted
    policies: Floats  # [T, N, A]: the search's policy
    values: Floats  # [T, N]: the search's root value, seen by who acted
    legal: Bools | None = None  # [T, N, A], where games have illegal actions
    stream: int  # number of its first game among those of all collectors
    serial: int  # how many segments its collector made before it
    priors: Floats | None = None  # [T, N, A]: what somebody else thought of the actions; a row of zeros: nothing
    prior_versions: npt.NDArray[np.int32] | None = None  # [T, N]: whose opinion that was; -1: nobody's

    def __setstate__(self, state: Sequence[object]) -> None:
        restore_fields(self, state)

    @property
    def num_steps(self) -> int:
        """How many of the T * N steps are experience."""
        return int(self.valid.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnWindows:
    """B positions that a replay drew, each with the H steps after it. What lies past the end of an episode is 0."""

    obs: np.ndarray  # [H + 1, B, ...]
    actions: Integers  # [H, B]; past the end any action
    rewards: Floats  # [H, B]
    policies: Floats  # [H + 1, B, A]
    returns: Floats  # [H + 1, B]: the discounted rewards of up to n steps
    factors: Floats  # [H + 1, B]: discount (and sign) of the value after them; 0 where the episode ended
    root_values: Floats  # [H + 1, B]: that value as the search saw it
    mask: Floats  # [H + 1, B]: 1 where the step belongs to the episode
    ended: Floats  # [H + 1, B]: 1 past a termination
    bootstrap_obs: np.ndarray | None = None  # [H + 1, B, ...]: where that value is; any, where the factor is 0
    ids: Integers  # [B], to be handed back with new priorities
    weights: Floats  # [B] importance weights
    versions: Integers  # [B]: whose policy acted
    target_versions: Integers  # [B]: whose search wrote policy and root value


@dataclass(frozen=True, slots=True, kw_only=True)
class OldTargets:
    """G whole segments of T steps whose targets are to be searched again."""

    ids: Integers  # [G], of the segments
    obs: np.ndarray  # [G, T, ...]
    actions: npt.NDArray[np.int32]  # [G, T]
    begins: Bools  # [G, T]: whether a row begins an episode, or is the first there is
    to_play: npt.NDArray[np.int8]  # [G, T]
    legal: Bools | None  # [G, T, A], where games have illegal actions
    round: int  # how many such records were handed out before
    priors: Floats | None = None  # [G, T, A]: the opinions that were stored with them

    def __setstate__(self, state: Sequence[object]) -> None:
        restore_fields(self, state)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedTargets:
    """What came of searching G segments of T steps again."""

    ids: Integers  # [G], as they were handed out
    policies: Floats  # [G, T, A]
    values: Floats  # [G, T]
    version: int  # whose search it was
