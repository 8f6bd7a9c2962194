"""What a learner's line can be told, checked when it is said: how it keeps step with collection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.core.ledger_terms import check_expiry
from headway.core.rules import Bytes, Capacity, MaxLead, ReplayRatio
from headway.core.rules_lead import AutoLead, FixedLead, Lead, starting_lead
from headway.core.rules_order import OLDEST, Expiry, OnStale, Order
from headway.core.types_opaque import JsonObject


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSettings:
    """How one learner keeps step with collection: its lead, its order, its limits, its batches and versions."""

    max_lead: float | Literal["auto"] = 1
    """How far collection may run ahead of learning, in versions. 0 is the synchronous loop."""
    order: Order = OLDEST
    """Which ready rollout the learner takes next."""
    max_staleness: int | None = None
    """The age one rollout may reach, in versions."""
    on_stale: OnStale = OnStale.WAIT
    """What happens to a rollout that is older."""
    max_age_s: float | None = None
    """The seconds one rollout may wait for the learner, from its landing on; for on_stale=drop, requeue or keep. The
    time a run is down does not count."""
    tickets_per_batch: int = 1
    publish_every: int = 1
    """Updates per published version. Raising it makes publishing cheaper and the data older."""
    queue_capacity: int | None = None
    """Rollouts that may wait for the learner or its replay, those on their way included. The lead bounds them too;
    raise both."""
    queue_bytes_limit: int | None = None
    """Bytes the rollouts that wait for the learner may hold, those on their way included as if each were of mean size.
    One batch may always wait, however big it is."""
    replay: ReplayRatio | None = None
    """Set where there is a replay, inside the learner or in its own role: how collection and learning keep step."""
    lead_limit: int = 64
    """The largest lead `max_lead="auto"` may choose."""
    lead_buffer_size: int | None = None
    """Tickets the buffer is meant to hold; `auto` starts from a tenth of it."""
    lead_interval: int = 8
    """Versions between two looks of the auto lead."""
    target_effective_sample_size: float = 0.7
    """`auto` halves the lead when the effective sample size is below this in two looks in a row."""
    every: int = 1
    """The learner is offered every n-th rollout. For the other lines of a run; the first one gets all."""

    def __post_init__(self) -> None:
        require(self.tickets_per_batch >= 1, f"tickets_per_batch must be >= 1, received {self.tickets_per_batch!r}")
        require(self.publish_every >= 1, f"publish_every must be >= 1, received {self.publish_every!r}")
        require(self.lead_interval >= 1, f"lead_interval must be >= 1, received {self.lead_interval!r}")
        require(self.every >= 1, f"every must be >= 1, received {self.every!r}")
        if isinstance(self.max_lead, str):
            require(
                self.max_lead == "auto",
                f"max_lead must be a number >= 0 or 'auto', received {self.max_lead!r}",
            )
        expiry = self.expiry
        if self.is_synchronous and self.max_age_s is not None and expiry.discards:
            raise ValueError(
                f"max_age_s={self.max_age_s:g} with on_stale={self.on_stale.value!r} needs max_lead > 0: the "
                "synchronous loop trains on everything, whatever the clock says; with on_stale=keep it counts"
            )
        if self.queue_capacity is not None:
            Capacity(self.queue_capacity, tickets_per_batch=self.ledger_batch)
        if self.queue_bytes_limit is not None:
            Bytes(self.queue_bytes_limit)
            require(self.replay is None, "queue_bytes_limit is for a queue; a replay has a capacity of its own")
        lead = MaxLead(self.build_lead().current, self.tickets_per_version)
        if self.max_lead != "auto" and self.replay is None:
            check_expiry(lead, expiry)
        elif self.max_staleness is not None and self.on_stale is OnStale.WAIT:
            raise ValueError("on_stale='wait' needs a fixed max_lead and a queue; choose drop, requeue or keep")

    @property
    def tickets_per_version(self) -> int:
        return self.tickets_per_batch * self.publish_every

    @property
    def ledger_batch(self) -> int:
        """Tickets taken at once: a replay takes them one by one, and draws its batches itself."""
        return 1 if self.replay is not None else self.tickets_per_batch

    @property
    def is_synchronous(self) -> bool:
        return self.max_lead == 0

    @property
    def expiry(self) -> Expiry:
        return Expiry(self.max_staleness, self.on_stale, self.max_age_s)

    @property
    def effective_order(self) -> Order:
        """Without a lead there is nothing to choose from: the plain loop takes tickets in order."""
        return OLDEST if self.is_synchronous else self.order

    @property
    def why_line_not_pinned(self) -> str:
        """What in the settings of this line depends on timing, or nothing."""
        if not self.effective_order.is_strict:
            return f"order={self.order} takes rollouts as they come"
        if self.max_lead == "auto":
            return "max_lead='auto' follows measured times"
        if self.max_staleness is not None and self.on_stale is OnStale.REQUEUE:
            return "on_stale='requeue' collects again out of turn"
        if self.max_age_s is not None and self.on_stale is not OnStale.KEEP:
            return "max_age_s lets the clock decide what is trained on"
        if self.queue_bytes_limit is not None and not self.is_synchronous:
            return "queue_bytes_limit opens tickets when others have landed"
        return ""

    @property
    def slots(self) -> int:
        """The most tickets of this line that may be live at once."""
        return MaxLead(self.build_lead().limit, self.tickets_per_version).slots

    @property
    def staleness_bound(self) -> int | None:
        """The oldest any trained rollout can be, by construction; None if these settings do not bound it."""
        limits = []
        if self.max_staleness is not None and self.on_stale is not OnStale.KEEP:
            limits.append(self.max_staleness)
        if self.effective_order.overtakers is not None and self.replay is None:
            lead = MaxLead(self.build_lead().limit, self.tickets_per_version)
            limits.append(lead.staleness_bound(self.effective_order.overtakers))
        return min(limits, default=None)

    def build_lead(self) -> Lead:
        if self.max_lead != "auto":
            return FixedLead(self.max_lead)
        start = starting_lead(self.lead_buffer_size or self.tickets_per_version, self.tickets_per_version)
        return AutoLead(
            min(start, self.lead_limit),
            self.lead_limit,
            target_effective_sample_size=self.target_effective_sample_size,
        )

    def describe_line(self) -> JsonObject:
        """What was set for this line and what follows from it, for the log."""
        return {
            "max_lead": self.max_lead,
            "order": str(self.effective_order),
            "max_staleness": self.max_staleness,
            "on_stale": self.on_stale.value,
            "max_age_s": self.max_age_s,
            "queue_bytes_limit": self.queue_bytes_limit,
            "staleness_bound": self.staleness_bound,
            "tickets_per_batch": self.tickets_per_batch,
            "publish_every": self.publish_every,
            "queue_capacity": self.queue_capacity,
            "replay": None if self.replay is None else self.replay.describe(),
            "lead_limit": self.lead_limit,
            "lead_buffer_size": self.lead_buffer_size,
            "lead_interval": self.lead_interval,
            "target_effective_sample_size": self.target_effective_sample_size,
        }
