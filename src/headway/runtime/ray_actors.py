"""Every role in a Ray actor, on this machine or on many; rollouts and weights stay in Ray's object store.

      driver (asyncio)                                  role's actor (RoleHost)
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
import contextlib
import ctypes
import io
import itertools
import os
import pickle
import re
import select
import signal
import socket
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import ray
from ray import cloudpickle
from ray._private import ray_constants
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.exceptions import GetTimeoutError, ObjectLostError, RayError, RayTaskError
from ray.experimental import get_local_object_locations

from headway.children.child import KILL_S, thread_limits
from headway.core.protocols import PayloadLost, Placement, Problem, Role, RoleDied, RoleLate, RoleRaised, explain
from headway.core.types import Rollout, Snapshot, carriers, map_payloads
from headway.runtime.beside import beside
from headway.runtime.transport import INLINE_BYTES, PayloadPickler

T = TypeVar("T")

STORED_BYTES = 100 << 10
"""What an actor returns stays in its node's store from this size on (max_direct_call_object_size of Ray)."""
GRACE_S = 1.0
"""Ray ends a process that listens much sooner, and one that does not (stopped, say) after five seconds."""
SHARE_AFTER_S = 10.0
"""A role that could not be placed by then shares the CPUs of others."""
MAX_PULLS = 32
"""How many payloads of other nodes are waited for at the same time."""
LOOPBACK = "127.0.0.1"
COLLECT, OTHER = "collect", "other"
"""The concurrency groups of a role with lanes: its threads for that method, and its one thread for all others."""
MAX_UNPLACED = 16
"""How many released payloads are held because the driver does not know yet that a node stores them."""
FETCH_S = 60.0
"""How long the driver waits for a payload that is on its way, or whose node has not been found dead yet."""

Parts = tuple[bytes, Sequence[Any]]
"""A payload: its pickled frame and the memory of its arrays."""


