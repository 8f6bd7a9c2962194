"""Which rollouts the learner takes next: by order, by the limit on age, and in batches of one size.

    untaken   3 ready   4 in flight   5 ready   6 ready        two tickets a batch
              order=oldest: wait for 4     window(3): 3, 5     ready: in order of arrival

Looks at the live tickets and changes nothing; the ledger's `take`, `drop` and `requeue` do what is decided here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headway.core.ledger_live_tickets import Entry, LedgerError, LiveTickets
from headway.core.ledger_terms import LedgerTerms
from headway.core.rules import Tally
from headway.core.rules_order import OnStale, required_by_age
from headway.core.types import DropReason, Phase


@dataclass(frozen=True, slots=True)
class Choice:
    """The ledger's answer to "what next?": a batch (empty: wait), and rollouts that have expired."""

    batch: tuple[int, ...] = ()
    expired: tuple[int, ...] = ()


WAIT = Choice()


class Chooser:
    """Answers what the learner should do next. `Ledger` says what each of the questions means."""

    __slots__ = ("_live", "_tally", "_terms")

    def __init__(self, terms: LedgerTerms, live: LiveTickets, tally: Tally) -> None:
        self._terms = terms
        self._live = live
        self._tally = tally

    def may_choose(self) -> bool:
        if self._terms.discards:
            return self._tally.ready > 0
        if self._tally.ready < self._terms.tickets_per_batch:
            return False
        if self._terms.order.window != 1:
            return True
        return self._live.prefix.reaches(self._terms.tickets_per_batch, self._live.untaken, self._live.next_index)

    def choose(self, version: int, updates_left: int, now_s: float) -> Choice:
        wanted = self._terms.tickets_per_batch
        if self._tally.ready < wanted and not self._terms.discards:
            return WAIT
        batch: list[int] = []
        if self._terms.expiry.waits:
            required = self._required(version, updates_left)
            if isinstance(required, str):
                return WAIT
            batch = required
        chosen = set(batch)
        expired: list[int] = []
        for entry in self._candidates():
            if len(batch) == wanted:
                break
            if entry.ticket.index in chosen:
                continue
            if self._terms.discards and self.too_old(entry, version, now_s) is not None:
                expired.append(entry.ticket.index)
            else:
                batch.append(entry.ticket.index)
        if len(batch) < wanted or (expired and self._awaits_expired):
            return Choice((), tuple(expired)) if expired else WAIT
        return Choice(tuple(sorted(batch)), tuple(expired))

    @property
    def _awaits_expired(self) -> bool:
        """Does the order make the learner wait for a rollout that is collected again?"""
        return self._terms.expiry.on_stale is OnStale.REQUEUE and not self._terms.order.is_first_come

    def waiting_for(self, version: int, updates_left: int) -> str:
        if self._terms.expiry.waits:
            required = self._required(version, updates_left)
            if isinstance(required, str):
                return required
        missing = next((i for i, e in self._live.untaken.items() if e.phase is not Phase.READY), None)
        if self._terms.order.is_first_come or missing is None:
            wanted = self._terms.tickets_per_batch
            return f"{wanted - self._tally.ready} more of {wanted} rollouts"
        return f"the rollout of ticket {missing} (order={self._terms.order})"

    def choose_all(self, version: int, now_s: float) -> Choice:
        batch: list[int] = []
        expired: list[int] = []
        for entry in self._live.arrived.values():
            is_old = self._terms.discards and self.too_old(entry, version, now_s) is not None
            (expired if is_old else batch).append(entry.ticket.index)
        return Choice(tuple(sorted(batch)), tuple(expired))

    def too_old(self, entry: Entry, version: int, now_s: float) -> DropReason | None:
        assert entry.span is not None
        return self._terms.expiry.reason(version - entry.span.oldest, now_s - entry.landed_s)

    def _candidates(self) -> Iterator[Entry]:
        """Ready tickets the order lets the learner take, most wanted first."""
        if self._terms.order.is_first_come:
            yield from self._live.arrived.values()
            return
        missing: int | None = None  # the oldest ticket whose rollout is still to come
        for index, entry in self._live.untaken.items():
            if missing is not None and index >= missing + self._terms.order.window * self._terms.every:
                return
            if entry.phase is Phase.READY:
                yield entry
            elif missing is None:
                missing = index

    def _required(self, version: int, updates_left: int) -> list[int] | str:
        """Tickets that must be in this batch under `wait`, or what to wait for if they are not here."""
        limit = self._terms.expiry.max_staleness
        assert limit is not None
        required = required_by_age(
            self._live.births,
            version=version,
            max_staleness=limit,
            updates_left=updates_left,
            updates_per_version=self._terms.updates_per_version,
            tickets_per_batch=self._terms.tickets_per_batch,
        )
        chosen: list[int] = []
        takeable = sorted(e.ticket.index for e in self._candidates()) if required else []  # waiting overrules no order
        for birth, count in required:
            if count > self._terms.tickets_per_batch:
                raise LedgerError(
                    f"max_staleness={limit} cannot be kept at version {version}: {count} tickets born at version "
                    f"{birth} or before would have to be in one batch of {self._terms.tickets_per_batch}"
                )
            have = sum(1 for index in chosen if self._born(index) <= birth)
            for index in takeable:
                if have >= count:
                    break
                if self._born(index) <= birth and index not in chosen:
                    chosen.append(index)
                    have += 1
            if have < count:
                missing = {i: entry for i, entry in self._live.untaken.items() if entry.phase is not Phase.READY}
                aging = (i for i, e in missing.items() if e.phase is Phase.IN_FLIGHT and self._born(i) <= birth)
                late = next(aging, next(iter(missing)))  # if all that age are here, the order holds them back
                return f"ticket {late}: tickets born at version {birth} would otherwise exceed max_staleness={limit}"
        return chosen

    def _born(self, index: int) -> int:
        version = self._live.all[index].version
        assert version is not None
        return version
