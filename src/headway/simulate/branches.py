"""Branches and their root on the virtual clock: messages, collectors, clocks and faults around `leases.py`.

    learner <--take, publish--> root <--messages--> branch <--flights--> collectors

The root and every branch are threads of their own: what a ticket costs them passes one after the other. With a
network that delays, loses, doubles and cuts, clocks that are wrong, branches and collectors that die, and a root that
goes back to its checkpoint, it is the test bench of the design; with costs alone it says what the design would bring.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from headway.core.types import DropReason, Span, State, Ticket
from headway.runtime.virtual import VirtualLoop
from headway.simulate.branched_shape import Branched, BranchedResult
from headway.simulate.lease_messages import Answer, Refusal, Report, Session
from headway.simulate.leases import BranchLedger, RootLedger

RETRIES_A_TERM = 4
"""Reports of a branch within a term, if nothing is due before."""

PATIENCE_S = 1e4
"""When nothing goes wrong any more, the rest of the run may take so long."""


class Watcher:
    """Is told what happens. This one does not care."""

    def held(self, run: BranchedRun) -> None:
        """Something has changed hands."""

    def taken(self, run: BranchedRun, indices: tuple[int, ...]) -> None:
        """The learner has taken rollouts, at the root's version."""

    def settled(self, run: BranchedRun, indices: tuple[int, ...]) -> None:
        """They are learned."""

    def saved(self, run: BranchedRun) -> None:
        """The root has written a checkpoint."""

    def went_back(self, run: BranchedRun) -> None:
        """The root goes on from its last checkpoint."""


