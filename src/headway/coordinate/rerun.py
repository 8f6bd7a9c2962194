"""Do a recorded run again, in the recorded order, and come out with the same bits.

Which rollouts met in which batch, at which version and on which collector: that is all that was decided by
timing, and it is in the event log. Everything else follows from seeds. So the log is read as a script:

    publish v     the learner's weights become version v
    restage v     what it has now is version v from here on: what it had was lost
    start k, c, v ticket k takes off on seat c (with one lane each: collector c) with version v
    land k        it is collected now
    anew k, c, a  ticket k was dropped as failed, and its collector begins new episodes
    learn [k..]   these rollouts are trained on (none: what was drawn for it)
    insert [k..]  these go into the replay
    draw v        the replay with a role of its own draws for an update
    work v, f     the replay, which has the feedback of f updates of this session, gives the reanalyzer work
    refresh v, f  it is reanalyzed with version v now, and its newer targets are in the replay
    drop, requeue, lose   the rollout is forgotten

    run           a session begins; if its settings are others, the stations are built anew and get the states

Evaluations change nothing and are left out. Attempts that failed left no trace in any state but that.

A run with several lines has a `_LineAgain` for each: what an event does to a learner, its replay and its versions is
done in the line that the event names, and a rollout is handed to every line that has opened its ticket.
"""

from __future__ import annotations

import copy
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headway.coordinate.collector_calls import versions_of
from headway.coordinate.lanes import Versions
from headway.coordinate.roles import CollectorRole, LearnerRole, ReanalyzerRole, ReplayRole, Stations
from headway.core import events as ev
from headway.core.lent import Lent, taken
from headway.core.types import Batch, LearnReport, Rollout, Snapshot, Ticket, anew_seed, derive_seed

FIRST_LINE = ""


class ReplayError(ValueError):
    """The log is not the log of a whole run, or the stations do not do again what they did."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What the run came to the second time."""

    weights: Any
    version: int
    updates: int
    lines: Mapping[str, Replayed] = field(default_factory=dict)
    """The other lines of the run, by their names."""


StationsFor = Callable[[Mapping[str, Any] | None], Stations]


def replay(
    stations: Stations | StationsFor,
    events: Iterable[ev.Event | Mapping[str, Any]],
    *,
    until_version: int | None = None,
) -> Replayed:
    """Execute the work of a recorded run in this thread, in order; stop early at `until_version`.

    A function in place of stations builds them for each session from the recipe's settings, as the log has them (None
    in a log that does not say). Stations as they are serve the whole run.
    """
    recorded = list(events)
    try:
        script = [ev.as_event(event) for event in recorded]
    except ValueError as error:
        raise ReplayError(f"the log cannot be read: {error}") from None
    gap = next((event for event in script if isinstance(event, ev.GapFound)), None)
    if gap is not None:
        raise ReplayError(f"a part of the log is missing: {gap.why}")
    if not script or not isinstance(script[0], ev.RunBegan):
        raise ReplayError("the log does not begin with a run")
    make = (lambda config: stations) if isinstance(stations, Stations) else stations
    return _Rerun(make, script, until_version).run()


