"""Environments stepped in worker processes that can be killed.

      this process                                         worker: a fresh interpreter that holds many games
      game 3: step 5   ---- "step", 3, reply ---->         steps game 3, one call at a time
                       <--- the step, its state's key ---

      a worker:  starts --> idle <--> works --> over: hung up on, died, or killed because a call took too long

A new game goes to the worker with the fewest games. A worker that is over takes its games with it: all are lost. The
next game that begins finds a fresh worker in its place.

Invariants: a worker is asked one thing at a time, so a deadline counts the work alone; its end is noticed at once, by a
thread that listens to it; when `close` returns there is no process, no thread and no descriptor left.
"""

from __future__ import annotations

import errno
import itertools
import pickle
import threading
import time
from concurrent.futures import Future, wait
from contextlib import ExitStack
from typing import TYPE_CHECKING

from headway.agents.checked_env_open_game import CLOSE, CLOSED, OpenGame, no_turn, too_long
from headway.agents.checked_env_places import Places
from headway.agents.checked_env_step_watch import StepWatch
from headway.agents.env import BadEnvironment, EnvFactory, EnvironmentLost
from headway.agents.env_worker import BAD, LOST, MAKE, Answer
from headway.core.os_errors import refusal
from headway.core.text_one_line import in_a_line
from headway.runtimes.child_process_channel import Channel, HungUp
from headway.runtimes.child_process_child import Child, python_command, thread_limits
from headway.runtimes.child_process_sent_code import pack_function

if TYPE_CHECKING:
    from headway.agents.stepping import StepDeadlines

Request = tuple[str, int, tuple[object, ...]]
"""A method, the number of a game, arguments."""
"""As game_worker.py has them."""
EnvError = BadEnvironment | EnvironmentLost

SEND_S = 30.0
"""How long a worker may take to read what it is asked."""
GRACE_S = 1.0
"""How long a worker that has closed its socket may take to exit."""


class SteppingInProcesses:
    """Steps environments in `num_workers` processes, at most `max_under_way` of them at a time."""

    def __init__(
        self, factory: EnvFactory, num_workers: int, deadlines: StepDeadlines, max_under_way: int | None = None
    ) -> None:
        self._packed = _packed(factory)
        self._deadlines = deadlines
        self._watch = StepWatch()
        self._under_way = Places(min(num_workers, max_under_way or num_workers))
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._is_closed = False
        self._workers: list[_GameProcess] = []
        try:
            for number in range(num_workers):
                self._workers.append(_GameProcess(number, self._packed, deadlines.close_s))
        except OSError as error:
            self.close()
            raise EnvironmentLost(f"no worker process can be started: {refusal(error)}") from error

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    def begin(self) -> OpenGame:
        number = next(self._numbers)
        name = f"game {number}"
        worker = self._worker_for_a_game()
        try:
            self._ask(worker, name, "begin", (MAKE, number, ()), self._deadlines.begin_s, self._deadlines.begin_s)
        except BaseException:
            self._remove_game(worker)
            raise

        def ask(method: str, arguments: tuple[object, ...], what: str, limit_s: float) -> object:
            try:
                return self._ask(worker, name, what, (method, number, arguments), limit_s, None)
            finally:
                if method == CLOSE:
                    self._remove_game(worker)

        return OpenGame(name, ask, self._deadlines, self._watch)

    def _ask(
        self, worker: _GameProcess, name: str, what: str, request: Request, limit_s: float, patience_s: float | None
    ) -> object:
        began = time.monotonic()
        with self._watch.call(name, what, worker.name) as call, ExitStack() as places:
            for place in (worker.turn, self._under_way):
                if not place.take(patience_s and max(patience_s + began - time.monotonic(), 0.0)):
                    assert patience_s is not None
                    if not worker.is_ready:
                        worker.kill(EnvironmentLost(f"{worker.name} did not start within {patience_s:g} s"))
                        raise worker.wait_for_its_end()
                    raise no_turn(patience_s, self._watch)
                places.callback(place.give_back)
            call.began()
            if patience_s is not None:
                limit_s = max(limit_s + began - time.monotonic(), 0.1)
            answer = worker.ask(request)
            if not wait([answer], limit_s).done:
                late = too_long(f"{name} ({worker.name})", what, limit_s)
                worker.kill(EnvironmentLost(f"{late}; its worker was killed"))
                worker.wait_for_its_end()
            return _said(answer)

    def _worker_for_a_game(self) -> _GameProcess:
        """The one with the fewest games; in the place of one that is over stands a fresh one from now on."""
        with self._lock:
            if self._is_closed:
                raise EnvironmentLost(CLOSED)
            slot = min(range(len(self._workers)), key=lambda slot: self._num_games(self._workers[slot]))
            if self._workers[slot].is_over:
                self._workers[slot].wait_for_its_end()
                try:
                    self._workers[slot] = _GameProcess(slot, self._packed, self._deadlines.close_s)
                except OSError as error:
                    raise EnvironmentLost(f"no worker process can be started: {refusal(error)}") from error
                self._watch.count("restarted")
            worker = self._workers[slot]
            worker.num_games += 1
            return worker

    @staticmethod
    def _num_games(worker: _GameProcess) -> int:
        return 0 if worker.is_over else worker.num_games

    def _remove_game(self, worker: _GameProcess) -> None:
        with self._lock:
            worker.num_games -= 1

    def doing(self) -> list[str]:
        return self._watch.doing()

    def health(self) -> dict[str, float]:
        return self._watch.health()

    def close(self) -> None:
        self._under_way.close(EnvironmentLost(CLOSED))
        with self._lock:
            self._is_closed = True
        for worker in self._workers:
            worker.hang_up(EnvironmentLost(CLOSED))
        for worker in self._workers:
            worker.wait_for_its_end()


