"""What an audit checks and what it is told: the rules, the terms of a session, and the counts of a log."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from headway.core.events import Event

LoggedValue = Any
"""What a log says of one setting or one count. The auditor knows its name, and no code of the run that it audits."""
Logged = Mapping[str, LoggedValue]

RULES = {
    "log": "a log begins with `run`, its clock never goes back, and nothing follows its end",
    "life": "a ticket opens once, in the order of the indices, and moves only as its life allows",
    "settles once": "a ticket is settled or dropped once",
    "trained once": "no ticket is trained on twice",
    "slots": "live tickets never exceed floor((1 + lead) * tickets per version)",
    "room": "no ticket opens beyond queue_capacity or queue_bytes_limit",
    "budget": "no ticket opens that can no longer be learned from",
    "free slot": "a slot that is free is used before the next update",
    "newest snapshot": "in a free run a ticket takes off with the newest version",
    "pinned birth": "in a pinned run a ticket takes off with the version it was opened at, on the seat of its index",
    "one ticket a seat": "a seat works on one ticket at a time, or on those of one call",
    "scaling": "a run has the collectors that were counted last; those taken away get no ticket, land, and leave once",
    "one version a collector": "what drains flies with one version at a time on each collector",
    "span": "a rollout was made by versions from its birth to the newest, and by one unless weights may change",
    "attempts": "an attempt is counted once for a failure at most",
    "staleness": "no rollout is older than the settings allow when it is taken",
    "age": "no rollout has waited longer than max_age_s when it is taken",
    "expiry": "a rollout is dropped or collected again for its age only when it is too old and the policy says so",
    "order": "the learner takes rollouts in the order that was set",
    "batch": "a batch is complete, in ticket order, and trained on while its version is the newest",
    "updates": "updates count by one, and each ends as it began",
    "versions": "versions count by one, and each is made by publish_every updates",
    "settles when published": "what was trained on settles when its version is published, and all of it",
    "replay ratio": "samples and inserted steps keep the ratio that was set",
    "evaluations": "each version that is due is evaluated or skipped, once, one at a time",
    "pause": "nothing takes off and nothing is trained during a blocking evaluation",
    "last evaluation": "a run that ends has evaluated its last version, or an interruption has abandoned that",
    "nothing left behind": "a run that reaches its updates has learned from or dropped all that it opened",
    "counts": "what the run counted is what the log adds up to",
}
EPSILON_S = 1e-6


class Violation(NamedTuple):
    """A rule that was broken, and where. `at` is the index of an event, or the number of events at the end."""

    rule: str
    at: int
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: at event {self.at}, {self.what}"


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a session was told and its `run` event does not say. Whatever is not known is not checked."""

    updates: int | None = None
    """When it was to end, in updates."""
    steps: int | None = None
    """The same in steps."""
    evaluate_first: bool | None = None
    holds_weights: bool | None = None
    """Are weights applied to the collectors?"""
    may_lose_payloads: bool = True
    """May what was published or collected be lost?"""
    lines: Mapping[str, Terms] = field(default_factory=dict)
    """What the other lines were told, by name."""

    def of_line(self, name: str) -> Terms:
        """What a line was told; of another line than the first, when it was to end is known only if it is said."""
        unknown = replace(self, updates=None, steps=None, evaluate_first=None, lines={})
        return self.lines.get(name, unknown) if name else self


@dataclass
class Recount:
    """What a log adds up to, under the names of the run's own counts."""

    opened: int = 0
    landed: int = 0
    learned: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    reissued: int = 0
    requeued: int = 0
    lost: int = 0
    kept_stale: int = 0
    kept_expired: int = 0
    on_the_line: int = 0
    """Kept with an age that is max_age_s as far as numbers can tell: counted as expired or not."""
    staleness: Counter[int] = field(default_factory=Counter)
    steps: int = 0
    sampled: float = 0.0
    """By the updates, from the replay; nan once an update has not said how many."""
    ages_s: list[float] = field(default_factory=list)
    offered: list[float] = field(default_factory=list)
    trained: list[float] = field(default_factory=list)
    landed_bytes: int = 0

    def values(self, kept_expired: int) -> Logged:
        """The counts by name. Those on the line are counted as the run did, which says `kept_expired`."""
        on_the_line = min(max(0, kept_expired - self.kept_expired), self.on_the_line)
        return {
            "opened": self.opened,
            "landed": self.landed,
            "learned": self.learned,
            "dropped": {reason: n for reason, n in self.dropped.items() if n},
            "live": 0,
            "reissued": self.reissued,
            "requeued": self.requeued,
            "lost": self.lost,
            "kept_stale": self.kept_stale,
            "kept_expired": self.kept_expired + on_the_line,
            "staleness": {age: n for age, n in self.staleness.items() if n},
            "mean_age_s": _mean(self.ages_s),
            "max_age_s": max(self.ages_s, default=0.0),
            "offered_length": _mean(self.offered),
            "trained_length": _mean(self.trained),
            "steps": self.steps,
        }


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def agree(one: LoggedValue, other: LoggedValue) -> bool:
    """Are two counts equal, as far as numbers can tell?"""
    if isinstance(one, float) or isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=EPSILON_S)
    if isinstance(one, Mapping):
        return dict(one) == other
    return bool(one == other)


