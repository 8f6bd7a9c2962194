"""From events to the log, the metrics and the alarms, wherever that is done.

events ---> PointMaker ---> the event log
                   ---> metrics --points--> put
                   ---> alarms  --lines---> say
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence

from headway.core.events import Event, Looked
from headway.core.text_messages import Say
from headway.runs.event_log import Brief, EventSink, event_of
from headway.runs.log_file import Mark
from headway.runs.metrics import Metrics, Point, with_aliases
from headway.runs.monitor_alarms import Alarms, alarm_line

Put = Callable[[Point], None]


class PointMaker(EventSink):
    """Passes every event on; makes points of them, and looks at the alarms."""

    def __init__(
        self,
        behind: EventSink,
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

    def append(self, brief: Brief) -> None:
        """Take one event in brief, at once."""
        self.take((event_of(brief),))
        self.write()

    def take(self, events: Sequence[Event]) -> None:
        """An alarm stands in the log right after its look."""
        if Looked not in map(type, events):
            self._take(events)
            return
        begin = 0
        for place, event in enumerate(events, 1):
            if isinstance(event, Looked):
                self._take(events[begin:place])
                begin = place
        self._take(events[begin:])

    def _take(self, events: Sequence[Event]) -> None:
        self._behind.take(events)
        apply = self._metrics.apply
        for event in events:
            point = apply(event)
            if point is not None:
                self._put(Point(point.moment, with_aliases(point.values)) if self._aliases else point)
                if isinstance(event, Looked) and self._alarms is not None:
                    for alarm in self._alarms.note(point.values, event.time_s):
                        self._say(alarm_line(alarm))
                        self.take((alarm,))

    def write(self) -> None:
        self._behind.write()

    def put_mark(self, mark: Mark) -> None:
        """With the metrics as they are there: whoever resumes goes on from them without reading the log."""
        mark.metrics = pickle.dumps(self._metrics)
        self._behind.put_mark(mark)

    def close(self) -> None:
        self._behind.close()