class _GameProcess:
    """One worker: its process, the thread that listens to it, and the answer that is waited for."""

    def __init__(self, number: int, packed_factory: bytes, close_s: float) -> None:
        self.name = f"worker {number}"
        self.num_games = 0
        self.turn = Places(0)  # until it is ready
        self.is_ready = False
        self._close_s = close_s
        self._lock = threading.Lock()
        self._answer: Future[Answer] | None = None
        self._why: EnvError | None = None  # it is over, or shall be
        self._is_gone = False
        command = python_command("headway.agents.env_worker", "headway games")
        self._child = Child(command, thread_limits(1), own_group=True, has_lifeline=True)  # any thread may begin a game
        self._channel = Channel(self._child.socket, takes_fds=False)
        self._child.socket.settimeout(SEND_S)  # of sending; the listener reads when there is something to read
        self._listener = threading.Thread(target=self._listen, args=(packed_factory,), name=self.name, daemon=True)
        try:
            self._listener.start()
        except RuntimeError as error:
            self._child.end()
            raise OSError(errno.EAGAIN, str(error)) from error

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_over(self) -> bool:
        return self._why is not None or self._child.is_over

    def ask(self, request: Request) -> Future[Answer]:
        """Sends it to the process. The answer may be that the process is gone."""
        answer: Future[Answer] = Future()
        with self._lock:
            if self._is_gone:
                answer.set_result((LOST, str(self._why)))
                return answer
            self._answer = answer
        try:
            self._channel.send(pickle.dumps(request))
        except HungUp:
            pass  # the listener sees it too, and answers
        except OSError as error:
            self.kill(EnvironmentLost(f"{self.name} cannot be told anything: {in_a_line(error)}"))
        return answer

    def kill(self, why: EnvError) -> None:
        """All its games are lost, for this reason."""
        with self._lock:
            self._why = self._why or why
        self._child.kill()

    def hang_up(self, why: EnvError) -> None:
        """Lets it close its games, unless it is in the midst of something."""
        with self._lock:
            self._why = self._why or why
            is_idle = self.is_ready and self._answer is None
        if not is_idle:
            self._child.kill()
        self._child.hang_up()

    def wait_for_its_end(self) -> EnvError:
        """Returns why it ended. Nothing is left of it then."""
        self._listener.join()
        assert self._why is not None
        return self._why

    def _listen(self, packed_factory: bytes) -> None:
        try:
            self._channel.send(packed_factory)
            while True:
                self._channel.wait(None)
                for body, _ in self._channel.receive():
                    self._take(pickle.loads(body))
        except (HungUp, OSError):
            pass
        how = self._child.how_it_ended(GRACE_S if self._why is None else self._close_s)
        with self._lock:
            self._why = self._why or EnvironmentLost(f"{self.name} (process {self.pid}) {how}")
            answer, self._answer = self._answer, None
            self._is_gone = True
        self.turn.close(self._why)
        self._child.end()
        if answer is not None:
            answer.set_result((LOST, str(self._why)))

    def _take(self, said: Answer) -> None:
        with self._lock:
            answer, self._answer = self._answer, None
        if answer is not None:
            answer.set_result(said)
        elif said[0] == BAD:
            self.kill(BadEnvironment(str(said[1])))
        else:
            self.is_ready = True
            self.turn.give_back()


def _packed(factory: EnvFactory) -> bytes:
    try:
        return pack_function(factory, "headway games")
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        what = f"environments cannot be sent to worker processes: {in_a_line(error)}"
        raise BadEnvironment(f"{what}; define the class or function at the top level of a module") from error


def _said(answer: Future[Answer]) -> object:
    kind, value, *details = answer.result()
    if kind == BAD:
        raise BadEnvironment(str(value))
    if kind == LOST:
        error = EnvironmentLost(str(value))
        for traceback in details:
            error.add_note(f"in the worker process:\n{traceback}")
        raise error
    return value
