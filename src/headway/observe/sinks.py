"""Where metrics go, and how they get there without holding up the run.

    coordinator --events--> MetricsRecorder --> [ list ] --thread--> metrics --points--> [ queue ] --thread--> sink
                            decides when to               |    |                         [ queue ] --thread--> sink
                            look                          |    +--> alarms
                                                          +--> the event log

A sink is anything with `write` and `close`. Each has a bounded queue and a thread of its own: a slow sink loses
points, which are counted, and never time of the run; one that raises is named in one line and is off from then on.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Protocol

from headway.observe.alarms import Alarms
from headway.observe.metrics import Metrics, Moment, Point, as_number, with_aliases
from headway.observe.recorder import Event, EventLog, InBackground, Recorder, TakesMany

INTERVAL_S = 1.0
QUEUE_POINTS = 256
CLOSE_WITHIN_S = 30.0
Say = Callable[[str], None]


class Sink(Protocol):
    """Takes numbers. Both methods are called from one thread, which is not the coordinator's."""

    def write(self, moment: Moment, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """`metrics.jsonl`: a line a point. What is no finite number is null there."""

    def __init__(self, path: Path, *, until_s: float | None = None) -> None:
        """With `until_s`, go on there: later points are cut off, they will be made again."""
        if until_s is not None and path.exists():
            _cut(path, until_s)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - a line is one write: whole, or not there

    def write(self, moment: Moment, values: Mapping[str, float]) -> None:
        where = {"time_s": moment.time_s, "update": moment.update, "version": moment.version}
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        self._file.write(json.dumps({**where, **finite}, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        self._file.close()


def _cut(path: Path, until_s: float) -> None:
    """Drop the lines of later moments, and a last one that a crash has cut off."""
    keep = 0
    with open(path, "r+b") as file:
        for line in file:
            try:
                is_later = json.loads(line)["time_s"] > until_s + 1e-6  # as far as times are rounded
            except (ValueError, KeyError, TypeError):
                break
            if is_later or not line.endswith(b"\n"):
                break
            keep += len(line)
        file.truncate(keep)


def _to_stderr(line: str) -> None:
    print(f"headway: {line}", file=sys.stderr, flush=True)


class _Delivery:
    """One sink's queue and thread."""

    def __init__(self, sink: Sink, say: Say) -> None:
        self._sink = sink
        self._say = say
        self._name = type(sink).__name__
        self._queue: SimpleQueue[Point | None] = SimpleQueue()
        self._sent = self._lost = 0
        self._is_off = False
        self._thread = threading.Thread(target=self._write_all, name=f"metrics to {self._name}", daemon=True)
        self._thread.start()

    def put(self, point: Point) -> None:
        """Without waiting. What the sink has no room for is counted."""
        if self._is_off:
            return
        self._sent += 1
        if self._queue.qsize() >= QUEUE_POINTS:
            self._lost += 1
        else:
            self._queue.put(point)

    def finish(self) -> None:
        """No more points will come."""
        self._queue.put(None)

    def join(self, until: float) -> None:
        """Wait for what is under way, up to a moment of `time.monotonic`."""
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            self._is_off = True
            self._say(f"the metrics sink {self._name} has not ended in time; what it still holds is lost")
        elif self._lost:
            self._say(f"the metrics sink {self._name} was too slow for {self._lost} of {self._sent} points")

    def _write_all(self) -> None:
        try:
            while (point := self._queue.get()) is not None:
                self._sink.write(point.moment, point.values)
        except Exception as error:  # noqa: BLE001 - whatever a sink raises, the run goes on without it
            self._give_up("write", error)
        try:
            self._sink.close()
        except Exception as error:  # noqa: BLE001
            self._give_up("close", error)

    def _give_up(self, method: str, error: Exception) -> None:
        if not self._is_off:
            self._is_off = True
            what = " ".join(f"{type(error).__name__}: {error}".split())
            self._say(f"the metrics sink {self._name} is off, the run goes on: {method} raised {what}")


class Deliveries:
    """Sinks, each with its thread, until the `with` block ends; then all are closed, in `close_within_s` at most."""

    def __init__(
        self, sinks: Iterable[Sink] = (), *, say: Say = _to_stderr, close_within_s: float = CLOSE_WITHIN_S
    ) -> None:
        self._say = say
        self._close_within_s = close_within_s
        self._deliveries = [_Delivery(sink, say) for sink in sinks]

    def __enter__(self) -> Deliveries:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for delivery in self._deliveries:
            delivery.finish()
        until = time.monotonic() + self._close_within_s
        for delivery in self._deliveries:
            delivery.join(until)

    def __len__(self) -> int:
        return len(self._deliveries)

    def add(self, sink: Sink) -> None:
        self._deliveries.append(_Delivery(sink, self._say))

    def put(self, point: Point) -> None:
        for delivery in self._deliveries:
            delivery.put(point)


@dataclass(frozen=True, slots=True)
class Look:
    """What only the running process knows."""

    lead: float
    spent: Mapping[str, Mapping[str, float]]
    """Kind of role -> activity -> seconds so far."""
    rss: int
    """Bytes of memory."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """Role -> bytes of memory, for roles with processes of their own."""


class MetricsRecorder:
    """Passes every event on, and what follows from them to the sinks.

    It looks after an update, at most every `interval_s`, and once more at the end. A look is an event too, and so is an
    alarm. With `in_background`, all but the decision to look happens in a thread of its own.
    """

    def __init__(
        self,
        behind: TakesMany,
        put: Callable[[Point], None],
        look: Callable[[], Look],
        *,
        metrics: Metrics | None = None,
        interval_s: float = INTERVAL_S,
        aliases: bool = False,
        alarms: Alarms | None = None,
        say: Say = _to_stderr,
        in_background: bool = False,
    ) -> None:
        if not (math.isfinite(interval_s) and interval_s >= 0):
            raise ValueError(f"metrics_interval_s must be a finite number >= 0, received {interval_s!r}")
        points = _Points(behind, put, metrics or Metrics(), aliases=aliases, alarms=alarms, say=say)
        write = behind.write if isinstance(behind, EventLog) else _nothing
        self._behind: Recorder = points
        self._pass_on = points.record
        self._append: Callable[[Event], None] | None = None
        if in_background:
            self._behind = thread = InBackground(points, write=write)
            self._pass_on, self._append = thread.record, thread.append
        self._look = look
        self._interval_s = interval_s
        self._publish_every = 1
        self._updates = 0  # since the last look
        self._now_s = 0.0
        self._next_look_s: float | None = None  # set by the first event of the session

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        if kind in LOOKED_AT:
            self._record_and_look(time_s, kind, fields)
        elif self._append is not None:
            self._append((time_s, kind, fields))
        else:
            self._pass_on(time_s, kind, fields)

    def flush(self) -> int:
        return self._behind.flush()

    def close(self) -> None:
        self._behind.close()

    def _record_and_look(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        now_s = self._now_s = round(time_s, 6)
        if self._next_look_s is None:
            self._next_look_s = now_s + self._interval_s
        if kind == "run":
            self._publish_every = fields.get("publish_every", 1)
        elif kind in ("end", "fail"):
            self._take_look()
        is_done = kind == "publish"
        if kind == "learn":
            self._updates += 1
            is_done = fields["u"] % self._publish_every != 0  # if not, the publish comes at once
            fields = {**fields, "m": _settled(fields["m"])}
        self._pass_on(now_s, kind, fields)
        if is_done and self._updates and now_s >= self._next_look_s:
            self._take_look()

    def _take_look(self) -> None:
        seen = self._look()
        self._record("look", lead=seen.lead, spent=seen.spent, rss=seen.rss, memory=seen.memory)
        self._next_look_s = self._now_s + self._interval_s
        self._updates = 0

    def _record(self, kind: str, **fields: Any) -> None:
        self._pass_on(self._now_s, kind, fields)


LOOKED_AT = frozenset(("run", "learn", "publish", "end", "fail"))
PLAIN = frozenset((float, int, str, bool, type(None)))


def _settled(metrics: Mapping[str, Any]) -> Mapping[str, Any]:
    """A learner's metrics as they are now: a tensor among them might change before it is written."""
    for value in metrics.values():
        if type(value) not in PLAIN:
            return {name: v if type(v) in PLAIN else _number_or_text(v) for name, v in metrics.items()}
    return metrics


def _number_or_text(value: Any) -> float | str:
    number = as_number(value)
    return str(value) if number is None else number


def _nothing() -> None:
    pass


class _Points:
    """Passes every event on; makes points of them, and looks at the alarms."""

    def __init__(
        self,
        behind: TakesMany,
        put: Callable[[Point], None],
        metrics: Metrics,
        *,
        aliases: bool,
        alarms: Alarms | None,
        say: Say,
    ) -> None:
        self._behind = behind
        self._put = put
        self._metrics = metrics
        self._aliases = aliases
        self._alarms = alarms
        self._say = say
        self._now_s = 0.0

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        self.record_many(((time_s, kind, fields),))

    def record_many(self, events: Sequence[Event]) -> None:
        """An alarm stands in the log right after its look."""
        begin = 0
        for place, event in enumerate(events, 1):
            if event[1] == "look":
                self._take(events[begin:place])
                begin = place
        self._take(events[begin:])

    def _take(self, events: Sequence[Event]) -> None:
        self._behind.record_many(events)
        for time_s, kind, fields in events:
            time_s = round(time_s, 6)  # as in the log, so that the log gives the same numbers
            point = self._metrics.note(time_s, kind, fields)
            if point is not None:
                self._give(point, time_s, kind)

    def _give(self, point: Point, time_s: float, kind: str) -> None:
        self._put(Point(point.moment, with_aliases(point.values)) if self._aliases else point)
        if kind == "look" and self._alarms is not None:
            for ring in self._alarms.note(point.values):
                self._say(ring.line())
                self._now_s = time_s
                self._record("alarm", name=ring.name, on=ring.on, value=ring.value, threshold=ring.threshold)

    def _record(self, kind: str, **fields: Any) -> None:
        self.record(self._now_s, kind, fields)

    def flush(self) -> int:
        return self._behind.flush()

    def close(self) -> None:
        self._behind.close()


def resident_bytes_of(pid: int | str) -> int | None:
    """Memory of a process that is in RAM now; None where the system does not say so, or the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def resident_bytes() -> int:
    """Memory of this process that is in RAM now; where the system does not say so, the most there ever was."""
    here = resident_bytes_of("self")
    if here is None:
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    return here
