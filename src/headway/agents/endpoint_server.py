"""An OpenAI-compatible server for agents: HTTP around `endpoint.py`, on this machine only unless it is told otherwise.

    POST /v1/chat/completions            a reply, whole or as a stream of events
    GET  /v1/models                      the one model there is
    POST /v1/sessions/KEY/reward         {"reward": 1.0, "done": false}: adds to what the last reply has earned

    the key     Authorization: Bearer KEY, or /s/KEY/v1/..., or the KEY of the reward's address
    401 unknown key    409 closed session    421 another Host    400 and the rest: OpenAI's error object, in one line

A stream is sent when its reply is whole: nobody waits for a client but the thread that writes to it. Every wait for a
client has a deadline. Nothing of a request is logged.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from headway.agents.chat_api import Refused, chunks, completion, model_list, read_request
from headway.agents.endpoint import AgentRun, Endpoint
from headway.core.types_opaque import JsonObject
from headway.runs.local_server_strangers import Strangers, hang_up
from headway.runs.local_server_this_machine import NAMES, is_of_this_machine

LOOPBACK = "127.0.0.1"
MAX_BODY = 32 * 2**20
CLIENT_S = 60.0
"""How long a client may take to send a request, to take an answer, and to say nothing between two."""
MOST_STRANGERS = 256
"""Connections without a key: all agents of a batch may knock at once."""


class EndpointServer(ThreadingHTTPServer):
    """Serves an endpoint from a thread of its own until `close`. Port 0: one that is free."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, endpoint: Endpoint, *, host: str = LOOPBACK, port: int = 0, client_s: float = CLIENT_S) -> None:
        self.endpoint = endpoint
        self.client_s = client_s
        self.began = int(time.time())
        self._host = host
        self.strangers = Strangers(MOST_STRANGERS)
        """Those who have no key yet."""
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        try:
            super().__init__((host, port), _Exchange)
        except OSError as error:
            raise ValueError(f"cannot serve agents on {host}:{port}: {error.strerror or error}") from None
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="endpoint", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """The base URL for clients."""
        return f"http://{self._host}:{self.server_address[1]}/v1"

    def is_for_us(self, host: str) -> bool:
        """Is this the name, in a Host header, under which the server was started?"""
        return is_of_this_machine(host) if self._host == LOOPBACK else host.rpartition(":")[0] == self._host

    def close(self) -> None:
        """Ends the server, its sessions, and the connections of clients that are still there."""
        self.shutdown()
        self._thread.join()
        self.server_close()
        self.endpoint.close()
        with self._lock:
            for connection in self._open:
                hang_up(connection)

    def process_request(self, request: Any, client_address: object) -> None:
        self.strangers.welcome(request)
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.strangers.remove(request)
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)


