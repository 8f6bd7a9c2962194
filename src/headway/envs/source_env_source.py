"""An environment by its name, with everything that is put around it: what stands in the settings of a recipe.

    CartPole-v1                a registered Gymnasium environment
    my_package:Maze-v0         importing the module registers it
    my_envs.py:Maze            a class of your own, or a function that makes one, in a file
    my_package:Maze            the same in a module

    env(**env_kwargs) --> time_limit --> frame_skip --> wrappers, in order --> grey --> resize --> frame_stack

With `atari` a game of the Arcade Learning Environment is treated as they usually are (atari.py).

What travels to another process is this description: each process finds the class for itself. Modules are looked for in
the working directory too. Whatever a constructor raises is one line.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from headway.core.text_naming import unknown
from headway.core.text_one_line import in_a_line
from headway.core.types_opaque import SettingValue, UserFunction
from headway.envs import envpool_vector
from headway.envs.atari import NAMES as ATARI_NAMES
from headway.envs.atari import AtariOptions, is_atari
from headway.envs.atari_observation_wrappers import FrameSkip, Grey, Resize
from headway.envs.gymnasium_vector import (
    Backend,
    EnvVector,
    SingleEnv,
    choose_backend,
    has_own_vector,
    made_vector,
    registered,
)
from headway.runs.user_code_named_classes import anywhere, class_in, module_in, require_options

HOW = "a registered id, module:Id, module:Class or file.py:Class"


@dataclass(frozen=True, slots=True)
class EnvSource:
    """What makes copies of one environment, one at a time or many at once, in any process."""

    env: str
    kwargs: Mapping[str, SettingValue] = field(default_factory=dict)
    wrappers: tuple[str, ...] = ()
    time_limit: int | None = None
    frame_skip: int = 1
    frame_stack: int = 1
    grey: bool = False
    resize: tuple[int, int] | None = None
    atari: Literal["no", "learned", "measured"] = "no"
    """As one usually learns from Atari's games, an episode a life, or measures by them, whole games."""

    @property
    def is_as_it_comes(self) -> bool:
        """Whether nothing is put around it, so that its own vector of copies may be used."""
        return not (self.wrappers or self.grey or self.resize or self.frame_skip > 1 or self.frame_stack > 1)

    @property
    def has_own_vector(self) -> bool:
        """Whether its copies step together, as one array."""
        if self.env.startswith(ATARI_NAMES):  # whose vector is of the usual treatment, and not of the game as it comes
            return False
        return self.is_as_it_comes and not self._is_own and has_own_vector(self.env)

    @property
    def _is_own(self) -> bool:
        """Whether it is a class of the user's own rather than a registered name."""
        return ":" in self.env and isinstance(find(self.env), EnvSpec) is False

    @property
    def longest_episode(self) -> int | None:
        """Steps after which an episode is cut, where that is known without making one."""
        found = gym.registry.get(self.env)
        limit = found.max_episode_steps if self.time_limit is None and found is not None else self.time_limit
        return None if limit is None else -(-limit // self.frame_skip)

    def choose_backend(self) -> Backend:
        """What suits this environment on this machine: EnvPool knows neither wrappers nor our options."""
        if self.atari != "no" or self.env.startswith(ATARI_NAMES):
            return "gymnasium"
        is_plain = self.is_as_it_comes and not self.kwargs and self.time_limit is None
        return choose_backend(self.env) if is_plain and ":" not in self.env else "gymnasium"

    def check(self, backend: Backend = "gymnasium", *, one_by_one: bool = False) -> None:
        """Nothing, or one line that says why there is no such environment. It is not made for that."""
        if self.atari != "no":
            options = self._atari_options()
            if backend == "envpool":
                envpool_vector.refuse_unless_known(options.envpool_id)
                if self.wrappers or self.kwargs.keys() - {"repeat_action_probability"}:
                    raise ValueError("env_backend='envpool' takes no wrappers and no env_kwargs of ale-py")
                return
        if backend == "envpool":
            envpool_vector.refuse_unless_known(self.env)
            if not self.is_as_it_comes:
                raise ValueError(f"env_backend='envpool' takes no wrappers: {self._around()} needs 'gymnasium'")
            return
        found = find(self.env)
        if isinstance(found, EnvSpec):
            if found.entry_point is None and (one_by_one or not self.is_as_it_comes):
                raise ValueError(
                    f"environment {self.env!r} can only be made as a vector: it has no entry point for one copy"
                )
            if found.entry_point is not None and self.kwargs:
                given = {**found.kwargs, **self.kwargs}
                require_options(_creator(found), self.env, given, "environment")
        else:
            require_options(found, self.env, self.kwargs, "environment")
        for name in self.wrappers:
            find_wrapper(name)

    def make(self, render_mode: str | None = None) -> SingleEnv:
        """One copy, with everything around it; `render_mode` to look at it."""
        return self._make_of(None, render_mode)

    def single_maker(self) -> Callable[[], SingleEnv]:
        """What makes one copy, in any process: the entry of a plain name goes along, as nobody may register it there;
        a file or a module is loaded there."""
        return partial(self._make_of, None if ":" in self.env else registered(self.env))

    def _make_of(self, known: EnvSpec | None, render_mode: str | None = None) -> SingleEnv:
        try:
            return self._made(known or find(self.env), render_mode)
        except EnvRefused:
            raise
        except Exception as error:
            raise EnvRefused(f"environment {self.env!r} cannot be made: {in_a_line(error, 240)}") from error

    def vector(self, num_envs: int, backend: Backend = "gymnasium") -> EnvVector:
        """`num_envs` copies that step together."""
        if self.atari != "no" and not self.wrappers:
            options = self._atari_options()
            if backend == "envpool":
                return envpool_vector.EnvPoolVector(options.envpool_id, num_envs, **options.for_envpool())
            return made_vector(options.vector_spec, self.env, num_envs, **options.for_ale())
        limit = {} if self.time_limit is None else {"max_episode_steps": self.time_limit}
        if backend == "envpool":
            return envpool_vector.EnvPoolVector(self.env, num_envs, **self.kwargs, **limit)
        found = find(self.env)
        if isinstance(found, EnvSpec) and self.is_as_it_comes and not self.env.startswith(ATARI_NAMES):
            if self.time_limit is not None:
                found = copy.deepcopy(found)
                found.max_episode_steps = self.time_limit
            return made_vector(found, self.env, num_envs, **self.kwargs)
        return SyncVectorEnv([self.make] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)

    def _atari_options(self) -> AtariOptions:
        found = find(self.env)
        if not isinstance(found, EnvSpec) or not is_atari(found):
            raise EnvRefused(f"atari=True is for games of ale-py (ALE/Pong-v5), received {self.env!r}")
        height_width = (84, 84) if self.resize is None else self.resize
        return AtariOptions(
            found,
            dict(self.kwargs),
            frame_skip=self.frame_skip,
            frame_stack=self.frame_stack,
            size=height_width,
            grey=self.grey,
            is_per_life=self.atari == "learned",
            max_steps=self.time_limit,
        )

    def _made(self, found: EnvSpec | UserFunction, render_mode: str | None) -> SingleEnv:
        shown: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
        env: SingleEnv
        if self.atari != "no":
            env = self._atari_options().emulator(render_mode)
        elif isinstance(found, EnvSpec):
            env = gym.make(found, max_episode_steps=self.time_limit, **self.kwargs, **shown)
        else:
            env = found(**self.kwargs, **shown)
            if not isinstance(env, gym.Env):
                raise EnvRefused(f"{self.env} makes a {type(env).__name__}; allowed: a gymnasium.Env")
            if self.time_limit is not None:
                env = gym.wrappers.TimeLimit(env, self.time_limit)
        for space in ("observation_space", "action_space"):
            if not isinstance(getattr(env, space, None), gym.spaces.Space):
                raise EnvRefused(f"environment {self.env!r} has no {space}: set it in __init__ (gymnasium.spaces)")
        if self.frame_skip > 1:
            env = FrameSkip(env, self.frame_skip)
        if self.atari != "no":
            env = self._atari_options().learned_from(env)
        for name in self.wrappers:
            env = _wrapped(env, name)
        if self.grey and self.atari == "no":  # else the emulator has no colours already
            env = Grey(env)
        if self.resize is not None:
            env = Resize(env, *self.resize)
        if self.frame_stack > 1:
            before = "reset" if self.atari == "no" else "zero"  # as ale-py's own vector has it
            env = gym.wrappers.FrameStackObservation(env, self.frame_stack, padding_type=before)
        return env

    def _around(self) -> str:
        named = {"wrappers": self.wrappers, "grey": self.grey, "resize": self.resize}
        more = {"frame_skip": self.frame_skip > 1, "frame_stack": self.frame_stack > 1}
        return next(name for name, value in {**named, **more}.items() if value)


class EnvRefused(ValueError):
    """An environment that cannot be made. One line."""


def find(env: str) -> EnvSpec | UserFunction:
    """The registered entry of a name, or the class that a user's own name means; one line if there is neither."""
    place, colon, name = env.rpartition(":")
    if not colon:
        if env.endswith(".py"):
            raise ValueError(f"{env!r} names a file and no environment in it; allowed: {env}:Class")
        return registered(env)
    if place.endswith(".py"):
        module_in(anywhere(env).rpartition(":")[0], "environment")
        return gym.registry[name] if name in gym.registry else class_in(anywhere(env), "environment", HOW)
    try:
        return registered(env)
    except ValueError as error:
        if "cannot be registered" in str(error):
            raise
    return class_in(env, "environment", HOW)


def find_wrapper(name: str) -> UserFunction:
    """A wrapper by its name in gymnasium.wrappers, or a class of the user's own."""
    if ":" in name:
        return class_in(anywhere(name), "wrapper", "a name of gymnasium.wrappers, module:Class or file.py:Class")
    known = [one for one in gym.wrappers.__all__ if one[:1].isupper()]
    if name not in known:
        raise ValueError(f"{unknown('wrapper', name, known)}; or file.py:Class, module:Class")
    wrapper: UserFunction = getattr(gym.wrappers, name)
    return wrapper


def _wrapped(env: SingleEnv, name: str) -> SingleEnv:
    try:
        made: Any = find_wrapper(name)(env)
    except Exception as error:
        raise EnvRefused(f"wrapper {name!r} cannot be put around {env}: {in_a_line(error, 240)}") from error
    if not isinstance(made, gym.Env):
        raise EnvRefused(f"wrapper {name!r} makes a {type(made).__name__}; allowed: a gymnasium.Env")
    return made


def _creator(spec: EnvSpec) -> Callable[..., object]:
    entry: Any = spec.entry_point
    return gym.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
