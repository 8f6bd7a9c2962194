"""Admission: may another ticket open, may the learner go on?

A rule is a pure predicate on the ledger's tally. It can say in words why it says no, and its constructor
refuses settings under which both sides could wait for each other.

    MaxLead      live tickets <= floor((1 + max_lead) * tickets_per_version)
    ReplayRatio  min_size first, then  |samples_per_insert * inserted - sampled - offset| <= slack
    Capacity     rollouts in the buffer or on their way to it <= max_tickets
    Bytes        what they hold, or are expected to, <= max_bytes; one batch is always allowed
    Budget       no ticket opens that could no longer be learned before the run ends
    AllOf        all of them
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from headway.core.types import State


@dataclass(slots=True)
class Tally:
    """The ledger's running counts. Rules read it, only the ledger writes it."""

    opened: int = 0
    live: int = 0
    """Opened and not settled: the occupied slots."""
    ready: int = 0
    taken: int = 0
    learned: int = 0
    dropped: int = 0
    inserted: float = 0.0
    """Steps handed to the learner so far (in a replay recipe: put into the replay)."""
    waiting_steps: float = 0.0
    """Steps of the rollouts that wait in the buffer."""
    waiting_bytes: int = 0
    """What those rollouts hold."""
    landed: int = 0
    """Rollouts that have come in."""
    landed_bytes: int = 0
    """What they held."""
    sampled: float = 0.0
    """Samples the learner says it has trained on."""
    trained: float = 0.0
    """Of the steps handed to the learner, those that it had when its last update was made."""

    @property
    def untaken(self) -> int:
        """Tickets the learner does not have yet: open, in flight or ready."""
        return self.live - self.taken

    @property
    def coming_bytes(self) -> float:
        """What waits, and what is on its way if it is as big as those before."""
        mean = self.landed_bytes / self.landed if self.landed else 0.0
        return self.waiting_bytes + (self.untaken - self.ready) * mean

    def begin_to_wait(self, steps: int, size: int) -> None:
        """A rollout is in the buffer."""
        self.ready += 1
        self.waiting_steps += steps
        self.waiting_bytes += size

    def wait_no_more(self, steps: int, size: int) -> None:
        """A rollout has left the buffer."""
        self.ready -= 1
        self.waiting_steps -= steps
        self.waiting_bytes -= size

    def close(self) -> None:
        """Nothing is live any more."""
        self.live = self.ready = self.taken = self.waiting_bytes = 0
        self.waiting_steps = 0.0

    def state_dict(self) -> State:
        """What does not follow from the live tickets."""
        return {
            "learned": self.learned,
            "inserted": self.inserted,
            "sampled": self.sampled,
            "trained": self.trained,
            "sizes": [self.landed, self.landed_bytes],
        }

    def load_state_dict(self, state: State) -> None:
        self.landed, self.landed_bytes = state["sizes"]
        self.learned = state["learned"]
        self.inserted = state["inserted"]
        self.sampled = state["sampled"]
        self.trained = state.get("trained", self.inserted)  # of earlier versions: nobody said


class Rule(Protocol):
    """May a ticket open? May the learner start an update?"""

    def may_open(self, tally: Tally) -> bool: ...

    def may_learn(self, tally: Tally) -> bool: ...

    def why_not_open(self, tally: Tally) -> str: ...

    def why_not_learn(self, tally: Tally) -> str: ...


class MaxLead:
    """Collection may run `max_lead` versions ahead of learning.

    A version consumes `tickets_per_version` tickets, so `1 + max_lead` versions' worth may be live: those
    being learned and those ahead of them. 0 is the synchronous loop. Fractions are allowed.
    """

    def __init__(self, max_lead: float, tickets_per_version: int = 1) -> None:
        if tickets_per_version < 1:
            raise ValueError(f"tickets_per_version must be >= 1, received {tickets_per_version!r}")
        self.tickets_per_version = tickets_per_version
        self.retune(max_lead)

    def retune(self, max_lead: float) -> None:
        """Move the lead while running. A smaller one takes effect as live tickets settle."""
        if not (math.isfinite(max_lead) and max_lead >= 0):
            raise ValueError(f"max_lead must be a finite number >= 0, received {max_lead!r}")
        self.max_lead = max_lead
        self.slots = slots_for(max_lead, self.tickets_per_version)

    def staleness_bound(self, overtakers: int = 0) -> int:
        """The oldest a rollout can be when taken, if at most `overtakers` younger tickets go before it.

        Between its birth and its turn only the other live tickets (slots - 1) and the overtakers are
        learned from, and each version takes tickets_per_version of them.
        """
        return (self.slots - 1 + overtakers) // self.tickets_per_version

    def may_open(self, tally: Tally) -> bool:
        return tally.live < self.slots

    def may_learn(self, tally: Tally) -> bool:
        return True

    def why_not_open(self, tally: Tally) -> str:
        return f"all {self.slots} slots of max_lead={self.max_lead:g} are occupied"

    def why_not_learn(self, tally: Tally) -> str:
        return ""


