"""Collectors that stand still during a blocking evaluation, in the middle of what they do.

    collect   |=====>                     |=====>  lands
    deadline  |----->                     |------------->  goes on where it stood
                    park              go_on
                     `---- evaluate ----'

With `evaluation_waits_for="parked"` nobody waits until long rollouts have landed: the collectors are told to `pause`,
the evaluation runs, and they `resume`. What was in flight loses nothing but time, and that time does not count against
its deadline. The runtimes know nothing of it: the coordinator keeps the deadline of a collect call here, and gives the
runtime one that is long enough for any pause.

Invariants: between `park` and `go_on` no collect call is made; a call under way has `collect_s` seconds in which it was
not parked; a collector that is built anew in the meantime is not paused, and has nothing to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headway.coordinate.lanes import Post
from headway.coordinate.role_calls import RoleCalls
from headway.coordinate.roles import LEARNER
from headway.core.protocols import RoleError, RoleLate
from headway.core.types import Snapshot, Ticket


@dataclass(slots=True)
class _Clock:
    """The deadline of one collect call, which can stand still."""

    ticket: Ticket
    limit: asyncio.Timeout
    left_s: float | None = None
    """What was left when it was stopped."""

    def stop(self, now: float) -> None:
        ends_at = self.limit.when()
        if ends_at is not None and not self.limit.expired():
            self.left_s = ends_at - now
            self.limit.reschedule(None)

    def go_on(self, now: float) -> None:
        if self.left_s is not None:
            self.limit.reschedule(now + self.left_s)
            self.left_s = None

    def is_over(self, now: float) -> bool:
        """Has it run out in a call that kept the loop from noticing?"""
        ends_at = self.limit.when()
        return ends_at is not None and now > ends_at


class Parking:
    """Makes the collect calls of a run whose evaluations park them."""

    def __init__(self, calls: RoleCalls, posts: Sequence[Post]) -> None:
        self._calls = calls
        self._posts = posts
        self._limit_s = calls.settings.deadlines.collect_s
        self._patience_s = calls.settings.patience_s
        self._clocks: dict[str, _Clock] = {}  # of who collects
        self._is_parked = False
        self._waiting: dict[str, None] = {}  # who would collect if nobody was parked

    async def collect(self, name: str, role: str, ticket: Ticket, snapshot: Snapshot) -> Any:
        """One collect call on behalf of who is called `name` on the board."""
        board, runtime, loop = self._calls.board, self._calls.runtime, asyncio.get_running_loop()
        while self._is_parked:
            self._waiting[name] = None
            await board.wait(name, "parked", "the evaluation to finish", self._patience_s)
        board.begin(name, "collect", ticket, self._limit_s)
        try:
            async with asyncio.timeout(self._limit_s) as limit:
                clock = self._clocks[name] = _Clock(ticket, limit)
                answer = await runtime.call(role, "collect", ticket, snapshot, deadline_s=self._patience_s)
                if clock.is_over(loop.time()):
                    raise TimeoutError
                return answer
        except TimeoutError:
            raise RoleLate(role, "collect", f"no answer within {self._limit_s:g} s") from None
        finally:
            self._clocks.pop(name, None)
            board.end(name)

    async def park(self) -> list[tuple[Post, RoleError]]:
        """Everybody stands still. Returns who could not be told to, and why."""
        self._is_parked = True
        now = asyncio.get_running_loop().time()
        for name, clock in self._clocks.items():
            clock.stop(now)
            self._calls.board.begin(name, "parked", "the evaluation to finish", self._patience_s)
        return await self._tell_all("pause")

    async def go_on(self) -> list[tuple[Post, RoleError]]:
        """Everybody goes on. Returns who could not be told to, and why."""
        failed = await self._tell_all("resume")
        self._is_parked = False
        now = asyncio.get_running_loop().time()
        for name, clock in self._clocks.items():
            clock.go_on(now)
            self._calls.board.begin(name, "collect", clock.ticket, self._limit_s)
        names, self._waiting = self._waiting, {}
        for name in names:
            self._calls.board.wake(name)
        return failed

    async def _tell_all(self, method: str) -> list[tuple[Post, RoleError]]:
        board, runtime, limit_s = self._calls.board, self._calls.runtime, self._calls.settings.deadlines.publish_s
        posts = [post for post in self._posts if post.is_up]
        board.begin(LEARNER, method, "all collectors", limit_s)
        try:
            calls = (runtime.call(post.role, method, deadline_s=limit_s) for post in posts)
            answers = await asyncio.gather(*calls, return_exceptions=True)
        finally:
            board.end(LEARNER)
        failed = []
        for post, answer in zip(posts, answers, strict=True):
            if isinstance(answer, RoleError):
                failed.append((post, answer))
            elif isinstance(answer, BaseException):
                raise answer
        return failed
