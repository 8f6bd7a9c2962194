"""Checks runs of branches (`headway.simulate.branches`) by what must hold, and draws thousands of them.

The auditor keeps accounts of its own: what was learned, what every branch has in its hands by its own clock, how old
what is taken is. It asks the root's ledger only what is live.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import partial

from headway.core.ledger import Ledger
from headway.core.rules import MaxLead
from headway.core.rules_order import OLDEST, READY, Expiry, OnStale, Order, window
from headway.core.types import Phase
from headway.simulate.branched_shape import Branched, BranchedResult, Faults, Network
from headway.simulate.branches import BranchedRun, Watcher
from headway.simulate.lease_messages import LeaseTerms
from headway.tools.simulate.workloads import Constant, Duration, Exponential, Lognormal


class Broken(AssertionError):
    """Something that must hold did not."""


@dataclass
class Auditor(Watcher):
    """Watches one run."""

    slots: int
    max_staleness: int | None
    is_strict: bool

    def __post_init__(self) -> None:
        self.learned: set[int] = set()
        self.oldest_taken = 0
        self.most_live = self.most_held = 0
        self._saved: set[int] = set()
        self._with_learner: tuple[int, ...] = ()

    def held(self, run: BranchedRun) -> None:
        live = run.root.ledger.tally.live
        self.most_live = max(self.most_live, live)
        self._must(live <= self.slots, f"{live} tickets are live, there are {self.slots} slots")
        owner: dict[int, int] = {}
        for branch in run.branches:
            for index in branch.holds:
                self._must(
                    index not in owner, f"ticket {index} is held by branches {owner.get(index)} and {branch.number}"
                )
                owner[index] = branch.number
            if branch.ledger is not None and branch.ledger.session[0] == run.deaths_of_root:
                lost = set(branch.holds) - set(run.root.held_by(branch.number))
                self._must(not lost, f"branch {branch.number} holds {lost}, and the root has taken them back")
        self.most_held = max(self.most_held, len(owner))
        self._must(len(owner) <= self.slots, f"branches hold {len(owner)} tickets, there are {self.slots} slots")

    def taken(self, run: BranchedRun, indices: tuple[int, ...]) -> None:
        ledger = run.root.ledger
        for index in indices:
            self._must(index not in self.learned, f"ticket {index} is taken again")
            span = ledger.entry(index).span
            assert span is not None
            staleness = run.root.version - span.oldest
            self.oldest_taken = max(self.oldest_taken, staleness)
            self._must(staleness >= 0, f"ticket {index} is from the future")
            if self.max_staleness is not None:
                self._must(staleness <= self.max_staleness, f"ticket {index} is {staleness} versions old")
        if self.is_strict:
            before = [
                e.ticket.index for e in ledger.live() if e.phase is not Phase.TAKEN and e.ticket.index < indices[-1]
            ]
            self._must(not before, f"{indices} are taken before {before}")
        self._with_learner = indices

    def settled(self, run: BranchedRun, indices: tuple[int, ...]) -> None:
        self._must(set(indices) == set(self._with_learner), f"{indices} are settled, {self._with_learner} were taken")
        self._must(not self.learned & set(indices), f"some of {indices} settle twice")
        self.learned |= set(indices)

    def saved(self, run: BranchedRun) -> None:
        self._saved = set(self.learned)

    def went_back(self, run: BranchedRun) -> None:
        self.learned = set(self._saved)

    def close(self, run: BranchedRun, tickets_per_batch: int) -> None:
        """At the end: every ticket that was opened is somewhere, once."""
        ledger, updates = run.root.ledger, run.updates
        live = {entry.ticket.index for entry in ledger.live()}
        opened = ledger.tally.opened
        self._must(len(self.learned) == updates * tickets_per_batch == ledger.tally.learned, "not all was learned")
        self._must(not self.learned & live, "something that was learned is live")
        self._must(opened == len(self.learned) + len(live) + ledger.tally.dropped, "the ledger does not close")
        self._must(max(self.learned | live) < opened, "a ticket was never opened")

    @staticmethod
    def _must(holds: bool, otherwise: str) -> None:
        if not holds:
            raise Broken(otherwise)


@dataclass(frozen=True)
class Drawn:
    """A run of branches, and what must hold there."""

    shape: Branched
    slots: int
    max_staleness: int | None
    tickets_per_batch: int
    order: Order


def draw(number: int) -> Drawn:
    """Run `number`: a function of its number alone."""
    rng = random.Random(f"branches {number}")
    order = rng.choice([OLDEST, OLDEST, window(3), READY])
    batch = rng.choice([1, 2, 5, 8])
    rule = MaxLead(rng.choice([0, 0.5, 1, 2, 5]), batch)
    limit: int | None = None
    expiry = None
    if not order.is_first_come:
        limit = rule.staleness_bound(int(order.window) - 1)
    if not order.is_strict and rng.random() < 0.7:
        limit = rng.choice([1, 3])
        expiry = Expiry(limit, OnStale.DROP)
    is_bad = rng.random() < 0.9
    until_s = rng.choice([30.0, 100.0]) if is_bad else 0.0
    drift = rng.choice([0.0, 0.01, 0.2])

    def often(mean_s: float) -> float:
        return rng.choice([math.inf, mean_s, mean_s / 4])

    collects: list[Duration] = [Constant(1.0), Lognormal(1.0, 1.5), Exponential(0.3)]
    learns: list[Duration] = [Constant(0.1), Exponential(0.5)]
    delays: list[Duration] = [Constant(0.001), Exponential(0.1), Lognormal(0.3, 3.0)]
    shape = Branched(
        ledger=partial(_ledger, rule.max_lead, order, expiry, batch),
        updates=rng.choice([10, 40]),
        terms=LeaseTerms(block=rng.choice([1, 3, 16]), term_s=rng.choice([1.0, 4.0]), drift=drift),
        branches=rng.choice([1, 2, 3, 6]),
        seats=rng.choice([1, 2, 6]),
        ahead=rng.choice([0.0, 1.0]),
        collect=rng.choice(collects),
        learn=rng.choice(learns),
        ticket_s=rng.choice([0.0, 0.01]),
        root_ticket_s=rng.choice([0.0, 0.005]),
        message_s=rng.choice([0.0, 0.002]),
        report_every_s=rng.choice([0.0, 0.05]),
        save_every=rng.choice([0, 1, 5]),
        network=Network(
            delay=rng.choice(delays),
            lose=rng.choice([0.0, 0.05, 0.3]) if is_bad else 0.0,
            double=rng.choice([0.0, 0.1]),
        ),
        faults=Faults(
            until_s=until_s,
            branch_dies_s=often(20.0),
            branch_back_s=rng.choice([0.0, 2.0]),
            cut_s=often(20.0),
            cut_lasts_s=rng.choice([0.5, 6.0]),
            root_dies_s=often(40.0),
            root_back_s=rng.choice([0.0, 3.0]),
            collector_fails=rng.choice([0.0, 0.1]),
            drop=rng.choice([0.0, 0.5]),
            clocks=drift * rng.choice([0.0, 1.0]),
        ),
        seed=number,
    )
    return Drawn(shape, rule.slots, limit, batch, order)


def _ledger(max_lead: float, order: Order, expiry: Expiry | None, batch: int) -> Ledger:
    return Ledger(MaxLead(max_lead, batch), order=order, expiry=expiry, tickets_per_batch=batch)


def audited(drawn: Drawn) -> tuple[BranchedResult, Auditor, BranchedRun]:
    """Run it under the eyes of an auditor."""
    auditor = Auditor(drawn.slots, drawn.max_staleness, drawn.order.is_strict)
    run = BranchedRun(drawn.shape, auditor)
    result = run.run()
    auditor.close(run, drawn.tickets_per_batch)
    return result, auditor, run
