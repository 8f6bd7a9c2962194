"""A report that follows runs which go on: the page and its data, served on this machine only."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from headway.core.types_opaque import JsonObject
from headway.runs.folder import RunFolder
from headway.runs.local_server_strangers import StrangersServer
from headway.runs.local_server_this_machine import NAMES, is_of_this_machine
from headway.runs.log_parts import log_size
from headway.tools.report.recorded_run_run_history import StoryReader
from headway.tools.report.recorded_run_story_records import Story
from headway.tools.report.report import document, page
from headway.tools.report.report_page import is_alive, is_only_end, look, names_of

REFRESH_S = 2.0
SIMULATING = "The run is being simulated under other leads."
REST = 10.0  # how many times as long as it took to make a page is left to the run before it is made again


class LiveReport:
    """The newest document about runs that go on. It is made again when a log has grown or a process is gone, and not
    more often than leaves the machine to the run. Of a log only what is new is read, of a long one its end: then
    the first document comes at once, without the simulation, which takes seconds, and the next one has it."""

    def __init__(self, folders: Sequence[Path], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._names = names_of(folders)
        self._logs = [RunFolder(folder).events for folder in folders]
        self._readers = [StoryReader(folder, whole=False) for folder in folders]
        self._stories: list[Story] = []
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: tuple[list[int], list[bool | None]] = [], []
        """Of each run: the size of its log, and whether its process was alive."""
        self._good_until = 0.0
        self._document: JsonObject = {}
        self._text = b""
        self._tag = ""

    def newest(self) -> tuple[JsonObject, bytes, str]:
        """The document, the same as JSON, and a tag that changes with it."""
        with self._lock:
            began = self._clock()
            sizes = [log_size(log) if log.is_file() else -1 for log in self._logs]  # before they are read
            if not self._document or ((sizes, self._lives()) != self._seen and began >= self._good_until):
                self._stories = [reader.read() for reader in self._readers]
                at_once = not self._document and any(map(is_only_end, self._stories))
                pairs = zip(self._stories, self._names, strict=True)
                runs = [look(story, name, unsimulated=SIMULATING if at_once else "") for story, name in pairs]
                self._seen = ([], []) if at_once else (sizes, [run.is_alive for run in runs])
                is_live = at_once or any(run.may_go_on for run in runs)
                self._document = document(runs, is_live=is_live, refresh_s=REFRESH_S)
                self._text = json.dumps(self._document, separators=(",", ":"), allow_nan=False).encode()
                self._tag = f'"{blake2b(self._text, digest_size=8).hexdigest()}"'
                self._good_until = began + (0.0 if at_once else REST * (self._clock() - began))
            return self._document, self._text, self._tag

    def _lives(self) -> list[bool | None]:
        return [is_alive(story) for story in self._stories]


class ReportServer(StrangersServer):
    """The page and its data, on this machine only."""

    def __init__(self, folders: Sequence[Path], port: int) -> None:
        self.watch = LiveReport(folders)
        self.watch.newest()  # what is no run is told now, not to the browser
        try:
            super().__init__(("127.0.0.1", port), _Answer)
        except OSError as error:
            why = error.strerror or str(error)
            raise ValueError(f"cannot serve on port {port}: {why}; choose another with --port") from None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


class _Answer(BaseHTTPRequestHandler):
    server: ReportServer

    def do_GET(self) -> None:
        if not is_of_this_machine(self.headers.get("Host", "")):
            self.send_error(421, explain=f"This page is for {', '.join(NAMES)} only.")
            return
        wanted = self.path.partition("?")[0]
        if wanted not in ("/", "/data.json"):
            self.send_error(404)
            return
        try:
            newest, text, tag = self.server.watch.newest()
        except ValueError as error:
            self.send_error(503, str(error))
            return
        if wanted == "/":
            self._send(page(newest).encode(), "text/html; charset=utf-8", tag)
        elif self.headers.get("If-None-Match") == tag:
            self.send_response(304)
            self.end_headers()
        else:
            self._send(text, "application/json", tag)

    def _send(self, body: bytes, kind: str, tag: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", tag)
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """A line a request would bury what the terminal is for."""
