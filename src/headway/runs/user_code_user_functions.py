"""A function of the user's own, named as `package.module:function` or `folder/file.py:function`.

What travels to another process is the name: each process loads the function for itself.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from headway.core.text_naming import unknown
from headway.core.text_one_line import in_a_line
from headway.core.types_opaque import UserFunction


def load_function(spec: str, what: str, arguments: Sequence[str], *, by_name: bool) -> UserFunction:
    """The function, after checking that it can be called with these arguments (`by_name`, or in this order)."""
    function = find_function(spec, what)
    try:
        signature = inspect.signature(function)
        signature.bind(**dict.fromkeys(arguments)) if by_name else signature.bind(*arguments)
    except TypeError as error:
        how = " by name" if by_name else ""
        raise ValueError(f"{what} function {spec} must take {', '.join(arguments)}{how}: {error}") from None
    return function


def find_function(spec: str, what: str) -> UserFunction:
    """The function, whatever it takes."""
    place, colon, name = spec.rpartition(":")
    if not colon or not place or not name:
        raise ValueError(f"a {what} function is named module:function or file.py:function, received {spec!r}")
    module = load_place(place, what)
    function = getattr(module, name, None)
    if function is None:
        callables = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ValueError(unknown(f"function of {place}", name, callables))
    if not callable(function):
        raise ValueError(f"{spec} is a {type(function).__name__}, not a function")
    return function


def load_place(place: str, what: str) -> ModuleType:
    """The module of that name, or that a file ending in .py holds. `what` it is for stands in the error's one line."""
    return _load_file(place, what) if place.endswith(".py") else _load_module(place, what)


def import_from_here(name: str) -> ModuleType:
    """The module of that name, which may lie in the working directory: a command that was installed does not look there
    by itself. From then on processes started from here find it too."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        here = str(Path.cwd())
        if error.name != name.partition(".")[0] or here in sys.path:
            raise
        sys.path.insert(0, here)
        try:
            importlib.invalidate_caches()
            return importlib.import_module(name)
        except ModuleNotFoundError:
            sys.path.remove(here)
            raise


def _load_module(name: str, what: str) -> ModuleType:
    try:
        return import_from_here(name)
    except Exception as error:
        raise ValueError(f"{what} module {name} cannot be loaded: {in_a_line(error)}") from error


def _load_file(place: str, what: str) -> ModuleType:
    path = Path(place).expanduser().resolve()
    if not path.is_file():
        raise ValueError(f"{what} file {place} does not exist")
    name = f"headway_{what}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{what} file {place} cannot be loaded: {in_a_line(error)}") from error
    return module
