"""An environment that raises now and then, by a chance that is part of its own state."""

from __future__ import annotations

import threading
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Stumbling(gym.Env[np.ndarray, np.int64]):
    """Episodes of 12 steps; one step in 30 raises. With the same state it raises at the same step again."""

    def __init__(self, is_picklable: bool = True) -> None:
        self._lock = None if is_picklable else threading.Lock()
        self.observation_space = spaces.Box(-1, 1, (2,))
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._step = 0
        return self._look(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self.np_random.random() < 1 / 30:
            raise RuntimeError("stumbled")
        self._step += 1
        return self._look(), float(action), self._step == 12, False, {}

    def _look(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


gym.register("Stumbling-v0", entry_point="failing_envs:Stumbling")
gym.register("StumblingLocked-v0", entry_point="failing_envs:Stumbling", kwargs={"is_picklable": False})
