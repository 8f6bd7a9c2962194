"""Threads of their own: for work that an event loop waits for, and for an event loop that a thread waits for.

    event loop                                 a daemon thread
    await beside(work)  ------ starts ------>  work()
          <------ result or exception --------

    notebook, asyncio                          a daemon thread
    headway.run(...)    ------ starts ------>  runtime.run(main): an event loop of its own
          <------ result or exception --------

A thread can have one running event loop, and those of a notebook kernel and of `asyncio.run` do not end for us. The
caller waits in the meantime, as it does everywhere else, and signals still reach it. A KeyboardInterrupt that comes in
spite of our signal handlers asks the run to end, as Ctrl-C does; a second one aborts it, a third one leaves it behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from headway.core.protocols import Runtime
from headway.core.types_opaque import CoroutineOf
from headway.runtimes.loop_threads_daemon_thread import daemon_thread, in_daemon_thread

T = TypeVar("T")
SIGNALS_S = 0.5
"""How long a signal may go unseen that hit another thread, or this one in the moment in which it began to wait: Python
calls its handlers in the main thread alone, and nobody wakes that one then."""


async def beside(work: Callable[[], T]) -> T:
    """The result of `work`, done in a daemon thread.

    Unlike `asyncio.to_thread`, nothing waits for it at the end: a disk that never answers keeps no process alive.
    """
    return await awaitable(in_daemon_thread(work, "beside the coordinator"))


def awaitable(done: Future[T]) -> asyncio.Future[T]:
    """For the running loop. Whoever waits may stop waiting, and the loop may be closed, before it is done."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def pass_on(done: Future[T]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: whoever asked is gone
            loop.call_soon_threadsafe(settle, answer, done)

    done.add_done_callback(pass_on)
    return answer


def settle(answer: asyncio.Future[T], done: Future[T]) -> None:
    """In the loop's thread: whoever waits for `answer` has what another thread has done."""
    if answer.done():  # whoever asked has given up
        return
    error = done.exception()
    if error is None:
        answer.set_result(done.result())
    else:
        answer.set_exception(error)


def has_running_loop() -> bool:
    """Whether the calling thread is inside of an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def run_in_own_thread(runtime: Runtime, main: CoroutineOf[T], stop: Callable[[], None], abort: Callable[[], None]) -> T:
    """The result of `main`, or what it raised. `stop` and `abort` are for a KeyboardInterrupt that hits the caller."""
    ended: Future[T] = Future()
    context = contextvars.copy_context()  # a notebook finds the cell that printed something by it
    thread = daemon_thread(lambda: context.run(runtime.run, main), "headway coordinator", ended)
    return result_of(ended, stop, abort, begin=thread.start)


def result_of(
    ended: Future[T], stop: Callable[[], None], abort: Callable[[], None], begin: Callable[[], None] | None = None
) -> T:
    """What becomes of a run in another thread, which `begin` starts. The first KeyboardInterrupt asks it to end, the
    second one aborts it, the third one leaves it behind."""
    interrupts = [stop, abort]
    while not ended.done():
        try:
            if begin is not None:
                start, begin = begin, None  # before: an interrupt may hit us when it has just begun
                start()
            wait([ended], SIGNALS_S)
        except KeyboardInterrupt:
            if not interrupts:
                raise
            interrupts.pop(0)()
    return ended.result()
