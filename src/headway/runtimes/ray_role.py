"""One role's Ray actor: the driver's end of it, and what runs in it.

call(method, arguments, payloads) --> views over the store --> object.method(...)
     --> 1st return: the payloads, which stay in the store;  2nd return: RayReply, for the driver
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import select
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

import ray
from ray import cloudpickle
from ray.exceptions import ObjectLostError, ObjectStoreFullError, OutOfDiskError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from headway.core.protocols import NoRoom, PayloadLost, Problem, Role, RoleDied, RoleLate, RoleRaised, explain
from headway.core.text_one_line import first_line, said
from headway.core.types import Rollout, Snapshot, carriers, map_payloads
from headway.core.types_opaque import RoleAnswer, Station
from headway.runtimes.child_process_child import thread_limits
from headway.runtimes.loop_threads_landings import Landings
from headway.runtimes.loop_threads_own_thread import settle
from headway.runtimes.ray_role_ray_errors import how_it_died
from headway.runtimes.ray_role_ray_payloads import Parts, decode_parts, encode_parts
from headway.runtimes.shared_memory_transport import INLINE_BYTES

Strategy = Literal["SPREAD"] | PlacementGroupSchedulingStrategy | NodeAffinitySchedulingStrategy
SPREAD: Strategy = "SPREAD"
"""So that a node takes as few roles as possible with it."""
FULL = (ObjectStoreFullError, OutOfDiskError)
"""What Ray raises when neither its object store nor the disk behind that has room."""
GRACE_S = 1.0
"""Ray ends a process that listens much sooner, and one that does not (stopped, say) after five seconds."""
COLLECT, OTHER = "collect", "other"
"""The concurrency groups of a role with lanes: its threads for that method, and its one thread for all others."""
STORED_BYTES = 100 << 10
"""What an actor returns stays in its node's store from this size on (max_direct_call_object_size of Ray)."""


@dataclass(frozen=True, slots=True)
class RayReply:
    """What comes to the driver: a result whose payloads are places in `sizes` and in what was stored."""

    value: RoleAnswer
    sizes: Sequence[int] = ()
    inline: Sequence[Parts] = ()
    problem: Problem | None = None  # what was raised
    lost: tuple[tuple[int, ...], tuple[int, ...]] | None = None  # tickets and versions whose payloads are gone

    @property
    def is_stored(self) -> bool:
        return bool(self.sizes) and not self.inline


@cache
def _actor_class(lanes: int) -> Any:
    """What Ray makes actors of. Ray keeps every one of them for as long as the process lives: it is made once."""
    if lanes == 1:
        return ray.remote(RoleHost)
    groups = {COLLECT: lanes, OTHER: 1}
    return ray.remote(concurrency_groups=groups)(RoleHost)  # type: ignore[call-overload]


class RoleActor:
    """The driver's end of one role's actor."""

    def __init__(self, role: Role, wishes: dict[str, float], landings: Landings, where: Strategy = SPREAD) -> None:
        self.role = role.name
        self._landings = landings
        self.wishes = wishes
        self.pid = 0
        self.node = where.node_id if isinstance(where, NodeAffinitySchedulingStrategy) else ""
        """Where it is, or is meant to be."""
        self.is_ready = False
        self.how_it_ended = ""
        self.under_way = 0
        """Calls without an answer yet."""
        self._process: int | None = None  # a descriptor, if it runs on this machine
        self._has_lanes = role.lanes > 1
        self._host = (
            _actor_class(role.lanes)
            .options(
                num_cpus=wishes.get("CPU", 0.0),
                num_gpus=wishes.get("GPU", 0.0),
                resources={name: amount for name, amount in wishes.items() if name not in ("CPU", "GPU")},
                scheduling_strategy=where,
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=1,
            )
            .remote(self._has_lanes)
        )
        call = self._host.call
        self._ask: dict[str | None, Any] = {None: call.options(num_returns=2)}
        if self._has_lanes:
            self._ask = {group: call.options(num_returns=2, concurrency_group=group) for group in (COLLECT, OTHER)}

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

    async def ask(self, method: str, args: bytes, given: Sequence[object]) -> tuple[RayReply, ray.ObjectRef]:
        group = None if not self._has_lanes else COLLECT if method == COLLECT else OTHER
        stored, answer = self._ask[group].remote(method, args, given)
        try:
            packed = await self._answer(method, answer)
        except NoRoom:
            with contextlib.suppress(RayError):  # Ray prints an error that nobody has looked at
                ray.get(stored, timeout=GRACE_S)
            raise
        try:
            reply: RayReply = cloudpickle.loads(packed)
        except Exception as error:  # the class of a value may be known there and not here
            what = f"the driver cannot read what it returned: {type(error).__name__}: {said(error)}"
            raise RoleRaised(self.role, method, what) from error
        if reply.problem is not None:
            if reply.lost is not None:
                what, details, _ = reply.problem
                raise PayloadLost(self.role, method, what, details, *reply.lost)
            raise RoleRaised(self.role, method, *reply.problem)
        return reply, stored

    async def _answer(self, method: str, ref: ray.ObjectRef) -> RoleAnswer:
        try:
            return await self._landed(ref)
        except RayTaskError as error:  # not the station's own: the host could not even answer
            if isinstance(error.cause, FULL):
                raise NoRoom(self.role, method, no_room(error.cause, "what it returned")) from None
            raise RoleRaised(self.role, method, first_line(error.cause or error), str(error)) from None
        except RayError as error:
            self.kill(how_it_died(error))
            raise RoleDied(self.role, method, self.how_it_ended) from None

    def _landed(self, ref: ray.ObjectRef) -> asyncio.Future[RoleAnswer]:
        answer: asyncio.Future[RoleAnswer] = asyncio.get_running_loop().create_future()
        ref.future().add_done_callback(partial(self._landings.put, settle, answer))
        return answer

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


