"""Tickets go to the seats: whoever may have a ticket that is put on the queue is woken."""

from __future__ import annotations

from collections.abc import Sequence

from headway.coordinator.activities_waits import Board
from headway.coordinator.tickets_ticket_queue import TicketQueue
from headway.core.types import Ticket


class Dispatch:
    """Puts tickets on the queue and wakes seats, by their names on the board."""

    def __init__(self, queue: TicketQueue, board: Board, seat_names: Sequence[str]) -> None:
        self.queue = queue
        self.seat_names = seat_names
        self._board = board

    def put(self, ticket: Ticket, *, first: bool = False) -> None:
        """Whoever is idle takes it; `first` is for a ticket that flies again."""
        collector = self.queue.put(ticket, first=first)
        if collector is not None:
            self._board.wake(self.seat_names[collector])

    def wake_idle(self) -> None:
        """A pause is over: whoever is idle and could go on does."""
        for seat in self.queue.idle_with_work():
            self._board.wake(self.seat_names[seat])

    def wake_leaving(self) -> None:
        """Whoever is to leave when its tickets are settled looks again."""
        for seat in self.queue.leaving:
            self._board.wake(self.seat_names[seat])
