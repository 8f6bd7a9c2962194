"""One daemon thread a role, in this process: the default.

    event loop                       role's thread
    call ----- inbox -------------->  method(...)
         <---- call_soon_threadsafe -- result

Work that releases the interpreter lock (numpy, torch, waiting for an engine or a simulator) overlaps;
snapshots and rollouts are passed without a copy. A thread that outlives its deadline cannot be killed: it
is abandoned, its late answer is ignored, and `restart` builds the role anew in another thread.
"""

from __future__ import annotations

import asyncio
import queue
import selectors
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from headway.core.protocols import Role, RoleDied, RoleError, RoleLate, RoleRaised
from headway.runtime.freeze import freeze

T = TypeVar("T")
CLOSE_GRACE_S = 1.0


class Threads:
    """Roles are threads here."""

    name = "threads"

    def __init__(self) -> None:
        self._roles: dict[str, Role] = {}
        self._seats: dict[str, _Seat] = {}

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        with asyncio.Runner(loop_factory=_BellLoop) as runner:
            return runner.run(main)

    def now(self) -> float:
        return time.perf_counter()

    async def start(self, role: Role) -> None:
        self._roles[role.name] = role
        await self.restart(role.name)

    async def restart(self, role: str) -> None:
        previous = self._seats.pop(role, None)
        if previous is not None:
            previous.leave()
        seat = _Seat(role, self._roles[role].factory)
        self._seats[role] = seat
        await seat.call("start", ())

    async def call(self, role: str, method: str, *args: Any, deadline_s: float) -> Any:
        answer = self._seats[role].call(method, args)
        timer = asyncio.get_running_loop().call_later(deadline_s, _give_up, answer, role, method, deadline_s)
        try:
            return await answer
        finally:
            timer.cancel()

    async def offload(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work)

    def fetch(self, payload: Any) -> Any:
        return payload

    def release(self, payload: Any) -> None:
        pass

    async def close(self) -> None:
        """Let every idle thread end. One that is stuck in a call is a daemon and ends with the process."""
        seats = list(self._seats.values())
        self._seats.clear()
        for seat in seats:
            seat.leave()
        ends_at = time.perf_counter() + CLOSE_GRACE_S
        for seat in seats:
            await asyncio.to_thread(seat.join, max(0.0, ends_at - time.perf_counter()))


class _Bell(selectors.SelectSelector):
    """Waits for threads instead of sockets: nothing but answers from roles ever wakes this loop."""

    def __init__(self) -> None:
        super().__init__()
        self._rings: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_rung = False

    def ring(self) -> None:
        if not self._is_rung:  # one ring is enough: whatever was asked for is in the loop's own line by now
            self._is_rung = True
            self._rings.put(None)

    def select(self, timeout: float | None = None) -> list[Any]:
        try:
            self._rings.get(timeout is None or timeout > 0, timeout)
        except queue.Empty:
            return []
        self._is_rung = False
        return []


class _BellLoop(asyncio.SelectorEventLoop):
    """asyncio's loop, woken by a lock: half the time of a socket, which every answer of a role pays."""

    def __init__(self) -> None:
        self._bell = _Bell()
        super().__init__(self._bell)

    def _write_to_self(self) -> None:
        self._bell.ring()


def _give_up(answer: asyncio.Future[Any], role: str, method: str, deadline_s: float) -> None:
    if not answer.done():
        answer.set_exception(RoleLate(role, method, f"no answer within {deadline_s:g} s"))


class _Seat:
    """A thread and the object that lives in it. Calls are answered in the order they were made."""

    def __init__(self, role: str, factory: Callable[[], Any]) -> None:
        self._role = role
        self._factory = factory
        self._loop = asyncio.get_running_loop()
        self._inbox: queue.SimpleQueue[tuple[asyncio.Future[Any], str, tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=role, daemon=True)
        self._thread.start()

    def call(self, method: str, args: tuple[Any, ...]) -> asyncio.Future[Any]:
        answer = self._loop.create_future()
        self._inbox.put((answer, method, args))
        return answer

    def leave(self) -> None:
        self._inbox.put(None)

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _work(self) -> None:
        station: Any = None
        while (asked := self._inbox.get()) is not None:
            answer, method, args = asked
            result: Any = None
            problem: RoleError | None = None
            try:
                if method == "start":
                    station = self._factory()
                else:
                    result = freeze(getattr(station, method)(*args))
            except Exception as error:
                problem = RoleRaised.of(self._role, method, error)
            except BaseException as error:  # SystemExit and the like end the thread, not in silence
                problem = RoleDied(self._role, method, f"{type(error).__name__}: {error}")
            try:
                self._loop.call_soon_threadsafe(_settle, answer, result, problem)
            except RuntimeError:  # the loop is closed: the run ended without waiting for this call
                return
            if isinstance(problem, RoleDied):
                return
            del asked, answer, args, result, problem  # nothing of a finished call stays alive in this frame


def _settle(answer: asyncio.Future[Any], result: Any, problem: RoleError | None) -> None:
    if answer.done():  # given up or cancelled meanwhile
        return
    if problem is not None:
        answer.set_exception(problem)
    else:
        answer.set_result(result)
