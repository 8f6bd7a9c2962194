"""Environments that wander, and some that do it badly. Light to import: every worker process does."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(4, start=1),
    "masked": spaces.Discrete(5),
    "several": spaces.MultiDiscrete([2, 3]),
    "continuous": spaces.Box(-0.5, 0.5, (2,)),
}


class Wanderer(gym.Env[Any, Any]):
    """Wanders where chance and its actions lead it; ends by chance, of its own accord or cut."""

    def __init__(self, kind: str = "discrete", flaw: str = "", slow_s: float = 0.0) -> None:
        self.observation_space = spaces.Dict(place=spaces.Box(-np.inf, np.inf, (3,)), mode=spaces.Discrete(2))
        self.action_space = ACTIONS[kind]
        self._kind, self._flaw, self._slow_s = kind, flaw, slow_s
        self._place = np.zeros(3)
        self._count = 0

    def _look(self) -> tuple[dict[str, Any], dict[str, Any]]:
        seen = {"place": self._place.astype(np.float32), "mode": self._count % 2}
        if self._kind != "masked":
            return seen, {}
        legal = self.np_random.random(5) < 0.5
        legal[self.np_random.integers(5)] = True
        if self._flaw == "empty mask" and self._count == 2:
            legal[:] = False
        return seen, {"action_mask": (legal if self._flaw != "short mask" else legal[:3]).astype(np.int8)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self._place = self.np_random.normal(size=3)
        self._count = 0
        return self._look()

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self._count += 1
        if self._slow_s:
            time.sleep(self._slow_s * float(self.np_random.exponential()))
        if self._flaw == "raises" and self._count == 2:
            raise ConnectionError("the simulator hung up")
        self._place = 0.9 * self._place + np.sum(action) / 5 + self.np_random.normal(size=3) / 3
        if self._flaw == "nan" and self._count == 2:
            self._place[:] = np.nan
        if self._flaw == "narrow" and self._count == 2:
            self._place = self._place[:1]
        fate = self.np_random.random()
        terminated, truncated = fate < 0.1, 0.1 <= fate < 0.2
        seen, info = self._look()
        if terminated and self._kind == "masked" and self._flaw == "":
            info["action_mask"][:] = 0  # where a game is over there is nothing to do
        return seen, float(self._place[0]), terminated, truncated, info


class Broken(Wanderer):
    """Cannot be built."""

    def __init__(self) -> None:
        raise OSError("no display")


class Hanging(Wanderer):
    """The environment that began with an odd seed hangs on its second step, in a loop that nothing interrupts."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self._hangs = seed % 2 == 1
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        while self._hangs and self._count == 1:
            pass
        return super().step(action)


class Unpicklable(Wanderer):
    """Holds what cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self._handle = (step for step in range(3))


class Mortal(Wanderer):
    """Takes its process down on its fifth step, once in a test."""

    def __init__(self, grave: str) -> None:
        super().__init__()
        self._grave = Path(grave)

    def step(self, action: Any) -> Any:
        if self._count == 4 and not self._grave.exists():
            self._grave.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)
