"""Single environments, each stepped on its own, in processes beside the collector's.

      collector's process                          worker: a fresh interpreter, one or several environments
      step([2, 5], actions)   ---- 2, 5 ---->      step 2, then 5
      wait() -> [2], [5]      <--- 2 --- 5 ---     what was seen lies in row 2, in row 5

      starting --> idle <--> stepping --> ended (closed, died, late, or the collector's process is gone)

Numbers lie in anonymous shared memory, a row for each environment; sockets only say whose row is new. An environment
that ended starts again by itself on its next step, as copies in a vector do (reward 0, its action is not looked at).

Invariants: a row belongs to the worker from `step` to its arrival and to the collector otherwise; a worker answers in
the order it was asked; whatever dies, hangs or raises, `wait` names the environment within its deadline; no worker
outlives the collector's process, not even one that hangs.
"""

from __future__ import annotations

import mmap
import os
import pickle
import selectors
import struct
import sys
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import cloudpickle
import numpy as np

from headway.envs.gymnasium_workers_gymnasium_rows import (
    ARRIVED,
    LOAD,
    RAISED,
    READY,
    RESET,
    SAVE,
    SAVED,
    START,
    STEP,
    EnvRows,
    EnvShape,
    MakeEnv,
)
from headway.runtimes.child_process_channel import Channel, HungUp
from headway.runtimes.child_process_child import Child, python_command, thread_limits
from headway.runtimes.child_process_memory import create_memory

GRACE_S = 1.0
"""How long idle workers may take to close their environments at the end."""


class EnvironmentFailed(RuntimeError):
    """An environment raised, died or hung. One line that names it."""


@dataclass(slots=True)
class _Task:
    """What a worker was asked for, and how long it may take once it has begun."""

    index: int  # the environment
    what: str  # it has not done, if it is late
    limit_s: float


class _Worker:
    """One process and what it still has to answer, in order."""

    def __init__(self, indices: Sequence[int], memory_fd: int, patience_s: float) -> None:
        self.indices = indices
        self.tasks: deque[_Task] = deque()
        self.began = 0.0  # the first of them
        command = python_command("headway.envs.gymnasium_worker", "headway environment")
        self.child = Child(command, thread_limits(1), fds=[memory_fd], has_lifeline=True)  # of any thread's collector
        self.child.socket.settimeout(patience_s)  # of sending; reading waits in select
        self.channel = Channel(self.child.socket, takes_fds=False)

    def ask(self, question: bytes, tasks: Sequence[_Task]) -> None:
        if not self.tasks:
            self.began = time.monotonic()
        self.tasks.extend(tasks)
        try:
            self.channel.send(question)
        except HungUp:
            raise EnvironmentFailed(self.how_it_died()) from None
        except TimeoutError:
            raise EnvironmentFailed(self.how_late()) from None

    def receive(self) -> Iterator[bytes]:
        """Answers. The first byte of each says what it is."""
        try:
            answers = self.channel.receive()
        except HungUp:
            raise EnvironmentFailed(self.how_it_died()) from None
        for body, _ in answers:
            if body[0] == RAISED:
                index, what, details = pickle.loads(body[1:])
                error = EnvironmentFailed(f"environment {index} raised {what}")
                error.add_note(f"in process {self.child.pid}:\n{details}")
                raise error
            self.tasks.popleft()
            self.began = time.monotonic()
            yield body

    @property
    def is_late(self) -> bool:
        return bool(self.tasks) and time.monotonic() > self.began + self.tasks[0].limit_s

    def how_late(self) -> str:
        task = self.tasks[0]
        return f"environment {task.index} {task.what} within {task.limit_s:g} s (process {self.child.pid})"

    def how_it_died(self) -> str:
        how = self.child.how_it_ended(GRACE_S, "does not answer any more")
        names = [self.tasks[0].index] if self.tasks else self.indices
        many = len(names) > 1
        listed = ", ".join(map(str, names))
        return f"environment{'s' * many} {listed} {'are' if many else 'is'} lost: process {self.child.pid} {how}"


