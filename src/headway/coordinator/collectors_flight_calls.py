"""Collect calls whose deadline the coordinator keeps itself: it can stand still, and can say what was going on.

    collect   |=====>                     |=====>  lands
    deadline  |----->                     |------------->  goes on where it stood
                    park              go_on
                     `---- evaluate ----'

With `evaluation_waits_for="parked"` nobody waits until long rollouts have landed: the collectors are told to `pause`,
the evaluation runs, and they `resume`. What was in flight loses nothing but time, and that time does not count against
its deadline. A collector that can say what it is `doing` is asked every now and then while something is in flight for
long, for `why()`, and once more when a deadline has passed: so a step of an environment that hangs is named.

The runtimes know nothing of it: they get a deadline that is long enough for any pause.

Invariants: between `park` and `go_on` no collect call is made; a call under way has `collect_s` seconds in which it was
not parked; a collector that is built anew in the meantime is not paused, and has nothing to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from headway.coordinator.collectors_lanes import Post
from headway.coordinator.role_calls import RoleCalls
from headway.coordinator.roles import LEARNER
from headway.core.protocols import RoleError, RoleLate
from headway.core.types import Snapshot, Ticket
from headway.core.types_opaque import RoleAnswer

ASKED_EVERY_S = 5.0
"""How often a collector is asked what it does, while a ticket has been in flight for longer than that."""
LAST_WORD_S = 2.0
"""How long it may take to say it when a deadline has passed."""
SHOWN = 3
"""Of what it says, the first so many are shown: what has lasted longest."""


@dataclass(slots=True)
class _Clock:
    """The deadline of one collect call, which can stand still."""

    role: str
    ticket: Ticket
    limit: asyncio.Timeout
    began: float
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


class FlightCalls:
    """Makes collect calls that can be parked, or that can say what they do (`tells`)."""

    def __init__(self, calls: RoleCalls, posts: Iterable[Post], *, tells: bool) -> None:
        self._calls = calls
        self._posts = posts
        self._tells = tells
        self._doing: dict[str, str] = {}  # collector -> what it said last
        self._limit_s = calls.settings.deadlines.collect_s
        self._clocks: dict[str, _Clock] = {}  # of who collects
        self._is_parked = False
        self._waiting: dict[str, None] = {}  # who would collect if nobody was parked

    async def collect(self, name: str, role: str, ticket: Ticket, snapshot: Snapshot) -> RoleAnswer:
        """One collect call on behalf of who is called `name` on the board."""
        board, runtime, loop = self._calls.board, self._calls.runtime, asyncio.get_running_loop()
        while self._is_parked:
            self._waiting[name] = None
            await board.wait(name, "parked", "the evaluation to finish", self._calls.patience_s)
        board.begin(name, "collect", partial(self._words, role, ticket), self._limit_s)
        try:
            async with asyncio.timeout(self._limit_s) as limit:
                clock = self._clocks[name] = _Clock(role, ticket, limit, loop.time())
                answer = await runtime.call(role, "collect", ticket, snapshot, deadline_s=self._calls.patience_s)
                if clock.is_over(loop.time()):
                    raise TimeoutError
                return answer
        except TimeoutError:
            what = f"no answer within {self._limit_s:g} s"
            if self._tells:
                what += await self._ask(role, LAST_WORD_S)
            raise RoleLate(role, "collect", what) from None
        finally:
            self._clocks.pop(name, None)
            board.end(name)

    async def park(self) -> list[tuple[Post, RoleError]]:
        """Everybody stands still. Returns who could not be told to, and why."""
        self._is_parked = True
        now = asyncio.get_running_loop().time()
        for name, clock in self._clocks.items():
            clock.stop(now)
            self._calls.board.begin(name, "parked", "the evaluation to finish", self._calls.patience_s)
        return await self._tell_all("pause")

    async def go_on(self) -> list[tuple[Post, RoleError]]:
        """Everybody goes on. Returns who could not be told to, and why."""
        failed = await self._tell_all("resume")
        self._is_parked = False
        now = asyncio.get_running_loop().time()
        for name, clock in self._clocks.items():
            clock.go_on(now)
            words = partial(self._words, clock.role, clock.ticket)
            self._calls.board.begin(name, "collect", words, self._limit_s)
        names, self._waiting = self._waiting, {}
        for name in names:
            self._calls.board.wake(name)
        return failed

    async def watch_loop(self, post: Post) -> None:
        """Asks a collector what it does. Waits for: the clock. Ends: with the learn loop of the first line."""
        while True:
            await asyncio.sleep(ASKED_EVERY_S)
            since = min((clock.began for clock in self._clocks.values() if clock.role == post.role), default=None)
            if since is None or asyncio.get_running_loop().time() - since < ASKED_EVERY_S or not post.is_up:
                self._doing.pop(post.role, None)
            else:
                self._doing[post.role] = await self._ask(post.role, self._calls.patience_s)

    async def _ask(self, role: str, within_s: float) -> str:
        try:
            doing: Sequence[str] = await self._calls.runtime.call(role, "doing", deadline_s=within_s)
        except RoleError:
            return ""  # whoever collects there hears of it too
        more = f"; and {len(doing) - SHOWN} more" if len(doing) > SHOWN else ""
        return f" ({'; '.join(doing[:SHOWN])}{more})" if doing else ""

    def _words(self, role: str, ticket: Ticket) -> str:
        return f"{ticket}{self._doing.get(role, '')}"

    async def _tell_all(self, method: str) -> list[tuple[Post, RoleError]]:
        board, runtime, limit_s = self._calls.board, self._calls.runtime, self._calls.settings.deadlines.publish_s
        posts = [post for post in self._posts if post.is_up]
        board.begin(LEARNER, "parking", f"all collectors to {method}", limit_s)
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
