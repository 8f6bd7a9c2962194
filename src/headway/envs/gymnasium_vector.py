"""Any Gymnasium environment, many at once.

    auto --> a vector entry point of its own? ---------------> gymnasium: all copies in one call
             EnvPool is installed and knows the id? ---------> envpool: all copies in its threads
             otherwise --------------------------------------> gymnasium: a vector of copies

Copies start again by themselves on the step after they end (Gymnasium's "next step" mode): the observation that
ended an episode is seen, so that a truncated one can be bootstrapped from, and the step that only resets is marked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv

from headway.core.text_naming import unknown
from headway.core.text_one_line import first_line, in_a_line
from headway.envs.gymnasium_vector_brightness import BRIGHTEST
from headway.runs.user_code_user_functions import import_from_here

Backend = Literal["gymnasium", "envpool"]
Space = spaces.Space[Any]
SingleEnv = gym.Env[Any, Any]
EnvVector = VectorEnv[Any, Any, Any]
"""Copies of one environment, stepped together."""
Observations = Any
"""What environments see, as Gymnasium gives it: an array, or arrays by name or number where a space nests."""
Info = dict[str, Any]
"""What an environment says besides, by name."""
MAX_CHOICES = 1 << 16
"""Whole numbers in a Box are choices, up to this many: a network has an output for each."""
SMALLEST_SIDE = 10
"""Of a picture. What is smaller is a board."""


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
    is_bytes: bool = False
    """Observations are pictures of bytes, uint8 until a network divides them by 255. All others are float32."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of observations on their way from the environment to the network."""
        return np.dtype(np.uint8 if self.is_bytes else np.float32)


# -- by name ----------------------------------------------------------------------------------------


OTHER_NAMES = (
    "allowed: what gymnasium.pprint_registry() lists, package:Id where a package registers it, and a class of your "
    "own, file.py:Class or module:Class"
)


def registered(env_id: str) -> EnvSpec:
    """A registered environment; `module:id` first imports the module that registers it."""
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            import_from_here(module)
        except ModuleNotFoundError as error:
            raise ValueError(f"environment {env_id!r} cannot be registered: {error}") from None
        except Exception as error:
            raise ValueError(f"environment {env_id!r} cannot be registered: {in_a_line(error)}") from error
    _register_family(name)
    with suppress(gym.error.Error):
        return gym.spec(name)
    for one_of_a_family in FAMILIES:
        with suppress(ValueError):  # where it is not installed
            _register_family(one_of_a_family)
    if name not in gym.registry:
        raise ValueError(unknown("environment", name, gym.registry, others=OTHER_NAMES))
    return gym.spec(name)


FAMILIES = ("ALE/Pong-v5", "MinAtar/Breakout-v1")
"""Looked through before a name is refused: games have names without a family too, and may be what was meant."""


def _register_family(name: str) -> None:
    """Names that begin like this belong to a package, which registers them when it is asked to."""
    try:
        if name.startswith("headway/"):
            from headway.ppo.colorlines import register  # here: it needs numba, which the others do not

            register()
        elif name.startswith("ALE/") or "NoFrameskip-v" in name:
            from headway.envs import atari

            atari.register()
        elif name.startswith("MinAtar/") and name not in gym.registry:
            from minatar.gym import register_envs

            register_envs()
    except ModuleNotFoundError as error:
        extra = "minatar" if name.startswith("MinAtar/") else "atari"
        raise ValueError(f"environment {name!r} needs {error.name}: pip install 'headway[{extra}]'") from None


def choose_backend(env_id: str) -> Backend:
    """What suits this environment on this machine."""
    from headway.envs import envpool_vector

    return "envpool" if not has_own_vector(env_id) and envpool_vector.knows(env_id) else "gymnasium"


def refuse_unless_known(env_id: str, backend: Backend) -> None:
    """Nothing, or one line that says why this backend has no such environment."""
    from headway.envs import envpool_vector

    if backend == "envpool":
        envpool_vector.refuse_unless_known(env_id)
    else:
        registered(env_id)


def has_own_vector(env_id: str) -> bool:
    """Whether its copies step together, as one array."""
    try:
        return registered(env_id).vector_entry_point is not None
    except ValueError:  # Gymnasium does not know it: EnvPool may
        return False


def make_vector(env_id: str, num_envs: int, backend: Backend = "gymnasium", **kwargs: Any) -> EnvVector:
    """`num_envs` copies of an environment, by its registered id."""
    if backend == "envpool":
        from headway.envs.envpool_vector import EnvPoolVector

        return EnvPoolVector(env_id, num_envs, **kwargs)
    return made_vector(registered(env_id), env_id, num_envs, **kwargs)


