"""Snapshots are immutable: inside one process that takes a copy, made where the weights are."""

from __future__ import annotations

import copy
from typing import Any

from headway.core.types import Snapshot


def freeze(result: Any) -> Any:
    """`result` with the payload of every snapshot in it copied, so that the learner may go on changing it."""
    if isinstance(result, Snapshot):
        return Snapshot(result.version, copy.deepcopy(result.payload))
    if type(result) is tuple:
        return tuple(freeze(item) for item in result)
    return result
