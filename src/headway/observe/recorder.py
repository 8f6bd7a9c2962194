"""The event log: every ticket's life and every version, one JSON object a line.

    coordinator --record--> [ list ] --thread, ten times a second--> whole events --> EventLog --> events.jsonl
                --append--> InBackground

`events.jsonl` is append-only. A line is `{"t": seconds, "e": kind, ...}`; `docs/events.md` lists the kinds. Every
checkpoint puts a mark into the log and remembers its position, so that a resumed run can cut off what came after it.

The coordinator only puts events on a list, those that come with every ticket in brief: their values alone. A thread
gives them their names and writes them down, in steps of a few so that the coordinator goes first; another thread speaks
to the disk (`log_file.py`). A process that is killed loses what is younger than a tenth of a second; one that ends,
however it ends, loses nothing. Nothing here can stop a run: a log that cannot be written is said once, and is off.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import orjson

from headway.core.events import written_fields
from headway.observe.log_file import LogFile, Mark
from headway.observe.log_parts import go_on_at, lines_from
from headway.observe.saying import Say, to_stderr

Event = dict[str, Any]
"""`t` seconds, `e` kind, and the fields of that kind."""
Brief = tuple[Any, ...]
"""Time, the class of a typed event and the values of its fields; or time, the name of a kind and a dictionary."""


class Recorder(Protocol):
    """Takes events as they happen. Must be quick, and must not raise."""

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None: ...

    def mark(self) -> Mark:
        """A mark behind everything recorded so far: the position to resume from, once it is known."""
        ...

    def close(self) -> None: ...


class TakesMany(Recorder, Protocol):
    """Takes several events at once too."""

    def record_many(self, events: Sequence[Event]) -> None: ...

    def write(self) -> None:
        """What was taken should leave the process now: whoever reads along sees a moment, and not half of one."""
        ...

    def put_mark(self, mark: Mark) -> None:
        """Tell a mark that somebody else made where it is."""
        ...


def whole(event: Brief) -> Event:
    """The event with the names of its fields."""
    time_s, kind, fields = event
    if isinstance(kind, str):
        return {"t": round(time_s, 6), "e": kind, **fields}
    return written_fields(time_s, kind, fields)


@runtime_checkable
class TakesBrief(Protocol):
    """Takes events in brief without a word: for whoever counts microseconds. It looks at the run when it is told that
    an update is over; with `record` it finds out by itself."""

    append: Callable[[Brief], None]

    def look_if_due(self, time_s: float) -> None: ...


def in_brief(recorder: Recorder) -> tuple[Callable[[Brief], None], Callable[[float], None]]:
    """Its `append` and `look_if_due`; or an `append` that gives the fields their names first."""
    if isinstance(recorder, TakesBrief):
        return recorder.append, recorder.look_if_due

    def append(event: Brief) -> None:
        fields = whole(event)
        kind = fields.pop("e")
        del fields["t"]
        recorder.record(event[0], kind, fields)

    return append, lambda time_s: None


PLAIN_TYPES = frozenset((float, int, str, bool, type(None)))


def settled(metrics: Mapping[str, Any]) -> Mapping[str, Any]:
    """A learner's metrics as they are now: a tensor among them might change before it is written."""
    if PLAIN_TYPES.issuperset(map(type, metrics.values())):
        return metrics
    return {name: v if type(v) in PLAIN_TYPES else number_or_text(v) for name, v in metrics.items()}


def number_or_text(value: Any) -> float | str:
    number = as_number(value)
    return str(value) if number is None else number


def as_number(value: Any) -> float | None:
    """A float, or None for what is no number: text is left to the event log."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # a tensor of several elements raises the last
        return None


class NoRecorder:
    """Records nothing."""

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        pass

    def record_many(self, events: Sequence[Event]) -> None:
        pass

    def write(self) -> None:
        pass

    def mark(self) -> Mark:
        return Mark.at(0)

    def put_mark(self, mark: Mark) -> None:
        mark.position = 0
        mark.is_durable.set()

    def close(self) -> None:
        pass


class MemoryRecorder:
    """Keeps events as dictionaries: for tests, and for runs without a folder."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        self.events.append({"t": time_s, "e": kind, **fields})

    def record_many(self, events: Sequence[Event]) -> None:
        self.events.extend(events)

    def write(self) -> None:
        pass

    def mark(self) -> Mark:
        return Mark.at(len(self.events))

    def put_mark(self, mark: Mark) -> None:
        mark.position = len(self.events)
        mark.is_durable.set()

    def close(self) -> None:
        pass


class PrintingRecorder:
    """Prints every event as it happens, and passes it on."""

    def __init__(self, behind: TakesMany) -> None:
        self._behind = behind
        self.write, self.mark, self.put_mark, self.close = behind.write, behind.mark, behind.put_mark, behind.close

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        self.record_many(({"t": time_s, "e": kind, **fields},))

    def record_many(self, events: Sequence[Event]) -> None:
        for event in events:
            details = " ".join(f"{name}={value}" for name, value in event.items() if name not in ("t", "e"))
            print(f"[{event['t']:.3f}] {event['e']} {details}", file=sys.stderr)
        self._behind.record_many(events)


