"""Lines and metrics in a process of their own, for runs with many events.

    the run's process                                          the writer
    [ list ] --thread, ten times a second-- marshal --pipe-->  lines   --> events.jsonl
                                                               metrics --> points, alarms
    sinks, live block <--thread-- marshal <--pipe------------  points, positions, alarms

      InBackground moves ---> started ---> at work ---> goodbye ---> ended
                                                   ---> the run is gone: completes metrics.jsonl ---> ended
                                                   ---> the disk is full: says so ---> ended

Writing down 2,000 tickets a second takes a fifteenth of a processor, and a thread would take it from the coordinator:
they share the interpreter's lock. So a run that turns out to have many events goes on in here, with its metrics and
alarms as they are; what is left to it is to hand over its list.

Nothing half-written: the writer owns the file from the moment the run has closed it. Nothing lost: what is in the pipe
when the run dies is still written, to `metrics.jsonl` too, which is the run's otherwise. No orphan: the writer ends
with its input, or when its parent is another one (a child that the user forked may hold the pipe open). It ignores
SIGINT and SIGTERM, which ask the run to save first. It imports neither the user's `__main__` nor anything of theirs:
only plain values cross.
"""

from __future__ import annotations

import json
import marshal
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any

from headway.observe.alarms import Alarms
from headway.observe.json_lines import complete
from headway.observe.metrics import Metrics, Moment, Point
from headway.observe.points import Points, Put, Say
from headway.observe.recorder import PLAIN_TYPES, Brief, EventLog, NoRecorder, TakesMany

ANSWER_WITHIN_S = 120.0
LOOK_FOR_PARENT_EVERY_S = 1.0
LENGTH = struct.Struct("<Q")
FLUSH, GOODBYE = b"", b"goodbye"  # messages; all others are events
POINTS_KEPT = 1000
STARTUP = "import sys; sys.path[:] = sys.argv[2:]; from headway.observe.writer_process import main; main(sys.argv[1])"