def slots_for(max_lead: float, tickets_per_version: int) -> int:
    """floor((1 + max_lead) * tickets_per_version), without the rounding noise of e.g. 0.1 * 10."""
    return math.floor((1 + max_lead) * tickets_per_version + 1e-9)


class ReplayRatio:
    """Keep `sampled` near `samples_per_insert * inserted`, once `min_size` steps are in the replay.

    With offset = samples_per_insert * min_size and error = samples_per_insert * inserted - sampled, the
    learner may go on while the error stays above offset - slack, and a ticket may open while it stays below
    offset + slack (tickets under way count as inserted). Raising `slack` lets the two sides drift further
    apart before one waits.
    """

    def __init__(
        self,
        samples_per_insert: float,
        min_size: float = 1,
        slack: float | None = None,
        *,
        samples_per_update: float = 1,
        steps_per_ticket: float = 1,
    ) -> None:
        for name, value in (
            ("samples_per_insert", samples_per_insert),
            ("min_size", min_size),
            ("samples_per_update", samples_per_update),
            ("steps_per_ticket", steps_per_ticket),
        ):
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be a finite number > 0, received {value!r}")
        stride = samples_per_update + samples_per_insert * steps_per_ticket
        slack = stride if slack is None else slack
        if not 2 * slack >= stride:  # nan too
            raise ValueError(
                f"slack={slack:g} deadlocks: collection and learning would both wait; it must be at least "
                f"{stride / 2:g} = (samples_per_update + samples_per_insert * steps_per_ticket) / 2"
            )
        self.samples_per_insert = samples_per_insert
        self.min_size = min_size
        self.slack = slack
        self.samples_per_update = samples_per_update
        self.steps_per_ticket = steps_per_ticket
        self._offset = samples_per_insert * min_size

    def describe(self) -> dict[str, float]:
        """What it was built with."""
        names = ("samples_per_insert", "min_size", "slack", "samples_per_update", "steps_per_ticket")
        return {name: getattr(self, name) for name in names}

    @property
    def max_updates_in_a_row(self) -> float:
        """Between two tickets that open: the error falls from one end of the slack to the other."""
        return 2 * self.slack / self.samples_per_update + 1

    @property
    def max_tickets_ahead(self) -> int:
        """Open tickets that the learner does not have yet, once it has begun: the same from the other end."""
        return math.floor(2 * self.slack / (self.samples_per_insert * self.steps_per_ticket) + 1e-9)

    def _error(self, inserted: float, sampled: float) -> float:
        return self.samples_per_insert * inserted - sampled

    def _coming(self, tally: Tally) -> float:
        """Steps inserted once every open ticket is: an estimate, so that it does not depend on timing."""
        return tally.inserted + tally.untaken * self.steps_per_ticket

    def may_open(self, tally: Tally) -> bool:
        coming = self._coming(tally) + self.steps_per_ticket
        if self._coming(tally) < self.min_size:
            return True
        rounding = 1e-9 * self.samples_per_insert * coming  # else the smallest slack can deadlock on the last bit
        return self._error(coming, tally.sampled) <= self._offset + self.slack + rounding

    def may_learn(self, tally: Tally) -> bool:
        if tally.inserted < self.min_size:
            return False
        return self._error(tally.inserted, tally.sampled + self.samples_per_update) >= self._offset - self.slack

    def why_not_open(self, tally: Tally) -> str:
        return (
            f"the learner has drawn {tally.sampled:g} samples for {self._coming(tally):g} inserted steps, "
            f"behind samples_per_insert={self.samples_per_insert:g} by more than slack={self.slack:g}"
        )

    def why_not_learn(self, tally: Tally) -> str:
        if tally.inserted < self.min_size:
            return f"the replay holds {tally.inserted:g} of min_size={self.min_size:g} steps"
        return (
            f"the learner has drawn {tally.sampled:g} samples for {tally.inserted:g} inserted steps, "
            f"ahead of samples_per_insert={self.samples_per_insert:g} by slack={self.slack:g}"
        )


