"""Keeps the process of an engine: asks it, reads what it says, and replaces it when it dies or falls silent.

      callers --- ask, apply, pause ---> outbox ---> socket ---> the host's process (engine_host.py)
      callers <-- told ---  keeper   <-------------- socket <---

      starting --> up --(died | silent for longer than deadline_s)--> starting, with the newest weights --> up ...
                                                     restarts used up --> over: every call raises that line

One thread starts the process, reads what it says, and is the only one to replace it. A replaced process gets the
weights that were applied last, then everything that is still asked for, with the seeds it had: a sample is begun again,
never glued together. What fails is `apply`, if it was under way: whoever publishes decides about that.

Invariants: a version is the engine's only after the host has said that it uses it; a request ends exactly once, with
all its samples or with an error; nothing waits for the host without a deadline.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from headway.llm.engine.engine_process_engine_requests import Job, Requests, Told
from headway.llm.engine.engine_process_host_process import CLOSE_S, HostProcess, HostSettings, SharedWeights, Waker
from headway.llm.engine.protocol_engine import (
    Aborted,
    EngineError,
    EngineHealth,
    EngineOver,
    Request,
    ScoreRequest,
    overdue,
)


class HostProgress:
    """What the host has done, over all its processes, and when it was last heard."""

    def __init__(self) -> None:
        self.heard_at = self.busy_at = self.stepped_at = time.monotonic()
        self._counts = self._earlier = (0, 0, 0)  # tokens, steps, running: of this process, of those before it

    def note(self, counts: tuple[int, int, int]) -> None:
        if counts[1] != self._counts[1]:
            self.stepped_at = time.monotonic()
        self._counts = counts

    def replace(self) -> None:
        """The process is gone, and what it was doing with it."""
        self._earlier = self.tokens, self.steps, 0
        self._counts = 0, 0, 0

    @property
    def tokens(self) -> int:
        return self._earlier[0] + self._counts[0]

    @property
    def steps(self) -> int:
        return self._earlier[1] + self._counts[1]

    @property
    def running(self) -> int:
        return self._counts[2]

    @property
    def silence_s(self) -> float:
        """Since it was heard, or since there is work, if that is later."""
        return time.monotonic() - max(self.heard_at, self.busy_at)


class _Call:
    """A question to the host that is not a sample."""

    numbers = itertools.count()

    def __init__(self, kind: str, then: Callable[[], None]) -> None:
        self.number = next(self.numbers)
        self.kind = kind
        self.then = then  # at the moment the host has done it, before anything else can happen
        self.is_over = False
        self.error: EngineError | None = None


class Keeper:
    """The host's process and everything that is asked of it. All state is guarded by `_changed`."""

    def __init__(self, settings: HostSettings, version: int) -> None:
        self._settings = settings
        self._changed = threading.Condition()
        self._process: HostProcess | None = None  # while one is up
        self._starting: HostProcess | None = None
        self._requests = Requests()
        self._calls: dict[int, _Call] = {}
        self._progress = HostProgress()
        self._is_paused = self._is_closed = False
        self._over: EngineError | None = None
        self._restarts = 0
        self.version = version
        self.weights: SharedWeights | None = None
        self._waker = Waker()
        self._thread = threading.Thread(target=self._keep, name="headway engine keeper", daemon=True)

    # -- in the callers' threads --------------------------------------------------------------------

    def start(self) -> None:
        """Returns when the process is up."""
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._process is not None or self._over is not None)
            if self._over is not None:
                raise self._over

    @property
    def pid(self) -> int:
        with self._changed:
            process = self._process or self._starting
            return -1 if process is None else process.pid

    def ask(self, requests: Sequence[Request | ScoreRequest]) -> list[Job]:
        with self._changed:
            self._refuse_if_over()
            self._note_work()
            jobs = [self._requests.add(request) for request in requests]
            for job in jobs:
                for question in self._requests.questions(job):
                    self._tell(*question)
            return jobs

    def wait_for(self, jobs: list[Job]) -> list[Job]:
        for job in jobs:
            job.over.wait()
        for job in jobs:
            if job.error is not None:
                raise job.error
        return jobs

    def apply(self, version: int, weights: SharedWeights) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._process is not None or self._over is not None or self._is_closed)
            call = self._call("apply", lambda: self._adopt(version, weights))
            self._tell("apply", call.number, version, weights.layout, fd=weights.fd)
            self._finish(call)

    def hold(self, is_paused: bool) -> None:
        with self._changed:
            self._refuse_if_over()
            self._note_work()
            self._is_paused = is_paused
            if self._process is not None:  # the next one is told when it is up
                call = self._call("pause" if is_paused else "resume")
                self._tell(call.kind, call.number)
                self._finish(call)

    def abort(self, uids: Sequence[str] | None, why: str = "aborted") -> int:
        with self._changed:
            jobs = self._requests.jobs(uids)
            return sum(self._give_up(job, Aborted(f"{job.request.uid}: {why}")) for job in jobs)

    def give_up(self, request: Request, why: str) -> None:
        """Ends this one request, if it is under way; others may have the same uid."""
        with self._changed:
            for job in self._requests.jobs([request.uid]):
                if job.request is request:
                    self._give_up(job, Aborted(f"{request.uid}: {why}"))

    def health(self) -> EngineHealth:
        with self._changed:
            now, progress = time.monotonic(), self._progress
            return EngineHealth(
                self.version,
                progress.running,
                max(0, len(self._requests) - progress.running),
                self._is_paused,
                progress.tokens,
                progress.steps,
                now - progress.stepped_at,
                {"restarts": self._restarts, "seconds_since_heard": now - progress.heard_at},
            )

    def close(self) -> None:
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self.abort(None, "the engine was closed")
            self._over = self._over or Aborted("the engine is closed")
            self._fail_calls(self._over)
            process, self._process = self._process or self._starting, None
            self._waker.wake()
        if self._thread is not threading.current_thread():  # which a garbage collection may have chosen
            self._thread.join(CLOSE_S)
        if process is not None:
            process.end()
        self._waker.close()

    def _call(self, kind: str, then: Callable[[], None] = lambda: None) -> _Call:
        self._refuse_if_over()
        self._note_work()
        call = _Call(kind, then)
        self._calls[call.number] = call
        return call

    def _finish(self, call: _Call) -> None:
        """Wait for the answer. The keeper sees to it that there is one."""
        self._changed.wait_for(lambda: call.is_over)
        if call.error is not None:
            raise call.error

    def _adopt(self, version: int, weights: SharedWeights) -> None:
        self.version = version
        self.weights = weights

    def _refuse_if_over(self) -> None:
        if self._over is not None:
            raise self._over

    # -- with the lock held -------------------------------------------------------------------------

    def _tell(self, *message: Any, fd: int | None = None) -> None:
        if self._process is not None:
            self._process.tell(message, fd)
            self._waker.wake()  # there is something new to watch

    def _note_work(self) -> None:
        """Work is about to come. If there was none, the host's silence counts from now on."""
        if not self._is_busy():
            self._progress.busy_at = time.monotonic()

    def _is_busy(self) -> bool:
        """Does the host owe anyone anything?"""
        return bool(self._calls) or (len(self._requests) > 0 and not self._is_paused)

    def _give_up(self, job: Job, error: EngineError) -> int:
        """End a request with an error; returns how many of its samples were missing."""
        keys = self._requests.give_up(job, error)
        self._tell("drop", keys)
        return len(keys)

    def _fail_calls(self, error: EngineError) -> None:
        for call in self._calls.values():
            if call.kind == "apply":
                call.error = error
            call.is_over = True  # pausing and resuming are done by the next process from its beginning
        self._calls.clear()
        self._changed.notify_all()

    # -- the keeper's thread ------------------------------------------------------------------------

    def _keep(self) -> None:
        with self._waker.listener:
            self._keep_up()

    def _keep_up(self) -> None:
        how = self._raise_up()
        if how is not None:
            return self._give_in(EngineError(f"the engine could not be started: {how}"))
        while (process := self._process) is not None:
            how = self._watch(process)
            while how is not None:
                with self._changed:
                    self._process = None
                    self._fail_calls(EngineError(f"the engine {how} while it took new weights"))
                    self._progress.replace()
                    if self._is_closed:
                        return None
                process.kill()
                if self._restarts >= self._settings.restarts:
                    return self._give_in(
                        EngineOver(
                            f"the engine {how}; it was replaced {self._restarts} times already, "
                            f"engine_restarts={self._settings.restarts}"
                        )
                    )
                self._restarts += 1
                how = self._raise_up()

    def _give_in(self, error: EngineError) -> None:
        with self._changed:
            self._over = error
            for job in self._requests.jobs():
                self._give_up(job, error)
            self._fail_calls(error)
            self._changed.notify_all()

    def _raise_up(self) -> str | None:
        """Start a process and bring it to where the last one was. Returns what went wrong, if anything did."""
        process = HostProcess(self._settings)
        with self._changed:
            if self._is_closed:
                process.kill()
                return "was closed"
            self._starting = process
        process.tell(("start", dict(self._settings.spec)))
        how = self._await_answer(process, "ready", self._settings.start_s)
        if how is None and self.weights is not None:
            process.tell(("apply", -1, self.version, self.weights.layout), self.weights.fd)
            how = self._await_answer(process, "done", self._settings.deadline_s)
        with self._changed:
            self._starting = None
            if how is not None or self._is_closed:
                process.kill()
                return how or "was closed"
            self._process = process
            self._progress.heard_at = self._progress.busy_at = time.monotonic()
            if self._is_paused:
                process.tell(("pause", -1))
            for question in self._requests.questions():
                process.tell(question)
            self._changed.notify_all()
        return None

    def _await_answer(self, process: HostProcess, wanted: str, within_s: float) -> str | None:
        until = time.monotonic() + within_s
        while (left := until - time.monotonic()) > 0 and not self._is_closed:
            with self._changed:
                self._expire()
            for kind, _, *rest in process.hear(min(left, 0.1)):
                if kind == wanted:
                    return None
                if kind in ("broken", "refused"):
                    return f"failed: {rest[-1]}"
            if process.has_ended:
                return process.how_it_ended()
        return "was closed" if self._is_closed else f"did not answer within {within_s:g} s"

    def _watch(self, process: HostProcess) -> str:
        """Read until the process has ended or must be replaced; returns how."""
        while True:
            messages = process.hear(self._patience_s(), self._waker)
            with self._changed:
                if messages:
                    self._progress.heard_at = time.monotonic()
                for kind, counts, *rest in messages:
                    if kind == "broken":
                        return f"failed: {rest[0]}"
                    self._progress.note(counts)
                    getattr(self, f"_on_{kind}")(*rest)
                self._expire()
                if self._is_closed:
                    return "was closed"
                if process.has_ended:
                    return process.how_it_ended()
                if self._is_busy() and self._progress.silence_s > self._settings.deadline_s:
                    return f"said nothing for {self._settings.deadline_s:g} s"

    def _patience_s(self) -> float | None:
        """Until something must be looked at even if nothing is said."""
        with self._changed:
            limit = self._requests.seconds_to_deadline
            if self._is_busy():
                limit = min(limit, self._settings.deadline_s - self._progress.silence_s)
            return max(0.0, limit) + 1e-3 if limit < math.inf else None

    def _expire(self) -> None:
        """End the requests whose time is over, in the way each has chosen."""
        for job in self._requests.take_expired():
            assert isinstance(job.request, Request)  # scores have no deadline of their own
            if job.request.on_deadline == "cut" and self._process is not None:
                self._tell("cut", self._requests.missing_of(job))
            else:
                self._give_up(job, overdue(job.request, job.told.count(None)))

    def _on_sample(self, key: str, tokens: bytes, log_probs: bytes, versions: bytes, finish: str) -> None:
        self._requests.tell(key, Told(tokens, log_probs, versions, finish))

    def _on_failed(self, key: str, why: str) -> None:
        job = self._requests.job_of(key)
        if job is not None:
            error = EngineError(f"{job.request.uid}: {why}")
            self._give_up(job, overdue(job.request, 1) if isinstance(job.request, Request) and not why else error)

    def _on_done(self, number: int) -> None:
        if number in self._calls:
            call = self._calls.pop(number)
            call.then()
            call.is_over = True
            self._changed.notify_all()

    def _on_refused(self, number: int, why: str) -> None:
        if number in self._calls:
            call = self._calls.pop(number)
            call.error, call.is_over = EngineError(f"the engine refused the weights: {why}"), True
            self._changed.notify_all()

    def _on_beat(self) -> None:
        pass
