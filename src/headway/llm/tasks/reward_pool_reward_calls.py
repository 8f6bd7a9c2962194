r"""Where reward calls run: threads that can be left behind, an event loop of their own, processes that can be killed.

threads      ask ----- answers ----> idle: takes the next one
                 \--- deadline ---> abandoned: the thread ends whenever its function does; nobody waits for it
event loop   a coroutine that is late is cancelled; a loop that one blocks is abandoned, and a new one made
processes    late: killed, and counted (`reward_processes.py`)
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

from headway.core.text_one_line import in_a_line
from headway.core.types_opaque import CoroutineOf

T = TypeVar("T")
Work = Callable[[], None]


class CallThread:
    """Runs one piece of work after another, until it is told to end or is abandoned."""

    def __init__(self, name: str, is_idle: Callable[[CallThread], None]) -> None:
        self._name = name
        self._is_idle = is_idle
        self._works: SimpleQueue[Work | None] = SimpleQueue()
        self.is_abandoned = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def start(self, work: Work | None) -> None:
        self._works.put(work)

    def _run(self) -> None:
        while not self.is_abandoned and (work := self._works.get()) is not None:
            work()
            del work
            self._is_idle(self)


class CallThreads:
    """Runs each call at once, in a thread that is idle or new. How many there may be is for the caller to bound."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._idle: list[CallThread] = []
        self._abandoned: dict[CallThread, tuple[str, float]] = {}

    def begin(self, call: Callable[[], T]) -> tuple[Future[T], CallThread]:
        """Begins a call; the thread is to be abandoned if nobody waits for it any more."""
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()

        def work() -> None:
            try:
                result = call()
            except StopIteration as error:  # which nobody can wait for
                done.set_exception(RuntimeError(in_a_line(error)))
            except Exception as error:  # noqa: BLE001 - raised where somebody waits for it
                done.set_exception(error)
            except BaseException as error:  # noqa: BLE001 - would end the loop of whoever waits
                done.set_exception(RuntimeError(in_a_line(error)))
            else:
                done.set_result(result)

        with self._lock:
            thread = self._idle.pop() if self._idle else CallThread(self._name, self._give_back)
        thread.start(work)
        return done, thread

    def abandon(self, thread: CallThread, done: Future[T], what: str) -> None:
        """Leaves a thread to itself if its call is not done: it takes nothing more."""
        with self._lock:
            if done.done():  # and the thread may be another call's by now
                return
            thread.is_abandoned = True
            self._abandoned[thread] = what, time.monotonic()

    def abandoned(self) -> Iterator[tuple[str, float]]:
        """Says of every abandoned thread that still hangs in what, and since when."""
        with self._lock:
            return iter(list(self._abandoned.values()))

    @property
    def num_abandoned(self) -> int:
        return len(self._abandoned)

    def _give_back(self, thread: CallThread) -> None:
        with self._lock:
            if thread.is_abandoned:
                self._abandoned.pop(thread, None)
            else:
                self._idle.append(thread)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for thread in idle:
            thread.start(None)


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def begin(self, coroutine: CoroutineOf[T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    async def answers_within(self, seconds: float) -> bool:
        """Is it free to do anything at all? Asked from another loop."""
        try:
            await asyncio.wait_for(asyncio.wrap_future(self.begin(asyncio.sleep(0))), seconds)
        except TimeoutError:
            return False
        return True

    def close(self, within_s: float = 0.0) -> None:
        """Cancels what is under way and ends the loop, if it listens."""
        ending = self._end()
        try:
            self.begin(ending)
        except RuntimeError:  # it is closed already
            ending.close()
        if within_s:
            self._thread.join(within_s)

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.loop.stop()

    def _run(self) -> None:
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()
