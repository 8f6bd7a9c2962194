"""A trained policy as something to act with: observations in, actions out, as the environment speaks.

    observation --> features --> [what it remembers of the episode] --> the most likely action, or one drawn --> action

One observation or several at once: what has one axis more than the space is a batch, and gets a batch of actions.
Scaling of observations, where it was learned, is part of the network. A policy that remembers does so by itself:
`reset()` begins an episode. Not for two threads at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from gymnasium import spaces
from torch import nn

from headway.envs.gymnasium_vector import (
    Continuous,
    Info,
    Observations,
    SingleEnv,
    Space,
    Spec,
    as_features,
    choices_of,
    to_environment,
)
from headway.envs.policy_network_files import Deployable, write_network
from headway.runs.recipes_facts import Facts

Action = Any
"""As the environment takes it: a number of a choice, or an array."""


class Player(Protocol):
    """Acts for several observations at once, with the weights it has."""

    def best(self, obs: np.ndarray, mask: np.ndarray | None, /) -> np.ndarray:
        """The most likely actions [N, ...] for observations [N, ...], of those that `mask` [N, A] allows."""
        ...

    def drawn(self, obs: np.ndarray, mask: np.ndarray | None, seed: int, /) -> np.ndarray:
        """Actions by the policy's own chances."""
        ...


@runtime_checkable
class RemembersEpisodes(Protocol):
    """A player that is told where episodes begin."""

    def forget(self, begins: np.ndarray, /) -> None: ...


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """What an episode came to."""

    total: float
    steps: int
    is_cut: bool = False
    """It had not ended after as many steps as were allowed."""


