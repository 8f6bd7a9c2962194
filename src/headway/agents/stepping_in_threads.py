"""Environments stepped in worker threads: at most N calls at a time, each with a deadline.

    episode's thread:  waits for a place --> hands its call to an idle worker --> waits for the answer, not too long
    worker:            idle --> works --> idle
                                  |
                                  +--> abandoned (the deadline has passed): ends when its call returns, if it ever does

Invariants: at most N calls are under way, those of abandoned workers not counted; a game is never called while a call
of it is under way; an environment whose call came back too late is closed by the worker that was abandoned in it.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, wait
from queue import SimpleQueue
from typing import TYPE_CHECKING

from headway.agents.checked_env_checked_game import CheckedGame
from headway.agents.checked_env_open_game import CLOSED, OpenGame, no_turn, too_long
from headway.agents.checked_env_places import Places
from headway.agents.checked_env_step_watch import StepWatch
from headway.agents.env import EnvFactory, EnvironmentLost
from headway.core.os_errors import refusal

if TYPE_CHECKING:
    from headway.agents.stepping import StepDeadlines

_Work = Callable[[], object]


class SteppingInThreads:
    """Steps environments in `num_threads` daemon threads, which are started when they are needed."""

    def __init__(
        self, factory: EnvFactory, num_threads: int, deadlines: StepDeadlines, *, may_seed_globally: bool = False
    ) -> None:
        self._factory = factory
        self._may_seed_globally = may_seed_globally
        self._deadlines = deadlines
        self._watch = StepWatch()
        self._places = Places(num_threads)
        self._lock = threading.Lock()
        self._idle: list[_WorkThread] = []
        self._working: set[_WorkThread] = set()
        self._game_numbers = itertools.count()
        self._thread_numbers = itertools.count()
        self._is_closed = False

    def begin(self) -> OpenGame:
        name = f"game {next(self._game_numbers)}"
        held = _HeldGame(self._factory, self._may_seed_globally)
        self._do(name, "begin", held.make, held, self._deadlines.begin_s, self._deadlines.begin_s)

        def ask(method: str, arguments: tuple[object, ...], what: str, limit_s: float) -> object:
            return self._do(name, what, lambda: held.call(method, arguments), held, limit_s, None)

        return OpenGame(name, ask, self._deadlines, self._watch)

    def _do(
        self, name: str, what: str, work: _Work, held: _HeldGame, limit_s: float, patience_s: float | None
    ) -> object:
        with self._watch.call(name, what) as call:
            began = time.monotonic()
            if not self._places.take(patience_s):
                assert patience_s is not None
                raise no_turn(patience_s, self._watch)
            if patience_s is not None:
                limit_s = max(limit_s - (time.monotonic() - began), 0.1)
            try:
                worker = self._worker()
                call.began(worker.name)
                return self._answer(worker, name, what, work, held, limit_s)
            finally:
                self._places.give_back()

    def _answer(
        self, worker: _WorkThread, name: str, what: str, work: _Work, held: _HeldGame, limit_s: float
    ) -> object:
        answer = worker.hand(work, held.close_late)
        is_done = bool(wait([answer], limit_s).done)
        if not is_done and worker.abandon():
            held.is_late = True
            self._leave(worker)
            self._watch.count("abandoned")
            self._watch.count("restarted")
            raise EnvironmentLost(f"{too_long(name, what, limit_s)}; its thread was abandoned")
        self._set_idle(worker)
        return answer.result()

    def _worker(self) -> _WorkThread:
        with self._lock:
            if self._is_closed:
                raise EnvironmentLost(CLOSED)
            if not self._idle:
                try:
                    self._idle.append(_WorkThread(f"worker {next(self._thread_numbers)}"))
                except RuntimeError as error:
                    raise EnvironmentLost(refusal(error) or str(error)) from error
            worker = self._idle.pop()
            self._working.add(worker)
            return worker

    def _set_idle(self, worker: _WorkThread) -> None:
        with self._lock:
            self._working.discard(worker)
            if self._is_closed:
                worker.end()
            else:
                self._idle.append(worker)

    def _leave(self, worker: _WorkThread) -> None:
        with self._lock:
            self._working.discard(worker)

    def doing(self) -> list[str]:
        return self._watch.doing()

    def health(self) -> dict[str, float]:
        return self._watch.health()

    def close(self) -> None:
        """Whoever waits for an answer is told so at once; a worker ends with the call it is in."""
        self._places.close(EnvironmentLost(CLOSED))
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            working = list(self._working)
        for worker in idle:
            worker.end()
        for worker in working:
            worker.give_up(CLOSED)
        for worker in idle:
            worker.join()


class _HeldGame:
    """Makes a game in a worker and keeps it for the calls that follow."""

    def __init__(self, factory: EnvFactory, may_seed_globally: bool) -> None:
        self._factory = factory
        self._may_seed_globally = may_seed_globally
        self._game: CheckedGame | None = None
        self.is_late = False  # a call was abandoned: the environment may still be in it

    def make(self) -> None:
        self._game = CheckedGame(self._factory, may_seed_globally=self._may_seed_globally)

    def call(self, method: str, arguments: tuple[object, ...]) -> object:
        assert self._game is not None, "it was made when the game began"
        if self.is_late:
            raise EnvironmentLost("its last call took too long")
        return getattr(self._game, method)(*arguments)

    def close_late(self) -> None:
        """In the worker that was abandoned in it: nobody else uses the environment any more."""
        if self._game is not None:
            self._game.close()


class _WorkThread:
    """Does one piece of work after another, until it is ended or abandoned."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._work: SimpleQueue[tuple[_Work, _Work, Future[object]] | None] = SimpleQueue()
        self._answer: Future[object] = Future()
        self._thread = threading.Thread(target=self._run, name=f"environments {name}", daemon=True)
        self._thread.start()

    def hand(self, work: _Work, if_late: _Work) -> Future[object]:
        """Gives it work. `if_late` is called after work that nobody waits for any more."""
        self._answer = Future()
        self._work.put((work, if_late, self._answer))
        return self._answer

    def abandon(self) -> bool:
        """Lets it end with the work it is in; False if that is done already."""
        return self._settle(self._answer, None, EnvironmentLost("abandoned"))

    def give_up(self, why: str) -> None:
        """The same, for somebody else who waits for the answer."""
        self._settle(self._answer, None, EnvironmentLost(why))

    def end(self) -> None:
        self._work.put(None)

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        while (given := self._work.get()) is not None:
            work, if_late, answer = given
            value, error = _outcome(work)
            if not self._settle(answer, value, error):
                _outcome(if_late)
                return

    @staticmethod
    def _settle(answer: Future[object], value: object, error: BaseException | None) -> bool:
        """Says what became of it, unless that has been said: False."""
        try:
            if error is None:
                answer.set_result(value)
            else:
                answer.set_exception(error)
        except InvalidStateError:
            return False
        return True


def _outcome(work: _Work) -> tuple[object, BaseException | None]:
    try:
        return work(), None
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised where somebody waits for it
        return None, error