class Findings:
    """The log that is read, how far, and what is wrong with it."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        self.at = 0
        self.now_s = -math.inf
        self.violations: list[Violation] = []

    def wrong(self, rule: str, what: str) -> None:
        assert rule in RULES
        self.violations.append(Violation(rule, self.at, what))

    def coming(self) -> Sequence[Event]:
        """The events from this one on."""
        return self.events[self.at :]


@dataclass(frozen=True, slots=True)
class LineTerms:
    """What a line of a session was set to: what the `run` event says of it, and what it was told besides."""

    run: Logged
    told: Terms

    @classmethod
    def of(cls, settings: Logged, told: Terms, name: str) -> LineTerms:
        own = settings.get("lines", {}).get(name, {}) if name else {}
        return cls({**settings, **own}, told.of_line(name))

    def __getitem__(self, name: str) -> LoggedValue:
        return self.run[name]

    @property
    def is_pinned(self) -> bool:
        return bool(self.run["dispatch"] == "pinned")

    @property
    def replay(self) -> Mapping[str, float] | None:
        return self.run["replay"]

    @property
    def per_version(self) -> int:
        return int(self.run["tickets_per_batch"] * self.run["publish_every"])

    @property
    def batch_size(self) -> int:
        return 1 if self.replay is not None else int(self.run["tickets_per_batch"])

    @property
    def keeps_stale(self) -> bool:
        return bool(self.run["on_stale"] == "keep")

    @property
    def seats(self) -> int:
        return int(self.run["collectors"] * self.run["lanes"])

    def collector_of(self, seat: int) -> int:
        """Seats go round the collectors a session begins with; each later one has its lanes behind those."""
        collectors, lanes = int(self.run["collectors"]), int(self.run["lanes"])
        return seat % collectors if seat < collectors * lanes else seat // lanes

    def seats_of(self, number: int) -> list[int]:
        """The seats of a collector, lane by lane."""
        lanes = int(self.run["lanes"])
        most = (number + 1) * lanes + self.seats
        return [seat for seat in range(most) if self.collector_of(seat) == number]

    @property
    def per_call(self) -> float:
        """So many tickets a call may bring: one, in a log that does not say, and where auto meets no way to go."""
        told: int | str = self.run.get("tickets_per_call", 1)
        if told != "auto":
            return int(told)
        return 1 if self.run["runtime"] in ("inline", "threads", "virtual") else math.inf

    @property
    def window(self) -> float:
        order: str = self.run["order"]
        if order.startswith("window("):
            return int(order[7:-1])
        return 1 if order == "oldest" else math.inf

    @property
    def every(self) -> int:
        """The line is offered every n-th rollout."""
        return int(self.run.get("every", 1))

    def slots(self, lead: float) -> int:
        return math.floor((1 + lead) * self.per_version + 1e-9)

    def first_lead(self) -> float:
        """Of an auto lead: where it begins."""
        size = self.run["lead_buffer_size"] or self.per_version
        return float(min(max(1, size // self.per_version // 10), self.run["lead_limit"]))

    def oldest_allowed(self, largest_lead: float) -> float:
        """The age in versions that no rollout may be beyond when it is taken."""
        limits = [math.inf]
        if self.run["max_staleness"] is not None and not self.keeps_stale:
            limits.append(self.run["max_staleness"])
        if not math.isinf(self.window) and self.replay is None:
            # Before a ticket's turn come the other slots and those that may overtake it, a version's worth at a time.
            limits.append((self.slots(largest_lead) - 1 + self.window - 1) // self.per_version)
        return min(limits)
