"""The stations of a run that is done again: each line with its learner and its replay, and the collectors.

They do what the events say, in their order (`rerun.py`), and know no time.
"""

from __future__ import annotations

import copy
import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.coordinator.collectors_applying import versions_of
from headway.coordinator.collectors_lanes import Versions
from headway.coordinator.roles import CollectorRole, LearnerRole, ReplayRole, Stations
from headway.core import events as ev
from headway.core.text_naming import place_of
from headway.core.types import Batch, LearnReport, Rollout, Snapshot, Ticket, anew_seed, derive_seed
from headway.core.types_lent import Lent, taken

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


class LineAgain:
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


class CollectorsAgain:
    """The collectors and what is in flight."""

    def __init__(self, stations: Stations, seed: int) -> None:
        self._stations = stations
        self._seed = seed
        self.places = (1, 1)  # of the seats: collectors, lanes
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
        number, _ = place_of(seat, *self.places)
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

    def leave(self, event: ev.Left) -> None:
        """A collector has ended; whoever has its number later begins with nothing."""
        number = int(event.role.partition("-")[2])
        self._roles.pop(number, None)
        self._applied.pop(number, None)

    def begin_anew(self, event: ev.BegunAnew) -> None:
        number, _ = place_of(event.seat, *self.places)
        self._role(number).begin_anew(anew_seed(derive_seed(self._seed, "ticket", event.ticket), event.attempt))
        self._applied.pop(number, None)
