"""A class of the user's own, named as `module:Class` or `file.py:Class`, and the options that it takes.

What travels to another process is the name: each process loads the class for itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from headway.core.text_naming import unknown
from headway.core.types_opaque import SettingValue, UserFunction
from headway.runs.user_code_user_functions import load_place


def class_in(spec: str, what: str, how: str) -> UserFunction:
    """Returns the class, or the function, that makes what is named so. `how` says which names are allowed."""
    place, _, name = spec.rpartition(":")
    if not place or not name:
        raise ValueError(f"{_article(what)} {what} is {how}, received {spec!r}")
    module = module_in(place, what)
    made = getattr(module, name, None)
    if made is None:
        raise ValueError(unknown(f"{what} of {place}", name, _classes(module)))
    if not callable(made):
        kind = type(made).__name__
        raise ValueError(f"{spec} is a {kind}; {_article(what)} {what} is a class, or a function that makes one")
    found: UserFunction = made
    return found


def anywhere(spec: str) -> str:
    """Returns a name that means the same file in a process that stands in another folder."""
    place, colon, name = spec.rpartition(":")
    return f"{Path(place).expanduser().resolve()}:{name}" if colon and _is_file(str(Path(place).expanduser())) else spec


def require_options(make: UserFunction, spec: str, options: Mapping[str, SettingValue], what: str) -> None:
    """Refuses options that a class does not take, and those it needs that are not given."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return  # a class written in C says nothing of what it takes
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return
    allowed = [one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    for name in options:
        if name not in allowed:
            if not allowed:
                raise ValueError(f"{what} {spec} takes no options, received {name!r}")
            raise ValueError(unknown(f"option of {what} {spec}", name, allowed))
    missing = [one.name for one in parameters if one.default is one.empty and one.kind is not one.VAR_POSITIONAL]
    missing = [name for name in missing if name not in options]
    if missing:
        raise ValueError(f"{what} {spec} needs options that are not given: {', '.join(missing)}")


def module_in(place: str, what: str) -> ModuleType:
    """Returns a module, which is loaded once; a file again when it has changed."""
    if not _is_file(place):
        return load_place(place, what)
    modified_ns = Path(place).stat().st_mtime_ns
    if place not in _FILES or _FILES[place][0] != modified_ns:
        _FILES[place] = modified_ns, load_place(place, what)
    return _FILES[place][1]


_FILES: dict[str, tuple[int, ModuleType]] = {}
"""What files hold, by when they were last changed."""


def _is_file(place: str) -> bool:
    return place.endswith(".py") and Path(place).is_file()


def _classes(module: ModuleType) -> list[str]:
    """Lists what a module has that looks like an environment; all its classes where nothing does."""
    own = {name: value for name, value in vars(module).items() if inspect.isclass(value) and not name.startswith("_")}
    likely = [name for name, value in own.items() if callable(getattr(value, "step", None))]
    return likely or list(own)


def _article(what: str) -> str:
    return "an" if what[0] in "aeiou" else "a"
