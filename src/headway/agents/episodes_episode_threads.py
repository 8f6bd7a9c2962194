"""Threads of which each plays one episode at a time. They belong to whoever made them, and end with `close`."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

Work = Callable[[], None]
CLOSE_S = 5.0


class EpisodeThreads:
    """Runs each piece of work at once, in a thread that is idle or new. Work raises nothing: it says how it ended."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._num_idle = 0  # threads that have nothing to do, less the work that waits for one
        self._is_closed = False

    @property
    def num_threads(self) -> int:
        return len(self._threads)

    def start(self, work: Work) -> None:
        """Nobody waits for it: it begins now, however many are under way."""
        with self._lock:
            if self._is_closed:
                raise RuntimeError(f"{self._name}: no episode begins after close")
            if self._num_idle:
                self._num_idle -= 1
            else:
                self._add_thread()
            self._waiting.put(work)

    def close(self, within_s: float = CLOSE_S) -> None:
        """Lets the threads end. One that hangs in an environment is left behind: it ends with the process."""
        with self._lock:
            self._is_closed = True
            threads, self._threads = self._threads, []
        for _ in threads:
            self._waiting.put(None)
        ends_at = time.monotonic() + within_s
        for thread in threads:
            thread.join(max(0.0, ends_at - time.monotonic()))

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{self._name} {len(self._threads)}", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _work(self) -> None:
        while (work := self._waiting.get()) is not None:
            work()
            del work
            with self._lock:
                self._num_idle += 1
