"""Collectors come and go while the run goes on. The learner, its ledger and its slots know nothing of it.

    ask(6)   4 --> build 2 more --------> scaled: 6    their seats take tickets like all others
    ask(2)   6 --> scaled: 2 ----> each of the 4: no further ticket --> its last ones land, or fly again elsewhere
                                                  --> its role ends --> left

In a free run a collector that leaves is not built anew when it fails: what it had in flight is handed on. In a pinned
run a ticket keeps its collector: the change holds from a ticket on that nobody has opened yet, and who is taken away
goes when its last ticket has settled. One that comes back under the same number begins with nothing. Whoever is added
takes off with the newest snapshot, as everybody does.

Invariants: one change at a time; a change is made as a whole or not at all; a collector is added again only when it
has left; there is always one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from headway.coordinator.collecting import Collecting
from headway.coordinator.collectors_collector_calls import CollectorCalls
from headway.coordinator.role_calls import RoleCalls
from headway.coordinator.roles import Stations, publisher_name
from headway.coordinator.run_result_control import RunControl
from headway.core.events import Left, Scaled
from headway.core.protocols import EndsRoles, RoleError
from headway.core.text_naming import place_of

MOST = 100_000
"""More collectors than anybody means."""


class ScaleRefused(ValueError):
    """The number of collectors stays as it is. One line: why."""


@dataclass(frozen=True, slots=True)
class CollectorChange:
    """A run has another number of collectors."""

    before: int
    now: int

    def line(self) -> str:
        """In words."""
        few, many = sorted((self.before, self.now))
        which = f"collector-{few}" if many == few + 1 else f"collector-{few} to collector-{many - 1}"
        one = many == few + 1
        if self.now > self.before:
            return f"{self.before} -> {self.now} collectors: {which} {'takes' if one else 'take'} tickets now"
        goes = "leaves when its last tickets have" if one else "leave when their last tickets have"
        return f"{self.before} -> {self.now} collectors: {which} {goes} landed"


class Scaling:
    """The loops of all collectors: it begins them, adds some, and sees off those that are no longer wanted."""

    def __init__(
        self, collecting: Collecting, collectors: CollectorCalls, calls: RoleCalls, control: RunControl
    ) -> None:
        self.stations: Stations | None = None
        """How further collectors are built."""
        self._collecting = collecting
        self._queue = collecting.flights.dispatch.queue
        self._collectors = collectors
        self._calls = calls
        self._control = control
        self._group: asyncio.TaskGroup | None = None
        self._has_begun = False
        self._seated: dict[int, asyncio.Task[None]] = {}  # seat -> its collect loop
        self._beside: dict[int, list[asyncio.Task[None]]] = {}  # collector -> its other loops
        self._leaving: dict[int, asyncio.Task[None]] = {}
        self._back: list[int] = []  # collectors that were leaving when the checkpoint was written
        self._change: asyncio.Task[None] | None = None
        self._early: list[tuple[int, Future[CollectorChange], int | None]] = []  # asked for before the run collected

    @property
    def collectors(self) -> int:
        """How many there are, without those that are leaving."""
        return self._collectors.posts.num

    async def bring_back(self) -> None:
        """Of a pinned run that goes on: whoever was leaving and still has tickets is there until these are settled."""
        if not self._calls.settings.is_pinned:
            return
        places = self._calls.settings.collectors, self._calls.settings.lanes
        numbers = {place_of(seat, *places)[0] for seat in self._seats_with_tickets()}
        self._back = sorted(numbers.difference(range(self.collectors)))
        await self._build(self._back)
        for seat in (seat for number in self._back for seat in self._collectors.posts.of(number).seats):
            self._queue.leave(seat)

    def _seats_with_tickets(self) -> set[int]:
        """Of a pinned run: those of its live tickets, and of those that nobody has opened before the last change."""
        first, lines = self._collecting.flights.first, self._collecting.flights.lines
        live = {entry.ticket.collector for line in lines for entry in line.ledger.live()}
        coming = range(first.ledger.next_index, first.ledger.seats.since)
        return {seat for seat in live if seat is not None} | {first.ledger.seats.seat(index) for index in coming}

    def begin(self, group: asyncio.TaskGroup) -> None:
        """The loops of those that the run begins with."""
        self._group, self._has_begun = group, True
        self._begin_loops([*range(self.collectors), *self._back])
        for number in self._back:
            self._leaving[number] = group.create_task(self._see_off(number))
        early, self._early = self._early, []
        for asked in early:
            self.ask(*asked)

    def end(self) -> None:
        """The run is over, whether it has begun or not. Safe to call more than once."""
        self._group, self._has_begun = None, True
        for _, answer, _ in self._early:
            answer.set_exception(ScaleRefused("the run ended before that"))
        self._early.clear()
        changes = [] if self._change is None else [self._change]
        besides = [task for tasks in self._beside.values() for task in tasks]
        for task in (*changes, *self._leaving.values(), *self._seated.values(), *besides):
            task.cancel()

    def ask(self, collectors: int, answer: Future[CollectorChange], ticket: int | None = None) -> None:
        """Have so many collectors; the answer comes when those that are added work, or those that leave know it. Before
        the run collects this waits until it does. In a pinned run the change holds from `ticket` on, which nobody has
        opened yet; if it is not said, from the next one on."""
        if not self._has_begun:
            self._early.append((collectors, answer, ticket))
            return
        why = self._why_not(collectors, ticket)
        if why:
            answer.set_exception(ScaleRefused(why))
            return
        assert self._group is not None
        work = self._make(collectors, ticket, answer)
        try:
            self._change = self._group.create_task(work)
        except RuntimeError:  # a loop has just failed: the group takes no further task
            work.close()
            answer.set_exception(ScaleRefused("the run is over or about to end"))
            return
        self._change.add_done_callback(partial(_answer_at_last, answer))

    def _why_not(self, wanted: int, ticket: int | None) -> str:
        runtime = self._calls.runtime
        if not 1 <= wanted <= MOST:
            return f"a run has 1 to {MOST} collectors, received {wanted!r}"
        if not isinstance(runtime, EndsRoles):
            return (
                f"the runtime {runtime.name!r} keeps the collectors it began with: threads, processes and ray can add "
                "some or take some away"
            )
        most = None if self.stations is None else self.stations.most_collectors
        if most is not None and wanted > most:
            return f"this run began with places for {_so_many(most)}, received {wanted}"
        if self._group is None or self._control.stop_reason:
            return f"the run is over or about to end{self._control.stop_reason and ': '}{self._control.stop_reason}"
        if self._change is not None:
            return "another change of the collectors is under way"
        if wanted == self.collectors:
            return f"there {'is' if wanted == 1 else 'are'} {_so_many(wanted)} already"
        if ticket is not None and not (self._calls.settings.is_pinned and ticket >= self._next_ticket):
            return f"ticket {ticket} is open or done already, or tickets of this run belong to no collector"
        return ""

    @property
    def _next_ticket(self) -> int:
        """The first that no line has opened."""
        return max(line.ledger.next_index for line in self._collecting.flights.lines)

    async def _make(self, wanted: int, ticket: int | None, answer: Future[CollectorChange]) -> None:
        before = self.collectors
        try:
            if wanted > before:
                await self._add(range(before, wanted), ticket)
            else:
                self._take_away(range(wanted, before), ticket)
        except (RuntimeError, ValueError, OSError) as error:
            answer.set_exception(ScaleRefused(f"there are still {_so_many(before)}: {error}"))
        else:
            answer.set_result(CollectorChange(before, wanted))
        finally:
            self._change = None

    # -- more ---------------------------------------------------------------------------------------

    async def _add(self, numbers: range, ticket: int | None) -> None:
        """All of them, or none."""
        for number in numbers:
            if number in self._leaving:
                await asyncio.wait([self._leaving[number]])
        await self._build(numbers, ticket)
        self._note(numbers.stop, ticket)
        self._begin_loops(numbers)

    async def _build(self, numbers: Sequence[int], ticket: int | None = None) -> None:
        """Before `ticket` is opened, if one is given. What was built is ended again if not all of it can be."""
        assert self.stations is not None
        calls, lanes, carried = self._calls, self._calls.settings.lanes, self._collectors.carried
        roles = [self.stations.collector_role(number, lanes) for number in numbers]
        try:
            await calls.start_all(roles)
            limit_s = calls.settings.deadlines.start_s
            for number, role in zip(numbers, roles, strict=True):
                if number in carried:  # of an earlier session that had it
                    await calls.call(role.name, "restore", "its state", limit_s, carried[number])
            if ticket is not None and ticket < self._next_ticket:
                raise ValueError(f"ticket {ticket} was opened before they were built")
        except (RuntimeError, ValueError, OSError):
            for number, role in zip(numbers, roles, strict=True):
                await self._end_role(role.name)
                calls.board.leave(self._names(number))
            raise
        for seat in (seat for number in numbers for seat in self._collectors.posts.add(number).seats):
            self._queue.join(seat)

    # -- fewer --------------------------------------------------------------------------------------

    def _take_away(self, numbers: range, ticket: int | None) -> None:
        assert self._group is not None
        self._note(numbers.start, ticket)
        for seat in (seat for number in numbers for seat in self._collectors.posts.of(number).seats):
            self._queue.leave(seat)
        self._collecting.flights.dispatch.wake_idle()  # somebody else takes what one of them was woken for
        self._calls.board.wake_all()  # and the others wait with the patience that fewer collectors need
        for number in numbers:
            self._leaving[number] = self._group.create_task(self._see_off(number))

    async def _see_off(self, number: int) -> None:
        """Its tickets land or are handed on, then its role ends. It is gone when that is written down."""
        post = self._collectors.posts.of(number)
        await asyncio.wait([self._seated[seat] for seat in post.seats])
        besides = self._beside.pop(number, [])
        for task in besides:
            task.cancel()
        if besides:
            await asyncio.wait(besides)
        why = await self._end_role(post.role)
        self._collectors.forget(number)
        for seat in post.seats:
            self._queue.forget(seat)
        self._calls.board.leave([*self._names(number), publisher_name(number)])
        self._calls.journal.write(Left, post.role, why)
        del self._leaving[number]

    async def _end_role(self, role: str) -> str:
        """What went wrong with that, if anything did."""
        runtime = self._calls.runtime
        try:
            if isinstance(runtime, EndsRoles):  # one that is not keeps it to the end of the run
                await runtime.end(role)
        except RoleError as error:
            return error.what
        return ""

    # -- both ---------------------------------------------------------------------------------------

    def _names(self, number: int) -> list[str]:
        role = f"collector-{number}"
        lanes = self._calls.settings.lanes
        return [role] if lanes == 1 else [f"{role}/{lane}" for lane in range(lanes)]

    def _note(self, now: int, ticket: int | None) -> None:
        """From here on there are so many."""
        before, self._collectors.posts.num = self.collectors, now
        lanes, lines = self._calls.settings.lanes, self._collecting.flights.lines
        self._calls.expect_from(now)
        self._queue.num_collectors = now
        since = None
        if self._calls.settings.is_pinned:
            since = self._next_ticket if ticket is None else ticket
        seats = [self._collectors.posts.of(number).seats[lane] for lane in range(lanes) for number in range(now)]
        for line in lines:
            line.lead.expect_from(now * lanes)
            if since is not None:
                line.ledger.seats.change(since, seats)
        self._calls.journal.write(Scaled, now, before, since)

    def _begin_loops(self, numbers: Sequence[int]) -> None:
        assert self._group is not None
        begin, collecting = self._group.create_task, self._collecting
        for seat in sorted(seat for number in numbers for seat in self._collectors.posts.of(number).seats):
            self._seated[seat] = begin(collecting.loop(seat))
        if self._calls.settings.on_publish == "partial":
            for number in numbers:
                self._beside.setdefault(number, []).append(begin(collecting.push_loop(number)))
        if collecting.is_watched:
            for number in numbers:
                self._beside.setdefault(number, []).append(begin(collecting.watch_loop(number)))


def _answer_at_last(answer: Future[CollectorChange], change: asyncio.Task[None]) -> None:
    if not answer.done():
        answer.set_exception(ScaleRefused("the run ended before that"))


def _so_many(collectors: int) -> str:
    return "1 collector" if collectors == 1 else f"{collectors} collectors"
