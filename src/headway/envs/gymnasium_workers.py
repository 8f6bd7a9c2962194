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

import fcntl
import mmap
import os
import pickle
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import spawn
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
from gymnasium import spaces

from headway.children.memory import create_memory
from headway.envs.gymnasium_vector import Continuous, Spec, as_features_of_one, choices_of, describe_spaces

GRACE_S = 1.0
"""How long idle workers may take to close their environments at the end."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
ALIGNMENT = 64

MakeEnv = Callable[[], gym.Env[Any, Any]]


class EnvironmentFailed(RuntimeError):
    """An environment raised, died or hung. One line that names it."""


# -- what both sides know ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """What the environments are like: enough to lay out their rows."""

    num_envs: int
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]

    @property
    def spec(self) -> Spec:
        return describe_spaces(self.observation_space, self.action_space)

    @property
    def num_choices(self) -> int:
        """Entries of an action mask."""
        action = self.spec.action
        return 0 if isinstance(action, Continuous) else sum(choices_of(action))

    def fields(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Type and shape of each field of a row."""
        action = self.action_space
        return {
            "obs": (self.spec.dtype, self.spec.observation),
            "rewards": (np.dtype(np.float64), ()),
            "terminated": (np.dtype(bool), ()),
            "truncated": (np.dtype(bool), ()),
            "masks": (np.dtype(bool), (self.num_choices,)),
            "has_mask": (np.dtype(bool), ()),
            "actions": (np.dtype(action.dtype), tuple(action.shape or ())),
        }


class Rows:
    """What each environment saw last, and what it is to do next, [N, ...] each."""

    obs: np.ndarray  # [N, ...] float32, uint8 if they are pictures of bytes
    rewards: np.ndarray  # [N] float64
    terminated: np.ndarray  # [N]
    truncated: np.ndarray  # [N]
    masks: np.ndarray  # [N, A]
    has_mask: np.ndarray  # [N]
    actions: np.ndarray  # [N, ...]

    def __init__(self, shape: Shape, memory: Any = None) -> None:
        start = 0
        memory = bytearray(self.size_of(shape)) if memory is None else memory
        for name, (dtype, rest) in shape.fields().items():
            array = np.ndarray((shape.num_envs, *rest), dtype, memory, start)
            setattr(self, name, array)
            start += _aligned(array.nbytes)

    @staticmethod
    def size_of(shape: Shape) -> int:
        sizes = (dtype.itemsize * int(np.prod(rest)) for dtype, rest in shape.fields().values())
        return sum(_aligned(shape.num_envs * size) for size in sizes)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class Stepper:
    """One environment and its row. Starts the environment again on the step after it ended."""

    def __init__(self, index: int, make_env: MakeEnv, shape: Shape, rows: Rows) -> None:
        self._index, self._shape, self._rows = index, shape, rows
        self._env = make_env()
        self._is_over = False

    def reset(self, seed: int) -> None:
        """Copy i of a vector starts from seed + i."""
        obs, info = self._env.reset(seed=seed + self._index)
        self._write(obs, 0.0, False, False, info)

    def step(self) -> None:
        if self._is_over:
            obs, info = self._env.reset()
            self._write(obs, 0.0, False, False, info)
        else:
            action = self._rows.actions[self._index]
            self._write(*self._env.step(action.copy()))

    def close(self) -> None:
        self._env.close()

    def state(self) -> bytes:
        state: bytes = cloudpickle.dumps((self._env, self._is_over))
        return state

    def load_state(self, state: bytes) -> None:
        self._env.close()
        self._env, self._is_over = cloudpickle.loads(state)

    def _write(self, obs: Any, reward: Any, terminated: bool, truncated: bool, info: dict[str, Any]) -> None:
        rows, index = self._rows, self._index
        rows.obs[index] = as_features_of_one(obs, self._shape.observation_space)
        rows.rewards[index], rows.terminated[index], rows.truncated[index] = reward, terminated, truncated
        mask = info.get("action_mask") if rows.masks.shape[1] else None
        rows.has_mask[index] = mask is not None
        legal = np.zeros(rows.masks.shape[1], bool) if mask is None else np.asarray(mask, bool).reshape(-1)
        if legal.shape != rows.masks[index].shape:
            width = rows.masks.shape[1]
            raise ValueError(f"an action mask needs an entry for each of {width} actions, received {legal.shape}")
        rows.masks[index] = legal
        self._is_over = bool(terminated or truncated)


