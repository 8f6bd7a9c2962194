"""Open tickets meet idle collectors.

In a free run there is one line of tickets and whoever is idle takes the first. In a pinned run every
collector has a line of its own. Matching is immediate on both sides, so an open ticket waits only while no
collector may have it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque

from headway.core.types import Ticket


class TicketQueue:
    """The line (or lines) of open tickets. With lanes, those who are called collectors here are seats."""

    def __init__(self, num_collectors: int, *, pinned: bool, lanes: int = 1) -> None:
        self._pinned = pinned
        self._num_collectors = num_collectors
        self._has_lanes = lanes > 1
        self._lines: list[deque[Ticket]] = [deque() for _ in range(lanes * num_collectors if pinned else 1)]
        self._idle: OrderedDict[int, None] = OrderedDict()  # waiting for a ticket, longest first

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
            return self._pop_idle()
        assert ticket.collector is not None
        if ticket.collector in self._idle:
            del self._idle[ticket.collector]
            return ticket.collector
        return None

    def take(self, collector: int) -> Ticket | None:
        """The next ticket for this collector; if there is none, it is noted as idle."""
        line = self._line(collector)
        if line:
            return line.popleft()
        self.note_idle(collector)
        return None

    def first(self, collector: int) -> Ticket | None:
        """The ticket this collector would take, which stays where it is."""
        line = self._line(collector)
        return line[0] if line else None

    def another_idle(self) -> int | None:
        """Who else might have the first ticket, if whoever was woken for it may not; no longer noted as idle.

        In a pinned run nobody else may.
        """
        return None if self._pinned or not self._lines[0] else self._pop_idle()

    def note_idle(self, collector: int) -> None:
        """This collector waits; it may be woken for a ticket."""
        self._idle[collector] = None

    def idle_with_work(self) -> list[int]:
        """Idle collectors that could go on (after a pause), no longer noted as idle."""
        if self._pinned:
            ready = [collector for collector in self._idle if self._line(collector)]
        else:
            ready = list(self._idle)[: len(self._lines[0])]
        for collector in ready:
            del self._idle[collector]
        return ready

    def _pop_idle(self) -> int | None:
        """Who has been idle longest; with lanes, on the collector that has the most lanes idle."""
        if not self._idle:
            return None
        if not self._has_lanes:
            return self._idle.popitem(last=False)[0]
        lanes = Counter(seat % self._num_collectors for seat in self._idle)
        seat = max(self._idle, key=lambda seat: lanes[seat % self._num_collectors])
        del self._idle[seat]
        return seat

    def _line(self, collector: int | None) -> deque[Ticket]:
        if not self._pinned:
            return self._lines[0]
        assert collector is not None
        return self._lines[collector]