@dataclass(frozen=True, slots=True)
class RayRef:
    """Stands for a payload in the driver, which holds the object for it until released; a tiny one is `inline`."""

    serial: int
    size: int
    inline: Parts | None = None


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
    for. GPUs are asked for only where the cluster has any; a role sees those it was given and no others.
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
        self._running: dict[str, _Actor] = {}
        self._serials = itertools.count(1)
        self._objects: dict[int, tuple[ray.ObjectRef, int]] = {}  # serial -> object and place in it, until released
        self._plain: dict[int, tuple[Any, RayRef]] = {}  # payloads that came from no role, by id, until released
        self._released: deque[tuple[ray.ObjectRef, int]] = deque()  # held until the driver hears which node stores them
        self._pulls = ThreadPoolExecutor(MAX_PULLS, "headway ray pull")
        self.driver_payload_bytes = 0
        """Payload bytes that came to the driver with replies: tiny ones, and any that is in no node's store when it
        is released. What `fetch` was asked for and what the driver itself sends is not among them."""

    def run(self, main: Coroutine[Any, Any, T]) -> T:
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

    async def start(self, role: Role) -> None:
        if role.name in self._roles:
            raise ValueError(f"role {role.name!r} is started already; restart() builds it anew")
        self._connect()
        await self._spawn(role)
        self._roles[role.name] = role

    async def restart(self, role: str) -> None:
        await self._end([self._running[role]])
        await self._spawn(self._roles[role])

    async def call(self, role: str, method: str, *args: Any, deadline_s: float) -> Any:
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

    def fetch(self, payload: Any) -> Any:
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

    def release(self, payload: Any) -> None:
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
            for released in self._released:
                self._let_go(*released)
            self._released.clear()
            self._objects.clear()
            self._plain.clear()
            await asyncio.to_thread(self._pulls.shutdown, cancel_futures=True)
            self._node = None
            if self._disconnects:
                ray.shutdown()

    # -- the cluster --------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Nothing is left behind when it fails. It blocks: nothing else can happen before there is a cluster."""
        if self._node is not None:
            return
        is_local = self._address == "local"
        address = "local" if is_local else _check_address(self._address, self._connect_s)
        if ray.is_initialized():
            here = ray.get_runtime_context().gcs_address
            if not is_local and address != here:
                raise ConnectionError(f"this process is connected to Ray at {here}; it cannot use {address} as well")
        else:
            options: dict[str, Any] = {"include_dashboard": False, "_node_ip_address": LOOPBACK} if is_local else {}
            try:
                with _signal_handlers_kept(), _on_loopback() if is_local else contextlib.nullcontext():
                    ray.init(
                        "auto" if self._address == "auto" else address,
                        namespace=f"headway-{uuid.uuid4().hex}",
                        log_to_driver=False,
                        configure_logging=False,
                        **options,
                    )
            except (RayError, OSError, RuntimeError, ValueError) as error:
                ray.shutdown()
                place = "a local Ray cluster could not be started" if is_local else f"no Ray cluster at {self._address}"
                raise ConnectionError(f"{place}: {_first_line(error)}") from error
            self._disconnects = True
        self._node = ray.get_runtime_context().get_node_id()

    def _wishes(self, role: Role) -> dict[str, float]:
        """What Ray shall reserve for the role."""
        placement, total = role.placement, ray.cluster_resources()
        reserved = sum(actor.wishes["CPU"] for actor in self._running.values() if not actor.how_it_ended)
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
        actor: _Actor | None = None
        try:
            async with asyncio.timeout(self._start_s):
                actor = await self._place(role)
                await actor.build(factory, role.placement.num_threads)
        except TimeoutError:
            what = "not built" if actor else f"not placed ({_lacking(role.placement)})"
            raise RoleLate(role.name, "start", f"{what} within {self._start_s:g} s") from None
        finally:
            if actor and not actor.is_ready:  # cancelled, too: nothing would ever speak to this actor again
                actor.kill("could not be built")

    async def _place(self, role: Role) -> _Actor:
        wishes = self._wishes(role)
        try:
            async with asyncio.timeout(min(SHARE_AFTER_S, self._start_s / 2)):
                return await self._settle(role, wishes)
        except TimeoutError:
            return await self._settle(role, wishes | {"CPU": 0.0})

    async def _settle(self, role: Role, wishes: dict[str, float]) -> _Actor:
        actor = self._running[role.name] = _Actor(role, wishes)
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

    async def _end(self, actors: Sequence[_Actor]) -> None:
        for actor in actors:
            actor.kill("was ended")
        for actor in actors:
            await asyncio.to_thread(actor.wait_until_gone, KILL_S)

    # -- payloads -----------------------------------------------------------------------------------

    def _give(self, payload: Any, given: list[tuple[ray.ObjectRef, int] | Parts]) -> int:
        """Add what a payload stands for to what the call gives; returns its place there."""
        ref = payload if isinstance(payload, RayRef) else self._refer_to_plain(payload)
        given.append(self._find(ref) if ref.inline is None else ref.inline)
        return len(given) - 1

    def _find(self, ref: RayRef) -> tuple[ray.ObjectRef, int]:
        if ref.serial not in self._objects:
            raise ValueError(f"payload {ref.serial} was released: it cannot be used again")
        return self._objects[ref.serial]

    def _refer_to_plain(self, payload: Any) -> RayRef:
        if id(payload) in self._plain:
            return self._plain[id(payload)][1]
        parts, size = _encode(payload)
        ref = RayRef(next(self._serials), size, parts if size <= INLINE_BYTES else None)
        if ref.inline is None:
            self._objects[ref.serial] = ray.put([parts]), 0
        self._plain[id(payload)] = payload, ref
        return ref

    async def _pull(self, actor: _Actor, method: str, stored: ray.ObjectRef) -> None:
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

    def _take(self, reply: Reply, stored: ray.ObjectRef) -> Any:
        """The result, with references in place of its payloads."""
        refs = []
        for index, size in enumerate(reply.sizes):
            refs.append(RayRef(next(self._serials), size, reply.inline[index] if reply.inline else None))
            if reply.is_stored:
                self._objects[refs[-1].serial] = stored, index
        if not reply.is_stored:
            self.driver_payload_bytes += sum(reply.sizes)
        return map_payloads(reply.value, refs.__getitem__)


@dataclass(frozen=True, slots=True)
class Reply:
    """What comes to the driver: a result whose payloads are places in `sizes` and in what was stored."""

    value: Any
    sizes: Sequence[int] = ()
    inline: Sequence[Parts] = ()
    problem: Problem | None = None  # what was raised
    lost: tuple[tuple[int, ...], tuple[int, ...]] | None = None  # tickets and versions whose payloads are gone

    @property
    def is_stored(self) -> bool:
        return bool(self.sizes) and not self.inline


