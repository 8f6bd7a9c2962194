"""What the games of a run are doing, since when, and how long their steps took.

call("game 3", "step 5"): waits for a place --began("worker 1")--> works --> over, and its seconds are counted
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

STEP = "step"


@dataclass(slots=True)
class WatchedCall:
    """One call of an environment: who does what, and since when it waits or works."""

    game: str
    what: str
    since: float
    where: str = ""
    is_working: bool = False

    def began(self, where: str = "") -> None:
        """Says that the waiting is over."""
        self.where = where or self.where
        self.since = time.monotonic()
        self.is_working = True

    def line(self, now: float) -> str:
        where = f" ({self.where})" if self.where else ""
        does = self.what if self.is_working else f"{self.what} waits for its turn"
        return f"{self.game}{where}: {does} since {now - self.since:.1f} s"


class StepWatch:
    """Keeps the calls under way, counts what was lost, and measures steps."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._calls: dict[int, WatchedCall] = {}
        self._counts: Counter[str] = Counter()
        self._step_s = 0.0
        self._max_step_s = 0.0

    @contextmanager
    def call(self, game: str, what: str, where: str = "") -> Iterator[WatchedCall]:
        """Lists a call until it is over, however it ends."""
        call = WatchedCall(game, what, time.monotonic(), where)
        with self._lock:
            number = next(self._numbers)
            self._calls[number] = call
        try:
            yield call
        finally:
            with self._lock:
                del self._calls[number]
                if call.is_working and what.startswith(STEP):
                    seconds = time.monotonic() - call.since
                    self._counts["steps"] += 1
                    self._step_s += seconds
                    self._max_step_s = max(self._max_step_s, seconds)

    def count(self, what: str, number: int = 1) -> None:
        """`games`, `lost`, `restarted`, `abandoned`, `not_closed`."""
        with self._lock:
            self._counts[what] += number

    def doing(self) -> list[str]:
        """`game 3 (worker 1): step 5 since 12.1 s`; what has lasted longest comes first, work before waiting."""
        with self._lock:
            calls = sorted(self._calls.values(), key=lambda call: (not call.is_working, call.since))
            now = time.monotonic()
            return [call.line(now) for call in calls]

    def health(self) -> dict[str, float]:
        with self._lock:
            working = sum(call.is_working for call in self._calls.values())
            steps = self._counts["steps"]
            return {
                "games": float(self._counts["games"]),
                "under_way": float(working),
                "waiting": float(len(self._calls) - working),
                "steps": float(steps),
                "mean_step_s": self._step_s / steps if steps else 0.0,
                "max_step_s": self._max_step_s,
                "lost": float(self._counts["lost"]),
                "restarted": float(self._counts["restarted"]),
                "abandoned": float(self._counts["abandoned"]),
                "not_closed": float(self._counts["not_closed"]),
            }
