"""Settings in anybody's words, put into ours: layers (a file, the command line) over each other.

A layer may speak flat names of other systems (`flat.py`) and nested ones (`nested_paths.py`). Whatever cannot be
understood is said in a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

import yaml

from headway.core.text_naming import unknown
from headway.tools.names import translate_nested_paths as nested_paths
from headway.tools.names import translate_peers as peers
from headway.tools.names.flat import KNOWN_NAMES, SYSTEMS, translate
from headway.tools.names.lightzero import path_of

Defaults = Mapping[str, object]
"""The settings of a recipe by their names, with their defaults."""


class Said(NamedTuple):
    """A name from another system, its value, and what that is here: settings, or why it has no effect."""

    name: str
    value: object
    meaning: dict[str, object] | str

    @property
    def shown(self) -> str:
        """The name with its value, for people; what may be a secret is not shown."""
        last = self.name.rpartition(".")[2].lower()
        is_secret = isinstance(self.value, str) and any(word in last for word in SECRETS)
        return f"{self.name}={'(not shown)' if is_secret else self.value}"


SECRETS = ("api_key", "apikey", "secret", "password", "access_token", "auth_token", "login_kwargs")


def understand_layers(
    defaults: Defaults, layers: Iterable[Mapping[str, object]]
) -> tuple[dict[str, object], list[Said], list[str]]:
    """Puts layers of settings, later ones over earlier ones, into the words of a recipe with these defaults.

    Beside the settings it returns what was translated on the way, and a line for each name that cannot be understood.
    """
    problems: list[str] = []
    merged: dict[str, object] = {}
    said: dict[str, Said] = {}
    nested: dict[str, object] = {}
    unknown_names: list[str] = []
    layers, systems = _systems(defaults, layers, problems)
    layers = [_with_values(_switched_off(values, defaults), defaults) for values in layers]
    whole = {path: value for values in layers for path, value in nested_paths.flatten(values).items()}
    layers = [_with_references(values, whole) for values in layers]
    together = {name: value for values in layers for name, value in values.items()}
    variables = nested_paths.referred_to(whole)
    for values, names in zip(layers, systems, strict=True):
        theirs = {
            name: value
            for name, value in values.items()
            if nested_paths.is_theirs(name, value, defaults, names) and name not in peers.TABLES.get(names or "", {})
        }
        paths = nested_paths.flatten(theirs)
        paths |= nested_paths.our_words(values, paths)
        nested = {name: value for name, value in (nested | paths).items() if value is not None}
        flat = {name: value for name, value in values.items() if name not in theirs}
        here: list[Said] = []
        for name, value in flat.items():
            if name in defaults and not (isinstance(value, str) and name in peers.TABLES.get(names or "", {})):
                continue  # a text may be a way of theirs to say a number: lin_3e-4
            try:
                meaning = _flat_meaning(defaults, name, flat, nested, names, together)
            except ValueError as error:
                if not (isinstance(value, Mapping) and name in variables):
                    problems.append(str(error))
                continue
            if meaning is None and name in variables:
                continue  # a file's own name for something that its values refer to
            if meaning is None:
                unknown_names.append(str(name))
            elif value is not None or name in KNOWN_NAMES:
                here.append(Said(name, value, meaning))
        here += _translated_paths(defaults, nested, paths, whole, problems)
        for one in here:  # what it meant before counts no more
            before = said[one.name].meaning if one.name in said else {}
            for field, value in before.items() if isinstance(before, dict) else ():
                if field in merged and merged[field] == value:
                    del merged[field]
        merged |= _in_our_words(defaults, values, here, problems)
        said |= {one.name: one for one in here}
    _imply(defaults, merged, said)
    return merged, list(said.values()), [*_unknown(unknown_names, defaults, problems), *problems]


def _systems(
    defaults: Defaults, layers: Iterable[Mapping[str, object]], problems: list[str]
) -> tuple[list[Mapping[str, object]], list[str | None]]:
    """Whose names each layer speaks: as its own `names` says, or the last of all that do."""
    layers = list(layers)
    if "names" in defaults:
        return layers, [None] * len(layers)
    said = [None if values.get("names") is None else str(values["names"]).lower() for values in layers]
    last: str | None = None
    for system in said:
        last = system or last
        if system is not None and system not in SYSTEMS:
            problems.append(unknown("system of names", system, SYSTEMS))
    rest = [{name: value for name, value in values.items() if name != "names"} for values in layers]
    return list(rest), [system or last for system in said]


def _switched_off(values: Mapping[str, object], defaults: Defaults) -> Mapping[str, object]:
    """`--no-anneal-lr`, as some command lines have it, is anneal_lr=False where that is a name."""
    known = {*defaults, *KNOWN_NAMES, *(name for table in peers.TABLES.values() for name in table)}

    def meant(name: str, value: object) -> tuple[str, object]:
        rest = str(name).removeprefix("no_")
        return (rest, False) if value is True and name not in known and rest in known else (name, value)

    return dict(meant(name, value) for name, value in values.items())


def _with_references(values: Mapping[str, object], whole: Mapping[str, object]) -> dict[str, object]:
    """Texts at the top of a file that refer to other values, replaced by these."""

    def meant(name: str, value: object) -> object:
        if isinstance(value, str) and "${" in value:
            with suppress(ValueError):  # such a text may be meant as it stands
                return nested_paths.resolved(name, whole)
        return value

    return {name: meant(name, value) for name, value in values.items()}


NUMBER = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")


def _with_values(values: Mapping[str, object], defaults: Defaults) -> dict[str, object]:
    """Texts as what they stand for: numbers, as YAML takes 1e-3 for a text (it has no point in it), but a run may be
    called 1e3; and lists for names that are not ours, whose settings read their own."""

    def meant(name: str, value: object) -> object:
        if not isinstance(value, str):
            return value
        if NUMBER.fullmatch(value):
            return value if _is_text(name, defaults) else float(value)
        return _list_in(value) if name not in defaults else value

    return {name: meant(name, value) for name, value in values.items()}


def _list_in(text: str) -> object:
    """A list as YAML writes it; any other text as it stands."""
    try:
        value = yaml.safe_load(text) if text.startswith("[") else text
    except yaml.YAMLError:
        return text
    return value


def _is_text(name: str, defaults: Defaults) -> bool:
    return name == "name" or isinstance(defaults.get(name), str)


def _imply(defaults: Defaults, merged: dict[str, object], said: dict[str, Said]) -> None:
    """What goes along with a known name, where nobody says otherwise."""
    for one in list(said.values()):
        known = KNOWN_NAMES.get(one.name)
        if known is None or known.implies is None or not isinstance(one.meaning, dict):
            continue
        setting, value, instead_of = known.implies
        if setting in defaults and defaults[setting] == instead_of and merged.setdefault(setting, value) == value:
            said[one.name] = one._replace(meaning={**one.meaning, setting: value})


HELP = "headway run RECIPE --help all lists all that a recipe has"


def _unknown(names: list[str], defaults: Defaults, others: list[str]) -> list[str]:
    """One line each. The list of all that are allowed is only there where it is the only line."""
    theirs = {*KNOWN_NAMES, *(name for table in peers.TABLES.values() for name in table)}
    lines = [
        nested_paths.unknown_path(name) if "." in name else unknown("setting", name, defaults, also=theirs, others=HELP)
        for name in dict.fromkeys(names)
    ]
    if len(lines) + len(others) == 1:
        return lines
    return [line.removesuffix(f" {HELP}").partition(" allowed: ")[0].rstrip(";") for line in lines]


def _in_our_words(
    defaults: Defaults, values: Mapping[str, object], said: list[Said], problems: list[str]
) -> dict[str, object]:
    """One layer. Within it, nothing may be said twice in different ways."""
    theirs = {one.name for one in said}
    ours = {
        name: value
        for name, value in values.items()
        if name in defaults and name not in theirs and not nested_paths.is_theirs(name, value, defaults)
    }
    for name, value, meaning in said:
        for field, wanted in meaning.items() if isinstance(meaning, dict) else ():
            if field not in defaults:
                problems.append(f"setting {name!r} means {field!r}, which this recipe does not have")
            elif ours.setdefault(field, wanted) != wanted:
                problems.append(f"{name}={value!r} means {field}={wanted!r}, but {field}={ours[field]!r} is set too")
    return ours


def _flat_meaning(
    defaults: Defaults,
    name: str,
    values: Mapping[str, object],
    nested: Mapping[str, object],
    names: str | None,
    together: Mapping[str, object],
) -> dict[str, object] | str | None:
    """What a flat name that is not ours is; None: nobody knows it."""
    value = values[name]
    if name == "data_queue_size" and values.get("enable_async_training") is False:
        return "with enable_async_training off there is no queue"
    theirs = peers.meaning_in(names, name, value, together, defaults)
    if theirs is not None:
        return theirs
    if not isinstance(value, Mapping):
        meaning = translate(name, value, defaults, names=names, together=together, defaults=defaults)
        if meaning is not None:
            return meaning
    path = path_of(name, defaults)
    if path is not None:
        if value is None:
            return {}
        paths = {one: path_of(one, defaults) for one in values}
        alone = {theirs: values[one] for one, theirs in paths.items() if theirs is not None and values[one] is not None}
        return nested_paths.mean(path, {**nested, **alone}, defaults)
    theirs = peers.meaning_of(name, value, together, defaults)
    if theirs is None and isinstance(value, Mapping):
        raise ValueError(nested_paths.unknown_path(str(name)))
    return theirs


def _translated_paths(
    defaults: Defaults,
    nested: Mapping[str, object],
    here: Mapping[str, object],
    whole: Mapping[str, object],
    problems: list[str],
) -> list[Said]:
    """The nested names of one layer, and those of earlier ones that mean something else now; they may refer to any name
    of the `whole`."""
    if not here:
        return []
    theirs: dict[str, object] = {}
    unresolved: dict[str, str] = {}
    for name in nested:
        try:
            theirs[name] = nested_paths.resolved(name, {**whole, **nested})
        except ValueError as error:
            theirs[name], unresolved[name] = nested[name], str(error)
    said, refused = [], dict[str, str]()
    for name in nested_paths.touched(here.keys(), theirs):
        try:
            meaning = nested_paths.mean(name, theirs, defaults)
        except ValueError as error:
            reason = str(error).removeprefix(f"{name}={theirs[name]!r}: ")
            if not any(reason == other and nested_paths.are_read_together(name, one) for one, other in refused.items()):
                problems.append(unresolved.get(name, str(error)))
            refused[name] = reason
            continue
        if name in unresolved and isinstance(meaning, dict):
            problems.append(unresolved[name])
        else:
            said.append(Said(name, theirs[name], meaning))
    return said
