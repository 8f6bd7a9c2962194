"""A game that cannot be won without remembering: what was shown at first is asked for at the end."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

DELAY = 4


class Recall(gym.Env[np.ndarray, np.int64]):
    """A sign, left or right, is seen on the first step alone. The last action of `delay` + 1 steps is rewarded with 1
    if it is that sign, else with -1: whoever remembers nothing has 0 on average.

    With `cut` an episode is truncated instead of ended; `uneven` ones differ in length.
    """

    def __init__(self, delay: int = DELAY, cut: bool = False, uneven: bool = False) -> None:
        self.observation_space = spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._delay, self._cut, self._uneven = delay, cut, uneven

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._sign = int(self.np_random.integers(2))
        self._last = self._delay + (int(self.np_random.integers(3)) if self._uneven else 0)
        self._step = 0
        return self._look(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
        is_over = self._step == self._last
        reward = (1.0 if int(action) == self._sign else -1.0) if is_over else 0.0
        self._step += 1
        return self._look(), reward, is_over and not self._cut, is_over and self._cut, {}

    def _look(self) -> np.ndarray:
        sign = (2.0 * self._sign - 1.0) if self._step == 0 else 0.0
        return np.array([sign, float(self._step == 0), float(self._step == self._last)], np.float32)


for kind, kwargs in {"": {}, "Cut": {"cut": True}, "Uneven": {"uneven": True}}.items():
    gym.register(f"Recall{kind}-v0", "recall_games:Recall", kwargs=kwargs)
