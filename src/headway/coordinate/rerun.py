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
"""

from __future__ import annotations

import copy
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.coordinate.roles import CollectorRole, LearnerRole, ReanalyzerRole, ReplayRole, Stations
from headway.core.lent import Lent, taken
from headway.core.types import Batch, LearnReport, Rollout, Snapshot, Ticket, anew_seed, derive_seed


class ReplayError(ValueError):
    """The log is not the log of a whole run, or the stations do not do again what they did."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What the run came to the second time."""

    weights: Any
    version: int
    updates: int


StationsFor = Callable[[Mapping[str, Any] | None], Stations]


def replay(
    stations: Stations | StationsFor, events: Iterable[dict[str, Any]], *, until_version: int | None = None
) -> Replayed:
    """Execute the work of a recorded run in this thread, in order; stop early at `until_version`.

    A function in place of stations builds them for each session from the recipe's settings, as the log has them (None
    in a log that does not say). Stations as they are serve the whole run.
    """
    script = list(events)
    gap = next((event for event in script if event["e"] == "gap"), None)
    if gap is not None:
        raise ReplayError(f"a part of the log is missing: {gap['why']}")
    if not script or script[0]["e"] != "run":
        raise ReplayError("the log does not begin with a run")
    make = (lambda config: stations) if isinstance(stations, Stations) else stations
    return _Replayer(make, script, until_version).run()


