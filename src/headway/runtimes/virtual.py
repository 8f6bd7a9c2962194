"""A clock that jumps: the same coordinator, thousands of times faster than real time.

    what it is for       durations                     the work itself
    simulate             drawn from a workload         none, or a fake
    test bench           drawn, with injected faults   a fake that keeps accounts

Time moves only when everybody waits, and then at once to the next thing that is due. If nothing is due,
nothing will ever happen again: that is a deadlock, and it is raised as one.

With `ticket_s` the coordinator is as slow as a real one: it has one thread, and whatever that does for a ticket moves
the clock on. What falls due meanwhile waits its turn.
"""

from __future__ import annotations

import asyncio
import enum
import heapq
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, Protocol, TypeVar

from headway.core.protocols import PayloadLost, Role, RoleDied, RoleLate, RoleRaised
from headway.core.types import Rollout, Snapshot, carriers
from headway.core.types_opaque import CoroutineOf, JsonObject, RoleAnswer, Station
from headway.runtimes.inline_freeze import PlainPayloads, freeze

T = TypeVar("T")


class Deadlock(RuntimeError):
    """Everybody waits, and nothing is due."""


class Fault(enum.Enum):
    """What may go wrong with a call."""

    CRASH = "crash"
    """The role dies on the way."""
    GONE = "gone"
    """The role had died before it was called."""
    HANG = "hang"
    """The role never answers."""
    RAISE = "raise"
    """The station's code raises."""
    LOSE = "lose"
    """Of the rollouts and snapshots among the arguments the first, the third and so on are gone, for good."""


class Workload(Protocol):
    """How long each call takes, and whether it goes wrong."""

    def duration_s(self, role: str, method: str, args: tuple[object, ...]) -> float: ...

    def fault(self, role: str, method: str, args: tuple[object, ...]) -> Fault | None: ...


class Virtual(PlainPayloads):
    """Roles are plain objects; their calls take the time the workload says."""

    name = "virtual"

    def __init__(self, workload: Workload, *, ticket_s: float = 0.0) -> None:
        """`ticket_s` is what a ticket costs the coordinator: half when it goes out, half when its rollout is back."""
        self._workload = workload
        self._half_ticket_s = ticket_s / 2
        self._loop = VirtualLoop()  # type: ignore[abstract]  # it does no input or output
        self._roles: dict[str, Role] = {}
        self._objects: dict[str, Station] = {}  # the living
        self._under_way: dict[str, dict[asyncio.Future[None], str]] = {}  # roles with lanes -> calls and their methods
        self._lost: set[tuple[type, int]] = set()  # rollouts by ticket and snapshots by version, until made again
        self.now: Callable[[], float] = self._loop.time

    @property
    def coordinator_s(self) -> float:
        """How long the coordinator has worked on tickets."""
        return self._loop.spent_s

    def run(self, main: CoroutineOf[T]) -> T:
        return self._loop.run(main)

    async def start(self, role: Role) -> None:
        self._roles[role.name] = role
        await self._build(role.name, "start")

    async def restart(self, role: str) -> None:
        self._end(role, "restarted")
        await self._build(role, "restart")

    async def end(self, role: str) -> None:
        self._end(role, "ended")
        self._roles.pop(role, None)

    async def call(self, role: str, method: str, *args: object, deadline_s: float) -> RoleAnswer:
        station = self._objects.get(role)
        if station is None:
            raise RoleDied(role, method, "it is not running")
        is_ticket = self._half_ticket_s > 0 and method == "collect"
        if is_ticket:
            self._loop.spend(self._half_ticket_s)
        duration_s = self._workload.duration_s(role, method, args)
        fault = self._workload.fault(role, method, args)
        if fault is Fault.LOSE or self._lost:
            self._find(role, method, args, fault)
        is_late = fault is Fault.HANG or duration_s > deadline_s
        if is_late:
            duration_s = deadline_s
        if duration_s > 0:
            if self._roles[role].lanes == 1:
                await self._pass_time(duration_s)
            else:
                await self._pass_time_in_lane(role, method, duration_s)
        if is_ticket:
            self._loop.spend(self._half_ticket_s)
        if is_late:
            self._end(role, f"given up: no answer to {method} within {deadline_s:g} s")
            raise RoleLate(role, method, f"no answer within {deadline_s:g} s")
        if fault is Fault.CRASH:
            self._end(role, "crashed")
            raise RoleDied(role, method, "crashed")
        if fault is Fault.GONE:
            self._end(role, "had died")
            raise RoleDied(role, method, "had died", never_began=True)
        if fault is Fault.RAISE:
            raise RoleRaised(role, method, "injected error")
        try:
            result = freeze(getattr(station, method)(*args))
        except Exception as error:
            raise RoleRaised.of(role, method, error) from error
        if self._lost:
            self._lost.difference_update(map(_name, carriers(result)))
        return result

    def _find(self, role: str, method: str, args: tuple[object, ...], fault: Fault | None) -> None:
        """Raise if any of what the arguments refer to is gone."""
        names = [name for name in map(_name, carriers(args)) if name[1] >= 0]  # a draw goes with its replay, if at all
        if fault is Fault.LOSE:
            self._lost.update(names[::2])
        if lost := self._lost.intersection(names):
            tickets = sorted(number for kind, number in lost if kind is Rollout)
            versions = sorted(number for kind, number in lost if kind is Snapshot)
            what = f"injected loss of the payloads of tickets {tickets} and versions {versions}"
            raise PayloadLost(role, method, what, tickets=tickets, versions=versions)

    async def offload(self, work: Callable[[], T]) -> T:
        return work()

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

    async def _pass_time_in_lane(self, role: str, method: str, seconds: float) -> None:
        """Unless the role dies meanwhile."""
        under_way = self._under_way.setdefault(role, {})
        answer = self._pass_time(seconds)
        under_way[answer] = method
        try:
            await answer
        finally:
            del under_way[answer]

    def _end(self, role: str, how: str) -> None:
        """It dies, and with it all that it was doing."""
        self._objects.pop(role, None)
        for answer, method in self._under_way.get(role, {}).items():
            if not answer.done():
                answer.set_exception(RoleDied(role, method, how))

    def _pass_time(self, seconds: float) -> asyncio.Future[None]:
        answer: asyncio.Future[None] = asyncio.Future(loop=self._loop)
        self._loop.call_later(seconds, _wake, answer)
        return answer