class EnvWorkers:
    """`num_envs` environments in `num_workers` processes; environment i lives in worker i mod num_workers.

    :param start_s: how long building and the first reset of an environment may take
    :param step_s: how long one step may take, a reset that it brings included
    """

    def __init__(
        self, make_env: MakeEnv, shape: EnvShape, num_workers: int, *, start_s: float = 120.0, step_s: float = 60.0
    ) -> None:
        self.shape = shape
        self._start_s = start_s
        self._looks_every_s = min(step_s, start_s) / 10
        self._looks_again = 0.0  # for workers that are late
        self._selector = selectors.DefaultSelector()
        self._steps = [_Task(index, "made no step", step_s) for index in range(shape.num_envs)]
        self._workers: list[_Worker] = []
        self._end = weakref.finalize(self, _end, self._workers)
        memory_fd = create_memory(EnvRows.size_of(shape))
        try:
            self.rows = EnvRows(shape, mmap.mmap(memory_fd, EnvRows.size_of(shape)))
            for number in range(num_workers):
                self._workers.append(_Worker(range(number, shape.num_envs, num_workers), memory_fd, start_s))
            self._start(_carried_along(make_env))
        except BaseException:
            self.close()
            raise
        finally:
            os.close(memory_fd)

    def _start(self, make_env: bytes) -> None:
        for worker in self._workers:
            self._selector.register(worker.channel, selectors.EVENT_READ, worker)
            packed = cloudpickle.dumps((make_env, self.shape, worker.indices))
            worker.ask(bytes([START]) + packed, [_Task(worker.indices[0], "was not built", self._start_s)])
        self._answers(READY)

    @property
    def pids(self) -> list[int]:
        return [worker.child.pid for worker in self._workers]

    def reset(self, seed: int) -> None:
        """Every environment starts anew; `wait` tells when each has."""
        for worker in self._workers:
            tasks = [_Task(index, "was not reset", self._start_s) for index in worker.indices]
            worker.ask(struct.pack("<Bq", RESET, seed), tasks)

    def step(self, indices: np.ndarray, actions: np.ndarray) -> None:
        """These environments make a step each; `wait` tells when each has."""
        self.rows.actions[indices] = actions
        num_workers = len(self._workers)
        shares: dict[int, list[int]] = {}
        for index in indices.tolist():
            shares.setdefault(index % num_workers, []).append(index)
        for number, share in shares.items():
            question = struct.pack(f"<B{len(share)}I", STEP, *share)
            self._workers[number].ask(question, [self._steps[index] for index in share])

    def wait(self) -> list[int]:
        """The environments whose rows are new: at least one. EnvironmentFailed names one that never will be."""
        arrived: list[int] = []
        while not arrived:
            arrived = [int.from_bytes(body[1:], "little") for body in self._receive() if body[0] == ARRIVED]
        return arrived

    def states(self) -> list[bytes]:
        """Every environment as it is between two steps."""
        for worker in self._workers:
            worker.ask(bytes([SAVE]), [_Task(worker.indices[0], "was not saved", self._start_s)])
        states: dict[int, bytes] = {}
        for body in self._answers(SAVED):
            states |= pickle.loads(body)
        return [states[index] for index in range(self.shape.num_envs)]

    def load_states(self, states: Sequence[bytes]) -> None:
        for worker in self._workers:
            packed = pickle.dumps({index: states[index] for index in worker.indices})
            worker.ask(bytes([LOAD]) + packed, [_Task(worker.indices[0], "was not restored", self._start_s)])
        self._answers(READY)

    def close(self) -> None:
        """End every worker. Calling it again does nothing."""
        self._selector.close()
        self._end()

    def _answers(self, kind: int) -> list[bytes]:
        """One answer of this kind from every worker."""
        found: list[bytes] = []
        while len(found) < len(self._workers):
            found += [body[1:] for body in self._receive() if body[0] == kind]
        return found

    def _receive(self) -> list[bytes]:
        """What came next from any worker, maybe nothing. Looks ten times per deadline for who is late or dead."""
        answers: list[bytes] = []
        for key, _ in self._selector.select(max(0.0, self._looks_again - time.monotonic())):
            answers += key.data.receive()
        if time.monotonic() >= self._looks_again:
            for worker in self._workers:
                if worker.child.is_over:
                    raise EnvironmentFailed(worker.how_it_died())
                if worker.is_late:
                    raise EnvironmentFailed(worker.how_late())
            self._looks_again = time.monotonic() + self._looks_every_s
        return answers


def _end(workers: list[_Worker]) -> None:
    """Idle workers see the end of their socket, close their environments and go; others are killed."""
    for worker in workers:
        worker.child.hang_up()
    ends_at = time.monotonic() + GRACE_S
    for worker in workers:
        worker.child.end(0.0 if worker.tasks else max(0.0, ends_at - time.monotonic()))
    workers.clear()


def _carried_along(make_env: MakeEnv) -> bytes:
    """What makes an environment, with its code where a worker could not import it (the user's own script)."""
    main = sys.modules.get("__mp_main__")  # what a script is called in a process that was itself spawned
    if main is None:
        return bytes(cloudpickle.dumps(make_env))
    cloudpickle.register_pickle_by_value(main)
    try:
        return bytes(cloudpickle.dumps(make_env))
    finally:
        cloudpickle.unregister_pickle_by_value(main)
