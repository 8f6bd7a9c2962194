"""One daemon thread a role, in this process: the default.

    event loop                       role's thread
    call ----- inbox -------------->  method(...)
         <---- landings -----------  result

What lands in one turn of the loop is settled together: the first of it wakes the loop, the others find it awake.

Work that releases the interpreter lock (numpy, torch, waiting for an engine or a simulator) overlaps;
snapshots and rollouts are passed without a copy. A thread that outlives its deadline cannot be killed: it
is abandoned, its late answer is ignored, and `restart` builds the role anew in another thread.

A role with lanes has one object and several threads: one for each lane, and one for everything but collecting.
"""

from __future__ import annotations

import asyncio
import queue
import selectors
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from headway.core.os_errors import refusal
from headway.core.protocols import Role, RoleDied, RoleError, RoleLate, RoleRaised
from headway.core.text_one_line import said
from headway.core.types_opaque import CoroutineOf, RoleAnswer, Station
from headway.runtimes.inline_freeze import PlainPayloads, freeze
from headway.runtimes.loop_threads_deadlines import AnswerDeadlines
from headway.runtimes.loop_threads_landings import Landings
from headway.runtimes.loop_threads_own_thread import beside

T = TypeVar("T")
Inbox = queue.SimpleQueue[tuple[asyncio.Future[RoleAnswer], str, tuple[object, ...]] | None]
CLOSE_GRACE_S = 1.0
CLOSE_S = 10.0
"""How long a station may take to let go of what it holds outside this process."""


class Threads(PlainPayloads):
    """Roles are threads here."""

    name = "threads"

    def __init__(self) -> None:
        self._roles: dict[str, Role] = {}
        self._hosts: dict[str, _Host] = {}
        self._deadlines = AnswerDeadlines()
        self._landings: Landings | None = None  # of the loop that the roles were started in

    def run(self, main: CoroutineOf[T]) -> T:
        with asyncio.Runner(loop_factory=_QueueLoop) as runner:
            return runner.run(main)

    now = staticmethod(time.perf_counter)

    async def start(self, role: Role) -> None:
        self._roles[role.name] = role
        await self.restart(role.name)

    async def restart(self, role: str) -> None:
        previous = self._hosts.pop(role, None)
        if previous is not None:
            previous.leave()
            previous.dismiss()
        if self._landings is None:
            self._landings = Landings()
        make = _Host if self._roles[role].lanes == 1 else _LaneHost
        host = self._hosts[role] = make(self._roles[role], self._landings)
        await host.call("start", ())

    async def end(self, role: str) -> None:
        """A thread that is stuck is left behind, as on a restart."""
        self._roles.pop(role, None)
        host = self._hosts.pop(role, None)
        if host is not None:
            host.leave()
            host.dismiss()

    async def call(self, role: str, method: str, *args: object, deadline_s: float) -> RoleAnswer:
        answer = self._hosts[role].call(method, args)
        self._deadlines.watch(answer, deadline_s, _give_up, answer, role, method, deadline_s)
        try:
            return await answer
        finally:
            self._deadlines.forget(answer)

    async def offload(self, work: Callable[[], T]) -> T:
        return await beside(work)

    async def close(self) -> None:
        """Let every idle thread end. One that is stuck in a call may end when its object is closed. If not, it is
        a daemon and ends with the process, which is no clean end where it computes in C++."""
        hosts = list(self._hosts.values())
        self._hosts.clear()
        self._deadlines.close()
        self._landings = None
        for host in hosts:
            host.leave()
        ends_at = time.perf_counter() + CLOSE_GRACE_S
        for host in hosts:
            await _beside(host.join, ends_at)
        for closing in [host.dismiss() for host in hosts]:
            if closing is not None:
                await _beside(closing.join, CLOSE_S)
        ends_at = time.perf_counter() + CLOSE_GRACE_S
        for host in hosts:
            await _beside(host.join, ends_at)


async def _beside(wait: Callable[[float], None], limit: float) -> None:
    """Wait in a thread, so that the loop goes on; or here, if there can be no further thread."""
    try:
        await beside(partial(wait, limit))
    except RuntimeError as error:
        if refusal(error) is None:
            raise
        wait(limit)


class _QueueSelector(selectors.SelectSelector):
    """Waits for threads instead of sockets: nothing but answers from roles ever wakes this loop."""

    def __init__(self) -> None:
        super().__init__()
        self._rings: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_rung = False

    def ring(self) -> None:
        if not self._is_rung:  # one ring is enough: whatever was asked for is in the loop's own line by now
            self._is_rung = True
            self._rings.put(None)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        try:
            self._rings.get(timeout is None or timeout > 0, timeout)
        except queue.Empty:
            return []
        self._is_rung = False
        return []