class _Actor:
    """The driver's end of one role's actor."""

    def __init__(self, role: Role, wishes: dict[str, float]) -> None:
        self.role = role.name
        self.wishes = wishes
        self.pid = 0
        self.node = ""
        self.is_ready = False
        self.how_it_ended = ""
        self._process: int | None = None  # a descriptor, if it runs on this machine
        self._has_lanes = role.lanes > 1
        host: Any = ray.remote(RoleHost)
        if self._has_lanes:
            groups = {COLLECT: role.lanes, OTHER: 1}
            host = ray.remote(concurrency_groups=groups)(RoleHost)  # type: ignore[call-overload]
        self._host = host.options(
            num_cpus=wishes["CPU"],
            num_gpus=wishes["GPU"],
            resources={name: amount for name, amount in wishes.items() if name not in ("CPU", "GPU")},
            scheduling_strategy="SPREAD",  # so that a node takes as few roles as possible with it
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=1,
        ).remote(self._has_lanes)

    async def settle_in(self, driver_node: str | None) -> None:
        """Wait until it is placed."""
        self.pid, self.node = await self._answer("start", self._host.where.remote())
        if self.node == driver_node and hasattr(os, "pidfd_open"):
            with contextlib.suppress(ProcessLookupError):
                self._process = os.pidfd_open(self.pid)

    async def build(self, factory: bytes, num_threads: int) -> None:
        problem = await self._answer("start", self._host.build.remote(factory, num_threads, sys.path))
        if problem is not None:
            raise RoleRaised(self.role, "start", *problem)
        self.is_ready = True

    async def ask(self, method: str, args: bytes, given: Sequence[Any]) -> tuple[Reply, ray.ObjectRef]:
        ask = self._host.call.options(num_returns=2)
        if self._has_lanes:
            ask = self._host.call.options(num_returns=2, concurrency_group=COLLECT if method == COLLECT else OTHER)
        stored, answer = ask.remote(method, args, given)
        packed = await self._answer(method, answer)
        try:
            reply: Reply = cloudpickle.loads(packed)
        except Exception as error:  # the class of a value may be known there and not here
            what = f"the driver cannot read what it returned: {type(error).__name__}: {error}"
            raise RoleRaised(self.role, method, what) from error
        if reply.problem is not None:
            if reply.lost is not None:
                what, details, _ = reply.problem
                raise PayloadLost(self.role, method, what, details, *reply.lost)
            raise RoleRaised(self.role, method, *reply.problem)
        return reply, stored

    async def _answer(self, method: str, ref: ray.ObjectRef) -> Any:
        try:
            return await _when_done(ref)
        except RayTaskError as error:  # not the station's own: the host could not even answer
            raise RoleRaised(self.role, method, _first_line(error.cause or error), str(error)) from None
        except RayError as error:
            self.kill(_how_it_died(error))
            raise RoleDied(self.role, method, self.how_it_ended) from None

    def kill(self, how: str) -> None:
        if self.how_it_ended:
            return
        self.how_it_ended = f"its actor {how}"
        ray.kill(self._host, no_restart=True)

    def wait_until_gone(self, timeout_s: float) -> None:
        """Blocks. What runs on another node is left to Ray."""
        if self._process is None:
            return
        if not _is_over(self._process, GRACE_S):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
        if not _is_over(self._process, timeout_s):
            raise RoleLate(self.role, "kill", f"process {self.pid} is still there after {timeout_s:g} s")
        os.close(self._process)
        self._process = None


def _is_over(process: int, timeout_s: float) -> bool:
    return bool(select.select([process], [], [], timeout_s)[0])


# ---------------------------------------------------------------------------------------- in the actor


class RoleHost:
    """What runs in a role's actor: it builds the role's object, then answers calls: one after another, or with lanes
    as many at once as the concurrency groups of the actor let through. Calls share nothing but the object.
    """

    def __init__(self, has_lanes: bool) -> None:
        self._has_lanes = has_lanes
        self._object: Any = None

    def where(self) -> tuple[int, str]:
        return os.getpid(), ray.get_runtime_context().get_node_id()

    def build(self, factory: bytes, num_threads: int, path: Sequence[str]) -> Problem | None:
        """What went wrong, if anything did."""
        # Before numpy is imported, which is why nothing here does. A runtime_env would do it too, at twice the time
        # to start: Ray starts such a process twice, and has none waiting.
        os.environ.update(thread_limits(num_threads))
        if not ray.get_runtime_context().get_accelerator_ids().get("GPU"):
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray would leave all of them in sight
        sys.path += [folder for folder in path if folder not in sys.path]
        try:
            self._object = cloudpickle.loads(factory)()
        except Exception as error:
            return explain(error)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(num_threads)
        return None

    def call(self, method: str, packed: bytes, given: Sequence[Any]) -> tuple[Any, bytes]:
        """What is to stay in the store of this node, and the packed Reply."""
        stored: Any = None
        try:
            args = cloudpickle.loads(packed)
            try:
                parts = _get_all(given)
            except ObjectLostError:
                reply = _report_lost(args, given)
                return None, _pack(method, reply)
            result = getattr(self._object, method)(*_resolve(args, parts))
            reply, stored = _part_with(result)
            return stored, _pack(method, reply)
        except Exception as error:
            return None, cloudpickle.dumps(Reply(None, problem=explain(error)))
        except SystemExit:
            if self._has_lanes:
                os._exit(1)  # Ray would wait for the other lanes to end first
            raise


