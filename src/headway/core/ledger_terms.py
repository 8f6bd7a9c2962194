"""What a ledger is told once and never changes, and which limits on age could not be kept."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.rules import MaxLead
from headway.core.rules_order import Expiry, Order


@dataclass(frozen=True, slots=True)
class LedgerTerms:
    """How a ledger opens and chooses."""

    order: Order
    expiry: Expiry
    tickets_per_batch: int
    updates_per_version: int
    pinned_collectors: int | None
    every: int

    def __post_init__(self) -> None:
        if self.tickets_per_batch < 1 or self.updates_per_version < 1:
            raise ValueError(
                f"tickets_per_batch and updates_per_version must be >= 1, received "
                f"{self.tickets_per_batch!r} and {self.updates_per_version!r}"
            )
        if self.every < 1:
            raise ValueError(f"every must be >= 1, received {self.every!r}")
        if self.pinned_collectors is not None and not self.order.is_strict:
            raise ValueError(f"a pinned run consumes in ticket order; order={self.order} cannot be pinned")

    @property
    def discards(self) -> bool:
        return self.expiry.discards


def check_expiry(rule: MaxLead, expiry: Expiry) -> None:
    """Refuse a limit on age that waiting could not keep.

    `wait` can hold the learner back for one slow rollout, but with more tickets live than
    (1 + max_staleness) versions consume, some must grow older than the limit whatever the order.
    """
    if not expiry.waits:
        return
    unavoidable = rule.staleness_bound(0)
    assert expiry.max_staleness is not None
    if expiry.max_staleness < unavoidable:
        raise ValueError(
            f"max_staleness={expiry.max_staleness} with on_stale=wait cannot hold under "
            f"max_lead={rule.max_lead:g} (rollouts reach age {unavoidable}); lower max_lead to "
            f"{expiry.max_staleness} or choose on_stale=drop, requeue or keep"
        )
