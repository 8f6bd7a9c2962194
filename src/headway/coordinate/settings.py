"""Everything a coordinator can be told, checked when it is said.

The three knobs of asynchrony (`max_lead`, `order`, `max_staleness` or `max_age_s` with `on_stale`), how a run is
cut into batches and versions, when it evaluates, saves and stops, how long anything may take, and how often
anything may fail. Derived values are properties; nothing changes after construction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from headway.core.lead import AutoLead, FixedLead, Lead, starting_lead
from headway.core.ledger import Ledger, check_expiry
from headway.core.order import OLDEST, Expiry, OnStale, Order
from headway.core.rules import AllOf, Budget, Bytes, Capacity, MaxLead, ReplayRatio, Rule


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long each kind of work may take before its role is given up, in seconds."""

    collect_s: float = 600.0
    learn_s: float = 600.0
    evaluate_s: float = 1800.0
    publish_s: float = 60.0
    """One attempt to hand a snapshot on. Raise it for large models on slow links."""
    start_s: float = 120.0
    """Building a role, imports and model loading included."""
    save_s: float = 600.0
    """Writing a checkpoint, or the best weights so far."""
    data_s: float | None = None
    """How long the learner may wait for a batch. Default: until every other deadline must have struck."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            _require(value is None or value > 0, f"{item.name} must be > 0 seconds, received {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often anything may fail before the run stops (or drops the ticket)."""

    attempts_on_error: int = 1
    """Attempts at one ticket when the collector's own code raises. 1: the first exception counts."""
    attempts_on_loss: int = 3
    """Attempts at one ticket when its collector dies or does not answer in time, or its rollout is lost."""
    on_failure: Literal["stop", "drop"] = "stop"
    """When the attempts are used up: stop the run with a clear error, or drop the ticket as failed; its collector then
    begins new episodes."""
    max_failures_in_a_row: int = 20
    """Tickets of one collector that may be dropped as failed one after the other before the run stops all the same."""
    max_restarts: int = 10
    """Restarts of any one role in the whole run."""
    publish_attempts: int = 4
    """Attempts to hand a snapshot on: one and three retries."""
    publish_delay_s: float = 1.0
    """Pause between two of them."""
    evaluate_attempts: int = 2
    """Attempts at one evaluation; after that its score is recorded as failed and the run goes on."""

    def __post_init__(self) -> None:
        at_least_one = ("attempts_on_error", "attempts_on_loss", "max_failures_in_a_row")
        for name in (*at_least_one, "publish_attempts", "evaluate_attempts"):
            value = getattr(self, name)
            _require(value >= 1, f"{name} must be >= 1, received {value!r}")
        for name in ("max_restarts", "publish_delay_s"):
            value = getattr(self, name)
            _require(value >= 0, f"{name} must be >= 0, received {value!r}")
        _require(
            self.on_failure in ("stop", "drop"),
            f"on_failure must be 'stop' or 'drop', received {self.on_failure!r}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """When to stop, evaluate and save. At least one way to stop must be given."""

    updates: int | None = None
    """Stop after this many learn calls."""
    steps: int | None = None
    """Stop once this many environment steps have been trained on."""
    wall_s: float | None = None
    """Stop after this many seconds (those of earlier sessions of a resumed run included)."""
    target_score: float | None = None
    """Stop when an evaluation reaches this value."""
    evaluate_every: int = 0
    """Evaluate every n versions, and the last one in any case; 0: never."""
    evaluate_first: bool = False
    """Evaluate version 0 too, before anything is collected; where others run in the background, it does too."""
    evaluate_last: bool = False
    """Evaluate the last version, even if no other is."""
    save_every: int = 0
    """Write a checkpoint every n versions, and at the end in any case; 0: not by versions."""
    save_every_s: float = 300.0
    """Write a checkpoint when a version is published and none was written for so long; 0: not by the clock. What takes
    long to save is saved less often: at most a twentieth of the time is spent on it."""
    warmup_s: float = 0.0
    """The learner starts this much later than the collectors."""

    @property
    def evaluates_last(self) -> bool:
        """Whoever evaluates every so many versions wants to know about the last one too."""
        return self.evaluate_last or self.evaluate_every > 0

    def __post_init__(self) -> None:
        stops = ("updates", "steps", "wall_s", "target_score")
        _require(
            any(getattr(self, name) is not None for name in stops),
            f"a run needs an end: set at least one of {', '.join(stops)}",
        )
        for name in ("updates", "steps", "wall_s"):
            value = getattr(self, name)
            _require(value is None or value > 0, f"{name} must be > 0, received {value!r}")
        for name in ("evaluate_every", "save_every", "save_every_s", "warmup_s"):
            value = getattr(self, name)
            _require(value >= 0, f"{name} must be >= 0, received {value!r}")
        _require(
            self.target_score is None or math.isfinite(self.target_score),
            f"target_score must be a finite number, received {self.target_score!r}",
        )
        _require(
            self.target_score is None or self.evaluate_every > 0,
            f"target_score={self.target_score!r} needs evaluations: set evaluate_every",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One run of the coordinator."""

    plan: Plan
    collectors: int = 1
    lanes: int = 1
    """Tickets one collector works on at once; for collectors that are concurrent and carry no state."""
    on_publish: Literal["drain", "partial"] = "drain"
    """When a collector that holds weights is due for a new version and its lanes are busy. drain: it finishes them
    first. partial: the weights change in the middle of them, and a rollout says which versions made it."""
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
    dispatch: Literal["pinned", "free"] | None = None
    """pinned: version and collector of each ticket are fixed, so the seed determines every bit.
    free: newest snapshot, first idle collector. Default: pinned where the other settings allow it."""
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
    pacing_s: float = 0.0
    """Each collector, in each of its lanes, starts at most one ticket per this many seconds."""
    evaluate_in_background: bool = False
    """False: collection and learning pause for an evaluation. True: it runs beside them."""
    lead_limit: int = 64
    """The largest lead `max_lead="auto"` may choose."""
    lead_buffer_size: int | None = None
    """Tickets the buffer is meant to hold; `auto` starts from a tenth of it."""
    lead_interval: int = 8
    """Versions between two looks of the auto lead."""
    target_effective_sample_size: float = 0.7
    """`auto` halves the lead when the effective sample size is below this in two looks in a row."""
    seed: int = 0
    deadlines: Deadlines = field(default_factory=Deadlines)
    retries: Retries = field(default_factory=Retries)

    def __post_init__(self) -> None:
        _require(self.collectors >= 1, f"collectors must be >= 1, received {self.collectors!r}")
        _require(self.lanes >= 1, f"lanes must be >= 1, received {self.lanes!r}")
        _require(self.tickets_per_batch >= 1, f"tickets_per_batch must be >= 1, received {self.tickets_per_batch!r}")
        _require(self.publish_every >= 1, f"publish_every must be >= 1, received {self.publish_every!r}")
        _require(self.pacing_s >= 0, f"pacing_s must be >= 0, received {self.pacing_s!r}")
        _require(self.lead_interval >= 1, f"lead_interval must be >= 1, received {self.lead_interval!r}")
        if isinstance(self.max_lead, str):
            _require(
                self.max_lead == "auto",
                f"max_lead must be a number >= 0 or 'auto', received {self.max_lead!r}",
            )
        _require(
            self.dispatch in (None, "pinned", "free"),
            f"dispatch must be 'pinned' or 'free', received {self.dispatch!r}",
        )
        _require(
            self.on_publish in ("drain", "partial"),
            f"on_publish must be 'drain' or 'partial', received {self.on_publish!r}",
        )
        if self.on_publish == "partial":
            _require(
                self.lanes > 1, "on_publish='partial' needs lanes > 1: with one, a collector does one thing at a time"
            )
            _require(
                not self.is_synchronous,
                "on_publish='partial' needs max_lead > 0: without a lead nothing is in flight when a version comes",
            )
        expiry = self.expiry
        if self.is_synchronous and self.max_age_s is not None and expiry.discards:
            raise ValueError(
                f"max_age_s={self.max_age_s:g} with on_stale={self.on_stale.value!r} needs max_lead > 0: the "
                "synchronous loop trains on everything, whatever the clock says; with on_stale=keep it counts"
            )
        if self.dispatch == "pinned":
            _require(self.why_not_pinned == "", f"dispatch='pinned' is impossible: {self.why_not_pinned}")
        if self.queue_capacity is not None:
            Capacity(self.queue_capacity, tickets_per_batch=self.ledger_batch)
        if self.queue_bytes_limit is not None:
            Bytes(self.queue_bytes_limit)
            _require(self.replay is None, "queue_bytes_limit is for a queue; a replay has a capacity of its own")
        lead = MaxLead(self.build_lead().current, self.tickets_per_version)
        if self.max_lead != "auto" and self.replay is None:
            check_expiry(lead, expiry)
        elif self.max_staleness is not None and self.on_stale is OnStale.WAIT:
            raise ValueError("on_stale='wait' needs a fixed max_lead and a queue; choose drop, requeue or keep")

    @property
    def seats(self) -> int:
        """How many tickets all collectors together work on at once. Tickets go round the seats."""
        return self.collectors * self.lanes

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
    def why_not_pinned(self) -> str:
        """What in these settings depends on timing, or nothing."""
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
        if self.retries.on_failure == "drop":
            return "on_failure='drop' lets faults decide what is trained on"
        if self.on_publish == "partial":
            return "on_publish='partial' changes weights in the middle of a rollout, when is a matter of timing"
        return ""

    @property
    def is_pinned(self) -> bool:
        if self.is_synchronous:
            return True
        return self.dispatch != "free" and self.why_not_pinned == ""

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

    @property
    def data_deadline_s(self) -> float:
        """How long the learner may wait for a batch."""
        if self.deadlines.data_s is not None:
            return self.deadlines.data_s
        return self.patience_s

    @property
    def patience_s(self) -> float:
        """The longest a healthy run can keep anyone waiting: every deadline struck, every attempt made."""
        limits, retries = self.deadlines, self.retries
        slots = MaxLead(self.build_lead().limit, self.tickets_per_version).slots
        # Tickets one collector may have before it, and its own. With lanes they fly one by one in the worst case, where
        # each has a version of its own; and whenever one of them is late, all begin again.
        rounds = -(-slots // self.collectors) + 1
        ticket = limits.collect_s * max(retries.attempts_on_loss, retries.attempts_on_error)
        publish = (limits.publish_s + retries.publish_delay_s) * retries.publish_attempts
        restarts = limits.start_s * (retries.max_restarts + 1)
        if self.lanes > 1:
            ticket += publish
            restarts += limits.collect_s * retries.max_restarts
        evaluate = limits.evaluate_s * (retries.evaluate_attempts + 1)
        update = limits.learn_s + publish + evaluate
        if self.replay is not None:  # which has calls of its own: an insert, a draw, the feedback
            update = (update + 3 * limits.learn_s) * self.replay.max_updates_in_a_row
        return rounds * (ticket + self.pacing_s) + update + restarts

    def build_lead(self) -> Lead:
        if self.max_lead != "auto":
            return FixedLead(self.max_lead)
        start = starting_lead(self.lead_buffer_size or self.tickets_per_version, self.tickets_per_version)
        return AutoLead(
            min(start, self.lead_limit),
            self.lead_limit,
            target_effective_sample_size=self.target_effective_sample_size,
        )

    def build_ledger(self, lead: MaxLead) -> Ledger:
        rules: list[Rule] = [lead]
        if self.queue_capacity is not None:
            rules.append(Capacity(self.queue_capacity, tickets_per_batch=self.ledger_batch))
        if self.queue_bytes_limit is not None:
            rules.append(Bytes(self.queue_bytes_limit, tickets_per_batch=self.ledger_batch))
        if self.replay is not None:
            rules.append(self.replay)
        elif self.plan.updates is not None:
            rules.append(Budget(max_tickets=self.plan.updates * self.tickets_per_batch))
        if self.plan.steps is not None and not self.is_pinned:
            rules.append(Budget(max_steps=self.plan.steps, tickets_per_batch=self.ledger_batch))
        return Ledger(
            AllOf(*rules),
            order=self.effective_order,
            expiry=self.expiry,
            tickets_per_batch=self.ledger_batch,
            updates_per_version=self.publish_every,
            seed=self.seed,
            pinned_collectors=self.seats if self.is_pinned else None,
        )

    def describe(self) -> dict[str, Any]:
        """What was set and what follows from it, for the log and the statistics."""
        return {
            "max_lead": self.max_lead,
            "order": str(self.effective_order),
            "dispatch": "pinned" if self.is_pinned else "free",
            "max_staleness": self.max_staleness,
            "on_stale": self.on_stale.value,
            "max_age_s": self.max_age_s,
            "queue_bytes_limit": self.queue_bytes_limit,
            "staleness_bound": self.staleness_bound,
            "collectors": self.collectors,
            "lanes": self.lanes,
            "on_publish": self.on_publish,
            "tickets_per_batch": self.tickets_per_batch,
            "publish_every": self.publish_every,
            "queue_capacity": self.queue_capacity,
            "replay": None if self.replay is None else self.replay.describe(),
            "pacing_s": self.pacing_s,
            "warmup_s": self.plan.warmup_s,
            "target_score": self.plan.target_score,
            "evaluate_every": self.plan.evaluate_every,
            "evaluate_in_background": self.evaluate_in_background,
            "save_every": self.plan.save_every,
            "save_every_s": self.plan.save_every_s,
            "lead_limit": self.lead_limit,
            "lead_buffer_size": self.lead_buffer_size,
            "lead_interval": self.lead_interval,
            "target_effective_sample_size": self.target_effective_sample_size,
            "seed": self.seed,
        }
