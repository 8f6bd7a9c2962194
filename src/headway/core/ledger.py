"""The tally of a run: who is under way, who is next, what became of each ticket.

    slots (the rule)        order + expiry              publish
    open ----------> start -------> land -------> choose/take -------> settle

The ledger decides and counts; it never waits, and it knows no clock (where time matters it is told), no thread and no
payload. Every change goes through one of its methods, each of which refuses a ticket in the wrong phase. Hence:

* a ticket settles exactly once;                * slots are never exceeded;
* dropping frees the slot;                      * staleness is measured when taken, under the limit;
* opened == learned + dropped + live, always; at the end what is live is *returned*.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from headway.core.ledger_choosing import Choice, Chooser
from headway.core.ledger_counts import LedgerCounts, LedgerStatistics
from headway.core.ledger_live_tickets import Entry, LedgerError, LiveTickets
from headway.core.ledger_seat_plan import SeatPlan
from headway.core.ledger_terms import LedgerTerms
from headway.core.rules import Rule, Tally
from headway.core.rules_order import OLDEST, Expiry, OnStale, Order
from headway.core.types import DropReason, Phase, Span, State, Ticket, derive_seed


class Ledger:
    """Opens tickets while the rule allows, chooses batches by order and expiry, settles each ticket once.

    `updates_per_version` is how many learn calls make one published version. With `pinned_collectors` the
    version and the collector of a ticket are fixed when it opens (ticket k goes to collector
    k mod pinned_collectors, unless collectors came and went, which `seats` knows; with lanes these are seats, and a
    resumed run may have more or fewer of them): as openings happen only at points fixed by the order of learning,
    the whole run is then determined by its seed.
    With `every` only the tickets 0, every, 2 * every, ... are opened: those of a line that takes part of the rollouts.
    """

    def __init__(
        self,
        rule: Rule,
        *,
        order: Order = OLDEST,
        expiry: Expiry | None = None,
        tickets_per_batch: int = 1,
        updates_per_version: int = 1,
        seed: int = 0,
        pinned_collectors: int | None = None,
        every: int = 1,
    ) -> None:
        self.rule = rule
        self.terms = LedgerTerms(
            order, expiry or Expiry(), tickets_per_batch, updates_per_version, pinned_collectors, every
        )
        self.seed = seed
        self.seats = SeatPlan(pinned_collectors or 1)
        """Of a pinned run."""
        self.tally = Tally()
        self.counts = LedgerCounts()
        self._live = LiveTickets(every, notes_births=self.terms.expiry.waits)
        self._chooser = Chooser(self.terms, self._live, self.tally)

    @property
    def order(self) -> Order:
        return self.terms.order

    @property
    def expiry(self) -> Expiry:
        return self.terms.expiry

    @property
    def tickets_per_batch(self) -> int:
        return self.terms.tickets_per_batch

    @property
    def updates_per_version(self) -> int:
        return self.terms.updates_per_version

    @property
    def pinned_collectors(self) -> int | None:
        return self.terms.pinned_collectors

    # -- opening ------------------------------------------------------------------------------------

    def may_open(self) -> bool:
        return self.rule.may_open(self.tally)

    def open(self, version: int) -> Ticket | None:
        """Occupy a slot, if the rule allows. `version` is the newest: a pinned ticket is born with it."""
        if not self.rule.may_open(self.tally):
            return None
        live = self._live
        index = live.next_index
        live.next_index += self.terms.every
        if self.terms.pinned_collectors is None:
            ticket = Ticket(index, derive_seed(self.seed, "ticket", index))
        else:
            ticket = Ticket(index, derive_seed(self.seed, "ticket", index), version, self.seats.seat(index))
        entry = Entry(ticket)
        live.all[index] = live.untaken[index] = entry
        self.tally.opened += 1
        self.tally.live += 1
        return ticket

    # -- flight -------------------------------------------------------------------------------------

    def start(self, index: int, version: int, collector: int) -> Ticket:
        """The ticket takes off with the newest snapshot (free) or with its own (pinned)."""
        entry = self._live.find(index, Phase.OPEN, "start")
        ticket = entry.ticket
        if self.terms.pinned_collectors is None:
            ticket = entry.ticket = Ticket(index, ticket.seed, version, collector, ticket.attempt)
        elif (ticket.version, ticket.collector) != (version, collector):
            raise LedgerError(
                f"ticket {index} is pinned to version {ticket.version} on collector {ticket.collector}, "
                f"not to version {version} on collector {collector}"
            )
        entry.version = version
        entry.phase = Phase.IN_FLIGHT
        self._live.note_birth(entry)
        return ticket

    def land(
        self,
        index: int,
        *,
        span: Span | None = None,
        steps: int = 1,
        length: float = 1.0,
        size: int = 0,
        now_s: float = 0.0,
    ) -> Span:
        """The rollout is here. Its span may not reach back before the ticket's birth; its age in seconds counts from
        `now_s`."""
        entry = self._live.find(index, Phase.IN_FLIGHT, "land")
        born = entry.version
        assert born is not None
        span = span or Span(born, born)
        if span.oldest < born:
            raise LedgerError(f"ticket {index} was born at version {born}, its rollout claims {span.oldest}")
        entry.span = span
        entry.steps = steps
        entry.length = length
        entry.size = size
        entry.landed_s = now_s
        entry.phase = Phase.READY
        self._live.arrived[index] = entry
        tally = self.tally
        tally.begin_to_wait(steps, size)
        tally.landed += 1
        tally.landed_bytes += size
        self.counts.offered += 1
        self.counts.offered_length += length
        return span

    def reissue(self, index: int, version: int | None = None, *, is_attempt: bool = True) -> Ticket:
        """The collector failed: the same ticket flies again, one attempt older (if it was one).

        With `version`, a pinned ticket is born anew with it (the weights of its own are gone).
        """
        entry = self._live.find(index, Phase.IN_FLIGHT, "reissue")
        self._live.forget_birth(entry)
        self.counts.reissued += 1
        return self._reopen(entry, entry.ticket.attempt + is_attempt, version)

    # -- taking -------------------------------------------------------------------------------------

    def may_choose(self) -> bool:
        """A quick look whether `choose` could find a batch or something expired; no means no."""
        return self._chooser.may_choose()

    def choose(self, version: int, updates_left: int = 1, *, now_s: float = 0.0) -> Choice:
        """What the learner should do next at `version`, with `updates_left` updates until it is published.

        Changes nothing: the caller drops or requeues `expired`, takes `batch`, or waits.
        """
        return self._chooser.choose(version, updates_left, now_s)

    def waiting_for(self, version: int, updates_left: int = 1) -> str:
        """In words, what `choose` is waiting for."""
        return self._chooser.waiting_for(version, updates_left)

    def choose_all(self, version: int, *, now_s: float = 0.0) -> Choice:
        """For replay: everything that is here, which may be nothing."""
        return self._chooser.choose_all(version, now_s)

    def too_old(self, index: int, version: int, *, now_s: float = 0.0) -> DropReason | None:
        """Which limit a ready rollout is beyond, if any."""
        return self._chooser.too_old(self._live.find(index, Phase.READY, "look at"), version, now_s)

    def take(self, indices: Iterable[int], version: int, *, now_s: float = 0.0) -> None:
        """The learner has these rollouts now. Their age is measured here and nowhere else."""
        for index in indices:
            entry = self._live.find(index, Phase.READY, "take")
            assert entry.span is not None
            staleness = version - entry.span.oldest
            if self.terms.expiry.is_stale(staleness):
                if self.terms.expiry.on_stale is not OnStale.KEEP:
                    raise LedgerError(
                        f"ticket {index} is {staleness} versions old at version {version}, over "
                        f"max_staleness={self.terms.expiry.max_staleness}"
                    )
                self.counts.kept_stale += 1
            age_s = now_s - entry.landed_s
            if self.terms.expiry.is_expired(age_s):
                if self.terms.expiry.on_stale is not OnStale.KEEP:
                    raise LedgerError(
                        f"ticket {index} landed {age_s:.3f} s ago, over max_age_s={self.terms.expiry.max_age_s:g}"
                    )
                self.counts.kept_expired += 1
            entry.age_s = age_s
            self._leave_buffer(entry)
            self._live.forget_birth(entry)
            self._live.leave(index)
            entry.phase = Phase.TAKEN
            self._live.taken.append(index)
            self.tally.taken += 1
            self.tally.inserted += entry.steps
            self.counts.staleness[staleness] += 1
            self.counts.trained_length += entry.length

    def put_back(self, indices: Iterable[int], version: int) -> None:
        """The learner could not be given what it took at `version`: all of it is ready again, as if never taken.

        What it made room for meanwhile stays open, so a buffer may hold up to a batch more than its capacity.
        """
        entries = [self._live.find(index, Phase.TAKEN, "put back") for index in sorted(indices)]
        for entry in entries:
            assert entry.span is not None
            staleness = version - entry.span.oldest
            if self.terms.expiry.is_stale(staleness):
                self.counts.kept_stale -= 1
            if self.terms.expiry.is_expired(entry.age_s):
                self.counts.kept_expired -= 1
            self.counts.untake(staleness, entry.length)
            self._live.taken.remove(entry.ticket.index)
            self.tally.taken -= 1
            self.tally.inserted -= entry.steps
            self.tally.begin_to_wait(entry.steps, entry.size)
            entry.phase = Phase.READY
            self._live.note_birth(entry)
        self._live.come_back(entries)

    def count_samples(self, samples: float) -> None:
        """The learner says how many samples an update trained on (for the replay ratio)."""
        self.tally.sampled += samples
        self.tally.trained = self.tally.inserted

    # -- settling -----------------------------------------------------------------------------------

    def settle(self) -> tuple[int, ...]:
        """A version was published: everything taken is learned, and its slots are free."""
        done = tuple(self._live.taken)
        self._live.taken.clear()
        for index in done:
            entry = self._live.all.pop(index)
            entry.phase = Phase.LEARNED
            self.counts.note_age(entry.age_s)
        self.tally.live -= len(done)
        self.tally.taken -= len(done)
        self.tally.learned += len(done)
        return done

    def drop(self, index: int, reason: DropReason) -> None:
        """The ticket ends without being learned from, and its slot is free.

        What the learner has already taken can only fail.
        """
        entry = self._live.all.get(index)
        if entry is None:
            raise LedgerError(f"ticket {index} cannot be dropped: it is not live")
        if entry.phase is Phase.TAKEN:
            if reason is not DropReason.FAILED:
                raise LedgerError(f"ticket {index} cannot be dropped as {reason.value}: the learner has it")
            self._live.taken.remove(index)
            self.tally.taken -= 1
            self.counts.note_age(entry.age_s)
        else:
            if entry.phase is Phase.READY:
                self._leave_buffer(entry)
            if entry.phase is not Phase.OPEN:
                self._live.forget_birth(entry)
            self._live.leave(index)
        del self._live.all[index]
        entry.phase = Phase.DROPPED
        self.tally.live -= 1
        self.tally.dropped += 1
        self.counts.drops[reason] += 1

    def requeue(self, index: int, version: int) -> Ticket:
        """The rollout came too late: it is thrown away and the same ticket is collected again.

        `version` is the newest: a pinned ticket is born anew with it.
        """
        entry = self._live.find(index, Phase.READY, "requeue")
        self._withdraw(entry)
        self.counts.requeued += 1
        return self._reopen(entry, 0, version)

    def lose(self, index: int, version: int) -> Ticket:
        """The rollout was here and is gone: the same ticket is collected again, one attempt older.

        `version` is the newest: a pinned ticket is born anew with it, for the weights of its own need not be there
        any more. What the learner has taken is put back first.
        """
        entry = self._live.find(index, Phase.READY, "lose")
        self._withdraw(entry)
        self.counts.lost += 1
        return self._reopen(entry, entry.ticket.attempt + 1, version)

    def close(self) -> tuple[int, ...]:
        """The run is over; what is still live is returned, to be collected again if the run is resumed."""
        returned = tuple(self._live.all)
        self.counts.returned = len(returned)
        for index in self._live.taken:
            self.counts.note_age(self._live.all[index].age_s)
        self._live.clear()
        self.tally.close()
        return returned

    # -- looking ------------------------------------------------------------------------------------

    def entry(self, index: int) -> Entry:
        """The live ticket `index`."""
        return self._live.all[index]

    def live(self) -> Iterator[Entry]:
        """Every live ticket, in index order."""
        return iter(self._live.all.values())

    def is_live(self, index: int) -> bool:
        return index in self._live.all

    @property
    def next_index(self) -> int:
        """Of the ticket that opens next."""
        return self._live.next_index

    def has_opened(self, index: int) -> bool:
        """Was this ticket opened, whatever became of it?"""
        return index < self._live.next_index

    def is_done_with(self, index: int) -> bool:
        """Was this ticket opened, and has it settled?"""
        return index < self._live.next_index and index not in self._live.all

    def statistics(self) -> LedgerStatistics:
        return self.counts.statistics(self.tally, (self._live.all[index].age_s for index in self._live.taken))

    # -- surviving a restart ------------------------------------------------------------------------

    def state_dict(self, *, now_s: float = 0.0) -> State:
        """Everything, as plain values. What is taken must have been trained on by the state saved with it.

        A rollout that waits is saved with its age at `now_s`: the time a run is down does not count.
        """
        return {
            "next_index": self._live.next_index,
            "seats": self.seats.state(),
            "seed": self.seed,
            **self.tally.state_dict(),
            **self.counts.state_dict(),
            "live": self._live.state(now_s),
        }

    def load_state_dict(self, state: State, *, now_s: float = 0.0) -> None:
        """Resume: what was taken or ready is so again, as old as it was; everything that was in flight is open."""
        if self.tally.opened:
            raise LedgerError("a ledger that has opened tickets cannot be loaded into")
        self._live.next_index = state["next_index"]
        self.seed = state["seed"]
        self.counts.load_state_dict(state)
        tally = self.tally
        tally.load_state_dict(state)
        tally.dropped = sum(self.counts.drops.values())
        if self.terms.pinned_collectors is not None:
            self.seats.restore(state.get("seats"))
        self._live.restore(state["live"], self._saved_ticket, now_s)
        tally.taken = len(self._live.taken)
        for entry in self._live.untaken.values():
            if entry.phase is Phase.READY:
                tally.begin_to_wait(entry.steps, entry.size)
        tally.live = len(self._live.all)
        tally.opened = tally.live + tally.learned + tally.dropped

    def postpone(self, seconds: float) -> None:
        """So much time has passed that makes no waiting rollout older."""
        for entry in self._live.arrived.values():
            entry.landed_s += seconds

    def _saved_ticket(self, saved: State) -> Ticket:
        """As it goes on: one that had not landed takes off anew, unless it is pinned."""
        is_pinned = self.terms.pinned_collectors is not None
        is_known = is_pinned or saved["span"] is not None
        return Ticket(
            saved["index"],
            saved["seed"],
            saved["version"] if is_known else None,
            self.seats.seat(saved["index"]) if is_pinned else saved["collector"] if is_known else None,
            saved["attempt"],
        )

    # -- inside -------------------------------------------------------------------------------------

    def _withdraw(self, entry: Entry) -> None:
        """A ready rollout leaves the buffer without being taken, and will be offered again: counted once."""
        self.counts.offered -= 1
        self.counts.offered_length -= entry.length
        self._leave_buffer(entry)
        self._live.forget_birth(entry)
        self._live.prefix.begin_anew()

    def _reopen(self, entry: Entry, attempt: int, version: int | None) -> Ticket:
        """Back to the start. With `version` a pinned ticket is born anew, without it keeps its birth."""
        ticket = replace(entry.ticket, attempt=attempt)
        if self.terms.pinned_collectors is None:
            ticket = replace(ticket, version=None, collector=None)
        elif version is not None:
            ticket = replace(ticket, version=version)
        entry.ticket = ticket
        entry.version = ticket.version
        entry.span = None
        entry.phase = Phase.OPEN
        return ticket

    def _leave_buffer(self, entry: Entry) -> None:
        del self._live.arrived[entry.ticket.index]
        self.tally.wait_no_more(entry.steps, entry.size)
