"""Where metrics go, and how they get there without holding up the run.

    coordinator --events--> MetricsRecorder --> [ list ] --thread--> metrics --points--> [ queue ] --thread--> sink
                            decides when to               |    |                         [ queue ] --thread--> sink
                            look                          |    +--> alarms
                                                          +--> the event log

A sink is anything with `write` and `close`. Each has a bounded queue and a thread of its own: a slow sink loses
points, which are counted, and never time of the run; one that raises is named in one line and is off from then on.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol

from headway.core.events import Looked, Unknown
from headway.core.text_messages import Say, to_stderr
from headway.core.text_one_line import said
from headway.core.types_opaque import JsonObject
from headway.runs.event_log import Brief, EventSink, InBackground
from headway.runs.log_file import Mark
from headway.runs.log_worker import Worker
from headway.runs.metrics import Metrics, Moment, Point
from headway.runs.monitor_alarms import Alarms
from headway.runs.sinks_json_lines import JsonLines as JsonLines
from headway.runs.sinks_point_maker import PointMaker

INTERVAL_S = 1.0
LOOK_AT_LEAST_EVERY_S = 10.0
QUEUE_POINTS = 256
CLOSE_WITHIN_S = 30.0


class Sink(Protocol):
    """Takes numbers. Both methods are called from one thread, which is not the coordinator's."""

    def write(self, moment: Moment, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class _Delivery:
    """One sink's queue and thread."""

    def __init__(self, sink: Sink, say: Say) -> None:
        self._sink = sink
        self._say = say
        self._name = type(sink).__name__
        self._sent = self._lost = 0
        self._worker: Worker[Point] = Worker(f"metrics to {self._name}", self._write, at_end=self._close)
        self._worker.start()

    def put(self, point: Point) -> None:
        """Without waiting. What the sink has no room for is counted."""
        if self._worker.is_off:
            return
        self._sent += 1
        if len(self._worker) >= QUEUE_POINTS:
            self._lost += 1
        else:
            self._worker.put(point)

    def finish(self) -> None:
        """No more points will come."""
        self._worker.close()

    def join(self, until: float) -> None:
        """Wait for what is under way, up to a moment of `time.monotonic`."""
        if not self._worker.has_ended(max(0.0, until - time.monotonic())):
            self._worker.turn_off()
            self._say(f"the metrics sink {self._name} has not ended in time; what it still holds is lost")
        elif self._lost:
            self._say(f"the metrics sink {self._name} was too slow for {self._lost} of {self._sent} points")

    def _write(self, point: Point) -> None:
        try:
            self._sink.write(point.moment, point.values)
        except Exception as error:  # noqa: BLE001 - whatever a sink raises, the run goes on without it
            self._give_up("write", error)

    def _close(self) -> None:
        try:
            self._sink.close()
        except Exception as error:  # noqa: BLE001
            self._give_up("close", error)

    def _give_up(self, method: str, error: Exception) -> None:
        if self._worker.turn_off() is not None:
            what = " ".join(f"{type(error).__name__}: {said(error)}".split())
            self._say(f"the metrics sink {self._name} is off, the run goes on: {method} raised {what}")


class Deliveries:
    """Sinks, each with its thread, until the `with` block ends; then all are closed, in `close_within_s` at most."""

    def __init__(
        self, sinks: Iterable[Sink] = (), *, say: Say = to_stderr, close_within_s: float = CLOSE_WITHIN_S
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
    cpu_s: float = 0.0
    """Seconds of processor time so far, of this process since the run began and of those of its roles."""
    others: Mapping[str, float] | None = None
    """The leads of the other lines."""


class MetricsRecorder:
    """Passes every event on, and what follows from them to the sinks.

    It looks after an update, at most every `interval_s`; without one, whenever `LOOK_AT_LEAST_EVERY_S` have passed
    (whoever has a clock calls `look_by_the_clock`); and once more at the end. A look is an event too, and so is an
    alarm. With `in_background`, all but the decision to look happens in a thread of its own.
    """

    def __init__(
        self,
        behind: EventSink,
        put: Callable[[Point], None],
        look: Callable[[], Look],
        *,
        metrics: Metrics | None = None,
        interval_s: float = INTERVAL_S,
        aliases: bool = False,
        alarms: Alarms | None = None,
        say: Say = to_stderr,
        in_background: bool = False,
    ) -> None:
        if not (math.isfinite(interval_s) and interval_s >= 0):
            raise ValueError(f"metrics_interval_s must be a finite number >= 0, received {interval_s!r}")
        points = PointMaker(behind, put, metrics or Metrics(), aliases=aliases, alarms=alarms, say=say)
        self._thread = InBackground(points, say=say) if in_background else None
        self._behind = self._thread or points
        self.append: Callable[[Brief], None] = self._behind.append
        """Takes an event in brief."""
        self._look = look
        self._interval_s = interval_s
        self._looked_s = 0.0  # the beginning of a session sets it

    def record(self, time_s: float, kind: str, fields: JsonObject) -> None:
        self.append((time_s, Unknown, (kind, fields)))

    def begin_session(self, time_s: float) -> None:
        """The first event of a session comes."""
        self._looked_s = time_s
        if self._thread is not None:
            self._thread.start()

    def end_session(self, time_s: float) -> None:
        """The last event of a session comes."""
        self._take_look(time_s)

    def mark(self) -> Mark:
        return self._behind.mark()

    def close(self) -> None:
        self._behind.close()

    def look_if_due(self, time_s: float) -> None:
        """An update is over, with its publish if there is one."""
        if time_s >= self._looked_s + self._interval_s:
            self._take_look(time_s)

    def look_by_the_clock(self, time_s: float) -> None:
        """Time passes, whether or not there are updates."""
        if time_s >= self._looked_s + max(self._interval_s, LOOK_AT_LEAST_EVERY_S):
            self._take_look(time_s)

    def _take_look(self, time_s: float) -> None:
        seen = self._look()
        self.append((time_s, Looked, (seen.lead, seen.spent, seen.rss, seen.memory, seen.cpu_s, seen.others)))
        self._looked_s = time_s


def resident_bytes_of(pid: int | str) -> int | None:
    """Memory of a process that is in RAM now; None where the system does not say so, or the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def processor_s_of(pid: int) -> float:
    """Seconds a process has computed; 0 where the system does not say so, or the process is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes() -> int:
    """Memory of this process that is in RAM now; where the system does not say so, the most there ever was."""
    here = resident_bytes_of("self")
    if here is None:
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    return here
