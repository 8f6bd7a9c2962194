"""Checks a run by its event log alone.

    events (docs/events.md) --> Auditor --+--> LineAuditor, one a line       --> violations, each with the name of the
                                   ^      +--> seats, evaluations, sessions      rule that was broken
                                   |
    what the `run` event says, what `Terms` add, and at the end the counts that the run itself reports

The auditor knows the definitions and nothing else: it shares no code with the ledger, the rules, the orders, the
history or any other part of Headway but the types of events, so a mistake there is not repeated here. It follows every
ticket through its life and counts again what the run has counted. `RULES` names everything it checks.

A log with several sessions (a run that was resumed) is read as one: what was in flight at the checkpoint is open again.
A run with several lines is audited line by line. Whoever writes a runtime records a run on it and calls
`audit(events)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from headway.core import events as ev
from headway.core.events_written_events import as_event, written_kind
from headway.testing.audit_evaluations import EvaluationAuditor
from headway.testing.audit_scaling import ScalingAuditor
from headway.testing.audit_terms import EPSILON_S, Findings, LineTerms, Logged
from headway.testing.audit_terms import RULES as RULES
from headway.testing.audit_terms import Terms as Terms
from headway.testing.audit_terms import Violation as Violation
from headway.testing.line_auditor import LineAuditor

FIRST_LINE = ""


def audit(
    events: Sequence[ev.Event | Mapping[str, object]],
    terms: Terms | Sequence[Terms] = Terms(),  # noqa: B008 - it is frozen
    *,
    result: Mapping[str, object] | None = None,
) -> list[Violation]:
    """All that is wrong with the log of a run.

    `terms` may be one for each session. `result` holds the run's own counts under the names of `LedgerStatistics` and
    `RunResult`, and under `lines` those of the other lines by name; whatever it has is compared.
    """
    auditor = Auditor([as_event(event) for event in events], terms)
    auditor.read_all()
    if result is not None:
        auditor.compare(result)
    return auditor.findings.violations


class Auditor:
    """Follows one log, event by event."""

    def __init__(self, events: Sequence[ev.Event], terms: Terms | Sequence[Terms]) -> None:
        self.findings = Findings(events)
        self._told = [terms] if isinstance(terms, Terms) else list(terms)
        self._sessions = 0
        self._session_began_s = 0.0
        self._settings: Logged = {}
        self._over = self._stop_reason = ""
        self._restarts = 0
        self._seats: dict[int, list[int]] = {}  # seat -> tickets of the call under way
        self._flights: dict[int, ev.Started] = {}  # ticket -> its last flight
        self._evaluations = EvaluationAuditor(self.findings)
        self._scaling = ScalingAuditor(self.findings)
        self._lines: dict[str, LineAuditor] = {}
        self._first = self._line(FIRST_LINE)

    def read_all(self) -> None:
        for at, event in enumerate(self.findings.events):
            self.findings.at = at
            self._read(event)
        self.findings.at = len(self.findings.events)

    def _read(self, event: ev.Event) -> None:
        find, kind = self.findings, written_kind(event)
        if not find.at and not isinstance(event, ev.RunBegan):
            find.wrong("log", f"a log begins with `run`, this one with `{kind}`")
        if event.time_s < find.now_s - EPSILON_S:
            find.wrong("log", f"{kind} at {event.time_s} s comes after {find.now_s} s")
        if self._over:
            find.wrong("log", f"{kind} comes after {self._over}")
        find.now_s = max(event.time_s, find.now_s)
        in_run = _IN_THE_RUN.get(type(event))
        if in_run is not None:
            in_run(self, event)
        in_line = _IN_A_LINE.get(type(event))
        if in_line is not None:
            in_line(self._line(event.line), event)  # type: ignore[union-attr]  # the table says so
        after = _AFTER_ITS_LINE.get(type(event))
        if after is not None:
            after(self, event)

    def _line(self, name: str) -> LineAuditor:
        if name not in self._lines:
            terms = LineTerms.of(self._settings, self._told[min(self._sessions, len(self._told)) - 1], name)
            self._lines[name] = LineAuditor(name, self.findings, terms)
            if name:
                self._lines[name].begin_session(terms)
        return self._lines[name]

    def _lines_of(self, index: int, phase: str) -> Iterator[LineAuditor]:
        """The lines that a flight or a rollout belongs to; the first one says what is wrong if there is none."""
        live = [line for line in self._lines.values() if index in line.live]
        yield from [line for line in live if line.live[index].phase == phase] or live or [self._first]

    # -- sessions -----------------------------------------------------------------------------------

    def _begin(self, event: ev.RunBegan) -> None:
        self._sessions += 1
        self._settings, self._session_began_s, self._restarts = event.settings, event.time_s, 0
        told = self._told[min(self._sessions, len(self._told)) - 1]
        for name, line in self._lines.items():
            line.begin_session(LineTerms.of(event.settings, told, name))
        self._scaling.begin_session(self._first.terms)

    def _resume(self, event: ev.Resumed) -> None:
        self._seats.clear()
        waited_s = event.time_s - self._session_began_s
        self._first.resume(event.version, event.updates, waited_s)
        for name, (version, updates) in (event.others or {}).items():
            self._line(name).resume(version, updates, waited_s)
        self._evaluations.resume(self._settings["evaluate_every"])
        self._scaling.resume(self._live, self._first.opened_last + 1, self._first.terms)

    def _restart(self, event: ev.Restarted) -> None:
        self._restarts += 1

    @property
    def _live(self) -> set[int]:
        """Tickets that are live in any line."""
        return {index for line in self._lines.values() for index in line.live}

    def _scale(self, event: ev.Scaled) -> None:
        opened = max(line.opened_last for line in self._lines.values())
        self._scaling.scale(event, opened, self._first.terms)

    def _leave(self, event: ev.Left) -> None:
        self._scaling.leave(event, self._seats, self._live, self._first.terms)

    def _fail(self, event: ev.Failed) -> None:
        """What fails for good has no event of its own, so its seat may have been taken just before."""
        self._over = "fail"
        moot, find = ("one ticket a seat", "one version a collector"), self.findings
        find.violations = [v for v in find.violations if v.rule not in moot or find.events[v.at].time_s < event.time_s]

    def _stop(self, event: ev.Stopped) -> None:
        self._stop_reason = event.reason

    def _end(self, event: ev.Ended) -> None:
        self._over = "end"
        self._first.end(event.version, event.updates, event.returned)
        for name, (version, updates, returned) in (event.others or {}).items():
            self._line(name).end(version, updates, returned)

    # -- flights ------------------------------------------------------------------------------------

    def _start(self, event: ev.Started) -> None:
        index, seat = event.ticket, event.seat
        self._evaluations.check_pause(f"ticket {index} takes off", self._first.terms)
        beside = self._seats.get(seat, [])
        if beside and not self._may_join(beside, event):
            what = f"ticket {index} takes off on seat {seat} beside {', '.join(map(str, beside))}"
            self.findings.wrong("one ticket a seat", what)
        self._scaling.check_start(event, self._first.terms)
        if any(index in line.live for line in self._lines.values()):
            self._seats[seat] = [*beside, index]
        self._flights[index] = event
        for line in self._lines_of(index, "open"):
            line.start(event, self._seats, self._scaling.seat_of(index))

    def _may_join(self, call: Sequence[int], event: ev.Started) -> bool:
        """Tickets of one call take off one right after the other."""
        before = self.findings.events[self.findings.at - 1]
        follows = isinstance(before, ev.Started) and (before.ticket, before.seat) == (call[-1], event.seat)
        return follows and len(call) < self._first.terms.per_call

    def _land(self, event: ev.Landed) -> None:
        for line in self._lines_of(event.ticket, "flying"):
            line.land(event)
        self._free_seat(event)

    def _reissue(self, event: ev.Reissued) -> None:
        for line in self._lines_of(event.ticket, "flying"):
            line.reissue(event)
        self._free_seat(event)

    def _wait_for_flight(self, event: ev.Lost) -> None:
        """A line that loses a rollout which flies again for another line waits for that flight."""
        flying = [line for line in self._lines.values() if line.flies(event.ticket)]
        if flying:
            self._line(event.line).join_flight(self._flights[event.ticket])

    def _free_seat(self, event: ev.Landed | ev.Reissued | ev.Dropped) -> None:
        """A seat is free when its ticket flies in no line."""
        index = event.ticket
        if not any(line.flies(index) for line in self._lines.values()):
            left = {seat: [other for other in call if other != index] for seat, call in self._seats.items()}
            self._seats = {seat: call for seat, call in left.items() if call}

    # -- learning and evaluating --------------------------------------------------------------------

    def _begin_update(self, event: ev.UpdateBegan) -> None:
        self._evaluations.check_pause(f"update {event.update} begins", self._first.terms)

    def _check_free_slot(self, event: ev.UpdateBegan) -> None:
        """A ticket opens when all lines allow it."""
        if all(line.might_open() for line in self._lines.values()):
            self.findings.wrong("free slot", f"update {event.update} begins, and another ticket might be open")

    def _publish(self, event: ev.Published) -> None:
        if event.line == FIRST_LINE:
            self._evaluations.publish(event.version, self._settings["evaluate_every"])

    def _evaluate(self, event: ev.EvaluationBegan) -> None:
        self._evaluations.begin(event.version, self._first.at.newest, self._first.terms)

    def _score(self, event: ev.EvaluationEnded) -> None:
        self._evaluations.score(event.version, event.value)

    def _skip(self, event: ev.EvaluationSkipped) -> None:
        self._evaluations.skip(event.version, self._first.at.newest, self._first.terms)

    def _abandon(self, event: ev.EvaluationAbandoned) -> None:
        self._evaluations.abandon(event.version, self._first.at.newest)

    # -- the end ------------------------------------------------------------------------------------

    def compare(self, result: Logged) -> None:
        """Compare the log with what the run says about itself."""
        is_target = self._stop_reason.startswith("reached a score")
        won = self._evaluations.winner(self._first.terms) if is_target else None
        if self._over != "end":
            self.findings.wrong("log", "there is a result, and the log has no `end`")
        elif not self._stop_reason.startswith("interrupted"):
            if self._settings["evaluate_every"]:
                self._evaluations.check_end(self._first.at.newest if won is None else won)
            for line in self._lines.values():
                line.check_nothing_left()
        of_run = {
            "stop_reason": self._stop_reason,
            "restarts": self._restarts,
            "scores": self._evaluations.scores,
            "evaluations_skipped": self._evaluations.skipped,
            **({} if won is None else {"version": won}),
        }
        self._first.compare(result, of_run)
        for name, counts in result.get("lines", {}).items():
            self._line(name).compare(counts, {} if won is None else {"version": counts["version"]})


_IN_THE_RUN: dict[type[object], Callable[[Auditor, Any], None]] = {
    ev.RunBegan: Auditor._begin,
    ev.Resumed: Auditor._resume,
    ev.Restarted: Auditor._restart,
    ev.Scaled: Auditor._scale,
    ev.Left: Auditor._leave,
    ev.Failed: Auditor._fail,
    ev.Stopped: Auditor._stop,
    ev.Ended: Auditor._end,
    ev.Started: Auditor._start,
    ev.Landed: Auditor._land,
    ev.Reissued: Auditor._reissue,
    ev.UpdateBegan: Auditor._begin_update,
    ev.EvaluationBegan: Auditor._evaluate,
    ev.EvaluationEnded: Auditor._score,
    ev.EvaluationSkipped: Auditor._skip,
    ev.EvaluationAbandoned: Auditor._abandon,
}
_IN_A_LINE: dict[type[object], Callable[[LineAuditor, Any], None]] = {
    ev.Opened: LineAuditor.open,
    ev.Requeued: LineAuditor.requeue,
    ev.Lost: LineAuditor.lose,
    ev.Dropped: LineAuditor.drop,
    ev.UpdateBegan: LineAuditor.begin_update,
    ev.Updated: LineAuditor.end_update,
    ev.Inserted: LineAuditor.insert,
    ev.Published: LineAuditor.publish,
    ev.Restaged: LineAuditor.restage,
    ev.LeadMoved: LineAuditor.move_lead,
    ev.Settled: LineAuditor.settle,
}
_AFTER_ITS_LINE: dict[type[object], Callable[[Auditor, Any], None]] = {
    ev.Lost: Auditor._wait_for_flight,
    ev.Dropped: Auditor._free_seat,
    ev.UpdateBegan: Auditor._check_free_slot,
    ev.Published: Auditor._publish,
}
