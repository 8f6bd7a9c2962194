"""A run of branches under a root (`branches.py`): its shape, its network, what may go wrong; and what it came to."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from headway.core.ledger import Ledger
from headway.simulate.lease_messages import LeaseTerms
from headway.tools.simulate.workloads import Constant, Duration

A_MILLISECOND, A_TENTH, A_SECOND = Constant(0.001), Constant(0.1), Constant(1.0)
USUAL_TERMS = LeaseTerms()


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What happens to a message."""

    delay: Duration = A_MILLISECOND
    lose: float = 0.0
    double: float = 0.0
    """The chance that it comes twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What may go wrong, until `until_s`: mean seconds between two of a kind, in all branches together."""

    until_s: float = 0.0
    branch_dies_s: float = math.inf
    branch_back_s: float = 5.0
    """How long it is away."""
    cut_s: float = math.inf
    cut_lasts_s: float = 20.0
    """A branch that is cut off from the root goes on: in both directions, or in one."""
    root_dies_s: float = math.inf
    root_back_s: float = 5.0
    collector_fails: float = 0.0
    """The chance that a flight fails."""
    drop: float = 0.0
    """The chance that such a ticket is dropped, rather than flown again."""
    clocks: float = 0.0
    """Clocks go wrong by up to so much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branched:
    """One run."""

    ledger: Callable[[], Ledger]
    """That of the root."""
    updates: int
    terms: LeaseTerms = USUAL_TERMS
    branches: int = 4
    seats: int = 8
    """Collectors of a branch."""
    ahead: float = 1.0
    """Tickets that a branch wants beside those in flight, as a share of its seats."""
    collect: Duration = A_SECOND
    learn: Duration = A_TENTH
    ticket_s: float = 0.0
    """What a ticket costs its branch, half when it takes off, half when it lands."""
    root_ticket_s: float = 0.0
    """What a ticket costs the root, when it is leased and when it is handed over."""
    message_s: float = 0.0
    """What a message costs the root."""
    report_every_s: float = 0.05
    """A branch that has something to say says it after so long."""
    save_every: int = 0
    """Updates between checkpoints of the root, from which it goes on when it has died."""
    network: Network = Network()
    faults: Faults = Faults()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class BranchedResult:
    """What a run of branches came to."""

    wall_s: float
    tickets: int
    flown: int
    reclaimed: int
    root_busy_s: float
    branches_busy_s: tuple[float, ...]
    staleness: dict[int, int] = field(default_factory=dict)

    @property
    def tickets_per_s(self) -> float:
        return self.tickets / self.wall_s
