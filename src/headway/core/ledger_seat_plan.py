"""Which seat collects a ticket of a pinned run: a function of its index, also when collectors come and go.

    0 .. 39     round seats 0 1 2 3
    40 ..       round seats 0 1         two collectors were taken away when 40 tickets were open or done

A ticket keeps the seat that it was opened for, whatever changes later.
"""

from __future__ import annotations

from collections.abc import Sequence

Part = tuple[int, tuple[int, ...]]


class SeatPlan:
    """From which ticket on which seats take turns."""

    def __init__(self, num_seats: int) -> None:
        self._parts: list[Part] = [(0, tuple(range(num_seats)))]

    @property
    def since(self) -> int:
        """The first ticket of the newest part."""
        return self._parts[-1][0]

    def seat(self, index: int) -> int:
        """The seat of a ticket."""
        return next(seats[index % len(seats)] for since, seats in reversed(self._parts) if index >= since)

    def change(self, since: int, seats: Sequence[int]) -> None:
        """From this ticket on, which nobody has opened yet, these take turns."""
        if since < self.since:
            raise ValueError(f"tickets from {self.since} on are planned already, received {since}")
        if since == self.since:
            self._parts.pop()
        self._parts.append((since, tuple(seats)))

    def state(self) -> list[Part]:
        return list(self._parts)

    def restore(self, parts: Sequence[Part] | None) -> None:
        """Go on with the plan of a checkpoint, if the seats are still called what they were. If not, because collectors
        with lanes came and went, all tickets are dealt out anew: which of them collects decides nothing."""
        if parts and tuple(parts[-1][1]) == self._parts[-1][1]:
            self._parts = [(since, tuple(seats)) for since, seats in parts]
