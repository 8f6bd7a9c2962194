"""What is commonly done to an environment before it is learned from, without other packages.

    skip: every action N times       the environment's own time limit still counts its own steps
    grey: [H, W, 3] -> [H, W]        resize: [H, W, ...] -> [h, w, ...]        stack: [...] -> [N, ...], the newest last

Pictures are bytes, `[height, width]` or `[height, width, channels]`, and stay bytes.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

BRIGHTNESS_OF_COLOURS = np.array([0.299, 0.587, 0.114], np.float32)
"""Of red, green and blue, as eyes see them (ITU-R BT.601)."""

Info = dict[str, Any]
AnyEnv = gym.Env[Any, Any]
AnyWrapper = gym.Wrapper[Any, Any, Any, Any]


class FrameSkip(AnyWrapper):
    """Does every action `times` times: rewards are added up, and of pictures the brighter of the last two is seen."""

    def __init__(self, env: AnyEnv, times: int) -> None:
        super().__init__(env)
        self._times = times
        self._is_picture = is_picture(env.observation_space)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        total, last = 0.0, None
        for _ in range(self._times):
            before = last
            last, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        if self._is_picture and before is not None:
            last = np.maximum(before, last)
        return last, total, bool(terminated), bool(truncated), info


class Grey(gym.ObservationWrapper[Any, Any, Any]):
    """Pictures without colours."""

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        shape = _picture_shape(env, "grey")
        if len(shape) != 3 or shape[2] != 3:
            raise ValueError(f"grey needs pictures [height, width, 3], received {list(shape)}")
        self.observation_space = spaces.Box(0, 255, shape[:2], np.uint8)

    def observation(self, observation: Any) -> np.ndarray:
        return _as_bytes(np.asarray(observation, np.float32) @ BRIGHTNESS_OF_COLOURS)


class Resize(gym.ObservationWrapper[Any, Any, Any]):
    """Pictures of another size: each new point is the mean of the area that it covers."""

    def __init__(self, env: AnyEnv, height: int, width: int) -> None:
        super().__init__(env)
        shape = _picture_shape(env, "resize")
        if len(shape) not in (2, 3):
            raise ValueError(f"resize needs pictures [height, width, ...], received {list(shape)}")
        self.observation_space = spaces.Box(0, 255, (height, width, *shape[2:]), np.uint8)
        self._rows, self._columns = shares(shape[0], height), shares(shape[1], width)

    def observation(self, observation: Any) -> np.ndarray:
        picture = np.asarray(observation, np.float32)
        narrow = np.tensordot(self._rows, picture, (1, 0))  # [h, W, ...]
        small = np.tensordot(self._columns, narrow, (1, 1))  # [w, h, ...]
        return _as_bytes(np.moveaxis(small, 0, 1))


def shares(size: int, wanted: int) -> np.ndarray:
    """How much each of `size` old points has in each new one: [wanted, size], rows sum to 1."""
    if wanted < 1:
        raise ValueError(f"a picture needs at least one point a side, received {wanted!r}")
    edges = np.linspace(0, size, wanted + 1)
    low, high = edges[:-1, None], edges[1:, None]
    old = np.arange(size)[None]
    covered = np.clip(np.minimum(high, old + 1) - np.maximum(low, old), 0, None)
    return (covered / covered.sum(1, keepdims=True)).astype(np.float32)


def is_picture(space: spaces.Space[Any]) -> bool:
    """Whether observations are bytes with a height and a width."""
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) >= 2


def _picture_shape(env: AnyEnv, what: str) -> tuple[int, ...]:
    space = env.observation_space
    if not is_picture(space):
        raise ValueError(f"{what} needs pictures of bytes, received observations {space}")
    return tuple(space.shape or ())


def _as_bytes(picture: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(picture), 0, 255).astype(np.uint8)