# -- messages ---------------------------------------------------------------------------------------

_HEAD = struct.Struct("<BI")  # kind, bytes of the body
_INDEX = struct.Struct("<I")
START, READY, RESET, STEP, ARRIVED, RAISED, SAVE, SAVED, LOAD = range(9)


class HungUp(Exception):
    """The other side is gone. Not a ConnectionError: an environment may raise one of its own."""


class Line:
    """Framed messages over one end of a socket pair."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._received = b""

    def send(self, kind: int, body: bytes = b"") -> None:
        try:
            self.sock.sendall(_HEAD.pack(kind, len(body)) + body)
        except ConnectionError:
            raise HungUp from None

    def receive(self) -> list[tuple[int, bytes]]:
        """What one read of the socket completes: often several messages, sometimes none."""
        try:
            chunk = self.sock.recv(1 << 16)
        except ConnectionError:
            chunk = b""
        if not chunk:
            raise HungUp
        data = self._received + chunk if self._received else chunk
        messages, start = [], 0
        while len(data) - start >= _HEAD.size:
            kind, size = _HEAD.unpack_from(data, start)
            end = start + _HEAD.size + size
            if end > len(data):
                break
            messages.append((kind, data[start + _HEAD.size : end]))
            start = end
        self._received = data[start:]
        return messages


# -- the collector's side ---------------------------------------------------------------------------


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
        ours, theirs = socket.socketpair()
        end, self.lifeline = os.pipe()  # nothing is ever written: its end is the end of this process
        with theirs:
            fds = theirs.fileno(), memory_fd, end
            self.process = subprocess.Popen(
                _command(*fds),
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                env=os.environ | dict.fromkeys(THREAD_VARIABLES, "1"),
            )
        os.close(end)
        ours.settimeout(patience_s)  # of sending; reading waits in select
        self.line = Line(ours)

    def ask(self, kind: int, body: bytes, tasks: Sequence[_Task]) -> None:
        if not self.tasks:
            self.began = time.monotonic()
        self.tasks.extend(tasks)
        try:
            self.line.send(kind, body)
        except HungUp:
            raise EnvironmentFailed(self.how_it_died()) from None
        except TimeoutError:
            raise EnvironmentFailed(self.how_late()) from None

    def receive(self) -> Iterator[tuple[int, int, bytes]]:
        """Answers: kind, environment, body."""
        try:
            messages = self.line.receive()
        except HungUp:
            raise EnvironmentFailed(self.how_it_died()) from None
        for kind, body in messages:
            if kind == RAISED:
                index, what, details = pickle.loads(body)
                error = EnvironmentFailed(f"environment {index} raised {what}")
                error.add_note(f"in process {self.process.pid}:\n{details}")
                raise error
            task = self.tasks.popleft()
            self.began = time.monotonic()
            yield kind, task.index, body

    @property
    def is_late(self) -> bool:
        return bool(self.tasks) and time.monotonic() > self.began + self.tasks[0].limit_s

    def how_late(self) -> str:
        task = self.tasks[0]
        return f"environment {task.index} {task.what} within {task.limit_s:g} s (process {self.process.pid})"

    def how_it_died(self) -> str:
        try:
            code = self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            how = "does not answer any more"
        else:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        names = [self.tasks[0].index] if self.tasks else self.indices
        many = len(names) > 1
        listed = ", ".join(map(str, names))
        return f"environment{'s' * many} {listed} {'are' if many else 'is'} lost: process {self.process.pid} {how}"


class EnvWorkers:
    """`num_envs` environments in `num_workers` processes; environment i lives in worker i mod num_workers.

    :param start_s: how long building and the first reset of an environment may take
    :param step_s: how long one step may take, a reset that it brings included
    """

    def __init__(
        self, make_env: MakeEnv, shape: Shape, num_workers: int, *, start_s: float = 120.0, step_s: float = 60.0
    ) -> None:
        self.shape = shape
        self._start_s = start_s
        self._looks_every_s = min(step_s, start_s) / 10
        self._looks_again = 0.0  # for workers that are late
        self._selector = selectors.DefaultSelector()
        self._steps = [_Task(index, "made no step", step_s) for index in range(shape.num_envs)]
        self._workers: list[_Worker] = []
        self._end = weakref.finalize(self, _end, os.getpid(), self._workers)
        _ALIVE.add(self)
        memory_fd = create_memory(Rows.size_of(shape))
        try:
            self.rows = Rows(shape, mmap.mmap(memory_fd, Rows.size_of(shape)))
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
            self._selector.register(worker.line.sock, selectors.EVENT_READ, worker)
            body = cloudpickle.dumps((make_env, self.shape, worker.indices))
            worker.ask(START, body, [_Task(worker.indices[0], "was not built", self._start_s)])
        self._answers(READY)

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    def reset(self, seed: int) -> None:
        """Every environment starts anew; `wait` tells when each has."""
        for worker in self._workers:
            tasks = [_Task(index, "was not reset", self._start_s) for index in worker.indices]
            worker.ask(RESET, struct.pack("<q", seed), tasks)

    def step(self, indices: np.ndarray, actions: np.ndarray) -> None:
        """These environments make a step each; `wait` tells when each has."""
        self.rows.actions[indices] = actions
        num_workers = len(self._workers)
        shares: dict[int, list[int]] = {}
        for index in indices.tolist():
            shares.setdefault(index % num_workers, []).append(index)
        for number, share in shares.items():
            body = struct.pack(f"<{len(share)}I", *share)
            self._workers[number].ask(STEP, body, [self._steps[index] for index in share])

    def wait(self) -> list[int]:
        """The environments whose rows are new: at least one. EnvironmentFailed names one that never will be."""
        arrived: list[int] = []
        while not arrived:
            arrived = [_INDEX.unpack(body)[0] for kind, _, body in self._receive() if kind == ARRIVED]
        return arrived

    def states(self) -> list[bytes]:
        """Every environment as it is between two steps."""
        for worker in self._workers:
            worker.ask(SAVE, b"", [_Task(worker.indices[0], "was not saved", self._start_s)])
        states: dict[int, bytes] = {}
        for body in self._answers(SAVED):
            states |= pickle.loads(body)
        return [states[index] for index in range(self.shape.num_envs)]

    def load_states(self, states: Sequence[bytes]) -> None:
        for worker in self._workers:
            body = pickle.dumps({index: states[index] for index in worker.indices})
            worker.ask(LOAD, body, [_Task(worker.indices[0], "was not restored", self._start_s)])
        self._answers(READY)

    def close(self) -> None:
        """End every worker. Calling it again does nothing."""
        self._selector.close()
        self._end()

    def _answers(self, kind: int) -> list[bytes]:
        """One answer of this kind from every worker."""
        found: list[bytes] = []
        while len(found) < len(self._workers):
            found += [body for answer, _, body in self._receive() if answer == kind]
        return found

    def _receive(self) -> list[tuple[int, int, bytes]]:
        """What came next from any worker, maybe nothing. Looks ten times per deadline for who is late or dead."""
        answers: list[tuple[int, int, bytes]] = []
        for key, _ in self._selector.select(max(0.0, self._looks_again - time.monotonic())):
            answers += key.data.receive()
        if time.monotonic() >= self._looks_again:
            for worker in self._workers:
                if worker.process.poll() is not None:
                    raise EnvironmentFailed(worker.how_it_died())
                if worker.is_late:
                    raise EnvironmentFailed(worker.how_late())
            self._looks_again = time.monotonic() + self._looks_every_s
        return answers


_ALIVE: weakref.WeakSet[EnvWorkers] = weakref.WeakSet()


def _let_go() -> None:
    """A fork of the collector's process must not keep its workers alive."""
    for workers in _ALIVE:
        for worker in workers._workers:
            worker.line.sock.close()
            os.close(worker.lifeline)


