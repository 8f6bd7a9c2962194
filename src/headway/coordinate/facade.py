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
"""

from __future__ import annotations

import inspect
import math
import numbers
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from headway.coordinate.background_threads import BackgroundThreads
from headway.coordinate.facade_times import LoopTimes, SteeredLead
from headway.coordinate.waits import Stalled
from headway.core.ledger import Ledger
from headway.core.types import DropReason, Score
from headway.observe.statistics import seconds, statistics_block


class CollectFailed(RuntimeError):
    """A collect function raised in the background; the cause is attached."""


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
        self._ledger = Ledger(steered.rule)
        self._changed = threading.Condition()
        self._results: dict[int, Any] = {}
        self._failed: dict[str, BaseException] = {}  # in the background, and not raised yet: collect, eval
        self._deadline_s = deadline_s
        self._print_on_exit = print_on_exit
        self._times = LoopTimes()
        self._collectors = BackgroundThreads("collect", num_workers if self.is_async else 0)
        self._evaluators = BackgroundThreads("eval", 1 if enable_async_eval else 0)
        self._scores: list[Score] = []
        self.collect_count = 0
        self.train_count = 0

    # -- asking -------------------------------------------------------------------------------------

    def can_collect(self) -> bool:
        """Would `run_collect` start at once?"""
        with self._changed:
            return self._ledger.may_open()

    def can_train(self) -> bool:
        """Would `run_train` start at once?"""
        with self._changed:
            return self._may_train()

    @property
    def collect_train_lag(self) -> int:
        """Collected batches that are not trained yet. At most off_policy_degree + 1: the one being trained
        (or next to be) and those ahead of it. Never negative."""
        with self._changed:
            return self._lag

    @property
    def off_policy_degree(self) -> float:
        """The degree now: it moves when it was given as -1."""
        return self._steered.rule.max_lead

    @property
    def scores(self) -> tuple[Score, ...]:
        """Finished evaluations whose function returned a number, each with the train count it measured."""
        with self._changed:
            return tuple(self._scores)

    # -- doing --------------------------------------------------------------------------------------

    def run_collect(self, collect: Callable[[], Any]) -> Future[Any]:
        """Wait for a slot, then run `collect`: here if synchronous, otherwise in the background.

        The future holds its result. A failure in the background is raised by the next call as well.
        """
        self._collectors.check_open()
        with self._changed:
            self._wait_until(self._ledger.may_open, "slot", "a slot for run_collect")
            ticket = self._ledger.open(self.train_count)
            assert ticket is not None
            self._ledger.start(ticket.index, self.train_count, 0)
            self._times.note_blocked(self._ledger, self._collectors.size)
        answer: Future[Any] = Future()

        def work() -> None:
            result, error = self._timed("collect", collect)
            with self._changed:
                if error is not None:
                    self._ledger.drop(ticket.index, DropReason.FAILED)
                    if self.is_async:
                        self._failed["collect"] = error
                else:
                    self._results[ticket.index] = result
                    self._ledger.land(ticket.index)
                    self.collect_count += 1
                self._times.note_blocked(self._ledger, self._collectors.size)
                self._changed.notify_all()
            _answer(answer, result, error)

        return self._run(work, answer, self._collectors)

    def run_train(self, train: Callable[..., Any]) -> Any:
        """Wait for the oldest collected batch, then run `train` here and return its result.

        If `train` takes an argument, it gets what that collect returned. Threads train one after another, so that
        each batch has a version of its own.
        """
        with self._changed:
            self._wait_until(self._may_train, "data", "a batch for run_train")
            (index,) = self._ledger.choose(self.train_count).batch
            self._ledger.take([index], self.train_count)
            collected = self._results.pop(index)
        result, error = self._timed("train", train, *([collected] if _takes_argument(train) else []))
        with self._changed:
            if error is not None:
                self._ledger.drop(index, DropReason.FAILED)
            else:
                self._ledger.settle()
                self.train_count += 1
                self._steered.look(self.train_count, self._times)
            self._times.note_blocked(self._ledger, self._collectors.size)
            self._changed.notify_all()
        if error is not None:
            raise error
        return result

    def run_eval(self, evaluate: Callable[[], Any]) -> Future[Any]:
        """Run `evaluate`: here and now, or in the background, one after another and never cancelled.

        In the background it must not read weights that training changes: hand it a copy.
        """
        self._evaluators.check_open()
        version = self.train_count
        answer: Future[Any] = Future()

        def work() -> None:
            result, error = self._timed("eval", evaluate)
            with self._changed:
                if isinstance(result, numbers.Real):
                    self._scores.append(Score(version, float(result)))
                if error is not None and self.enable_async_eval:
                    self._failed["eval"] = error
            _answer(answer, result, error)

        return self._run(work, answer, self._evaluators)

    # -- ending -------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Wait for collections and evaluations under way, then end the threads. The last evaluation counts.

        What failed in the background and was not raised yet is raised here: nothing is lost in silence.
        """
        self._end_threads()
        self._raise_failure()
        failed = self._failed.pop("eval", None)
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
        with self._changed:
            ledger = self._ledger.statistics()
            return {
                "mode": "ASYNCHRONOUS" if self.is_async else "SYNCHRONOUS",
                "off_policy_degree": self.off_policy_degree,
                "collect_iterations": self.collect_count,
                "train_iterations": self.train_count,
                "final_lag": self._lag,
                "avg_collect_time": self._times.mean("collect"),
                "avg_train_time": self._times.mean("train"),
                "avg_eval_time": self._times.mean("eval"),
                "eval_iterations": self._times.calls["eval"],
                "waited_for_data": self._times.waited["data"],
                "waited_for_slot": self._times.waited["slot"],
                "mean_staleness": ledger.mean_staleness,
                "max_staleness": ledger.max_staleness,
                "dropped": ledger.dropped,
            }

    def print_statistics(self) -> None:
        """The block that ends a run."""
        print(statistics_block(statistics_rows(self.get_statistics())))

    def why(self) -> str:
        """What is under way, in one line."""
        with self._changed:
            return self._why()

    # -- inside -------------------------------------------------------------------------------------

    @property
    def _lag(self) -> int:
        return self._ledger.tally.ready + self._ledger.tally.taken

    def _may_train(self) -> bool:
        return not self._ledger.tally.taken and bool(self._ledger.choose(self.train_count).batch)

    def _why(self) -> str:
        tally = self._ledger.tally
        return (
            f"degree {self.off_policy_degree:g}: {tally.live} of {self._steered.rule.slots} slots occupied "
            f"({tally.live - tally.ready - tally.taken} collecting, {tally.ready} collected, {tally.taken} training)"
        )

    def _wait_until(self, condition: Callable[[], bool], cause: str, what: str) -> None:
        started = time.perf_counter()

        def over() -> bool:
            return "collect" in self._failed or condition()

        if not self._changed.wait_for(over, self._deadline_s):
            raise Stalled(f"waited {self._deadline_s:g} s for {what}; {self._why()}")
        self._times.waited[cause] += time.perf_counter() - started
        self._raise_failure()

    def _raise_failure(self) -> None:
        failure = self._failed.pop("collect", None)
        if failure is not None:
            raise CollectFailed(f"collect raised {type(failure).__name__}: {failure}") from failure

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
            return function(*args), None
        except BaseException as error:  # handed to whoever waits for the result; no slot may stay behind
            return None, error
        finally:
            elapsed = time.perf_counter() - started
            with self._changed:
                self._times.note_call(name, elapsed)


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