def _pack(method: str, reply: Reply) -> bytes:
    try:
        return cloudpickle.dumps(reply)
    except Exception as error:
        raise TypeError(f"what {method} returned cannot be sent to another process: {error}") from error


def _get_all(given: Sequence[Any]) -> list[Parts]:
    """What each thing given stands for. One request for all of it."""
    refs = {place[0]: None for place in given if isinstance(place[0], ray.ObjectRef)}
    objects = dict(zip(refs, ray.get(list(refs)), strict=True)) if refs else {}
    return [objects[place[0]][place[1]] if place[0] in objects else place for place in given]


def _resolve(value: Any, parts: Sequence[Parts]) -> Any:
    """Put views in place of payloads: of snapshots read-only, for many look at the same memory."""
    if type(value) is tuple:
        return tuple(_resolve(item, parts) for item in value)
    is_writable = not isinstance(value, Snapshot)
    return map_payloads(value, lambda place: _decode(parts[place], is_writable))


def _report_lost(args: Any, given: Sequence[Any]) -> Reply:
    """Which of them. What is lost stays lost, so asking again gives the same answer."""
    lost = []
    for carrier in carriers(args):
        try:
            _get_all([given[carrier.payload]])
        except ObjectLostError:
            lost.append(carrier)
    tickets = tuple(carrier.ticket for carrier in lost if isinstance(carrier, Rollout))
    versions = tuple(carrier.version for carrier in lost if isinstance(carrier, Snapshot))
    of_rollouts = [f"ticket {index}" if index >= 0 else "a draw" for index in tickets]
    names = [*of_rollouts, *(f"version {version}" for version in versions)]
    what = f"the payload of {', '.join(names) or 'what it was given'} was lost with the node that held it"
    return Reply(None, problem=(what, "", False), lost=(tickets, versions))


def _part_with(result: Any) -> tuple[Reply, Any]:
    """The result as a reply, and the payloads to be stored: none if they are tiny.

    Ray sends small returns to the driver with the reply; a payload smaller than that is filled up.
    """
    payloads: list[Parts] = []
    sizes: list[int] = []

    def put_aside(payload: Any) -> int:
        parts, size = _encode(payload)
        payloads.append(parts)
        sizes.append(size)
        return len(payloads) - 1

    value = map_payloads(result, put_aside)
    total = sum(sizes)
    if total <= INLINE_BYTES:
        return Reply(value, sizes, payloads), None
    stored: list[Any] = [(header, list(map(pickle.PickleBuffer, buffers))) for header, buffers in payloads]
    return Reply(value, sizes), [*stored, pickle.PickleBuffer(bytes(max(0, STORED_BYTES - total)))]


# ---------------------------------------------------------------------------------------- payloads <-> memory


class _PayloadPickler(cloudpickle.CloudPickler):
    """Arrays and tensors out of band, as between processes; classes and functions as Ray sends them."""

    def reducer_override(self, value: Any) -> Any:
        reduced = PayloadPickler.reducer_override(self, value)  # type: ignore[arg-type]
        return super().reducer_override(value) if reduced is NotImplemented else reduced


def _encode(payload: Any) -> tuple[Parts, int]:
    """The parts of a payload, over its own memory, and their size."""
    buffers: list[pickle.PickleBuffer] = []
    header = io.BytesIO()
    _PayloadPickler(header, 5, buffer_callback=buffers.append).dump(payload)
    raw = [buffer.raw() for buffer in buffers]
    size = header.tell() + sum(memory.nbytes for memory in raw)
    if size <= INLINE_BYTES:
        return (header.getvalue(), [bytes(memory) for memory in raw]), size
    return (header.getvalue(), raw), size


def _decode(parts: Parts, is_writable: bool) -> Any:
    """The payload, its arrays over the memory of the parts."""
    header, buffers = parts
    views = [_open(buffer) for buffer in buffers]
    return pickle.loads(header, buffers=views if is_writable else [view.toreadonly() for view in views])


