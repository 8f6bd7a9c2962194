"""What runtimes in one process share: payloads travel as they are, and a snapshot is copied where the weights are."""

from __future__ import annotations

import copy

from headway.core.types import Snapshot
from headway.core.types_opaque import Payload, RoleAnswer


class PlainPayloads:
    """Hands payloads on without a reference in their place, so there is nothing to fetch or to release."""

    def fetch(self, payload: Payload) -> Payload:
        return payload

    def release(self, payload: object) -> None:
        pass


def freeze(result: RoleAnswer) -> RoleAnswer:
    """`result` with the payload of every snapshot in it copied, so that the learner may go on changing it."""
    if type(result) is Snapshot:
        return Snapshot(result.version, copy.deepcopy(result.payload))
    if type(result) is tuple:
        for item in result:
            if type(item) is Snapshot:
                return tuple(freeze(item) for item in result)
    return result
