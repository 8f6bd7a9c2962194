"""A clock that jumps: the same coordinator, thousands of times faster than real time.

    what it is for       durations                     the work itself
    simulate             drawn from a workload         none, or a fake
    test bench           drawn, with injected faults   a fake that keeps accounts

Time moves only when everybody waits, and then at once to the next thing that is due. If nothing is due,
nothing will ever happen again: that is a deadlock, and it is raised as one.
"""

from __future__ import annotations

import asyncio
import enum
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from headway.core.protocols import Role, RoleDied, RoleLate, RoleRaised
from headway.runtime.freeze import freeze

T = TypeVar("T")


class Deadlock(RuntimeError):
    """Everybody waits, and nothing is due."""


class Fault(enum.Enum):
    """What may go wrong with a call."""

    CRASH = "crash"
    """The role dies on the way."""
    HANG = "hang"
    """The role never answers."""
    RAISE = "raise"
    """The station's code raises."""


class Workload(Protocol):
    """How long each call takes, and whether it goes wrong."""

    def duration_s(self, role: str, method: str, args: tuple[Any, ...]) -> float: ...

    def fault(self, role: str, method: str, args: tuple[Any, ...]) -> Fault | None: ...


class Virtual:
    """Roles are plain objects; their calls take the time the workload says."""

    name = "virtual"

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._loop = _VirtualLoop()
        self._roles: dict[str, Role] = {}
        self._objects: dict[str, Any] = {}  # the living

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                return runner.run(main)
        finally:
            self._loop.close()

    def now(self) -> float:
        return self._loop.time()

    async def start(self, role: Role) -> None:
        self._roles[role.name] = role
        await self._build(role.name, "start")

    async def restart(self, role: str) -> None:
        self._objects.pop(role, None)
        await self._build(role, "restart")

    async def call(self, role: str, method: str, *args: Any, deadline_s: float) -> Any:
        station = self._objects.get(role)
        if station is None:
            raise RoleDied(role, method, "it is not running")
        duration_s = self._workload.duration_s(role, method, args)
        fault = self._workload.fault(role, method, args)
        if fault is Fault.HANG or duration_s > deadline_s:
            await self._pass_time(deadline_s)
            self._objects.pop(role, None)
            raise RoleLate(role, method, f"no answer within {deadline_s:g} s")
        if duration_s > 0:
            await self._pass_time(duration_s)
        if fault is Fault.CRASH:
            self._objects.pop(role, None)
            raise RoleDied(role, method, "crashed")
        if fault is Fault.RAISE:
            raise RoleRaised(role, method, "injected error")
        try:
            return freeze(getattr(station, method)(*args))
        except Exception as error:
            raise RoleRaised.of(role, method, error) from error

    async def offload(self, work: Callable[[], T]) -> T:
        return work()

    def fetch(self, payload: Any) -> Any:
        return payload

    def release(self, payload: Any) -> None:
        pass

    async def close(self) -> None:
        self._objects.clear()

    async def _build(self, role: str, method: str) -> None:
        await self._pass_time(self._workload.duration_s(role, method, ()))
        if self._workload.fault(role, method, ()) is not None:
            raise RoleDied(role, method, "crashed while starting")
        try:
            self._objects[role] = self._roles[role].factory()
        except Exception as error:
            raise RoleRaised.of(role, method, error) from error

    async def _pass_time(self, seconds: float) -> None:
        answer: asyncio.Future[None] = self._loop.create_future()
        timer = self._loop.call_later(seconds, _wake, answer)
        try:
            await answer
        finally:
            timer.cancel()


def _wake(answer: asyncio.Future[None]) -> None:
    if not answer.done():
        answer.set_result(None)


class _VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock is moved by its selector."""

    def __init__(self) -> None:
        self.clock = 0.0
        super().__init__(_Jump(self))

    def time(self) -> float:
        return self.clock


class _Jump(selectors.SelectSelector):
    """Where a real selector would sleep, this one moves the clock."""

    def __init__(self, loop: _VirtualLoop) -> None:
        super().__init__()
        self._owner = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Deadlock("everybody waits and nothing is due")
        if timeout > 0:
            self._owner.clock += timeout
        return []
