"""Framed messages with file descriptors over a Unix socket pair: what processes say to each other.

    frame = length of the body, number of descriptors, body; the descriptors travel beside it

Bodies are small: whatever is big goes through shared memory, and only its reference is said.

A process that may open no more files gets a frame without its descriptors: the kernel drops them and says so once. Such
a frame comes with `LOST` in their place, and nothing after it on that channel can be relied on.

Needs the standard library alone.
"""

from __future__ import annotations

import array
import asyncio
import errno
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence

_FRAME = struct.Struct("<IH")  # bytes of the body, number of file descriptors
_RECEIVE_BYTES = 1 << 16
_FD_SPACE = socket.CMSG_LEN(253 * array.array("i").itemsize)  # what one message may carry on Linux
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)

LOST: None = None
Frame = tuple[bytes, list[int] | None]


class HungUp(EOFError):
    """The other side is gone. Not a ConnectionError: what a helper does may raise one of its own."""


def not_lost(fds: list[int] | None) -> list[int]:
    """The descriptors of a frame; OSError if this process may open no more files."""
    if fds is LOST:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return fds


class Channel:
    """Framed messages with file descriptors over one end of a Unix socket pair. This is the blocking side.

    Without `takes_fds` it receives no descriptors, and reading is a third quicker.
    """

    def __init__(self, sock: socket.socket, *, takes_fds: bool = True) -> None:
        self.sock = sock
        self._takes_fds = takes_fds
        self.num_bytes = 0  # in both directions
        self._received = b""
        self._fds: deque[int] = deque()
        self._has_lost_fds = False

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, body: bytes, fds: Sequence[int] = ()) -> None:
        """Raises HungUp, or TimeoutError where the socket has a limit."""
        frame = _FRAME.pack(len(body), len(fds)) + body
        try:
            sent = socket.send_fds(self.sock, [frame], fds) if fds else 0
            if sent < len(frame):
                self.sock.sendall(frame[sent:])
        except ConnectionError:
            raise HungUp("the other side is gone") from None
        self.num_bytes += len(frame)

    def wait(self, timeout_s: float | None) -> bool:
        """Until there is something to receive, its end included; None: however long that takes."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else 1e3 * timeout_s))

    def frames(self) -> Iterator[Frame]:
        """One after another, until the other side is gone."""
        while True:
            try:
                frames = self.receive()
            except HungUp:
                return
            yield from frames

    def receive(self) -> list[Frame]:
        """What one read of the socket completes: often several frames, sometimes none. HungUp at the end."""
        try:
            chunk = self._read_socket()
        except ConnectionError:
            chunk = b""
        if not chunk:
            raise HungUp("the other side is gone")
        self.num_bytes += len(chunk)
        data = self._received + chunk if self._received else chunk
        frames, start = [], 0
        while len(data) - start >= _FRAME.size:
            size, num_fds = _FRAME.unpack_from(data, start)
            end = start + _FRAME.size + size
            if end > len(data):
                break
            frames.append((data[start + _FRAME.size : end], self._take_fds(num_fds) if num_fds else []))
            start = end
        self._received = data[start:]
        return frames

    def _take_fds(self, number: int) -> list[int] | None:
        if self._has_lost_fds:
            return LOST
        return [self._fds.popleft() for _ in range(number)]

    def _read_socket(self) -> bytes:
        if not self._takes_fds:
            return self.sock.recv(_RECEIVE_BYTES)
        chunk, ancillary, flags, _ = self.sock.recvmsg(_RECEIVE_BYTES, _FD_SPACE, _CLOSE_ON_EXEC)
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array.array("i")
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
                self._fds.extend(fds)
        if flags & socket.MSG_CTRUNC:
            self._has_lost_fds = True
        return chunk

    def close(self) -> None:
        self.sock.close()
        while self._fds:
            os.close(self._fds.popleft())


class LoopChannel(Channel):
    """The asyncio side: never blocks, and calls back for every frame and once at the end."""

    def __init__(self, sock: socket.socket, on_frame: Callable[[Frame], None], on_end: Callable[[], None]) -> None:
        super().__init__(sock)
        sock.setblocking(False)
        self._on_frame = on_frame
        self._on_end = on_end
        self._unsent: deque[tuple[memoryview, Sequence[int]]] = deque()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._read)

    def send(self, body: bytes, fds: Sequence[int] = ()) -> None:
        """Send as much as the socket takes now and the rest when it can. `fds` must stay open until close()."""
        frame = _FRAME.pack(len(body), len(fds)) + body
        self.num_bytes += len(frame)
        self._unsent.append((memoryview(frame), fds))
        if len(self._unsent) == 1:
            self._write()

    def _write(self) -> None:
        try:
            while self._unsent:
                data, fds = self._unsent[0]
                sent = socket.send_fds(self.sock, [data], fds) if fds else self.sock.send(data)
                if sent < len(data):
                    self._unsent[0] = data[sent:], ()
                else:
                    self._unsent.popleft()
        except BlockingIOError:
            self._loop.add_writer(self.sock, self._write)
            return
        except ConnectionError:
            self._unsent.clear()  # the reading side sees the end too, and says so
        self._loop.remove_writer(self.sock)

    def _read(self) -> None:
        try:
            frames = self.receive()
        except BlockingIOError:
            return
        except (EOFError, OSError):
            self._on_end()
            return
        for frame in frames:
            self._on_frame(frame)

    def close(self) -> None:
        self._loop.remove_reader(self.sock)
        self._loop.remove_writer(self.sock)
        super().close()
