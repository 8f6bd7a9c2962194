"""The event log: every ticket's life and every version, one JSON object a line.

    coordinator --record--> [ list ] --thread, ten times a second--> EventLog --> events.jsonl
                --append--> InBackground                             or, where there are many events, the same in a
                                                                     process of its own (`writer_process.py`)

`events.jsonl` is append-only. A line is `{"t": seconds, "e": kind, ...}`; `docs/events.md` lists the kinds.
Lines are buffered and written in order; `flush` is called at every checkpoint, which remembers the size
of the file, so that a resumed run can cut off what happened after it.

The coordinator only puts events on a list, those that come with every ticket in brief: their values alone, `FIELDS` has
the names. A process that is killed loses what is younger than a tenth of a second; one that ends, however it ends,
loses nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable


class Recorder(Protocol):
    """Takes events as they happen. Must be quick, and must not raise."""

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None: ...

    def flush(self) -> int:
        """Make everything durable; returns a position to resume from."""
        ...

    def close(self) -> None: ...


Event = tuple[float, str, dict[str, Any]]
Brief = tuple[Any, ...]
"""An event, or one in brief: time, kind, then the values of its fields in the order of `FIELDS`."""
FIELDS: dict[str, tuple[str, ...]] = {
    "open": ("k",),
    "start": ("k", "c", "v"),
    "land": ("k", "v", "n", "l", "b"),
    "update": ("u", "v", "k"),
    "learn": ("u", "v", "k", "d", "m"),
    "publish": ("v",),
    "settle": ("k",),
    "wait": ("r", "w"),
    "busy": ("r", "w"),
}
"""The kinds that come with every ticket, and the names of what they say."""


def named(event: Brief) -> Event:
    """The event with the names of its fields. None of the values of one in brief that stand first is a dictionary."""
    if type(event[2]) is dict:
        return event
    return event[0], event[1], dict(zip(FIELDS[event[1]], event[2:], strict=True))


class TakesMany(Recorder, Protocol):
    """Takes several events at once too, in brief or not: a call for each would cost more than what is done about it."""

    def record_many(self, events: Sequence[Brief]) -> None: ...


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
    return lambda event: recorder.record(*named(event)), lambda time_s: None


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

    def record_many(self, events: Sequence[Brief]) -> None:
        pass

    def flush(self) -> int:
        return 0

    def close(self) -> None:
        pass


class MemoryRecorder:
    """Keeps events as dictionaries: for tests, and for runs without a folder."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        self.events.append({"t": time_s, "e": kind, **fields})

    def record_many(self, events: Sequence[Brief]) -> None:
        for event in events:
            self.record(*named(event))

    def flush(self) -> int:
        return len(self.events)

    def close(self) -> None:
        pass


class PrintingRecorder:
    """Prints every event as it happens, and passes it on."""

    def __init__(self, behind: Recorder) -> None:
        self._behind = behind

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        details = " ".join(f"{name}={value}" for name, value in fields.items())
        print(f"[{time_s:.3f}] {kind} {details}", file=sys.stderr)
        self._behind.record(time_s, kind, fields)

    def record_many(self, events: Sequence[Brief]) -> None:
        for event in events:
            self.record(*named(event))

    def flush(self) -> int:
        return self._behind.flush()

    def close(self) -> None:
        self._behind.close()


WRITE_EVERY_S = 0.1
IN_ONE_GO = 16  # events between two moments in which other threads may go on
MANY_IN_A_ROUND = 100  # events: writing them takes about two milliseconds of the interpreter's lock
ROUNDS_TO_MOVE = 3
IN_A_MESSAGE = 512  # events for another process: one that is cut off by a kill is lost
ALL = 1 << 62
LAST_LINES_WITHIN_S = 30.0


def nothing() -> None:
    """What there is to do where there is nothing."""


