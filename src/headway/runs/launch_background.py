"""A run that goes on while its caller does something else.

    caller's thread                            a daemon thread
    start(...)   ------ starts ------------->  launch(...): coordinator, files, sinks
      run.scores, run.status()  <-- looks ---
      run.why(), run.scale(), run.stop()  --->  answered between two steps of the coordinator
      run.wait(), await run     <-- result or exception ---

    starting --> going on --> over (a result, or what it raised)

What is looked at is asked for in the coordinator's own thread, where nothing moves meanwhile, and within `ANSWER_S`.
"""

from __future__ import annotations

import atexit
import contextvars
import html
from collections.abc import Callable, Generator
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import TimeoutError as WaitedTooLong
from concurrent.futures import wait as wait_for
from types import TracebackType
from typing import Any, TypeVar

from headway.coordinator.activities_waits import Stalled
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.run_result import RunResult
from headway.coordinator.run_result_control import INTERRUPTED
from headway.coordinator.scaling import CollectorChange, ScaleRefused
from headway.core.text_messages import to_stderr
from headway.core.types import Score
from headway.runs.console import Status
from headway.runs.console_run_status import status_of
from headway.runs.folder import RunFolder
from headway.runtimes.loop_threads_daemon_thread import daemon_thread
from headway.runtimes.loop_threads_own_thread import awaitable, result_of

T = TypeVar("T")
ANSWER_S = 10.0
"""How long a question may wait for the coordinator. With the runtime `inline` it answers between two calls of yours."""
SCALE_S = 150.0
"""How long a change of the collectors may take: longer than a role may take to start, by default."""
Attach = Callable[[Coordinator], None]


