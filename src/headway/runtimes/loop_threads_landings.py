"""Answers on their way from other threads to the event loop.

    threads   --put--> [ landed ] --one wake-up--> settle, settle, settle ...    all in one turn of the loop

An answer that finds others on their way wakes nobody: it is settled with them. With many roles the loop is woken much
less often than answers come.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any


class Landings:
    """Settles what other threads have finished, in the order it came. Belongs to the running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._landed: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_called = False

    def put(self, settle: Callable[..., object], *args: Any) -> bool:
        """From any thread: `settle(*args)` is called by the loop. False if that is closed: nobody waits for this."""
        self._landed.append((settle, args))
        if self._is_called:  # and has not begun: what was appended before that is settled with the rest
            return True
        self._is_called = True
        try:
            self._loop.call_soon_threadsafe(self._settle_all)
        except RuntimeError:
            self._is_called = False
            return False
        return True

    def _settle_all(self) -> None:
        self._is_called = False
        landed = self._landed
        while landed:
            settle, args = landed.popleft()
            settle(*args)
