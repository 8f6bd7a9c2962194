"""From events to the log, the metrics and the alarms, wherever that is done.

events ---> Points ---> the event log
                   ---> metrics --points--> put
                   ---> alarms  --lines---> say
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headway.observe.alarms import Alarms
from headway.observe.metrics import Metrics, Point, with_aliases
from headway.observe.recorder import Brief, Event, TakesMany, named

Put = Callable[[Point], None]
Say = Callable[[str], None]


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
        self.record_many(((time_s, kind, fields),))

    def take(self, event: Brief) -> None:
        self.record_many((event,))

    def record_many(self, events: Sequence[Brief]) -> None:
        """An alarm stands in the log right after its look."""
        begin = 0
        whole = [named(event) for event in events]
        for place, event in enumerate(whole, 1):
            if event[1] == "look":
                self._take(whole[begin:place])
                begin = place
        self._take(whole[begin:])

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
                self._record("alarm", time_s, name=ring.name, on=ring.on, value=ring.value, threshold=ring.threshold)

    def _record(self, kind: str, time_s: float, **fields: Any) -> None:
        self.record(time_s, kind, fields)

    def flush(self) -> int:
        return self._behind.flush()

    def close(self) -> None:
        self._behind.close()
