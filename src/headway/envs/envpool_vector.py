"""Environments of EnvPool: many copies, stepped in its own threads, in its own C++.

EnvPool starts episodes as we do (on the step after the end, with a reward of 0). What differs is put right here:

    seeds        fixed when a pool is built: reset(seed=...) builds a new one
    masks        `legal_action_mask` in the info, or `action_mask` in the observation
    bounds       none are said as the least and the largest number of the type
    ends         an episode that ends by itself on its very last step counts as cut, as EnvPool says it
    pickling     not possible: a restarted collector begins new episodes

The environment of one name is not the same program as Gymnasium's: details of its observations may differ.
"""

from __future__ import annotations

import importlib.util
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from headway.core.text_naming import unknown
from headway.envs.gymnasium_vector import EnvVector, Info, Space

_FILTERS = threading.Lock()  # the filters of warnings belong to the process


def is_installed() -> bool:
    return importlib.util.find_spec("envpool") is not None


def knows(env_id: str) -> bool:
    """Whether EnvPool is installed and has this environment."""
    if not is_installed():
        return False
    import envpool

    return env_id in envpool.list_all_envs()


def is_game_of_atari(env_id: str) -> bool:
    """Whether it is one of EnvPool's games of the Arcade Learning Environment."""
    if not knows(env_id):
        return False
    import envpool

    with _quiet():
        return hasattr(envpool.make_spec(env_id).config, "episodic_life")


def refuse_unless_known(env_id: str) -> None:
    """Nothing, or one line that says why EnvPool cannot serve this environment."""
    if not is_installed():
        raise ValueError("env_backend='envpool' needs EnvPool: pip install 'headway[envpool]'")
    if not knows(env_id):
        import envpool

        nearest = unknown("EnvPool environment", env_id, envpool.list_all_envs())
        raise ValueError(nearest.partition(" allowed: ")[0] + " envpool.list_all_envs() names them all")


class EnvPoolVector(EnvVector):
    """`num_envs` copies of one of EnvPool's environments.

    :param options: of the environment, as EnvPool calls them (`max_episode_steps`, `frame_skip`, `num_threads`, ...)
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012  (Gymnasium's own convention)

    def __init__(self, env_id: str, num_envs: int, **options: object) -> None:
        import envpool

        refuse_unless_known(env_id)
        self.num_envs = num_envs
        self._env_id, self._options = env_id, options
        self._pool: Any = None
        try:
            with _quiet():
                spec = envpool.make_spec(env_id, num_envs=num_envs, **options)
                self.single_observation_space = _with_true_bounds(spec.observation_space)
                self.single_action_space = spec.action_space
        except (ImportError, TypeError) as error:  # a system library is missing, or the option unknown
            raise ValueError(
                f"environment {env_id!r} cannot be made by EnvPool: {str(error).splitlines()[0]}"
            ) from error
        if spec.config.max_num_players > 1:
            raise ValueError(f"environment {env_id!r} of EnvPool has several players; allowed: environments with one")
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, object] | None = None
    ) -> tuple[Any, Info]:
        import envpool

        if isinstance(seed, list):
            raise ValueError("EnvPool takes one seed: copy i gets seed + i")
        if self._pool is None or seed is not None:
            if seed is None:
                seed = int(np.random.default_rng().integers(2**31))
            self._pool = envpool.make_gymnasium(
                self._env_id, num_envs=self.num_envs, seed=seed % (2**31 - self.num_envs), **self._options
            )
        with _quiet():  # its spaces are built on the first look
            obs, info = self._pool.reset()
        return obs, self._seen(obs, info)

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, Info]:
        obs, rewards, terminated, truncated, info = self._pool.step(actions)
        return obs, rewards.astype(np.float64), terminated, truncated, self._seen(obs, info)

    def close(self, **kwargs: object) -> None:
        self._pool = None  # its threads end with it

    def __reduce__(self) -> NoReturn:
        raise TypeError("environments of EnvPool live in its threads: they cannot be pickled")

    def _seen(self, obs: object, info: Info) -> Info:
        mask = info.get("legal_action_mask", obs.get("action_mask") if isinstance(obs, dict) else None)
        if mask is not None:
            info["action_mask"] = mask
        return info


def _with_true_bounds(space: Space) -> Space:
    """Observations for which EnvPool has no bounds, with the least positive and the largest number of their type."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: _with_true_bounds(member) for name, member in space.items()})
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        return space
    limits = np.finfo(space.dtype)
    low = np.where(np.isin(space.low, (limits.tiny, limits.min)), -np.inf, space.low)
    high = np.where(space.high == limits.max, np.inf, space.high)
    return spaces.Box(low.astype(space.dtype), high.astype(space.dtype), dtype=space.dtype)


@contextmanager
def _quiet() -> Iterator[None]:
    """EnvPool gives Gymnasium's spaces bounds of another precision, of which Gymnasium warns every time."""
    with _FILTERS, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*precision lowered by casting", category=UserWarning)
        yield
