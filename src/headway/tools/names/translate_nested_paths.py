"""Nested names of other systems, looked up and translated: the same for every table.

A file is flattened to dotted paths (`actor_rollout_ref.rollout.n`), which can also be given on the command line. A
system is a module with `PATHS` and `WITHOUT_EFFECT`; another one is another module in `TABLES`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TypeVar

import yaml

from headway.core.text_naming import nearest
from headway.tools.names import lightzero, prime_rl, rllib, roll, verl, verl_agent
from headway.tools.names import lightzero_meanings_priorzero as priorzero
from headway.tools.names.flat import KNOWN_NAMES
from headway.tools.names.rows import KnownPath, Meaning, Theirs
from headway.tools.names.rows import nested as as_groups

T = TypeVar("T")

TABLES = (verl, verl_agent, roll, lightzero, priorzero, prime_rl, rllib)
ALL_PATHS = {path: known for table in TABLES for path, known in table.PATHS.items()}
ALL_WITHOUT_EFFECT = {path: why for table in TABLES for path, why in table.WITHOUT_EFFECT.items()}
GROUPS = {path.partition(".")[0] for path in (*ALL_PATHS, *ALL_WITHOUT_EFFECT) if path not in roll.SINGLE}
OUR_WORDS = {
    word: (*verl.OUR_WORDS.get(word, ()), *roll.OUR_WORDS.get(word, ())) for word in verl.OUR_WORDS | roll.OUR_WORDS
}
"""Settings that decide what some of their names mean, and their names for these."""


def is_theirs(name: str, value: object, fields: Collection[str] = (), system: str | None = None) -> bool:
    """A group of their file, or a path of it. What is no group may be ours, in a recipe with these settings.

    Names at the top of ROLL's files are theirs in the recipe for agents, and wherever `system` says so.
    """
    head, dot, _ = str(name).partition(".")
    if dot or isinstance(value, Mapping):
        return head in GROUPS
    if name in roll.SINGLE:
        is_said = system in ("roll", "roll_agentic") and not (name in KNOWN_NAMES and KNOWN_NAMES[name].others)
        return name not in fields and (is_said or roll.is_recipe_for(fields))
    return name in ALL_WITHOUT_EFFECT


def flatten(values: Mapping[str, object]) -> dict[str, object]:
    """Groups as dotted paths. What is null is left out; `${another.path}` is that one's value."""
    flat: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{path}": inner for path, inner in flatten(value).items()}
        elif value is not None:
            flat[str(name)] = value
    return flat


INTERPOLATION = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)(,[^${}]*)?\}")
"""`${another.path}`, or `${oc.select:another.path,what it is otherwise}`; `${.name}` is in the same group."""


def referred_to(flat: Theirs) -> set[str]:
    """Names at the top of a file that values refer to."""
    texts = [value for value in flat.values() if isinstance(value, str)]
    return {match[1].partition(".")[0] for text in texts for match in INTERPOLATION.finditer(text)}


def resolve(flat: Theirs) -> dict[str, object]:
    """Values that refer to others, replaced."""
    return {path: resolved(path, flat) for path in flat}


def resolved(path: str, flat: Theirs, seen: tuple[str, ...] = ()) -> object:
    """One of them; `${oc.env:...}` and the like are refused."""
    value, first = flat[path], (*seen, path)[0]
    while isinstance(value, str) and (match := INTERPOLATION.search(value)):
        other = path.rpartition(".")[0] + match[1] if match[1].startswith(".") else match[1]
        group = {name.removeprefix(f"{other}."): inner for name, inner in flat.items() if name.startswith(f"{other}.")}
        if other in flat and other not in (*seen, path):
            found = resolved(other, flat, (*seen, path))
        elif group:
            found = as_groups(group)
        elif match[2] is not None:
            found = yaml.safe_load(match[2][1:])
        else:
            raise ValueError(f"{first}={flat[first]!r}: {other} is not set in the file")
        value = found if match[0] == value.strip() else value.replace(match[0], str(found))
    if isinstance(value, str) and "${" in value:
        raise ValueError(f"{first}={flat[first]!r}: only ${{another.path}} is understood; write the value")
    return value


def mean(path: str, theirs: Theirs, fields: Collection[str]) -> Meaning:
    """What a path with its value sets in a recipe with these settings, or why it has no effect."""
    known = find_path(path)
    if known is None:
        why = _without_effect(path)
        if why is None:
            raise ValueError(unknown_path(path))
        return why
    try:
        meaning = known.mean(path, theirs, fields)
    except ValueError as error:
        raise ValueError(f"{path}={theirs[path]!r}: {error}") from None
    except TypeError:  # a group where a number is meant, and the like
        raise ValueError(f"{path}={theirs[path]!r}: a value like {known.example!r} is wanted") from None
    if isinstance(meaning, dict):
        for field in meaning:
            if field not in fields:
                raise ValueError(f"setting {path!r} means {field!r}, which this recipe does not have")
    return meaning


def are_read_together(path: str, other: str) -> bool:
    """Whether one of two paths decides along with the other, so that both are refused for one reason."""
    known = [(name, find_path(name)) for name in (path, other)]
    (first, one), (second, two) = ((found.path if found else name, found) for name, found in known)
    return second in (one.reads if one else ()) or first in (two.reads if two else ())


def touched(paths: Collection[str], theirs: Theirs) -> list[str]:
    """These paths and the others in `theirs` whose meaning depends on them."""
    changed = {known.path if (known := find_path(path)) else path for path in paths}
    return [
        path
        for path in theirs
        if path not in OUR_WORDS
        and (path in paths or ((known := find_path(path)) is not None and not changed.isdisjoint(known.reads)))
    ]


def our_words(values: Mapping[str, object], paths: Collection[str]) -> dict[str, object]:
    """What a layer says in our words that their names depend on; None where it says so in theirs instead."""
    said: dict[str, object] = {}
    for ours, theirs in OUR_WORDS.items():
        if ours in values:
            said[ours] = values[ours]
        elif not set(theirs).isdisjoint(paths):
            said[ours] = None
    return said


def find_path(path: str) -> KnownPath | None:
    """The row of a path, or of the group it is in."""
    return most_specific(path, ALL_PATHS)


def _without_effect(path: str) -> str | None:
    if path.endswith("._target_"):
        return "classes are not named"
    found = most_specific(path, ALL_WITHOUT_EFFECT)
    return found or ALL_WITHOUT_EFFECT.get(f"{path}.*")  # a whole group that another path is to fill


def most_specific(path: str, table: Mapping[str, T]) -> T | None:
    """What a table has of a path, or else of the smallest group that it is in; None: nothing."""
    if path in table:
        return table[path]
    parts = path.split(".")
    for size in range(len(parts) - 1, 0, -1):
        found = table.get(".".join([*parts[:size], "*"]))
        if found is not None:
            return found
    return None


def unknown_path(path: str) -> str:
    """A line about a path that nobody knows, with the nearest one."""
    names = [*GROUPS, *(name.removesuffix(".*") for name in (*ALL_PATHS, *ALL_WITHOUT_EFFECT))]
    near = nearest(path, names)
    hint = f"; did you mean {near!r}?" if near else ""
    return f"unknown setting {path!r}{hint} (headway explain lists all that are known)"
