"""The batches of a loop of one's own: who may begin, what was collected, how often, and what failed behind one's back.

    begin_collect --> end_collect (ready, or dropped because it failed) --> begin_train --> end_train (learned)

Whoever has the lock calls these, and nothing here waits. Those who do are told of news: threads by the condition,
coroutines by the functions they leave behind.
"""

from __future__ import annotations

import numbers
import threading
from asyncio import CancelledError
from collections.abc import Callable
from typing import Any

from headway.coordinator.facade_times import LoopTimes, SteeredLead
from headway.core.ledger import Ledger
from headway.core.types import DropReason, Score


class CollectFailed(RuntimeError):
    """A collect function raised in the background; the cause is attached."""


class Batches:
    """Holds the ledger, what was collected and is not trained yet, the counts, and failures nobody was told of."""

    def __init__(self, steered: SteeredLead, num_collectors: int, *, keeps_failures: bool) -> None:
        """`keeps_failures`: a collection that fails may have nobody who looks at what it returns."""
        self.ledger = Ledger(steered.rule)
        self.changed = threading.Condition()
        self.times = LoopTimes()
        self.scores: list[Score] = []
        self.collected = self.trained = 0
        self.listeners: set[Callable[[], object]] = set()
        """Called, from any thread, whenever there is news."""
        self._steered = steered
        self._num_collectors = num_collectors
        self._keeps_failures = keeps_failures
        self._results: dict[int, Any] = {}
        self._failed: dict[str, BaseException] = {}

    # -- asking -------------------------------------------------------------------------------------

    @property
    def lag(self) -> int:
        """Collected and not trained yet."""
        return self.ledger.tally.ready + self.ledger.tally.taken

    def may_collect(self) -> bool:
        return self.ledger.may_open()

    def may_train(self) -> bool:
        return not self.ledger.tally.taken and bool(self.ledger.choose(self.trained).batch)

    @property
    def has_failed_collect(self) -> bool:
        return "collect" in self._failed

    def why(self) -> str:
        tally = self.ledger.tally
        return (
            f"degree {self._steered.rule.max_lead:g}: {tally.live} of {self._steered.rule.slots} slots occupied "
            f"({tally.live - tally.ready - tally.taken} collecting, {tally.ready} collected, {tally.taken} training)"
        )

    # -- doing --------------------------------------------------------------------------------------

    def begin_collect(self) -> int:
        """Occupies a slot. Which one, for `end_collect`."""
        ticket = self.ledger.open(self.trained)
        assert ticket is not None
        self.ledger.start(ticket.index, self.trained, 0)
        self._note_blocked()
        return ticket.index

    def end_collect(self, index: int, result: Any, error: BaseException | None) -> None:
        if error is not None:
            self.ledger.drop(index, DropReason.FAILED)
            if self._keeps_failures and not isinstance(error, CancelledError):  # who cancels it knows
                self.note_failure("collect", error)
        else:
            self._results[index] = result
            self.ledger.land(index)
            self.collected += 1
        self._announce()

    def begin_train(self) -> tuple[int, Any]:
        """Takes the oldest batch: which, and what its collection returned."""
        (index,) = self.ledger.choose(self.trained).batch
        self.ledger.take([index], self.trained)
        return index, self._results.pop(index)

    def end_train(self, index: int, error: BaseException | None) -> None:
        if error is not None:
            self.ledger.drop(index, DropReason.FAILED)
        else:
            self.ledger.settle()
            self.trained += 1
            self._steered.look(self.trained, self.times)
        self._announce()

    def note_score(self, version: int, result: Any) -> None:
        """An evaluation of this version has ended; only a number is a score."""
        if isinstance(result, numbers.Real):
            self.scores.append(Score(version, float(result)))

    # -- failures -----------------------------------------------------------------------------------

    def note_failure(self, name: str, error: BaseException) -> None:
        """A collect or an eval has failed where nobody may be looking."""
        self._failed[name] = error

    def take_failure(self, name: str) -> BaseException | None:
        """Each is raised once."""
        return self._failed.pop(name, None)

    def raise_collect_failure(self) -> None:
        failure = self.take_failure("collect")
        if failure is not None:
            raise CollectFailed(f"collect raised {type(failure).__name__}: {failure}") from failure

    # -- inside -------------------------------------------------------------------------------------

    def _note_blocked(self) -> None:
        self.times.note_blocked(self.ledger, self._num_collectors)

    def _announce(self) -> None:
        self._note_blocked()
        self.changed.notify_all()
        for tell in tuple(self.listeners):
            tell()
