"""The process an engine lives in, and the memory its weights travel through, seen from the side that starts it."""

from __future__ import annotations

import math
import mmap
import os
import pickle
import queue
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any

import torch

from headway.llm.engine.engine_host import Layout, pack
from headway.runtimes.child_process_channel import Channel, HungUp
from headway.runtimes.child_process_child import Child
from headway.runtimes.child_process_memory import create_memory

CLOSE_S = 2.0
"""How long a process may take to end by itself."""
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class HostSettings:
    """How the engine's process is started and how long it may keep anyone waiting."""

    command: tuple[str, ...]
    """Starts the host; the number of its socket is added at the end."""
    spec: Mapping[str, Any]
    """What the host needs to build its model. Plain values."""
    environment: Mapping[str, str]
    """Added to this process's own."""
    deadline_s: float = 60.0
    """The longest silence while something is asked for. A step, or taking weights, must not take longer."""
    start_s: float = 120.0
    """The longest time to start, imports and model included."""
    restarts: int = 5
    """How often the process may be replaced in its life."""

    def __post_init__(self) -> None:
        for name in ("deadline_s", "start_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, received {getattr(self, name)!r}")
        if self.restarts < 0:
            raise ValueError(f"restarts must be >= 0, received {self.restarts!r}")


class Waker:
    """Wakes a thread that waits for sockets. That thread closes `listener`, whoever wakes it closes the rest."""

    def __init__(self) -> None:
        self._sender, self.listener = socket.socketpair()
        self._sender.setblocking(False)

    def wake(self) -> None:
        try:
            self._sender.send(b"!")
        except (BlockingIOError, ConnectionError):
            pass  # it has been woken often enough, or there is nobody any more who listens

    def close(self) -> None:
        self._sender.close()


class HostProcess:
    """A running host: what is said to it goes out by a thread of its own, so that nobody waits for it to listen."""

    def __init__(self, settings: HostSettings) -> None:
        self._child = Child(
            lambda fds: [*settings.command, *map(str, fds)],
            settings.environment,
            own_group=True,  # so that its own workers end with it
            stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else subprocess.DEVNULL,
        )
        self._channel = Channel(self._child.socket)
        self.pid = self._child.pid
        self.has_ended = False
        self._outbox: queue.SimpleQueue[tuple[bytes, list[int]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._send, name="headway engine outbox", daemon=True).start()

    def tell(self, message: tuple[Any, ...], fd: int | None = None) -> None:
        """Never blocks. `fd` is copied: it may be closed at once."""
        self._outbox.put((pack(message), [] if fd is None else [os.dup(fd)]))

    def hear(self, timeout_s: float | None, waker: Waker | None = None) -> list[tuple[Any, ...]]:
        """What it has said by now; waits for the first word, to be woken, or until the time is over."""
        ready = connection.wait([self._channel.sock, *([waker.listener] if waker else [])], timeout_s)
        if waker is not None and waker.listener in ready:
            waker.listener.recv(4096)
        if self._channel.sock not in ready:
            return []
        try:
            return [pickle.loads(body) for body, _ in self._channel.receive()]
        except HungUp:
            self.has_ended = True
            return []

    def how_it_ended(self) -> str:
        return self._child.how_it_ended(CLOSE_S)

    def end(self, grace_s: float = CLOSE_S) -> None:
        """Let it end by itself within this time, then kill it."""
        self._outbox.put(None)
        self._child.end(grace_s)

    def kill(self) -> None:
        self.end(0.0)

    def _send(self) -> None:
        while (item := self._outbox.get()) is not None:
            body, fds = item
            try:
                self._channel.send(body, fds)
            except (HungUp, OSError):
                continue  # it is gone, and the keeper knows: what is left is only thrown away
            finally:
                for fd in fds:
                    os.close(fd)


class SharedWeights:
    """All weights of one version in anonymous memory."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self.layout: Layout = []
        end = 0
        parts = {name: torch.as_tensor(part) for name, part in tensors.items()}
        for name, part in parts.items():
            self.layout.append((name, str(part.dtype).removeprefix("torch."), tuple(part.shape), end))
            end += part.numel() * part.element_size()
            end += -end % ALIGNMENT
        self.fd = create_memory(max(end, 1))
        weakref.finalize(self, os.close, self.fd)
        with torch.no_grad():
            for (_, view), part in zip(self._views(mmap.ACCESS_WRITE), parts.values(), strict=True):
                view.copy_(part)

    def tensors(self) -> dict[str, Any]:
        return dict(self._views(mmap.ACCESS_COPY))

    def _views(self, access: int) -> Iterator[tuple[str, Any]]:
        memory = mmap.mmap(self.fd, 0, access=access)
        for name, dtype, shape, offset in self.layout:
            count = math.prod(shape)
            yield name, torch.frombuffer(memory, dtype=getattr(torch, dtype), count=count, offset=offset).reshape(shape)


def _has_descriptor(stream: Any) -> bool:
    try:
        return bool(stream.fileno() >= 0)
    except (AttributeError, OSError, ValueError):
        return False
