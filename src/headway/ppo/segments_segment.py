"""Fixed slices of many environments: what a collector hands to PPO, or to a replay and from there to PPO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headway.replay.records import arrays_of, restore_fields

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """T steps of N environments, all with one version of the policy. The arrays are never written to."""

    obs: np.ndarray  # [T + 1, N, ...] float32, uint8 for pictures of bytes; the last one is only for bootstrapping
    actions: np.ndarray  # [T, N, ...]
    log_probs: Floats  # [T, N], of the policy that acted
    rewards: Floats  # [T, N]
    terminated: Bools  # [T, N]: the episode ended, no value after it
    truncated: Bools  # [T, N]: the episode was cut, its last observation still has a value
    valid: Bools  # [T, N]: False where the step only reset an environment and is no experience
    masks: Bools | None = None  # [T, N, A]: which actions were legal, where some are not
    state: Floats | None = None  # [1, N, S]: what a policy with a memory remembered before the first step

    def __setstate__(self, state: Sequence[object]) -> None:
        restore_fields(self, state)

    @property
    def num_steps(self) -> int:
        """How many of the T * N steps are experience."""
        return int(self.valid.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnSegments(Segment):
    """B segments that a replay drew, side by side as if they were environments: N is B."""

    ids: Integers  # [B], to be handed back with new priorities
    weights: Floats  # [B]: each segment's own importance weight, at most 1; multiply losses by it, then average
    versions: Integers  # [B]: the version of the policy that made it


def side_by_side(segments: Sequence[Segment]) -> Segment:
    """One segment [T, N1 + N2 + ...] of several."""
    columns = [arrays_of(segment) for segment in segments]
    return Segment(**{name: np.concatenate([column[name] for column in columns], axis=1) for name in columns[0]})
