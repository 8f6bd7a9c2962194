"""What one nested name of another system is here: what the tables of `nested_names.py` and `lightzero_names.py` are
made of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

Theirs = Mapping[str, Any]
"""Dotted paths and their values; what is null is not there."""
Meaning = dict[str, Any] | str
"""Settings here; or why there are none."""
Translate = Callable[[Any, Theirs, Collection[str]], Meaning]


@dataclass(frozen=True, slots=True)
class KnownPath:
    """One of their names. `translate` gets its value, all of their names that are set, and the recipe's settings."""

    path: str
    ours: str
    translate: Translate
    example: Any
    reads: tuple[str, ...] = ()
    """Other paths that decide along with this one."""


def same(ours: str) -> Translate:
    return lambda value, theirs, fields: {ours: value}


def only(*allowed: Any, why: str) -> Translate:
    """Nothing else exists here, so these values have no effect and others are refused."""

    def translate(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
        if value not in allowed:
            choice = " or ".join(str(one) for one in allowed)
            raise ValueError(f"only {choice} is possible here: {why}")
        return why

    return translate