class InBackground:
    """Takes events at once and passes them on from a thread of its own, in order.

    What it is given must not change afterwards. `flush` and `close` return when everything has been passed on.
    """

    def __init__(
        self,
        behind: TakesMany,
        *,
        write: Callable[[], None] = nothing,
        move: Callable[[], TakesMany] | None = None,
    ) -> None:
        """`write` is called after each round: what was passed on should leave the process now. `move` is called once,
        if rounds with many events follow each other: what it returns takes all that comes later, and needs no
        `write`."""
        self._behind = behind
        self._write = write
        self._move = move
        self._full_rounds = 0
        self._in_one_go = IN_ONE_GO
        self._events: list[Brief] = []
        self.append = self._events.append
        """`record` for whoever counts microseconds: an event in brief, no thread is started, nothing is raised."""
        self._turn = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None
        self._is_under_way = False

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        self.take((time_s, kind, fields))

    def take(self, event: Brief) -> None:
        """`record` for an event in brief."""
        self._events.append(event)
        if not self._is_under_way:
            self._start_or_raise()

    def _start_or_raise(self) -> None:
        """The first event starts the thread. If it could not write (the disk is full), whoever records hears of it."""
        if self._error is not None:
            raise self._error
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="event log", daemon=True)
            self._is_under_way = True
            self._thread.start()

    def flush(self) -> int:
        with self._turn:
            self._pass_on()
            return self._behind.flush()

    def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        with self._turn:
            self._pass_on()
            self._behind.close()

    def _work(self) -> None:
        try:
            while not self._over.wait(WRITE_EVERY_S):
                with self._turn:
                    self._full_rounds = self._full_rounds + 1 if len(self._events) >= MANY_IN_A_ROUND else 0
                    if self._full_rounds == ROUNDS_TO_MOVE and self._move is not None:
                        self._go_elsewhere(self._move)
                    self._pass_on(self._in_one_go)
                    self._write()
        except OSError as error:
            self._error, self._is_under_way = error, False

    def _go_elsewhere(self, move: Callable[[], TakesMany]) -> None:
        self._behind, self._write, self._move = move(), nothing, None
        self._in_one_go = IN_A_MESSAGE

    def _pass_on(self, in_one_go: int = ALL) -> None:
        """With the turn: whoever has it is the only one who speaks to what is behind."""
        events = self._events
        num = len(events)
        for begin in range(0, num, in_one_go):
            self._behind.record_many(events[begin : min(num, begin + in_one_go)])
            if begin + in_one_go < num:
                time.sleep(0)  # whoever runs the coordinator goes first
        del events[:num]


class EventLog:
    """Writes events to a file, in batches."""

    def __init__(self, path: Path, *, position: int | None = None, batch: int = 256) -> None:
        """With `position`, go on there: what lies behind it is moved to `<name>.discarded-<n>`."""
        self.path = path
        self._batch = batch
        self._lines: list[str] = []
        if position is not None and path.exists():
            _set_tail_aside(path, position)
        self._file = open(path, "ab")  # noqa: SIM115 - open for the life of the run
        self._encode = json.JSONEncoder(separators=(",", ":"), default=str).encode

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        self.record_many(((time_s, kind, fields),))

    def record_many(self, events: Sequence[Brief]) -> None:
        lines = self._lines
        for event in events:
            time_s, kind, fields = named(event)
            time_s = round(time_s, 6)
            line = plain_line(time_s, kind, fields)
            if line is None:
                line = self._encode({"t": time_s, "e": kind, **fields})
            lines.append(line)
        if len(lines) >= self._batch:
            self.write()

    def flush(self) -> int:
        self.write()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        if not self._file.closed:
            self.flush()
            self._file.close()

    def lock(self) -> None:
        """For a process that may outlive the run by a moment: whoever resumes the run waits until it is closed."""
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def write(self) -> None:
        """Hand what there is to the operating system: it survives this process."""
        if self._lines:
            self._file.write(("\n".join(self._lines) + "\n").encode())
            self._file.flush()
            self._lines.clear()


# -- the kinds that come with every ticket, as the encoder writes them, in a fraction of its time

Fields = Mapping[str, Any]
_quoted: dict[str, str] = {}  # names that were written before


def plain_line(time_s: float, kind: str, fields: Fields) -> str | None:
    """The line of a frequent event; None for any other, and for values nobody expects: the encoder knows them all."""
    known = PLAIN.get(kind)
    if known is None or len(fields) != known[0]:
        return None
    try:
        return known[1](time_s, fields)
    except KeyError:
        return None


def _open(time_s: float, fields: Fields) -> str | None:
    index = fields["k"]
    return f'{{"t":{time_s},"e":"open","k":{index}}}' if type(index) is int else None


def _start(time_s: float, fields: Fields) -> str | None:
    index, seat, version = fields["k"], fields["c"], fields["v"]
    if type(index) is type(seat) is type(version) is int:
        return f'{{"t":{time_s},"e":"start","k":{index},"c":{seat},"v":{version}}}'
    return None