def _name(carrier: Rollout | Snapshot) -> tuple[type, int]:
    return type(carrier), carrier.ticket if isinstance(carrier, Rollout) else carrier.version


def _wake(answer: asyncio.Future[None]) -> None:
    if not answer.done():
        answer.set_result(None)


class _Handle:
    """A callback that is due, until it is cancelled."""

    __slots__ = ("args", "callback", "context")

    def __init__(self, callback: Callable[..., object], args: tuple[object, ...], context: Context | None) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = context

    def cancel(self) -> None:
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.callback is None


class VirtualLoop(asyncio.AbstractEventLoop):
    """The part of an event loop that tasks, futures and timers need, with a clock that jumps.

    It does no input or output. Callbacks due at the same time run in the order they were asked for, so a
    run on it is deterministic. (asyncio's own loop with a jumping selector does the same, 1.5 times slower.)
    """

    def __init__(self) -> None:
        self._clock = 0.0
        self._due: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._sequence = 0
        self._is_running = False
        self.spent_s = 0.0
        """How long the thread has worked instead of waiting."""

    def spend(self, seconds: float) -> None:
        """The thread works for so long: the clock moves on, and what falls due meanwhile is late."""
        self._clock += seconds
        self.spent_s += seconds

    def run(self, main: CoroutineOf[T]) -> T:
        """Run to the end of `main`; tasks it leaves behind are cancelled."""
        task = self.create_task(main)
        around = asyncio.events._get_running_loop()  # of a notebook, say: it goes on when we are done
        asyncio.events._set_running_loop(self)
        self._is_running = True
        try:
            try:
                self._run_until(task)
            finally:
                left = [other for other in asyncio.all_tasks(self) if not other.done()]
                for other in left:
                    other.cancel()
                for other in left:
                    self._run_until(other)
                    if not other.cancelled():
                        other.exception()
            return task.result()
        finally:
            self._is_running = False
            asyncio.events._set_running_loop(around)

    def _run_until(self, task: asyncio.Task[object]) -> None:
        due, timers = self._due, self._timers
        while not task.done():
            if not due:
                while timers and timers[0][2].callback is None:
                    heapq.heappop(timers)
                if not timers:
                    raise Deadlock("everybody waits and nothing is due")
                when, _, handle = heapq.heappop(timers)
                if when > self._clock:
                    self._clock = when
                due.append(handle)
            while due:
                handle = due.popleft()
                if handle.callback is None:
                    continue
                if handle.context is None:
                    handle.callback(*handle.args)
                else:
                    handle.context.run(handle.callback, *handle.args)

    def time(self) -> float:
        return self._clock

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return False

    def get_debug(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[RoleAnswer]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def call_soon(self, callback: Callable[..., object], *args: object, context: Context | None = None) -> _Handle:  # type: ignore[override]
        handle = _Handle(callback, args, context)
        self._due.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> _Handle:
        """From a signal handler or another thread. Nobody has to be woken: this loop never sleeps."""
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> _Handle:
        return self.call_at(self._clock + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> _Handle:
        handle = _Handle(callback, args, context)
        self._sequence += 1
        heapq.heappush(self._timers, (max(when, self._clock), self._sequence, handle))
        return handle

    def call_exception_handler(self, context: JsonObject) -> None:
        raise RuntimeError(context["message"]) from context.get("exception")