class _QueueLoop(asyncio.SelectorEventLoop):
    """asyncio's loop, woken by a lock: half the time of a socket, which every answer of a role pays."""

    def __init__(self) -> None:
        self._queue_selector = _QueueSelector()
        super().__init__(self._queue_selector)

    def _write_to_self(self) -> None:
        self._queue_selector.ring()


def _give_up(answer: asyncio.Future[RoleAnswer], role: str, method: str, deadline_s: float) -> None:
    if not answer.done():
        answer.set_exception(RoleLate(role, method, f"no answer within {deadline_s:g} s"))


class _Host:
    """The object of a role and the thread it lives in. Calls are answered in the order they were made."""

    def __init__(self, role: Role, landings: Landings) -> None:
        self._role = role.name
        self._factory = role.factory
        self._station: Station = None
        self._loop = asyncio.get_running_loop()
        self._landings = landings
        self._inbox: Inbox = queue.SimpleQueue()
        self._threads = [self._begin(self._inbox, role.name)]

    def call(self, method: str, args: tuple[object, ...]) -> asyncio.Future[RoleAnswer]:
        answer = self._loop.create_future()
        self._inbox.put((answer, method, args))
        return answer

    def leave(self) -> None:
        self._inbox.put(None)

    def join(self, until: float) -> None:
        for thread in self._threads:
            thread.join(max(0.0, until - time.perf_counter()))

    def dismiss(self) -> threading.Thread | None:
        """Close what the object holds outside this process, in a thread of its own: the object may be stuck. None if
        there can be no further thread: then it is closed with this process."""
        close = getattr(self._station, "close", lambda: None)
        closing = threading.Thread(target=close, name=f"{self._role} closing", daemon=True)
        try:
            closing.start()
        except RuntimeError as error:
            if refusal(error) is None:
                raise
            return None
        return closing

    def _begin(self, inbox: Inbox, name: str) -> threading.Thread:
        thread = threading.Thread(target=self._work, args=(inbox,), name=name, daemon=True)
        thread.start()
        return thread

    def _work(self, inbox: Inbox) -> None:
        while (asked := inbox.get()) is not None:
            answer, method, args = asked
            result: RoleAnswer = None
            problem: RoleError | None = None
            try:
                if method == "start":
                    self._station = self._factory()
                else:
                    result = freeze(getattr(self._station, method)(*args))
            except Exception as error:
                problem = RoleRaised.of(self._role, method, error)
            except BaseException as error:  # SystemExit and the like end the thread, not in silence
                problem = RoleDied(self._role, method, f"{type(error).__name__}: {said(error)}")
            if not self._landings.put(self._settle, answer, result, problem):
                return  # the loop is closed: the run ended without waiting for this call
            if isinstance(problem, RoleDied):
                return
            del asked, answer, args, result, problem  # nothing of a finished call stays alive in this frame

    def _settle(self, answer: asyncio.Future[RoleAnswer], result: object, problem: RoleError | None) -> None:
        if answer.done():  # given up or cancelled meanwhile
            return
        if problem is not None:
            answer.set_exception(problem)
        else:
            answer.set_result(result)


class _LaneHost(_Host):
    """One object and several threads: the first for everything but `collect`, the others a lane each.

    It ends as a whole: if one thread leaves, or if the role is restarted, no call under way is answered any more.
    """

    def __init__(self, role: Role, landings: Landings) -> None:
        super().__init__(role, landings)
        self._collects: Inbox = queue.SimpleQueue()
        self._threads += [self._begin(self._collects, f"{role.name}/{lane}") for lane in range(role.lanes)]
        self._under_way: dict[
            asyncio.Future[RoleAnswer], str
        ] = {}  # with the method; touched in the loop's thread only
        self._how_it_ended = ""

    def call(self, method: str, args: tuple[object, ...]) -> asyncio.Future[RoleAnswer]:
        if self._how_it_ended:
            raise RoleDied(self._role, method, self._how_it_ended, never_began=True)
        answer = self._loop.create_future()
        self._under_way[answer] = method
        answer.add_done_callback(self._under_way.pop)
        (self._collects if method == "collect" else self._inbox).put((answer, method, args))
        return answer

    def leave(self) -> None:
        self._end("its threads were given up")

    def _settle(self, answer: asyncio.Future[RoleAnswer], result: object, problem: RoleError | None) -> None:
        super()._settle(answer, result, problem)
        if isinstance(problem, RoleDied):
            self._end(problem.what)

    def _end(self, how: str) -> None:
        if self._how_it_ended:
            return
        self._how_it_ended = how
        for answer, method in list(self._under_way.items()):
            if not answer.done():
                answer.set_exception(RoleDied(self._role, method, how))
        self._inbox.put(None)
        for _ in self._threads[1:]:
            self._collects.put(None)
