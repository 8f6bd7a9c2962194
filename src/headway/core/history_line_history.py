"""The history of one line of a run: its live tickets, its updates, its versions, its lead.

    open --start--> in flight --land--> ready --update, insert--> taken --settle--> learned
     ^                  |                 |  ^                      |
     +-----reissue------+                 |  +-- the update fails --+       drop: from anywhere
     +-----requeue, lose------------------+

Only what is live is kept: a `LineListener` is told of everything else, and may keep it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from headway.core import events as ev
from headway.core.history_records import IN_FLIGHT, OPEN, READY, TAKEN, FinishedUpdate, TicketLife, Version


class LineListener:
    """Is told what happens in one line. Every method does nothing: whoever wants to know overrides it."""

    def ticket_opened(self, ticket: TicketLife) -> None: ...

    def tickets_moved(self, time_s: float, sizes: Sequence[int]) -> None:
        """So many tickets are open, in flight, ready and taken now."""

    def rollout_landed(self, ticket: TicketLife) -> None: ...

    def rollout_withdrawn(self, ticket: TicketLife, reason: str) -> None:
        """A rollout that was here is of no use (`reason`: stale, expired) or `lost`: the ticket is collected again."""

    def flight_failed(self, ticket: TicketLife) -> None: ...

    def rollout_taken(self, ticket: TicketLife, age_s: float) -> None:
        """The learner or the replay took a rollout that had waited for so long."""

    def ticket_settled(self, ticket: TicketLife) -> None: ...

    def update_ended(self, update: FinishedUpdate) -> None: ...

    def version_published(self, version: Version) -> None: ...

    def version_first_used(self, version: Version) -> None: ...

    def lead_moved(self, time_s: float, lead: float) -> None: ...


class LineHistory:
    """Follows the tickets, updates and versions of one line."""

    def __init__(self, name: str, listener: LineListener, *, is_whole: bool = True) -> None:
        self.name = name
        self.live: dict[int, TicketLife] = {}
        self.sizes = [0, 0, 0, 0]
        """How many tickets are open, in flight, ready and taken."""
        self.counts: Counter[str] = Counter()
        """Tickets so far: opened, landed, taken, learned, dropped, reissued, requeued, lost."""
        self.version = 0
        self.updates = 0
        self.learned_s: float | None = None
        """When the last update ended."""
        self.steps = 0
        """Environment steps (or tokens) behind the newest update: those of every rollout that was trained on or thrown
        away. What waits for the learner has taught nothing yet."""
        self.lead: float | None = None
        self.is_whole = is_whole
        """Every ticket has its beginning in the log; where that is not so, one that is not known is met on the way."""
        self._taking: Sequence[int] = ()  # tickets of the update under way
        self._used = -1  # the newest version that somebody has collected with
        self._unused: dict[int, Version] = {}  # those after it
        self._listener = listener

    def ticket(self, index: int, time_s: float) -> TicketLife:
        """The live ticket with this index."""
        ticket = self.live.get(index)
        if ticket is None:
            if self.is_whole:
                raise KeyError(index)
            ticket = self.live[index] = TicketLife(index, time_s)
            self._listener.ticket_opened(ticket)
        return ticket

    def _move(self, time_s: float, ticket: TicketLife, phase: int | None) -> None:
        """From the phase it is in to another, or out."""
        sizes, before = self.sizes, ticket.phase
        if before is not None:
            sizes[before] -= 1
        if phase is not None:
            sizes[phase] += 1
        ticket.phase = phase
        self._listener.tickets_moved(time_s, sizes)

    # -- a ticket's life ------------------------------------------------------------------------------

    def open(self, event: ev.Opened) -> None:
        ticket = self.live[event.ticket] = TicketLife(event.ticket, event.time_s)
        self.counts["opened"] += 1
        self._listener.ticket_opened(ticket)
        self._move(event.time_s, ticket, OPEN)

    def start(self, event: ev.Started, role: str | None) -> None:
        time_s, version = event.time_s, event.version
        if self.name:
            version = (event.others or {}).get(self.name, self.version)
        ticket = self.ticket(event.ticket, time_s)
        ticket.collector, ticket.role, ticket.version = event.seat, role, version
        ticket.began, ticket.ended = time_s, None
        ticket.flights += 1
        if version > self._used:
            self._use(time_s, version, event.ticket)
        self._move(time_s, ticket, IN_FLIGHT)

    def _use(self, time_s: float, number: int, index: int) -> None:
        """The first rollout takes off with a version: those before it are of no use any more."""
        self._used = number
        version = self._unused.get(number)
        self._unused = {later: one for later, one in self._unused.items() if later > number}
        if version is not None:
            version.first_used, version.first_ticket = time_s, index
            self._listener.version_first_used(version)

    def land(self, event: ev.Landed) -> None:
        span = event.span if not self.name else (event.others or {}).get(self.name, (self.version, self.version))
        ticket = self.ticket(event.ticket, event.time_s)
        ticket.ended = ticket.waits_since = event.time_s
        ticket.steps, ticket.length, ticket.num_bytes = event.steps, event.length, event.size
        ticket.span = (span[0], span[1])
        ticket.landed_at = self.version
        self.counts["landed"] += 1
        self._listener.rollout_landed(ticket)
        self._move(event.time_s, ticket, READY)

    def reissue(self, event: ev.Reissued) -> None:
        ticket = self.ticket(event.ticket, event.time_s)
        self.counts["reissued"] += 1
        self._listener.flight_failed(ticket)
        self._move(event.time_s, ticket, OPEN)

    def requeue(self, event: ev.Requeued) -> None:
        self.counts["requeued"] += 1
        self._withdraw(event.time_s, event.ticket, event.reason)

    def lose(self, event: ev.Lost) -> None:
        self.counts["lost"] += 1
        self._withdraw(event.time_s, event.ticket, "lost")

    def join_flight(self, time_s: float, flying: TicketLife) -> None:
        """The ticket is in flight for another line, and this one gets that rollout too."""
        ticket = self.ticket(flying.index, time_s)
        ticket.collector, ticket.role = flying.collector, flying.role
        ticket.began, ticket.ended = flying.began, None
        ticket.flights += 1
        self._move(time_s, ticket, IN_FLIGHT)

    def _withdraw(self, time_s: float, index: int, reason: str) -> None:
        ticket = self.ticket(index, time_s)
        self._listener.rollout_withdrawn(ticket, reason)
        self.steps += ticket.steps
        ticket.ended = ticket.waits_since = None
        self._move(time_s, ticket, OPEN)

    def drop(self, event: ev.Dropped) -> None:
        ticket = self.ticket(event.ticket, event.time_s)
        ticket.outcome, ticket.reason, ticket.why = "dropped", event.reason, event.why
        self.counts["dropped"] += 1
        if ticket.waits_since is not None:  # its rollout was here and is thrown away
            self.steps += ticket.steps
        self._settle(event.time_s, ticket)

    def settle(self, event: ev.Settled) -> None:
        for index in event.tickets:
            ticket = self.ticket(index, event.time_s)
            ticket.outcome = "learned"
            self.counts["learned"] += 1
            self._settle(event.time_s, ticket)

    def _settle(self, time_s: float, ticket: TicketLife) -> None:
        ticket.settled = time_s
        self._listener.ticket_settled(ticket)
        del self.live[ticket.index]
        self._move(time_s, ticket, None)

    # -- learning and versions ------------------------------------------------------------------------

    def begin_update(self, event: ev.UpdateBegan) -> None:
        """Its rollouts are with the learner. Those of an update that came to nothing are back."""
        for index in self._taking:
            before = self.live.get(index)
            if before is not None and before.phase == TAKEN:
                self._move(event.time_s, before, READY)
        self._taking = event.tickets
        for index in event.tickets:
            self._move(event.time_s, self.ticket(index, event.time_s), TAKEN)

    def update(self, event: ev.Updated) -> None:
        begin = max(0.0, event.time_s - event.seconds)
        self._taking = ()
        self.learned_s, self.updates = event.time_s, event.update
        self._take(begin, event.time_s, event.tickets, event.version, event.update)
        self._listener.update_ended(
            FinishedUpdate(
                event.update,
                begin,
                event.time_s,
                event.version,
                list(event.tickets),
                dict(event.metrics),
                self.steps,
            )
        )

    def insert(self, event: ev.Inserted) -> None:
        self._take(event.time_s - event.seconds, event.time_s, event.tickets, event.version, None)

    def _take(self, begin: float, now: float, indices: Iterable[int], version: int, update: int | None) -> None:
        for index in indices:
            ticket = self.ticket(index, now)
            ticket.taken = begin if ticket.ended is None else max(begin, ticket.ended)
            ticket.update = update
            if ticket.span is not None:
                oldest = ticket.span[0]
                landed_at = max(oldest, version if ticket.landed_at is None else ticket.landed_at)
                ticket.staleness = version - oldest
                ticket.stale_in_flight = landed_at - oldest
                ticket.stale_in_queue = version - landed_at
                ticket.landed_at = None
            self.counts["taken"] += 1
            self.steps += ticket.steps
            since = begin if ticket.waits_since is None else ticket.waits_since
            self._listener.rollout_taken(ticket, max(0.0, begin - since))
            ticket.waits_since = None
            self._move(now, ticket, TAKEN)

    def publish(self, event: ev.Published) -> None:
        self.version = event.version
        version = Version(event.version, event.time_s, None, 0.0, steps=self.steps)
        if event.version and self.learned_s is not None:
            version.update, version.publish_s = self.updates, event.time_s - self.learned_s
        self._unused[event.version] = version
        self._listener.version_published(version)

    def move_lead(self, event: ev.LeadMoved) -> None:
        self.note_lead(event.time_s, event.lead)

    def note_lead(self, time_s: float, lead: float) -> None:
        if lead != self.lead:
            self.lead = float(lead)
            self._listener.lead_moved(time_s, self.lead)

    def resume(self, time_s: float, version: int, updates: int, session_began_s: float) -> None:
        """What was in flight flies again. The time it took to get here makes no rollout older."""
        self.version, self.updates = version, updates
        self._taking = ()
        for ticket in self.live.values():
            if ticket.waits_since is not None:
                ticket.waits_since += time_s - session_began_s
            if ticket.phase == IN_FLIGHT:
                self._move(time_s, ticket, OPEN)
