"""A thread of one's own for what must not hold up a run: files, sinks, a function of the user's.

put(item) --> [ items ] --thread--> work(item), one at a time, in order --> at_end()

waiting for the first item --put--> working --close--> ended: everything was worked on
                                       |
                                       +--turn_off--> ended: what still waited is handed back
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
_END: Any = object()


def _nothing() -> None:
    """There is nothing to do at the end."""


class Worker(Generic[Item]):
    """Works on items in a thread of its own, which begins with the first of them. `work` must not raise."""

    def __init__(self, name: str, work: Callable[[Item], None], *, at_end: Callable[[], None] = _nothing) -> None:
        """`at_end` is called in the thread, after the last item, whatever became of it."""
        self._name = name
        self._work = work
        self._at_end = at_end
        self._items: deque[Item] = deque()
        self._change = threading.Condition()
        self._is_over = False
        self._is_off = False
        self._thread: threading.Thread | None = None

    @property
    def is_off(self) -> bool:
        return self._is_off

    @property
    def is_over(self) -> bool:
        """No more items will come."""
        return self._is_over

    @property
    def has_begun(self) -> bool:
        return self._thread is not None

    def __len__(self) -> int:
        """How many items wait."""
        return len(self._items)

    def start(self) -> None:
        """Begin before there is an item. RuntimeError: there is no further thread."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            thread.start()
            self._thread = thread

    def put(self, item: Item) -> None:
        """Hand an item over without waiting; one that is off takes none. RuntimeError: there is no further thread."""
        if self._is_off:
            return
        with self._change:
            self._items.append(item)
            self._change.notify_all()
        self.start()

    def turn_off(self) -> list[Item] | None:
        """Nothing that still waits will be worked on: it is handed back. None: this one was off already."""
        with self._change:
            if self._is_off:
                return None
            self._is_off = True
            waiting = list(self._items)
            self._items.clear()
            self._change.notify_all()
        return waiting

    def close(self) -> None:
        """No more items will come; what waits is worked on."""
        with self._change:
            self._is_over = True
            self._change.notify_all()

    def has_ended(self, within_s: float) -> bool:
        """Wait for the thread to end; False if it has not within this time."""
        if self._thread is not None:
            self._thread.join(within_s)
        return self._thread is None or not self._thread.is_alive()

    def pause(self, seconds: float) -> None:
        """Called in the thread: wait, but no longer than until the end."""
        with self._change:
            self._change.wait_for(lambda: self._is_over or self._is_off, seconds)

    def _run(self) -> None:
        try:
            for item in iter(self._next, _END):
                self._work(item)
        finally:
            self._at_end()

    def _next(self) -> Item:
        with self._change:
            self._change.wait_for(lambda: self._items or self._is_over or self._is_off)
            return self._items.popleft() if self._items else _END
