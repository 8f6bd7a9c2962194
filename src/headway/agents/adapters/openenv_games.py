"""Environments of OpenEnv (`pip install openenv-core`) in this process: `openenv:my_envs.server:EchoEnvironment`.

    reset(seed) -> Observation(done, reward, ...)           step(Action(...)) -> Observation(done, reward, ...)

Actions and observations are pydantic models. A reply becomes the action's only field, or its fields where the reply is
a JSON object; what does not fit is told to the policy. An observation is shown as its text field, or as JSON.
"""

from __future__ import annotations

import json
import re
import typing
from importlib import import_module
from typing import Any

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation
from pydantic import ValidationError

from headway.agents.adapters import DEFAULT_TURNS, numbers_of, require_begun, small_seed, something
from headway.agents.env import BadEnvironment, Step
from headway.core.text_naming import unknown
from headway.core.text_one_line import shortened
from headway.core.types_opaque import JsonObject, SettingValue

_ABOUT_IT = {"done", "reward", "metadata"}
"""Fields that every observation has."""
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class OpenEnvGame:
    """Plays one environment of OpenEnv."""

    def __init__(self, name: str, env: Any, action: type[Action], text_field: str, max_turns: int) -> None:
        self._name = name
        self._env = env
        self._action = action
        self._fields = {field: info for field, info in action.model_fields.items() if field != "metadata"}
        self._text_field = text_field
        self.max_turns = max_turns
        self._bad_replies = 0
        self._is_over = True

    def reset(self, seed: int) -> str:
        observation = self._env.reset(seed=small_seed(seed))
        self._is_over, self._bad_replies = False, 0
        return self._text(observation)

    def step(self, reply: str) -> Step:
        require_begun(self._is_over, self._name)
        try:
            action = self._action(**self._values(reply))
        except (ValidationError, ValueError) as error:
            self._bad_replies += 1
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            wanted = ", ".join(self._fields)
            text = f"This reply is no action: {shortened(reason)}. Reply with {wanted}, or with a JSON object of it."
            return Step(text, info={"bad_replies": float(self._bad_replies)})
        observation = self._env.step(action)
        self._is_over = bool(observation.done)
        info = {**numbers_of(observation.metadata), "bad_replies": float(self._bad_replies)}
        return Step(self._text(observation), float(observation.reward or 0.0), self._is_over, info=info)

    def close(self) -> None:
        self._env.close()

    def _values(self, reply: str) -> JsonObject:
        text = reply.strip()
        if text.startswith("{"):
            try:
                value = json.loads(text)
            except ValueError:
                value = None
            if isinstance(value, dict):
                return value
        needed = [name for name, info in self._fields.items() if info.is_required()] or list(self._fields)
        if len(needed) != 1:
            raise ValueError(f"an action has the fields {', '.join(self._fields)}")
        if self._fields[needed[0]].annotation in (int, float):
            number = _NUMBER.search(text)
            if number is None:
                raise ValueError("there is no number in it")
            return {needed[0]: number[0]}
        return {needed[0]: text}

    def _text(self, observation: Observation) -> str:
        if self._text_field:
            return something(str(getattr(observation, self._text_field)))
        return str(observation.model_dump_json(exclude=_ABOUT_IT))


def make(
    id: str, *, action: str = "", text_field: str = "", max_turns: int = DEFAULT_TURNS, **options: SettingValue
) -> OpenEnvGame:
    """`module:Class`; further options are those of the class.

    :param action: the class of its actions, `module:Class`; found by itself where the class names it as OpenEnv has it
    :param text_field: the field of observations that is shown; found by itself where there is one text
    """
    made = _named(id)
    if not (isinstance(made, type) and issubclass(made, Environment)):
        raise BadEnvironment(f"openenv:{id} is no class derived from openenv's Environment")
    acts: Any = _named(action) if action else _class_in(made, 0, "action", Action)
    if not (isinstance(acts, type) and issubclass(acts, Action)):
        raise BadEnvironment(f"openenv:{id} does not say what its actions are; give the option action=module:Class")
    observes = _class_in(made, 1, "", Observation)
    return OpenEnvGame(id, made(**options), acts, text_field or _only_text(observes), max_turns)


def _named(place: str) -> Any:
    module, colon, name = place.rpartition(":")
    if not colon:
        raise BadEnvironment(f"an environment of OpenEnv is module:Class, received {place!r}")
    found = import_module(module)
    if not hasattr(found, name):
        raise BadEnvironment(unknown(f"name in {module}", name, (one for one in vars(found) if one[0].isupper())))
    return getattr(found, name)


def _class_in(made: type, position: int, parameter: str, kind: type) -> Any:
    """What stands in `Environment[Action, Observation, State]`; else the type of the parameter of `step`."""
    for ancestor in made.__mro__:
        for base in getattr(ancestor, "__orig_bases__", ()):
            inside = typing.get_args(base)
            if len(inside) > position and isinstance(inside[position], type) and issubclass(inside[position], kind):
                return inside[position]
    hints = typing.get_type_hints(made.step) if hasattr(made, "step") else {}
    return hints.get(parameter or "return")


def _only_text(observes: Any) -> str:
    """The field of an observation that is a text, if there is just one."""
    fields = getattr(observes, "model_fields", {})
    texts = [name for name, info in fields.items() if name not in _ABOUT_IT and info.annotation is str]
    return texts[0] if len(texts) == 1 else ""
