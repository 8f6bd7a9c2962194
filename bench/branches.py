"""One root above branches: does the bound hold whatever fails, and what would it bring?

    python bench/branches.py --schedules 2000        random runs with faults, each audited (tests/branch_auditor.py)
    python bench/branches.py --cost                  processor time of the root's ledger per ticket
    python bench/branches.py --branches 1,2,4,8,16   tickets a second, simulated with measured costs

A branch is a coordinator with 1,000 collectors that take 0.1 s a ticket, so each offers more than it can do. What a
ticket costs it is the shipped figure of threads; the root's costs are those that `--cost` measured, and for each
message the call of a Ray actor. A branch reports every quarter of a second. Nothing is asserted but the audit.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from branch_auditor import audited, draw

from headway.core.ledger import Ledger
from headway.core.rules import MaxLead
from headway.core.types import Span
from headway.simulate.branched_shape import Branched, Network
from headway.simulate.branches import BranchedRun
from headway.simulate.lease_messages import LandedGroup, Landing, LeaseAnswer, LeaseTerms, Report
from headway.simulate.leases import RootLedger
from headway.tools.simulate.cluster_ticket_costs import TICKET_COSTS
from headway.tools.simulate.workloads import Constant, Lognormal

SEATS = 1000
COLLECT_S = 0.1
LEAD = 4
ROOT_TICKET_S = 10e-6
"""As `--cost` measured it, rounded up."""
MESSAGE_S = 1.353e-3
"""An empty call of one Ray actor, docs/guides/ray.md."""
REPORT_EVERY_S = 0.25


def schedules(first: int, count: int) -> None:
    """Random runs; the first that breaks a rule ends it."""
    seen: Counter[str] = Counter()
    began = time.process_time()
    for number in range(first, first + count):
        drawn = draw(number)
        result, auditor, run = audited(drawn)
        seen["tickets learned"] += result.tickets
        seen["flights"] += result.flown
        seen["tickets taken back"] += result.reclaimed
        seen["times the root went back"] += run.deaths_of_root
        seen["runs with every slot live at once"] += auditor.most_live == drawn.slots
        seen["runs that reached the bound on staleness"] += auditor.oldest_taken == drawn.max_staleness
    print(f"{count:,} runs audited, none broke a rule; {time.process_time() - began:.0f} processor seconds")
    for name, number in seen.items():
        print(f"  {name:42} {number:10,}")


def ledger(tickets_per_batch: int) -> Ledger:
    return Ledger(MaxLead(LEAD, tickets_per_batch), tickets_per_batch=tickets_per_batch)


def root_ticket_us(block: int, tickets: int = 100_000, batch: int = 1024) -> float:
    """Processor time of the root per ticket: leased in blocks, handed over in groups of as many, learned."""
    root = RootLedger(ledger(batch), LeaseTerms(block=block, term_s=1e9))
    session = root.join(0, 1, 0.0)
    group, seen, number = None, 0, 0
    began = time.process_time()
    while root.ledger.tally.learned < tickets:
        number += 1
        answer = root.hear(Report(session, number, 0.0, block, seen, group), 0.0)
        assert isinstance(answer, LeaseAnswer)
        leased = [ticket for lease in answer.leases for ticket in lease.tickets]
        seen = answer.first_lease + len(answer.leases)
        landings = tuple(Landing(ticket.index, Span(root.version, root.version)) for ticket in leased)
        group = LandedGroup(answer.groups_seen, landings)
        while batch_chosen := root.choose().batch:
            root.ledger.take(batch_chosen, root.version)
            root.publish()
    return 1e6 * (time.process_time() - began) / tickets


def per_s(branches: int, seconds: float) -> tuple[float, float, float, float]:
    """Tickets a second; how busy the root and the busiest branch are; mean staleness."""
    ticket_s = TICKET_COSTS["threads"].seconds
    batch = 2 * SEATS * branches
    most = min(1 / ticket_s, SEATS / COLLECT_S) * branches
    shape = Branched(
        ledger=partial(ledger, batch),
        updates=max(6, round(seconds * most / batch)),
        terms=LeaseTerms(block=4 * SEATS, term_s=10.0),
        branches=branches,
        seats=SEATS,
        ahead=3.0,
        collect=Lognormal(COLLECT_S, 0.5),
        learn=Constant(0.01),
        ticket_s=ticket_s,
        root_ticket_s=ROOT_TICKET_S,
        message_s=MESSAGE_S,
        report_every_s=REPORT_EVERY_S,
        network=Network(delay=Constant(0.001)),
    )
    result = BranchedRun(shape).run()
    ages = sum(age * count for age, count in result.staleness.items()) / result.tickets
    return (
        result.tickets_per_s,
        result.root_busy_s / result.wall_s,
        max(result.branches_busy_s) / result.wall_s,
        ages,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--branches", default="")
    parser.add_argument("--seconds", type=float, default=3.0, help="simulated, about")
    given = parser.parse_args()
    if given.schedules:
        schedules(given.first, given.schedules)
    if given.cost:
        for block in (1, 16, 256):
            us = [root_ticket_us(block, 100_000 if block > 1 else 10_000) for _ in range(5)]
            print(f"blocks of {block:5}: {statistics.median(us):6.1f} us a ticket ({min(us):.1f}..{max(us):.1f})")
    if given.branches:
        heads = ("branches", "collectors", "tickets/s", "root busy", "branch busy", "staleness")
        print(" ".join(f"{head:>11}" for head in heads))
        for branches in map(int, given.branches.split(",")):
            rate, root, branch, age = per_s(branches, given.seconds)
            cells = (branches, f"{branches * SEATS:,}", f"{rate:,.0f}", f"{root:.1%}", f"{branch:.1%}", f"{age:.2f}")
            print(" ".join(f"{cell:>11}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
