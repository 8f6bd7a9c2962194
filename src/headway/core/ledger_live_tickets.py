"""The live tickets of a ledger, by where each of them stands.

    |<------------ untaken ----------->|
    open ----> in flight ----> ready ----> taken
                              arrived

The ledger moves them and counts (`ledger.py`), and `choosing.py` looks among them for the next batch. Here stands which
tickets these are, in which order, and from which versions they come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from headway.core.ledger_ready_prefix import ReadyPrefix
from headway.core.types import Phase, Span, State, Ticket


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

    def state_dict(self, arrival: int | None, now_s: float) -> State:
        """As plain values; `arrival` is its place among those that are ready."""
        ticket = self.ticket
        return {
            "index": ticket.index,
            "seed": ticket.seed,
            "version": ticket.version,
            "collector": ticket.collector,
            "attempt": ticket.attempt,
            "span": (self.span.oldest, self.span.newest) if self.span else None,
            "steps": self.steps,
            "length": self.length,
            "size": self.size,
            "age_s": now_s - self.landed_s if self.phase is Phase.READY else self.age_s,
            "taken": self.phase is Phase.TAKEN,
            "arrival": arrival,
        }

    @classmethod
    def restored(cls, ticket: Ticket, saved: State, now_s: float) -> Entry:
        """What was taken or ready is so again, as old as it was; everything else is open."""
        entry = cls(ticket)
        entry.steps, entry.length, entry.size = saved["steps"], saved["length"], saved["size"]
        if saved["span"] is not None:
            entry.span = Span(*saved["span"])
            entry.landed_s, entry.age_s = now_s - saved["age_s"], saved["age_s"]
            entry.phase = Phase.READY
        if saved["taken"]:
            entry.phase = Phase.TAKEN
        return entry


class LiveTickets:
    """Finds a live ticket, and keeps those that wait for the learner in the orders in which it may want them."""

    __slots__ = ("_notes_births", "all", "arrived", "births", "next_index", "prefix", "taken", "untaken")

    def __init__(self, every: int, *, notes_births: bool) -> None:
        self._notes_births = notes_births
        self.next_index = 0
        """Of the ticket that opens next."""
        self.all: dict[int, Entry] = {}  # in index order
        self.untaken: dict[int, Entry] = {}  # open, in flight or ready, in index order
        self.arrived: dict[int, Entry] = {}  # ready, in order of arrival
        self.taken: list[int] = []  # with the learner
        self.births: Counter[int] = Counter()  # untaken tickets that have taken off, by birth version
        self.prefix = ReadyPrefix(every)

    def find(self, index: int, phase: Phase, verb: str) -> Entry:
        """The live ticket `index`, which must be in this phase for what is to be done with it."""
        entry = self.all.get(index)
        if entry is None:
            raise LedgerError(f"cannot {verb} ticket {index}: it is not live")
        if entry.phase is not phase:
            raise LedgerError(f"cannot {verb} ticket {index}: it is {entry.phase.value}, not {phase.value}")
        return entry

    def note_birth(self, entry: Entry) -> None:
        """It has taken off, and the learner may not leave it behind for longer than the limit on age."""
        if self._notes_births:
            assert entry.version is not None
            self.births[entry.version] += 1

    def forget_birth(self, entry: Entry) -> None:
        if self._notes_births:
            assert entry.version is not None
            self.births[entry.version] -= 1
            if not self.births[entry.version]:
                del self.births[entry.version]

    def leave(self, index: int) -> None:
        """It does not wait for the learner any more."""
        del self.untaken[index]
        self.prefix.leave(index)

    def come_back(self, entries: Iterable[Entry]) -> None:
        """The learner could not be given them: they wait again, before those that have come since."""
        back = {entry.ticket.index: entry for entry in entries}
        self.arrived = back | self.arrived  # they were chosen before those that wait now
        self.untaken = dict(sorted((back | self.untaken).items()))
        self.prefix.begin_anew()

    def clear(self) -> None:
        """The run is over."""
        self.all.clear()
        self.untaken.clear()
        self.arrived.clear()
        self.taken.clear()
        self.births.clear()
        self.prefix.begin_anew()

    # -- surviving a restart ------------------------------------------------------------------------

    def state(self, now_s: float) -> list[State]:
        """Each of them, as plain values."""
        arrival = {index: place for place, index in enumerate(self.arrived)}
        return [entry.state_dict(arrival.get(index), now_s) for index, entry in self.all.items()]

    def restore(self, state: Sequence[State], ticket: Callable[[State], Ticket], now_s: float) -> None:
        """`ticket` says how one that was saved goes on."""
        for saved in state:
            entry = Entry.restored(ticket(saved), saved, now_s)
            index = entry.ticket.index
            self.all[index] = entry
            if entry.phase is Phase.TAKEN:
                self.taken.append(index)
                continue
            self.untaken[index] = entry
            if entry.phase is Phase.READY:
                self.note_birth(entry)
        arrived = sorted((saved["arrival"], saved["index"]) for saved in state if saved["arrival"] is not None)
        self.arrived = {index: self.all[index] for _, index in arrived}