WRITE_EVERY_S = 0.1
IN_ONE_GO = 16  # events between two moments in which other threads may go on


class InBackground:
    """Takes events at once and passes them on from a thread of its own, in order.

    What it is given must not change afterwards. `close` returns when everything has been passed on. What is behind it
    must not wait for anything; if it raises, that is said once, and recording is off.
    """

    def __init__(self, behind: TakesMany, *, say: Say = to_stderr) -> None:
        self._behind = behind
        self._say = say
        self._events: list[Any] = []  # events in brief, and marks among them
        self.append: Callable[[Brief], None] = self._events.append
        """`record` for whoever counts microseconds: an event in brief, and no thread is started."""
        self._wake = threading.Event()
        self._is_over = self._is_off = False
        self._thread: threading.Thread | None = None

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        self.take((time_s, kind, fields))

    def take(self, event: Brief) -> None:
        """`record` for an event in brief. The first one starts the thread."""
        self._events.append(event)
        if self._thread is None:
            self._start()

    def mark(self) -> Mark:
        mark = Mark()
        self._events.append(mark)
        if self._thread is None:
            self._start()
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

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._work, name="recording", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # no further thread
            self._turn_off(error)

    def _work(self) -> None:
        while not self._is_over:
            self._wake.wait(WRITE_EVERY_S)
            self._wake.clear()
            self._pass_on()

    def _pass_on(self) -> None:
        """All that is there. In one thread at a time: the closer comes when the thread has ended."""
        events = self._events
        num = len(events)
        try:
            for begin in range(0, 0 if self._is_off else num, IN_ONE_GO):
                self._pass_on_some(events[begin : min(num, begin + IN_ONE_GO)])
                time.sleep(0)  # whoever runs the coordinator goes first
            self._behind.write()
        except Exception as error:  # noqa: BLE001 - whatever is wrong with recording, the run goes on without it
            self._turn_off(error)
        if self._is_off:
            for event in events[:num]:
                if type(event) is Mark:
                    event.is_durable.set()
        del events[:num]

    def _pass_on_some(self, events: Sequence[Brief | Mark]) -> None:
        several: list[Event] = []
        for event in events:
            if isinstance(event, Mark):
                self._behind.record_many(several)
                self._behind.put_mark(event)
                several = []
            else:
                several.append(whole(event))
        self._behind.record_many(several)


class EventLog:
    """Writes events to a file. What is recorded is handed to the disk at once, by a thread; nobody waits for it."""

    def __init__(self, path: Path, *, position: int | None = None, say: Say = to_stderr, **limits: Any) -> None:
        """With `position`, go on there: what lies behind it is set aside. `limits` are those of `LogFile`."""
        if position is not None:
            go_on_at(path, position, None)
        self._file = LogFile(path, say=say, head=self._head, **limits)
        self._lines: list[bytes] = []  # not yet handed to the file
        self._run: Event | None = None  # the last event that says with which settings a session began

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        self.record_many(({"t": round(time_s, 6), "e": kind, **fields},))
        self.write()

    def record_many(self, events: Sequence[Event]) -> None:
        self._lines += map(line_of, events)
        for event in events:
            if event["e"] == "run":
                self._run = event

    def write(self) -> None:
        self._file.write(b"".join(self._lines))
        self._lines.clear()

    def mark(self) -> Mark:
        mark = Mark()
        self.put_mark(mark)
        return mark

    def put_mark(self, mark: Mark) -> None:
        self.write()
        self._file.sync(mark)

    def close(self) -> None:
        self.write()
        self._file.close()

    def _head(self) -> bytes:
        """A part begins with the settings of its session, so that the end of a long log can be read by itself."""
        run = self._run
        return b"" if run is None else line_of({"t": run["t"], "e": "part", "run": run})


_encode = json.JSONEncoder(separators=(",", ":"), default=str).encode


def line_of(event: Event) -> bytes:
    """One line of the log. Numbers that are not finite stay what they are, where the fast encoder would write null."""
    try:
        line = orjson.dumps(event, default=str, option=orjson.OPT_APPEND_NEWLINE)
    except (TypeError, ValueError):  # a name that is no text, a whole number of more than 64 bits, half a character
        return _encode(event).encode() + b"\n"
    return line if b"null" not in line else _encode(event).encode() + b"\n"


def read_events(path: Path) -> Iterator[Event]:
    """The events of a run, in order. A last line cut off by a crash is left out; any other is an error."""
    try:
        for number, line in enumerate(lines_from(path), 1):
            yield parse_event(line, path, number)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from None


def parse_event(line: bytes, path: Path, number: int) -> Event:
    """One line of the log."""
    try:
        event = orjson.loads(line)
    except ValueError:  # a number that is not finite, or no JSON at all
        try:
            event = json.loads(line)
        except ValueError:
            raise ValueError(f"{path}, line {number}: not an event") from None
    if not isinstance(event, dict) or "e" not in event or "t" not in event:
        raise ValueError(f"{path}, line {number}: not an event")
    return event
