"""Open tickets meet idle collectors.

In a free run there is one line of tickets and whoever is idle takes the first. In a pinned run every
collector has a line of its own. Matching is immediate on both sides, so an open ticket waits only while no
collector may have it.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from headway.core.types import Ticket


class Desk:
    """The line (or lines) of open tickets."""

    def __init__(self, num_collectors: int, *, pinned: bool) -> None:
        self._pinned = pinned
        self._lines: list[deque[Ticket]] = [deque() for _ in range(num_collectors if pinned else 1)]
        self._idle: OrderedDict[int, None] = OrderedDict()  # waiting for a ticket, longest first

    def put(self, ticket: Ticket, *, first: bool = False) -> int | None:
        """Add a ticket; returns the idle collector to wake for it, if there is one.

        `first` is for a ticket that flies again: it is older than anything in the line.
        """
        line = self._line(ticket.collector)
        if first:
            line.appendleft(ticket)
        else:
            line.append(ticket)
        if not self._pinned:
            return self._idle.popitem(last=False)[0] if self._idle else None
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

    def _line(self, collector: int | None) -> deque[Ticket]:
        if not self._pinned:
            return self._lines[0]
        assert collector is not None
        return self._lines[collector]
