"""An environment by its name: what stands after `--env`.

    lights                    a game of our own
    my_games.py:Guess         a class of your own, in a file
    my_package.games:Guess    ... in a module
    gem:game:Sokoban-v0       an environment of another library, by its adapter

What travels to another process is the name: each process loads the class for itself.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from importlib import import_module
from typing import NamedTuple

from headway.agents.env import AgentEnv, BadEnvironment, EnvFactory, EnvironmentLost, checked_env
from headway.agents.games import GAMES
from headway.core.text_naming import unknown
from headway.core.text_one_line import in_a_line
from headway.core.types_opaque import JsonObject, SettingValue, UserFunction
from headway.runs.user_code_named_classes import anywhere, class_in, require_options


class Adapter(NamedTuple):
    """Says where environments of another library are made, and how that library is installed."""

    make: str
    """`module:function`; the function takes what stands after the prefix, then the options as keywords."""
    install: str
    """The packages as pip takes them."""


ADAPTERS = {
    "gem": Adapter("headway.agents.adapters.gem_games:make", "gem-llm"),
    "textarena": Adapter("headway.agents.adapters.textarena_games:make", "textarena"),
    "openenv": Adapter("headway.agents.adapters.openenv_games:make", "openenv-core"),
    "gymnasium": Adapter("headway.agents.adapters.gymnasium_text_games:make", "gymnasium"),
    "skyrl": Adapter("headway.agents.adapters.skyrl_gym_games:make", "skyrl-gym"),
}
"""Other libraries, by the prefix of their environments."""
HOW = "a game's name, file.py:Class, module:Class or library:ID"


def load_env(spec: str, options: Mapping[str, SettingValue] | None = None) -> EnvFactory:
    """Returns what makes the environments of this name, after checking that they can be found and take these options.

    The factory can be pickled. What it makes has `reset`, `step` and `max_turns`; a constructor's error is one line.
    """
    given = dict(options or {})
    spec = anywhere(spec)
    make = _found(spec)
    require_options(make, spec, given, "environment")
    return functools.partial(_make, spec, given)


def env_options(text: str | Mapping[str, SettingValue] | None) -> JsonObject:
    """Reads the options of an environment: a JSON object as text, or a mapping as it is."""
    if not text:
        return {}
    if isinstance(text, Mapping):
        return dict(text)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"env_options must be a JSON object, received {text!r}: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f'env_options must be a JSON object like {{"size": 4}}, received {text!r}')
    return value


def _make(spec: str, options: JsonObject) -> AgentEnv:
    make = _found(spec)
    try:
        made = make(**options)
    except ModuleNotFoundError as error:
        raise _missing(spec, error) from None
    except (BadEnvironment, EnvironmentLost):
        raise
    except OSError as error:  # a server that is down, a file system that is full: it may work next time
        raise EnvironmentLost(f"environment {spec} cannot be made: {in_a_line(error)}") from error
    except Exception as error:
        raise BadEnvironment(f"environment {spec} cannot be made: {in_a_line(error)}") from error
    return checked_env(made, spec)


def _found(spec: str) -> UserFunction:
    """Returns the class, or the function, that makes the environments of this name."""
    if spec in GAMES:
        game: UserFunction = getattr(import_module(f"headway.agents.games.{spec}"), GAMES[spec])
        return game
    prefix, colon, rest = spec.partition(":")
    if not colon:
        if spec.endswith(".py"):
            raise ValueError(f"{spec!r} names a file and no class in it; allowed: {spec}:Class")
        raise ValueError(f"{unknown('game', spec, GAMES)}; or file.py:Class, module:Class, library:ID")
    if prefix in ADAPTERS:
        if not rest:
            raise ValueError(f"{spec!r} names no environment; allowed: {prefix}:ID")
        return functools.partial(adapted(ADAPTERS[prefix], spec), rest)
    return class_in(spec, "environment", HOW)


def adapted(adapter: Adapter, spec: str) -> UserFunction:
    """Returns what makes the environments of another library; one that is not installed is one line."""
    place, _, function = adapter.make.partition(":")
    try:
        make: UserFunction = getattr(import_module(place), function)
    except ModuleNotFoundError as error:
        raise _missing(spec, error) from None
    return make


def _missing(spec: str, error: ModuleNotFoundError) -> BaseException:
    """Returns one line about a package that is not installed."""
    name = (error.name or "").partition(".")[0]
    if name in ("", "headway"):
        return error
    adapter = ADAPTERS.get(spec.partition(":")[0])
    return ValueError(f"environment {spec} needs {name}: pip install {adapter.install if adapter else name}")