def no_room(error: BaseException, what: str) -> str:
    return f"Ray's object store has no room for {what}, nor has the disk behind it ({first_line(error)})"


def _is_over(process: int, timeout_s: float) -> bool:
    return bool(select.select([process], [], [], timeout_s)[0])


# ---------------------------------------------------------------------------------------- in the actor


class RoleHost:
    """What runs in a role's actor: it builds the role's object, then answers calls: one after another, or with lanes
    as many at once as the concurrency groups of the actor let through. Calls share nothing but the object.
    """

    def __init__(self, has_lanes: bool) -> None:
        self._has_lanes = has_lanes
        self._object: Station = None

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

    def call(self, method: str, packed: bytes, given: Sequence[object]) -> tuple[object, bytes]:
        """What is to stay in the store of this node, and the packed RayReply."""
        stored: object = None
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
            return None, cloudpickle.dumps(RayReply(None, problem=explain(error)))
        except SystemExit:
            if self._has_lanes:
                os._exit(1)  # Ray would wait for the other lanes to end first
            raise


def _pack(method: str, reply: RayReply) -> bytes:
    try:
        return cloudpickle.dumps(reply)
    except Exception as error:
        raise TypeError(f"what {method} returned cannot be sent to another process: {said(error)}") from error


def _get_all(given: Sequence[Any]) -> list[Parts]:
    """What each thing given stands for. One request for all of it."""
    refs = {place[0]: None for place in given if isinstance(place[0], ray.ObjectRef)}
    objects = dict(zip(refs, ray.get(list(refs)), strict=True)) if refs else {}
    return [objects[place[0]][place[1]] if place[0] in objects else place for place in given]


def _resolve(value: RoleAnswer, parts: Sequence[Parts]) -> RoleAnswer:
    """Put views in place of payloads: of snapshots read-only, for many look at the same memory."""
    if type(value) is tuple:
        return tuple(_resolve(item, parts) for item in value)
    is_writable = not isinstance(value, Snapshot)
    return map_payloads(value, lambda place: decode_parts(parts[place], is_writable))


def _report_lost(args: object, given: Sequence[object]) -> RayReply:
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
    return RayReply(None, problem=(what, "", False), lost=(tickets, versions))


def _part_with(result: object) -> tuple[RayReply, object]:
    """The result as a reply, and the payloads to be stored: none if they are tiny.

    Ray sends small returns to the driver with the reply; a payload smaller than that is filled up.
    """
    payloads: list[Parts] = []
    sizes: list[int] = []

    def put_aside(payload: object) -> int:
        parts, size = encode_parts(payload)
        payloads.append(parts)
        sizes.append(size)
        return len(payloads) - 1

    value = map_payloads(result, put_aside)
    total = sum(sizes)
    if total <= INLINE_BYTES:
        return RayReply(value, sizes, payloads), None
    stored = [(header, list(map(pickle.PickleBuffer, buffers))) for header, buffers in payloads]
    return RayReply(value, sizes), [*stored, pickle.PickleBuffer(bytes(max(0, STORED_BYTES - total)))]