class EnvPolicy:
    """A policy with its weights. `network` is the torch module that computes it."""

    def __init__(
        self,
        facts: Facts,
        player: Player,
        network: nn.Module,
        spec: Spec,
        observation_space: Space,
        action_space: Space,
        *,
        make_env: Callable[[str | None], SingleEnv] | None = None,
        see: Callable[[Any, Any], np.ndarray] = as_features,
        deployable: Deployable | str = "its network cannot be written for others",
        seed: int = 0,
    ) -> None:
        self.facts = facts
        self.network = network
        self.observation_space = observation_space
        self.action_space = action_space
        self._player, self._spec, self._see = player, spec, see
        self._make_env = make_env
        self._deployable = deployable
        self._random = np.random.default_rng(seed)
        self._num_rows = 0  # whose episodes it remembers; 0: of none
        self._begins: np.ndarray | None = None  # where episodes begin with what is seen next

    def __repr__(self) -> str:
        return f"<policy of {self.facts}: {self.observation_space} -> {self.action_space}>"

    # -- acting -------------------------------------------------------------------------------------

    def act(self, observation: Observations, *, mask: np.ndarray | None = None, deterministic: bool = True) -> Action:
        """The action for an observation, or the actions for a batch of them; `mask` says which are legal.

        With `deterministic=False` it is drawn by the policy's own chances, by the lot that `seed` has set.
        """
        is_batch = _is_batch(observation, self.observation_space)
        rows = observation if is_batch else _batch_of_one(observation, self.observation_space)
        features = self._see(rows, self.observation_space)
        legal = None if mask is None else self._legal(mask, len(features))
        self._say_where_episodes_begin(len(features))
        if deterministic:
            chosen = self._player.best(features, legal)
        else:
            chosen = self._player.drawn(features, legal, int(self._random.integers(2**62)))
        actions = to_environment(chosen, self._spec.action, self.action_space)
        return actions if is_batch else actions[0]

    def predict(
        self,
        observation: Observations,
        state: None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        *,
        action_masks: np.ndarray | None = None,
    ) -> tuple[Action, None]:
        """The same as Stable-Baselines3 calls it: the action, and a state, which is kept here and therefore None."""
        if state is not None:
            raise ValueError(f"a policy of Headway keeps its state itself: state must be None, received {state!r}")
        if episode_start is not None:
            self._begins = np.atleast_1d(np.asarray(episode_start, bool))
        return self.act(observation, mask=action_masks, deterministic=deterministic), None

    def reset(self) -> None:
        """What is seen next begins an episode: what was remembered is forgotten."""
        self._num_rows = 0

    def seed(self, seed: int) -> None:
        """Actions that are drawn depend on this from now on."""
        self._random = np.random.default_rng(seed)

    # -- in its environment -------------------------------------------------------------------------

    def make_env(self, render_mode: str | None = None) -> SingleEnv:
        """The environment that it was trained in, wrappers included."""
        if self._make_env is None:
            raise ValueError(f"{self.facts.env} is no Gymnasium environment that could be made here")
        return self._make_env(render_mode)

    def play(
        self,
        episodes: int = 1,
        *,
        env: SingleEnv | None = None,
        seed: int = 0,
        max_steps: int = 100_000,
        deterministic: bool = True,
        on_step: Callable[[SingleEnv], None] | None = None,
    ) -> list[PlayedEpisode]:
        """Plays whole episodes, the first from `seed` on; `on_step` is called with the environment before each step and
        after the last one."""
        own = self.make_env() if env is None else env
        try:
            return [self._episode(own, seed + number, max_steps, deterministic, on_step) for number in range(episodes)]
        finally:
            if env is None:
                own.close()

    def _episode(
        self,
        env: SingleEnv,
        seed: int,
        max_steps: int,
        deterministic: bool,
        on_step: Callable[[SingleEnv], None] | None,
    ) -> PlayedEpisode:
        observation, info = env.reset(seed=seed)
        self.reset()
        total, is_over, steps = 0.0, False, 0
        while not is_over and steps < max_steps:
            if on_step is not None:
                on_step(env)
            action = self.act(observation, mask=_mask(info), deterministic=deterministic)
            observation, reward, terminated, truncated, info = env.step(action)
            total, steps, is_over = total + float(reward), steps + 1, bool(terminated or truncated)
        if on_step is not None:
            on_step(env)
        return PlayedEpisode(total, steps, is_cut=not is_over)

    # -- for other programs -------------------------------------------------------------------------

    def export(self, to: str | Path) -> Path:
        """Writes the policy without Headway: FILE.onnx (ONNX), FILE.pt2 (torch.export) or FILE.pt (TorchScript).

        It takes what `features` makes of observations, [B, ...]: float32, of pictures uint8, choices one-hot and nested
        spaces flat. It gives the most likely actions, and what they were chosen by. With a memory it takes a `state`
        too, [B, S], zeros where an episode begins, and gives the `next_state`.
        """
        if isinstance(self._deployable, str):
            raise ValueError(f"{self.facts.recipe}: {self._deployable}")
        return write_network(self._deployable, Path(to))

    def features(self, observations: Observations) -> np.ndarray:
        """What the network is given for a batch of observations."""
        return self._see(observations, self.observation_space)

    # -- inside -------------------------------------------------------------------------------------

    def _say_where_episodes_begin(self, num_rows: int) -> None:
        """Tells a player that remembers: in all rows if there are others than before."""
        begins, self._begins = self._begins, None
        if isinstance(self._player, RemembersEpisodes):
            if num_rows != self._num_rows:
                begins = np.ones(num_rows, bool)
            self._player.forget(np.zeros(num_rows, bool) if begins is None else begins)
        self._num_rows = num_rows

    def _legal(self, mask: np.ndarray, num_rows: int) -> np.ndarray:
        if isinstance(self._spec.action, Continuous):
            raise ValueError("a mask needs actions to choose from, received one for continuous actions")
        legal = np.asarray(mask, bool).reshape(num_rows, -1)
        choices = choices_of(self._spec.action)
        if legal.shape[1] != sum(choices):
            raise ValueError(f"a mask needs an entry for each of {sum(choices)} actions, received {legal.shape[1]}")
        return legal


def _mask(info: Info) -> np.ndarray | None:
    return info.get("action_mask")


def _is_batch(observation: Observations, space: Space) -> bool:
    """Says whether these are several observations; what is neither one nor several is refused."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        name, member = _first_member(space)
        try:
            return _is_batch(observation[name], member)
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"an observation of {space} was expected, received {_shown(observation)}") from None
    wanted, received = tuple(space.shape or ()), np.shape(observation)
    if received == wanted:
        return False
    if received[1:] == wanted and len(received) == len(wanted) + 1:
        return True
    batch = ", ".join(["batch", *map(str, wanted)])
    raise ValueError(f"observations have the shape {list(wanted)}, or [{batch}], received {list(received)}")


def _first_member(space: spaces.Dict | spaces.Tuple) -> tuple[str | int, Space]:
    members: Sequence[tuple[str | int, Space]]
    members = list(space.spaces.items()) if isinstance(space, spaces.Dict) else list(enumerate(space.spaces))
    return members[0]


def _shown(observation: object) -> str:
    return type(observation).__name__


def _batch_of_one(observation: Observations, space: Space) -> Observations:
    if isinstance(space, spaces.Dict):
        return {name: _batch_of_one(observation[name], member) for name, member in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_batch_of_one(observation[place], member) for place, member in enumerate(space.spaces))
    return np.asarray(observation, dtype=space.dtype)[None]
