"""Seats that wait for a ticket, longest first.

With lanes the next ticket goes to the collector that has the most lanes idle, so that work spreads; of several such, to
the one whose seat has waited longest. Nothing here looks at all seats: there may be ten thousand.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator


class IdleSeats:
    """Who is idle; `pop` says who is next."""

    def __init__(self, collector_of: Callable[[int], int] | None = None) -> None:
        """With `collector_of`, a collector has several seats, its lanes."""
        self._since: OrderedDict[int, int] = OrderedDict()  # seat -> its place in the order of arrival
        self._arrivals = 0
        self._collector_of = collector_of
        self._of: defaultdict[int, OrderedDict[int, int]] = defaultdict(OrderedDict)  # collector -> its idle seats
        self._ranks: list[tuple[int, int, int]] = []
        """A heap of (-idle lanes, longest waiting, collector), some outdated."""

    def __contains__(self, seat: int) -> bool:
        return seat in self._since

    def __iter__(self) -> Iterator[int]:
        return iter(self._since)

    def add(self, seat: int) -> None:
        """It waits from now on, if it did not before."""
        if seat in self._since:
            return
        self._arrivals += 1
        self._since[seat] = self._arrivals
        if self._collector_of is not None:
            collector = self._collector_of(seat)
            self._of[collector][seat] = self._arrivals
            self._rank(collector)

    def remove(self, seat: int) -> None:
        """It has something to do."""
        del self._since[seat]
        if self._collector_of is not None:
            collector = self._collector_of(seat)
            del self._of[collector][seat]
            self._rank(collector)

    def pop(self) -> int | None:
        """Who is next, no longer idle."""
        if not self._since:
            return None
        if self._collector_of is None:
            return self._since.popitem(last=False)[0]
        while self._ranks[0] != self._entry(self._ranks[0][2]):
            heapq.heappop(self._ranks)
        seat = next(iter(self._of[self._ranks[0][2]]))
        self.remove(seat)
        return seat

    def _entry(self, collector: int) -> tuple[int, int, int]:
        seats = self._of[collector]
        return -len(seats), next(iter(seats.values()), 0), collector

    def _rank(self, collector: int) -> None:
        """The rank of a collector has changed. What is outdated is thrown away when most of the heap is."""
        if len(self._ranks) > 4 * len(self._of) + 64:
            self._ranks = [self._entry(number) for number, seats in self._of.items() if seats]
            heapq.heapify(self._ranks)
        elif self._of[collector]:
            heapq.heappush(self._ranks, self._entry(collector))