def _land(time_s: float, fields: Fields) -> str | None:
    index, span, steps, length, size = fields["k"], fields["v"], fields["n"], fields["l"], fields["b"]
    if type(index) is type(steps) is type(size) is int and type(length) is float and length - length == 0.0:
        versions = _numbers(span)
        if versions is not None:
            return f'{{"t":{time_s},"e":"land","k":{index},"v":{versions},"n":{steps},"l":{length},"b":{size}}}'
    return None


def _update(time_s: float, fields: Fields) -> str | None:
    update, version, tickets = fields["u"], fields["v"], _numbers(fields["k"])
    if type(update) is type(version) is int and tickets is not None:
        return f'{{"t":{time_s},"e":"update","u":{update},"v":{version},"k":{tickets}}}'
    return None


def _learn(time_s: float, fields: Fields) -> str | None:
    update, version, seconds, tickets = fields["u"], fields["v"], fields["d"], _numbers(fields["k"])
    if not (type(update) is type(version) is int and type(seconds) is float and seconds - seconds == 0.0):
        return None
    if tickets is None or type(fields["m"]) is not dict:
        return None
    parts = []
    for name, value in fields["m"].items():
        if type(value) is not float or value - value != 0.0 or type(name) is not str:
            return None
        parts.append(f"{_quoted.get(name) or _quote(name)}:{value!r}")
    metrics = ",".join(parts)
    return f'{{"t":{time_s},"e":"learn","u":{update},"v":{version},"k":{tickets},"d":{seconds},"m":{{{metrics}}}}}'


def _publish(time_s: float, fields: Fields) -> str | None:
    version = fields["v"]
    return f'{{"t":{time_s},"e":"publish","v":{version}}}' if type(version) is int else None


def _settle(time_s: float, fields: Fields) -> str | None:
    tickets = _numbers(fields["k"])
    return None if tickets is None else f'{{"t":{time_s},"e":"settle","k":{tickets}}}'


def _wait(time_s: float, fields: Fields) -> str | None:
    role, what = fields["r"], fields["w"]
    if type(role) is type(what) is str:
        return f'{{"t":{time_s},"e":"wait","r":{_quoted.get(role) or _quote(role)},"w":{_quote(what)}}}'
    return None


def _busy(time_s: float, fields: Fields) -> str | None:
    role, what = fields["r"], fields["w"]
    if type(role) is type(what) is str:
        return f'{{"t":{time_s},"e":"busy","r":{_quote(role)},"w":{_quote(what)}}}'
    return None


def _numbers(values: Any) -> str | None:
    if type(values) is not list and type(values) is not tuple:
        return None
    for value in values:
        if type(value) is not int:
            return None
    return f"[{values[0]}]" if len(values) == 1 else f"[{','.join(map(str, values))}]"


def _quote(name: str) -> str:
    text = _quoted.get(name)
    if text is None:
        text = json.dumps(name)
        if len(_quoted) < 1000:
            _quoted[name] = text
    return text


PLAIN: dict[str, tuple[int, Callable[[float, Fields], str | None]]] = {
    "open": (1, _open),
    "start": (3, _start),
    "land": (5, _land),
    "update": (3, _update),
    "learn": (5, _learn),
    "publish": (1, _publish),
    "settle": (1, _settle),
    "wait": (2, _wait),
    "busy": (2, _busy),
}
"""Kind -> the number of its fields, and who writes it."""


def _set_tail_aside(path: Path, position: int) -> None:
    with open(path, "r+b") as file:
        _wait_for_lock(file, path)
        file.seek(position)
        tail = file.read()
        if tail:
            number = 0
            while (aside := path.with_suffix(f".discarded-{number}.jsonl")).exists():
                number += 1
            aside.write_bytes(tail)
            file.truncate(position)


def _wait_for_lock(file: BinaryIO, path: Path) -> None:
    """The process that wrote for the session before may still be at its last lines."""
    until = time.monotonic() + LAST_LINES_WITHIN_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise ValueError(f"another process is still writing {path}") from None
            time.sleep(0.01)


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a run, in order. A last line cut off by a crash is left out; any other is an error."""
    try:
        log = open(path, "rb")  # noqa: SIM115 - only opening may fail for a reason worth telling
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    with log as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            yield parse_event(line, path, number)


def parse_event(line: bytes, path: Path, number: int) -> dict[str, Any]:
    """One line of the log."""
    try:
        event = json.loads(line)
    except ValueError:
        raise ValueError(f"{path}, line {number}: not an event") from None
    if not isinstance(event, dict) or "e" not in event or "t" not in event:
        raise ValueError(f"{path}, line {number}: not an event")
    return event