class _Exchange(BaseHTTPRequestHandler):
    """One connection: requests, one after the other."""

    server: EndpointServer
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.client_s)

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def _answer(self, method: str) -> None:
        try:
            try:
                self._serve(method)
            except Refused as refused:
                self._refuse(refused)
            except RecursionError:
                self._refuse(Refused("the body is nested too deeply"))
        except (ConnectionError, TimeoutError):  # the client is gone, or too slow; its run goes on without it
            self.close_connection = True

    def _refuse(self, refused: Refused) -> None:
        self.close_connection = True  # its body may not have been read
        self._send(refused.status, refused.body())

    def _serve(self, method: str) -> None:
        if not self.server.is_for_us(self.headers.get("Host", "")):
            raise Refused(f"this server is for {', '.join(NAMES)} only", status=421, code="wrong_host")
        path, key = self.path.partition("?")[0], ""
        if path.startswith("/s/"):
            key, slash, rest = path.removeprefix("/s/").partition("/")
            path = slash + rest
        wanted = path.strip("/").split("/")
        if wanted[:2] == ["v1", "sessions"] and wanted[3:] == ["reward"]:
            self._allow(method, "POST")
            self._reward(self._run(key, wanted[2]))
        elif wanted == ["v1", "chat", "completions"]:
            self._allow(method, "POST")
            self._complete(self._run(key))
        elif wanted == ["v1", "models"]:
            self._allow(method, "GET")
            self._run(key)
            self._send(200, model_list(self.server.endpoint.model, self.server.began))
        else:
            known = "/v1/chat/completions, /v1/models, /v1/sessions/KEY/reward"
            raise Refused(f"there is no {path!r} here; known: {known}", status=404, code="not_found")

    def _allow(self, method: str, allowed: str) -> None:
        if method != allowed:
            raise Refused(f"{method} is not possible here, {allowed} is", status=405, code="wrong_method")

    def _run(self, *in_address: str) -> AgentRun:
        """The run of the request's key. Where it is said more than once, it must be the same one."""
        kind, _, bearer = self.headers.get("Authorization", "").partition(" ")
        keys = {key for key in (*in_address, bearer.strip() if kind.lower() == "bearer" else "") if key}
        if len(keys) != 1:
            told = "two different keys" if keys else "no key: send Authorization: Bearer KEY, or ask /s/KEY/v1"
            raise Refused(told, status=401, code="invalid_api_key")
        run = self.server.endpoint.run_of(keys.pop())
        self.server.strangers.remove(self.connection)
        return run

    def _complete(self, run: AgentRun) -> None:
        again = self.headers.get("X-Stainless-Retry-Count", "0")  # as clients made from OpenAI's description say it
        request = read_request(self._body(run), is_again=again.isdigit() and again.strip("0") != "")
        found = run.complete(request)
        model, created, log_probs = self.server.endpoint.model, int(time.time()), request.wants_log_probs
        if not request.is_streamed:
            self._send(200, completion(found, model, created, with_log_probs=log_probs))
            return
        pieces = chunks(found, model, created, with_log_probs=log_probs, with_usage=request.wants_usage)
        lines = [f"data: {json.dumps(piece)}\n\n" for piece in pieces]
        self.close_connection = True  # which ends the stream
        self._begin(200, "text/event-stream; charset=utf-8", None)
        for line in (*lines, "data: [DONE]\n\n"):
            self.wfile.write(line.encode())
            self.wfile.flush()

    def _reward(self, run: AgentRun) -> None:
        body = self._body(run)
        told: JsonObject = body if isinstance(body, dict) else {}
        value, done = told.get("reward"), told.get("done", False)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
            raise Refused(f"the body must be an object with a finite number 'reward', received {str(body)[:80]}")
        if not isinstance(done, bool):
            raise Refused(f"done must be true or false, received {done!r}")
        run.reward(float(value), done=done)
        self._send(200, {"reward": value, "done": done, "turns": run.num_turns})

    def _body(self, run: AgentRun) -> object:
        """The body, if it may fit into the run's conversation: reading JSON and making tokens takes time of others."""
        given = self.headers.get("Content-Length", "")
        if not (given.isascii() and given.isdigit()):
            raise Refused("a body needs a Content-Length", status=411, code="length_required")
        if len(given) > 20:
            given = f"{given[:3]}... ({len(given)} digits)"
        if "." in given or int(given) > MAX_BODY:
            raise Refused(f"a body may have {MAX_BODY} bytes, received {given}", status=413, code="too_large")
        size = left = int(given)
        parts, ends_at = list[bytes](), time.monotonic() + self.server.client_s
        while left:
            if time.monotonic() > ends_at:
                raise TimeoutError
            part = self.rfile.read1(min(left, 2**16))
            if not part:
                raise ConnectionResetError
            parts.append(part)
            left -= len(part)
        run.check_size(size)
        try:
            return json.loads(b"".join(parts))
        except ValueError as error:
            raise Refused(f"the body is no JSON: {error}") from None

    def _send(self, status: int, body: JsonObject) -> None:
        text = json.dumps(body).encode()
        self._begin(status, "application/json", len(text))
        self.wfile.write(text)

    def _begin(self, status: int, kind: str, size: int | None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if size is not None:
            self.send_header("Content-Length", str(size))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Keys and conversations are nobody else's business, and a line a request would bury the run's own."""