def made_vector(spec: EnvSpec, env_id: str, num_envs: int, **kwargs: Any) -> EnvVector:
    """`num_envs` copies of a registered entry."""
    copies: dict[str, Any] = {"vectorization_mode": "vector_entry_point"}
    if spec.vector_entry_point is None:
        next_step = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        copies = {"vectorization_mode": "sync", "vector_kwargs": next_step}
    try:
        env = gym.make_vec(spec, num_envs, **copies, **kwargs)
    except (gym.error.Error, ImportError) as error:
        raise ValueError(f"environment {env_id!r} cannot be made: {first_line(error)}") from error
    except Exception as error:
        raise ValueError(f"environment {env_id!r} cannot be made: {in_a_line(error, 240)}") from error
    mode = env.metadata.get("autoreset_mode")
    if mode is not AutoresetMode.NEXT_STEP:
        raise ValueError(f"environment {env_id!r} starts episodes in mode {mode}; allowed: {AutoresetMode.NEXT_STEP}")
    return env


def single_maker(env_id: str) -> Callable[[], SingleEnv]:
    """What makes one copy, in any process: the registered entry goes along, so no registry is needed there."""
    spec = registered(env_id)
    if spec.entry_point is None:
        raise ValueError(f"environment {env_id!r} can only be made as a vector: it has no entry point for one copy")
    return partial(_make_single, spec)


def _make_single(spec: EnvSpec) -> SingleEnv:
    try:
        return gym.make(spec)
    except (gym.error.Error, ImportError) as error:
        raise ValueError(f"environment {spec.id!r} cannot be made: {first_line(error)}") from error
    except Exception as error:
        raise ValueError(f"environment {spec.id!r} cannot be made: {in_a_line(error, 240)}") from error


# -- what a policy sees and does --------------------------------------------------------------------


def describe(env: EnvVector) -> Spec:
    """The environment's spaces, if a policy here can serve them."""
    return describe_spaces(env.single_observation_space, env.single_action_space)


def describe_spaces(observation: Space, action: Space) -> Spec:
    """The same for the spaces of one copy."""
    return Spec(_observation(observation), _action(action), is_picture_of_bytes(observation))


def _observation(space: Space) -> tuple[int, ...]:
    """The shape of one observation's features."""
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return space.shape or (1,)
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete):
        return (int(space.nvec.sum()),)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return (sum(math.prod(_observation(member)) for _, member in _members(space)),)
    raise ValueError(
        f"observation space {space} is not supported; "
        "allowed: Box, Discrete, MultiBinary, MultiDiscrete, and Dict or Tuple of these"
    )


def is_bytes(space: Space) -> bool:
    """Whether an observation fits into bytes."""
    return isinstance(space, spaces.Box) and space.dtype == np.uint8


def reaches_255(space: Space) -> bool:
    """Whether these are brightnesses, which want to be divided by 255; numbers of colours, 0 and 1 are not."""
    return isinstance(space, spaces.Box) and bool(space.low.min() >= 0 and space.high.max() == 255)


def is_picture_of_bytes(space: Space) -> bool:
    """Whether it shows brightnesses, of whatever type, and enough of them beside each other to be no board and no
    vector."""
    return reaches_255(space) and len(space.shape or ()) > 1 and sorted(space.shape or ())[-2] >= SMALLEST_SIDE


def _members(space: spaces.Dict | spaces.Tuple) -> Iterator[tuple[str | int, Space]]:
    return iter(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))


def _action(space: Space) -> ActionSpec:
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiDiscrete(tuple(int(n) for n in space.nvec.reshape(-1)))
    if isinstance(space, spaces.MultiBinary):
        return MultiDiscrete((2,) * math.prod(space.shape))
    if isinstance(space, spaces.Box):
        low, high = space.low.reshape(-1), space.high.reshape(-1)
        if not np.issubdtype(space.dtype, np.integer):
            return Continuous(tuple(map(float, low)), tuple(map(float, high)))
        choices = tuple(int(most) - int(least) + 1 for least, most in zip(low, high, strict=True))
        if max(choices) <= MAX_CHOICES:
            return MultiDiscrete(choices)
    raise ValueError(f"action space {space} is not supported; allowed: Discrete, MultiDiscrete, MultiBinary, Box")


