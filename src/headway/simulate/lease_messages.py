"""What a root and its branches say to each other, and the terms that both keep (`leases.py`)."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.types import DropReason, Span, Ticket

Session = tuple[int, int]
"""Which root it was opened with, by its epoch, and a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTerms:
    """What root and branches have agreed on."""

    block: int = 32
    """Tickets of one lease, at most."""
    term_s: float = 10.0
    """How long a branch may work after the root has last answered it."""
    drift: float = 0.01
    """How much faster or slower than time any clock may go."""

    def __post_init__(self) -> None:
        if self.block < 1:
            raise ValueError(f"block must be >= 1, received {self.block!r}")
        if not self.term_s > 0:
            raise ValueError(f"term_s must be above 0, received {self.term_s!r}")
        if not 0 <= self.drift < 1:
            raise ValueError(f"drift must be in [0, 1), received {self.drift!r}")

    @property
    def reclaim_s(self) -> float:
        """How long the root waits, by its clock: at least `term_s` by the clock of any branch."""
        return self.term_s * (1 + self.drift) / (1 - self.drift)


@dataclass(frozen=True, slots=True)
class Lease:
    """Tickets that a branch may have collected, with the newest version or any that is newer."""

    version: int
    tickets: tuple[Ticket, ...]


@dataclass(frozen=True, slots=True)
class Landing:
    """A rollout that is here; or, with a reason, a ticket that its branch has dropped."""

    index: int
    span: Span
    steps: int = 1
    length: float = 1.0
    reason: DropReason | None = None


@dataclass(frozen=True, slots=True)
class LandedGroup:
    """What one report hands over. The next group is made when the root has this one."""

    number: int
    landings: tuple[Landing, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """From a branch."""

    session: Session
    number: int
    asked_s: float
    """When, by its own clock."""
    want: int
    """How many more tickets it has room for, beside the leases it has seen."""
    leases_seen: int
    group: LandedGroup | None


@dataclass(frozen=True, slots=True)
class LeaseAnswer:
    """From the root."""

    session: Session
    asked_s: float | None
    """Of the report it answers; None if nobody asked."""
    first_lease: int
    """The number of the first of these."""
    leases: tuple[Lease, ...]
    groups_seen: int
    version: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """That session is over."""

    session: Session
