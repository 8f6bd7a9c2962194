"""Games of pictures: something lights up, and going there is rewarded."""

from __future__ import annotations

import threading
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

SIDE, STEPS = 32, 6


class Lights(gym.Env[np.ndarray, np.int64]):
    """A square lights up on the left or on the right.

    The same pictures in any layout: `last` [H, W, 3], `first` [3, H, W], `gray` [H, W]. `locked` is not pickled.
    """

    def __init__(self, layout: str = "last") -> None:
        self._lock = threading.Lock() if layout == "locked" else None
        layout = self._layout = "gray" if layout == "locked" else layout
        shape = {"last": (SIDE, SIDE, 3), "first": (3, SIDE, SIDE), "gray": (SIDE, SIDE), "frames": (2, SIDE, SIDE, 3)}
        self.observation_space = spaces.Box(0, 255, shape[layout], np.uint8)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._step = 0
        return self._look(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
        reward = float(action == self._lit)
        self._step += 1
        return self._look(), reward, self._step == STEPS, False, {}

    def _look(self) -> np.ndarray:
        self._lit = int(self.np_random.integers(2))
        picture = np.zeros((SIDE, SIDE, 3), np.uint8)
        picture[12:20, 4 + 16 * self._lit : 12 + 16 * self._lit] = (250, 120, 10 * self._step)
        if self._layout == "frames":
            return np.stack([picture] * 2)
        return (
            picture
            if self._layout == "last"
            else np.moveaxis(picture, 2, 0)
            if self._layout == "first"
            else picture[..., 0]
        )


class Spots(gym.Env[np.ndarray, np.int64]):
    """A dim spot in one of four corners of a bright picture, whose number is rewarded, 20 times: chance makes 5.

    The same pictures as `bytes` (0..255), as `floats` (0..1), or as bytes in a Dict `beside` a number.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        is_floats = kind == "floats"
        shape = (24, 24, 3)
        picture = spaces.Box(0, 1 if is_floats else 255, shape, np.float32 if is_floats else np.uint8)
        beside = spaces.Dict(picture=picture, number=spaces.Box(-1, 1, (1,)))
        self.observation_space: spaces.Space[Any] = beside if kind == "beside" else picture
        self.action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self._step = 0
        return self._look(), {}

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict]:
        reward = float(action == self._corner)
        self._step += 1
        return self._look(), reward, self._step == 20, False, {}

    def _look(self) -> Any:
        self._corner = int(self.np_random.integers(4))
        picture = self.np_random.integers(100, 140, (24, 24, 3)).astype(np.uint8)
        top, left = 14 * (self._corner // 2), 14 * (self._corner % 2)
        picture[top : top + 10, left : left + 10] += 100
        if self._kind == "beside":
            return {"picture": picture, "number": np.zeros(1, np.float32)}
        return picture if self._kind == "bytes" else picture.astype(np.float32) / np.float32(255)


for _kind in ("bytes", "floats", "beside"):
    gym.register(f"Spots-{_kind}-v0", entry_point="picture_games:Spots", kwargs={"kind": _kind})
for _layout in ("last", "first", "gray", "frames", "locked"):
    gym.register(f"Lights-{_layout}-v0", entry_point="picture_games:Lights", kwargs={"layout": _layout})
