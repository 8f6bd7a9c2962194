"""What a loop of one's own spends its time with, and the lead that follows from it."""

from __future__ import annotations

import time

from headway.core.ledger import Ledger
from headway.core.rules import MaxLead
from headway.core.rules_lead import AutoLead, FixedLead, Interval, Lead, starting_lead

LOOK_EVERY = 8  # trained batches between two looks of the auto lead


class LoopTimes:
    """Seconds in calls, in waits, and of collectors before occupied slots. Whoever has the lock calls it."""

    def __init__(self) -> None:
        self.calls = {"collect": 0, "train": 0, "eval": 0}
        self._spent = {"collect": 0.0, "train": 0.0, "eval": 0.0}
        self.waited = {"data": 0.0, "slot": 0.0}
        self.blocked_s = 0.0
        """Collectors' time, as a share of them all, before occupied slots."""
        self._blocked_share = 0.0
        self._blocked_since = time.perf_counter()

    def note_call(self, name: str, seconds: float) -> None:
        self._spent[name] += seconds
        self.calls[name] += 1

    def mean(self, name: str) -> float:
        return self._spent[name] / self.calls[name] if self.calls[name] else 0.0

    def note_blocked(self, ledger: Ledger, collectors: int) -> None:
        """Collectors are held back while no slot is free: those that have nothing to do, asked for or not."""
        now, tally = time.perf_counter(), ledger.tally
        self.blocked_s += self._blocked_share * (now - self._blocked_since)
        self._blocked_since, self._blocked_share = now, 0.0
        if not ledger.may_open():
            busy = tally.live - tally.ready - tally.taken
            self._blocked_share = max(0.0, 1 - busy / max(1, collectors))


class SteeredLead:
    """The rule on how far collection may run ahead: as it was given, or as an auto lead moves it."""

    def __init__(self, off_policy_degree: int, buffer_size: int | None, batch_size: int | None) -> None:
        self._lead: Lead = FixedLead(off_policy_degree) if off_policy_degree >= 0 else _auto(buffer_size, batch_size)
        self.rule = MaxLead(self._lead.current)
        self._looked = (time.perf_counter(), 0.0, 0.0)

    def look(self, trained: int, times: LoopTimes) -> None:
        """Let an auto lead see what the last batches cost."""
        if trained % LOOK_EVERY:
            return
        now, (since, data, slot) = time.perf_counter(), self._looked
        elapsed = max(now - since, 1e-9)
        interval = Interval((times.waited["data"] - data) / elapsed, (times.blocked_s - slot) / elapsed)
        self._looked = (now, times.waited["data"], times.blocked_s)
        self.rule.retune(self._lead.observe(interval))


def _auto(buffer_size: int | None, batch_size: int | None) -> AutoLead:
    if not (buffer_size and batch_size):
        raise ValueError("off_policy_degree=-1 (auto) starts from the buffer: give buffer_size and batch_size")
    start = starting_lead(buffer_size, batch_size)
    return AutoLead(start, max(start, buffer_size // batch_size))
