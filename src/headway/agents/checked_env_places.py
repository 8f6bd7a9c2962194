"""Places that callers take and give back, first come, first served.

    take: a free place at once | waits in the queue -> is handed one | gives up after its time | told that it is over

Invariants: a place that is given back goes to whoever has waited longest; nobody overtakes; after `close` nobody waits.
"""

from __future__ import annotations

import threading
from collections import deque

from headway.agents.env import BadEnvironment, EnvironmentLost


class Places:
    """Lets at most `number` callers work at a time."""

    def __init__(self, number: int) -> None:
        self._lock = threading.Lock()
        self._free = number
        self._queue: deque[_Waiter] = deque()
        self._over: BadEnvironment | EnvironmentLost | None = None

    def take(self, timeout_s: float | None = None) -> bool:
        """Waits for a place; False if there was none in this time. Raises the reason once it is over."""
        with self._lock:
            if self._over is not None:
                raise type(self._over)(str(self._over))
            if self._free:
                self._free -= 1
                return True
            waiter = _Waiter()
            self._queue.append(waiter)
        waiter.called.wait(timeout_s)
        with self._lock:
            if waiter.has_place:
                return True
            if self._over is not None:
                raise type(self._over)(str(self._over))
            self._queue.remove(waiter)
            return False

    def give_back(self) -> None:
        with self._lock:
            if self._queue and self._over is None:
                waiter = self._queue.popleft()
                waiter.has_place = True
                waiter.called.set()
            else:
                self._free += 1

    def close(self, why: BadEnvironment | EnvironmentLost) -> None:
        """Tells whoever waits, now or later, that there will be no place."""
        with self._lock:
            self._over = self._over or why
            for waiter in self._queue:
                waiter.called.set()


class _Waiter:
    def __init__(self) -> None:
        self.called = threading.Event()
        self.has_place = False
