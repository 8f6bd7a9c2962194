"""Everything a coordinator can be told, checked when it is said.

The three knobs of asynchrony (`max_lead`, `order`, `max_staleness` or `max_age_s` with `on_stale`), how a run is
cut into batches and versions, when it evaluates, saves and stops, how long anything may take, and how often
anything may fail. Derived values are properties; nothing changes after construction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

from headway.coordinator.settings_line_settings import LineSettings, require
from headway.core.ledger import Ledger
from headway.core.rules import AllOf, Budget, Bytes, Capacity, MaxLead, Rule
from headway.core.rules_order import OnStale
from headway.core.types_opaque import JsonObject


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
            require(value is None or value > 0, f"{item.name} must be > 0 seconds, received {value!r}")


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
            require(value >= 1, f"{name} must be >= 1, received {value!r}")
        for name in ("max_restarts", "publish_delay_s"):
            value = getattr(self, name)
            require(value >= 0, f"{name} must be >= 0, received {value!r}")
        require(
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
    """Stop after this many seconds (those of earlier sessions of a resumed run included). The last evaluation is given
    as many of them as the longest one before took."""
    target_score: float | None = None
    """Stop when an evaluation reaches this value, with the weights that did."""
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
        require(
            any(getattr(self, name) is not None for name in stops),
            f"a run needs an end: set at least one of {', '.join(stops)}",
        )
        for name in ("updates", "steps", "wall_s"):
            value = getattr(self, name)
            require(value is None or value > 0, f"{name} must be > 0, received {value!r}")
        for name in ("evaluate_every", "save_every", "save_every_s", "warmup_s"):
            value = getattr(self, name)
            require(value >= 0, f"{name} must be >= 0, received {value!r}")
        require(
            self.target_score is None or math.isfinite(self.target_score),
            f"target_score must be a finite number, received {self.target_score!r}",
        )
        require(
            self.target_score is None or self.evaluate_every > 0,
            f"target_score={self.target_score!r} needs evaluations: set evaluate_every",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(LineSettings):
    """One run of the coordinator; what it says as a line is said of the first one."""

    plan: Plan
    collectors: int = 1
    lanes: int = 1
    """Tickets one collector works on at once; for collectors that are concurrent and carry no state."""
    on_publish: Literal["drain", "partial"] = "drain"
    """When a collector that holds weights is due for a new version and its lanes are busy. drain: it finishes them
    first. partial: the weights change in the middle of them, and a rollout says which versions made it."""
    dispatch: Literal["pinned", "free"] | None = None
    """pinned: version and collector of each ticket are fixed, so the seed determines every bit.
    free: newest snapshot, first idle collector. Default: pinned where the other settings allow it."""
    pacing_s: float = 0.0
    """Each collector, in each of its lanes, starts at most one ticket per this many seconds."""
    tickets_per_call: int | Literal["auto"] = "auto"
    """Tickets that one call brings to a collector, and rollouts that one answer brings back, where as many wait. auto:
    as many as are collected while the call is on its way, on runtimes where it has one (`call_sizes.py`)."""
    evaluate_in_background: bool = False
    """False: collection and learning pause for an evaluation. True: it runs beside them."""
    evaluation_waits_for: Literal["landed", "parked"] = "landed"
    """What an evaluation that does not run beside them does with what is in flight. landed: it lands first. parked: it
    stands still and goes on afterwards, for collectors with lanes that can pause."""
    seed: int = 0
    deadlines: Deadlines = field(default_factory=Deadlines)
    retries: Retries = field(default_factory=Retries)
    lines: Mapping[str, LineSettings] = field(default_factory=dict)
    """The other lines of the run by their names, each with a learner of its own (`Stations.lines`)."""

    def __post_init__(self) -> None:
        require(self.collectors >= 1, f"collectors must be >= 1, received {self.collectors!r}")
        require(self.lanes >= 1, f"lanes must be >= 1, received {self.lanes!r}")
        require(self.pacing_s >= 0, f"pacing_s must be >= 0, received {self.pacing_s!r}")
        require(
            self.tickets_per_call == "auto" or self.tickets_per_call >= 1,
            f"tickets_per_call must be >= 1 or 'auto', received {self.tickets_per_call!r}",
        )
        require(
            self.tickets_per_call in ("auto", 1) or (self.lanes == 1 and not self.pacing_s),
            f"tickets_per_call={self.tickets_per_call} is for collectors with one lane and without pacing_s: with "
            "lanes each ticket has a call of its own",
        )
        LineSettings.__post_init__(self)
        require(
            self.dispatch in (None, "pinned", "free"),
            f"dispatch must be 'pinned' or 'free', received {self.dispatch!r}",
        )
        require(
            self.on_publish in ("drain", "partial"),
            f"on_publish must be 'drain' or 'partial', received {self.on_publish!r}",
        )
        require(
            self.evaluation_waits_for in ("landed", "parked"),
            f"evaluation_waits_for must be 'landed' or 'parked', received {self.evaluation_waits_for!r}",
        )
        require(
            not self.parks or self.lanes > 1,
            "evaluation_waits_for='parked' needs lanes > 1: with one, nothing can be said to a collector at work",
        )
        if self.on_publish == "partial":
            require(
                self.lanes > 1, "on_publish='partial' needs lanes > 1: with one, a collector does one thing at a time"
            )
            require(
                not self.is_synchronous,
                "on_publish='partial' needs max_lead > 0: without a lead nothing is in flight when a version comes",
            )
        self._check_lines()
        if self.dispatch == "pinned":
            require(self.why_not_pinned == "", f"dispatch='pinned' is impossible: {self.why_not_pinned}")

    def _check_lines(self) -> None:
        require(self.every == 1, f"the first line takes every rollout, received every={self.every!r}")
        for name, line in self.lines.items():
            require(name.isidentifier(), f"a line is named like a variable, received {name!r}")
            require(type(line) is LineSettings, f"line {name!r} needs LineSettings, received {type(line).__name__}")
        for name, line in {"": self, **self.lines}.items() if self.lines else ():
            require(
                line.on_stale is not OnStale.REQUEUE,
                f"on_stale='requeue' in line {name!r}: a run with several lines cannot collect a rollout again "
                "that another line may have learned from; choose drop, keep or wait",
            )

    @property
    def all_lines(self) -> dict[str, LineSettings]:
        """Every line by its name; the first has the empty one."""
        return {"": self, **self.lines}

    @property
    def seats(self) -> int:
        """How many tickets all collectors together work on at once. Tickets go round the seats."""
        return self.collectors * self.lanes

    @property
    def parks(self) -> bool:
        """Do collectors stand still while an evaluation runs?"""
        is_blocking = self.plan.evaluate_every > 0 and not self.evaluate_in_background
        return is_blocking and self.evaluation_waits_for == "parked"

    @property
    def why_not_pinned(self) -> str:
        """What in these settings depends on timing, or nothing."""
        for line in self.all_lines.values():
            if line.why_line_not_pinned:
                return line.why_line_not_pinned
        if self.retries.on_failure == "drop":
            return "on_failure='drop' lets faults decide what is trained on"
        if self.on_publish == "partial":
            return "on_publish='partial' changes weights in the middle of a rollout, when is a matter of timing"
        return ""

    @property
    def is_pinned(self) -> bool:
        if all(line.is_synchronous for line in self.all_lines.values()):
            return True
        return self.dispatch != "free" and self.why_not_pinned == ""

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
        slots = max(line.slots * line.every for line in self.all_lines.values())
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
        updates = 0.0
        for line in self.all_lines.values():
            update = limits.learn_s + publish + evaluate
            if line.replay is not None:  # which has calls of its own: an insert, a draw, the feedback
                update = (update + 3 * limits.learn_s) * line.replay.max_updates_in_a_row
            updates += update
        return rounds * (ticket + self.pacing_s) + updates + restarts

    def build_ledger(self, lead: MaxLead, name: str = "") -> Ledger:
        """That of one line. Only the first one knows when the run is over: what it does not open is not collected."""
        line = self.all_lines[name]
        rules: list[Rule] = [lead]
        if line.queue_capacity is not None:
            rules.append(Capacity(line.queue_capacity, tickets_per_batch=line.ledger_batch))
        if line.queue_bytes_limit is not None:
            rules.append(Bytes(line.queue_bytes_limit, tickets_per_batch=line.ledger_batch))
        if line.replay is not None:
            rules.append(line.replay)
        elif self.plan.updates is not None and not name:
            rules.append(Budget(max_tickets=self.plan.updates * self.tickets_per_batch))
        if self.plan.steps is not None and not self.is_pinned and not name:
            rules.append(Budget(max_steps=self.plan.steps, tickets_per_batch=line.ledger_batch))
        return Ledger(
            AllOf(*rules),
            order=line.effective_order,
            expiry=line.expiry,
            tickets_per_batch=line.ledger_batch,
            updates_per_version=line.publish_every,
            seed=self.seed,
            pinned_collectors=self.seats if self.is_pinned else None,
            every=line.every,
        )

    def describe(self) -> JsonObject:
        """What was set and what follows from it, for the log and the statistics."""
        told = self.describe_line() | {
            "dispatch": "pinned" if self.is_pinned else "free",
            "collectors": self.collectors,
            "lanes": self.lanes,
            "on_publish": self.on_publish,
            "pacing_s": self.pacing_s,
            "tickets_per_call": self.tickets_per_call,
            "warmup_s": self.plan.warmup_s,
            "target_score": self.plan.target_score,
            "evaluate_every": self.plan.evaluate_every,
            "evaluate_in_background": self.evaluate_in_background,
            "evaluation_waits_for": self.evaluation_waits_for,
            "save_every": self.plan.save_every,
            "save_every_s": self.plan.save_every_s,
            "seed": self.seed,
        }
        if self.lines:
            told["lines"] = {name: {**one.describe_line(), "every": one.every} for name, one in self.lines.items()}
        return told
