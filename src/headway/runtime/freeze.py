"""Snapshots are immutable: inside one process that takes a copy, made where the weights are."""

from __future__ import annotations

import copy

from headway.core.opaque import RoleAnswer
from headway.core.types import Snapshot


def freeze(result: RoleAnswer) -> RoleAnswer:
    """`result` with the payload of every snapshot in it copied, so that the learner may go on changing it."""
    if type(result) is Snapshot:
        return Snapshot(result.version, copy.deepcopy(result.payload))
    if type(result) is tuple:
        for item in result:
            if type(item) is Snapshot:
                return tuple(freeze(item) for item in result)
    return result
