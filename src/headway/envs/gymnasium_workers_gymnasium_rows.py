"""What the process of a collector and the workers of its environments share: a row of numbers for each environment.

      collector's process                          worker
      actions[2] = ...        ---- 2 ------------>  step 2
      obs[2], rewards[2] ...  <--- 2 -------------  has written them

The rows lie in anonymous memory (runtimes/child_process_memory.py). A row belongs to the worker from the question to
its answer, and
to the collector otherwise.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.envs.gymnasium_vector import Continuous, SingleEnv, Space, Spec, choices_of, describe_spaces

ALIGNMENT = 64
START, READY, RESET, STEP, ARRIVED, RAISED, SAVE, SAVED, LOAD = range(9)
"""The first byte of a frame says what it is."""

MakeEnv = Callable[[], SingleEnv]


@dataclass(frozen=True)
class EnvShape:
    """What the environments are like: enough to lay out their rows."""

    num_envs: int
    observation_space: Space
    action_space: Space

    @property
    def spec(self) -> Spec:
        return describe_spaces(self.observation_space, self.action_space)

    @property
    def num_choices(self) -> int:
        """Entries of an action mask."""
        action = self.spec.action
        return 0 if isinstance(action, Continuous) else sum(choices_of(action))

    def fields(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Type and shape of each field of a row."""
        action = self.action_space
        return {
            "obs": (self.spec.dtype, self.spec.observation),
            "rewards": (np.dtype(np.float64), ()),
            "terminated": (np.dtype(bool), ()),
            "truncated": (np.dtype(bool), ()),
            "masks": (np.dtype(bool), (self.num_choices,)),
            "has_mask": (np.dtype(bool), ()),
            "actions": (np.dtype(action.dtype), tuple(action.shape or ())),
        }


class EnvRows:
    """What each environment saw last, and what it is to do next, [N, ...] each."""

    obs: np.ndarray  # [N, ...] float32, uint8 if they are pictures of bytes
    rewards: np.ndarray  # [N] float64
    terminated: np.ndarray  # [N]
    truncated: np.ndarray  # [N]
    masks: np.ndarray  # [N, A]
    has_mask: np.ndarray  # [N]
    actions: np.ndarray  # [N, ...]

    def __init__(self, shape: EnvShape, memory: mmap.mmap | bytearray | None = None) -> None:
        start = 0
        memory = bytearray(self.size_of(shape)) if memory is None else memory
        for name, (dtype, rest) in shape.fields().items():
            array = np.ndarray((shape.num_envs, *rest), dtype, memory, start)
            setattr(self, name, array)
            start += _aligned(array.nbytes)

    @staticmethod
    def size_of(shape: EnvShape) -> int:
        sizes = (dtype.itemsize * int(np.prod(rest)) for dtype, rest in shape.fields().values())
        return sum(_aligned(shape.num_envs * size) for size in sizes)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
