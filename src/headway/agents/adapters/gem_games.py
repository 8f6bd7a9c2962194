"""Environments of GEM (`pip install gem-llm`): `gem:game:GuessTheNumber-v0-easy`, `gem:rg:base_conversion`.

    reset(seed) -> observation, info           step(action) -> observation, reward, terminated, truncated, info

Every observation is new text; what GEM wants repeated under each of them (`suffix`) is. GEM seeds the global random
generators of Python and NumPy, so its games are stepped in processes.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import gem
from gem.envs.registration import ENV_REGISTRY
from gem.utils.constants import TERMINAL_STATE

from headway.agents.adapters import (
    drawn_apart,
    no_word_list,
    numbers_of,
    require_begun,
    require_known,
    small_seed,
    something,
)
from headway.agents.env import Step
from headway.core.types_opaque import SettingValue

RANDOM_TURNS = 100
"""For games whose size, and so whose number of turns, is drawn at each reset; they end by themselves before that."""


class GemGame:
    """Plays one environment of GEM. Its last observation may be a mark of GEM's own, which is not shown."""

    seeds_globally = True

    def __init__(self, name: str, env: Any) -> None:
        self._name = name
        self._env = env
        own = getattr(env, "max_turns", None)
        self.max_turns = RANDOM_TURNS if name.endswith("-random") else int(own or 1)
        self._is_over = True

    def reset(self, seed: int) -> str:
        observation, info = self._env.reset(seed=small_seed(seed))
        self._is_over = False
        return _with_suffix(observation, info)

    def step(self, reply: str) -> Step:
        require_begun(self._is_over, self._name)
        observation, reward, terminated, truncated, info = self._env.step(reply)
        done = bool(terminated or truncated)
        self._is_over = done
        if not done:
            return Step(_with_suffix(observation, info), float(reward))
        text = "" if observation == TERMINAL_STATE else str(observation)
        return Step(text, float(reward), True, info={**numbers_of(info), "truncated": float(truncated)})


class GemGameWithRandomPlayer(GemGame):
    """Plays one environment of GEM that knows which actions there are; not all of them do."""

    def random_reply(self, rng: random.Random) -> str:
        return drawn_apart(self._env.sample_random_action, rng)


def make(id: str, **options: SettingValue) -> GemGame:
    """`game:GuessTheNumber-v0-easy`; the options are those of the environment in GEM."""
    require_known("GEM", id, ENV_REGISTRY)
    try:
        env = gem.make(id, **options)
    except LookupError as error:
        raise no_word_list(f"gem:{id}", error) from error
    has_player = type(env).sample_random_action is not gem.Env.sample_random_action
    return (GemGameWithRandomPlayer if has_player else GemGame)(id, env)


def _with_suffix(observation: object, info: Mapping[str, object]) -> str:
    parts = str(observation).strip(), str(info.get("suffix", "")).strip()
    return something("\n".join(part for part in parts if part))
