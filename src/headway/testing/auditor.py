"""Checks a run by its event log alone.

    events (docs/events.md) --> Auditor --> violations, each with the name of the rule that was broken
                                   ^
    what the `run` event says, what `Terms` add, and at the end the counts that the run itself reports

The auditor knows the definitions and nothing else: it shares no code with the ledger, the rules, the orders or any
other part of Headway, so a mistake there is not repeated here. It follows every ticket through its life and counts
again what the run has counted. `RULES` names everything it checks.

    open --start--> flying --land--> ready --update, insert--> taken --settle--> learned
     ^                |                |  ^                      |
     +----reissue-----+                |  +--- a lost batch -----+
     +----requeue, lose----------------+                            drop: from anywhere but learned

A log with several sessions (a run that was resumed) is read as one: what was in flight at the checkpoint is open again.
Whoever writes a runtime records a run on it and calls `audit(events)`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
    "one ticket a seat": "a seat works on one ticket at a time",
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


class _Ticket:
    __slots__ = ("attempt", "born", "landed_s", "length", "phase", "pinned", "seat", "size", "span", "steps", "taken")

    def __init__(self, pinned: frozenset[int]) -> None:
        self.phase = "open"
        self.pinned = pinned  # versions it may take off with in a pinned run
        self.seat = -1
        self.born = -1
        self.attempt = 0
        self.span = (0, 0)
        self.steps = 0
        self.length = 0.0
        self.size = 0
        self.landed_s = 0.0
        self.taken: tuple[int, float] = (0, 0.0)  # its staleness and its age in seconds


@dataclass
class Tally:
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
    ages_s: list[float] = field(default_factory=list)
    offered: list[float] = field(default_factory=list)
    trained: list[float] = field(default_factory=list)
    landed_bytes: int = 0
    restarts: int = 0
    """Of the last session."""
    scores: list[tuple[int, float | None]] = field(default_factory=list)
    evaluations_skipped: int = 0


def audit(
    events: Sequence[Mapping[str, Any]],
    terms: Terms | Sequence[Terms] = Terms(),  # noqa: B008 - it is frozen
    *,
    result: Mapping[str, Any] | None = None,
) -> list[Violation]:
    """All that is wrong with the log of a run.

    `terms` may be one for each session. `result` holds the run's own counts under the names of `LedgerStatistics` and
    `RunResult`; whatever it has is compared.
    """
    auditor = Auditor(events, terms)
    for at, event in enumerate(events):
        auditor.read(at, event)
    auditor.close(result)
    return auditor.violations


class Auditor:
    """Follows one log, event by event."""

    def __init__(self, events: Sequence[Mapping[str, Any]], terms: Terms | Sequence[Terms]) -> None:
        self.violations: list[Violation] = []
        self.tally = Tally()
        self._events = events
        self._terms = [terms] if isinstance(terms, Terms) else list(terms)
        self._sessions = 0
        self._at = 0
        self._t = -math.inf
        self._session_began_s = 0.0
        self._run: Mapping[str, Any] = {}
        self._over = self._stop_reason = ""
        self._live: dict[int, _Ticket] = {}  # in the order of the indices
        self._arrived: dict[int, None] = {}  # ready, in the order of arrival
        self._seats: dict[int, int] = {}  # seat -> ticket
        self._settled: set[int] = set()
        self._trained: set[int] = set()
        self._newest = -1
        self._updates = 0
        self._updates_in_version = 0
        self._is_short = False  # the newest version was made by fewer updates than publish_every
        self._current: tuple[int, int, list[int]] | None = None  # the update that has begun
        self._unsettled: list[int] = []  # trained on or inserted, in the order of being taken
        self._published_since_learn = True
        self._lead = 0.0
        self._largest_lead = 0.0
        self._due: list[int] = []
        self._evaluating: int | None = None
        self._abandoned: set[int] = set()
        self._scored: set[int] = set()
        self._uneven_steps = False
        self._readers = {
            name.removeprefix("_on_"): getattr(self, name) for name in dir(self) if name.startswith("_on_")
        }

    # -- reading ------------------------------------------------------------------------------------

    def read(self, at: int, event: Mapping[str, Any]) -> None:
        """The next event."""
        self._at = at
        kind, t = event["e"], event["t"]
        if not at and kind != "run":
            self._wrong("log", f"a log begins with `run`, this one with `{kind}`")
        if t < self._t - EPSILON_S:
            self._wrong("log", f"{kind} at {t} s comes after {self._t} s")
        if self._over:
            self._wrong("log", f"{kind} comes after {self._over}")
        self._t = max(t, self._t)
        reader = self._readers.get(kind)
        if reader is not None:
            reader(event)

    def close(self, result: Mapping[str, Any] | None) -> None:
        """The log is over; `result` is what the run says about itself."""
        self._at = len(self._events)
        if result is not None:
            self._compare(result)

    def _wrong(self, rule: str, what: str) -> None:
        assert rule in RULES
        self.violations.append(Violation(rule, self._at, what))

    # -- what was set -------------------------------------------------------------------------------

    @property
    def _told(self) -> Terms:
        return self._terms[min(self._sessions, len(self._terms)) - 1]

    @property
    def _is_pinned(self) -> bool:
        return bool(self._run["dispatch"] == "pinned")

    @property
    def _replay(self) -> Mapping[str, float] | None:
        ratio: Mapping[str, float] | None = self._run["replay"]
        return ratio

    @property
    def _per_version(self) -> int:
        return int(self._run["tickets_per_batch"] * self._run["publish_every"])

    @property
    def _batch_size(self) -> int:
        return 1 if self._replay is not None else int(self._run["tickets_per_batch"])

    def _slots(self, lead: float) -> int:
        return math.floor((1 + lead) * self._per_version + 1e-9)

    @property
    def _window(self) -> float:
        order: str = self._run["order"]
        if order.startswith("window("):
            return int(order[7:-1])
        return 1 if order == "oldest" else math.inf

    def _oldest_allowed(self) -> float:
        """The age in versions that no rollout may be beyond when it is taken."""
        limits = [math.inf]
        if self._run["max_staleness"] is not None and self._run["on_stale"] != "keep":
            limits.append(self._run["max_staleness"])
        if not math.isinf(self._window) and self._replay is None:
            # Before a ticket's turn come the other slots and those that may overtake it, a version's worth at a time.
            limits.append((self._slots(self._largest_lead) - 1 + self._window - 1) // self._per_version)
        return min(limits)

    # -- sessions -----------------------------------------------------------------------------------

    def _on_run(self, event: Mapping[str, Any]) -> None:
        self._sessions += 1
        lead = event["max_lead"]
        if lead == "auto":
            size = event["lead_buffer_size"] or event["tickets_per_batch"] * event["publish_every"]
            start = size // (event["tickets_per_batch"] * event["publish_every"]) // 10
            was_auto = self._run.get("max_lead") == "auto"
            lead = self._lead if was_auto else min(max(1, start), event["lead_limit"])
            self._largest_lead = max(self._largest_lead, event["lead_limit"])
        self._lead = lead
        self._largest_lead = max(self._largest_lead, lead)
        self._run = event
        self._session_began_s = event["t"]
        self.tally.restarts = 0

    def _on_resume(self, event: Mapping[str, Any]) -> None:
        """What was in flight flies again; what waited is no older than it was."""
        for index in self._seats.values():
            self._reopen(self._live[index])
        self._seats.clear()
        for index in self._arrived:
            self._live[index].landed_s += event["t"] - self._session_began_s
        if self._current is not None:
            self._wrong("updates", f"the checkpoint was written in the middle of update {self._current[0]}")
        if self._evaluating is not None:
            self._due.insert(0, self._evaluating)
            self._evaluating = None
        if not self._run["evaluate_every"]:
            self._due.clear()
        if (event["v"], event["updates"]) != (self._newest, self._updates):
            self._wrong("versions", f"resumed at version {event['v']}, update {event['updates']}; {self._where()}")

    def _where(self) -> str:
        return f"the log is at version {self._newest}, update {self._updates}"

    def _on_restart(self, event: Mapping[str, Any]) -> None:
        self.tally.restarts += 1

    def _on_fail(self, event: Mapping[str, Any]) -> None:
        """What fails for good has no event of its own, so its seat may have been taken just before."""
        self._over = "fail"
        moot, now = ("one ticket a seat", "one version a collector"), event["t"]
        self.violations = [v for v in self.violations if v.rule not in moot or self._events[v.at]["t"] < now]

    def _on_end(self, event: Mapping[str, Any]) -> None:
        self._over = "end"
        if event["returned"] != len(self._live):
            self._wrong("counts", f"{event['returned']} tickets are returned, {len(self._live)} are live")
        if (event["v"], event["updates"]) != (self._newest, self._updates):
            self._wrong("counts", f"ended at version {event['v']}, update {event['updates']}; {self._where()}")

    # -- a ticket's life ----------------------------------------------------------------------------

    def _ticket(self, index: int, verb: str, *phases: str) -> _Ticket | None:
        ticket = self._live.get(index)
        if ticket is None:
            rule = "settles once" if index in self._settled and verb in ("drop", "settle") else "life"
            self._wrong(rule, f"{verb} of ticket {index}, which is not live")
        elif ticket.phase not in phases:
            self._wrong("life", f"{verb} of ticket {index}, which is {ticket.phase}")
        return ticket

    def _on_open(self, event: Mapping[str, Any]) -> None:
        index = event["k"]
        if index != self.tally.opened:
            self._wrong("life", f"ticket {index} opens, {self.tally.opened} is next")
        if len(self._live) >= self._slots(self._lead):
            self._wrong("slots", f"ticket {index} is number {len(self._live) + 1} of {self._slots(self._lead)} slots")
        if not self._fits_budget():
            self._wrong("budget", f"ticket {index} opens, and nothing can be learned from it any more")
        if not self._fits_room() and not self._fits_room(self._taken_at_once()):
            self._wrong("room", f"ticket {index} opens, and there is no room for it")
        if not self._fits_ratio():
            self._wrong("replay ratio", f"ticket {index} opens, and the learner is behind")
        self._live[index] = _Ticket(frozenset([self._newest]))
        self.tally.opened += 1

    def _fits_budget(self) -> bool:
        told, waiting = self._told, self._live
        if told.updates is not None and self._replay is None:
            return self.tally.learned + len(waiting) < told.updates * self._run["tickets_per_batch"]
        if told.steps is not None and not self._is_pinned:
            here = self.tally.steps + sum(ticket.steps for ticket in waiting.values() if ticket.phase == "ready")
            untaken = sum(ticket.phase != "taken" for ticket in waiting.values())
            return here < told.steps or untaken % self._batch_size > 0
        return True

    def _fits_room(self, taken: frozenset[int] = frozenset()) -> bool:
        """Would there be room for one more, if the learner has `taken` too?"""
        capacity, max_bytes = self._run["queue_capacity"], self._run["queue_bytes_limit"]
        if capacity is None and max_bytes is None:
            return True
        untaken = [t for index, t in self._live.items() if t.phase != "taken" and index not in taken]
        if capacity is not None and len(untaken) >= capacity:
            return False
        if max_bytes is None or len(untaken) < self._batch_size:
            return True
        if not self.tally.landed:
            return False
        mean = self.tally.landed_bytes / self.tally.landed
        waiting = [ticket.size for ticket in untaken if ticket.phase == "ready"]
        return sum(waiting) + (len(untaken) - len(waiting) + 1) * mean <= max_bytes + 1e-9 * max_bytes

    def _taken_at_once(self) -> frozenset[int]:
        """What the learner takes makes room at once; the event that says so comes a little later."""
        for event in self._events[self._at :]:
            kind = event["e"]
            if kind == "update" or (kind == "insert" and event["t"] - event["d"] <= self._t + EPSILON_S):
                return frozenset(event["k"])
            if kind == "lose" or (kind == "drop" and event["reason"] == "failed"):
                return frozenset(self._arrived)  # they had been taken, and were put back
            if self._replay is None and kind != "open":
                return frozenset()
        return frozenset(self._arrived)  # the log was cut off before it could be said

    def _fits_ratio(self) -> bool:
        ratio = self._replay
        if ratio is None or self._uneven_steps:
            return True
        untaken = sum(ticket.phase != "taken" for ticket in self._live.values())
        coming = self.tally.steps + untaken * ratio["steps_per_ticket"]
        if coming < ratio["min_size"]:
            return True
        error = ratio["samples_per_insert"] * (coming + ratio["steps_per_ticket"]) - self._sampled
        return bool(error <= ratio["samples_per_insert"] * ratio["min_size"] + ratio["slack"] + 1e-6 * (1 + abs(error)))

    @property
    def _sampled(self) -> float:
        return 0.0 if self._replay is None else self._updates * self._replay["samples_per_update"]

    def _on_start(self, event: Mapping[str, Any]) -> None:
        index, seat, version = event["k"], event["c"], event["v"]
        ticket = self._ticket(index, "start", "open")
        seats = self._run["collectors"] * self._run["lanes"]
        if self._evaluating is not None and not self._run["evaluate_in_background"]:
            self._wrong("pause", f"ticket {index} takes off during the evaluation of version {self._evaluating}")
        if seat in self._seats:
            self._wrong("one ticket a seat", f"ticket {index} takes off on seat {seat} beside {self._seats[seat]}")
        if not 0 <= seat < seats:
            self._wrong("one ticket a seat", f"ticket {index} takes off on seat {seat} of {seats}")
        if ticket is None:
            return
        if not self._is_pinned:
            if version != self._newest:
                self._wrong("newest snapshot", f"ticket {index} takes off with {version}, {self._newest} is newest")
        elif version not in ticket.pinned or seat != index % seats:
            allowed = " or ".join(map(str, sorted(ticket.pinned)))
            what = f"ticket {index} takes off with {version} on seat {seat}, not {allowed} on {index % seats}"
            self._wrong("pinned birth", what)
        ticket.phase, ticket.seat, ticket.born = "flying", seat, version
        self._seats[seat] = index
        if self._told.holds_weights and self._run["on_publish"] == "drain" and not self._told.may_lose_payloads:
            beside = [
                self._live[other].born
                for place, other in self._seats.items()
                if (place - seat) % self._run["collectors"] == 0 and other in self._live
            ]
            if len(set(beside)) > 1:
                self._wrong("one version a collector", f"ticket {index} flies beside versions {sorted(set(beside))}")

    def _reopen(self, ticket: _Ticket, *, version: int | None = None, or_stays: bool = False) -> None:
        ticket.phase, ticket.seat = "open", -1
        if version is not None:
            ticket.pinned = frozenset([version]) | (ticket.pinned if or_stays else frozenset())

    def _leave_seat(self, index: int, ticket: _Ticket) -> None:
        if self._seats.get(ticket.seat) == index:
            del self._seats[ticket.seat]

    def _on_land(self, event: Mapping[str, Any]) -> None:
        index, (oldest, newest) = event["k"], event["v"]
        ticket = self._ticket(index, "land", "flying")
        if ticket is None:
            return
        self._leave_seat(index, ticket)
        is_mixed = self._run["on_publish"] == "partial"
        if not ticket.born <= oldest <= newest <= self._newest or (not is_mixed and newest != ticket.born):
            self._wrong("span", f"ticket {index} of version {ticket.born} was made by {oldest} to {newest}")
        ticket.phase, ticket.span, ticket.landed_s = "ready", (oldest, newest), event["t"]
        ticket.steps, ticket.length, ticket.size = event["n"], event["l"], event["b"]
        self._arrived[index] = None
        self.tally.landed += 1
        self.tally.landed_bytes += event["b"]
        self.tally.offered.append(event["l"])
        if self._replay is not None and event["n"] != self._replay["steps_per_ticket"]:
            self._uneven_steps = True

    def _on_reissue(self, event: Mapping[str, Any]) -> None:
        index = event["k"]
        ticket = self._ticket(index, "reissue", "flying")
        self.tally.reissued += 1
        if ticket is None:
            return
        if not 0 <= event["a"] - ticket.attempt <= 1:
            self._wrong("attempts", f"ticket {index} flies again as attempt {event['a']} after {ticket.attempt}")
        ticket.attempt = event["a"]
        self._leave_seat(index, ticket)
        self._reopen(ticket, version=self._newest if self._told.may_lose_payloads else None, or_stays=True)

    def _on_requeue(self, event: Mapping[str, Any]) -> None:
        index, reason = event["k"], event["reason"]
        ticket = self._ticket(index, "requeue", "ready")
        self.tally.requeued += 1
        if ticket is None:
            return
        self._check_expiry(index, ticket, "requeue", reason)
        ticket.attempt = 0
        self._withdraw(index, ticket)

    def _on_lose(self, event: Mapping[str, Any]) -> None:
        index = event["k"]
        self._put_back_if_lost(index)
        ticket = self._ticket(index, "lose", "ready")
        self.tally.lost += 1
        if ticket is None:
            return
        ticket.attempt += 1
        self._withdraw(index, ticket)

    def _withdraw(self, index: int, ticket: _Ticket) -> None:
        """Its rollout is of no use; another will be offered for it."""
        self._arrived.pop(index, None)
        if ticket.length in self.tally.offered:
            self.tally.offered.remove(ticket.length)
        self._reopen(ticket, version=self._newest)

    def _check_expiry(self, index: int, ticket: _Ticket, verb: str, reason: str) -> None:
        staleness, age_s = self._newest - ticket.span[0], self._t - ticket.landed_s
        limit, max_age_s = self._run["max_staleness"], self._run["max_age_s"]
        is_stale = limit is not None and staleness > limit
        is_expired = max_age_s is not None and age_s > max_age_s - EPSILON_S
        if self._run["on_stale"] != verb or not (is_stale if reason == "stale" else is_expired and not is_stale):
            self._wrong("expiry", f"{verb} of ticket {index} as {reason}: {staleness} versions, {age_s:g} s old")

    def _on_drop(self, event: Mapping[str, Any]) -> None:
        index, reason = event["k"], event["reason"]
        self._put_back_if_lost(index)
        phases = ("flying", "ready") if reason == "failed" else ("ready",)
        ticket = self._ticket(index, "drop", *phases)
        if ticket is None:
            return
        if reason in ("stale", "expired"):
            self._check_expiry(index, ticket, "drop", reason)
        self._leave_seat(index, ticket)
        self._arrived.pop(index, None)
        del self._live[index]
        self._settled.add(index)
        self.tally.dropped[reason] += 1

    # -- learning -----------------------------------------------------------------------------------

    def _take(self, indices: Sequence[int], version: int, at_s: float) -> None:
        """Their age is measured here."""
        tally, keeps = self.tally, self._run["on_stale"] == "keep"
        max_staleness, max_age_s = self._run["max_staleness"], self._run["max_age_s"]
        for index in indices:
            ticket = self._ticket(index, "take", "ready")
            if index in self._trained:
                self._wrong("trained once", f"ticket {index} is trained on again")
            if ticket is None:
                continue
            staleness, age_s = version - ticket.span[0], at_s - ticket.landed_s
            if staleness > self._oldest_allowed():
                self._wrong("staleness", f"ticket {index} is {staleness} versions old, not {self._oldest_allowed():g}")
            if max_age_s is not None and not keeps and age_s > max_age_s + EPSILON_S:
                self._wrong("age", f"ticket {index} has waited for {age_s:g} s, max_age_s is {max_age_s:g}")
            tally.kept_stale += max_staleness is not None and keeps and staleness > max_staleness
            if max_age_s is not None and keeps:
                tally.kept_expired += age_s > max_age_s + EPSILON_S
                tally.on_the_line += abs(age_s - max_age_s) <= EPSILON_S
            ticket.phase, ticket.taken = "taken", (staleness, age_s)
            self._arrived.pop(index, None)
            tally.staleness[staleness] += 1
            tally.steps += ticket.steps
            tally.ages_s.append(age_s)
            tally.trained.append(ticket.length)

    def _put_back_if_lost(self, index: int) -> None:
        """A rollout of the update that has begun is lost: nobody was given any of it."""
        if self._current is None or index not in self._current[2]:
            return
        tally, batch = self.tally, self._current[2]
        keeps, limit, max_age_s = self._run["on_stale"] == "keep", self._run["max_staleness"], self._run["max_age_s"]
        for one in batch:
            ticket = self._live.get(one)
            if ticket is None or ticket.phase != "taken":
                continue
            staleness, age_s = ticket.taken
            ticket.phase = "ready"
            tally.kept_stale -= limit is not None and keeps and staleness > limit
            if max_age_s is not None and keeps:
                tally.kept_expired -= age_s > max_age_s + EPSILON_S
                tally.on_the_line -= abs(age_s - max_age_s) <= EPSILON_S
            tally.staleness[staleness] -= 1
            tally.steps -= ticket.steps
            tally.ages_s.remove(age_s)
            tally.trained.remove(ticket.length)
        self._arrived = dict.fromkeys([*sorted(batch), *self._arrived])
        self._current = None

    def _on_update(self, event: Mapping[str, Any]) -> None:
        batch, version = list(event["k"]), event["v"]
        if self._current is not None:
            self._wrong("updates", f"update {event['u']} begins while {self._current[0]} has not ended")
        if event["u"] != self._updates + 1:
            self._wrong("updates", f"update {event['u']} begins after {self._updates}")
        if self._evaluating is not None and not self._run["evaluate_in_background"]:
            self._wrong("pause", f"update {event['u']} begins during the evaluation of version {self._evaluating}")
        if self._is_short:
            self._wrong("versions", f"version {self._newest} was published before it was complete")
        wanted = 0 if self._replay is not None else self._run["tickets_per_batch"]
        if len(batch) != wanted or batch != sorted(set(batch)) or version != self._newest:
            self._wrong("batch", f"update {event['u']} trains on {batch} at version {version}")
        late = [i for i in self._unsettled if i in self._live] if self._published_since_learn else []
        if self._replay is None:
            if late:
                self._wrong("settles when published", f"tickets {late} are published and not settled")
            self._check_order(batch)
        elif not self._may_learn():
            self._wrong("replay ratio", f"update {event['u']} begins, and too little was inserted for it")
        self._take(batch, version, event["t"])
        self._current = event["u"], version, batch
        has_slot = self._replay is None and len(self._live) < self._slots(self._lead)
        knows_end = self._told.updates is not None or self._told.steps is not None
        if has_slot and knows_end and self._fits_budget() and self._fits_room():
            self._wrong("free slot", f"update {event['u']} begins, and another ticket might be open")

    def _check_order(self, batch: list[int]) -> None:
        untaken = [(index, ticket) for index, ticket in self._live.items() if ticket.phase != "taken"]
        missing = next((index for index, ticket in untaken if ticket.phase != "ready"), math.inf)
        for index in batch:
            if index >= missing + self._window:
                self._wrong("order", f"ticket {index} overtakes {missing} by more than {self._run['order']} allows")
        if self._run["on_stale"] == "wait" and self._run["max_staleness"] is not None and self._window > 1:
            return  # those that would become too old go first
        if math.isinf(self._window):
            expected = list(self._arrived)[: len(batch)]
        else:
            expected = [index for index, ticket in untaken if ticket.phase == "ready"][: len(batch)]
        if sorted(expected) != sorted(batch):
            self._wrong("order", f"tickets {batch} are taken, {sorted(expected)} come first")

    def _may_learn(self) -> bool:
        ratio = self._replay
        assert ratio is not None
        if self.tally.steps < ratio["min_size"]:
            return False
        error = ratio["samples_per_insert"] * self.tally.steps - self._sampled - ratio["samples_per_update"]
        return bool(error >= ratio["samples_per_insert"] * ratio["min_size"] - ratio["slack"] - 1e-6)

    def _on_learn(self, event: Mapping[str, Any]) -> None:
        if self._current != (event["u"], event["v"], list(event["k"])):
            self._wrong("updates", f"update {event['u']} ends, {self._current} has begun")
        if event["v"] != self._newest:
            self._wrong("batch", f"update {event['u']} ends at version {event['v']}, {self._newest} is newest")
        self._current = None
        self._updates += 1
        self._updates_in_version += 1
        self._trained.update(event["k"])
        self._unsettled += event["k"]
        self._published_since_learn = False
        if self._updates_in_version > self._run["publish_every"]:
            self._wrong("versions", f"{self._updates_in_version} updates since version {self._newest}")

    def _on_insert(self, event: Mapping[str, Any]) -> None:
        indices = list(event["k"])
        if self._is_pinned:
            first = next((index for index, ticket in self._live.items() if ticket.phase != "taken"), None)
            if indices != [first]:
                self._wrong("order", f"tickets {indices} are inserted, {first} is next")
        if not indices or indices != sorted(set(indices)) or event["v"] != self._newest:
            self._wrong("batch", f"tickets {indices} are inserted at version {event['v']}")
        self._take(indices, event["v"], event["t"] - event["d"])
        self._trained.update(indices)
        self._unsettled += indices

    def _on_publish(self, event: Mapping[str, Any]) -> None:
        version, every = event["v"], self._run["publish_every"]
        if version != self._newest + 1:
            self._wrong("versions", f"version {version} is published after {self._newest}")
        if version and not 0 < self._updates_in_version <= every:
            self._wrong("versions", f"version {version} was made by {self._updates_in_version} updates, not {every}")
        self._is_short = version > 0 and self._updates_in_version < every
        self._newest = version
        self._updates_in_version = 0
        self._published_since_learn = True
        if self._run["evaluate_every"] and version and version % self._run["evaluate_every"] == 0:
            self._due.append(version)

    def _on_restage(self, event: Mapping[str, Any]) -> None:
        if event["v"] != self._newest:
            self._wrong("versions", f"version {event['v']} is staged again, {self._newest} is newest")

    def _on_lead(self, event: Mapping[str, Any]) -> None:
        self._lead = event["lead"]
        if self._run["max_lead"] != "auto" or not 1 <= event["lead"] <= self._run["lead_limit"]:
            self._wrong("slots", f"the lead moves to {event['lead']}, and it is {self._run['max_lead']}")

    def _on_settle(self, event: Mapping[str, Any]) -> None:
        indices = list(event["k"])
        if self._replay is None:
            if not self._published_since_learn:
                self._wrong("settles when published", f"tickets {indices} settle before they are published")
        elif self._may_learn():
            self._wrong("replay ratio", f"tickets {indices} settle before their credit is spent")
        if sorted(indices) != sorted(self._unsettled):
            self._wrong("settles when published", f"tickets {indices} settle, {self._unsettled} are trained on")
        for index in indices:
            if self._ticket(index, "settle", "taken") is not None:
                del self._live[index]
                self._settled.add(index)
                self.tally.learned += 1
        self._unsettled = [index for index in self._unsettled if index in self._live]

    # -- evaluating ---------------------------------------------------------------------------------

    def _on_evaluate(self, event: Mapping[str, Any]) -> None:
        version = event["v"]
        if self._evaluating is not None:
            self._wrong("evaluations", f"version {version} is evaluated beside {self._evaluating}")
        if version in self._due:
            self._due.remove(version)
        elif (
            version in self._scored
            or version != self._newest
            or not (version or self._told.evaluate_first in (None, True))
        ):
            self._wrong("evaluations", f"version {version} is evaluated, {self._due} are due")
        self._evaluating = version

    def _on_score(self, event: Mapping[str, Any]) -> None:
        version = event["v"]
        if version != self._evaluating:
            self._wrong("evaluations", f"version {version} has a score, {self._evaluating} is evaluated")
        self._evaluating = None
        self._scored.add(version)
        self.tally.scores.append((version, event["value"]))

    def _on_skip_evaluation(self, event: Mapping[str, Any]) -> None:
        version = event["v"]
        later = [due for due in self._due if due > version]
        if version in self._due and (later or version < self._newest) and self._run["evaluate_in_background"]:
            self._due.remove(version)
        else:
            self._wrong("evaluations", f"version {version} is skipped, {self._due} are due")
        self.tally.evaluations_skipped += 1

    def _on_abandon_evaluation(self, event: Mapping[str, Any]) -> None:
        """An interruption came before its score. It is said at the end, behind the last checkpoint."""
        version = event["v"]
        if version == self._evaluating:
            self._evaluating = None
        elif version in self._due:
            self._due.remove(version)
        elif version != self._newest or version in self._scored:
            self._wrong("evaluations", f"version {version} is abandoned, {self._due} are due")
        self._abandoned.add(version)

    # -- the end ------------------------------------------------------------------------------------

    def _on_stop(self, event: Mapping[str, Any]) -> None:
        self._stop_reason = event["reason"]

    @property
    def _is_complete(self) -> bool:
        return self._over == "end" and not self._stop_reason.startswith("interrupted")

    def _compare(self, result: Mapping[str, Any]) -> None:
        """With what the run says about itself."""
        tally, told = self.tally, self._told
        if self._over != "end":
            self._wrong("log", "there is a result, and the log has no `end`")
        if self._is_complete:
            if self._run["evaluate_every"]:
                if self._due or self._evaluating is not None:
                    self._wrong("evaluations", f"versions {self._due} are due at the end")
                if self._newest not in self._scored | self._abandoned:
                    self._wrong("last evaluation", f"version {self._newest} has no score")
            if told.updates is not None and self._updates >= told.updates and self._replay is None and self._live:
                self._wrong("nothing left behind", f"tickets {list(self._live)} are live at the end")
        on_the_line = min(max(0, result.get("kept_expired", 0) - tally.kept_expired), tally.on_the_line)
        recount: dict[str, Any] = {
            "opened": tally.opened,
            "landed": tally.landed,
            "learned": tally.learned,
            "dropped": {reason: n for reason, n in tally.dropped.items() if n},
            "returned": len(self._live),
            "live": 0,
            "reissued": tally.reissued,
            "requeued": tally.requeued,
            "lost": tally.lost,
            "kept_stale": tally.kept_stale,
            "kept_expired": tally.kept_expired + on_the_line,
            "staleness": {age: n for age, n in tally.staleness.items() if n},
            "mean_age_s": _mean(tally.ages_s),
            "max_age_s": max(tally.ages_s, default=0.0),
            "offered_length": _mean(tally.offered),
            "trained_length": _mean(tally.trained),
            "steps": tally.steps,
            "version": self._newest,
            "updates": self._updates,
            "stop_reason": self._stop_reason,
            "restarts": tally.restarts,
            "scores": tally.scores,
            "evaluations_skipped": tally.evaluations_skipped,
            "lead": self._lead,
        }
        for name, counted in recount.items():
            if name in result and not _agree(result[name], counted):
                self._wrong("counts", f"{name} is {result[name]!r}, the log adds up to {counted!r}")


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _agree(one: Any, other: Any) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=EPSILON_S)
    if isinstance(one, Mapping):
        return dict(one) == other
    return bool(one == other)