class _LineAgain:
    """One line: its learner, its replay, its versions, and the rollouts that wait for it."""

    def __init__(self, name: str, stations: Stations, last_use: Mapping[int, int]) -> None:
        self._name = name
        self.build(stations)
        self.snapshots: dict[int, Snapshot] = {}
        self.version = -1
        self.updates = 0
        self._last_use = last_use  # version -> the event at which it is used for the last time
        self._awaited: set[int] = set()  # tickets whose rollout is still to come
        self.attempts: Counter[int] = Counter()  # ticket -> how often it has failed or was lost
        self._rollouts: dict[int, Rollout] = {}
        self._draws: deque[Rollout] = deque()  # made and not yet trained on: two where one was made ahead
        self._reports: deque[LearnReport] = deque()  # whose feedback the replay has not seen
        self._delivered = 0  # those that it has seen, in this session

    def build(self, stations: Stations) -> None:
        """The stations of the line."""
        if self._name != FIRST_LINE and self._name not in stations.lines:
            raise ReplayError(f"the log has a line {self._name!r}, and the stations have none of that name")
        line = stations.lines[self._name] if self._name else stations
        self.learner = LearnerRole(line.learner)
        self.replay = None if line.replay is None else ReplayRole(line.replay)

    def build_anew(self, stations: Stations) -> None:
        """Other stations go on with the states of these."""
        self.deliver()  # as before a checkpoint
        learner, replay = self.learner, self.replay
        self.build(stations)
        self.learner.restore(learner.state())
        if replay is not None and self.replay is not None:
            self.replay.restore(replay.state())

    @property
    def keeper(self) -> LearnerRole | ReplayRole:
        """Who has the replay."""
        return self.learner if self.replay is None else self.replay

    def publish(self, event: ev.Published | ev.Restaged) -> None:
        self.version = event.version
        staged = self.learner.snapshot(self.version).payload
        self.snapshots[self.version] = Snapshot(self.version, copy.deepcopy(taken(staged)))
        if isinstance(staged, Lent):
            staged.give_back()

    def result(self) -> Replayed:
        return Replayed(self.snapshots[self.version].payload, self.version, self.updates)

    def forget_versions(self, at: int) -> None:
        """After event `at`, those that nobody uses any more."""
        for version in [v for v in self.snapshots if v != self.version and self._last_use.get(v, -1) <= at]:
            del self.snapshots[version]

    def open(self, event: ev.Opened) -> None:
        self._awaited.add(event.ticket)

    def offer(self, index: int, rollout: Rollout) -> None:
        """A rollout has been collected. It may be for another line alone, which has lost the one before."""
        if index in self._awaited:
            self._awaited.remove(index)
            self._rollouts[index] = rollout

    def lose(self, event: ev.Lost) -> None:
        del self._rollouts[event.ticket]
        self._awaited.add(event.ticket)
        self.attempts[event.ticket] += 1

    def forget(self, event: ev.Dropped | ev.Requeued) -> None:
        self._rollouts.pop(event.ticket, None)
        self.attempts.pop(event.ticket, None)
        if isinstance(event, ev.Dropped):
            self._awaited.discard(event.ticket)
        else:
            self._awaited.add(event.ticket)

    def settle(self, event: ev.Settled) -> None:
        for index in event.tickets:
            self.attempts.pop(index, None)

    def learn(self, event: ev.Updated) -> None:
        rollouts = tuple(self._rollouts.pop(index) for index in event.tickets)
        if self.replay is not None:
            if not self._draws:
                raise ReplayError(f"update {event.update} has no draw in the log")
            rollouts = (self._draws.popleft(),)
        report, _, _ = self.learner.learn(Batch(event.version, rollouts), None)
        if self.replay is not None and report.feedback is not None:
            self._reports.append(report)
        self.updates = event.update

    def insert(self, event: ev.Inserted) -> None:
        self.deliver()
        self.keeper.insert(Batch(event.version, tuple(self._rollouts.pop(index) for index in event.tickets)))

    def draw(self, event: ev.Drawn) -> None:
        if self.replay is None:
            raise ReplayError("the log has draws of a replay in its own role, and the stations have none")
        self.deliver()
        self._draws.append(self.replay.sample(event.version))

    def deliver(self, until: float | None = None) -> None:
        """Feedback reaches the replay before the next call, unless that one had begun when the update ended."""
        until = math.inf if until is None else until
        while self.replay is not None and self._reports and self._delivered < until:
            self.replay.update(self._reports.popleft())
            self._delivered += 1

    def resume(self) -> None:
        self.deliver()
        self._delivered = 0
        self._draws.clear()  # one made ahead of the checkpoint was not kept


