"""Environments of SkyRL-Gym (`pip install skyrl-gym`): `skyrl:gsm8k`, with a file of rows.

    init(prompt) -> messages, info          step(action) -> {observations: messages, reward, done, metadata}

An environment of SkyRL-Gym is made for one row of a data set: `prompt` (messages), `reward_spec` (what is right), and
whatever else it reads. The seed chooses the row.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import skyrl_gym
from skyrl_gym.envs.registration import registry

from headway.agents.adapters import numbers_of, require_begun, require_known, something
from headway.agents.env import BadEnvironment, Step
from headway.core.types_opaque import JsonObject, SettingValue


class SkyRLGame:
    """Plays one row after another, each in an environment of its own."""

    def __init__(self, name: str, rows: Sequence[JsonObject], env_config: Any, max_turns: int) -> None:
        self._name = name
        self._rows = rows
        self._config = env_config
        self.max_turns = max_turns
        self._env: Any = None
        self._is_over = True

    def reset(self, seed: int) -> str:
        self.close()
        row = random.Random(seed).choice(self._rows)
        extras = {"max_turns": self.max_turns, **row}
        self._env = skyrl_gym.make(self._name, env_config=self._config, extras=extras)
        messages, _ = self._env.init(list(row["prompt"]))
        self._is_over = False
        return _text(messages)

    def step(self, reply: str) -> Step:
        require_begun(self._is_over, self._name)
        said = self._env.step(reply)
        self._is_over = bool(said["done"])
        text = "" if self._is_over and not said["observations"] else _text(said["observations"])
        info = numbers_of(dict(self._env.get_metrics())) if self._is_over else {}
        return Step(text, float(said["reward"]), self._is_over, info=info)

    def close(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.close()


def make(
    id: str,
    *,
    rows: str | Sequence[JsonObject],
    env_config: Mapping[str, SettingValue] | None = None,
    max_turns: int = 1,
) -> SkyRLGame:
    """`gsm8k`, with the rows of a data set.

    :param rows: a file of JSON lines, or the rows themselves; each has `prompt` and `reward_spec`
    :param env_config: what the environment is configured with in SkyRL; its names are read as attributes
    """
    require_known("SkyRL-Gym", id, registry)
    found = _rows(rows)
    for number, row in enumerate(found):
        if not isinstance(row, Mapping) or not row.get("prompt"):
            raise BadEnvironment(f"skyrl:{id}: row {number} has no prompt; it is a list of messages")
    return SkyRLGame(id, found, _Config(env_config or {}), max_turns)


class _Config(JsonObject):
    """A configuration whose names are read as attributes or as keys, as SkyRL's are."""

    def __getattr__(self, name: str) -> SettingValue:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def _rows(rows: str | Sequence[JsonObject]) -> Sequence[JsonObject]:
    if isinstance(rows, str):
        path = Path(rows).expanduser()
        if not path.is_file():
            raise BadEnvironment(f"rows must be a file of JSON lines, and {rows!r} is none")
        with path.open(encoding="utf-8") as file:
            rows = [json.loads(line) for line in file if line.strip()]
    if not rows:
        raise BadEnvironment("an environment of SkyRL-Gym needs at least one row")
    return rows


def _text(messages: Sequence[Mapping[str, str]]) -> str:
    return something("\n\n".join(message["content"] for message in messages))
