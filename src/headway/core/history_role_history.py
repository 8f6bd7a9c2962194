"""The history of the roles of a run: what each of them does now, and the intervals that have ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headway.core import events as ev
from headway.core.history_records import RoleInterval, RoleState
from headway.core.text_naming import learner_name, seat_name
from headway.core.types_opaque import SettingValue


class RoleHistory:
    """Knows what each role does now. Every role is in at most one interval."""

    def __init__(self, interval_ended: Callable[[RoleInterval], None]) -> None:
        self.under_way: dict[str, RoleInterval] = {}
        self._interval_ended = interval_ended
        self._flights: dict[int, str] = {}  # ticket -> the seat that it flies on
        self._evaluating: int | None = None
        self._seats = (1, 1)  # collectors, lanes
        self._names: dict[int, str] = {}

    def seat(self, seat: int) -> str:
        """The name of a seat."""
        name = self._names.get(seat)
        if name is None:
            name = self._names[seat] = seat_name(seat, *self._seats)
        return name

    def begin_session(self, now: float, settings: Mapping[str, SettingValue]) -> None:
        """What the session before had under way ended when it did, at `now`."""
        for role in list(self.under_way):
            self.leave(role, now)
        self._flights.clear()
        self._names.clear()
        self._seats = (settings.get("collectors", 1), settings.get("lanes", 1))

    def enter(
        self,
        role: str,
        time_s: float,
        what: str,
        kind: RoleState = "busy",
        version: int | None = None,
        ticket: int | None = None,
    ) -> RoleInterval:
        self.leave(role, time_s)
        interval = self.under_way[role] = RoleInterval(role, kind, what, time_s, time_s, version, ticket)
        return interval

    def leave(self, role: str, time_s: float) -> None:
        interval = self.under_way.pop(role, None)
        if interval is not None and time_s > interval.begin:
            interval.end = time_s
            self._interval_ended(interval)

    def busy(self, event: ev.RoleBusy) -> None:
        role, what = event.role, event.what
        before = self.under_way.get(role)
        version = ticket = None
        if what == "evaluate":
            version = self._evaluating
        elif before is not None and what in ("apply", "collect"):  # in the middle of a ticket
            version, ticket = before.version, before.ticket
        self.enter(role, event.time_s, what, "busy", version, ticket)

    def wait(self, event: ev.RoleWaits) -> None:
        before = self.under_way.get(event.role)
        interval = self.enter(event.role, event.time_s, event.what, "blocked")
        if before is not None and event.what in ("applying", "weights", "retry", "parked"):
            interval.version, interval.ticket = before.version, before.ticket

    def start(self, event: ev.Started) -> None:
        role = self._flights[event.ticket] = self.seat(event.seat)
        self.enter(role, event.time_s, "collect", "busy", event.version, event.ticket)

    def end_flight(self, event: ev.Landed | ev.Reissued | ev.Dropped) -> None:
        """Its seat is free, unless it is doing something else by now."""
        role = self._flights.pop(event.ticket, None)
        if role is not None:
            interval = self.under_way.get(role)
            if interval is not None and interval.ticket == event.ticket:
                self.leave(role, event.time_s)

    def end_role(self, event: ev.Left) -> None:
        """A collector, or each of its lanes, does nothing any more."""
        for role in [role for role in self.under_way if role.partition("/")[0] == event.role]:
            self.leave(role, event.time_s)

    def begin_update(self, event: ev.UpdateBegan) -> None:
        interval = self.enter(learner_name(event.line), event.time_s, "learn", "busy", event.version)
        interval.update = event.update

    def update(self, event: ev.Updated) -> None:
        role, begin = learner_name(event.line), max(0.0, event.time_s - event.seconds)
        interval = self.under_way.get(role)
        if interval is None or interval.update != event.update:  # something else came in between: a second attempt
            interval = self.enter(role, begin if interval is None else max(begin, interval.begin), "learn")
            interval.version, interval.update = event.version, event.update
        self.leave(role, event.time_s)

    def begin_evaluation(self, event: ev.EvaluationBegan) -> None:
        self._evaluating = event.version

    def end_evaluation(self, event: ev.EvaluationEnded) -> None:
        if self._evaluating == event.version:
            self._evaluating = None
