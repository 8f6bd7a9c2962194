"""What a payload of a run stands for in Ray's object store, from when the driver hears of it until it is released.

reply of an actor ------ take --> RayRef --> in the arguments of other calls --> release --> Ray may forget it
the driver's own value -- give --> RayRef --^
"""

from __future__ import annotations

import itertools
import pickle
from collections import deque

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError
from ray.experimental import get_local_object_locations

from headway.core.protocols import PayloadLost
from headway.core.types import map_payloads
from headway.core.types_opaque import Payload, RoleAnswer
from headway.runtimes.ray_role import RayReply
from headway.runtimes.ray_role_ray_payloads import Parts, RayRef, encode_parts
from headway.runtimes.shared_memory_transport import INLINE_BYTES

MAX_UNPLACED = 16
"""How many released payloads are held because the driver does not know yet that a node stores them."""
FETCH_S = 60.0
"""How long the driver waits for a payload that is on its way, or whose node has not been found dead yet."""


class StoredPayloads:
    """The references of one run, and the objects that stay in the store because of them."""

    def __init__(self) -> None:
        self._serials = itertools.count(1)
        self._objects: dict[int, tuple[ray.ObjectRef, int]] = {}  # serial -> object and place in it, until released
        self._plain: dict[int, tuple[Payload, RayRef]] = {}  # payloads that came from no role, by id, until released
        self._released: deque[tuple[ray.ObjectRef, int]] = deque()  # held until the driver hears which node stores them
        self.driver_bytes = 0
        """Payload bytes that came to the driver with replies: tiny ones, and any that is in no node's store when it
        is released. What `fetch` was asked for and what the driver itself sends is not among them."""

    def give(self, payload: object, given: list[tuple[ray.ObjectRef, int] | Parts]) -> int:
        """Add what a payload stands for to what the call gives; returns its place there."""
        ref = payload if isinstance(payload, RayRef) else self._refer_to_plain(payload)
        given.append(self._find(ref) if ref.inline is None else ref.inline)
        return len(given) - 1

    def _find(self, ref: RayRef) -> tuple[ray.ObjectRef, int]:
        if ref.serial not in self._objects:
            raise ValueError(f"payload {ref.serial} was released: it cannot be used again")
        return self._objects[ref.serial]

    def _refer_to_plain(self, payload: object) -> RayRef:
        if id(payload) in self._plain:
            return self._plain[id(payload)][1]
        parts, size = encode_parts(payload)
        ref = RayRef(next(self._serials), size, parts if size <= INLINE_BYTES else None)
        if ref.inline is None:
            self._objects[ref.serial] = ray.put([parts]), 0
        self._plain[id(payload)] = payload, ref
        return ref

    def take(self, reply: RayReply, stored: ray.ObjectRef) -> RoleAnswer:
        """The result, with references in place of its payloads."""
        refs = []
        for index, size in enumerate(reply.sizes):
            refs.append(RayRef(next(self._serials), size, reply.inline[index] if reply.inline else None))
            if reply.is_stored:
                self._objects[refs[-1].serial] = stored, index
        if not reply.is_stored:
            self.driver_bytes += sum(reply.sizes)
        return map_payloads(reply.value, refs.__getitem__)

    def fetch(self, payload: Payload) -> Payload:
        """A copy, in the driver."""
        if not isinstance(payload, RayRef):
            return payload
        parts = payload.inline
        if parts is None:
            ref, index = self._find(payload)
            try:
                parts = ray.get(ref, timeout=FETCH_S)[index]
            except ObjectLostError as error:
                raise PayloadLost("driver", "fetch", "the payload was lost with the node that held it") from error
            except GetTimeoutError as error:
                raise PayloadLost("driver", "fetch", f"the payload did not come within {FETCH_S:g} s") from error
        header, buffers = parts
        return pickle.loads(header, buffers=[bytearray(buffer) for buffer in buffers])

    def release(self, payload: object) -> None:
        if id(payload) in self._plain:
            _, payload = self._plain.pop(id(payload))
        if isinstance(payload, RayRef) and payload.serial in self._objects:
            ref, _ = self._objects.pop(payload.serial)
            self._released.append((ref, payload.size))
            while self._released and (places_of(self._released[0][0]) or len(self._released) > MAX_UNPLACED):
                self._let_go(*self._released.popleft())

    def _let_go(self, ref: ray.ObjectRef, size: int) -> None:
        if not places_of(ref):
            self.driver_bytes += size

    def forget_all(self) -> None:
        for released in self._released:
            self._let_go(*released)
        self._released.clear()
        self._objects.clear()
        self._plain.clear()


def places_of(stored: ray.ObjectRef) -> list[str]:
    """The nodes whose stores hold the object, as far as the driver knows; none if it came with the reply."""
    return get_local_object_locations([stored])[stored]["node_ids"]
