"""For people who keep their own loop: the ledger behind a blocking, thread-safe interface.

    with AsyncTrainingCoordinator(off_policy_degree=4) as coordinator:
        while coordinator.train_count < 1000:
            while coordinator.can_collect():
                coordinator.run_collect(collector.collect)     # in the background, at most 4 ahead
            coordinator.run_train(learner.train)               # waits for data, then runs here
            if coordinator.train_count % 100 == 0:
                coordinator.run_eval(evaluate)

`off_policy_degree` 0 runs everything in the calling thread, in the order called: the loop without us. N lets
collection run N batches ahead of the batch being trained. -1 starts from a tenth of the buffer and then
follows what it measures.

Functions may be coroutines: then each call is awaited, and runs in the caller's event loop (facade_coroutines.py).
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar, overload

from headway.coordinator.activities_waits import Stalled
from headway.coordinator.facade_background_threads import BackgroundThreads
from headway.coordinator.facade_batches import Batches, CollectFailed
from headway.coordinator.facade_coroutines import CoroutineCalls, is_coroutine_function, refuse_coroutine
from headway.coordinator.facade_times import SteeredLead
from headway.core.text_statistics import seconds, statistics_block
from headway.core.types import Score

__all__ = ["AsyncTrainingCoordinator", "CollectFailed", "EvalFailed", "statistics_rows"]

T = TypeVar("T")


class EvalFailed(RuntimeError):
    """An evaluate function raised in the background; the cause is attached."""


class AsyncTrainingCoordinator:
    """Bounds how far `run_collect` may run ahead of `run_train`. Safe to call from any thread."""

    def __init__(
        self,
        off_policy_degree: int = 0,
        enable_async_eval: bool = False,
        *,
        buffer_size: int | None = None,
        batch_size: int | None = None,
        num_workers: int = 1,
        deadline_s: float = 600.0,
        print_on_exit: bool = True,
    ) -> None:
        if isinstance(off_policy_degree, bool) or not isinstance(off_policy_degree, int) or off_policy_degree < -1:
            raise ValueError(
                f"off_policy_degree must be 0 (synchronous), a positive whole number or -1 (auto), "
                f"received {off_policy_degree!r}"
            )
        for name, size in (("buffer_size", buffer_size), ("batch_size", batch_size)):
            if size is not None and size < 1:
                raise ValueError(f"{name} must be >= 1, received {size!r}")
        steered = SteeredLead(off_policy_degree, buffer_size, batch_size)
        if num_workers < 1:
            raise ValueError(f"num_workers must be >= 1, received {num_workers!r}")
        if not (math.isfinite(deadline_s) and deadline_s > 0):
            raise ValueError(f"deadline_s must be a finite number > 0, received {deadline_s!r}")
        self.enable_async_eval = enable_async_eval
        self.is_async = off_policy_degree != 0
        self._steered = steered
        self._deadline_s = deadline_s
        self._print_on_exit = print_on_exit
        self._collectors = BackgroundThreads("collect", num_workers if self.is_async else 0)
        self._evaluators = BackgroundThreads("eval", 1 if enable_async_eval else 0)
        self._batches = Batches(steered, self._collectors.size, keeps_failures=self.is_async)
        self._coroutines = CoroutineCalls(self._batches, deadline_s, evaluates_in_background=enable_async_eval)

    # -- asking -------------------------------------------------------------------------------------

    @property
    def is_synchronous(self) -> bool:
        return not self.is_async

    @property
    def collect_count(self) -> int:
        """Collections that are done."""
        return self._batches.collected

    @property
    def train_count(self) -> int:
        """Batches that are trained: the version."""
        return self._batches.trained

    def can_collect(self) -> bool:
        """Would `run_collect` start at once?"""
        with self._batches.changed:
            return self._batches.may_collect()

    def can_train(self) -> bool:
        """Would `run_train` start at once?"""
        with self._batches.changed:
            return self._batches.may_train()

    @property
    def collect_train_lag(self) -> int:
        """Collected batches that are not trained yet. At most off_policy_degree + 1: the one being trained
        (or next to be) and those ahead of it. Never negative."""
        with self._batches.changed:
            return self._batches.lag

    @property
    def off_policy_degree(self) -> float:
        """The degree now: it moves when it was given as -1."""
        return self._steered.rule.max_lead

    @property
    def scores(self) -> tuple[Score, ...]:
        """Finished evaluations whose function returned a number, each with the train count it measured."""
        with self._batches.changed:
            return tuple(self._batches.scores)

    # -- doing --------------------------------------------------------------------------------------

    @overload
    def run_collect(self, collect: Callable[[], Coroutine[Any, Any, T]]) -> Coroutine[Any, Any, T]: ...

    @overload
    def run_collect(self, collect: Callable[[], Any]) -> Future[Any]: ...

    def run_collect(self, collect: Callable[[], Any]) -> Any:
        """Wait for a slot, then run `collect`: here if synchronous, otherwise in the background.

        The future holds its result. A failure in the background is raised by the next call as well.
        """
        if is_coroutine_function(collect):
            return self._coroutines.collect(collect)
        self._collectors.check_open()
        batches = self._batches
        with batches.changed:
            self._wait_until(batches.may_collect, "slot", "a slot for run_collect")
            index = batches.begin_collect()
        answer: Future[Any] = Future()

        def work() -> None:
            result, error = self._timed("collect", collect)
            with batches.changed:
                batches.end_collect(index, result, error)
            _answer(answer, result, error)

        return self._run(work, answer, self._collectors)

    def run_train(self, train: Callable[..., Any]) -> Any:
        """Wait for the oldest collected batch, then run `train` here and return its result.

        If `train` takes an argument, it gets what that collect returned. Threads train one after another, so that
        each batch has a version of its own.
        """
        if is_coroutine_function(train):
            return self._coroutines.train(train, wants_batch=_takes_argument(train))
        batches = self._batches
        with batches.changed:
            self._wait_until(batches.may_train, "data", "a batch for run_train")
            index, collected = batches.begin_train()
        result, error = self._timed("train", train, *([collected] if _takes_argument(train) else []))
        with batches.changed:
            batches.end_train(index, error)
        if error is not None:
            raise error
        return result

    @overload
    def run_eval(self, evaluate: Callable[[], Coroutine[Any, Any, T]]) -> Coroutine[Any, Any, T | None]: ...

    @overload
    def run_eval(self, evaluate: Callable[[], Any]) -> Future[Any]: ...

    def run_eval(self, evaluate: Callable[[], Any]) -> Any:
        """Run `evaluate`: here and now, or in the background, one after another and never cancelled.

        In the background it must not read weights that training changes: hand it a copy.
        """
        if is_coroutine_function(evaluate):
            return self._coroutines.evaluate(evaluate)
        self._evaluators.check_open()
        batches, version = self._batches, self.train_count
        answer: Future[Any] = Future()

        def work() -> None:
            result, error = self._timed("eval", evaluate)
            with batches.changed:
                batches.note_score(version, result)
                if error is not None and self.enable_async_eval:
                    batches.note_failure("eval", error)
            _answer(answer, result, error)

        return self._run(work, answer, self._evaluators)

    async def wait_for_eval(self) -> Any:
        """Wait for the evaluations that run in this event loop. What the last one returned; None if there was none."""
        result = await self._coroutines.wait_for_evaluations()
        self._raise_eval_failure()
        return result

    # -- ending -------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Wait for collections and evaluations under way, then end the threads. The last evaluation counts.

        What failed in the background and was not raised yet is raised here: nothing is lost in silence.
        """
        self._end_threads()
        if self._coroutines.is_evaluating:
            raise RuntimeError("an evaluation runs in your event loop: await wait_for_eval() before the end")
        self._batches.raise_collect_failure()
        self._raise_eval_failure()

    def _raise_eval_failure(self) -> None:
        failed = self._batches.take_failure("eval")
        if failed is not None:
            raise EvalFailed(f"evaluate raised {type(failed).__name__}: {failed}") from failed

    def _end_threads(self) -> None:
        self._collectors.close(self._deadline_s)
        self._evaluators.close(self._deadline_s)

    def __enter__(self) -> AsyncTrainingCoordinator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:  # which is what the caller should see
            self._end_threads()
            return
        self.shutdown()
        if self._print_on_exit:
            self.print_statistics()

    def get_statistics(self) -> dict[str, Any]:
        """Counts, times and the ledger, in synchronous mode too."""
        batches = self._batches
        with batches.changed:
            ledger, times = batches.ledger.statistics(), batches.times
            return {
                "mode": "ASYNCHRONOUS" if self.is_async else "SYNCHRONOUS",
                "off_policy_degree": self.off_policy_degree,
                "collect_iterations": batches.collected,
                "train_iterations": batches.trained,
                "final_lag": batches.lag,
                "collect_count": batches.collected,
                "train_count": batches.trained,
                "collect_train_lag": batches.lag,
                "avg_collect_time": times.mean("collect"),
                "avg_train_time": times.mean("train"),
                "avg_eval_time": times.mean("eval"),
                "eval_iterations": times.calls["eval"],
                "waited_for_data": times.waited["data"],
                "waited_for_slot": times.waited["slot"],
                "mean_staleness": ledger.mean_staleness,
                "max_staleness": ledger.max_staleness,
                "dropped": ledger.dropped,
            }

    def print_statistics(self) -> None:
        """The block that ends a run."""
        print(statistics_block(statistics_rows(self.get_statistics())))

    def why(self) -> str:
        """What is under way, in one line."""
        with self._batches.changed:
            return self._batches.why()

    # -- inside -------------------------------------------------------------------------------------

    def _wait_until(self, condition: Callable[[], bool], cause: str, what: str) -> None:
        started, batches = time.perf_counter(), self._batches

        def over() -> bool:
            return batches.has_failed_collect or condition()

        if not batches.changed.wait_for(over, self._deadline_s):
            raise Stalled(f"waited {self._deadline_s:g} s for {what}; {batches.why()}")
        batches.times.waited[cause] += time.perf_counter() - started
        batches.raise_collect_failure()

    def _run(self, work: Callable[[], None], answer: Future[Any], hands: BackgroundThreads) -> Future[Any]:
        if hands.size:
            hands.put(work)
        else:
            work()
            answer.result()  # raises here what was raised there
        return answer

    def _timed(self, name: str, function: Callable[..., Any], *args: Any) -> tuple[Any, BaseException | None]:
        started = time.perf_counter()
        try:
            result = function(*args)
            refuse_coroutine(name, result)
            return result, None
        except BaseException as error:  # handed to whoever waits for the result; no slot may stay behind
            return None, error
        finally:
            elapsed = time.perf_counter() - started
            with self._batches.changed:
                self._batches.times.note_call(name, elapsed)


def statistics_rows(statistics: Mapping[str, Any]) -> dict[str, str]:
    """`get_statistics()` as the lines of the block."""
    dropped = ", ".join(f"{n} {reason}" for reason, n in statistics["dropped"].items()) or "none"
    return {
        "Mode": statistics["mode"],
        "Collect iterations": str(statistics["collect_iterations"]),
        "Train iterations": str(statistics["train_iterations"]),
        "Final lag": str(statistics["final_lag"]),
        "Avg collect time": seconds(statistics["avg_collect_time"]),
        "Avg train time": seconds(statistics["avg_train_time"]),
        "Avg eval time": seconds(statistics["avg_eval_time"]),
        "Staleness mean / max": f"{statistics['mean_staleness']:.2f} / {statistics['max_staleness']}",
        "Dropped": dropped,
    }


def _answer(answer: Future[Any], result: Any, error: BaseException | None) -> None:
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)


def _takes_argument(function: Callable[..., Any]) -> bool:
    """Does it need one positional argument that has no default?"""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # builtins without a signature
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters)
