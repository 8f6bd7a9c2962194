"""Connections of those who have not shown who they are: so many at once, and then the oldest is hung up on.

    accepted --welcome--> [ strangers ] --remove--> has shown that it may be here, or is gone
                               |
                               '-- one too many: the oldest --> hung up on

Whoever can reach a port can open connections to it. Each costs the run a descriptor and a thread, and a run that has
none left ends. The oldest goes, not the newest: who means well has been served long before.
"""

from __future__ import annotations

import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MOST_STRANGERS = 32


class Strangers:
    """At most so many of them. May be called from any thread."""

    def __init__(self, most: int = MOST_STRANGERS) -> None:
        self._most = most
        self._open: dict[socket.socket, None] = {}  # oldest first
        self._lock = threading.Lock()

    def welcome(self, connection: socket.socket) -> None:
        """Another one is there."""
        with self._lock:
            self._open[connection] = None
            if len(self._open) > self._most:
                oldest = next(iter(self._open))
                del self._open[oldest]
                hang_up(oldest)

    def remove(self, connection: socket.socket) -> None:
        """It is none any more, or is about to be closed. Safe to call more than once."""
        with self._lock:
            self._open.pop(connection, None)


def hang_up(connection: socket.socket) -> None:
    """Wakes whoever reads from it or writes to it, and will close it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the other end was quicker


class StrangersServer(ThreadingHTTPServer):
    """An HTTP server whose clients stay strangers: each answer is quick, and nobody is owed another one."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], answer: type[BaseHTTPRequestHandler]) -> None:
        self._strangers = Strangers()
        super().__init__(address, answer)

    def process_request(self, request: Any, client_address: object) -> None:
        self._strangers.welcome(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._strangers.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: object) -> None:
        """A client that has gone, or was hung up on, is nothing to tell."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)
