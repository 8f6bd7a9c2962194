"""Everything in one thread, one call at a time: for debugging, for tests, as the reference.

A call runs to its end inside the event loop, so a debugger shows plain frames and the order of events is
always the same. Nothing overlaps, and a call that never returns cannot be interrupted: the deadline is
checked when it is back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from headway.core.protocols import Role, RoleLate, RoleRaised
from headway.core.types_opaque import CoroutineOf, RoleAnswer, Station
from headway.runtimes.inline_freeze import PlainPayloads, freeze

T = TypeVar("T")


class Inline(PlainPayloads):
    """Roles are plain objects here."""

    name = "inline"

    def __init__(self) -> None:
        self._roles: dict[str, Role] = {}
        self._objects: dict[str, Station] = {}

    def run(self, main: CoroutineOf[T]) -> T:
        return asyncio.run(main)

    now = staticmethod(time.perf_counter)

    async def start(self, role: Role) -> None:
        self._roles[role.name] = role
        await self.restart(role.name)

    async def restart(self, role: str) -> None:
        try:
            self._objects[role] = self._roles[role].factory()
        except Exception as error:
            raise RoleRaised.of(role, "start", error) from error

    async def call(self, role: str, method: str, *args: object, deadline_s: float) -> RoleAnswer:
        await asyncio.sleep(0)  # the other loops act on what has happened before this call begins
        started = time.perf_counter()
        try:
            result = freeze(getattr(self._objects[role], method)(*args))
        except Exception as error:
            raise RoleRaised.of(role, method, error) from error
        if time.perf_counter() - started > deadline_s:
            raise RoleLate(role, method, f"took longer than {deadline_s:g} s")
        return result

    async def offload(self, work: Callable[[], T]) -> T:
        return work()

    async def close(self) -> None:
        for role in self._objects.values():
            getattr(role, "close", lambda: None)()
        self._objects.clear()
