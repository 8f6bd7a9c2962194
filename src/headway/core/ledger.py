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

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from headway.core.ledger_counts import LedgerCounts, LedgerStatistics
from headway.core.order import OLDEST, Expiry, OnStale, Order, required_by_age
from headway.core.ready_prefix import ReadyPrefix
from headway.core.rules import MaxLead, Rule, Tally
from headway.core.seat_plan import SeatPlan
from headway.core.types import DropReason, Phase, Span, Ticket, derive_seed


class LedgerError(RuntimeError):
    """A ticket was moved in a way its life does not allow: a bug in whoever moved it."""


class Entry:
    """One live ticket. `version` is its birth version: the snapshot it took off with."""

    __slots__ = ("age_s", "landed_s", "length", "phase", "size", "span", "steps", "ticket", "version")

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self.phase = Phase.OPEN
        self.version: int | None = ticket.version
        self.span: Span | None = None
        self.steps = 0
        self.length = 0.0
        self.size = 0
        self.landed_s = 0.0
        self.age_s = 0.0  # when it was taken


@dataclass(frozen=True, slots=True)
class Choice:
    """The ledger's answer to "what next?": a batch (empty: wait), and rollouts that have expired."""

    batch: tuple[int, ...] = ()
    expired: tuple[int, ...] = ()


WAIT = Choice()