class _Replayer:
    """The state a run has: stations, snapshots, rollouts."""

    def __init__(self, make: StationsFor, script: Sequence[dict[str, Any]], until: int | None) -> None:
        self._make = make
        self._config = script[0].get("config")
        self._script = script
        self._until = until
        self._seed = script[0]["seed"]
        self._build(make(self._config))
        self._work: tuple[Rollout | None, Snapshot] | None = None  # with the reanalyzer, and the weights it has
        self._draws: deque[Rollout] = deque()  # made and not yet trained on: two where one was made ahead
        self._reports: deque[LearnReport] = deque()  # whose feedback the replay has not seen
        self._delivered = 0  # those that it has seen, in this session
        self._collectors: dict[int, CollectorRole] = {}
        self._applied: dict[int, int] = {}  # collector -> version, for those that hold weights
        self._num_collectors = script[0]["collectors"]
        self._snapshots: dict[int, Snapshot] = {}
        self._flights: dict[int, tuple[int, int, Snapshot | None]] = {}  # ticket -> (seat, version, its weights)
        self._rollouts: dict[int, Rollout] = {}
        self._attempts: Counter[int] = Counter()
        self._last_use = _last_uses(script)
        self._version = -1
        self._updates = 0

    def run(self) -> Replayed:
        steps: dict[str, Callable[[dict[str, Any]], None]] = {
            "run": self._begin_session,
            "publish": self._publish,
            "restage": self._publish,
            "start": self._start,
            "reissue": self._reissue,
            "land": self._land,
            "anew": self._begin_anew,
            "learn": self._learn,
            "insert": self._insert,
            "draw": self._draw,
            "work": self._give_work,
            "refresh": self._refresh,
            "resume": self._resume,
            "drop": self._forget,
            "requeue": self._forget,
            "lose": self._lose,
        }
        for at, event in enumerate(self._script):
            step = steps.get(event["e"])
            if step is not None:
                try:
                    step(event)
                except KeyError as missing:
                    raise ReplayError(f"event {at} ({event['e']}) refers to {missing}, which is not there") from None
            if event["e"] == "publish" and self._version == self._until:
                break
            for version in [v for v in self._snapshots if v != self._version and self._last_use.get(v, -1) <= at]:
                del self._snapshots[version]
        if self._version < 0:
            raise ReplayError("the log has no published version")
        return Replayed(self._snapshots[self._version].payload, self._version, self._updates)

    def _build(self, stations: Stations) -> None:
        self._stations = stations
        self._learner = LearnerRole(stations.learner)
        self._replay = None if stations.replay is None else ReplayRole(stations.replay)
        self._reanalyzer = None if stations.reanalyzer is None else ReanalyzerRole(stations.reanalyzer)

    def _begin_session(self, event: dict[str, Any]) -> None:
        self._num_collectors = event["collectors"]
        config = event.get("config")
        if config == self._config:
            return
        self._config = config
        self._deliver()  # as before a checkpoint
        learner, replay, collectors = self._learner, self._replay, self._collectors
        self._build(self._make(config))
        self._learner.restore(learner.state())
        if replay is not None and self._replay is not None:
            self._replay.restore(replay.state())
        self._collectors = {}
        self._applied = {}
        for number, before in collectors.items():
            carried = before.state()
            if carried is not None:
                self._collector(number).restore(carried)

    def _publish(self, event: dict[str, Any]) -> None:
        self._version = event["v"]
        staged = self._learner.snapshot(self._version).payload
        self._snapshots[self._version] = Snapshot(self._version, copy.deepcopy(taken(staged)))
        if isinstance(staged, Lent):
            staged.give_back()

    def _start(self, event: dict[str, Any]) -> None:
        self._flights[event["k"]] = (event["c"], event["v"], self._snapshots.get(event["v"]))

    def _reissue(self, event: dict[str, Any]) -> None:
        self._attempts[event["k"]] = event["a"]

    def _land(self, event: dict[str, Any]) -> None:
        index, (oldest, newest) = event["k"], event["v"]
        seat, version, snapshot = self._flights.pop(index)
        if snapshot is None:
            raise KeyError(f"version {version}")
        if oldest != newest:
            raise ReplayError(
                f"ticket {index} was made by versions {oldest} to {newest}: which token or step by which is not in the "
                "log, so a run with on_publish=partial cannot be replayed"
            )
        ticket = Ticket(index, derive_seed(self._seed, "ticket", index), version, seat, self._attempts[index])
        number = seat % self._num_collectors
        collector = self._collector(number)
        if collector.traits().holds_weights and self._applied.get(number) != version:
            collector.apply(snapshot)
            self._applied[number] = version
        rollout, _ = collector.collect(ticket, snapshot)
        if rollout.steps != event["n"]:
            raise ReplayError(
                f"ticket {index} had {event['n']} steps when it was recorded and has {rollout.steps} now: its "
                f"collector depends on something besides ticket, snapshot and its own state"
            )
        self._rollouts[index] = rollout

    def _collector(self, number: int) -> CollectorRole:
        if number not in self._collectors:
            self._collectors[number] = CollectorRole(lambda: self._stations.collector(number))
        return self._collectors[number]

    def _begin_anew(self, event: dict[str, Any]) -> None:
        number = event["c"] % self._num_collectors
        self._collector(number).begin_anew(anew_seed(derive_seed(self._seed, "ticket", event["k"]), event["a"]))
        self._applied.pop(number, None)

    def _learn(self, event: dict[str, Any]) -> None:
        rollouts = tuple(self._rollouts.pop(index) for index in event["k"])
        if self._replay is not None:
            if not self._draws:
                raise ReplayError(f"update {event['u']} has no draw in the log")
            rollouts = (self._draws.popleft(),)
        report, _, _ = self._learner.learn(Batch(event["v"], rollouts), None)
        if self._replay is not None and report.feedback is not None:
            self._reports.append(report)
        self._updates = event["u"]

    def _deliver(self, until: float = math.inf) -> None:
        """Feedback reaches the replay before the next call, unless that one had begun when the update ended."""
        while self._replay is not None and self._reports and self._delivered < until:
            self._replay.update(self._reports.popleft())
            self._delivered += 1

    def _insert(self, event: dict[str, Any]) -> None:
        self._deliver()
        keeper = self._learner if self._replay is None else self._replay
        keeper.insert(Batch(event["v"], tuple(self._rollouts.pop(index) for index in event["k"])))

    def _draw(self, event: dict[str, Any]) -> None:
        if self._replay is None:
            raise ReplayError("the log has draws of a replay in its own role, and the stations have none")
        self._deliver()
        self._draws.append(self._replay.sample(event["v"]))

    def _give_work(self, event: dict[str, Any]) -> None:
        self._deliver(event.get("f", math.inf))
        self._work = self._keeper.oldest(event["v"]), self._snapshots[self._version]

    def _refresh(self, event: dict[str, Any]) -> None:
        work, snapshot = self._work or (None, None)
        if self._reanalyzer is None or work is None or snapshot is None:
            raise ReplayError("the log has reanalyzed targets, and the stations have no reanalyzer or no work for it")
        self._deliver(event.get("f", math.inf))
        self._keeper.refresh(self._reanalyzer.reanalyze_work(snapshot, work))

    @property
    def _keeper(self) -> LearnerRole | ReplayRole:
        return self._learner if self._replay is None else self._replay

    def _resume(self, event: dict[str, Any]) -> None:
        self._deliver()
        self._delivered = 0
        self._draws.clear()  # one made ahead of the checkpoint was not kept

    def _lose(self, event: dict[str, Any]) -> None:
        del self._rollouts[event["k"]]
        self._attempts[event["k"]] += 1

    def _forget(self, event: dict[str, Any]) -> None:
        self._rollouts.pop(event["k"], None)
        self._attempts.pop(event["k"], None)


def _last_uses(script: Sequence[dict[str, Any]]) -> dict[int, int]:
    """For each version, the event at which it is used for the last time, to collect or to reanalyze."""
    flights: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, event in enumerate(script):
        if event["e"] == "start":
            flights[event["k"]] = event["v"]
        elif event["e"] == "land" and event["k"] in flights:
            last[flights.pop(event["k"])] = at
        elif event["e"] == "refresh":
            last[event["v"]] = at
    return last
