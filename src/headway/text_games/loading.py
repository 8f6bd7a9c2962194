"""A story game by its name: what stands after `--env_id`, and after `headway play`.

    mini_world                a small quest of our own
    colossal_cave             the first adventure game (pip install adventure); also called adventure
    textworld:coin            a game that TextWorld makes: coin, cooking, quest or treasure (pip install textworld)
    zork1.z5                  a Z-machine file of yours: .z3, .z5, .z8 (pip install jericho)
    my_games.py:Cave          a class of your own, in a file
    my_package.games:Cave     ... in a module

What travels to another process is the name: each process loads the class for itself.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

from headway.core.text_naming import unknown
from headway.core.text_one_line import in_a_line
from headway.core.types_opaque import JsonObject, SettingValue, UserFunction
from headway.runs.user_code_named_classes import anywhere, class_in, require_options
from headway.text_games.story_interface import BadStory, StoryFactory, StoryGame, StoryLost, checked_story

STORIES = {
    "mini_world": "headway.text_games.mini_world:MiniWorld",
    "colossal_cave": "headway.text_games.colossal_cave:ColossalCave",
}
"""The games that are told by one class, which takes the options."""
ALIASES = {"adventure": "colossal_cave"}
TEXTWORLD = "textworld"
TEXTWORLD_KINDS = ("coin", "cooking", "quest", "treasure")
STORY_NAMES = (*STORIES, *ALIASES, *(f"{TEXTWORLD}:{kind}" for kind in TEXTWORLD_KINDS))
"""Every name that is no file and no class."""
WITHOUT_THEIR_DEPENDENCIES = ("jericho", "textworld")
"""Jericho asks for spaCy, which we never use, and TextWorld for Jericho."""
HOW = "a game's name, FILE.z3, FILE.z5, FILE.z8, file.py:Class or module:Class"

_Z_MACHINE = re.compile(r"\.z[1-8]$", re.IGNORECASE)
_OTHER_MACHINES = re.compile(r"\.(ulx|gblorb|blb|blorb|zblorb|gam|t3|hex|taf)$", re.IGNORECASE)


def load_story(name: str, options: Mapping[str, SettingValue] | None = None) -> StoryFactory:
    """Returns what makes the games of this name, after checking that they can be found and take these options.

    The factory can be pickled. A package or a file that is missing, and a constructor's error, are one line.
    """
    given = dict(options or {})
    spec = ALIASES.get(name, name)
    if _OTHER_MACHINES.search(spec):
        raise ValueError(f"{name} is no Z-machine file; allowed: .z3, .z5, .z8 (other machines are not played)")
    if _Z_MACHINE.search(spec):
        return _story_file(spec, given)
    if spec.partition(":")[0] == TEXTWORLD:
        return _textworld(spec, given)
    spec = anywhere(spec)
    require_options(_found(spec), spec, given, "story game")
    return functools.partial(_make, spec, given)


def is_story(name: str) -> bool:
    """Says whether a name is that of a story game, as far as can be told before one is made."""
    if name in STORY_NAMES or name.partition(":")[0] == TEXTWORLD:
        return True
    if _Z_MACHINE.search(name) or _OTHER_MACHINES.search(name):
        return True
    if ".py:" not in name:
        return False
    found = class_in(anywhere(name), "game", HOW)
    return all(callable(getattr(found, method, None)) for method in ("step", "save", "load", "key"))


def _make(spec: str, options: JsonObject) -> StoryGame:
    return checked_story(_called(spec, _found(spec), options), spec)


def _called(spec: str, make: UserFunction, options: Mapping[str, SettingValue]) -> object:
    """Returns what a class or a function of this name makes; what a user's own raises is one line."""
    is_ours = not (":" in spec and spec.partition(":")[0] != TEXTWORLD)
    try:
        return make(**options)
    except ModuleNotFoundError as error:
        raise _missing(spec, error) from None
    except (BadStory, StoryLost):
        raise
    except Exception as error:
        if is_ours:
            raise
        raise BadStory(f"story game {spec} cannot be made: {in_a_line(error)}") from error


def _found(spec: str) -> UserFunction:
    """Returns the class, or the function, that makes the games of this name."""
    if spec in STORIES:
        return _ours(spec, *STORIES[spec].split(":"))
    if ":" not in spec:
        if spec.endswith(".py"):
            raise ValueError(f"{spec!r} names a file and no class in it; allowed: {spec}:Class")
        raise ValueError(f"{unknown('story game', spec, STORY_NAMES)}; or FILE.z5, file.py:Class, module:Class")
    return class_in(spec, "story game", HOW)


def _ours(spec: str, module: str, name: str) -> UserFunction:
    """Returns something of a module that may need a package which is not installed."""
    try:
        found: UserFunction = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise _missing(spec, error) from None
    return found


def _story_file(spec: str, options: JsonObject) -> StoryFactory:
    path = Path(spec).expanduser().resolve()
    if not path.is_file():
        raise ValueError(f"there is no story file {spec}; Z-machine files are your own: give the path of one")
    make = _ours(spec, "headway.text_games.jericho_game", "StoryFile")
    require_options(functools.partial(make, path), spec, options, "story file")
    return _factory(spec, _called(spec, functools.partial(make, path), options))


def _textworld(spec: str, options: JsonObject) -> StoryFactory:
    kind = spec.partition(":")[2]
    if kind not in TEXTWORLD_KINDS:
        raise ValueError(unknown("TextWorld game", kind, TEXTWORLD_KINDS))
    make: Callable[..., object] = _ours(spec, "headway.text_games.textworld_games", "make_textworld")
    return _factory(spec, _called(spec, make, {"kind": kind, "options": options}))


def _factory(spec: str, made: object) -> StoryFactory:
    if not callable(made):
        raise BadStory(f"story game {spec} is made by a {type(made).__name__}, which cannot be called")
    factory: StoryFactory = made
    return factory


def _missing(spec: str, error: ModuleNotFoundError) -> BaseException:
    """Returns one line about a package that is not installed."""
    name = (error.name or "").partition(".")[0]
    if name in ("", "headway"):
        return error
    how = "pip install 'headway[text]'"
    if name in WITHOUT_THEIR_DEPENDENCIES:
        how += f" and pip install --no-deps {' '.join(WITHOUT_THEIR_DEPENDENCIES)}"
    return ValueError(f"story game {spec} needs {name}: {how}")
