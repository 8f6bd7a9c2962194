"""Threads that run what they are given, in order: collections and evaluations of those who keep their own loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from headway.coordinator.activities_waits import Stalled


class BackgroundThreads:
    """Daemon threads with one inbox. With a size of 0 there are none, and nothing may be put."""

    def __init__(self, name: str, size: int) -> None:
        self.size = size
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name=f"{name}-{i}", daemon=True) for i in range(size)]
        for thread in self._threads:
            thread.start()

    def check_open(self) -> None:
        if self.size and not self._threads:
            raise RuntimeError("the coordinator is shut down: nothing runs in the background any more")

    def put(self, work: Callable[[], None]) -> None:
        self._inbox.put(work)

    def close(self, deadline_s: float) -> None:
        for _ in self._threads:
            self._inbox.put(None)
        for thread in self._threads:
            thread.join(deadline_s)
            if thread.is_alive():
                raise Stalled(f"{thread.name} did not finish within {deadline_s:g} s")
        self._threads = []

    def _work(self) -> None:
        while (work := self._inbox.get()) is not None:
            work()
