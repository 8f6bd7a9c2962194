"""The event log: every ticket's life and every version, one JSON object a line.

    coordinator --append--> [ list ] --thread, ten times a second--> events --> EventLog --> events.jsonl
                            InBackground

`events.jsonl` is append-only. A line is `{"t": seconds, "e": kind, ...}`; `docs/events.md` lists the kinds. Every
checkpoint puts a mark into the log and remembers its position, so that a resumed run can cut off what came after it.

The coordinator only puts briefs on a list: the time, the class of an event and the values of its fields. A thread makes
the events of them and writes them down, in steps of a few so that the coordinator goes first; another thread speaks
to the disk (`log_file.py`). A process that is killed loses what is younger than a tenth of a second; one that ends,
however it ends, loses nothing. Nothing here can stop a run: a log that cannot be written is said once, and is off.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import orjson

from headway.core.events import Event, PartBegan, RunBegan, Unknown
from headway.core.events_written_events import written
from headway.core.text_messages import Say, to_stderr
from headway.core.types_opaque import JsonObject
from headway.runs.log_file import PART_BYTES, Compressed, LogFile, Mark
from headway.runs.log_parts import lines_from
from headway.runs.metrics_line_metrics import as_number
from headway.runs.parsed_json import parsed

MOST_LINE_BYTES = 16 << 20
LoggedLine = JsonObject
"""An event as it stands in the log: `t` seconds, `e` kind, and the fields of that kind."""
Brief = tuple[float, Callable[..., Event], Sequence[object]]
"""The time of an event, its class and the values of its fields; the last ones may be left out."""


class Recorder(Protocol):
    """Takes events as they happen, as dictionaries. Must be quick, and must not raise."""

    def record(self, time_s: float, kind: str, fields: JsonObject) -> None: ...

    def mark(self) -> Mark:
        """A mark behind everything recorded so far: the position to resume from, once it is known."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class TakesBriefs(Protocol):
    """Takes events in brief, without a word: for whoever counts microseconds.

    It looks at the run when it is told that an update is over, and for the last time when the session is to end.
    """

    def append(self, brief: Brief, /) -> None: ...

    def begin_session(self, time_s: float) -> None: ...

    def look_if_due(self, time_s: float) -> None: ...

    def end_session(self, time_s: float) -> None: ...

    def mark(self) -> Mark: ...

    def close(self) -> None: ...


def takes_briefs(recorder: Recorder) -> TakesBriefs:
    """The recorder itself, or one before it that gives every field its name."""
    return recorder if isinstance(recorder, TakesBriefs) else _GivesNames(recorder)


class _GivesNames:
    """Hands events in brief to a recorder that takes dictionaries."""

    def __init__(self, recorder: Recorder) -> None:
        self._record = recorder.record
        self.mark, self.close = recorder.mark, recorder.close

    def append(self, brief: Brief) -> None:
        line = written(event_of(brief))
        kind = line.pop("e")
        del line["t"]
        self._record(brief[0], kind, line)

    def begin_session(self, time_s: float) -> None: ...

    def look_if_due(self, time_s: float) -> None: ...

    def end_session(self, time_s: float) -> None: ...


def event_of(brief: Brief) -> Event:
    """The event, at a time that is as exact as the log."""
    time_s, kind, fields = brief
    return kind(round(time_s, 6), *fields)


class EventSink:
    """Takes the events of a run, several at a time, and does nothing with them. It is a `Recorder` too."""

    def take(self, events: Sequence[Event]) -> None:
        """The next events."""

    def write(self) -> None:
        """What was taken should leave the process now: whoever reads along sees a moment, and not half of one."""

    def put_mark(self, mark: Mark) -> None:
        """Tell a mark that somebody else made where it is."""
        mark.position = 0
        mark.is_durable.set()

    def close(self) -> None:
        """No more events will come."""

    def record(self, time_s: float, kind: str, fields: JsonObject) -> None:
        self.take((Unknown(round(time_s, 6), kind, fields),))
        self.write()

    def mark(self) -> Mark:
        mark = Mark()
        self.put_mark(mark)
        return mark


PLAIN_TYPES = frozenset((float, int, str, bool, type(None)))


def settled(metrics: Mapping[str, object]) -> Mapping[str, object]:
    """A learner's metrics as they are now: a tensor among them might change before it is written."""
    if PLAIN_TYPES.issuperset(map(type, metrics.values())):
        return metrics
    return {name: v if type(v) in PLAIN_TYPES else number_or_text(v) for name, v in metrics.items()}


def number_or_text(value: object) -> float | str:
    number = as_number(value)
    return str(value) if number is None else number


class NoRecorder(EventSink):
    """Records nothing."""


class MemoryRecorder(EventSink):
    """Keeps events as dictionaries: for tests, and for runs without a folder."""

    def __init__(self) -> None:
        self.events: list[LoggedLine] = []

    def record(self, time_s: float, kind: str, fields: JsonObject) -> None:
        self.events.append({"t": time_s, "e": kind, **fields})

    def take(self, events: Sequence[Event]) -> None:
        self.events.extend(map(written, events))

    def put_mark(self, mark: Mark) -> None:
        mark.position = len(self.events)
        mark.is_durable.set()


class PrintingRecorder(EventSink):
    """Prints every event as it happens, and passes it on."""

    def __init__(self, behind: EventSink) -> None:
        self._behind = behind
        self.write, self.put_mark, self.close = behind.write, behind.put_mark, behind.close  # type: ignore[method-assign]

    def take(self, events: Sequence[Event]) -> None:
        for event in map(written, events):
            details = " ".join(f"{name}={value}" for name, value in event.items() if name not in ("t", "e"))
            with suppress(OSError):  # nobody reads along any more
                print(f"[{event['t']:.3f}] {event['e']} {details}", file=sys.stderr)
        self._behind.take(events)