class _CollectorsAgain:
    """The collectors and what is in flight."""

    def __init__(self, stations: Stations, seed: int) -> None:
        self._stations = stations
        self._seed = seed
        self.num = 1
        self._roles: dict[int, CollectorRole] = {}
        self._applied: dict[int, Versions] = {}  # collector -> version of each line, for those that hold weights
        self._flights: dict[int, tuple[int, int, Snapshot | None]] = {}  # ticket -> (seat, version, its weights)

    def build_anew(self, stations: Stations) -> None:
        """Other stations go on with the states of these."""
        before, self._roles, self._applied = self._roles, {}, {}
        self._stations = stations
        for number, role in before.items():
            carried = role.state()
            if carried is not None:
                self._role(number).restore(carried)

    def _role(self, number: int) -> CollectorRole:
        if number not in self._roles:
            self._roles[number] = CollectorRole(lambda: self._stations.collector(number))
        return self._roles[number]

    def start(self, event: ev.Started, snapshot: Snapshot | None) -> None:
        self._flights[event.ticket] = (event.seat, event.version, snapshot)

    def land(self, event: ev.Landed, attempt: int) -> Rollout:
        """The rollout is collected now."""
        index, (oldest, newest) = event.ticket, event.span
        seat, version, snapshot = self._flights.pop(index)
        if snapshot is None:
            raise KeyError(f"version {version}")
        if oldest != newest:
            raise ReplayError(
                f"ticket {index} was made by versions {oldest} to {newest}: which token or step by which is not in the "
                "log, so a run with on_publish=partial cannot be replayed"
            )
        ticket = Ticket(index, derive_seed(self._seed, "ticket", index), version, seat, attempt)
        number = seat % self.num
        collector = self._role(number)
        if collector.traits().holds_weights and self._applied.get(number) != versions_of(snapshot):
            collector.apply(snapshot)
            self._applied[number] = versions_of(snapshot)
        rollout, _ = collector.collect(ticket, snapshot)
        if rollout.steps != event.steps:
            raise ReplayError(
                f"ticket {index} had {event.steps} steps when it was recorded and has {rollout.steps} now: its "
                f"collector depends on something besides ticket, snapshot and its own state"
            )
        return rollout

    def begin_anew(self, event: ev.BegunAnew) -> None:
        number = event.seat % self.num
        self._role(number).begin_anew(anew_seed(derive_seed(self._seed, "ticket", event.ticket), event.attempt))
        self._applied.pop(number, None)


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
        self._lines = {FIRST_LINE: _LineAgain(FIRST_LINE, stations, self._last_uses.get(FIRST_LINE, {}))}
        self._collectors = _CollectorsAgain(stations, began.settings["seed"])
        self._reanalyzer = None if stations.reanalyzer is None else ReanalyzerRole(stations.reanalyzer)
        self._work: tuple[Rollout | None, Snapshot] | None = None  # with the reanalyzer, and the weights it has

    def run(self) -> Replayed:
        first = self._lines[FIRST_LINE]
        for at, event in enumerate(self._script):
            try:
                self._do(event)
            except KeyError as missing:
                kind = ev.written_kind(event)
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

    def _line(self, name: str) -> _LineAgain:
        if name not in self._lines:
            self._lines[name] = _LineAgain(name, self._stations, self._last_uses.get(name, {}))
        return self._lines[name]

    def _begin_session(self, event: ev.RunBegan) -> None:
        self._collectors.num = event.settings["collectors"]
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


_IN_A_LINE: dict[type[Any], Callable[[_LineAgain, Any], None]] = {
    ev.Opened: _LineAgain.open,
    ev.Published: _LineAgain.publish,
    ev.Restaged: _LineAgain.publish,
    ev.Updated: _LineAgain.learn,
    ev.Inserted: _LineAgain.insert,
    ev.Drawn: _LineAgain.draw,
    ev.Dropped: _LineAgain.forget,
    ev.Requeued: _LineAgain.forget,
    ev.Lost: _LineAgain.lose,
    ev.Settled: _LineAgain.settle,
}
_IN_THE_RUN: dict[type[Any], Callable[[_Rerun, Any], None]] = {
    ev.RunBegan: _Rerun._begin_session,
    ev.Started: _Rerun._start,
    ev.Reissued: _Rerun._reissue,
    ev.Landed: _Rerun._land,
    ev.BegunAnew: _Rerun._begin_anew,
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
