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
import os
import pickle
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import ray
from ray import cloudpickle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from headway.core.protocols import NoRoom, Notice, Role, RoleDied, RoleError, RoleLate
from headway.core.types import map_payloads
from headway.core.types_opaque import CoroutineOf, Payload, RoleAnswer
from headway.runtimes.child_process_child import KILL_S
from headway.runtimes.loop_threads_landings import Landings
from headway.runtimes.loop_threads_own_thread import beside
from headway.runtimes.ray_cluster import Connection, connect, lacking
from headway.runtimes.ray_cluster_ray_control_store import ask
from headway.runtimes.ray_cluster_ray_doubts import Doubts, rooms
from headway.runtimes.ray_cluster_ray_notices import Notices, hear
from headway.runtimes.ray_cluster_ray_reservations import GpuReservations
from headway.runtimes.ray_role import FULL, SPREAD, RoleActor, Strategy, no_room
from headway.runtimes.ray_role_ray_copies import DriverCopies
from headway.runtimes.ray_role_ray_payloads import Parts
from headway.runtimes.ray_role_ray_stored import StoredPayloads

T = TypeVar("T")

SHARE_AFTER_S = 10.0
"""A role that could not be placed by then shares the CPUs of others."""
ASK_S = 5.0
"""How long Ray's control store may take to say which nodes there are, when a role has died."""


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
    sends_calls = True

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
        self._copies = DriverCopies() if keeps_copies else None
        self._node: str | None = None  # the driver's, once connected
        self._connection: Connection | None = None
        self._roles: dict[str, Role] = {}
        self._running: dict[str, RoleActor] = {}
        self._rooms = GpuReservations()
        self._doubts = Doubts()
        self._notices = Notices()
        self._successors: dict[str, RoleActor] = {}  # built elsewhere, until they take over
        self._leaving: set[RoleActor] = set()  # taken over from; they end with their last call
        self._landings: Landings | None = None  # of the loop that the roles were started in
        self._stored = StoredPayloads()

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
        await self._spawn(role, self._running)
        self._roles[role.name] = role

    async def restart(self, role: str) -> None:
        await self._end([self._running[role]])
        if not self._take_over(role):
            await self._wait_for_control_store(role)
            await self._spawn(self._roles[role], self._running)

    async def wait_for_notice(self) -> Notice:
        assert self._connection is not None
        raylet = self._connection.raylet
        return await self._notices.next(lambda: {role: actor.node for role, actor in self._running.items()}, raylet)

    async def prepare(self, role: str) -> bool:
        if role not in self._roles:
            return False  # it has ended since
        if self._rooms.of(role) is not None:
            return False  # its GPUs are where they are, until Ray finds others for them
        try:
            await self._spawn(self._roles[role], self._successors)
        except RoleError:
            return False
        return True

    async def move(self, role: str) -> bool:
        before = self._running[role]
        if not self._take_over(role):
            return False
        self._leaving.add(before)
        await self._end_if_left(before)
        return True

    def _take_over(self, role: str) -> bool:
        """What was prepared runs the role from here on, if anything was and it is well."""
        second = self._successors.get(role)
        if second is None or not second.is_ready:
            return False
        del self._successors[role]
        if second.how_it_ended:
            return False
        self._running[role] = second
        return True

    async def _end_if_left(self, actor: RoleActor) -> None:
        """After its last call: nobody will speak to it again."""
        if actor in self._leaving and not actor.under_way:
            self._leaving.discard(actor)
            await self._end([actor])

    async def end(self, role: str) -> None:
        self._roles.pop(role, None)
        actors = [among.pop(role) for among in (self._running, self._successors) if role in among]
        if actors:
            await self._end(actors)
        self._rooms.give_back(role)

    async def call(self, role: str, method: str, *args: object, deadline_s: float) -> RoleAnswer:
        actor = self._running[role]
        if actor.how_it_ended:
            raise RoleDied(role, method, actor.how_it_ended, never_began=True)
        given: list[tuple[ray.ObjectRef, int] | Parts] = []
        try:
            packed = cloudpickle.dumps(map_payloads(args, lambda payload: self._stored.give(payload, given)))
        except FULL as error:
            raise NoRoom(role, method, no_room(error, "what it is given")) from error
        actor.under_way += 1
        try:
            async with asyncio.timeout(deadline_s):
                reply, stored = await actor.ask(method, packed, given)
                if self._copies is not None and reply.is_stored and actor.node != self._node:
                    await self._copies.wait_for(actor, method, stored)
        except TimeoutError:
            actor.kill(f"was given up: no answer to {method} within {deadline_s:g} s")
            self._doubt(actor)
            raise RoleLate(role, method, f"no answer within {deadline_s:g} s") from None
        except RoleDied:
            assert self._connection is not None
            await hear(self._connection.raylet)  # it takes with it all that is on its node
            await self._give_up_lost_nodes()
            raise
        finally:
            actor.under_way -= 1
            if self._leaving:
                await self._end_if_left(actor)
        if self._doubts:
            self._doubts.end(actor.node)
        return self._stored.take(reply, stored)

    @property
    def driver_payload_bytes(self) -> int:
        """Payload bytes that came to the driver though nobody had fetched them."""
        return self._stored.driver_bytes

    def fetch(self, payload: Payload) -> Payload:
        """A copy, in the driver."""
        return self._stored.fetch(payload)

    def release(self, payload: object) -> None:
        self._stored.release(payload)

    async def close(self) -> None:
        if self._connection is None:
            return
        connection, self._connection = self._connection, None
        try:
            await self._end([*self._running.values(), *self._successors.values(), *self._leaving])
        finally:
            self._rooms.give_all_back()
            self._stored.forget_all()
            if self._copies is not None:
                await self._copies.close()
            self._node = self._landings = None
            connection.end()

    # -- the cluster --------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Nothing is left behind when it fails. It blocks: nothing else can happen before there is a cluster."""
        if self._connection is None:
            self._connection = connect(self._address, self._connect_s)
            self._node = self._connection.node

    def _wishes(self, role: Role) -> dict[str, float]:
        """What Ray shall reserve for the role."""
        placement, total = role.placement, ray.cluster_resources()
        reserved = sum(actor.wishes.get("CPU", 0.0) for actor in self._living())
        fits = reserved + placement.num_cpus <= total.get("CPU", 0.0)
        return {
            "CPU": placement.num_cpus if fits else 0.0,
            "GPU": placement.num_gpus if total.get("GPU") else 0.0,
            **placement.resources,
        }

    # -- actors -------------------------------------------------------------------------------------

    async def _wait_for_control_store(self, role: str) -> None:
        """What places an actor asks Ray's control store and blocks: it is asked beside the loop first."""
        try:
            await ask(ray.nodes, self._start_s)
        except TimeoutError as error:
            raise RoleLate(role, "start", str(error)) from None

    def _living(self) -> list[RoleActor]:
        actors = (*self._running.values(), *self._successors.values(), *self._leaving)
        return [actor for actor in actors if not actor.how_it_ended]

    async def _spawn(self, role: Role, among: dict[str, RoleActor]) -> None:
        try:
            factory = cloudpickle.dumps(role.factory)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(f"role {role.name!r}: its factory cannot be sent to a Ray actor ({error})") from error
        actor: RoleActor | None = None
        try:
            async with asyncio.timeout(self._start_s):
                actor = await self._place(role, among)
                await actor.build(factory, role.placement.num_threads)
        except TimeoutError:
            if actor:
                self._doubt(actor)
            what = "not built" if actor else f"not placed ({lacking(role.placement)})"
            raise RoleLate(role.name, "start", f"{what} within {self._start_s:g} s") from None
        finally:
            if actor and not actor.is_ready:  # cancelled, too: nothing would ever speak to this actor again
                actor.kill("could not be built")

    async def _place(self, role: Role, among: dict[str, RoleActor]) -> RoleActor:
        room = self._rooms.of(role.name)
        if room is not None:
            return await self._settle(role, among, *room)
        wishes, where = self._wishes(role), SPREAD
        if self._doubts:
            better = self._doubts.way_around(wishes, rooms(), [actor.node for actor in self._living()])
            if better is not None:
                where, wishes = NodeAffinitySchedulingStrategy(better[0], soft=True), better[1]
        try:
            async with asyncio.timeout(min(SHARE_AFTER_S, self._start_s / 2)):
                return await self._settle(role, among, wishes, where)
        except TimeoutError:
            return await self._settle(role, among, wishes | {"CPU": 0.0})

    async def _settle(
        self, role: Role, among: dict[str, RoleActor], wishes: dict[str, float], where: Strategy = SPREAD
    ) -> RoleActor:
        if self._landings is None:
            self._landings = Landings()
        actor = among[role.name] = RoleActor(role, wishes, self._landings, where)
        try:
            await actor.settle_in(self._node)
        finally:
            if not actor.pid:
                actor.kill("could not be placed")
        return actor

    def _doubt(self, actor: RoleActor) -> None:
        """It did not answer in time: perhaps its node is cut off. That of the driver is not."""
        if actor.node and actor.node != self._node:
            self._doubts.add(actor.node)

    async def _give_up_lost_nodes(self) -> None:
        """Whoever died may have died with others, which shall not be asked in vain. Who is there is not known while
        Ray's control store is silent."""
        try:
            nodes = await ask(ray.nodes, ASK_S)
        except TimeoutError:
            return
        alive = {node["NodeID"] for node in nodes if node["Alive"]}
        for actor in self._living():
            if actor.pid and actor.node not in alive:
                actor.kill("was lost with its node")

    async def _end(self, actors: Sequence[RoleActor]) -> None:
        for actor in actors:
            actor.kill("was ended")
        for actor in actors:
            await beside(partial(actor.wait_until_gone, KILL_S))