WRITE_EVERY_S = 0.1
IN_ONE_GO = 16  # events between two moments in which other threads may go on


class InBackground:
    """Takes events in brief at once and passes them on from a thread of its own, in order.

    What it is given must not change afterwards. `close` returns when everything has been passed on. What is behind it
    must not wait for anything; if it raises, that is said once, and recording is off.
    """

    def __init__(self, behind: EventSink, *, say: Say = to_stderr) -> None:
        self._behind = behind
        self._say = say
        self._briefs: list[Brief | Mark] = []
        self.append: Callable[[Brief], None] = self._briefs.append
        """Takes an event in brief. It is passed on once the thread is started."""
        self._wake = threading.Event()
        self._is_over = self._is_off = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, unless it runs already."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="recording", daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:  # no further thread
                self._turn_off(error)

    def mark(self) -> Mark:
        mark = Mark()
        self._briefs.append(mark)
        self.start()
        if self._is_off:
            self._pass_on()
        self._wake.set()  # somebody waits for it
        return mark

    def _turn_off(self, error: Exception) -> None:
        self._is_off = True
        self._say(f"recording is off, the run goes on without it: {type(error).__name__}: {error}")

    def close(self) -> None:
        self._is_over = True
        self._wake.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
        self._pass_on()
        self._behind.close()

    def _work(self) -> None:
        while not self._is_over:
            self._wake.wait(WRITE_EVERY_S)
            self._wake.clear()
            self._pass_on()

    def _pass_on(self) -> None:
        """All that is there. In one thread at a time: the closer comes when the thread has ended."""
        briefs = self._briefs
        num = len(briefs)
        try:
            for begin in range(0, 0 if self._is_off else num, IN_ONE_GO):
                self._pass_on_some(briefs[begin : min(num, begin + IN_ONE_GO)])
                time.sleep(0)  # whoever runs the coordinator goes first
            self._behind.write()
        except Exception as error:  # noqa: BLE001 - whatever is wrong with recording, the run goes on without it
            self._turn_off(error)
        if self._is_off:
            for brief in briefs[:num]:
                if isinstance(brief, Mark):
                    brief.is_durable.set()
        del briefs[:num]

    def _pass_on_some(self, briefs: Sequence[Brief | Mark]) -> None:
        events: list[Event] = []
        for brief in briefs:
            if isinstance(brief, tuple):
                events.append(event_of(brief))
            else:
                self._behind.take(events)
                self._behind.put_mark(brief)
                events = []
        self._behind.take(events)


_MAY_BEGIN_A_SESSION = frozenset((RunBegan, Unknown))


class EventLog(EventSink):
    """Writes events to a file. What is recorded is handed to the disk at once, by a thread; nobody waits for it."""

    def __init__(
        self, path: Path, *, say: Say = to_stderr, limit_bytes: int = 0, part_bytes: int = PART_BYTES, **limits: Any
    ) -> None:
        """With `limit_bytes` the oldest parts are let go before the log has more on the disk; `limits` are those of
        `LogFile`."""
        parts = Compressed(limit_bytes, part_bytes, say=say)
        self._file = LogFile(path, say=say, head=self._head, part_bytes=part_bytes, parts=parts, **limits)
        self._lines: list[bytes] = []  # not yet handed to the file
        self._since_s = 0.0  # the time of the first of them
        self._run: LoggedLine | None = None  # the last event that says with which settings a session began

    def take(self, events: Sequence[Event]) -> None:
        if events and not self._lines:
            self._since_s = events[0].time_s
        self._lines += [line_of(written(event)) for event in events]
        if not _MAY_BEGIN_A_SESSION.isdisjoint(map(type, events)):
            for line in map(written, events):
                self._run = line if line["e"] == "run" else self._run

    def write(self) -> None:
        self._file.write(b"".join(self._lines))
        self._lines.clear()

    def put_mark(self, mark: Mark) -> None:
        self.write()
        self._file.sync(mark)

    def close(self) -> None:
        self.write()
        self._file.close()

    def _head(self) -> bytes:
        """A part begins with the settings of its session, so that the end of a long log can be read by itself."""
        run = self._run
        return b"" if run is None else line_of(written(PartBegan(self._since_s, run)))


_encode = json.JSONEncoder(separators=(",", ":"), default=str).encode


def line_of(event: LoggedLine) -> bytes:
    """One line of the log. Numbers that are not finite stay what they are, where the fast encoder would write null."""
    try:
        line = orjson.dumps(event, default=str, option=orjson.OPT_APPEND_NEWLINE)
    except (TypeError, ValueError):  # a name that is no text, a whole number of more than 64 bits, half a character
        return _encode(event).encode() + b"\n"
    return line if b"null" not in line else _encode(event).encode() + b"\n"


def read_events(path: Path) -> Iterator[LoggedLine]:
    """The events of a run, in order. A last line cut off by a crash is left out; any other is an error."""
    try:
        for number, line in enumerate(lines_from(path), 1):
            yield parse_event(line, path, number)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from None


def parse_event(line: bytes, path: Path, number: int) -> LoggedLine:
    """One line of the log."""
    if len(line) > MOST_LINE_BYTES:
        raise ValueError(f"{path}, line {number}: longer than {MOST_LINE_BYTES >> 20} MiB, which no event is")
    try:
        event = orjson.loads(line)
    except ValueError:  # a number that is not finite, or no JSON at all
        try:
            event = parsed(line)
        except ValueError:
            raise ValueError(f"{path}, line {number}: not an event") from None
    if not isinstance(event, dict) or "e" not in event or "t" not in event:
        raise ValueError(f"{path}, line {number}: not an event")
    return event
