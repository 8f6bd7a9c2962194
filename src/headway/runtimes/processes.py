"""Every role in a process of its own; rollouts and weights in shared memory; death is noticed.

      driver (asyncio)                                   role's process (process_host.py)
      call() --> Loans.lend --> Call with refs, fds  -->  views over the blocks, object.method(...)
             <-- Loans.settle <----------- HostReply <--  result; what is still held, what was let go

      starting --> ready --> ended (exit, crash, kill, deadline passed, close); restart() begins a new one

Processes are spawned as multiprocessing spawns them (a fresh interpreter, the user's __main__ imported), but
through subprocess: that gives each its own environment and process group, so that a role's own children end
with it, and leaves no tracker process behind. Nothing but small frames passes through the driver.

A run with many roles may reach the limit of open files: each takes a socket, and two descriptors for every segment of
its memory. What the driver cannot take in for that reason ends the call, and with it the run, with an OSError.

Invariants: `ended` is set exactly once, and from then on every call raises RoleDied; a block is free again
when it is released and nobody looks at it; a segment is closed when its owner ended and its blocks are free.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from headway.core.protocols import Role, RoleDied, RoleLate, RoleRaised
from headway.core.text_one_line import said
from headway.core.types import map_payloads
from headway.core.types_opaque import CoroutineOf, Payload, RoleAnswer
from headway.runtimes.child_process_channel import Frame, LoopChannel, not_lost
from headway.runtimes.child_process_child import KILL_S, Child, python_command, thread_limits
from headway.runtimes.child_process_sent_code import pack_function
from headway.runtimes.loop_threads_deadlines import AnswerDeadlines
from headway.runtimes.loop_threads_own_thread import beside
from headway.runtimes.process_host import Call, HostReply, Start
from headway.runtimes.shared_memory_arena import BlockKey, MemorySegment, SharedRef
from headway.runtimes.shared_memory_loans import DRIVER, Loans, Parcel

T = TypeVar("T")

FILES_PER_ROLE, SPARE_FILES = 16, 64
"""Enough for segments that have doubled a few times, and for what else a driver has open."""


class Processes:
    """The processes runtime. `start_s` bounds how long a role may take to be built, `grace_s` to stop."""

    name = "processes"
    sends_calls = True

    def __init__(self, start_s: float = 120.0, grace_s: float = 1.0) -> None:
        if not start_s > 0:
            raise ValueError(f"start_s must be positive, or no role could start; received {start_s}")
        self._start_s = start_s
        self._grace_s = grace_s
        self._roles: dict[str, Role] = {}
        self._running: dict[str, RoleProcess] = {}
        self._asked_for: set[str] = set()  # roles, whether or not they could be started
        self._owners = itertools.count(DRIVER + 1)
        self._loans = Loans()
        self._deadlines = AnswerDeadlines()
        self._plain: dict[int, tuple[Payload, SharedRef]] = {}  # payloads that came from no role, by id, until released

    def run(self, main: CoroutineOf[T]) -> T:
        return asyncio.run(main)

    now = staticmethod(time.perf_counter)

    async def offload(self, work: Callable[[], T]) -> T:
        return await beside(work)

    def roles(self) -> tuple[str, ...]:
        return tuple(self._roles)

    def pid(self, role: str) -> int:
        return self._running[role].child.pid

    def pids(self) -> dict[str, int]:
        """Of the roles that run now."""
        return {role: self.pid(role) for role, running in self._running.items() if not running.ended.done()}

    @property
    def num_socket_bytes(self) -> int:
        """What passed through the driver to and from the processes that run now."""
        return sum(process.channel.num_bytes for process in self._running.values())

    async def start(self, role: Role) -> None:
        if role.name in self._roles:
            raise ValueError(f"role {role.name!r} is started already; restart() builds it anew")
        self._asked_for.add(role.name)
        await self._spawn(role)
        self._roles[role.name] = role

    async def restart(self, role: str) -> None:
        await self._kill([self._running[role]])
        await self._spawn(self._roles[role])

    async def end(self, role: str) -> None:
        self._roles.pop(role, None)
        self._asked_for.discard(role)
        process = self._running.pop(role, None)
        if process is not None:
            await self._end([process])

    async def call(self, role: str, method: str, *args: object, deadline_s: float) -> RoleAnswer:
        process = self._running[role]
        if process.ended.done():
            raise RoleDied(role, method, process.ended.result(), never_began=True)
        refs: list[SharedRef] = []

        def refer(payload: object) -> SharedRef:
            ref = payload if isinstance(payload, SharedRef) else self._refer_to_plain(payload)
            self._loans.refuse_if_released(ref)
            refs.append(ref)
            return ref

        try:
            carrier = self._loans.place(map_payloads(args, refer))
        except OSError as error:
            raise self._refused(error) from None
        parcel = self._loans.lend([*refs, carrier], process.owner)
        self._loans.release(carrier)
        return await process.ask(method, carrier, parcel, deadline_s)

    def fetch(self, payload: Payload) -> Payload:
        return self._loans.copy(payload) if isinstance(payload, SharedRef) else payload

    def release(self, payload: object) -> None:
        if id(payload) in self._plain:
            _, payload = self._plain.pop(id(payload))
        if isinstance(payload, SharedRef):
            self._loans.release(payload)

    async def close(self) -> None:
        await self._end(list(self._running.values()))
        self._deadlines.close()
        self._loans.close()
        self._plain.clear()

    async def _spawn(self, role: Role) -> None:
        try:
            factory = pack_function(role.factory, role.name)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"role {role.name!r}: its factory cannot be sent to a new process ({error}); "
                "with the processes runtime it must be a function defined at module level"
            ) from error
        owner = next(self._owners)
        try:
            process = self._running[role.name] = RoleProcess(role, owner, self._loans, self._deadlines, self._refused)
        except OSError as error:
            await asyncio.sleep(0)  # all roles are asked for in one turn of the loop: then their number is known
            raise self._refused(error) from None
        try:
            start = Start(owner, factory, role.placement.num_threads, role.lanes)
            await process.build(start, self._start_s)
        except BaseException:  # cancelled, too: nothing would ever speak to this process again
            await self._kill([process])
            raise

    async def _end(self, processes: Sequence[RoleProcess]) -> None:
        """By themselves, if they are idle; else, or if that takes too long, they are killed."""
        alive = [process for process in processes if not process.ended.done()]
        for process in alive:
            process.stop()
        if alive:
            await asyncio.wait([process.ended for process in alive], timeout=self._grace_s)
        await self._kill(alive)

    async def _kill(self, processes: Sequence[RoleProcess]) -> None:
        for process in processes:
            process.kill()
        for process in processes:
            await asyncio.wait([process.ended], timeout=KILL_S)
            if not process.ended.done():
                raise RoleLate(process.role, "kill", f"process {process.child.pid} is still there after {KILL_S:g} s")

    def _refused(self, error: OSError) -> OSError:
        """The same error; if the driver may open no more files, with a number that would do."""
        if error.errno != errno.EMFILE:
            return error
        num_roles = len(self._asked_for)
        enough = f"{SPARE_FILES + num_roles * FILES_PER_ROLE} are enough for {num_roles} roles in processes"
        return OSError(errno.EMFILE, f"{os.strerror(errno.EMFILE)}: {enough}")

    def _refer_to_plain(self, payload: object) -> SharedRef:
        if id(payload) in self._plain:
            return self._plain[id(payload)][1]
        ref = self._loans.place(payload)
        if ref.serial:
            self._plain[id(payload)] = payload, ref
        return ref


@dataclass(slots=True)
class _Pending:
    method: str
    future: asyncio.Future[RoleAnswer]
    lent: Sequence[BlockKey]


class RoleProcess:
    """The driver's end of one role's process: calls that wait for replies, until it has ended."""

    def __init__(
        self, role: Role, owner: int, loans: Loans, deadlines: AnswerDeadlines, refused: Callable[[OSError], OSError]
    ) -> None:
        self.role = role.name
        self.owner = owner
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()  # how
        self._loans = loans
        self._deadlines = deadlines
        self._refused = refused
        self._pending: dict[int, _Pending] = {}
        self._numbers = itertools.count(1)
        command = python_command("headway.runtimes.process_host", f"headway role {role.name}")
        self.child = Child(command, thread_limits(role.placement.num_threads), own_group=True)
        self.channel = LoopChannel(self.child.socket, self._receive, self._end)
        loans.join(owner)

    async def build(self, start: Start, deadline_s: float) -> None:
        self.channel.send(pickle.dumps(tuple(start)))
        await self._answer(0, _Pending("start", asyncio.get_running_loop().create_future(), ()), deadline_s)

    async def ask(self, method: str, args: SharedRef, parcel: Parcel, deadline_s: float) -> RoleAnswer:
        number = next(self._numbers)
        call = Call(number, method, args, parcel.frees, parcel.segments, parcel.dropped)
        self.channel.send(call.pack(), parcel.fds)
        pending = _Pending(method, asyncio.get_running_loop().create_future(), parcel.lent)
        return await self._answer(number, pending, deadline_s)

    async def _answer(self, number: int, pending: _Pending, deadline_s: float) -> RoleAnswer:
        self._pending[number] = pending
        future = pending.future
        self._deadlines.watch(future, deadline_s, self._expire, pending, deadline_s)
        try:
            return await future
        except asyncio.CancelledError:
            # The reply may have come in the same turn of the loop, after which nobody else would see it.
            if not future.cancelled() and future.exception() is None:
                self._discard(future.result())
            raise
        finally:
            self._deadlines.forget(future)

    def stop(self) -> None:
        """Let it end by itself if it is idle."""
        if self._pending:
            self.kill()
        else:
            self.channel.send(b"")

    def kill(self) -> None:
        if not self.ended.done():
            self.child.kill()

    def _expire(self, pending: _Pending, deadline_s: float) -> None:
        if not pending.future.done():
            self.kill()
            pending.future.set_exception(RoleLate(self.role, pending.method, f"no answer within {deadline_s:g} s"))

    def _receive(self, frame: Frame) -> None:
        body, fds = frame
        reply = HostReply.parse(body)
        pending = self._pending.pop(reply.number)
        try:
            self._adopt(reply, fds)
        except OSError as error:  # what this role says from now on would be about memory that is not here
            self.kill()
            if not pending.future.done():
                pending.future.set_exception(self._refused(error))
            return
        self._loans.settle(self.owner, pending.lent, reply.held, reply.let_go)
        future = pending.future
        try:
            value = self._loans.take(reply.value)
        except Exception as error:  # the class of a value may be known there and not here
            value = f"the driver cannot read what it returned: {type(error).__name__}: {said(error)}", ""
            reply = reply._replace(is_result=False)
        if reply.is_result:
            map_payloads(value, self._loans.register)
        if future.done():
            self._discard(value)
        elif reply.is_result:
            future.set_result(value)
        else:
            future.set_exception(RoleRaised(self.role, pending.method, *value))

    def _adopt(self, reply: HostReply, fds: list[int] | None) -> None:
        new = zip(reply.segments, not_lost(fds), strict=True)
        self._loans.adopt(self.owner, [MemorySegment(index, size, fd) for (index, size), fd in new])

    def _discard(self, value: object) -> None:
        map_payloads(value, self._loans.release)

    def _end(self) -> None:
        self.child.kill()  # its own children, before its number can be given away
        how = f"its process {self.child.how_it_ended(KILL_S)}"
        self.channel.close()
        self._loans.leave(self.owner)
        self.ended.set_result(how)
        for pending in self._pending.values():
            if not pending.future.done():
                pending.future.set_exception(RoleDied(self.role, pending.method, how))
        self._pending.clear()
