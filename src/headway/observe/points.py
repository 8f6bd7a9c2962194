"""From events to the log, the metrics and the alarms, wherever that is done.

events ---> Points ---> the event log
                   ---> metrics --points--> put
                   ---> alarms  --lines---> say
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

from headway.observe.alarms import Alarms
from headway.observe.log_file import Mark
from headway.observe.metrics import Metrics, Point, with_aliases
from headway.observe.recorder import Brief, Event, TakesMany, whole
from headway.observe.saying import Say

Put = Callable[[Point], None]


class Points:
    """Passes every event on; makes points of them, and looks at the alarms."""

    def __init__(
        self,
        behind: TakesMany,
        put: Put,
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

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        self.take((time_s, kind, fields))

    def take(self, event: Brief) -> None:
        self.record_many((whole(event),))
        self.write()

    def write(self) -> None:
        self._behind.write()

    def record_many(self, events: Sequence[Event]) -> None:
        """An alarm stands in the log right after its look."""
        begin = 0
        for place, event in enumerate(events, 1):
            if event["e"] == "look":
                self._take(events[begin:place])
                begin = place
        self._take(events[begin:])

    def _take(self, events: Sequence[Event]) -> None:
        self._behind.record_many(events)
        for event in events:
            point = self._metrics.note(event["t"], event["e"], event)
            if point is not None:
                self._give(point, event)

    def _give(self, point: Point, event: Event) -> None:
        self._put(Point(point.moment, with_aliases(point.values)) if self._aliases else point)
        if event["e"] == "look" and self._alarms is not None:
            for ring in self._alarms.note(point.values):
                self._say(ring.line())
                at_s = event["t"]
                self._record("alarm", at_s, name=ring.name, on=ring.on, value=ring.value, threshold=ring.threshold)

    def _record(self, kind: str, time_s: float, **fields: Any) -> None:
        self.record_many(({"t": time_s, "e": kind, **fields},))

    def mark(self) -> Mark:
        mark = Mark()
        self.put_mark(mark)
        return mark

    def put_mark(self, mark: Mark) -> None:
        """With the metrics as they are there: whoever resumes goes on from them without reading the log."""
        mark.metrics = pickle.dumps(self._metrics)
        self._behind.put_mark(mark)

    def close(self) -> None:
        self._behind.close()
