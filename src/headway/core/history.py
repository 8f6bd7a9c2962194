"""The history of a run: `RunHistory.apply(event)` is the one place that knows what an event means.

    events --> RunHistory --+--> LineHistory, one a line: live tickets, versions, updates, lead
                            +--> RoleHistory: what each role does now
                            +--> the evaluation that runs, the session
                            |
                            +--> a RunListener (and its LineListener for each line) is told what has come to an end

A run has one or more lines; the first has the empty name. A flight belongs to the rollout with an index, and moves the
ticket of that index in every line where it is live. Only what is live is kept here: finished tickets, intervals,
updates and versions are handed to the listener, who may keep them. No clock and no disk are needed: a recorded log and
a run that goes on are followed alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headway.core import events as ev
from headway.core.events_written_events import as_event
from headway.core.history_line_history import LineHistory, LineListener
from headway.core.history_records import IN_FLIGHT, OPEN, Evaluation, RoleInterval, RunSession
from headway.core.history_role_history import RoleHistory

FIRST_LINE = ""


class RunListener:
    """Is told what happens in a run. Every method does nothing: whoever wants to know overrides it."""

    def line_began(self, name: str) -> LineListener:
        """A line comes up for the first time; what happens in it is told to the listener that is returned."""
        return LineListener()

    def interval_ended(self, interval: RoleInterval) -> None: ...

    def evaluation_began(self, evaluation: Evaluation) -> None: ...

    def evaluation_ended(self, evaluation: Evaluation) -> None: ...

    def session_began(self, session: RunSession) -> None: ...


class RunHistory:
    """Follows a run, event by event."""

    def __init__(self, listener: RunListener | None = None, *, is_whole: bool = True, with_roles: bool = True) -> None:
        """`is_whole` says that every ticket has its beginning among the events. Without `with_roles` nobody wants to
        know what the roles do."""
        self._listener = listener or RunListener()
        self._is_whole = is_whole
        self.time_s = 0.0
        self.lines: dict[str, LineHistory] = {}
        self.roles = RoleHistory(self._listener.interval_ended) if with_roles else None
        self.evaluation: Evaluation | None = None
        self.session: RunSession | None = None
        self.first = self.line(FIRST_LINE)

    def line(self, name: str) -> LineHistory:
        """The line with this name, which begins here if it is not known."""
        line = self.lines.get(name)
        if line is None:
            line = LineHistory(name, self._listener.line_began(name), is_whole=self._is_whole)
            self.lines[name] = line
        return line

    def apply(self, event: ev.Event) -> None:
        """Take in the next event. KeyError: it is about a ticket that is not live."""
        kind = type(event)
        if (of_line := _OF_A_LINE.get(kind)) is not None:
            line: str = event.line  # type: ignore[union-attr]  # the table says so
            of_line(self.lines.get(line) or self.line(line), event)
        elif (of_run := _OF_THE_RUN.get(kind)) is not None:
            of_run(self, event)
        if self.roles is not None and (of_role := _OF_A_ROLE.get(kind)) is not None:
            of_role(self.roles, event)
        if event.time_s > self.time_s:
            self.time_s = event.time_s

    def lines_of(self, index: int, phase: int) -> Sequence[LineHistory]:
        """The lines that a flight belongs to: those in which the ticket is live and in this phase."""
        if len(self.lines) == 1:
            return (self.first,)
        live = [line for line in self.lines.values() if index in line.live]
        return [line for line in live if line.live[index].phase in (phase, None)] or live or (self.first,)

    def _start(self, event: ev.Started) -> None:
        role = None if self.roles is None else self.roles.seat(event.seat)
        for line in self.lines_of(event.ticket, OPEN):
            line.start(event, role)

    def _lose(self, event: ev.Lost) -> None:
        """If the ticket flies for another line already, this one waits for the same flight."""
        line = self.line(event.line)
        line.lose(event)
        for other in self.lines.values():
            flying = other.live.get(event.ticket)
            if flying is not None and flying.phase == IN_FLIGHT:
                line.join_flight(event.time_s, flying)
                break

    def _begin(self, event: ev.RunBegan) -> None:
        """A session begins, and the one before ended with its last event."""
        if self.roles is not None:
            self.roles.begin_session(self.time_s, event.settings)
        if self.session is not None:
            self.session.end = self.time_s
        self.session = RunSession(event.time_s, event.time_s, dict(event.settings))
        self._listener.session_began(self.session)
        lead = event.settings.get("max_lead")
        if lead is not None and not isinstance(lead, str):
            self.first.note_lead(event.time_s, lead)
        for name, told in event.settings.get("lines", {}).items():
            if not isinstance(told["max_lead"], str):
                self.line(name).note_lead(event.time_s, told["max_lead"])

    def _resume(self, event: ev.Resumed) -> None:
        began = 0.0 if self.session is None else self.session.begin
        self.first.resume(event.time_s, event.version, event.updates, began)
        for name, (version, updates) in (event.others or {}).items():
            self.line(name).resume(event.time_s, version, updates, began)

    def _miss(self, event: ev.GapFound) -> None:
        self._is_whole = False
        for line in self.lines.values():
            line.is_whole = False

    def _scale(self, event: ev.Scaled) -> None:
        if self.session is not None:
            self.session.settings["collectors"] = event.collectors

    def _begin_part(self, event: ev.PartBegan) -> None:
        """A part says again which session it is of. Whoever has not seen that begins here, in the middle."""
        if self.session is None:
            self._miss(ev.GapFound(event.time_s, ""))
            began = as_event(event.run)
            assert isinstance(began, ev.RunBegan)
            self._begin(began._replace(time_s=event.time_s))

    def _look(self, event: ev.Looked) -> None:
        self.first.note_lead(event.time_s, event.lead)
        for name, lead in (event.others or {}).items():
            self.line(name).note_lead(event.time_s, lead)

    def _evaluate(self, event: ev.EvaluationBegan) -> None:
        self.evaluation = Evaluation(event.version, event.time_s)
        self._listener.evaluation_began(self.evaluation)

    def _score(self, event: ev.EvaluationEnded) -> None:
        known = self.evaluation
        if known is None or known.version != event.version:
            return
        known.end, known.value, known.error = event.time_s, event.value, event.error or None
        known.metrics = dict(event.metrics)
        self.evaluation = None
        self._listener.evaluation_ended(known)

    def _stop(self, event: ev.Stopped) -> None:
        if self.session is not None:
            self.session.why = event.reason

    def _end(self, event: ev.Ended | ev.Failed) -> None:
        if self.session is not None:
            self.session.how = "end" if isinstance(event, ev.Ended) else "fail"
            self.session.why = event.why if isinstance(event, ev.Failed) else self.session.why


_Step = Callable[[Any, Any], None]


def _in_all_lines(step: _Step, phase: int) -> _Step:
    """The event belongs to a flight or a rollout, and so to every line in which its ticket is in this phase."""

    def apply(history: RunHistory, event: ev.Landed | ev.Reissued | ev.Lost) -> None:
        for line in history.lines_of(event.ticket, phase):
            step(line, event)

    return apply


_OF_A_LINE: dict[type[object], _Step] = {
    ev.Opened: LineHistory.open,
    ev.Requeued: LineHistory.requeue,
    ev.Dropped: LineHistory.drop,
    ev.Settled: LineHistory.settle,
    ev.UpdateBegan: LineHistory.begin_update,
    ev.Updated: LineHistory.update,
    ev.Inserted: LineHistory.insert,
    ev.Published: LineHistory.publish,
    ev.LeadMoved: LineHistory.move_lead,
}
_OF_THE_RUN: dict[type[object], _Step] = {
    ev.Started: RunHistory._start,
    ev.Landed: _in_all_lines(LineHistory.land, IN_FLIGHT),
    ev.Reissued: _in_all_lines(LineHistory.reissue, IN_FLIGHT),
    ev.Lost: RunHistory._lose,
    ev.RunBegan: RunHistory._begin,
    ev.Resumed: RunHistory._resume,
    ev.Scaled: RunHistory._scale,
    ev.GapFound: RunHistory._miss,
    ev.PartBegan: RunHistory._begin_part,
    ev.Looked: RunHistory._look,
    ev.EvaluationBegan: RunHistory._evaluate,
    ev.EvaluationEnded: RunHistory._score,
    ev.Stopped: RunHistory._stop,
    ev.Ended: RunHistory._end,
    ev.Failed: RunHistory._end,
}
_OF_A_ROLE: dict[type[object], _Step] = {
    ev.RoleBusy: RoleHistory.busy,
    ev.RoleWaits: RoleHistory.wait,
    ev.Started: RoleHistory.start,
    ev.Landed: RoleHistory.end_flight,
    ev.Reissued: RoleHistory.end_flight,
    ev.Dropped: RoleHistory.end_flight,
    ev.UpdateBegan: RoleHistory.begin_update,
    ev.Updated: RoleHistory.update,
    ev.Left: RoleHistory.end_role,
    ev.EvaluationBegan: RoleHistory.begin_evaluation,
    ev.EvaluationEnded: RoleHistory.end_evaluation,
}
"""What an event means for its line, for the run and for its roles. Those in no table mean nothing for its state."""
