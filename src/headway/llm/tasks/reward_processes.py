r"""Reward calls in processes: what hangs or crashes there is killed and costs one call.

    idle --> a call --> answered --> idle
                \--> late: killed, dead: reaped; the next call starts another process

A process is a fresh interpreter that has loaded all reward functions by name; it answers one question at a time. There
are as many as calls were ever under way at once; they are started one after another, and one that becomes idle
meanwhile spares the next. Each dies with this process, whatever ends that.
"""

from __future__ import annotations

import pickle
import threading
from typing import Any

from headway.core.text_one_line import in_a_line, said
from headway.llm.tasks.reward_functions import RewardFunction, RewardFunctions, RewardQuestion, Rewards, settled
from headway.llm.tasks.rewards import RewardError
from headway.runtimes.child_process_channel import Channel, HungUp
from headway.runtimes.child_process_child import Child, python_command, thread_limits

START_S = 60.0
GRACE_S = 1.0


class CallLate(TimeoutError):
    """A call was not answered in time, and what ran it was given up."""


class CallLost(RuntimeError):
    """The process that was to answer has died."""


class CallRaised(RuntimeError):
    """The reward function raised there. One line."""


class RewardProcess:
    """One process that answers questions, one at a time."""

    def __init__(self, packed: bytes) -> None:
        command = python_command("headway.llm.tasks.reward_processes", "headway reward")
        self._child = Child(command, thread_limits(1), own_group=True, has_lifeline=True)
        self._channel = Channel(self._child.socket, takes_fds=False)
        self._child.socket.settimeout(START_S)
        try:
            self._say(packed)
            problem = self._answer(START_S)
            if problem is not None:
                raise RewardError(f"a process for rewards could not start: {problem}")
        except BaseException:
            self.end()
            raise

    @property
    def pid(self) -> int:
        return self._child.pid

    def ask(self, number: int, question: RewardQuestion, deadline_s: float) -> Rewards:
        """Asks function `number`. Raises RewardError or CallRaised; or CallLost or CallLate, and then it is over."""
        self._say(pickle.dumps((number, question)))
        rewards, is_final, line = self._answer(deadline_s)
        if line:
            raise RewardError(line) if is_final else CallRaised(line)
        found: Rewards = rewards
        return found

    def _say(self, body: bytes) -> None:
        try:
            self._channel.send(body)
        except (HungUp, TimeoutError):
            raise CallLost(self._how_it_died()) from None

    def _answer(self, deadline_s: float) -> Any:
        if not self._channel.wait(deadline_s):
            raise CallLate(f"no answer within {deadline_s:g} s: process {self.pid} was killed")
        try:
            while not (frames := self._channel.receive()):
                pass
        except HungUp:
            raise CallLost(self._how_it_died()) from None
        return pickle.loads(frames[0][0])

    def _how_it_died(self) -> str:
        return f"process {self.pid} {self._child.how_it_ended(GRACE_S)}"

    def end(self) -> None:
        self._child.kill()
        self._child.end()


class RewardProcesses:
    """Keeps processes that are idle, and starts another where none is."""

    def __init__(self, rewards: RewardFunctions) -> None:
        self._functions = rewards.functions
        self._packed = pickle.dumps([None if one.stays_here else one for one in rewards.functions])
        self._lock = threading.Lock()
        self._turn_to_start = threading.Lock()
        self._idle: list[RewardProcess] = []
        self._busy: set[RewardProcess] = set()
        self._is_closed = False

    def ask(self, function: RewardFunction, question: RewardQuestion, deadline_s: float) -> Rewards:
        process = self._take()
        try:
            found = process.ask(self._functions.index(function), question, deadline_s)
        except (RewardError, CallRaised):
            self._give_back(process)
            raise
        except BaseException:
            self._end(process)
            raise
        self._give_back(process)
        return found

    @property
    def pids(self) -> list[int]:
        with self._lock:
            return [process.pid for process in (*self._idle, *self._busy)]

    def _take(self) -> RewardProcess:
        process = self._idle_nowait()
        if process is not None:
            return process
        with self._turn_to_start:
            process = self._idle_nowait()
            if process is None:
                process = RewardProcess(self._packed)
                with self._lock:
                    self._busy.add(process)
        return process

    def _idle_nowait(self) -> RewardProcess | None:
        with self._lock:
            process = self._idle.pop() if self._idle else None
            if process is not None:
                self._busy.add(process)
        return process

    def _give_back(self, process: RewardProcess) -> None:
        with self._lock:
            self._busy.discard(process)
            if not self._is_closed:
                self._idle.append(process)
                return
        process.end()

    def _end(self, process: RewardProcess) -> None:
        with self._lock:
            self._busy.discard(process)
        process.end()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            processes, self._idle = [*self._idle, *self._busy], []
        for process in processes:
            process.end()


# -- in the process ---------------------------------------------------------------------------------


def main(fd: int, lifeline: int) -> None:
    """Loads the functions, then answers one question after another."""
    from headway.runtimes.child_process_in_child import begin

    channel = begin(fd, lifeline, takes_fds=False)
    frames = channel.frames()
    try:
        functions: list[RewardFunction] = pickle.loads(next(frames)[0])
    except Exception as error:  # noqa: BLE001 - said in one line to whoever started it
        channel.send(pickle.dumps(in_a_line(error)))
        return
    channel.send(pickle.dumps(None))
    for body, _ in frames:
        number, question = pickle.loads(body)
        channel.send(pickle.dumps(_answered(functions[number], question)))


def _answered(function: RewardFunction, question: RewardQuestion) -> tuple[Rewards, bool, str]:
    """What it says; or whether that cannot be helped by asking again, and a line."""
    try:
        value = settled(function.ask(question))
    except Exception as error:  # noqa: BLE001 - said in one line to whoever asked
        return [], isinstance(error, RewardError), said(error) if isinstance(error, RewardError) else in_a_line(error)
    try:
        return function.read(value, question), False, ""
    except RewardError as error:
        return [], True, said(error)