@dataclass(frozen=True, slots=True)
class LedgerTerms:
    """What a ledger was told, and never changes."""

    order: Order
    expiry: Expiry
    tickets_per_batch: int
    updates_per_version: int
    pinned_collectors: int | None
    every: int

    @property
    def discards(self) -> bool:
        return self.expiry.discards


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
        if tickets_per_batch < 1 or updates_per_version < 1:
            raise ValueError(
                f"tickets_per_batch and updates_per_version must be >= 1, received "
                f"{tickets_per_batch!r} and {updates_per_version!r}"
            )
        if every < 1:
            raise ValueError(f"every must be >= 1, received {every!r}")
        if pinned_collectors is not None and not order.is_strict:
            raise ValueError(f"a pinned run consumes in ticket order; order={order} cannot be pinned")
        self.rule = rule
        self.terms = LedgerTerms(
            order, expiry or Expiry(), tickets_per_batch, updates_per_version, pinned_collectors, every
        )
        self.seed = seed
        self.seats = SeatPlan(pinned_collectors or 1)
        """Of a pinned run."""
        self.tally = Tally()
        self.counts = LedgerCounts()
        self._next_index = 0
        self._entries: dict[int, Entry] = {}  # live, in index order
        self._untaken: dict[int, Entry] = {}  # open, in flight or ready, in index order
        self._arrived: dict[int, Entry] = {}  # ready, in order of arrival
        self._taken: list[int] = []  # with the learner
        self._births: Counter[int] = Counter()  # untaken tickets that have taken off, by birth version
        self._prefix = ReadyPrefix(every)

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
        index = self._next_index
        self._next_index += self.terms.every
        if self.terms.pinned_collectors is None:
            ticket = Ticket(index, derive_seed(self.seed, "ticket", index))
        else:
            ticket = Ticket(index, derive_seed(self.seed, "ticket", index), version, self.seats.seat(index))
        entry = Entry(ticket)
        self._entries[index] = self._untaken[index] = entry
        self.tally.opened += 1
        self.tally.live += 1
        return ticket

    # -- flight -------------------------------------------------------------------------------------

    def start(self, index: int, version: int, collector: int) -> Ticket:
        """The ticket takes off with the newest snapshot (free) or with its own (pinned)."""
        entry = self._entry(index, Phase.OPEN, "start")
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
        if self.terms.expiry.waits:
            self._births[version] += 1
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
        entry = self._entry(index, Phase.IN_FLIGHT, "land")
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
        self._arrived[index] = entry
        tally = self.tally
        tally.ready += 1
        tally.waiting_steps += steps
        tally.waiting_bytes += size
        tally.landed += 1
        tally.landed_bytes += size
        self.counts.offered += 1
        self.counts.offered_length += length
        return span

    def reissue(self, index: int, version: int | None = None, *, is_attempt: bool = True) -> Ticket:
        """The collector failed: the same ticket flies again, one attempt older (if it was one).

        With `version`, a pinned ticket is born anew with it (the weights of its own are gone).
        """
        entry = self._entry(index, Phase.IN_FLIGHT, "reissue")
        self._forget_birth(entry)
        self.counts.reissued += 1
        return self._reopen(entry, entry.ticket.attempt + is_attempt, version)

    # -- taking -------------------------------------------------------------------------------------

    def may_choose(self) -> bool:
        """A quick look whether `choose` could find a batch or something expired; no means no."""
        if self.terms.discards:
            return self.tally.ready > 0
        if self.tally.ready < self.terms.tickets_per_batch:
            return False
        if self.terms.order.window != 1:
            return True
        return self._prefix.reaches(self.terms.tickets_per_batch, self._untaken, self._next_index)

    def choose(self, version: int, updates_left: int = 1, *, now_s: float = 0.0) -> Choice:
        """What the learner should do next at `version`, with `updates_left` updates until it is published.

        Changes nothing: the caller drops or requeues `expired`, takes `batch`, or waits.
        """
        wanted = self.terms.tickets_per_batch
        if self.tally.ready < wanted and not self.terms.discards:
            return WAIT
        batch: list[int] = []
        if self.terms.expiry.waits:
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
            if self.terms.discards and self._too_old(entry, version, now_s) is not None:
                expired.append(entry.ticket.index)
            else:
                batch.append(entry.ticket.index)
        if len(batch) < wanted or (expired and self._awaits_expired):
            return Choice((), tuple(expired)) if expired else WAIT
        return Choice(tuple(sorted(batch)), tuple(expired))

    @property
    def _awaits_expired(self) -> bool:
        """Does the order make the learner wait for a rollout that is collected again?"""
        return self.terms.expiry.on_stale is OnStale.REQUEUE and not self.terms.order.is_first_come

    def waiting_for(self, version: int, updates_left: int = 1) -> str:
        """In words, what `choose` is waiting for."""
        if self.terms.expiry.waits:
            required = self._required(version, updates_left)
            if isinstance(required, str):
                return required
        missing = next((i for i, e in self._untaken.items() if e.phase is not Phase.READY), None)
        if self.terms.order.is_first_come or missing is None:
            return f"{self.terms.tickets_per_batch - self.tally.ready} more of {self.terms.tickets_per_batch} rollouts"
        return f"the rollout of ticket {missing} (order={self.terms.order})"

    def choose_all(self, version: int, *, now_s: float = 0.0) -> Choice:
        """For replay: everything that is here, which may be nothing."""
        batch: list[int] = []
        expired: list[int] = []
        for entry in self._arrived.values():
            is_old = self.terms.discards and self._too_old(entry, version, now_s) is not None
            (expired if is_old else batch).append(entry.ticket.index)
        return Choice(tuple(sorted(batch)), tuple(expired))

    def too_old(self, index: int, version: int, *, now_s: float = 0.0) -> DropReason | None:
        """Which limit a ready rollout is beyond, if any."""
        return self._too_old(self._entry(index, Phase.READY, "look at"), version, now_s)

    def take(self, indices: Iterable[int], version: int, *, now_s: float = 0.0) -> None:
        """The learner has these rollouts now. Their age is measured here and nowhere else."""
        for index in indices:
            entry = self._entry(index, Phase.READY, "take")
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
            self._forget_birth(entry)
            del self._untaken[index]
            self._prefix.leave(index)
            entry.phase = Phase.TAKEN
            self._taken.append(index)
            self.tally.taken += 1
            self.tally.inserted += entry.steps
            self.counts.staleness[staleness] += 1
            self.counts.trained_length += entry.length

    def put_back(self, indices: Iterable[int], version: int) -> None:
        """The learner could not be given what it took at `version`: all of it is ready again, as if never taken.

        What it made room for meanwhile stays open, so a buffer may hold up to a batch more than its capacity.
        """
        entries = [self._entry(index, Phase.TAKEN, "put back") for index in sorted(indices)]
        for entry in entries:
            assert entry.span is not None
            staleness = version - entry.span.oldest
            if self.terms.expiry.is_stale(staleness):
                self.counts.kept_stale -= 1
            if self.terms.expiry.is_expired(entry.age_s):
                self.counts.kept_expired -= 1
            self.counts.untake(staleness, entry.length)
            self._taken.remove(entry.ticket.index)
            self.tally.taken -= 1
            self.tally.inserted -= entry.steps
            self.tally.ready += 1
            self.tally.waiting_steps += entry.steps
            self.tally.waiting_bytes += entry.size
            entry.phase = Phase.READY
            if self.terms.expiry.waits:
                assert entry.version is not None
                self._births[entry.version] += 1
        back = {entry.ticket.index: entry for entry in entries}
        self._arrived = back | self._arrived  # they were chosen before those that wait now
        self._untaken = dict(sorted((back | self._untaken).items()))
        self._prefix.begin_anew()

    def count_samples(self, samples: float) -> None:
        """The learner says how many samples an update trained on (for the replay ratio)."""
        self.tally.sampled += samples
        self.tally.trained = self.tally.inserted

    # -- settling -----------------------------------------------------------------------------------

    def settle(self) -> tuple[int, ...]:
        """A version was published: everything taken is learned, and its slots are free."""
        done = tuple(self._taken)
        self._taken.clear()
        for index in done:
            entry = self._entries.pop(index)
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
        entry = self._entries.get(index)
        if entry is None:
            raise LedgerError(f"ticket {index} cannot be dropped: it is not live")
        if entry.phase is Phase.TAKEN:
            if reason is not DropReason.FAILED:
                raise LedgerError(f"ticket {index} cannot be dropped as {reason.value}: the learner has it")
            self._taken.remove(index)
            self.tally.taken -= 1
            self.counts.note_age(entry.age_s)
        else:
            if entry.phase is Phase.READY:
                self._leave_buffer(entry)
            if entry.phase is not Phase.OPEN:
                self._forget_birth(entry)
            del self._untaken[index]
            self._prefix.leave(index)
        del self._entries[index]
        entry.phase = Phase.DROPPED
        self.tally.live -= 1
        self.tally.dropped += 1
        self.counts.drops[reason] += 1

    def requeue(self, index: int, version: int) -> Ticket:
        """The rollout came too late: it is thrown away and the same ticket is collected again.

        `version` is the newest: a pinned ticket is born anew with it.
        """
        entry = self._entry(index, Phase.READY, "requeue")
        self._withdraw(entry)
        self.counts.requeued += 1
        return self._reopen(entry, 0, version)

    def lose(self, index: int, version: int) -> Ticket:
        """The rollout was here and is gone: the same ticket is collected again, one attempt older.

        `version` is the newest: a pinned ticket is born anew with it, for the weights of its own need not be there
        any more. What the learner has taken is put back first.
        """
        entry = self._entry(index, Phase.READY, "lose")
        self._withdraw(entry)
        self.counts.lost += 1
        return self._reopen(entry, entry.ticket.attempt + 1, version)

    def close(self) -> tuple[int, ...]:
        """The run is over; what is still live is returned, to be collected again if the run is resumed."""
        returned = tuple(self._entries)
        self.counts.returned = len(returned)
        for index in self._taken:
            self.counts.note_age(self._entries[index].age_s)
        self._entries.clear()
        self._untaken.clear()
        self._arrived.clear()
        self._taken.clear()
        self._births.clear()
        self._prefix.begin_anew()
        self.tally.live = self.tally.ready = self.tally.taken = self.tally.waiting_bytes = 0
        self.tally.waiting_steps = 0.0
        return returned

    # -- looking ------------------------------------------------------------------------------------

    def entry(self, index: int) -> Entry:
        """The live ticket `index`."""
        return self._entries[index]

    def live(self) -> Iterator[Entry]:
        """Every live ticket, in index order."""
        return iter(self._entries.values())

    def is_live(self, index: int) -> bool:
        return index in self._entries

    @property
    def next_index(self) -> int:
        """Of the ticket that opens next."""
        return self._next_index

    def has_opened(self, index: int) -> bool:
        """Was this ticket opened, whatever became of it?"""
        return index < self._next_index

    def is_done_with(self, index: int) -> bool:
        """Was this ticket opened, and has it settled?"""
        return index < self._next_index and index not in self._entries

    def statistics(self) -> LedgerStatistics:
        return self.counts.statistics(self.tally, (self._entries[index].age_s for index in self._taken))

    # -- surviving a restart ------------------------------------------------------------------------

    def state_dict(self, *, now_s: float = 0.0) -> dict[str, Any]:
        """Everything, as plain values. What is taken must have been trained on by the state saved with it.

        A rollout that waits is saved with its age at `now_s`: the time a run is down does not count.
        """
        arrival = {index: place for place, index in enumerate(self._arrived)}
        return {
            "next_index": self._next_index,
            "seats": self.seats.state(),
            "seed": self.seed,
            "learned": self.tally.learned,
            "inserted": self.tally.inserted,
            "sampled": self.tally.sampled,
            "trained": self.tally.trained,
            "sizes": [self.tally.landed, self.tally.landed_bytes],
            **self.counts.state_dict(),
            "live": [
                {
                    "index": entry.ticket.index,
                    "seed": entry.ticket.seed,
                    "version": entry.ticket.version,
                    "collector": entry.ticket.collector,
                    "attempt": entry.ticket.attempt,
                    "span": (entry.span.oldest, entry.span.newest) if entry.span else None,
                    "steps": entry.steps,
                    "length": entry.length,
                    "size": entry.size,
                    "age_s": now_s - entry.landed_s if entry.phase is Phase.READY else entry.age_s,
                    "taken": entry.phase is Phase.TAKEN,
                    "arrival": arrival.get(entry.ticket.index),
                }
                for entry in self._entries.values()
            ],
        }

    def load_state_dict(self, state: dict[str, Any], *, now_s: float = 0.0) -> None:
        """Resume: what was taken or ready is so again, as old as it was; everything that was in flight is open."""
        if self.tally.opened:
            raise LedgerError("a ledger that has opened tickets cannot be loaded into")
        self._next_index = state["next_index"]
        self.seed = state["seed"]
        self.counts.load_state_dict(state)
        tally = self.tally
        tally.landed, tally.landed_bytes = state["sizes"]
        tally.learned = state["learned"]
        tally.inserted = state["inserted"]
        tally.sampled = state["sampled"]
        tally.trained = state.get("trained", tally.inserted)  # of earlier versions: nobody said
        tally.dropped = sum(self.counts.drops.values())
        pinned = self.terms.pinned_collectors is not None
        if pinned:
            self.seats.restore(state.get("seats"))
        for saved in state["live"]:
            landed = saved["span"] is not None
            known = pinned or landed
            ticket = Ticket(
                saved["index"],
                saved["seed"],
                saved["version"] if known else None,
                self.seats.seat(saved["index"]) if pinned else saved["collector"] if known else None,
                saved["attempt"],
            )
            entry = Entry(ticket)
            self._entries[ticket.index] = entry
            entry.steps, entry.length, entry.size = saved["steps"], saved["length"], saved["size"]
            if landed:
                entry.span = Span(*saved["span"])
                entry.landed_s, entry.age_s = now_s - saved["age_s"], saved["age_s"]
            if saved["taken"]:
                entry.phase = Phase.TAKEN
                self._taken.append(ticket.index)
                tally.taken += 1
                continue
            self._untaken[ticket.index] = entry
            if landed:
                entry.phase = Phase.READY
                if self.terms.expiry.waits:
                    assert entry.version is not None
                    self._births[entry.version] += 1
                tally.ready += 1
                tally.waiting_steps += entry.steps
                tally.waiting_bytes += entry.size
        arrived = sorted((s["arrival"], s["index"]) for s in state["live"] if s["arrival"] is not None)
        self._arrived = {index: self._entries[index] for _, index in arrived}
        tally.live = len(self._entries)
        tally.opened = tally.live + tally.learned + tally.dropped

    def postpone(self, seconds: float) -> None:
        """So much time has passed that makes no waiting rollout older."""
        for entry in self._arrived.values():
            entry.landed_s += seconds

    # -- inside -------------------------------------------------------------------------------------

    def _entry(self, index: int, phase: Phase, verb: str) -> Entry:
        entry = self._entries.get(index)
        if entry is None:
            raise LedgerError(f"cannot {verb} ticket {index}: it is not live")
        if entry.phase is not phase:
            raise LedgerError(f"cannot {verb} ticket {index}: it is {entry.phase.value}, not {phase.value}")
        return entry

    def _withdraw(self, entry: Entry) -> None:
        """A ready rollout leaves the buffer without being taken, and will be offered again: counted once."""
        self.counts.offered -= 1
        self.counts.offered_length -= entry.length
        self._leave_buffer(entry)
        self._forget_birth(entry)
        self._prefix.begin_anew()

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
        del self._arrived[entry.ticket.index]
        self.tally.ready -= 1
        self.tally.waiting_steps -= entry.steps
        self.tally.waiting_bytes -= entry.size

    def _forget_birth(self, entry: Entry) -> None:
        if self.terms.expiry.waits:
            assert entry.version is not None
            self._births[entry.version] -= 1
            if not self._births[entry.version]:
                del self._births[entry.version]

    def _too_old(self, entry: Entry, version: int, now_s: float) -> DropReason | None:
        assert entry.span is not None
        return self.terms.expiry.reason(version - entry.span.oldest, now_s - entry.landed_s)

    def _candidates(self) -> Iterator[Entry]:
        """Ready tickets the order lets the learner take, most wanted first."""
        if self.terms.order.is_first_come:
            yield from self._arrived.values()
            return
        missing: int | None = None  # the oldest ticket whose rollout is still to come
        for index, entry in self._untaken.items():
            if missing is not None and index >= missing + self.terms.order.window * self.terms.every:
                return
            if entry.phase is Phase.READY:
                yield entry
            elif missing is None:
                missing = index

    def _required(self, version: int, updates_left: int) -> list[int] | str:
        """Tickets that must be in this batch under `wait`, or what to wait for if they are not here."""
        limit = self.terms.expiry.max_staleness
        assert limit is not None
        required = required_by_age(
            self._births,
            version=version,
            max_staleness=limit,
            updates_left=updates_left,
            updates_per_version=self.terms.updates_per_version,
            tickets_per_batch=self.terms.tickets_per_batch,
        )
        chosen: list[int] = []
        takeable = sorted(e.ticket.index for e in self._candidates()) if required else []  # waiting overrules no order
        for birth, count in required:
            if count > self.terms.tickets_per_batch:
                raise LedgerError(
                    f"max_staleness={limit} cannot be kept at version {version}: {count} tickets born at version "
                    f"{birth} or before would have to be in one batch of {self.terms.tickets_per_batch}"
                )
            have = sum(1 for index in chosen if self._born(index) <= birth)
            for index in takeable:
                if have >= count:
                    break
                if self._born(index) <= birth and index not in chosen:
                    chosen.append(index)
                    have += 1
            if have < count:
                missing = {index: entry for index, entry in self._untaken.items() if entry.phase is not Phase.READY}
                aging = (i for i, e in missing.items() if e.phase is Phase.IN_FLIGHT and self._born(i) <= birth)
                late = next(aging, next(iter(missing)))  # if all that age are here, the order holds them back
                return f"ticket {late}: tickets born at version {birth} would otherwise exceed max_staleness={limit}"
        return chosen

    def _born(self, index: int) -> int:
        version = self._entries[index].version
        assert version is not None
        return version


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
