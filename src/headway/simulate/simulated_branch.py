"""A branch on the virtual clock (`branches.py`): its ledger, its collectors, and what it says to the root.

away --> asks to join --> has a session --(its term is over, it is refused, it dies)--> away
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Protocol

from headway.core.types import DropReason, Span, Ticket
from headway.simulate.branch_world import BranchWorld, BusyThread
from headway.simulate.lease_messages import LeaseAnswer, Refusal, Report, Session
from headway.simulate.leases import BranchLedger

RETRIES_A_TERM = 4
"""Reports of a branch within a term, if nothing is due before."""


class HearsBranches(Protocol):
    """The root, as a branch knows it: its answers come by `joined` and `hear`."""

    def hear_join(self, branch: SimulatedBranch, incarnation: int, asked_s: float) -> None: ...

    def hear_report(self, branch: SimulatedBranch, report: Report) -> None: ...


class SimulatedBranch:
    """A branch with its collectors: one incarnation after the other."""

    def __init__(self, world: BranchWorld, root: HearsBranches, number: int) -> None:
        self.number = number
        self.clock = world.clock(1000)
        self.thread = BusyThread(world.loop)
        self.ledger: BranchLedger | None = None
        self.incarnation = 0
        self.is_up = True
        self.cut: tuple[bool, bool] = (False, False)
        """Is nothing heard of it, does it hear nothing?"""
        self.flown = 0
        self._world = world
        self._root = root
        self._idle: list[int] = []
        self._flying: dict[int, int] = {}  # ticket -> flight
        self._flights = 0
        self._says_at = math.inf

    @property
    def holds(self) -> tuple[int, ...]:
        """Tickets that are in its hands, by right."""
        if self.ledger is None or self.ledger.is_over(self.clock.now()):
            return ()
        return self.ledger.holds

    # -- in and out -----------------------------------------------------------------------------------

    def join(self) -> None:
        """Stop everything, and ask for a session, again and again."""
        self.ledger = None
        self._flying.clear()
        self._idle = list(range(self._world.shape.seats))
        self.incarnation += 1
        self._ask_to_join(self.incarnation)

    def _ask_to_join(self, incarnation: int) -> None:
        if self.is_up and self.ledger is None and incarnation == self.incarnation:
            asked_s = self.clock.now()
            self._say_to_root(lambda: self._root.hear_join(self, incarnation, asked_s))
            self._world.later(self._world.shape.terms.term_s / RETRIES_A_TERM, lambda: self._ask_to_join(incarnation))

    def joined(self, incarnation: int, asked_s: float, session: Session) -> None:
        shape = self._world.shape
        if self.ledger is not None or incarnation != self.incarnation or not self.is_up:
            return
        room = max(1, round(shape.seats * (1 + shape.ahead)))
        self.ledger = BranchLedger(session, shape.terms, room, asked_s)
        self._watch(self.ledger)

    def _watch(self, ledger: BranchLedger) -> None:
        """Look every now and then whether the term is over, and say something before it is."""
        if ledger is not self.ledger or not self.is_up:
            return
        if ledger.is_over(self.clock.now()):
            self.join()
        else:
            self._say(ledger)
            self._world.later(self._world.shape.terms.term_s / RETRIES_A_TERM, lambda: self._watch(ledger))

    def die(self) -> None:
        """With all its collectors; it is back later, and remembers nothing."""
        if self.is_up:
            self.is_up = False
            self.ledger = None
            self._flying.clear()
            self._world.later(self._world.shape.faults.branch_back_s, self._come_back)

    def _come_back(self) -> None:
        self.is_up = True
        self.join()

    # -- messages -------------------------------------------------------------------------------------

    def say_soon(self) -> None:
        """There is news: it is said with whatever else comes within a moment."""
        now, ledger = self._world.loop.time(), self.ledger
        if now >= self._says_at or ledger is None:
            self._says_at = math.inf
        if self._says_at == math.inf and ledger is not None:
            self._says_at = now + self._world.shape.report_every_s
            self._world.later(self._world.shape.report_every_s, lambda: self._say(ledger))

    def _say(self, ledger: BranchLedger) -> None:
        self._says_at = math.inf
        if ledger is self.ledger and self.is_up and not ledger.is_over(self.clock.now()):
            report = ledger.report(self.clock.now())
            self._say_to_root(lambda: self._root.hear_report(self, report))

    def _say_to_root(self, deliver: Callable[[], object]) -> None:
        self._world.send(lambda: self.cut[0], deliver)

    def hear(self, message: LeaseAnswer | Refusal) -> None:
        ledger = self.ledger
        if ledger is None or not self.is_up or message.session != ledger.session:
            return
        if isinstance(message, Refusal):
            return self.join()
        had_news = ledger.has_news
        ledger.hear(message, self.clock.now())
        self._take_off()
        if had_news and ledger.has_news:
            self.say_soon()

    # -- flights --------------------------------------------------------------------------------------

    def _take_off(self) -> None:
        ledger = self.ledger
        if ledger is None:
            return
        while self._idle:
            seat = self._idle[-1]
            ticket = ledger.start(seat, self.clock.now())
            if ticket is None:
                return
            self._idle.pop()
            self._flights += 1
            self._flying[ticket.index] = flight = self._flights
            self.thread.do(self._world.shape.ticket_s / 2, partial(self._fly, ledger, ticket, flight))

    def _fly(self, ledger: BranchLedger, ticket: Ticket, flight: int) -> None:
        seconds = self._world.shape.collect.quantile(self._world.rng.random())
        self._world.later(
            seconds, lambda: self.thread.do(self._world.shape.ticket_s / 2, lambda: self._land(ledger, ticket, flight))
        )

    def _land(self, ledger: BranchLedger, ticket: Ticket, flight: int) -> None:
        if ledger is not self.ledger or self._flying.get(ticket.index) != flight:
            return
        if ledger.is_over(self.clock.now()):
            return self.join()
        faults, rng = self._world.shape.faults, self._world.rng
        del self._flying[ticket.index]
        assert ticket.collector is not None
        assert ticket.version is not None
        self._idle.append(ticket.collector)
        self.flown += 1
        if self._world.is_bad and rng.random() < faults.collector_fails:
            if rng.random() < faults.drop:
                ledger.drop(ticket.index, DropReason.FAILED)
            else:
                ledger.fail(ticket.index)
        else:
            ledger.land(ticket.index, Span(ticket.version, max(ticket.version, ledger.version)))
        self._take_off()
        self.say_soon()
