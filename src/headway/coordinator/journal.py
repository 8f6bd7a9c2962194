"""The only writer of a run's events: it gives each one its time and hands it to the recorder.

`write(Opened, ticket)` costs the coordinator a tuple: the event itself is made where it is written down, by a thread
of the recorder's. Nothing here can stop a run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec

from headway.core.events import Ended, Event, Failed, RunBegan
from headway.runs.event_log import NoRecorder, Recorder, takes_briefs
from headway.runs.log_file import Mark

Fields = ParamSpec("Fields")
ENDS_OF_A_SESSION = frozenset((RunBegan, Ended, Failed))


class Journal:
    """Writes down what happens, on a clock that goes on where the last session's checkpoint left it."""

    def __init__(self, recorder: Recorder | None, now: Callable[[], float], *, begin_s: float = 0.0) -> None:
        """`begin_s` is what the clock of the log says now."""
        self.is_on = recorder is not None
        self._recorder = takes_briefs(recorder or NoRecorder())
        self._append = self._recorder.append
        self._now = now
        self._offset_s = begin_s - now()

    @property
    def time_s(self) -> float:
        """The clock of the event log."""
        return self._now() + self._offset_s

    def write(
        self, kind: Callable[Concatenate[float, Fields], Event], *fields: Fields.args, **named: Fields.kwargs
    ) -> None:
        """Something has happened now. The fields are given in their order."""
        if self.is_on:
            assert not named
            self._pass_on(self._now() + self._offset_s, kind, fields)

    def _pass_on(self, time_s: float, kind: Callable[..., Event], fields: tuple[object, ...]) -> None:
        if kind in ENDS_OF_A_SESSION:
            (self._recorder.begin_session if kind is RunBegan else self._recorder.end_session)(time_s)
        self._append((time_s, kind, fields))

    def write_at(
        self,
        now: float,
        kind: Callable[Concatenate[float, Fields], Event],
        *fields: Fields.args,
        **named: Fields.kwargs,
    ) -> None:
        """Something has happened at this moment of the runtime's clock."""
        if self.is_on:
            assert not named
            self._pass_on(now + self._offset_s, kind, fields)

    def look_if_due(self) -> None:
        """An update is over: the recorder may look at the run now."""
        self._recorder.look_if_due(self._now() + self._offset_s)

    def mark(self) -> Mark:
        """A mark behind everything written so far: the position to resume from, once it is known."""
        return self._recorder.mark()

    def close(self) -> None:
        self._recorder.close()
