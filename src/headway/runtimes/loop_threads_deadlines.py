"""The deadlines of all calls under way: one timer, at the earliest of them.

    watch(answer, 30 s, late) ---> [answer -> when, what then] <--- the timer: whoever is late, and when to look again
    forget(answer) --------------^

A timer for each call would be made, sorted in and cancelled for every ticket, and hardly one of them ever rings.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any


class AnswerDeadlines:
    """Says when an answer does not come in time. For one event loop at a time."""

    def __init__(self) -> None:
        self._watched: dict[asyncio.Future[Any], tuple[float, Callable[..., object], tuple[object, ...]]] = {}
        self._looks_at = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, answer: asyncio.Future[Any], within_s: float, late: Callable[..., object], *args: object) -> None:
        """`late(*args)` is called once if the answer is not forgotten by then. `forget` must follow."""
        loop = answer.get_loop()
        ends_at = loop.time() + within_s
        self._watched[answer] = ends_at, late, args
        if ends_at < self._looks_at:
            self._look_at(ends_at, loop)

    def forget(self, answer: asyncio.Future[Any]) -> None:
        """The answer is here, or nobody waits for it any more."""
        self._watched.pop(answer, None)

    def close(self) -> None:
        """No timer stays behind."""
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at, self._timer = math.inf, None
        self._watched.clear()

    def _look_at(self, when: float, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = when
        self._timer = loop.call_at(when, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = self._looks_at  # and not what the clock says: that may be a hair before
        late = [answer for answer, (ends_at, _, _) in self._watched.items() if ends_at <= now]
        self._looks_at, self._timer = math.inf, None
        for answer in late:
            _, call, args = self._watched.pop(answer)
            call(*args)
        if self._watched:
            self._look_at(min(ends_at for ends_at, _, _ in self._watched.values()), loop)
