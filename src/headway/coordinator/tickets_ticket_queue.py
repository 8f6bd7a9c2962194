"""Open tickets meet idle collectors.

In a free run there is one line of tickets and whoever is idle takes the first. In a pinned run every
collector has a line of its own. Matching is immediate on both sides, so an open ticket waits only while no
collector may have it. A collector that leaves is never matched again.
"""

from __future__ import annotations

from collections import deque

from headway.coordinator.tickets_idle_seats import IdleSeats
from headway.core.text_naming import place_of
from headway.core.types import Ticket


class TicketQueue:
    """The line (or lines) of open tickets. With lanes, those who are called collectors here are seats."""

    def __init__(self, num_collectors: int, *, pinned: bool, lanes: int = 1) -> None:
        self._pinned = pinned
        self.num_collectors = num_collectors
        """How many share the tickets now."""
        self.leaving: set[int] = set()
        """Those that get no further ticket, until they have left."""
        self._places = (num_collectors, lanes)  # of the seats, as they were at the beginning
        self._lines: list[deque[Ticket]] = [deque() for _ in range(lanes * num_collectors if pinned else 1)]
        self._idle = IdleSeats(self._collector_of if lanes > 1 and not pinned else None)

    def put(self, ticket: Ticket, *, first: bool = False) -> int | None:
        """Add a ticket; returns the idle collector to wake for it, if there is one.

        `first` is for a ticket that flies again: it goes before everything that opened later.
        """
        line = self._line(ticket.collector)
        if first:
            line.insert(sum(other.index < ticket.index for other in line), ticket)
        else:
            line.append(ticket)
        if not self._pinned:
            return self._idle.pop()
        assert ticket.collector is not None
        if ticket.collector in self._idle:
            self._idle.remove(ticket.collector)
            return ticket.collector
        return None

    def take(self, collector: int) -> Ticket | None:
        """The next ticket for this collector; if there is none, it is noted as idle."""
        line = self._line(collector)
        if line:
            return line.popleft()
        self.note_idle(collector)
        return None

    def num_for(self, collector: int) -> int:
        """How many tickets wait for this collector: in a free run, its share of those that wait for all."""
        line = self._line(collector)
        return len(line) if self._pinned else len(line) // self.num_collectors

    def first(self, collector: int) -> Ticket | None:
        """The ticket this collector would take, which stays where it is."""
        line = self._line(collector)
        return line[0] if line else None

    def another_idle(self) -> int | None:
        """Who else might have the first ticket, if whoever was woken for it may not; no longer noted as idle.

        In a pinned run nobody else may.
        """
        return None if self._pinned or not self._lines[0] else self._idle.pop()

    def note_idle(self, collector: int) -> None:
        """This collector waits; it may be woken for a ticket."""
        if self._pinned or collector not in self.leaving:
            self._idle.add(collector)

    def leave(self, collector: int) -> None:
        """This collector gets no further ticket; in a pinned run, none but its own."""
        self.leaving.add(collector)
        if not self._pinned:
            self._no_longer_idle(collector)

    def forget(self, collector: int) -> None:
        """This collector has left."""
        self.leaving.discard(collector)
        self._no_longer_idle(collector)

    def join(self, collector: int) -> None:
        """This collector may have tickets, from now on or again."""
        while self._pinned and len(self._lines) <= collector:
            self._lines.append(deque())

    def idle_with_work(self) -> list[int]:
        """Idle collectors that could go on (after a pause), no longer noted as idle."""
        if self._pinned:
            ready = [collector for collector in self._idle if self._line(collector)]
        else:
            ready = list(self._idle)[: len(self._lines[0])]
        for collector in ready:
            self._idle.remove(collector)
        return ready

    def _no_longer_idle(self, collector: int) -> None:
        if collector in self._idle:
            self._idle.remove(collector)

    def _collector_of(self, seat: int) -> int:
        return place_of(seat, *self._places)[0]

    def _line(self, collector: int | None) -> deque[Ticket]:
        if not self._pinned:
            return self._lines[0]
        assert collector is not None
        return self._lines[collector]
