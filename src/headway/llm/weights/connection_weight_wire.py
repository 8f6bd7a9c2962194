"""What the two ends of a weight link say to each other: small messages on a TCP connection, under a deadline.

    source  ----- a random number ---------------->  engine
            <---- another one, and proof of the token
            ----- proof of the token ------------->          from here on: length + JSON, or plain bytes

Both sides prove that they know the token before anything else is read, and neither says it. Nothing is unpickled. What
is said is not encrypted: like Ray and torch.distributed, a link belongs on a network you trust.
"""

from __future__ import annotations

import hmac
import json
import select
import socket
import struct
import time
from typing import NamedTuple

from headway.core.types_lent import LentLost
from headway.core.types_opaque import JsonObject

_LENGTH = struct.Struct("<I")
_PROOF = 32
GREETING_S = 10.0
"""Whoever knows the token has shown it by then."""


class LinkBroken(LentLost):
    """Weights could not be had from their source. One line."""


class SourceAddress(NamedTuple):
    """Where weights are kept."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"the learner at {self.host}:{self.port}"


class Deadline:
    """A moment that whatever follows has to keep."""

    def __init__(self, seconds: float) -> None:
        if not seconds > 0:
            raise ValueError(f"a deadline must be positive, received {seconds!r}")
        self.seconds = seconds
        self._ends_at = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Raises TimeoutError when there is nothing left."""
        left_s = self._ends_at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"not within {self.seconds:g} s")
        return left_s

    def check(self) -> None:
        """Raises TimeoutError when it has passed."""
        _ = self.left_s

    def part(self, share: float) -> Deadline:
        """Some of what is left."""
        return Deadline(share * self.left_s)


class Wire:
    """One connection. What goes wrong is an OSError: TimeoutError past the deadline, ConnectionError at its end."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket = sock

    @property
    def here(self) -> str:
        """The address of this machine that the other end reaches it by."""
        return str(self._socket.getsockname()[0])

    @property
    def is_up(self) -> bool:
        """False when the other end has closed it. Never blocks."""
        try:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            return not poll.poll(0) or bool(self._socket.recv(1, socket.MSG_PEEK))
        except (OSError, ValueError):  # reset; or closed here
            return False

    def say(self, message: JsonObject, until: Deadline) -> None:
        body = json.dumps(message).encode()
        self.send(_LENGTH.pack(len(body)) + body, until)

    def hear(self, until: Deadline | None) -> JsonObject:
        """The next message; without a deadline, whenever it comes."""
        (size,) = _LENGTH.unpack(self._read(_LENGTH.size, until))
        return json.loads(self._read(size, until))

    def send(self, data: bytes | memoryview, until: Deadline) -> None:
        self._socket.settimeout(until.left_s)
        self._socket.sendall(data)

    def read_into(self, memory: memoryview, until: Deadline | None) -> None:
        while memory:
            self._socket.settimeout(None if until is None else until.left_s)
            count = self._socket.recv_into(memory)
            if not count:
                raise ConnectionError("the connection was closed")
            memory = memory[count:]

    def close(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes whoever reads
        except OSError:
            pass
        self._socket.close()

    def _read(self, size: int, until: Deadline | None) -> bytes:
        data = bytearray(size)
        self.read_into(memoryview(data), until)
        return bytes(data)

    # -- the greeting -------------------------------------------------------------------------------

    def greet_as_source(self, token: bytes, nonce: bytes) -> bool:
        """Does the other end know the token?"""
        until = Deadline(GREETING_S)
        self.send(nonce, until)
        theirs, proof = self._read(_PROOF, until), self._read(_PROOF, until)
        if not hmac.compare_digest(proof, _prove(token, b"engine", nonce, theirs)):
            return False
        self.send(_prove(token, b"source", theirs, nonce), until)
        return True

    def greet_as_engine(self, token: bytes, nonce: bytes, until: Deadline) -> None:
        theirs = self._read(_PROOF, until)
        self.send(nonce + _prove(token, b"engine", theirs, nonce), until)
        try:
            proof = self._read(_PROOF, until)
        except ConnectionError:
            raise ConnectionError("it does not accept this token") from None
        if not hmac.compare_digest(proof, _prove(token, b"source", nonce, theirs)):
            raise ConnectionError("it does not know the token: something else listens there")


def _prove(token: bytes, side: bytes, theirs: bytes, ours: bytes) -> bytes:
    return hmac.digest(token, side + theirs + ours, "sha256")