def _open(buffer: Any) -> memoryview:
    """A writable view: Ray marks its memory read-only, and neither torch nor code that works in place likes that."""
    if isinstance(buffer, bytes) or not memoryview(buffer).nbytes:
        return memoryview(bytearray(buffer))
    import numpy

    flat = numpy.frombuffer(buffer, numpy.uint8)
    block = (ctypes.c_ubyte * flat.size).from_address(flat.ctypes.data)
    block.source = flat  # type: ignore[attr-defined]  # the memory stays while anything looks at the block
    return memoryview(block)


# ---------------------------------------------------------------------------------------- speaking to Ray


def _when_done(ref: ray.ObjectRef) -> asyncio.Future[Any]:
    """The value of `ref`. Whoever waits may stop waiting; Ray's own futures do not take that well."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def settle(done: Future[Any]) -> None:
        if answer.done():
            return
        error = done.exception()
        if error is None:
            answer.set_result(done.result())
        else:
            answer.set_exception(error)

    def pass_on(done: Future[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, done)

    ref.future().add_done_callback(pass_on)
    return answer


def _places(stored: ray.ObjectRef) -> list[str]:
    """The nodes whose stores hold the object, as far as the driver knows; none if it came with the reply."""
    known: list[str] = get_local_object_locations([stored])[stored]["node_ids"]
    return known


def _is_here(stored: ray.ObjectRef) -> bool:
    """Waits a second at most, so that a thread that nobody waits for is soon free."""
    return bool(ray.wait([stored], timeout=1.0, fetch_local=True)[0])


def _check_address(address: str, timeout_s: float) -> str:
    """host:port of a Ray cluster that answers. Ray itself would try for a minute, and may end the process."""
    ends_at = time.monotonic() + timeout_s
    try:
        found: str | None = ray._private.services.canonicalize_bootstrap_address(address)
        if found is None:
            raise ConnectionError("none runs on this machine")
        host, _, port = found.rpartition(":")
        with socket.create_connection((host, int(port)), timeout_s) as connection:
            connection.settimeout(max(0.001, ends_at - time.monotonic()))
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
                answer = connection.recv(9)
                if len(answer) < 4 or answer[3] != 4:  # a gRPC server begins with a SETTINGS frame
                    raise ConnectionError("what listens there is not Ray")
        if address != "auto":  # to a cluster it finds by itself Ray shows its token, to an address only if asked to
            _greet(found, ends_at - time.monotonic())
    except RayError as error:
        raise ConnectionError(f"the Ray cluster at {address} does not let us in: {_first_line(error)}") from None
    except ValueError:
        raise ConnectionError(f"no Ray cluster at {address!r}: an address is host:port, or auto") from None
    except TimeoutError:
        raise ConnectionError(f"no Ray cluster at {address}: no answer within {timeout_s:g} s") from None
    except OSError as error:
        raise ConnectionError(f"no Ray cluster at {address}: {error.strerror or _first_line(error)}") from None
    return found


def _greet(address: str, timeout_s: float) -> None:
    """Say hello, as Ray's own client would. In a thread, for that may take half a minute to find nobody there."""
    answer: Future[Any] = Future()

    def ask() -> None:
        try:
            answer.set_result(GcsClient(address=address))
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name="headway ray greeting", daemon=True).start()
    answer.result(max(0.001, timeout_s))


@contextlib.contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself; it belongs to whoever runs the coordinator."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """A Ray that starts meanwhile listens on the loopback interface only. Ray does so by itself where it expects no
    other nodes; elsewhere it puts an address that others can reach in the place of the one it is given."""
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _lacking(placement: Placement) -> str:
    wishes = {"CPU": placement.num_cpus, "GPU": placement.num_gpus, **placement.resources}
    asked = {name: amount for name, amount in wishes.items() if amount}
    total, free = ray.cluster_resources(), ray.available_resources()
    has = {name: f"{free.get(name, 0):g} of {total.get(name, 0):g} free" for name in asked}
    return f"asked for {_list(asked)}; the cluster has {_list(has)}"


def _list(amounts: dict[str, Any]) -> str:
    return (
        ", ".join(
            f"{name} {amount:g}" if isinstance(amount, float) else f"{name} {amount}"
            for name, amount in amounts.items()
        )
        or "nothing"
    )


def _how_it_died(error: RayError) -> str:
    """Ray's reason, without its advice."""
    reason = re.search(r"The actor (is dead|died) because (.*?)(Some common causes|$)", str(error), re.DOTALL)
    if reason is None:
        return f"failed: {_first_line(error)}"
    return f"died because {' '.join(reason[2].split()).rstrip('.')}"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
