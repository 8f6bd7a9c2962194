"""What a table of nested names is made of: a row says what one name of another system is here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from headway.core.types_opaque import JsonObject

Theirs = Mapping[str, object]
"""Dotted paths and their values; what is null is not there."""
Meaning = dict[str, object] | str
"""Settings here; or why there are none."""
Translate = Callable[[object, Theirs, Collection[str]], Meaning]
TranslateBelow = Callable[[str, object, Theirs, Collection[str]], Meaning]
"""Of a group: it is told the path as well."""


@dataclass(frozen=True, slots=True)
class KnownPath:
    """One of their names. `translate` gets its value, all of their names that are set, and the recipe's settings."""

    path: str
    ours: str
    translate: Translate
    example: object
    reads: tuple[str, ...] = ()
    """Other paths that decide along with this one."""
    below: TranslateBelow | None = None
    """Of a row for a whole group (`.*`): translates in place of `translate`, by the path."""

    def mean(self, path: str, theirs: Theirs, fields: Collection[str]) -> Meaning:
        """What this path, which is the row's own or below it, is here."""
        if self.below is not None:
            return self.below(path, theirs[path], theirs, fields)
        return self.translate(theirs[path], theirs, fields)


def same(ours: str) -> Translate:
    """The value as it is, under our name."""
    return lambda value, theirs, fields: {ours: value}


def only(*allowed: object, why: str) -> Translate:
    """Nothing else exists here, so these values have no effect and others are refused."""

    def translate(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
        if value not in allowed:
            choice = " or ".join(str(one) for one in allowed)
            raise ValueError(f"only {choice} is possible here: {why}")
        return why

    return translate


def row(path: str, ours: str, example: object, translate: Translate | None = None, *reads: str) -> KnownPath:
    """A name that is another one here, unless `translate` says more."""
    return KnownPath(path, ours, translate or same(ours), example, reads)


def by_path(*rows: KnownPath) -> dict[str, KnownPath]:
    """A table, to look names up in."""
    return {known.path: known for known in rows}


def whole(name: str, value: object) -> int:
    """A whole number that counts something, or a refusal."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number >= 1, received {value!r}")
    return value


def nested(options: Mapping[str, object]) -> JsonObject:
    """Dotted names as the groups they were."""
    whole_: JsonObject = {}
    for path, value in options.items():
        *groups, last = path.split(".")
        inner = whole_
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[last] = value
    return whole_
