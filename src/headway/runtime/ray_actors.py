"""Every role in a Ray actor, on this machine or on many; rollouts and weights stay in Ray's object store.

      driver (asyncio)                                  role's actor (ray_role.py)
      call() --> method, arguments, references  ----->  payloads as views over the store, object.method(...)
             <-- 1st return: the payloads  <----------  stay in the store of that node; the driver gets a reference
             <-- 2nd return: all but the payloads  <--  comes to the driver

      starting --> placed --> ready --> ended (exit, crash, kill, node lost, deadline passed, close)

What an actor returns belongs to the caller, so payloads outlive the actor that made them. They do not outlive
the nodes that hold them. With `keeps_copies` the answer of an actor on another node is therefore given only when the
store of the driver's node, the one node a run cannot do without, has a copy (which Ray may still let go when that
store is full). A payload that is gone all the same is reported as PayloadLost by whoever needs it. Each further node
pulls a payload once and shares it among its actors. Nothing but small values passes through the driver itself.

Invariants: a call that was given up or whose actor is gone leaves no actor running; an actor that failed once
is never spoken to again; with `address` nothing but our own actors is ended, without it everything is.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import ray
from ray import cloudpickle
from ray.exceptions import GetTimeoutError, ObjectLostError
from ray.experimental import get_local_object_locations

from headway.children.child import KILL_S
from headway.core.opaque import CoroutineOf, Payload, RoleAnswer
from headway.core.protocols import PayloadLost, Role, RoleDied, RoleLate
from headway.core.types import map_payloads
from headway.runtime.own_thread import beside
from headway.runtime.ray_cluster import connect, lacking
from headway.runtime.ray_payloads import Parts, RayRef, encode_parts
from headway.runtime.ray_reservations import GpuReservations
from headway.runtime.ray_role import SPREAD, RayReply, RoleActor, Strategy
from headway.runtime.transport import INLINE_BYTES

T = TypeVar("T")

SHARE_AFTER_S = 10.0
"""A role that could not be placed by then shares the CPUs of others."""
MAX_PULLS = 32
"""How many payloads of other nodes are waited for at the same time."""
MAX_UNPLACED = 16
"""How many released payloads are held because the driver does not know yet that a node stores them."""
FETCH_S = 60.0
"""How long the driver waits for a payload that is on its way, or whose node has not been found dead yet."""


class RayActors:
    """The Ray runtime.

    `address` (default: the variable RAY_ADDRESS) names a running cluster, "auto" the one on this machine; without
    either a local one is started, which only this machine can reach, and shut down at close. If Ray is initialised in
    this process already, that is used and left alone. `connect_s` bounds the wait for an address to answer, `start_s`
    how long a role may take to be placed and built. `keeps_copies`: whether what is made on another node is copied to
    the driver's before it counts as here; without, a payload goes straight to where it is used, and what is lost with a
    node is collected again.

    Roles get the CPUs they ask for while the cluster has as many free where they can run; further roles share (they
    reserve none), so that a laptop can run more roles than it has cores. A cluster that could grow is not waited
    for. GPUs are asked for only where the cluster has any; a role sees those it was given and no others. Roles with
    whole GPUs get them before any role starts (ray_reservations.py).
    """

    name = "ray"

    def __init__(
        self,
        address: str | None = None,
        start_s: float = 100.0,
        connect_s: float = 10.0,
        *,
        keeps_copies: bool = True,
    ) -> None:
        for name, value in (("start_s", start_s), ("connect_s", connect_s)):
            if not value > 0:
                raise ValueError(f"{name} must be positive, or nothing could start; received {value}")
        self._address = address or os.environ.get("RAY_ADDRESS") or "local"
        if self._address.startswith("ray://"):
            raise ValueError(f"{self._address} is a Ray client address: give that of the cluster itself (host:6379)")
        self._start_s = start_s
        self._connect_s = connect_s
        self._keeps_copies = keeps_copies
        self._node: str | None = None  # the driver's, once connected
        self._disconnects = False
        self._roles: dict[str, Role] = {}
        self._running: dict[str, RoleActor] = {}
        self._rooms = GpuReservations()
        self._serials = itertools.count(1)
        self._objects: dict[int, tuple[ray.ObjectRef, int]] = {}  # serial -> object and place in it, until released
        self._plain: dict[int, tuple[Payload, RayRef]] = {}  # payloads that came from no role, by id, until released
        self._released: deque[tuple[ray.ObjectRef, int]] = deque()  # held until the driver hears which node stores them
        self._pulls = ThreadPoolExecutor(MAX_PULLS, "headway ray pull")
        self.driver_payload_bytes = 0
        """Payload bytes that came to the driver with replies: tiny ones, and any that is in no node's store when it
        is released. What `fetch` was asked for and what the driver itself sends is not among them."""

    def run(self, main: CoroutineOf[T]) -> T:
        return asyncio.run(main)

    now = staticmethod(time.perf_counter)

    async def offload(self, work: Callable[[], T]) -> T:
        return await beside(work)

    def roles(self) -> tuple[str, ...]:
        return tuple(self._roles)

    def pid(self, role: str) -> int:
        """Of the process, on whichever node it runs."""
        return self._running[role].pid

    def node(self, role: str) -> str:
        """The id of the node the role runs on."""
        return self._running[role].node

    async def reserve(self, roles: Sequence[Role]) -> None:
        """Whole GPUs for all of them, by node, before the first one starts."""
        self._connect()
        await self._rooms.reserve(roles, self._start_s)

    async def start(self, role: Role) -> None:
        if role.name in self._roles:
            raise ValueError(f"role {role.name!r} is started already; restart() builds it anew")
        self._connect()
        await self._spawn(role)
        self._roles[role.name] = role

    async def restart(self, role: str) -> None:
        await self._end([self._running[role]])
        await self._spawn(self._roles[role])

    async def call(self, role: str, method: str, *args: object, deadline_s: float) -> RoleAnswer:
        actor = self._running[role]
        if actor.how_it_ended:
            raise RoleDied(role, method, actor.how_it_ended, never_began=True)
        given: list[tuple[ray.ObjectRef, int] | Parts] = []
        packed = cloudpickle.dumps(map_payloads(args, lambda payload: self._give(payload, given)))
        try:
            async with asyncio.timeout(deadline_s):
                reply, stored = await actor.ask(method, packed, given)
                if reply.is_stored and actor.node != self._node and self._keeps_copies:
                    await self._pull(actor, method, stored)
        except TimeoutError:
            actor.kill(f"was given up: no answer to {method} within {deadline_s:g} s")
            raise RoleLate(role, method, f"no answer within {deadline_s:g} s") from None
        except RoleDied:
            self._give_up_lost_nodes()
            raise
        return self._take(reply, stored)

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
            while self._released and (_places(self._released[0][0]) or len(self._released) > MAX_UNPLACED):
                self._let_go(*self._released.popleft())

    def _let_go(self, ref: ray.ObjectRef, size: int) -> None:
        if not _places(ref):
            self.driver_payload_bytes += size

    async def close(self) -> None:
        if self._node is None:
            return
        try:
            await self._end(list(self._running.values()))
        finally:
            self._rooms.give_back()
            for released in self._released:
                self._let_go(*released)
            self._released.clear()
            self._objects.clear()
            self._plain.clear()
            await beside(partial(self._pulls.shutdown, cancel_futures=True))
            self._node = None
            if self._disconnects:
                ray.shutdown()

    # -- the cluster --------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Nothing is left behind when it fails. It blocks: nothing else can happen before there is a cluster."""
        if self._node is None:
            self._disconnects = connect(self._address, self._connect_s)
            self._node = ray.get_runtime_context().get_node_id()

    def _wishes(self, role: Role) -> dict[str, float]:
        """What Ray shall reserve for the role."""
        placement, total = role.placement, ray.cluster_resources()
        reserved = sum(actor.wishes.get("CPU", 0.0) for actor in self._running.values() if not actor.how_it_ended)
        fits = reserved + placement.num_cpus <= total.get("CPU", 0.0)
        return {
            "CPU": placement.num_cpus if fits else 0.0,
            "GPU": placement.num_gpus if total.get("GPU") else 0.0,
            **placement.resources,
        }

    # -- actors -------------------------------------------------------------------------------------

    async def _spawn(self, role: Role) -> None:
        try:
            factory = cloudpickle.dumps(role.factory)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(f"role {role.name!r}: its factory cannot be sent to a Ray actor ({error})") from error
        actor: RoleActor | None = None
        try:
            async with asyncio.timeout(self._start_s):
                actor = await self._place(role)
                await actor.build(factory, role.placement.num_threads)
        except TimeoutError:
            what = "not built" if actor else f"not placed ({lacking(role.placement)})"
            raise RoleLate(role.name, "start", f"{what} within {self._start_s:g} s") from None
        finally:
            if actor and not actor.is_ready:  # cancelled, too: nothing would ever speak to this actor again
                actor.kill("could not be built")

    async def _place(self, role: Role) -> RoleActor:
        room = self._rooms.of(role.name)
        if room is not None:
            return await self._settle(role, *room)
        wishes = self._wishes(role)
        try:
            async with asyncio.timeout(min(SHARE_AFTER_S, self._start_s / 2)):
                return await self._settle(role, wishes)
        except TimeoutError:
            return await self._settle(role, wishes | {"CPU": 0.0})

    async def _settle(self, role: Role, wishes: dict[str, float], where: Strategy = SPREAD) -> RoleActor:
        actor = self._running[role.name] = RoleActor(role, wishes, where)
        try:
            await actor.settle_in(self._node)
        finally:
            if not actor.pid:
                actor.kill("could not be placed")
        return actor

    def _give_up_lost_nodes(self) -> None:
        """Whoever died may have died with others, which shall not be asked in vain."""
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        for actor in self._running.values():
            if actor.pid and actor.node not in alive:
                actor.kill("was lost with its node")

    async def _end(self, actors: Sequence[RoleActor]) -> None:
        for actor in actors:
            actor.kill("was ended")
        for actor in actors:
            await beside(partial(actor.wait_until_gone, KILL_S))

    # -- payloads -----------------------------------------------------------------------------------

    def _give(self, payload: object, given: list[tuple[ray.ObjectRef, int] | Parts]) -> int:
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

    async def _pull(self, actor: RoleActor, method: str, stored: ray.ObjectRef) -> None:
        """Wait until the store of the driver's node holds a copy."""
        loop = asyncio.get_running_loop()
        while not await loop.run_in_executor(self._pulls, _is_here, stored):
            pass
        while not _places(stored):  # the driver may learn of it a moment after it has the answer
            await asyncio.sleep(0.001)
        if actor.node not in _places(stored):  # its node died meanwhile: ours may hold no more than the error
            try:
                await loop.run_in_executor(self._pulls, ray.get, stored)
            except ObjectLostError:
                actor.kill("was lost with its node")
                raise RoleDied(actor.role, method, f"what it returned was lost with node {actor.node}") from None

    def _take(self, reply: RayReply, stored: ray.ObjectRef) -> RoleAnswer:
        """The result, with references in place of its payloads."""
        refs = []
        for index, size in enumerate(reply.sizes):
            refs.append(RayRef(next(self._serials), size, reply.inline[index] if reply.inline else None))
            if reply.is_stored:
                self._objects[refs[-1].serial] = stored, index
        if not reply.is_stored:
            self.driver_payload_bytes += sum(reply.sizes)
        return map_payloads(reply.value, refs.__getitem__)


def _places(stored: ray.ObjectRef) -> list[str]:
    """The nodes whose stores hold the object, as far as the driver knows; none if it came with the reply."""
    return get_local_object_locations([stored])[stored]["node_ids"]


def _is_here(stored: ray.ObjectRef) -> bool:
    """Waits a second at most, so that a thread that nobody waits for is soon free."""
    return bool(ray.wait([stored], timeout=1.0, fetch_local=True)[0])
