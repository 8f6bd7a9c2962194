"""Ranks in processes of their own, on this machine.

      rank 0                                        rank 1, 2, ... (`main` below)
      call --- (number of bytes), descriptor ----->  private view of the memory --> RankHost.answer
           <-- (number of bytes), descriptor ------  the Answer

What is said goes through anonymous memory: written once, mapped by each process as its own copy-on-write view, never
written again. So a batch crosses once however many ranks there are, a learner may keep or change what it got, and
nothing stays behind whatever is killed. The socket carries descriptors only, and its end is the end of the process.

The processes are children of the one rank 0 lives in, in its process group; the kernel ends them with it. (With the
thread that started them, to be exact: that is the one the learner lives in.) Ctrl-C and SIGTERM are not for them:
whoever coordinates the run gets those too, and decides.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing import connection, spawn
from typing import Any

import torch

from headway.children.memory import create_memory
from headway.children.parents import die_with_parent
from headway.learn.rank import Backend, Device, Rank
from headway.learn.ranks import Answer, MakeLearner, RankHost, raised

LOOPBACK = "127.0.0.1"
KILL_S = 10.0
"""A killed process is gone in milliseconds, unless the kernel itself holds it."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
ALIGNMENT = 64
_TABLE = struct.Struct("<QQ")  # where the table of sizes begins, how many there are


class RankProcesses:
    """Ranks 1 to size - 1, each a process with `num_threads` compute threads."""

    host = LOOPBACK

    def __init__(self, make_learner: MakeLearner, size: int, device: Device = "cpu", *, num_threads: int = 1) -> None:
        self.backend: Backend = "nccl" if device == "cuda" and torch.cuda.device_count() >= size else "gloo"
        try:
            factory = pickle.dumps(make_learner)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"the learner's factory cannot be sent to a new process ({error}); "
                "with several ranks it must be a function defined at module level"
            ) from error
        preparation = spawn.get_preparation_data("headway rank")
        preparation["authkey"] = bytes(preparation["authkey"])  # refuses to be pickled otherwise
        self._progress = create_memory(8 * size)
        self._memory = mmap.mmap(self._progress, 8 * size)
        self._sums = memoryview(self._memory).cast("q")
        self._sockets: dict[int, socket.socket] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for rank in range(1, size):
            self._start(rank, size, num_threads)
            _send([self._sockets[rank]], (factory, preparation, rank, size, device, num_threads))

    @property
    def pids(self) -> dict[int, int]:
        return {rank: process.pid for rank, process in self._processes.items()}

    def call(self, method: str, *args: Any) -> None:
        _send(self._sockets.values(), (method, args))

    def answers(self, timeout_s: float) -> Sequence[Answer]:
        ranks = {sock: rank for rank, sock in self._sockets.items()}
        found = []
        for sock in connection.wait(list(ranks), timeout_s):
            assert isinstance(sock, socket.socket)
            try:
                found.append(_receive(sock))
            except (EOFError, ConnectionError):
                found.append(Answer(ranks[sock], ended=self._how_it_ended(ranks[sock])))
        return found

    def num_sums(self) -> dict[int, int]:
        return {rank: self._sums[rank] for rank in self._processes}

    def kill(self) -> None:
        for process in self._processes.values():
            process.kill()

    def close(self) -> None:
        self.kill()
        for process in self._processes.values():
            process.wait(KILL_S)
        for sock in self._sockets.values():
            sock.close()
        self._sums.release()
        self._memory.close()
        os.close(self._progress)

    def _start(self, rank: int, size: int, num_threads: int) -> None:
        ours, theirs = socket.socketpair()
        self._sockets[rank] = ours
        fds = theirs.fileno(), self._progress
        with theirs:
            self._processes[rank] = subprocess.Popen(
                _command(rank, size, *fds),
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                env=os.environ | dict.fromkeys(THREAD_VARIABLES, str(num_threads)),
            )

    def _how_it_ended(self, rank: int) -> str:
        process = self._processes[rank]
        try:
            code = process.wait(KILL_S)
        except subprocess.TimeoutExpired:
            return "closed its end and does not exit"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def _command(rank: int, size: int, *fds: int) -> list[str]:
    call = f"main({', '.join(map(str, fds))})"
    program = f"import sys; sys.path[:] = {sys.path!r}; from headway.learn.rank_processes import main; {call}"
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [os.fsdecode(spawn.get_executable()), *flags, "-c", program, f"headway learner rank {rank} of {size}"]


# ---------------------------------------------------------------------------------------- in the process


def main(fd: int, progress: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    die_with_parent()
    # Rank 0 takes the end of the socket for the end of the process, so no child of this process may keep it.
    sock = socket.socket(fileno=fd)
    os.set_inheritable(fd, False)
    os.register_at_fork(after_in_child=sock.close)
    try:
        host = _build(sock, progress)
        while host is not None:
            _send([sock], host.answer(*_receive(sock)))
    except (EOFError, ConnectionError):
        pass  # rank 0 is gone, and nobody else needs this process


def _build(sock: socket.socket, progress: int) -> RankHost | None:
    factory, preparation, index, size, device, num_threads = _receive(sock)
    try:
        # As in multiprocessing: a __main__ without a guard is told so instead of starting everything again.
        multiprocessing.current_process()._inheriting = True  # type: ignore[attr-defined]
        try:
            spawn.prepare(preparation)
        finally:
            del multiprocessing.current_process()._inheriting  # type: ignore[attr-defined]
        sums = memoryview(mmap.mmap(progress, 8 * size)).cast("q")
        host = RankHost(Rank(index, size, device, sums), LOOPBACK, pickle.loads(factory))
        torch.set_num_threads(num_threads)
    except Exception as error:  # noqa: BLE001 - whatever it is, rank 0 says it
        _send([sock], raised(index, error))
        return None
    _send([sock], Answer(index))
    return host


# ---------------------------------------------------------------------------------------- values <-> memory


def _send(sockets: Any, value: Any) -> None:
    """To all of them, through the same memory. One that is gone is noticed when its answer is waited for."""
    buffers: list[pickle.PickleBuffer] = []
    header = pickle.dumps(value, 5, buffer_callback=buffers.append)
    parts = [memoryview(header), *(buffer.raw() for buffer in buffers)]
    sizes = [part.nbytes for part in parts]
    fd = create_memory(0)
    try:
        with open(fd, "wb", closefd=False) as memory:
            for part in parts:
                memory.write(part)
                memory.write(bytes(-part.nbytes % ALIGNMENT))
            table = _TABLE.pack(memory.tell(), len(sizes))
            memory.write(struct.pack(f"<{len(sizes)}Q", *sizes))
        for sock in sockets:
            try:
                socket.send_fds(sock, [table], [fd])
            except ConnectionError:
                continue
    finally:
        os.close(fd)


def _receive(sock: socket.socket) -> Any:
    table, fds, _, _ = socket.recv_fds(sock, _TABLE.size, 1)
    if not table:
        raise EOFError("the other side is gone")
    end, count = _TABLE.unpack(table)
    try:
        memory = memoryview(mmap.mmap(fds[0], 0, access=mmap.ACCESS_COPY))
    finally:
        os.close(fds[0])
    parts, start = [], 0
    for size in struct.unpack_from(f"<{count}Q", memory, end):
        parts.append(memory[start : start + size])
        start += size + -size % ALIGNMENT
    header, *buffers = parts
    return pickle.loads(header, buffers=buffers)