class Run:
    """A run that goes on in a thread of its own. Look at it, stop it, wait for it or await it.

    In a `with` block it is over when the block is left: waited for, or stopped if the block raised.
    """

    def __init__(
        self,
        launch: Callable[[Attach], RunResult],
        folder: RunFolder | None = None,
        load: Callable[[], Any] | None = None,
    ) -> None:
        """`launch` runs to the end; it is given a function that it calls with its coordinator. `load` makes a policy of
        what the folder holds."""
        self.folder = folder
        self._load = load
        self._policy: Any = None
        self._begun: Future[Coordinator] = Future()
        self._ended: Future[RunResult] = Future()
        self._last: Status | None = None
        context = contextvars.copy_context()  # a notebook finds the cell that printed something by it
        thread = daemon_thread(lambda: context.run(launch, self._attach), "headway run", self._ended)
        thread.start()
        _say_at_exit(self._ended, "" if folder is None else f" in {folder}")
        _first_of(self._begun, self._ended)
        if self._ended.done() and not self._begun.done():
            self._ended.result()  # what cannot be is raised here

    def _attach(self, coordinator: Coordinator) -> None:
        self._begun.set_result(coordinator)

    # -- looking ------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return self._ended.done()

    @property
    def scores(self) -> tuple[Score, ...]:
        """What evaluations have found so far."""
        return tuple(self._coordinator.evaluations.scores)  # only ever added to

    @property
    def version(self) -> int:
        return self._coordinator.version

    @property
    def updates(self) -> int:
        return self._coordinator.updates

    @property
    def metrics(self) -> dict[str, float]:
        """Those of the last update."""
        return dict(self._coordinator.metrics)

    @property
    def policy(self) -> Any:
        """What a recipe has learned, as `headway.load` makes it: of the weights that scored best, or of the last ones
        where none were evaluated. While the run goes on, of what is saved by then."""
        if self._load is None:
            raise ValueError("a run of your own functions or stations has no policy: wait().weights is what it learned")
        if self._policy is None or not self.is_over:
            self._policy = self._load()
        return self._policy

    def status(self) -> Status:
        """How far it is, what each role does, rates, staleness and the last score; of a run that is over, the last."""
        if not self.is_over:
            self._last = self._asked(lambda: status_of(self._coordinator)) or self._last
        return self._last or status_of(self._coordinator)

    def why(self) -> str:
        """Who does what or waits for what, since when, at which version; of a run that is over, why it ended."""
        said = None if self.is_over else self._asked(self._coordinator.why)
        if said is not None:
            return said
        error = self._ended.exception()
        return f"failed: {error}" if error is not None else f"over: {self._ended.result().stop_reason}"

    # -- changing -----------------------------------------------------------------------------------

    def scale(self, collectors: int, *, timeout_s: float = SCALE_S) -> CollectorChange:
        """Have so many collectors from now on. It returns when those that were added work, or when those that are taken
        away (the ones with the highest numbers) get no further ticket. ScaleRefused: the number stays, and why."""
        coordinator = self._coordinator
        answer: Future[CollectorChange] = Future()
        coordinator.call_soon(lambda: coordinator.scale(collectors, answer))
        _first_of(answer, self._ended, timeout_s)
        if answer.done():
            return answer.result()
        if self.is_over:
            raise ScaleRefused("the run is over")
        raise Stalled(f"the number of collectors has not changed within {timeout_s:g} s: {self.status().line()}")

    # -- ending -------------------------------------------------------------------------------------

    def stop(self, reason: str = "stop()") -> None:
        """Ask it to finish the update under way, to save and to end. It returns at once: `wait` waits for that."""
        coordinator = self._coordinator
        coordinator.call_soon(lambda: coordinator.request_stop(f"{INTERRUPTED} by {reason}"))

    def abort(self) -> None:
        """End it at once, without saving."""
        self._coordinator.abort()

    def wait(self, timeout_s: float | None = None) -> RunResult:
        """The result, when it is over, or what the run raised. TimeoutError: it goes on after `timeout_s` seconds.

        An interrupt (Ctrl-C) asks the run to end, a second one ends it at once, a third one leaves it behind.
        """
        if timeout_s is not None:
            try:
                return self._ended.result(timeout_s)
            except WaitedTooLong:
                if self._ended.done():
                    raise
                raise TimeoutError(f"the run goes on after {timeout_s:g} s: {self.status().line()}") from None
        return result_of(self._ended, lambda: self.stop("KeyboardInterrupt"), self.abort)

    def __await__(self) -> Generator[object, None, RunResult]:
        """The same in a coroutine. Whoever stops waiting leaves the run going on."""
        return awaitable(self._ended).__await__()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not self.is_over:
            self.stop(type(error).__name__)
            wait_for([self._ended])
            return
        self.wait()

    # -- seen in a notebook -------------------------------------------------------------------------

    def __repr__(self) -> str:
        where = "" if self.folder is None else f" in {self.folder.path}"
        if not self.is_over:
            return f"<run{where}, going on: {self.status().line()}>"
        return f"<run{where}, {self.why()}>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self)[1:-1])}</pre>"

    # -- inside -------------------------------------------------------------------------------------

    @property
    def _coordinator(self) -> Coordinator:
        return self._begun.result()  # it is there since __init__

    def _asked(self, question: Callable[[], T]) -> T | None:
        """The answer of the coordinator's thread; None if the run ended meanwhile."""
        answer: Future[T] = Future()

        def respond() -> None:
            try:
                answer.set_result(question())
            except Exception as error:  # noqa: BLE001 - raised where the question came from
                answer.set_exception(error)

        self._coordinator.call_soon(respond)
        _first_of(answer, self._ended, ANSWER_S)
        if answer.done():
            return answer.result()
        if self.is_over:
            return None
        raise Stalled(f"the coordinator did not answer within {ANSWER_S:g} s: a call of yours runs in its thread")


def _say_at_exit(ended: Future[RunResult], where: str) -> None:
    """A process that ends takes its runs with it: one line says so, unless the run is over by then."""

    def say() -> None:
        to_stderr(
            f"headway: the program ends and takes the run{where} with it, which was not over: call run.wait(), or use "
            "headway.train(...) in place of headway.start(...)"
        )

    atexit.register(say)
    ended.add_done_callback(lambda _: atexit.unregister(say))


def _first_of(one: Future[T], other: Future[RunResult], timeout_s: float | None = None) -> None:
    """Waits until one of them is done."""
    either: list[Future[Any]] = [one, other]
    wait_for(either, timeout_s, return_when=FIRST_COMPLETED)
