"""Tickets across the lines of a run: each flies once, for all the lines that have opened it.

    line a   open 5 ---------\\                      /--> ready 5 --> taken --> settled
                              start 5 ---> land 5 <
    line b   ........ open 5 -/                      \\--> ready 5 --> dropped

A ticket is put on the queue when every line that takes its rollout has opened it, and takes off with a snapshot of each
line. In a pinned run a line opens a ticket at a moment that depends on its own learning alone, so the version of every
line is a function of the ticket's index. The rollout is kept until the last of its lines is done with it.

With one line all of this is the plain life of a ticket. Nothing here waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from headway.coordinator.line import Line
from headway.coordinator.line_turns import all_turns
from headway.coordinator.role_calls import RoleCalls, RunFailed
from headway.coordinator.run_result_control import RunControl
from headway.coordinator.tickets_companions import Companions
from headway.coordinator.tickets_dispatch import Dispatch
from headway.coordinator.tickets_joined_snapshots import JoinedSnapshots
from headway.coordinator.tickets_ticket_queue import TicketQueue
from headway.core.events import Dropped, Landed, Lost, Opened, Reissued, Requeued, Settled, Started
from headway.core.ledger_live_tickets import LedgerError
from headway.core.protocols import PayloadLost
from headway.core.rules_order import OnStale
from headway.core.types import Batch, DropReason, Phase, Rollout, Snapshot, Span, Ticket, map_payloads


class Flights:
    """Opens, starts, lands, reopens, drops and settles tickets in every line they belong to."""

    def __init__(
        self,
        lines: Sequence[Line],
        queue: TicketQueue,
        calls: RoleCalls,
        control: RunControl,
        seat_names: Sequence[str],
    ) -> None:
        self.lines = lines
        self.first = lines[0]
        self._others = lines[1:]
        self._settings = calls.settings
        self._is_pinned = calls.settings.is_pinned
        self._journal = calls.journal
        self._runtime = calls.runtime
        self._control = control
        self.dispatch = Dispatch(queue, calls.board, seat_names)
        self.weights = JoinedSnapshots(lines, is_pinned=calls.settings.is_pinned)
        self.rollouts: dict[int, Rollout] = {}
        """Landed, and needed by some line."""
        self.companions = Companions(lines[1:], is_pinned=calls.settings.is_pinned)
        self._flying: dict[int, tuple[int, Snapshot]] = {}
        """Of a run with several lines: ticket in flight -> its seat and the weights it flies with."""
        self._last_span = Span(0, 0)
        self._admit_when_landed = [line for line in lines if line.settings.queue_bytes_limit is not None]

    # -- opening ------------------------------------------------------------------------------------

    def admit(self, line: Line) -> None:
        """Open tickets of a line while its rules allow. Called exactly where slots of this line come free: in a pinned
        run what another line does may not decide with which version a ticket is born."""
        if self._control.stop_reason:
            return
        while (ticket := line.ledger.open(line.version)) is not None:
            if ticket.version is not None:
                line.snapshots.hold(ticket.version)
            self._journal.write(Opened, ticket.index, line.name)
            if not self._others:
                self.dispatch.put(ticket)
            else:
                self._open_for_all(line, ticket)

    def _open_for_all(self, line: Line, ticket: Ticket) -> None:
        """A line has opened its ticket; it may have been the last one, also for rollouts that it does not take."""
        for index in line.note_birth(ticket):
            if self.is_open_everywhere(index):
                self.dispatch.put(self._as_collected(index))

    def is_open_everywhere(self, index: int) -> bool:
        """Has every line opened the first ticket from this one on that it takes? The first line takes all."""
        return all(line.ledger.has_opened(line.next_taken(index)) for line in self.lines)

    def _as_collected(self, index: int) -> Ticket:
        """The ticket as it waits for its flight, after as many attempts as any of its lines has seen."""
        open_in = [line.ledger.entry(index).ticket for line in self.lines if line.has(index, Phase.OPEN)]
        if not open_in:
            raise LedgerError(f"ticket {index} is open in no line")
        return max(open_in, key=lambda ticket: ticket.attempt)

    # -- flying -------------------------------------------------------------------------------------

    def start(self, ticket: Ticket, seat: int) -> tuple[Ticket, Snapshot]:
        """The ticket takes off in all its lines; returns it as it flies, and the weights it flies with."""
        first = self.first
        if not self._others:
            version = first.version if ticket.version is None else ticket.version
            ticket = first.ledger.start(ticket.index, version, seat)
            self._journal.write(Started, ticket.index, seat, version)
            return ticket, first.snapshots.get(version) if self._is_pinned else first.snapshots.hold(version)
        index, attempt = ticket.index, 0
        parts: dict[str, Snapshot] = {}
        for line in self.lines:
            version = self.weights.version_of(line, index)
            is_part = line.has(index, Phase.OPEN)
            is_held = self._is_pinned and (is_part or line.birth(index) is not None)
            parts[line.name] = line.snapshots.get(version) if is_held else line.snapshots.hold(version)
            if is_part:
                attempt = max(attempt, line.ledger.start(index, version, seat).attempt)
        snapshot = self.weights.joined(parts)
        ticket = Ticket(index, ticket.seed, snapshot.version, seat, attempt)
        others = {name: part.version for name, part in snapshot.others.items()}
        self._flying[index] = (seat, snapshot)
        self._journal.write(Started, index, seat, snapshot.version, others)
        return ticket, snapshot

    def land(self, ticket: Ticket, snapshot: Snapshot, rollout: Rollout, now: float) -> None:
        """The rollout is here, for every line that waits for it."""
        index = ticket.index
        steps, size = int(rollout.steps), rollout.size or 0
        length = float(rollout.steps if rollout.length is None else rollout.length)
        span, spans = rollout.span or self._span_of(snapshot.version), None
        parts = self.lines
        if self._others:
            parts = [line for line in self.lines if line.has(index, Phase.IN_FLIGHT)]
            spans = {
                name: rollout.spans.get(name, Span(at.version, at.version)) for name, at in snapshot.others.items()
            }
        for line in parts:
            its_span = span if not line.name or spans is None else spans[line.name]
            try:
                line.ledger.land(index, span=its_span, steps=steps, length=length, size=size, now_s=now)
            except LedgerError as error:
                raise RunFailed(f"{ticket} on {self.dispatch.seat_names[ticket.collector or 0]}: {error}") from error
        self.rollouts[index] = rollout
        if spans is None:
            self.first.snapshots.let_go(snapshot.version)
            self._journal.write_at(now, Landed, index, [span.oldest, span.newest], steps, length, size)
        else:
            self._land_with_others(index, snapshot)
            others = {name: [one.oldest, one.newest] for name, one in spans.items()}
            self._journal.write_at(now, Landed, index, [span.oldest, span.newest], steps, length, size, others)
        if rollout.filtered and not self._is_pinned:
            for line in list(parts):
                self.drop(line, index, DropReason.FILTERED, _why_filtered(rollout))
        else:
            for line in self._admit_when_landed:
                self.admit(line)  # how big it is may be news, or smaller than was expected

    def _span_of(self, version: int) -> Span:
        """Of what one version made: most rollouts that land one after another have the same."""
        if self._last_span.newest != version:
            self._last_span = Span(version, version)
        return self._last_span

    def _land_with_others(self, index: int, snapshot: Snapshot) -> None:
        """Let go of what it flew with. In a pinned run what the first line was accompanied by stays until it settles:
        an evaluation of the version it makes uses the same."""
        del self._flying[index]
        self.first.snapshots.let_go(snapshot.version)
        keeps = self.first.ledger.is_live(index) and self.companions.keep(index, snapshot)
        for line in self._others:
            line.end_birth(index)
            if not keeps:
                line.snapshots.let_go(snapshot.others[line.name].version)

    def reissue(self, ticket: Ticket, snapshot: Snapshot, seat: int, why: str, *, is_attempt: bool, anew: bool) -> None:
        """The flight failed: the ticket flies again. With `anew` a pinned one is born again with the newest version."""
        index = ticket.index
        again = ticket
        self._flying.pop(index, None)
        for line in self.lines:
            held = snapshot.others[line.name].version if line.name else snapshot.version
            version: int | None = None
            if line.has(index, Phase.IN_FLIGHT):
                again = line.ledger.reissue(index, line.version if anew else None, is_attempt=is_attempt)
                version = again.version
            elif line.birth(index) is not None:  # it waits for the next flight as it waited for this one
                version = line.bear_again(index) if anew else held
            if version != held:
                line.snapshots.let_go(held)
                if version is not None:
                    line.snapshots.hold(version)
        if self._others:
            again = self._as_collected(index)
        self._journal.write(Reissued, index, seat, again.attempt, why)
        self.dispatch.put(again, first=True)

    def give_up(self, ticket: Ticket, snapshot: Snapshot, why: str) -> None:
        """The flight failed for good: every line that waits for it drops it."""
        self.weights.let_go(snapshot)
        self._flying.pop(ticket.index, None)
        for line in self.lines:
            line.end_birth(ticket.index)
            if line.has(ticket.index, Phase.IN_FLIGHT):
                self.drop(line, ticket.index, DropReason.FAILED, why)

    def are_settled_of(self, seat: int) -> bool:
        """Of a pinned run: are all tickets settled that this seat has, or had before it was taken away?"""
        since = self.first.ledger.seats.since
        return all(
            line.ledger.next_index >= since and all(entry.ticket.collector != seat for entry in line.ledger.live())
            for line in self.lines
        )

    # -- with the learners ----------------------------------------------------------------------------

    def take(self, line: Line, indices: Sequence[int], now: float) -> Batch:
        """`now` is when they were chosen: what was young enough then is young enough."""
        line.ledger.take(indices, line.version, now_s=now)
        self.admit(line)  # a place in the buffer is free, if that was what held tickets back
        return Batch(line.version, tuple(self.rollouts[index] for index in indices))

    def settle(self, line: Line) -> None:
        """A version of this line was published: what it was made from is learned."""
        settled = line.ledger.settle()
        if settled and not line.name:
            self.companions.note_published(settled[-1])
        for index in settled:
            self._let_go_of(index)
        if settled:
            self._journal.write(Settled, settled, line.name)
            self.dispatch.wake_leaving()

    def expire(self, line: Line, index: int, now: float) -> None:
        """A rollout is too old to be taken."""
        reason = line.ledger.too_old(index, line.version, now_s=now)
        assert reason is not None
        if line.settings.on_stale is OnStale.DROP:
            self.drop(line, index, reason)
        else:
            self._journal.write(Requeued, index, reason.value, line.name)
            again = line.ledger.requeue(index, line.version)
            self._fly_again(again, [(line, again)])

    def drop_filtered(self, line: Line, indices: Sequence[int]) -> list[int]:
        """Those of a pinned run that carry no signal; it drops them in their turn."""
        filtered = [index for index in indices if self.rollouts[index].filtered]
        for index in filtered:
            self.drop(line, index, DropReason.FILTERED, _why_filtered(self.rollouts[index]))
        return filtered

    def drop(self, line: Line, index: int, reason: DropReason, why: str = "") -> None:
        line.ledger.drop(index, reason)
        self._let_go_of(index)
        self._journal.write(Dropped, index, reason.value, why, line.name)
        self.admit(line)
        self.dispatch.wake_leaving()

    def _let_go_of(self, index: int) -> None:
        """A line is done with this rollout; the last one gives its memory back."""
        if self._others:
            if not self.first.ledger.is_live(index):
                self.companions.forget(index)
            if any(line.takes(index) and not line.ledger.is_done_with(index) for line in self.lines):
                return
        rollout = self.rollouts.pop(index, None)  # none if it was taken before the run was resumed
        if rollout is not None:
            self._runtime.release(rollout.payload)

    def put_back(self, line: Line, batch: Batch, lost: PayloadLost) -> None:
        """Some rollouts of a batch are gone, so nobody got it: those are collected again, the rest is ready again."""
        indices = [rollout.ticket for rollout in batch.rollouts]
        gone = {rollout.ticket for rollout in batch.rollouts if rollout.ticket in lost.tickets}
        if not gone:
            raise lost  # not a ticket's rollout, but a draw from the replay: that cannot be collected again
        gone.update(r.ticket for r in batch.rollouts if self.rollouts.get(r.ticket) is not r)  # lost by another line
        line.ledger.put_back(indices, batch.version)
        retries = self._settings.retries
        for index in sorted(gone, reverse=True):  # the oldest is put in line last: first
            ticket = line.ledger.entry(index).ticket
            if ticket.attempt + 1 < retries.attempts_on_loss:
                self.lose(index, lost.what)
            elif retries.on_failure == "drop":
                for one in [one for one in self.lines if one.has(index, Phase.READY)]:
                    self.drop(one, index, DropReason.FAILED, lost.what)
            else:
                raise RunFailed(f"{ticket} failed after {ticket.attempt + 1} attempts: {lost.what}") from lost

    def lose(self, index: int, why: str) -> None:
        """A rollout that had landed is gone: whoever still waits for it gets it collected again.

        A line that has taken it may find out later than another: it waits for the flight that is under way.
        """
        flight = self._flying.get(index)
        is_queued = any(line.has(index, Phase.OPEN) for line in self.lines)
        again: list[tuple[Line, Ticket]] = []
        for line in [line for line in self.lines if line.has(index, Phase.READY)]:
            self._journal.write(Lost, index, why, line.name)
            if flight is None:
                again.append((line, line.ledger.lose(index, line.version)))
            else:
                seat, snapshot = flight
                version = snapshot.others[line.name].version if line.name else snapshot.version
                line.ledger.lose(index, version)
                line.ledger.start(index, version, seat)
        if flight is None:
            self._fly_again(again[0][1], again, is_queued=is_queued)

    def _fly_again(self, ticket: Ticket, again: Sequence[tuple[Line, Ticket]], *, is_queued: bool = False) -> None:
        """Its rollout is of no use: the same ticket is collected again, before those that opened later."""
        rollout = self.rollouts.pop(ticket.index, None)  # none if another line found out before
        if rollout is not None:
            self._runtime.release(rollout.payload)
        self.companions.forget(ticket.index)
        for line, its in again:
            if its.version is not None:
                line.snapshots.hold(its.version)
        if not is_queued:
            self.dispatch.put(ticket, first=True)

    def turns_of_others(self) -> AbstractAsyncContextManager[None]:
        """The learner of the first line waits until no other line is in the middle of an update, and keeps it so."""
        return all_turns([(line.name, line.turn) for line in self._others], self.first.role)

    # -- surviving a restart --------------------------------------------------------------------------

    def fetch_ready(self) -> dict[int, Rollout]:
        """The rollouts that wait for a learner, payloads and all. What turns out to be lost is collected again."""
        fetched: dict[int, Rollout] = {}
        lost: dict[int, str] = {}
        for index, rollout in self.rollouts.items():
            if any(line.has(index, Phase.READY) for line in self.lines):
                try:
                    fetched[index] = map_payloads(rollout, self._runtime.fetch)
                except PayloadLost as error:
                    lost[index] = error.what
        for index in sorted(lost, reverse=True):
            self.lose(index, lost[index])
        return fetched

    def restore(self, rollouts: Mapping[int, Rollout]) -> None:
        """What waited waits again; what was open or in flight is put on the queue again."""
        self.rollouts = dict(rollouts)
        open_tickets: dict[int, None] = {}
        for line in self.lines:
            for entry in line.ledger.live():
                if entry.phase is Phase.OPEN:
                    open_tickets[entry.ticket.index] = None
                    if entry.ticket.version is not None:
                        line.snapshots.hold(entry.ticket.version)
        for index in sorted(open_tickets) if self._others else open_tickets:
            if self.is_open_everywhere(index):
                self.dispatch.put(self._as_collected(index))


def _why_filtered(rollout: Rollout) -> str:
    return rollout.filtered if isinstance(rollout.filtered, str) else ""
