"""How a station gets the record it expects out of a rollout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TypeVar

import numpy as np

from headway.core.types import Rollout

Record = TypeVar("Record")


def record_of(rollout: Rollout, kind: type[Record]) -> Record:
    """The payload of `rollout`, or one line that says what came instead."""
    return as_record(rollout.payload, kind)


def as_record(payload: object, kind: type[Record]) -> Record:
    """`payload`, if it is a `kind`.

    Before there were records, payloads were dictionaries with the same names: a checkpoint of that time holds such, and
    this is where they become records.
    """
    if isinstance(payload, kind):
        return payload
    if isinstance(payload, Mapping):
        known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
        try:
            return kind(**{name: value for name, value in payload.items() if name in known})
        except TypeError as error:
            raise TypeError(f"a dictionary with {sorted(payload)} is no {kind.__name__}: {error}") from None
    raise TypeError(f"expected a {kind.__name__}, received a {type(payload).__name__}")


def restore_fields(record: object, values: Sequence[object]) -> None:
    """Sets the fields of a frozen record as they were pickled; those that have joined it since have their defaults."""
    known = fields(record)  # type: ignore[arg-type]
    for field, value in zip(known, values, strict=False):
        object.__setattr__(record, field.name, value)
    for field in known[len(values) :]:
        object.__setattr__(record, field.name, field.default)


def arrays_of(record: object) -> dict[str, np.ndarray]:
    """The arrays of a record by name, in the order of its fields; what is None is left out."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}  # type: ignore[arg-type]
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
