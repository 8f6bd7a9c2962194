"""Where metrics go, and how they get there without holding up the run.

    coordinator --events--> MetricsRecorder --points--> [ queue ] --thread--> sink
                                 |                      [ queue ] --thread--> sink
                                 +--events--> the event log

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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Protocol

from headway.observe.metrics import Metrics, Moment, Point, with_aliases
from headway.observe.recorder import Recorder

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


class MetricsRecorder:
    """Passes every event on, and what follows from them to the sinks.

    It looks after an update, at most every `interval_s`, and once more at the end. A look is an event too.
    """

    def __init__(
        self,
        behind: Recorder,
        put: Callable[[Point], None],
        look: Callable[[], Look],
        *,
        metrics: Metrics | None = None,
        interval_s: float = INTERVAL_S,
        aliases: bool = False,
    ) -> None:
        if not (math.isfinite(interval_s) and interval_s >= 0):
            raise ValueError(f"metrics_interval_s must be a finite number >= 0, received {interval_s!r}")
        self._behind = behind
        self._put = put
        self._look = look
        self._metrics = metrics or Metrics()
        self._interval_s = interval_s
        self._aliases = aliases
        self._now_s = 0.0
        self._next_look_s: float | None = None  # set by the first event of the session

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        self._now_s = round(time_s, 6)  # as in the log, so that the log gives the same numbers
        if self._next_look_s is None:
            self._next_look_s = self._now_s + self._interval_s
        if kind in ("end", "fail"):
            self._take_look()
        self._write(kind, fields)
        is_done = kind == "publish" or (kind == "learn" and not self._metrics.completes_version(fields["u"]))
        if is_done and self._now_s >= self._next_look_s and self._metrics.updates_since_look:
            self._take_look()

    def flush(self) -> int:
        return self._behind.flush()

    def close(self) -> None:
        self._behind.close()

    def _take_look(self) -> None:
        seen = self._look()
        self._record("look", lead=seen.lead, spent=seen.spent, rss=seen.rss)
        self._next_look_s = self._now_s + self._interval_s

    def _record(self, kind: str, **fields: Any) -> None:
        self._write(kind, fields)

    def _write(self, kind: str, fields: dict[str, Any]) -> None:
        self._behind.record(self._now_s, kind, fields)
        point = self._metrics.note(self._now_s, kind, fields)
        if point is not None:
            self._put(Point(point.moment, with_aliases(point.values)) if self._aliases else point)


def resident_bytes() -> int:
    """Memory of this process that is in RAM now; where the system does not say so, the most there ever was."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")
