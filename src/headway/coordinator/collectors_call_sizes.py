"""How many tickets a call brings to a collector.

    call with n tickets   |--- way ---|== t1 ==|== t2 ==| .. |== tn ==|--- way ---|
                                      n * ticket_s  <=  way_s

A call that leaves the process has a way to go: it is packed, sent, noticed, unpacked, and its answer likewise. With
`tickets_per_call="auto"` it brings as many tickets as are collected in the time that this takes. So where collecting
takes longer than the way each ticket has a call of its own, and a call takes at most about twice as long as its way.

Both times are measured, for each collector by itself. What one ticket takes is the longest of the last ones, and a call
that failed is followed by one with one ticket. What moves much memory gains little: see `MOST_BYTES`. Nothing here
waits.
"""

from __future__ import annotations

import math
from collections import defaultdict

MOST = 16
"""A call brings no more tickets than that: the way is a small share by then."""
MOST_BYTES = 1 << 20
"""The rollouts of a call shall hold no more than that together: beyond it the way is long because of them."""
LONGEST_WAY_S = 0.1
"""A way that took longer counts as that long: somebody was kept waiting, and more tickets would not help."""
WEIGHT_OF_LAST = 0.25
"""Of the last way among all that were measured."""
FORGETS = 0.5
"""What a long ticket still counts after the next one."""


class FixedSize:
    """As many tickets as were asked for."""

    def __init__(self, tickets: int, collect_s: float) -> None:
        self._tickets = tickets
        self._collect_s = collect_s

    def limit(self, collector: int) -> int:
        """How many tickets the next call may bring."""
        return self._tickets

    def within_s(self, collector: int) -> float:
        """When so much time has passed, the collector begins no further ticket of the call."""
        return math.inf

    def deadline_s(self, collector: int, tickets: int) -> float:
        return tickets * self._collect_s

    def note(self, collector: int, tickets: int, took_s: float, collecting_s: float, num_bytes: int) -> None:
        """A call has come back: so many tickets were collected in so much of its time, and hold so many bytes."""

    def note_failure(self, collector: int) -> None:
        """A call has failed."""


class MeasuredSizes:
    """As many tickets as are collected in the time that the call is on its way."""

    def __init__(self, collect_s: float) -> None:
        self._collect_s = collect_s
        self._limits: defaultdict[int, int] = defaultdict(lambda: 1)
        self._way_s: defaultdict[int, float] = defaultdict(float)
        self._ticket_s: defaultdict[int, float] = defaultdict(float)

    def limit(self, collector: int) -> int:
        return self._limits[collector]

    def within_s(self, collector: int) -> float:
        return self._way_s[collector]

    def deadline_s(self, collector: int, tickets: int) -> float:
        """The last ticket that is begun may take as long as any."""
        return self._collect_s + (self._way_s[collector] if tickets > 1 else 0.0)

    def note(self, collector: int, tickets: int, took_s: float, collecting_s: float, num_bytes: int) -> None:
        way_s = min(max(0.0, took_s - collecting_s), LONGEST_WAY_S)
        known_s = self._way_s[collector]
        self._way_s[collector] = way_s = known_s + WEIGHT_OF_LAST * (way_s - known_s) if known_s else way_s
        ticket_s = max(collecting_s / tickets, FORGETS * self._ticket_s[collector])
        self._ticket_s[collector] = ticket_s
        fitting = way_s / ticket_s if ticket_s else math.inf
        bearable = MOST_BYTES * tickets / num_bytes if num_bytes else math.inf
        self._limits[collector] = max(1, int(min(fitting, bearable, 2 * self._limits[collector], MOST)))

    def note_failure(self, collector: int) -> None:
        self._limits[collector] = 1


CallSizes = FixedSize | MeasuredSizes
