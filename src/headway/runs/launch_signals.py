"""Signals of a run.

SIGINT, SIGTERM   finish the update, save, end (a second one ends at once)
SIGHUP            the same, once: a terminal that closes sends several. Ignored if it was (nohup)
SIGUSR1           print who waits for what
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from headway.coordinator.coordinator import Coordinator
from headway.coordinator.run_result_control import INTERRUPTED
from headway.core.text_messages import to_stderr


@contextmanager
def answered_without_a_coordinator() -> Iterator[None]:
    """Answer SIGUSR1, which would end the process, before `routed_signals` does and after it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def explain(number: int, frame: FrameType | None) -> None:
        to_stderr("no role of the run is running: it is being prepared, or it is over")

    before = signal.signal(signal.SIGUSR1, explain)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextmanager
def routed_signals(coordinator: Coordinator, *, is_apart: bool) -> Iterator[None]:
    """Route the signals to the coordinator, which may be in another thread; put the old handlers back at the end."""
    asked = 0

    def say(line: str) -> None:
        try:
            print(line, file=sys.stderr, flush=True)
        except OSError:  # the terminal is gone
            pass
        except RuntimeError:  # the signal came in the middle of another line, which has to be whole first
            coordinator.call_soon(lambda: print(line, file=sys.stderr, flush=True))

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if number == signal.SIGHUP and asked:
            return
        asked += 1
        name = signal.Signals(number).name
        if asked > 1:
            say(f"{name} again: ending now")
            coordinator.abort()
        else:
            say(f"{name}: saving and ending after this update (again: at once)")
            coordinator.call_soon(lambda: coordinator.request_stop(f"{INTERRUPTED} by {name}"))

    def explain(number: int, frame: FrameType | None) -> None:
        if is_apart:  # in the thread where nothing moves meanwhile
            coordinator.call_soon(lambda: say(coordinator.why()))
        else:
            say(coordinator.why())

    handlers: dict[int, Callable[[int, FrameType | None], None]] = {
        signal.SIGINT: stop,
        signal.SIGTERM: stop,
        signal.SIGUSR1: explain,
    }
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handlers[signal.SIGHUP] = stop
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