class _Thread:
    """Does one thing at a time, each of which takes time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._free_at = 0.0
        self._given_s = 0.0

    @property
    def busy_s(self) -> float:
        """How long it has worked; what it still has before it does not count."""
        return self._given_s - max(0.0, self._free_at - self._loop.time())

    def do(self, seconds: float, then: Callable[[], object]) -> None:
        """Work for so long when everything before is done, and then say so."""
        self._given_s += seconds
        self._free_at = max(self._free_at, self._loop.time()) + seconds
        if seconds:
            self._loop.call_at(self._free_at, then)
        else:
            then()


@dataclass(slots=True)
class _Clock:
    """One that goes `rate` times as fast as time, and began somewhere."""

    loop: VirtualLoop
    rate: float
    offset_s: float

    def now(self) -> float:
        return self.offset_s + self.rate * self.loop.time()


class _Branch:
    """A branch with its collectors: one incarnation after the other."""

    def __init__(self, run: BranchedRun, number: int) -> None:
        faults, rng = run.shape.faults, run.rng
        self.number = number
        self.clock = _Clock(run.loop, 1 + rng.uniform(-faults.clocks, faults.clocks), rng.uniform(0, 1000))
        self.thread = _Thread(run.loop)
        self.ledger: BranchLedger | None = None
        self.incarnation = 0
        self.is_up = True
        self.cut: tuple[bool, bool] = (False, False)
        """Is nothing heard of it, does it hear nothing?"""
        self._run = run
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
        self._idle = list(range(self._run.shape.seats))
        self.incarnation += 1
        self._ask_to_join(self.incarnation)

    def _ask_to_join(self, incarnation: int) -> None:
        if self.is_up and self.ledger is None and incarnation == self.incarnation:
            asked_s = self.clock.now()
            self._run.to_root(self, lambda: self._run.hear_join(self, incarnation, asked_s))
            self._run.later(self._run.shape.terms.term_s / RETRIES_A_TERM, lambda: self._ask_to_join(incarnation))

    def joined(self, incarnation: int, asked_s: float, session: Session) -> None:
        shape = self._run.shape
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
            self._run.later(self._run.shape.terms.term_s / RETRIES_A_TERM, lambda: self._watch(ledger))

    def die(self) -> None:
        """With all its collectors; it is back later, and remembers nothing."""
        if self.is_up:
            self.is_up = False
            self.ledger = None
            self._flying.clear()
            self._run.later(self._run.shape.faults.branch_back_s, self._come_back)

    def _come_back(self) -> None:
        self.is_up = True
        self.join()

    # -- messages -------------------------------------------------------------------------------------

    def say_soon(self) -> None:
        """There is news: it is said with whatever else comes within a moment."""
        now, ledger = self._run.loop.time(), self.ledger
        if now >= self._says_at or ledger is None:
            self._says_at = math.inf
        if self._says_at == math.inf and ledger is not None:
            self._says_at = now + self._run.shape.report_every_s
            self._run.later(self._run.shape.report_every_s, lambda: self._say(ledger))

    def _say(self, ledger: BranchLedger) -> None:
        self._says_at = math.inf
        if ledger is self.ledger and self.is_up and not ledger.is_over(self.clock.now()):
            report = ledger.report(self.clock.now())
            self._run.to_root(self, lambda: self._run.hear_report(self, report))

    def hear(self, message: Answer | Refusal) -> None:
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
            self.thread.do(self._run.shape.ticket_s / 2, partial(self._fly, ledger, ticket, flight))

    def _fly(self, ledger: BranchLedger, ticket: Ticket, flight: int) -> None:
        seconds = self._run.shape.collect.quantile(self._run.rng.random())
        self._run.later(
            seconds, lambda: self.thread.do(self._run.shape.ticket_s / 2, lambda: self._land(ledger, ticket, flight))
        )

    def _land(self, ledger: BranchLedger, ticket: Ticket, flight: int) -> None:
        if ledger is not self.ledger or self._flying.get(ticket.index) != flight:
            return
        if ledger.is_over(self.clock.now()):
            return self.join()
        faults, rng = self._run.shape.faults, self._run.rng
        del self._flying[ticket.index]
        assert ticket.collector is not None
        assert ticket.version is not None
        self._idle.append(ticket.collector)
        self._run.flown += 1
        if self._run.is_bad and rng.random() < faults.collector_fails:
            if rng.random() < faults.drop:
                ledger.drop(ticket.index, DropReason.FAILED)
            else:
                ledger.fail(ticket.index)
        else:
            ledger.land(ticket.index, Span(ticket.version, max(ticket.version, ledger.version)))
        self._take_off()
        self.say_soon()


class BranchedRun:
    """Everything at once; `run` goes on until the updates are made."""

    def __init__(self, shape: Branched, watcher: Watcher | None = None) -> None:
        self.shape = shape
        self.watcher = watcher or Watcher()
        self.loop = VirtualLoop()  # type: ignore[abstract]  # it does no input or output
        self.rng = random.Random(f"branches {shape.seed}")
        self.root_clock = _Clock(self.loop, 1 + self.rng.uniform(-shape.faults.clocks, shape.faults.clocks), 0.0)
        self.root = RootLedger(shape.ledger(), shape.terms)
        self.root_thread = _Thread(self.loop)
        self.branches = [_Branch(self, number) for number in range(shape.branches)]
        self.updates = 0
        self.flown = 0
        self.deaths_of_root = 0
        self._reclaimed = 0
        self._is_root_up = True
        self._is_learning = False
        self._saved: tuple[int, State] | None = None
        self._done: asyncio.Future[None]

    def run(self) -> BranchedResult:
        """To the end; a run that stands still is an error."""
        return self.loop.run(self._run())

    async def _run(self) -> BranchedResult:
        shape = self.shape
        self._done = self.loop.create_future()
        self._save()
        self._expire_every(shape.terms.term_s / RETRIES_A_TERM)
        for branch in self.branches:
            branch.join()
        for mean_s, strike in (
            (shape.faults.branch_dies_s, lambda: self.rng.choice(self.branches).die()),
            (shape.faults.cut_s, self._cut_off),
            (shape.faults.root_dies_s, self._lose_root),
        ):
            self._strike_every(mean_s, strike)
        self.later(shape.faults.until_s + PATIENCE_S, self._give_up)
        await self._done
        counts = self.root.ledger.counts
        return BranchedResult(
            self.loop.time(),
            self.root.ledger.tally.learned,
            self.flown,
            self._reclaimed + self.root.reclaimed,
            self.root_thread.busy_s,
            tuple(branch.thread.busy_s for branch in self.branches),
            dict(counts.staleness),
        )

    def _give_up(self) -> None:
        if not self._done.done():
            self._done.set_exception(
                RuntimeError(f"{self.updates} updates of {self.shape.updates}, and it stands still")
            )

    # -- faults ---------------------------------------------------------------------------------------

    @property
    def is_bad(self) -> bool:
        """May anything go wrong now?"""
        return self.loop.time() < self.shape.faults.until_s

    def _strike_every(self, mean_s: float, strike: Callable[[], object]) -> None:
        if math.isinf(mean_s):
            return

        def struck() -> None:
            if self.is_bad:
                strike()
                self._strike_every(mean_s, strike)

        self.later(self.rng.expovariate(1 / mean_s), struck)

    def _cut_off(self) -> None:
        branch = self.rng.choice(self.branches)
        branch.cut = self.rng.choice([(True, True), (True, False), (False, True)])
        self.later(
            self.rng.expovariate(1 / self.shape.faults.cut_lasts_s), lambda: setattr(branch, "cut", (False, False))
        )

    def _lose_root(self) -> None:
        """It dies with the learner; it is back as it was at its checkpoint."""
        if self._is_root_up:
            self._is_root_up = False
            self.deaths_of_root += 1
            self._reclaimed += self.root.reclaimed
            self.later(self.shape.faults.root_back_s, self._bring_root_back)

    def _bring_root_back(self) -> None:
        assert self._saved is not None
        self.updates, state = self._saved
        self.root = RootLedger(self.shape.ledger(), self.shape.terms, epoch=self.deaths_of_root)
        self.root.restore(state, self.root_clock.now())
        self._is_root_up, self._is_learning = True, False
        self.watcher.went_back(self)
        self._learn()

    def _save(self) -> None:
        self._saved = self.updates, self.root.state_dict()
        self.watcher.saved(self)

    # -- messages -------------------------------------------------------------------------------------

    def later(self, seconds: float, then: Callable[[], object]) -> None:
        self.loop.call_later(seconds, then)

    def _send(self, is_cut: Callable[[], bool], deliver: Callable[[], object]) -> None:
        network, rng = self.shape.network, self.rng
        if is_cut() or rng.random() < network.lose:
            return
        for _ in range(2 if rng.random() < network.double else 1):
            self.later(network.delay.quantile(rng.random()), lambda: None if is_cut() else deliver())

    def to_root(self, branch: _Branch, deliver: Callable[[], object]) -> None:
        self._send(lambda: branch.cut[0], deliver)

    def _to_branch(self, branch: _Branch, deliver: Callable[[], object]) -> None:
        self._send(lambda: branch.cut[1], deliver)

    def hear_join(self, branch: _Branch, incarnation: int, asked_s: float) -> None:
        def heard() -> None:
            if self._is_root_up:
                session = self.root.join(branch.number, incarnation, self.root_clock.now())
                self._to_branch(branch, lambda: branch.joined(incarnation, asked_s, session))

        self.root_thread.do(self.shape.message_s, heard)

    def hear_report(self, branch: _Branch, report: Report) -> None:
        def heard() -> None:
            if not self._is_root_up:
                return
            self._answer(branch, self.root.hear(report, self.root_clock.now()))
            self._learn()

        handed_over = len(report.group.landings) if report.group else 0
        self.root_thread.do(self.shape.message_s + self.shape.root_ticket_s / 2 * handed_over, heard)

    def _answer(self, branch: _Branch, answer: Answer | Refusal) -> None:
        self.watcher.held(self)
        leased = sum(len(lease.tickets) for lease in answer.leases) if isinstance(answer, Answer) else 0
        self.root_thread.do(
            self.shape.root_ticket_s / 2 * leased, lambda: self._to_branch(branch, lambda: self._bring(branch, answer))
        )

    def _bring(self, branch: _Branch, answer: Answer | Refusal) -> None:
        branch.hear(answer)
        self.watcher.held(self)

    def _expire_every(self, seconds: float) -> None:
        if self._is_root_up:
            self.root.expire(self.root_clock.now())
            self._grant()
        self.later(seconds, lambda: self._expire_every(seconds))

    def _grant(self) -> None:
        for number, answer in self.root.grant(self.root_clock.now()):
            self._answer(self.branches[number], answer)

    # -- the learner ----------------------------------------------------------------------------------

    def _learn(self) -> None:
        """The next batch, if it is here; what has expired is dropped."""
        root = self.root
        if self._is_learning or not self._is_root_up:
            return
        choice = root.choose()
        for index in choice.expired:
            reason = root.ledger.too_old(index, root.version)
            assert reason is not None
            root.ledger.drop(index, reason)
        if choice.batch:
            root.ledger.take(choice.batch, root.version)
            self._is_learning = True
            self.watcher.taken(self, choice.batch)
            self.later(self.shape.learn.quantile(self.rng.random()), lambda: self._publish(root))
        if choice.expired:
            self._grant()
            if not choice.batch:
                self._learn()

    def _publish(self, root: RootLedger) -> None:
        if root is not self.root or not self._is_root_up:
            return  # it died meanwhile
        self._is_learning = False
        self.watcher.settled(self, root.publish())
        self.updates += 1
        if self.updates == self.shape.updates:
            self._done.set_result(None)
            return
        if self.shape.save_every and self.updates % self.shape.save_every == 0:
            self._save()
        self._grant()
        self._learn()
