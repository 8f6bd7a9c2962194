"""Any Gymnasium environment, many at once.

An environment with a vector entry point steps all copies in one call; otherwise it is copied. Copies start
again by themselves on the step after they end (Gymnasium's "next step" mode): the observation that ended an
episode is seen, so that a truncated one can be bootstrapped from, and the step that only resets is marked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from headway.core.naming import unknown


@dataclass(frozen=True, slots=True)
class Discrete:
    """One of `n` actions, numbered from `start`."""

    n: int
    start: int = 0


@dataclass(frozen=True, slots=True)
class MultiDiscrete:
    """Several independent choices at once."""

    choices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Continuous:
    """A vector between `low` and `high`."""

    low: tuple[float, ...]
    high: tuple[float, ...]


ActionSpec = Discrete | MultiDiscrete | Continuous


@dataclass(frozen=True, slots=True)
class Spec:
    """What a policy has to know about an environment."""

    observation: tuple[int, ...]
    action: ActionSpec


def make_vector(env_id: str, num_envs: int, **kwargs: Any) -> VectorEnv[Any, Any, Any]:
    """`num_envs` copies of an environment, by its registered id."""
    if env_id.startswith("headway/"):
        from headway.envs.colorlines import register  # here: it needs numba, which the others do not

        register()
    try:
        spec = gym.spec(env_id)
    except gym.error.Error:
        raise ValueError(unknown("environment", env_id, gym.registry)) from None
    if spec.vector_entry_point is not None:
        return gym.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point", **kwargs)
    return gym.make_vec(
        env_id,
        num_envs,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.NEXT_STEP},
        **kwargs,
    )


def describe(env: VectorEnv[Any, Any, Any]) -> Spec:
    """The environment's spaces, if a policy here can serve them."""
    return Spec(_observation(env.single_observation_space), _action(env.single_action_space))


def _observation(space: spaces.Space[Any]) -> tuple[int, ...]:
    if isinstance(space, spaces.Box):
        return space.shape
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    raise ValueError(f"observation space {space} is not supported; allowed: Box, Discrete")


def _action(space: spaces.Space[Any]) -> ActionSpec:
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiDiscrete(tuple(int(n) for n in space.nvec.reshape(-1)))
    if isinstance(space, spaces.Box):
        low, high = space.low.reshape(-1), space.high.reshape(-1)
        return Continuous(tuple(map(float, low)), tuple(map(float, high)))
    raise ValueError(f"action space {space} is not supported; allowed: Discrete, MultiDiscrete, Box")


def as_features(observations: np.ndarray, space: spaces.Space[Any]) -> np.ndarray:
    """Observations as float32 [N, ...]: one-hot where the environment counts states."""
    if isinstance(space, spaces.Discrete):
        return np.eye(int(space.n), dtype=np.float32)[np.asarray(observations) - int(space.start)]
    return np.asarray(observations, dtype=np.float32)


def to_environment(actions: np.ndarray, action: ActionSpec, space: spaces.Space[Any]) -> np.ndarray:
    """Policy actions in the form the environment takes; continuous ones are clipped to its bounds."""
    if isinstance(action, Discrete):
        return actions + action.start if action.start else actions
    if isinstance(action, Continuous):
        clipped = np.clip(actions, np.array(action.low, np.float32), np.array(action.high, np.float32))
        return clipped.reshape(len(actions), *(space.shape or ())).astype(space.dtype)
    return actions
