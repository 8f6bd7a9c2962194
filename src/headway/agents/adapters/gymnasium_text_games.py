"""Environments of Gymnasium (`pip install gymnasium`) that speak in text: `gymnasium:FrozenLake-v1`.

    reset(seed) -> observation, info       step(action) -> observation, reward, terminated, truncated, info

| what it has | how it is shown, what a reply is |
|---|---|
| observations in a `Text` space | as they are |
| a picture in characters (`render_mode="ansi"`) | the picture; where we are stands in brackets: S[F]FF |
| other observations | as Python prints them |
| actions in a `Text` space | the reply, if the space contains it |
| actions in a `Discrete` space | the first name of an action, or the first number, in the reply |
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import gymnasium

from headway.agents.adapters import DEFAULT_TURNS, numbers_of, require_begun, small_seed, something
from headway.agents.env import BadEnvironment, Step
from headway.core.text_one_line import first_line
from headway.core.types_opaque import SettingValue

ACTION_NAMES = {
    "Blackjack": ("stick", "hit"),
    "CliffWalking": ("up", "right", "down", "left"),
    "CliffWalkingSlippery": ("up", "right", "down", "left"),
    "FrozenLake": ("left", "down", "right", "up"),
    "FrozenLake8x8": ("left", "down", "right", "up"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
}
"""What the numbers of actions mean, for environments that come with Gymnasium."""
_HERE = re.compile(r"\x1b\[(?:4[0-7])m(.*?)\x1b\[0m")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_WORDS = re.compile(r"[\w-]+")


class GymnasiumGame:
    """Plays one environment of Gymnasium in words. A reply that is no action costs a turn and is told so."""

    def __init__(self, env: Any, action_names: Sequence[str], instructions: str) -> None:
        self._env = env
        self._name = env.spec.id
        self._names = [name.lower() for name in action_names]
        self._instructions = instructions
        self.max_turns = int(env.spec.max_episode_steps or DEFAULT_TURNS)
        self._bad_replies = 0
        self._is_over = True

    def reset(self, seed: int) -> str:
        observation, _ = self._env.reset(seed=small_seed(seed))
        self._is_over, self._bad_replies = False, 0
        return f"{self._seen(observation)}\n{self._how()}"

    def step(self, reply: str) -> Step:
        require_begun(self._is_over, self._name)
        action = self._action(reply)
        if action is None:
            self._bad_replies += 1
            return Step(f"This is no action. {self._how()}", info={"bad_replies": float(self._bad_replies)})
        observation, reward, terminated, truncated, info = self._env.step(action)
        self._is_over = bool(terminated or truncated)
        measured = {**numbers_of(info), "bad_replies": float(self._bad_replies)}
        if self._is_over:
            measured["truncated"] = float(truncated and not terminated)
        return Step(self._seen(observation), float(reward), self._is_over, info=measured)

    def random_reply(self, rng: random.Random) -> str:
        if self._names:
            return rng.choice(self._names)
        space = self._env.action_space
        space.seed(rng.getrandbits(31))
        return str(space.sample())

    def close(self) -> None:
        self._env.close()

    def _action(self, reply: str) -> Any:
        space = self._env.action_space
        if isinstance(space, gymnasium.spaces.Text):
            text = reply.strip()
            return text if space.contains(text) else None
        for word in _WORDS.findall(reply.lower()):
            if word in self._names:
                return int(space.start) + self._names.index(word)
            if re.fullmatch(r"-?\d{1,9}", word) and space.contains(int(word)):
                return int(word)
        return None

    def _how(self) -> str:
        if self._instructions:
            return self._instructions
        space = self._env.action_space
        if isinstance(space, gymnasium.spaces.Text):
            return f"Reply with a text of {space.min_length} to {space.max_length} characters."
        if self._names:
            return f"Reply with one of: {', '.join(self._names)}."
        return f"Reply with a whole number from {space.start} to {space.start + space.n - 1}."

    def _seen(self, observation: object) -> str:
        if isinstance(observation, str):
            return something(observation)
        if self._env.render_mode == "ansi":
            return _COLOUR.sub("", _HERE.sub(r"[\1]", self._env.render())).strip("\n")
        return str(observation.tolist() if hasattr(observation, "tolist") else observation)


def make(
    id: str, *, action_names: Sequence[str] = (), instructions: str = "", **options: SettingValue
) -> GymnasiumGame:
    """`FrozenLake-v1`; further options are those of the environment (`is_slippery=false`).

    :param action_names: what the numbers of a Discrete action space are called, from the first one on
    :param instructions: what a policy is told instead of "Reply with one of: ..."
    """
    try:
        spec = gymnasium.spec(id)
    except gymnasium.error.Error as error:
        raise BadEnvironment(f"gymnasium:{id}: {first_line(error)}") from None
    plain = gymnasium.make(id, **options)
    if "ansi" in plain.metadata.get("render_modes", ()) and "render_mode" not in options:
        plain.close()
        plain = gymnasium.make(id, render_mode="ansi", **options)
    space = plain.action_space
    if not isinstance(space, (gymnasium.spaces.Text, gymnasium.spaces.Discrete)):
        plain.close()
        raise BadEnvironment(f"gymnasium:{id} has actions of {space}; allowed: Text and Discrete")
    names = action_names or ACTION_NAMES.get(str(spec.name), ())
    if names and (not isinstance(space, gymnasium.spaces.Discrete) or len(names) != space.n):
        plain.close()
        raise BadEnvironment(f"gymnasium:{id} has actions of {space}, and {len(names)} names are given for them")
    return GymnasiumGame(plain, names, instructions)
