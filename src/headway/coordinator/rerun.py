"""Do a recorded run again, in the recorded order, and come out with the same bits.

Which rollouts met in which batch, at which version and on which collector: that is all that was decided by
timing, and it is in the event log. Everything else follows from seeds. So the log is read as a script:

    publish v     the learner's weights become version v
    restage v     what it has now is version v from here on: what it had was lost
    start k, c, v ticket k takes off on seat c (with one lane each: collector c) with version v
    land k        it is collected now
    anew k, c, a  ticket k was dropped as failed, and its collector begins new episodes
    leave r       collector r has ended: one that has its name later begins with nothing
    learn [k..]   these rollouts are trained on (none: what was drawn for it)
    insert [k..]  these go into the replay
    draw v        the replay with a role of its own draws for an update
    work v, f     the replay, which has the feedback of f updates of this session, gives the reanalyzer work
    refresh v, f  it is reanalyzed with version v now, and its newer targets are in the replay
    drop, requeue, lose   the rollout is forgotten

    run           a session begins; if its settings are others, the stations are built anew and get the states

Evaluations change nothing and are left out. Attempts that failed left no trace in any state but that.

A run with several lines has a `LineAgain` for each: what an event does to a learner, its replay and its versions is
done in the line that the event names, and a rollout is handed to every line that has opened its ticket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headway.coordinator.rerun_stations import FIRST_LINE, CollectorsAgain, LineAgain
from headway.coordinator.rerun_stations import Replayed as Replayed
from headway.coordinator.rerun_stations import ReplayError as ReplayError
from headway.coordinator.roles import ReanalyzerRole, Stations
from headway.core import events as ev
from headway.core.events_written_events import as_event, written_kind
from headway.core.types import Rollout, Snapshot
from headway.core.types_opaque import SettingValue

StationsFor = Callable[[Mapping[str, SettingValue] | None], Stations]


def replay(
    stations: Stations | StationsFor,
    events: Iterable[ev.Event | Mapping[str, object]],
    *,
    until_version: int | None = None,
) -> Replayed:
    """Execute the work of a recorded run in this thread, in order; stop early at `until_version`.

    A function in place of stations builds them for each session from the recipe's settings, as the log has them (None
    in a log that does not say). Stations as they are serve the whole run.
    """
    recorded = list(events)
    try:
        script = [as_event(event) for event in recorded]
    except ValueError as error:
        raise ReplayError(f"the log cannot be read: {error}") from None
    gap = next((event for event in script if isinstance(event, ev.GapFound)), None)
    if gap is not None:
        raise ReplayError(f"a part of the log is missing: {gap.why}")
    if script and isinstance(script[0], ev.PartBegan):
        raise ReplayError(
            "the oldest parts of the log were let go (log_limit_mb): the run cannot be replayed from its beginning"
        )
    if not script or not isinstance(script[0], ev.RunBegan):
        raise ReplayError("the log does not begin with a run")
    make = (lambda config: stations) if isinstance(stations, Stations) else stations
    return _Rerun(make, script, until_version).run()


class _Rerun:
    """A run that is done again: its lines, its collectors, its reanalyzer."""

    def __init__(self, make: StationsFor, script: Sequence[ev.Event], until: int | None) -> None:
        began = script[0]
        assert isinstance(began, ev.RunBegan)
        self._make = make
        self._script = script
        self._until = until
        self._config = began.config
        self._last_uses = _last_uses(script)
        stations = make(began.config)
        self._stations = stations
        self._lines = {FIRST_LINE: LineAgain(FIRST_LINE, stations, self._last_uses.get(FIRST_LINE, {}))}
        self._collectors = CollectorsAgain(stations, began.settings["seed"])
        self._reanalyzer = None if stations.reanalyzer is None else ReanalyzerRole(stations.reanalyzer)
        self._work: tuple[Rollout | None, Snapshot] | None = None  # with the reanalyzer, and the weights it has

    def run(self) -> Replayed:
        first = self._lines[FIRST_LINE]
        for at, event in enumerate(self._script):
            try:
                self._do(event)
            except KeyError as missing:
                kind = written_kind(event)
                raise ReplayError(f"event {at} ({kind}) refers to {missing}, which is not there") from None
            if isinstance(event, ev.Published) and first.version == self._until:
                break
            for line in self._lines.values():
                line.forget_versions(at)
        if first.version < 0:
            raise ReplayError("the log has no published version")
        others = {name: line.result() for name, line in self._lines.items() if name != FIRST_LINE}
        return replace(first.result(), lines=others)

    def _do(self, event: ev.Event) -> None:
        in_line = _IN_A_LINE.get(type(event))
        if in_line is not None:
            in_line(self._line(event.line), event)  # type: ignore[union-attr]  # the table says so
        in_run = _IN_THE_RUN.get(type(event))
        if in_run is not None:
            in_run(self, event)

    def _line(self, name: str) -> LineAgain:
        if name not in self._lines:
            self._lines[name] = LineAgain(name, self._stations, self._last_uses.get(name, {}))
        return self._lines[name]

    def _begin_session(self, event: ev.RunBegan) -> None:
        self._collectors.places = event.settings["collectors"], event.settings.get("lanes", 1)
        if event.config == self._config:
            return
        self._config = event.config
        self._stations = stations = self._make(event.config)
        for line in self._lines.values():
            line.build_anew(stations)
        self._collectors.build_anew(stations)
        self._reanalyzer = None if stations.reanalyzer is None else ReanalyzerRole(stations.reanalyzer)

    def _start(self, event: ev.Started) -> None:
        """A collector is given the snapshot of every line that the ticket took off with. A flight that failed has none
        where nobody else needed it."""
        snapshot = self._lines[FIRST_LINE].snapshots.get(event.version)
        if snapshot is not None and event.others:
            held = {name: self._lines[name].snapshots.get(version) for name, version in event.others.items()}
            others = {name: other for name, other in held.items() if other is not None}
            snapshot = replace(snapshot, others=others) if len(others) == len(held) else None
        self._collectors.start(event, snapshot)

    def _land(self, event: ev.Landed) -> None:
        rollout = self._collectors.land(event, self._attempts(event.ticket))
        for line in self._lines.values():
            line.offer(event.ticket, rollout)

    def _reissue(self, event: ev.Reissued) -> None:
        """Every line that waits for the flight counts it."""
        more = event.attempt - self._attempts(event.ticket)
        for line in self._lines.values():
            line.attempts[event.ticket] += more

    def _attempts(self, index: int) -> int:
        return max(line.attempts[index] for line in self._lines.values())

    def _begin_anew(self, event: ev.BegunAnew) -> None:
        self._collectors.begin_anew(event)

    def _leave(self, event: ev.Left) -> None:
        self._collectors.leave(event)

    def _give_work(self, event: ev.WorkGiven) -> None:
        line = self._lines[FIRST_LINE]
        line.deliver(event.feedback)
        self._work = line.keeper.oldest(event.version), line.snapshots[line.version]

    def _refresh(self, event: ev.Refreshed) -> None:
        work, snapshot = self._work or (None, None)
        if self._reanalyzer is None or work is None or snapshot is None:
            raise ReplayError("the log has reanalyzed targets, and the stations have no reanalyzer or no work for it")
        line = self._lines[FIRST_LINE]
        line.deliver(event.feedback)
        line.keeper.refresh(self._reanalyzer.reanalyze_work(snapshot, work))

    def _resume(self, event: ev.Resumed) -> None:
        for line in self._lines.values():
            line.resume()


_IN_A_LINE: dict[type[object], Callable[[LineAgain, Any], None]] = {
    ev.Opened: LineAgain.open,
    ev.Published: LineAgain.publish,
    ev.Restaged: LineAgain.publish,
    ev.Updated: LineAgain.learn,
    ev.Inserted: LineAgain.insert,
    ev.Drawn: LineAgain.draw,
    ev.Dropped: LineAgain.forget,
    ev.Requeued: LineAgain.forget,
    ev.Lost: LineAgain.lose,
    ev.Settled: LineAgain.settle,
}
_IN_THE_RUN: dict[type[object], Callable[[_Rerun, Any], None]] = {
    ev.RunBegan: _Rerun._begin_session,
    ev.Started: _Rerun._start,
    ev.Reissued: _Rerun._reissue,
    ev.Landed: _Rerun._land,
    ev.BegunAnew: _Rerun._begin_anew,
    ev.Left: _Rerun._leave,
    ev.WorkGiven: _Rerun._give_work,
    ev.Refreshed: _Rerun._refresh,
    ev.Resumed: _Rerun._resume,
}


def _last_uses(script: Sequence[ev.Event]) -> dict[str, dict[int, int]]:
    """For each line and version, the event at which it is used for the last time, to collect or to reanalyze."""
    flights: dict[int, dict[str, int]] = {}
    last: dict[str, dict[int, int]] = {}
    for at, event in enumerate(script):
        used: Mapping[str, int] = {}
        if isinstance(event, ev.Started):
            flights[event.ticket] = {FIRST_LINE: event.version, **(event.others or {})}
        elif isinstance(event, ev.Landed):
            used = flights.pop(event.ticket, {})
        elif isinstance(event, ev.Refreshed):
            used = {FIRST_LINE: event.version}
        for line, version in used.items():
            last.setdefault(line, {})[version] = at
    return last
