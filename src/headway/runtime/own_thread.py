"""Runs a coordinator from a thread of its own, where the caller's thread has an event loop that is running already.

    notebook, asyncio             a thread of ours
    headway.run(...) -- starts -->  runtime.run(main): an event loop of its own
             waits <-- result or exception --+

A thread can have one running event loop, and those of a notebook kernel and of `asyncio.run` do not end for us. The
caller waits in the meantime, as it does everywhere else, and signals still reach it. A KeyboardInterrupt that comes in
spite of our signal handlers asks the run to end, as Ctrl-C does; a second one aborts it, a third one leaves it behind.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from headway.core.protocols import Runtime

T = TypeVar("T")


def has_running_loop() -> bool:
    """Whether the calling thread is inside of an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def run_in_own_thread(
    runtime: Runtime, main: Coroutine[Any, Any, T], stop: Callable[[], None], abort: Callable[[], None]
) -> T:
    """The result of `main`, or what it raised. `stop` and `abort` are for a KeyboardInterrupt that hits the caller."""
    ended: list[T] = []
    raised: list[BaseException] = []
    is_over = threading.Event()

    def drive() -> None:
        try:
            ended.append(runtime.run(main))
        except BaseException as error:
            raised.append(error)
        finally:
            is_over.set()

    context = contextvars.copy_context()  # a notebook finds the cell that printed something by it
    thread = threading.Thread(target=context.run, args=(drive,), name="headway coordinator", daemon=True)
    interrupts, is_begun = [stop, abort], False
    while not is_over.is_set():
        try:
            if not is_begun:
                is_begun = True  # before: an interrupt may hit us when it has just begun
                thread.start()
            is_over.wait()
        except KeyboardInterrupt:
            if not interrupts:
                raise
            interrupts.pop(0)()
    if raised:
        raise raised[0]
    return ended[0]
