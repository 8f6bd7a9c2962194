"""Checks which collectors a run has, and whose a pinned ticket is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headway.core import events as ev
from headway.testing.audit_terms import Findings, LineTerms


class ScalingAuditor:
    """Follows which collectors a run has: how many are counted, who is still leaving, whose a pinned ticket is."""

    def __init__(self, findings: Findings) -> None:
        self._find = findings
        self._num = self._most = 0
        self._leaving: set[int] = set()
        self._parts: list[tuple[int, list[int]]] = []  # from this ticket on, of a pinned run, these seats take turns

    def begin_session(self, terms: LineTerms) -> None:
        self._num = self._most = int(terms["collectors"])
        self._leaving.clear()
        seats = list(range(terms.seats))
        if not self._parts or self._parts[-1][1] != seats:
            self._parts = [(0, seats)]

    def seat_of(self, index: int) -> int:
        """In a pinned run."""
        seats = [seats for since, seats in self._parts if index >= since][-1]
        return seats[index % len(seats)]

    def resume(self, live: Iterable[int], unopened: int, terms: LineTerms) -> None:
        """In a pinned run those are there again that were leaving and have tickets, or will have some from `unopened`
        on, the first that the first line has not opened."""
        if terms.is_pinned:
            coming = range(unopened, self._parts[-1][0])
            numbers = {terms.collector_of(self.seat_of(index)) for index in (*live, *coming)}
            self._leaving = {number for number in numbers if number >= self._num}
            self._most = max(self._most, *(number + 1 for number in numbers), 0)

    def scale(self, event: ev.Scaled, opened: int, terms: LineTerms) -> None:
        """`opened` is the last ticket that is open or was."""
        if event.before != self._num or event.collectors < 1 or event.collectors == self._num:
            what = f"{event.before} collectors become {event.collectors}, and there are {self._num}"
            self._find.wrong("scaling", what)
        if terms.is_pinned != (event.ticket is not None) or (event.ticket is not None and event.ticket <= opened):
            self._find.wrong("scaling", f"the collectors change at ticket {event.ticket}, {opened} was opened last")
        if again := self._leaving.intersection(range(self._num, event.collectors)):
            self._find.wrong("scaling", f"collectors {sorted(again)} are added before they have left")
        self._leaving.update(range(event.collectors, self._num))
        self._num = event.collectors
        self._most = max(self._most, self._num)
        if event.ticket is not None:
            lanes = [terms.seats_of(number) for number in range(self._num)]
            self._parts.append((event.ticket, [seat for lane in zip(*lanes, strict=True) for seat in lane]))

    def leave(self, event: ev.Left, seats: Mapping[int, Sequence[int]], live: Iterable[int], terms: LineTerms) -> None:
        """`seats` holds the tickets of each seat."""
        number = int(event.role.rpartition("-")[2])
        if number not in self._leaving:
            self._find.wrong("scaling", f"{event.role} leaves, and {sorted(self._leaving)} are to leave")
        self._leaving.discard(number)
        left = [ticket for seat, call in seats.items() if terms.collector_of(seat) == number for ticket in call]
        if terms.is_pinned:
            left += [index for index in live if terms.collector_of(self.seat_of(index)) == number]
        if left:
            self._find.wrong("scaling", f"{event.role} leaves with tickets {left}")

    def check_start(self, event: ev.Started, terms: LineTerms) -> None:
        number = terms.collector_of(event.seat)
        if not (0 <= number < self._num or (terms.is_pinned and number in self._leaving)):
            what = f"ticket {event.ticket} takes off on seat {event.seat}, and there are {self._num} collectors"
            self._find.wrong("scaling" if 0 <= number < self._most else "one ticket a seat", what)