def as_features(observations: Observations, space: Space) -> np.ndarray:
    """Observations of N copies as float32 [N, ...]: one-hot where the environment counts, flat where it nests.

    A picture of bytes stays one, [N, ...] uint8, a quarter of the size. Among other things it is 0..1, flat like them.
    """
    if isinstance(space, spaces.Discrete):
        return np.eye(int(space.n), dtype=np.float32)[np.asarray(observations) - int(space.start)]
    if isinstance(space, spaces.MultiDiscrete):
        counts = (np.asarray(observations) - space.start).reshape(len(observations), -1)
        hot = [np.eye(n, dtype=np.float32)[counts[:, place]] for place, n in enumerate(space.nvec.reshape(-1))]
        return np.concatenate(hot, axis=1)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = [as_features(observations[name], member) for name, member in _members(space)]
        scale = np.float32(BRIGHTEST)
        numbers = [part.astype(np.float32) / scale if part.dtype == np.uint8 else part for part in parts]
        return np.concatenate([part.reshape(len(part), -1) for part in numbers], axis=1)
    if is_picture_of_bytes(space):
        rows = np.asarray(observations)
        rounded = np.rint(rows) if np.issubdtype(rows.dtype, np.floating) else rows
        return np.array(rounded, np.uint8)  # of its own: an environment may draw into the same array again
    features = np.asarray(observations, dtype=np.float32)
    return features if space.shape else features[:, None]


def as_features_of_one(observation: object, space: Space) -> np.ndarray:
    """The observation of one copy [...], the same numbers as in a vector of copies."""
    return as_features(_vector_of_one(observation, space), space)[0]


def _vector_of_one(observation: Observations, space: Space) -> Observations:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return {name: _vector_of_one(observation[name], member) for name, member in _members(space)}
    return np.asarray(observation, dtype=space.dtype)[None]


def wrong_shape(received: tuple[int, ...], expected: tuple[int, ...]) -> str:
    """What is wrong with an observation that is not of its space."""
    return f"received an observation of shape {received}; the observation space says {expected}"


def refuse_misfits(env: EnvVector) -> None:
    """After a step that failed: a line that names the copy whose observation is not of its space, if it is that."""
    space, expected = env.single_observation_space, describe(env).observation
    for index, observation in enumerate(getattr(env.unwrapped, "_env_obs", ())):
        received = as_features_of_one(observation, space).shape
        if received != expected:
            raise ValueError(f"environment {index}: {wrong_shape(received, expected)}")


def to_environment(actions: np.ndarray, action: ActionSpec, space: Space) -> np.ndarray:
    """Policy actions [N, ...] in the form the environment takes; continuous ones are clipped to its bounds."""
    if isinstance(action, Discrete):
        return actions + action.start if action.start else actions
    if isinstance(action, Continuous):
        actions = np.clip(actions, np.array(action.low, np.float32), np.array(action.high, np.float32))
    shaped = actions.reshape(len(actions), *(space.shape or ()))
    if isinstance(action, MultiDiscrete):
        shaped = shaped + first_choice(space)
    return shaped.astype(space.dtype)


def first_choice(space: Space) -> np.ndarray | int:
    """What the environment calls the first of each of several choices."""
    if isinstance(space, spaces.MultiDiscrete):
        return space.start
    return space.low if isinstance(space, spaces.Box) else 0


def legal_actions(info: Info, action: ActionSpec, ended: np.ndarray) -> np.ndarray | None:
    """The legal actions [N, A], where the environment says them (`action_mask` in its info).

    A copy that `ended` needs none: whatever is done next only starts it again.
    """
    mask = info.get("action_mask")
    if mask is None or isinstance(action, Continuous):
        return None
    choices = choices_of(action)
    legal = np.asarray(mask, bool).reshape(len(ended), -1)
    if legal.shape[1] != sum(choices):
        raise ValueError(f"an action mask needs an entry for each of {sum(choices)} actions, received {legal.shape[1]}")
    starts = np.cumsum((0, *choices[:-1]))
    empty = ~np.logical_or.reduceat(legal, starts, axis=1).all(axis=1)  # of any choice: nothing can be done then
    if np.any(empty):
        stuck = np.flatnonzero(empty & ~ended)
        if stuck.size:
            raise ValueError(f"environment {stuck[0]} has a mask with no legal action")
        legal = legal | empty.reshape(-1, 1)
    return legal


def choices_of(action: Discrete | MultiDiscrete) -> tuple[int, ...]:
    """How many actions there are to choose from, for each choice."""
    return (action.n,) if isinstance(action, Discrete) else action.choices
