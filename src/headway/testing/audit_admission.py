"""May one more ticket open, may the learner go on, what does it take: the rules, defined for the audit alone."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from headway.testing.audit_terms import LineTerms, Recount


class AuditedTicket:
    """A live ticket, as the events have it."""

    __slots__ = ("attempt", "born", "landed_s", "length", "phase", "pinned", "size", "span", "steps", "taken")

    def __init__(self, pinned: frozenset[int]) -> None:
        self.phase = "open"
        self.pinned = pinned  # versions it may take off with in a pinned run
        self.born = -1
        self.attempt = 0
        self.span = (0, 0)
        self.steps = 0
        self.length = 0.0
        self.size = 0
        self.landed_s = 0.0
        self.taken: tuple[int, float] = (0, 0.0)  # its staleness and its age in seconds

    def reopen(self, *, version: int | None = None, or_stays: bool = False) -> None:
        self.phase = "open"
        if version is not None:
            self.pinned = frozenset([version]) | (self.pinned if or_stays else frozenset())


class Admission:
    """Looks at the live tickets of a line and says what the rules allow."""

    def __init__(self, terms: LineTerms, recount: Recount, live: Mapping[int, AuditedTicket]) -> None:
        self.terms = terms
        self.uneven_steps = False
        """Rollouts differ in steps, so that what is in flight cannot be counted in steps."""
        self._recount = recount
        self._live = live

    def might_open(self, lead: float) -> bool:
        """Is there a slot and room for one more, which would still be learned from?"""
        told = self.terms.told
        knows_end = told.updates is not None or told.steps is not None
        has_slot = self.terms.replay is None and len(self._live) < self.terms.slots(lead)
        return has_slot and knows_end and self.fits_budget() and self.fits_room()

    def fits_budget(self) -> bool:
        told, waiting = self.terms.told, self._live
        if told.updates is not None and self.terms.replay is None:
            return bool(self._recount.learned + len(waiting) < told.updates * self.terms["tickets_per_batch"])
        if told.steps is not None and not self.terms.is_pinned:
            here = self._recount.steps + sum(ticket.steps for ticket in waiting.values() if ticket.phase == "ready")
            untaken = sum(ticket.phase != "taken" for ticket in waiting.values())
            return here < told.steps or untaken % self.terms.batch_size > 0
        return True

    def fits_room(self, taken: Collection[int] = frozenset()) -> bool:
        """Would there be room for one more, if the learner has `taken` too?"""
        capacity, max_bytes = self.terms["queue_capacity"], self.terms["queue_bytes_limit"]
        if capacity is None and max_bytes is None:
            return True
        untaken = [t for index, t in self._live.items() if t.phase != "taken" and index not in taken]
        if capacity is not None and len(untaken) >= capacity:
            return False
        if max_bytes is None or len(untaken) < self.terms.batch_size:
            return True
        if not self._recount.landed:
            return False
        mean = self._recount.landed_bytes / self._recount.landed
        waiting = [ticket.size for ticket in untaken if ticket.phase == "ready"]
        return bool(sum(waiting) + (len(untaken) - len(waiting) + 1) * mean <= max_bytes + 1e-9 * max_bytes)

    def fits_ratio(self) -> bool:
        ratio = self.terms.replay
        if ratio is None or self.uneven_steps:
            return True
        untaken = sum(ticket.phase != "taken" for ticket in self._live.values())
        coming = self._recount.steps + untaken * ratio["steps_per_ticket"]
        if coming < ratio["min_size"]:
            return True
        error = ratio["samples_per_insert"] * (coming + ratio["steps_per_ticket"]) - self._recount.sampled
        most = ratio["samples_per_insert"] * ratio["min_size"] + ratio["slack"] + 1e-6 * (1 + abs(error))
        return not error > most

    def may_learn(self) -> bool | None:
        """None: the log does not say how much its updates have drawn."""
        ratio = self.terms.replay
        assert ratio is not None
        if self._recount.steps < ratio["min_size"]:
            return False
        sampled = self._recount.sampled + ratio["samples_per_update"]
        if math.isnan(sampled):
            return None
        error = ratio["samples_per_insert"] * self._recount.steps - sampled
        return bool(error >= ratio["samples_per_insert"] * ratio["min_size"] - ratio["slack"] - 1e-6)


def out_of_order(
    batch: Sequence[int], live: Mapping[int, AuditedTicket], arrived: Sequence[int], terms: LineTerms
) -> Iterator[str]:
    """Says what is wrong with taking these tickets, of those that are live, in the order in which they `arrived`."""
    untaken = [(index, ticket) for index, ticket in live.items() if ticket.phase != "taken"]
    missing = next((index for index, ticket in untaken if ticket.phase != "ready"), math.inf)
    window = terms.window
    for index in batch:
        if index >= missing + window * terms.every:
            yield f"ticket {index} overtakes {missing} by more than {terms['order']} allows"
    if terms["on_stale"] == "wait" and terms["max_staleness"] is not None and window > 1:
        return  # those that would become too old go first
    if math.isinf(window):
        expected = list(arrived[: len(batch)])
    else:
        expected = [index for index, ticket in untaken if ticket.phase == "ready"][: len(batch)]
    if sorted(expected) != sorted(batch):
        yield f"tickets {list(batch)} are taken, {sorted(expected)} come first"
