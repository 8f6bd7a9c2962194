"""A loop of one's own whose functions are coroutines: they run in the caller's event loop.

    await coordinator.run_collect(collect)      or a task of it: it overlaps with the rest wherever it awaits
    await coordinator.run_train(train)
    await coordinator.run_eval(evaluate)        with enable_async_eval a task of its own begins, and None is the answer
    await coordinator.wait_for_eval()

Batches, bounds and counts are those of functions that run in threads; one loop may use both.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from headway.coordinator.activities_waits import Stalled
from headway.coordinator.facade_batches import Batches

T = TypeVar("T")
CoroutineFunction = Callable[..., Coroutine[Any, Any, Any]]


class CoroutineCalls:
    """Waits for a slot or a batch without blocking the event loop, then awaits what is to be done."""

    def __init__(self, batches: Batches, deadline_s: float, *, evaluates_in_background: bool) -> None:
        self._batches = batches
        self._deadline_s = deadline_s
        self._evaluates_in_background = evaluates_in_background
        self._evaluation: asyncio.Task[Any] | None = None  # the newest, which waits for those before it

    async def collect(self, function: CoroutineFunction) -> Any:
        batches, result = self._batches, None
        index = await self._begun(batches.may_collect, batches.begin_collect, "slot", "a slot for run_collect")
        failure: BaseException | None = None
        try:
            result = await self._timed("collect", function())
        except BaseException as error:
            failure = error
            raise
        finally:  # whatever it was, no slot may stay behind
            with batches.changed:
                batches.end_collect(index, result, failure)
        return result

    async def train(self, function: CoroutineFunction, *, wants_batch: bool) -> Any:
        batches = self._batches
        index, collected = await self._begun(batches.may_train, batches.begin_train, "data", "a batch for run_train")
        failure: BaseException | None = None
        try:
            return await self._timed("train", function(*([collected] if wants_batch else [])))
        except BaseException as error:
            failure = error
            raise
        finally:
            with batches.changed:
                batches.end_train(index, failure)

    async def evaluate(self, function: CoroutineFunction) -> Any:
        """In the background they run one after another, and none is cancelled."""
        version = self._batches.trained
        if not self._evaluates_in_background:
            return await self._evaluated(function, version)
        self._evaluation = asyncio.create_task(self._evaluate_after(self._evaluation, function, version))
        return None

    async def wait_for_evaluations(self) -> Any:
        """What the last one returned; None if there was none, or if it failed."""
        return None if self._evaluation is None else await _ended(self._evaluation)

    @property
    def is_evaluating(self) -> bool:
        return self._evaluation is not None and not self._evaluation.done()

    # -- inside -------------------------------------------------------------------------------------

    async def _evaluate_after(self, before: asyncio.Task[Any] | None, function: CoroutineFunction, version: int) -> Any:
        if before is not None:
            await _ended(before)
        try:
            return await self._evaluated(function, version)
        except Exception as error:
            with self._batches.changed:
                self._batches.note_failure("eval", error)
            raise

    async def _evaluated(self, function: CoroutineFunction, version: int) -> Any:
        result = await self._timed("eval", function())
        with self._batches.changed:
            self._batches.note_score(version, result)
        return result

    async def _begun(self, may_begin: Callable[[], bool], begin: Callable[[], T], cause: str, what: str) -> T:
        """Begins as soon as it may: whether it may and that it did are one step for all threads."""
        batches, news, since = self._batches, asyncio.Event(), time.perf_counter()
        listener = partial(asyncio.get_running_loop().call_soon_threadsafe, news.set)
        with batches.changed:
            batches.listeners.add(listener)
        try:
            async with asyncio.timeout(self._deadline_s):
                while True:
                    news.clear()
                    with batches.changed:
                        batches.raise_collect_failure()
                        if may_begin():
                            batches.times.waited[cause] += time.perf_counter() - since
                            return begin()
                    await news.wait()
        except TimeoutError:
            raise Stalled(f"waited {self._deadline_s:g} s for {what}; {batches.why()}") from None
        finally:
            with batches.changed:
                batches.listeners.discard(listener)

    async def _timed(self, name: str, work: Coroutine[Any, Any, Any]) -> Any:
        started = time.perf_counter()
        try:
            return await work
        finally:
            with self._batches.changed:
                self._batches.times.note_call(name, time.perf_counter() - started)


async def _ended(task: asyncio.Task[Any]) -> Any:
    """What it returned; None if it failed, which was noted, or if it was cancelled."""
    await asyncio.wait([task])
    return None if task.cancelled() or task.exception() is not None else task.result()


def is_coroutine_function(function: object) -> bool:
    """Does it return something to await? Also where an object is called."""
    call = getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def refuse_coroutine(name: str, result: object) -> None:
    """A function that is none of coroutines has returned one: nobody would ever run it."""
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(
            f"{name} returned a coroutine that nobody awaits: hand over the async function itself, and await the call"
        )