os.register_at_fork(after_in_child=_let_go)


def _end(owner: int, workers: list[_Worker]) -> None:
    """Idle workers see the end of their socket, close their environments and go; others are killed."""
    if os.getpid() != owner:  # a fork of the collector's process: these are not its children
        return
    for worker in workers:
        worker.line.sock.close()
    ends_at = time.monotonic() + GRACE_S
    for worker in workers:
        try:
            worker.process.wait(0.0 if worker.tasks else max(0.0, ends_at - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()
        os.close(worker.lifeline)
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


def _command(sock: int, memory: int, lifeline: int) -> list[str]:
    call = f"main({sock}, {memory}, {lifeline})"
    program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; {call}"
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [os.fsdecode(spawn.get_executable()), *flags, "-c", program, "headway environment"]


# -- the worker's side ------------------------------------------------------------------------------


def main(sock: int, memory: int, lifeline: int) -> None:
    """Host environments until the collector hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the collector's process too: that one decides
    if sys.platform == "linux":
        _end_with_the_collector(lifeline)
    line = Line(socket.socket(fileno=sock))
    for fd in (sock, memory, lifeline):
        os.set_inheritable(fd, False)
    os.register_at_fork(after_in_child=line.sock.close)  # or nobody would see the end of this process
    steppers: dict[int, Stepper] = {}
    try:
        while True:
            for kind, body in line.receive():
                _answer(line, steppers, kind, body, memory)
    except HungUp:
        for stepper in steppers.values():
            stepper.close()
        sys.stdout.flush()
        os._exit(0)  # the collector waits for us, and taking an interpreter down takes a third of a second


def _answer(line: Line, steppers: dict[int, Stepper], kind: int, body: bytes, memory: int) -> None:
    index = 0
    try:
        if kind == STEP:
            for (index,) in _INDEX.iter_unpack(body):
                steppers[index].step()
                line.send(ARRIVED, _INDEX.pack(index))
        elif kind == START:
            packed, shape, indices = cloudpickle.loads(body)
            rows = Rows(shape, mmap.mmap(memory, Rows.size_of(shape)))
            for index in indices:
                steppers[index] = Stepper(index, cloudpickle.loads(packed), shape, rows)
            line.send(READY)
        elif kind == RESET:
            (seed,) = struct.unpack("<q", body)
            for index, stepper in steppers.items():
                stepper.reset(seed)
                line.send(ARRIVED, _INDEX.pack(index))
        elif kind == SAVE:
            states = {}
            for index, stepper in steppers.items():
                states[index] = stepper.state()
            line.send(SAVED, pickle.dumps(states))
        elif kind == LOAD:
            for index, state in pickle.loads(body).items():
                steppers[index].load_state(state)
            line.send(READY)
    except HungUp:
        raise
    except Exception as error:  # noqa: BLE001 - whatever an environment raises is told with its name
        line.send(RAISED, pickle.dumps((index, f"{type(error).__name__}: {error}", traceback.format_exc())))


def _end_with_the_collector(lifeline: int) -> None:
    """Let the kernel end this process when the other end of the pipe is closed, whatever it is doing then.

    Not by a death signal, which a parent's thread sends when it ends: the collector may be built in one thread and
    used in another. On other systems the end of the socket is seen, after the step under way.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    watch = select.poll()
    watch.register(lifeline, select.POLLIN)
    if watch.poll(0):  # it ended before we listened
        os._exit(1)