class WriterProcess:
    """Takes events in the run's process, and has the rest done by another."""

    def __init__(
        self,
        path: Path | None,
        metrics: Metrics,
        *,
        put: Put,
        say: Say,
        aliases: bool,
        alarms: Alarms | None,
        metrics_path: Path | None = None,
    ) -> None:
        """`path` is the event log, which nobody else may have open to write; without one there are only metrics.
        `alarms` are kept as they are over there: the live block shows them. `metrics_path` is completed if the run is
        killed."""
        self._put = put
        self._say = say
        self._alarms = alarms
        self._positions: SimpleQueue[int | None] = SimpleQueue()
        self._error: OSError | None = None
        self._encode = json.JSONEncoder(separators=(",", ":"), default=str).encode
        self._process = subprocess.Popen(
            [sys.executable, "-c", STARTUP, str(os.getpid()), *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._listener = threading.Thread(target=self._listen, name="event log answers", daemon=True)
        self._listener.start()
        self._send(pickle.dumps((path, metrics_path, metrics, aliases, alarms)))

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        self.record_many(((time_s, kind, fields),))

    def record_many(self, events: Sequence[Brief]) -> None:
        self._send(marshal.dumps([self._plain(event) if type(event[2]) is dict else event for event in events]))

    def flush(self) -> int:
        self._send(FLUSH)
        try:
            position = self._positions.get(timeout=ANSWER_WITHIN_S)
        except Empty:
            raise OSError(f"the process that writes the event log is silent for {ANSWER_WITHIN_S:g} s") from None
        if position is None:
            raise self._why_ended()
        return position

    def close(self) -> None:
        """Returns when everything is written and the process is gone."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(LENGTH.pack(len(GOODBYE)) + GOODBYE)
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # its exit says why
        try:
            code = self._process.wait(ANSWER_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._listener.join()
        if code:
            raise self._why_ended()

    def _plain(self, event: Brief) -> Brief:
        """`marshal` knows plain values only, and takes others for bytes without a word. Those in brief are plain."""
        return event if is_plain(event[2]) else (event[0], event[1], json.loads(self._encode(event[2])))

    def _send(self, content: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(LENGTH.pack(len(content)) + content)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._why_ended() from None

    def _why_ended(self) -> OSError:
        self._listener.join()
        if self._error is not None:
            return self._error
        return OSError(f"the process that writes the event log has ended (exit code {self._process.wait()})")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            while (content := _read(answers)) is not None:
                self._hear(*marshal.loads(content))
        self._positions.put(None)

    def _hear(self, what: str, value: Any) -> None:
        if what == "point":
            time_s, update, version, values = value
            self._put(Point(Moment(time_s, update, version), values))
        elif what == "raised" and self._alarms is not None:
            self._alarms.raised = value
        elif what == "say":
            self._say(value)
        elif what == "position":
            self._positions.put(value)
        elif what == "error":
            self._error = OSError(*value)


def is_plain(value: Any) -> bool:
    """Numbers, texts and what is made of them."""
    kind = type(value)
    if kind in PLAIN_TYPES:
        return True
    if kind is list or kind is tuple:
        return all(map(is_plain, value))
    return kind is dict and all(type(name) is str and is_plain(inner) for name, inner in value.items())


def _read(pipe: IO[bytes]) -> bytes | None:
    """The next message, or None at the end. One that a kill has cut off was never sent."""
    head = pipe.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    content = pipe.read(size)
    return content if len(content) == size else None


# -- the other side ---------------------------------------------------------------------------------


def main(parent: str) -> None:
    """The writer, from its start to the end of its input."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with open(sys.stdout.fileno(), "wb", buffering=0, closefd=False) as answers:
        say = _Answers(answers)
        frames = Frames(sys.stdin.fileno(), lambda: os.getppid() == int(parent))
        try:
            write_all(frames, say.send)
        except OSError as error:
            say.send("error", (error.errno, error.strerror))
            sys.exit(1)


class _Answers:
    """Messages to the run, as long as there is one."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe

    def send(self, what: str, value: Any) -> None:
        content = marshal.dumps((what, value))
        message = memoryview(LENGTH.pack(len(content)) + content)
        try:
            while message:
                message = message[self._pipe.write(message) :]
        except BrokenPipeError:
            pass  # the run is gone; what it has sent is still written


def write_all(frames: Frames, answer: Callable[[str, Any], None]) -> None:
    """Take events until there are no more of them."""
    state = frames.next()
    if state is None:
        return
    path, metrics_path, metrics, aliases, alarms = pickle.loads(state)
    log: TakesMany = NoRecorder()
    if path is not None:
        log = file = EventLog(path)
        file.lock()
    newest: deque[Point] = deque(maxlen=POINTS_KEPT)

    def put(point: Point) -> None:
        newest.append(point)
        moment = point.moment
        answer("point", (moment.time_s, moment.update, moment.version, point.values))

    points = Points(log, put, metrics, aliases=aliases, alarms=alarms, say=lambda line: answer("say", line))
    while (content := frames.next()) is not None:
        if content == FLUSH:
            answer("position", points.flush())
            continue
        if content == GOODBYE:
            points.close()
            return
        raised = None if alarms is None else dict(alarms.raised)
        points.record_many(marshal.loads(content))
        if alarms is not None and alarms.raised != raised:
            answer("raised", alarms.raised)
        if isinstance(log, EventLog):
            log.write()
    if metrics_path is not None:  # the run is gone without a goodbye
        complete(metrics_path, newest)
    points.close()


class Frames:
    """Messages from the run. Its end is theirs, even if somebody else holds the pipe open."""

    def __init__(self, pipe: int, is_parent_there: Callable[[], bool]) -> None:
        self._pipe = pipe
        self._is_parent_there = is_parent_there
        self._buffer = bytearray()

    def next(self) -> bytes | None:
        """None: there will be no more. A message that a kill has cut off was never sent."""
        head = self._take(LENGTH.size)
        if head is None:
            return None
        return self._take(LENGTH.unpack(head)[0])

    def _take(self, size: int) -> bytes | None:
        while len(self._buffer) < size:
            if not select.select([self._pipe], [], [], LOOK_FOR_PARENT_EVERY_S)[0]:
                if not self._is_parent_there():
                    return None
                continue
            read = os.read(self._pipe, 1 << 16)
            if not read:
                return None
            self._buffer += read
        content = bytes(self._buffer[:size])
        del self._buffer[:size]
        return content
