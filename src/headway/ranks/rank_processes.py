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
import os
import pickle
import signal
import socket
import time
from collections.abc import Iterable, Sequence
from multiprocessing import connection
from typing import Any

import torch

from headway.ranks.rank import Backend, Device, Rank
from headway.ranks.ranked_learner import Answer, MakeLearner, RankHost, raised
from headway.runtimes.child_process_channel import Channel, Frame, HungUp, not_lost
from headway.runtimes.child_process_child import KILL_S, Child, python_command, thread_limits
from headway.runtimes.child_process_in_child import begin
from headway.runtimes.child_process_memory import create_memory, read_value, write_value
from headway.runtimes.child_process_sent_code import pack_function, unpack_function

LOOPBACK = "127.0.0.1"


class RankProcesses:
    """Ranks 1 to size - 1, each a process with `num_threads` compute threads."""

    host = LOOPBACK

    def __init__(self, make_learner: MakeLearner, size: int, device: Device = "cpu", *, num_threads: int = 1) -> None:
        self.backend: Backend = "nccl" if device == "cuda" and torch.cuda.device_count() >= size else "gloo"
        try:
            factory = pack_function(make_learner, "headway rank")
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"the learner's factory cannot be sent to a new process ({error}); "
                "with several ranks it must be a function defined at module level"
            ) from error
        self._progress = create_memory(8 * size)
        self._memory = mmap.mmap(self._progress, 8 * size)
        self._sums = memoryview(self._memory).cast("q")
        self._children: dict[int, Child] = {}
        self._channels: dict[int, Channel] = {}
        for rank in range(1, size):
            command = python_command(__name__, f"headway learner rank {rank} of {size}")
            child = self._children[rank] = Child(command, thread_limits(num_threads), fds=[self._progress])
            self._channels[rank] = Channel(child.socket)
            _send([self._channels[rank]], (factory, rank, size, device, num_threads))

    @property
    def pids(self) -> dict[int, int]:
        return {rank: child.pid for rank, child in self._children.items()}

    def call(self, method: str, *args: object) -> None:
        _send(self._channels.values(), (method, args))

    def answers(self, timeout_s: float) -> Sequence[Answer]:
        ranks = {child.socket: rank for rank, child in self._children.items()}
        found: list[Answer] = []
        ends_at = time.monotonic() + timeout_s
        while not found and (ready := connection.wait(list(ranks), max(0.0, ends_at - time.monotonic()))):
            for sock in ready:
                assert isinstance(sock, socket.socket)
                rank = ranks[sock]
                try:
                    found += map(_value, self._channels[rank].receive())
                except HungUp:
                    found.append(Answer(rank, ended=self._children[rank].how_it_ended(KILL_S)))
        return found

    def num_sums(self) -> dict[int, int]:
        return {rank: self._sums[rank] for rank in self._children}

    def kill(self) -> None:
        for child in self._children.values():
            child.kill()

    def close(self) -> None:
        self.kill()
        for child in self._children.values():
            child.end()
        self._sums.release()
        self._memory.close()
        os.close(self._progress)


# ---------------------------------------------------------------------------------------- in the process


def main(fd: int, progress: int) -> None:
    channel = begin(fd, ignored=(signal.SIGINT, signal.SIGTERM))
    host: RankHost | None = None
    for frame in channel.frames():  # until rank 0 is gone: nobody else needs this process
        if host is not None:
            _send([channel], host.answer(*_value(frame)))
        elif (host := _build(channel, frame, progress)) is None:
            return


def _build(channel: Channel, start: Frame, progress: int) -> RankHost | None:
    factory, index, size, device, num_threads = _value(start)
    try:
        make_learner = unpack_function(factory)
        sums = memoryview(mmap.mmap(progress, 8 * size)).cast("q")
        torch.set_num_threads(num_threads)
        host = RankHost(Rank(index, size, device, sums), LOOPBACK, make_learner)
    except Exception as error:  # noqa: BLE001 - whatever it is, rank 0 says it
        _send([channel], raised(index, error))
        return None
    _send([channel], Answer(index))
    return host


# ---------------------------------------------------------------------------------------- values <-> memory


def _send(channels: Iterable[Channel], value: object) -> None:
    """To all of them, through the same memory. One that is gone is noticed when its answer is waited for."""
    table, fd = write_value(value)
    try:
        for channel in channels:
            try:
                channel.send(table, [fd])
            except HungUp:
                continue
    finally:
        os.close(fd)


def _value(frame: Frame) -> Any:
    table, fds = frame
    (fd,) = not_lost(fds)
    try:
        return read_value(table, fd)
    finally:
        os.close(fd)
