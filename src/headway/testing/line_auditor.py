"""Checks one line of a run by its events: its tickets, its updates, its versions, its lead.

open --start--> flying --land--> ready --update, insert--> taken --settle--> learned
 ^                |                |  ^                      |
 +----reissue-----+                |  +--- a lost batch -----+
 +----requeue, lose----------------+                            drop: from anywhere but learned
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from headway.core import events as ev
from headway.testing.audit_admission import Admission, AuditedTicket, out_of_order
from headway.testing.audit_terms import EPSILON_S, Findings, LineTerms, Logged, Recount, agree
from headway.testing.audit_versions import AuditedVersions


class LineAuditor:
    """Follows one line, event by event."""

    def __init__(self, name: str, findings: Findings, terms: LineTerms) -> None:
        self.name = name
        self.terms = terms
        self.recount = Recount()
        self.live: dict[int, AuditedTicket] = {}  # in the order of the indices
        self.opened_last = -1
        self.at = AuditedVersions(self._wrong)
        self.lead = self._largest_lead = 0.0
        self._find = findings
        self._arrived: dict[int, None] = {}  # ready, in the order of arrival
        self._settled: set[int] = set()
        self._trained: set[int] = set()
        self._current: tuple[int, int, list[int]] | None = None  # the update that has begun
        self._unsettled: list[int] = []  # trained on or inserted, in the order of being taken
        self._admission = Admission(terms, self.recount, self.live)

    def begin_session(self, terms: LineTerms) -> None:
        lead = terms["max_lead"]
        if lead == "auto":
            was_auto = self.terms.run.get("max_lead") == "auto" and self.lead
            lead = self.lead if was_auto else terms.first_lead()
            self._largest_lead = max(self._largest_lead, terms["lead_limit"])
        self.lead = lead
        self._largest_lead = max(self._largest_lead, lead)
        self.terms = self._admission.terms = terms

    def resume(self, version: int, updates: int, waited_s: float) -> None:
        """What was in flight flies again; what waited is no older than it was."""
        for ticket in self.live.values():
            if ticket.phase == "flying":
                ticket.reopen()
        for index in self._arrived:
            self.live[index].landed_s += waited_s
        if self._current is not None:
            self._wrong("updates", f"the checkpoint was written in the middle of update {self._current[0]}")
        self.at.require(version, updates, "versions", "resumed")

    def end(self, version: int, updates: int, returned: int) -> None:
        if returned != len(self.live):
            self._wrong("counts", f"{returned} tickets are returned, {len(self.live)} are live")
        self.at.require(version, updates, "counts", "ended")

    def _wrong(self, rule: str, what: str) -> None:
        self._find.wrong(rule, f"{what}, in line {self.name}" if self.name else what)

    # -- a ticket's life ----------------------------------------------------------------------------

    def _ticket(self, index: int, verb: str, *phases: str) -> AuditedTicket | None:
        ticket = self.live.get(index)
        if ticket is None:
            rule = "settles once" if index in self._settled and verb in ("drop", "settle") else "life"
            self._wrong(rule, f"{verb} of ticket {index}, which is not live")
        elif ticket.phase not in phases:
            self._wrong("life", f"{verb} of ticket {index}, which is {ticket.phase}")
        return ticket

    def open(self, event: ev.Opened) -> None:
        index, slots = event.ticket, self.terms.slots(self.lead)
        known = (
            self.live.keys() | self._settled if self.name else ()
        )  # another line may leave out what it has no use for
        if index in known or (not self.name and index != self.recount.opened):
            self._wrong("life", f"ticket {index} opens, {self.recount.opened} is next")
        if len(self.live) >= slots:
            self._wrong("slots", f"ticket {index} is number {len(self.live) + 1} of {slots} slots")
        if not self._admission.fits_budget():
            self._wrong("budget", f"ticket {index} opens, and nothing can be learned from it any more")
        if not self._admission.fits_room() and not self._admission.fits_room(self._taken_at_once()):
            self._wrong("room", f"ticket {index} opens, and there is no room for it")
        if not self._admission.fits_ratio():
            self._wrong("replay ratio", f"ticket {index} opens, and the learner is behind")
        self.opened_last = index
        self.live[index] = AuditedTicket(frozenset([self.at.newest]))
        self.recount.opened += 1

    def might_open(self) -> bool:
        """Is there a slot and room for one more, which would still be learned from?"""
        return self._admission.might_open(self.lead)

    def _taken_at_once(self) -> Collection[int]:
        """What the learner takes makes room at once; the event that says so comes a little later."""
        for event in self._find.coming():
            if isinstance(event, ev.UpdateBegan) and event.line == self.name:
                return frozenset(event.tickets)
            if (
                isinstance(event, ev.Inserted)
                and event.line == self.name
                and event.time_s - event.seconds <= self._find.now_s + EPSILON_S
            ):
                return frozenset(event.tickets)
            if isinstance(event, ev.Lost) or (isinstance(event, ev.Dropped) and event.reason == "failed"):
                return frozenset(self._arrived)  # they had been taken, and were put back
            if self.terms.replay is None and not isinstance(event, ev.Opened):
                return frozenset()
        return frozenset(self._arrived)  # the log was cut off before it could be said

    def start(self, event: ev.Started, seats: Mapping[int, Sequence[int]], own: int) -> None:
        """`seats` holds the tickets of each seat, this one's too; in a pinned run its `own` seat is this one."""
        index, seat, newest = event.ticket, event.seat, self.at.newest
        version = self._version_in(event)
        ticket = self._ticket(index, "start", "open")
        if ticket is None:
            return
        if not self.terms.is_pinned:
            if version != newest:
                self._wrong("newest snapshot", f"ticket {index} takes off with {version}, {newest} is newest")
        elif version not in ticket.pinned or seat != own:
            allowed = " or ".join(map(str, sorted(ticket.pinned)))
            self._wrong(
                "pinned birth", f"ticket {index} takes off with {version} on seat {seat}, not {allowed} on {own}"
            )
        ticket.phase, ticket.born = "flying", version
        told = self.terms.told
        if told.holds_weights and self.terms["on_publish"] == "drain" and not told.may_lose_payloads:
            beside = {
                self.live[other].born
                for place, others in seats.items()
                for other in others
                if self.terms.collector_of(place) == self.terms.collector_of(seat) and other in self.live
            }
            if len(beside) > 1:
                self._wrong("one version a collector", f"ticket {index} flies beside versions {sorted(beside)}")

    def _version_in(self, event: ev.Started) -> int:
        return (event.others or {}).get(self.name, self.at.newest) if self.name else event.version

    def flies(self, index: int) -> bool:
        return index in self.live and self.live[index].phase == "flying"

    def join_flight(self, event: ev.Started) -> None:
        """What this line has lost flies for another one already."""
        ticket = self._ticket(event.ticket, "join the flight", "open")
        if ticket is not None:
            ticket.phase, ticket.born = "flying", self._version_in(event)
            ticket.pinned = frozenset([ticket.born])

    def land(self, event: ev.Landed) -> None:
        index, newest_here = event.ticket, self.at.newest
        oldest, newest = (event.others or {}).get(self.name, event.span) if self.name else event.span
        ticket = self._ticket(index, "land", "flying")
        if ticket is None:
            return
        is_mixed = self.terms["on_publish"] == "partial"
        if not ticket.born <= oldest <= newest <= newest_here or (not is_mixed and newest != ticket.born):
            self._wrong("span", f"ticket {index} of version {ticket.born} was made by {oldest} to {newest}")
        ticket.phase, ticket.span, ticket.landed_s = "ready", (oldest, newest), event.time_s
        ticket.steps, ticket.length, ticket.size = event.steps, event.length, event.size
        self._arrived[index] = None
        self.recount.landed += 1
        self.recount.landed_bytes += event.size
        self.recount.offered.append(event.length)
        if self.terms.replay is not None and event.steps != self.terms.replay["steps_per_ticket"]:
            self._admission.uneven_steps = True

    def reissue(self, event: ev.Reissued) -> None:
        ticket = self._ticket(event.ticket, "reissue", "flying")
        self.recount.reissued += 1
        if ticket is None:
            return
        if not 0 <= event.attempt - ticket.attempt <= 1:
            what = f"ticket {event.ticket} flies again as attempt {event.attempt} after {ticket.attempt}"
            self._wrong("attempts", what)
        ticket.attempt = event.attempt
        ticket.reopen(version=self.at.newest if self.terms.told.may_lose_payloads else None, or_stays=True)

    def requeue(self, event: ev.Requeued) -> None:
        ticket = self._ticket(event.ticket, "requeue", "ready")
        self.recount.requeued += 1
        if ticket is None:
            return
        self._check_expiry(event.ticket, ticket, "requeue", event.reason)
        ticket.attempt = 0
        self._withdraw(event.ticket, ticket)

    def lose(self, event: ev.Lost) -> None:
        self._put_back_if_lost(event.ticket)
        ticket = self._ticket(event.ticket, "lose", "ready")
        self.recount.lost += 1
        if ticket is None:
            return
        ticket.attempt += 1
        self._withdraw(event.ticket, ticket)

    def _withdraw(self, index: int, ticket: AuditedTicket) -> None:
        """Its rollout is of no use; another will be offered for it."""
        self._arrived.pop(index, None)
        if ticket.length in self.recount.offered:
            self.recount.offered.remove(ticket.length)
        ticket.reopen(version=self.at.newest)

    def _check_expiry(self, index: int, ticket: AuditedTicket, verb: str, reason: str) -> None:
        staleness, age_s = self.at.newest - ticket.span[0], self._find.now_s - ticket.landed_s
        limit, max_age_s = self.terms["max_staleness"], self.terms["max_age_s"]
        is_stale = limit is not None and staleness > limit
        is_expired = max_age_s is not None and age_s > max_age_s - EPSILON_S
        if self.terms["on_stale"] != verb or not (is_stale if reason == "stale" else is_expired and not is_stale):
            self._wrong("expiry", f"{verb} of ticket {index} as {reason}: {staleness} versions, {age_s:g} s old")

    def drop(self, event: ev.Dropped) -> None:
        index, reason = event.ticket, event.reason
        self._put_back_if_lost(index)
        phases = ("flying", "ready") if reason == "failed" else ("ready",)
        ticket = self._ticket(index, "drop", *phases)
        if ticket is None:
            return
        if reason in ("stale", "expired"):
            self._check_expiry(index, ticket, "drop", reason)
        self._arrived.pop(index, None)
        del self.live[index]
        self._settled.add(index)
        self.recount.dropped[reason] += 1

    # -- learning -----------------------------------------------------------------------------------

    def _take(self, indices: Sequence[int], version: int, at_s: float) -> None:
        """Their age is measured here."""
        recount, keeps, max_age_s = self.recount, self.terms.keeps_stale, self.terms["max_age_s"]
        allowed = self.terms.oldest_allowed(self._largest_lead)
        for index in indices:
            ticket = self._ticket(index, "take", "ready")
            if index in self._trained:
                self._wrong("trained once", f"ticket {index} is trained on again")
            if ticket is None:
                continue
            staleness, age_s = version - ticket.span[0], at_s - ticket.landed_s
            if staleness > allowed:
                self._wrong("staleness", f"ticket {index} is {staleness} versions old, not {allowed:g}")
            if max_age_s is not None and not keeps and age_s > max_age_s + EPSILON_S:
                self._wrong("age", f"ticket {index} has waited for {age_s:g} s, max_age_s is {max_age_s:g}")
            ticket.phase, ticket.taken = "taken", (staleness, age_s)
            self._arrived.pop(index, None)
            self._count_kept(staleness, age_s, 1)
            recount.staleness[staleness] += 1
            recount.steps += ticket.steps
            recount.ages_s.append(age_s)
            recount.trained.append(ticket.length)

    def _count_kept(self, staleness: int, age_s: float, times: int) -> None:
        """Count a rollout that is kept although it is too old; or take the count back."""
        if not self.terms.keeps_stale:
            return
        limit, max_age_s = self.terms["max_staleness"], self.terms["max_age_s"]
        self.recount.kept_stale += times * (limit is not None and staleness > limit)
        if max_age_s is not None:
            self.recount.kept_expired += times * (age_s > max_age_s + EPSILON_S)
            self.recount.on_the_line += times * (abs(age_s - max_age_s) <= EPSILON_S)

    def _put_back_if_lost(self, index: int) -> None:
        """A rollout of the update that has begun is lost: nobody was given any of it."""
        if self._current is None or index not in self._current[2]:
            return
        recount, batch = self.recount, self._current[2]
        for one in batch:
            ticket = self.live.get(one)
            if ticket is None or ticket.phase != "taken":
                continue
            staleness, age_s = ticket.taken
            ticket.phase = "ready"
            self._count_kept(staleness, age_s, -1)
            recount.staleness[staleness] -= 1
            recount.steps -= ticket.steps
            recount.ages_s.remove(age_s)
            recount.trained.remove(ticket.length)
        self._arrived = dict.fromkeys([*sorted(batch), *self._arrived])
        self._current = None

    def begin_update(self, event: ev.UpdateBegan) -> None:
        batch, version, at, number = list(event.tickets), event.version, self.at, event.update
        if self._current is not None:
            self._wrong("updates", f"update {number} begins while {self._current[0]} has not ended")
        if number != at.updates + 1:
            self._wrong("updates", f"update {number} begins after {at.updates}")
        if at.is_short:
            self._wrong("versions", f"version {at.newest} was published before it was complete")
        wanted = 0 if self.terms.replay is not None else self.terms["tickets_per_batch"]
        if len(batch) != wanted or batch != sorted(set(batch)) or version != at.newest:
            self._wrong("batch", f"update {number} trains on {batch} at version {version}")
        late = [i for i in self._unsettled if i in self.live] if at.is_published else []
        if self.terms.replay is None:
            if late:
                self._wrong("settles when published", f"tickets {late} are published and not settled")
            for line in out_of_order(batch, self.live, list(self._arrived), self.terms):
                self._wrong("order", line)
        elif self._admission.may_learn() is False:
            self._wrong("replay ratio", f"update {number} begins, and too little was inserted for it")
        self._take(batch, version, event.time_s)
        self._current = number, version, batch

    def end_update(self, event: ev.Updated) -> None:
        at, number = self.at, event.update
        if self._current != (number, event.version, list(event.tickets)):
            self._wrong("updates", f"update {number} ends, {self._current} has begun")
        if event.version != at.newest:
            self._wrong("batch", f"update {number} ends at version {event.version}, {at.newest} is newest")
        self._current = None
        self._trained.update(event.tickets)
        self._unsettled += event.tickets
        self.recount.sampled += math.nan if event.samples is None else event.samples
        at.count_update(self.terms["publish_every"])

    def insert(self, event: ev.Inserted) -> None:
        indices = list(event.tickets)
        if self.terms.is_pinned:
            first = next((index for index, ticket in self.live.items() if ticket.phase != "taken"), None)
            if indices != [first]:
                self._wrong("order", f"tickets {indices} are inserted, {first} is next")
        if not indices or indices != sorted(set(indices)) or event.version != self.at.newest:
            self._wrong("batch", f"tickets {indices} are inserted at version {event.version}")
        self._take(indices, event.version, event.time_s - event.seconds)
        self._trained.update(indices)
        self._unsettled += indices

    def publish(self, event: ev.Published) -> None:
        self.at.publish(event.version, self.terms["publish_every"])

    def restage(self, event: ev.Restaged) -> None:
        if event.version != self.at.newest:
            self._wrong("versions", f"version {event.version} is staged again, {self.at.newest} is newest")

    def move_lead(self, event: ev.LeadMoved) -> None:
        self.lead = event.lead
        if self.terms["max_lead"] != "auto" or not 1 <= event.lead <= self.terms["lead_limit"]:
            self._wrong("slots", f"the lead moves to {event.lead}, and it is {self.terms['max_lead']}")

    def settle(self, event: ev.Settled) -> None:
        indices = list(event.tickets)
        if self.terms.replay is None:
            if not self.at.is_published:
                self._wrong("settles when published", f"tickets {indices} settle before they are published")
        elif self._admission.may_learn():
            self._wrong("replay ratio", f"tickets {indices} settle before their credit is spent")
        if sorted(indices) != sorted(self._unsettled):
            self._wrong("settles when published", f"tickets {indices} settle, {self._unsettled} are trained on")
        for index in indices:
            if self._ticket(index, "settle", "taken") is not None:
                del self.live[index]
                self._settled.add(index)
                self.recount.learned += 1
        self._unsettled = [index for index in self._unsettled if index in self.live]

    # -- the end ------------------------------------------------------------------------------------

    def check_nothing_left(self) -> None:
        told = self.terms.told
        is_done = told.updates is not None and self.at.updates >= told.updates
        if is_done and self.terms.replay is None and self.live:
            self._wrong("nothing left behind", f"tickets {list(self.live)} are live at the end")

    def compare(self, result: Logged, of_run: Logged) -> None:
        """Compare what the run says about itself with what the log adds up to."""
        here = {"returned": len(self.live), "version": self.at.newest, "updates": self.at.updates, "lead": self.lead}
        for name, counted in {**self.recount.values(result.get("kept_expired", 0)), **here, **of_run}.items():
            if name in result and not agree(result[name], counted):
                self._wrong("counts", f"{name} is {result[name]!r}, the log adds up to {counted!r}")
