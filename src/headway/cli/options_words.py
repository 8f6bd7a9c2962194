"""The words of a command line: `--name value`, `--name=value`, bare `--flag`, `group.name=value`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from headway.core.text_naming import unknown
from headway.core.types_opaque import SettingValue


class UsageError(ValueError):
    """The command line is not understood."""


TEXTS = ("name",)
"""Options that are taken as they are written: a run may be called 007."""


NESTED = re.compile(r"\+{0,2}(\w+(?:\.\w+)+)=(.*)", re.DOTALL)
FLAT = re.compile(r"\+{0,2}(\w+=.*)", re.DOTALL)
"""The same of a name without groups. Behind `--alarms` it is a value."""


def read_options(words: Sequence[str], *, as_written: bool = False) -> dict[str, SettingValue]:
    """`--name value`, `--name=value` and bare `--flag`, values as YAML scalars, dashes as underscores.

    Names need no dashes before `=`: `name=value`, and `group.name=value`, whose value may be a list too. With
    `as_written` the values are the texts themselves.
    """
    options: dict[str, SettingValue] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        nested = NESTED.fullmatch(word)
        if nested is not None:
            options[nested[1]] = nested[2] if as_written else any_value(nested[2])
            continue
        flat = FLAT.fullmatch(word)
        if flat is None and not word.startswith("-"):
            raise UsageError(f"expected --name value, received {word!r}")
        name, has_value, text = (flat[1] if flat else word.lstrip("-")).partition("=")
        is_next = bool(rest) and (rest[0].startswith("--") or rest[0] == "-h" or NESTED.fullmatch(rest[0]) is not None)
        if not has_value and rest and not is_next:
            text, has_value = rest.pop(0), "="
        name = name.replace("-", "_")
        is_text = as_written or name in TEXTS
        options[name] = True if not has_value else text if is_text else scalar(text)
    return options


def scalar(text: str) -> SettingValue:
    """A word as YAML reads it, or as it stands."""
    value = any_value(text)
    return text if isinstance(value, dict | list) else value


def any_value(text: str) -> SettingValue:
    """A word as YAML reads it: a number, a list, or the text itself."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def config_file(options: dict[str, SettingValue]) -> Path | None:
    """The file that --config names, or as Hydra says it --config-path FOLDER --config-name NAME; it is taken out."""
    folder, name = options.pop("config_path", None), options.pop("config_name", None)
    if folder is None and name is None:
        return Path(str(options.pop("config"))) if "config" in options else None
    if "config" in options or name is None:
        raise UsageError("a file is --config FILE, or --config-path FOLDER with --config-name NAME")
    file = Path(str(folder or ".")) / str(name)
    return file if file.suffix in (".yaml", ".yml") else file.with_name(f"{file.name}.yaml")


def one_run(command: str, words: list[str]) -> Path:
    """The folder that a command is about: the only word it may have here."""
    if len(words) != 1 or words[0].startswith("-"):
        raise UsageError(f"{command} needs the folder of a run: headway {command} RUN")
    return Path(words[0])


def whole_numbers(options: dict[str, SettingValue], **defaults: int) -> dict[str, SettingValue]:
    """Options that are whole numbers (or flags, where the default is one)."""
    for name, value in options.items():
        if name not in defaults:
            raise UsageError(unknown("option", name, defaults))
        if isinstance(value, bool) != isinstance(defaults[name], bool) or not isinstance(value, int) or value < 0:
            raise UsageError(f"--{name} must be a whole number, received {value!r}")
    return defaults | options


def asks_for_help(words: Sequence[str]) -> bool:
    """Is one of the words -h or --help?"""
    return not {"-h", "--help"}.isdisjoint(words)


@contextmanager
def needs_games() -> Iterator[None]:
    """For imports of Colour Lines: a package that is missing is named in a line."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(f"Colour Lines needs {error.name}: pip install 'headway[games]'") from None