class Capacity:
    """The buffer holds this many rollouts, those on their way to it included."""

    def __init__(self, max_tickets: int, *, tickets_per_batch: int = 1) -> None:
        if max_tickets < tickets_per_batch:
            raise ValueError(
                f"a buffer of {max_tickets} deadlocks: the learner waits for batches of {tickets_per_batch}"
            )
        self.max_tickets = max_tickets

    def may_open(self, tally: Tally) -> bool:
        return tally.untaken < self.max_tickets

    def may_learn(self, tally: Tally) -> bool:
        return True

    def why_not_open(self, tally: Tally) -> str:
        return f"the buffer of {self.max_tickets} is full"

    def why_not_learn(self, tally: Tally) -> str:
        return ""


class Bytes:
    """The rollouts that wait hold at most `max_bytes`, those on their way included as if each were of mean size.

    One batch may always be collected, however big it is: the learner waits for it, so nothing else would make room. And
    until the first rollout says how big they are, no more than that is under way.
    """

    def __init__(self, max_bytes: int, *, tickets_per_batch: int = 1) -> None:
        if max_bytes < 1:
            raise ValueError(f"queue_bytes_limit must be >= 1, received {max_bytes!r}")
        self.max_bytes = max_bytes
        self.tickets_per_batch = tickets_per_batch

    def may_open(self, tally: Tally) -> bool:
        if tally.untaken < self.tickets_per_batch:
            return True
        if not tally.landed:
            return False
        return tally.coming_bytes + tally.landed_bytes / tally.landed <= self.max_bytes

    def may_learn(self, tally: Tally) -> bool:
        return True

    def why_not_open(self, tally: Tally) -> str:
        if not tally.landed:
            return f"a first rollout, to know how many fit into queue_bytes_limit={self.max_bytes}"
        return (
            f"rollouts that wait or are on their way take {tally.coming_bytes:.0f} of queue_bytes_limit="
            f"{self.max_bytes} bytes"
        )

    def why_not_learn(self, tally: Tally) -> str:
        return ""


class Budget:
    """Nothing is collected that can no longer be learned: a run of N updates opens N batches of tickets.

    A dropped ticket gives its place back, so drops are made up for. Under `max_steps` a batch that has been
    begun is filled up to `tickets_per_batch`, or the learner would wait for tickets that never open.
    """

    def __init__(
        self, *, max_tickets: int | None = None, max_steps: float | None = None, tickets_per_batch: int = 1
    ) -> None:
        for name, value in (
            ("max_tickets", max_tickets),
            ("max_steps", max_steps),
            ("tickets_per_batch", tickets_per_batch),
        ):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be >= 1, received {value!r}")
        self.max_tickets = max_tickets
        self.max_steps = max_steps
        self.tickets_per_batch = tickets_per_batch

    def may_open(self, tally: Tally) -> bool:
        if self.max_tickets is not None and tally.learned + tally.live >= self.max_tickets:
            return False
        if self.max_steps is None or tally.inserted + tally.waiting_steps < self.max_steps:
            return True
        return tally.untaken % self.tickets_per_batch > 0

    def may_learn(self, tally: Tally) -> bool:
        return True

    def why_not_open(self, tally: Tally) -> str:
        return "every ticket this run can still learn from is open"

    def why_not_learn(self, tally: Tally) -> str:
        return ""


class AllOf:
    """Every rule must agree; the first that does not gives the reason."""

    def __init__(self, *rules: Rule) -> None:
        if not rules:
            raise ValueError("AllOf needs at least one rule; without any, collection is unbounded")
        self.rules = rules

    def may_open(self, tally: Tally) -> bool:
        for rule in self.rules:  # noqa: SIM110 - all() with a generator is three times slower here
            if not rule.may_open(tally):
                return False
        return True

    def may_learn(self, tally: Tally) -> bool:
        return all(rule.may_learn(tally) for rule in self.rules)

    def why_not_open(self, tally: Tally) -> str:
        return next((r.why_not_open(tally) for r in self.rules if not r.may_open(tally)), "")

    def why_not_learn(self, tally: Tally) -> str:
        return next((r.why_not_learn(tally) for r in self.rules if not r.may_learn(tally)), "")
