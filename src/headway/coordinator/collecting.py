"""The collect loop, one for each seat, and the push loop, one for each collector whose weights change in flight.

    queue --ticket--> collect --rollout--> land
              ^          |
              +- reissue-+ failed: fly again, or drop and begin anew

A seat is a lane of a collector; a collector with one lane is one seat. Where collectors hold weights, a seat also waits
until its collector may change them (`lanes.py`); only with on_publish=partial there is a push loop for each.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from headway.coordinator.collectors_applying import versions_of
from headway.coordinator.collectors_call_sizes import CallSizes, FixedSize, MeasuredSizes
from headway.coordinator.collectors_collector_calls import CollectorCalls
from headway.coordinator.collectors_lanes import Post, Versions
from headway.coordinator.learning_feed import AnyFeed
from headway.coordinator.role_calls import RoleCalls, RunFailed, end_if_final
from headway.coordinator.roles import publisher_name
from headway.coordinator.run_result_control import RunControl
from headway.coordinator.tickets_flights import Flights
from headway.core.events import BegunAnew
from headway.core.protocols import NoRoom, PayloadLost, RoleError, RoleRaised, SendsCalls
from headway.core.text_messages import to_stderr
from headway.core.types import HEALTH, Rollout, Snapshot, Ticket, anew_seed

ROOM_S = 1.0
"""How long a collector whose rollout had no room waits before it collects it again."""
SLOW_DRAIN = (
    "on_publish=drain: waiting until whole episodes have landed takes longer than making the next version, so lanes "
    "stand still; on_publish=partial changes the weights within episodes instead"
)


NOT_BEGUN = "not begun: another ticket of its call took long"


class Collecting:
    """Brings tickets to collectors and rollouts back."""

    def __init__(self, flights: Flights, collectors: CollectorCalls, calls: RoleCalls, control: RunControl) -> None:
        self.flights = flights
        self._queue = flights.dispatch.queue
        self.feeds: Mapping[str, AnyFeed] = {}
        """Line -> where its batches come from; it is woken when that has news."""
        self._collectors = collectors
        self._calls = calls
        self._settings = calls.settings
        self._board = calls.board
        self._control = control
        self.names = collectors.posts.names
        self._has_lanes = calls.settings.lanes > 1
        self._sizes = _call_sizes(calls)
        self._failures: Counter[str] = Counter()  # collector -> tickets in a row that were dropped as failed
        self._without_room: dict[int, float] = {}  # seat -> since when no rollout of it had room, and nothing landed
        self.engines: dict[str, tuple[float, Mapping[str, float]]] = {}
        """Collector -> when it landed, and its health then."""

    @property
    def is_watched(self) -> bool:
        return self._collectors.is_watched

    async def watch_loop(self, number: int) -> None:
        """Asks collector `number` what it does, every now and then."""
        await self._collectors.watch_loop(number)

    async def check(self) -> None:
        """Find out what the collectors are like, and refuse settings that do not fit them."""
        await self._collectors.check()

    def open_first(self) -> None:
        """The first tickets of a session."""
        for line in self.flights.lines:
            if self.feeds[line.name].opens_when_resumed():
                self.flights.admit(line)  # else nothing has come free: without the interruption nothing would open

    async def loop(self, seat: int) -> None:
        """Consumes open tickets, produces rollouts. Waits for: a ticket it may have; with lanes, its collector to be
        ready for the ticket's version. Woken by: a publish or a drop that frees a slot, a reissued ticket, the end of
        a pause; the last landing of another version; a second collector that is ready to take over. Ends: with the
        learn loop of the first line, or when its collector is to leave and its ticket has landed or was handed on.
        """
        next_start = -math.inf
        pacing_s, now = self._settings.pacing_s, self._calls.runtime.now
        sizes = self._sizes
        while True:
            if self._collectors.moves and seat in self._collectors.moves:
                await self._collectors.move(seat)
            if pacing_s:
                await self._pace(seat, next_start)
            ticket = self._ticket_nowait(seat) or await self._next_ticket(seat)
            if ticket is None:
                return
            if pacing_s:
                next_start = now() + pacing_s
            ticket, snapshot = self.flights.start(ticket, seat)
            if sizes is not None and not ticket.attempt:
                several = [(ticket, snapshot), *self._start_more(seat, snapshot, sizes.limit(seat) - 1)]
                await self._fly_together(seat, several, sizes)
                continue
            try:
                rollout = await self._collectors.collect(seat, ticket, snapshot)
            except RoleError as error:
                await self._failed(seat, ticket, snapshot, error)
            else:
                self._land(ticket, snapshot, rollout)

    def _start_more(self, seat: int, snapshot: Snapshot, limit: int) -> list[tuple[Ticket, Snapshot]]:
        """Further tickets for the same call. One that flies again flies alone: if it brings its collector down, nobody
        else is blamed. Where weights are applied before a flight, all have the same."""
        started: list[tuple[Ticket, Snapshot]] = []
        versions = versions_of(snapshot) if self._collectors.holds_weights else None
        for _ in range(min(limit, self._queue.num_for(seat))):
            ticket = self._queue.first(seat)
            assert ticket is not None
            if ticket.attempt or versions not in (None, self.flights.weights.versions_for(ticket)):
                break
            self._queue.take(seat)
            started.append(self.flights.start(ticket, seat))
        return started

    async def _fly_together(self, seat: int, several: Sequence[tuple[Ticket, Snapshot]], sizes: CallSizes) -> None:
        """Tickets of one call land together. Of a call that fails, the first that has not landed is to answer for it,
        the others fly again as if they had not taken off; as do those that a collector which took long did not begin.
        """
        error: RoleError | None
        rollouts: Sequence[Rollout]
        try:
            rollouts, error = await self._collectors.collect_several(seat, several, sizes)
        except RoleError as failure:
            rollouts, error = (), failure
        for (ticket, snapshot), rollout in zip(several, rollouts, strict=False):
            self._land(ticket, snapshot, rollout)
        left = several[len(rollouts) :]
        if not left:
            return
        others = left if error is None else left[1:]
        why = NOT_BEGUN if error is None else error.what
        for other, its_snapshot in reversed(others):  # the oldest is put in line last: first
            self.flights.reissue(other, its_snapshot, seat, why, is_attempt=False, anew=False)
        if error is None:
            return
        sizes.note_failure(seat)
        ticket, snapshot = left[0]
        if isinstance(error, PayloadLost) and not _versions(snapshot).intersection(error.versions):
            self.flights.reissue(ticket, snapshot, seat, error.what, is_attempt=True, anew=False)
            return  # the weights of another were lost: this one flies alone, and so will that one
        await self._failed(seat, ticket, snapshot, error)

    def _ticket_nowait(self, seat: int) -> Ticket | None:
        """A ticket, if there is one this seat may have now; otherwise it is noted as idle, or as waiting."""
        if self._hands_on(seat):
            return None
        if self._control.is_paused or self._control.stop_reason:
            self._queue.note_idle(seat)
            return None
        if self._has_lanes and not self._may_take_off(seat):
            return None
        return self._queue.take(seat)

    def _hands_on(self, seat: int) -> bool:
        """Is its collector leaving, and may others have what it cannot finish?"""
        return seat in self._queue.leaving and not self._settings.is_pinned

    def _is_done(self, seat: int) -> bool:
        """Is its collector leaving, and will it never be asked for anything again?"""
        if seat not in self._queue.leaving:
            return False
        return not self._settings.is_pinned or self.flights.are_settled_of(seat)

    def _may_take_off(self, seat: int) -> bool:
        """Is its collector ready for the seat's next ticket? If not, somebody else may have it meanwhile."""
        ticket = self._queue.first(seat)
        post = self._collectors.posts.at(seat)
        if ticket is None or post.may_take_off(self.flights.weights.versions_for(ticket), self._wanted(post)):
            return True
        post.waiting[self.names[seat]] = None
        other = self._queue.another_idle()
        if other is not None:
            self._board.wake(self.names[other])
        return False

    def _wanted(self, post: Post) -> set[Versions]:
        """The versions of the next tickets of all seats of one collector."""
        if not self._settings.is_pinned:
            return {self.flights.weights.newest_versions}
        tickets = map(self._queue.first, post.seats)
        return {self.flights.weights.versions_for(ticket) for ticket in tickets if ticket is not None}

    def _why_not_yet(self, seat: int) -> str:
        ticket, flights = self._queue.first(seat), self.flights
        return self._collectors.posts.at(seat).why_not(
            flights.weights.newest_versions if ticket is None else flights.weights.versions_for(ticket)
        )

    async def _next_ticket(self, seat: int) -> Ticket | None:
        """None if there will be no further one for this seat."""
        role = self.names[seat]
        while not self._is_done(seat):
            turns = self._calls.patience_s * len(self.names)  # slots may be fewer than seats
            if self._has_lanes and role in self._collectors.posts.at(seat).waiting:
                version = self.flights.first.version
                await self._board.wait(role, "drain", lambda: self._why_not_yet(seat), self._calls.patience_s)
                self._collectors.posts.at(seat).waiting.pop(role, None)
                if self._collectors.warns_of_drains and self.flights.first.version > version:
                    self._collectors.warns_of_drains = False
                    to_stderr(SLOW_DRAIN)
            else:
                await self._board.wait(role, self._blocked_by(), self.why_no_ticket, turns)
                if seat in self._collectors.moves:
                    await self._collectors.move(seat)
            ticket = self._ticket_nowait(seat)
            if ticket is not None:
                return ticket
        return None

    async def _pace(self, seat: int, next_start: float) -> None:
        """Keep the collector's distance between two starts."""
        pause_s = next_start - self._calls.runtime.now()
        if pause_s > 0:
            self._board.begin(self.names[seat], "pacing", f"pacing_s={self._settings.pacing_s:g}", pause_s)
            await asyncio.sleep(pause_s)
            self._board.end(self.names[seat])

    def _blocked_by(self) -> str:
        """The cause of waiting for a ticket."""
        tally = self.flights.first.ledger.tally
        if self._control.stop_reason or tally.learned + tally.live >= self.feeds[""].max_tickets:
            return "ending"
        return "paused" if self._control.is_paused else "slot"

    def why_no_ticket(self) -> str:
        if self._control.stop_reason:
            return f"the end of the run ({self._control.stop_reason})"
        if self._control.is_paused:
            return "the evaluation to finish"
        whys = (line.ledger.rule.why_not_open(line.ledger.tally) for line in self.flights.lines)
        return f"a ticket: {next(filter(None, whys), 'all are under way')}"

    def _land(self, ticket: Ticket, snapshot: Snapshot, rollout: Rollout) -> None:
        now = self._calls.runtime.now()
        self.flights.land(ticket, snapshot, rollout, now)
        if self._failures or HEALTH in rollout.info:
            role = self._collectors.posts.at(ticket.collector or 0).role
            self._failures.pop(role, None)
            if HEALTH in rollout.info:
                self.engines[role] = now, rollout.info[HEALTH]
        if self._without_room:
            self._without_room.clear()
        for line in self.flights.lines:
            if self._control.is_paused or self.feeds[line.name].has_news():
                self._board.wake(line.role)

    def _wake_learners(self) -> None:
        for line in self.flights.lines:
            self._board.wake(line.role)

    async def _wait_for_room(self, seat: int, ticket: Ticket, snapshot: Snapshot, error: NoRoom) -> None:
        """Fly the ticket again in a while, when the learner has used what is in the way. That may take as long as a
        ticket may."""
        now, limit = self._calls.runtime.now(), self._settings.deadlines.collect_s
        if now - self._without_room.setdefault(seat, now) >= limit:
            raise RunFailed(
                f"{ticket} on {self.names[seat]}: {error.what}, for {limit:g} s (collect_deadline_s); fewer or smaller "
                "rollouts at once (max_lead, tickets_per_batch, queue_bytes_limit) need less"
            ) from error
        self.flights.reissue(ticket, snapshot, seat, error.what, is_attempt=False, anew=False)
        await self._collectors.recover(seat, error)
        await self._calls.pause(self.names[seat], "room for its rollout", ROOM_S)

    async def _failed(self, seat: int, ticket: Ticket, snapshot: Snapshot, error: RoleError) -> None:
        """Fly the ticket again, or give it up; then bring the collector back."""
        if isinstance(error, NoRoom):
            return await self._wait_for_room(seat, ticket, snapshot, error)
        end_if_final(error)
        retries = self._settings.retries
        is_lost = isinstance(error, PayloadLost)
        raised = isinstance(error, RoleRaised) and not is_lost
        allowed = retries.attempts_on_error if raised else retries.attempts_on_loss
        is_innocent = self._collectors.is_innocent(seat, error)  # a node takes its idle collectors along, a lane others
        attempts = ticket.attempt + 1
        if is_innocent or attempts < allowed:
            if isinstance(error, PayloadLost):
                await self._stage_again(self.names[seat], snapshot, error)
            self.flights.reissue(ticket, snapshot, seat, error.what, is_attempt=not is_innocent, anew=is_lost)
        elif retries.on_failure == "drop":
            self.flights.give_up(ticket, snapshot, error.what)
            if not is_lost and not self._hands_on(seat):
                self._wake_learners()
                return await self._begin_anew(seat, ticket, error)
        else:
            tries = "" if attempts == 1 else f" after {attempts} attempts"
            raise RunFailed(f"{ticket} failed on {self.names[seat]}{tries}: {error.what}") from error
        self._wake_learners()
        if not self._hands_on(seat):
            await self._collectors.recover(seat, error)

    async def _stage_again(self, role: str, snapshot: Snapshot, lost: PayloadLost) -> None:
        """Have the weights that are gone staged again, of whichever line they were."""
        for line in self.flights.lines:
            part = snapshot.others[line.name] if line.name else snapshot
            if not snapshot.others or part.version in lost.versions:
                await line.publishing.stage_again(role, part)

    async def _begin_anew(self, seat: int, ticket: Ticket, error: RoleError) -> None:
        """A ticket was dropped: its collector begins new episodes, for what it did would only fail again."""
        role, limit = self._collectors.posts.at(seat).role, self._settings.retries.max_failures_in_a_row
        for attempt in itertools.count():
            self._failures[role] += 1
            if self._failures[role] >= limit:
                raise RunFailed(
                    f"{role} failed {limit} times in a row (max_failures_in_a_row={limit}), the last time on {ticket}: "
                    f"{error.what}"
                ) from error
            try:
                await self._collectors.begin_anew(seat, anew_seed(ticket.seed, attempt), error)
            except RoleError as again:
                end_if_final(again)
                error = again
            else:
                return self._calls.journal.write(BegunAnew, ticket.index, seat, attempt)

    async def push_loop(self, number: int) -> None:
        """Consumes snapshots, applies each to a collector in the middle of its work. Waits for: a newer version. Woken
        by: publish. Ends: with the learn loop of the first line.
        """
        name = publisher_name(number)
        while True:
            post = self._collectors.posts.of(number)
            snapshot = self.flights.weights.hold_newest()
            try:
                await self._collectors.applying.push(post, name, snapshot)
                is_done = True
            except PayloadLost as lost:
                await self._stage_again(name, snapshot, lost)
                is_done = False
            except RoleError as error:
                await self._collectors.revive(post, name, error)
                is_done = False
            finally:
                self.flights.weights.let_go(snapshot)
            while is_done and self.flights.weights.are_newest(snapshot):
                await self._board.wait(name, "version", "a newer version", float("inf"))


def _call_sizes(calls: RoleCalls) -> CallSizes | None:
    """None: each ticket has a call of its own."""
    settings, asked = calls.settings, calls.settings.tickets_per_call
    if asked != "auto":
        return FixedSize(asked, settings.deadlines.collect_s) if asked > 1 else None
    if settings.lanes > 1 or settings.pacing_s or not isinstance(calls.runtime, SendsCalls):
        return None
    return MeasuredSizes(settings.deadlines.collect_s)


def _versions(snapshot: Snapshot) -> set[int]:
    """Of every line whose weights it holds."""
    return {snapshot.version, *(other.version for other in snapshot.others.values())}
