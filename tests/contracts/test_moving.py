"""A place that goes away says so beforehand: roles leave it between two tickets, and a pinned run keeps its bits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headway.coordinator.checkpoint import CheckpointStore
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.role_calls import RunFailed
from headway.coordinator.roles import Stations
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Plan, Settings
from headway.core.protocols import GivesNotice, Notice, RoleLate
from headway.runs.event_log import MemoryRecorder
from headway.runs.fingerprint import fingerprint
from headway.runtimes.virtual import Virtual
from headway.testing.auditor import audit as faults_in
from headway.testing.toy_stations import ToyCollector, ToyEngine, engine_stations, pinned_loop, toy_stations
from headway.tools.report.recorded_run_run_history import tell
from headway.tools.report.series_notable_moments import notable_moments
from headway.tools.simulate.workloads import Constant, Lognormal, SteadyWorkload

BUILD_S = 3.0
WHY = "node 10.0.0.7 is drained and goes in 30 s"


@dataclass(frozen=True)
class Drain:
    """At this time these roles hear that their place goes away, and `grace_s` later it does."""

    at_s: float
    roles: tuple[str, ...]
    grace_s: float = 30.0
    has_room: bool = True
    """Is there another place for them?"""


class Forewarned(Virtual):
    """A virtual runtime that gives notice."""

    def __init__(self, drains: Sequence[Drain] = (), collect_s: float = 1.0, learn_s: float = 0.5) -> None:
        super().__init__(SteadyWorkload(Lognormal(collect_s, 0.5), Constant(learn_s)))
        self._drains = list(drains)
        self._heard: list[Drain] = []
        self._seconds: dict[str, Any] = {}
        self.were_there: list[str] = []
        """Roles that still were in a place when it went away."""

    async def wait_for_notice(self) -> Notice:
        if not self._drains:
            await asyncio.get_running_loop().create_future()
        drain = self._drains.pop(0)
        await self._pass_time(drain.at_s - self.now())
        self._heard.append(drain)
        for role in drain.roles:
            first = self._objects[role]
            self._loop.call_later(drain.grace_s, self._go, role, first)
        return Notice(drain.roles, WHY)

    def _go(self, role: str, station: object) -> None:
        if self._objects.get(role) is station:
            self.were_there.append(role)
            self._end(role, "died because its node has died")

    async def prepare(self, role: str) -> bool:
        if not all(drain.has_room for drain in self._heard if role in drain.roles):
            return False
        await self._pass_time(BUILD_S)
        self._seconds[role] = self._roles[role].factory()
        return True

    async def move(self, role: str) -> bool:
        if role not in self._seconds:
            return False
        self._objects[role] = self._seconds.pop(role)
        return True


@dataclass
class Ended:
    result: RunResult
    events: list[dict[str, Any]] = field(repr=False)

    def of_kind(self, *kinds: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["e"] in kinds]


def run(
    runtime: Forewarned, settings: Settings, stations: Stations | None = None, store: CheckpointStore | None = None
) -> Ended:
    recorder = MemoryRecorder()
    stations = stations or toy_stations(evaluates=settings.plan.evaluate_every > 0)
    resume = store.load() if store is not None and store.all() else None
    coordinator = Coordinator(stations, settings, runtime, recorder=recorder, checkpoints=store, resume=resume)
    result = runtime.run(coordinator.run())
    assert resume is not None or not faults_in(recorder.events)
    return Ended(result, recorder.events)


def test_a_runtime_that_cannot_know_beforehand_is_not_asked() -> None:
    assert isinstance(Forewarned(), GivesNotice)
    assert not isinstance(Virtual(SteadyWorkload(Constant(1), Constant(1))), GivesNotice)


def test_collectors_leave_between_two_tickets_and_no_ticket_flies_twice() -> None:
    settings = Settings(plan=Plan(updates=80), collectors=4, max_lead=4)
    runtime = Forewarned([Drain(10.2, ("collector-1", "collector-3"))])
    ended = run(runtime, settings)
    assert fingerprint(ended.result.weights) == fingerprint(pinned_loop(settings, ToyCollector))
    assert (ended.result.restarts, ended.result.ledger.reissued, runtime.were_there) == (0, 0, [])
    notices, moves = ended.of_kind("notice"), ended.of_kind("move")
    assert [(event["t"], event["role"], event["why"]) for event in notices] == [
        (10.2, "collector-1", WHY),
        (10.2, "collector-3", WHY),
    ]
    assert sorted(event["role"] for event in moves) == ["collector-1", "collector-3"]
    for move in moves:
        seat = int(move["role"][-1])
        flights = [event for event in ended.of_kind("start", "land") if _seat(event, ended) == seat]
        before = [event for event in flights if event["t"] <= move["t"]][-1]
        assert before["e"] == "land", "its ticket had landed"
        started = [event for event in flights if event["e"] == "start" and 10.2 < event["t"] < 10.2 + BUILD_S]
        assert started or seat == 3, "the first worked on while the second was built"


def _seat(event: dict[str, Any], ended: Ended) -> int:
    if event["e"] == "start":
        return int(event["c"])
    return next(int(start["c"]) for start in ended.of_kind("start") if start["k"] == event["k"])


def test_an_idle_collector_leaves_at_once() -> None:
    settings = Settings(plan=Plan(updates=6), collectors=2, max_lead=0)
    runtime = Forewarned([Drain(2.0, ("collector-1",), grace_s=BUILD_S + 1)], learn_s=20.0)
    ended = run(runtime, settings)
    [move] = ended.of_kind("move")
    assert move["t"] == pytest.approx(2.0 + BUILD_S)
    assert runtime.were_there == [] and ended.result.restarts == 0


def test_the_lanes_of_an_engine_land_where_they_are_and_the_next_take_off_elsewhere() -> None:
    settings = Settings(plan=Plan(updates=80), collectors=2, lanes=3, max_lead=5)
    runtime = Forewarned([Drain(8.1, ("collector-1",))])
    ended = run(runtime, settings, engine_stations(evaluates=False))
    assert fingerprint(ended.result.weights) == fingerprint(pinned_loop(settings, ToyEngine))
    assert (ended.result.restarts, ended.result.ledger.reissued, runtime.were_there) == (0, 0, [])
    assert [event["role"] for event in ended.of_kind("move")] == ["collector-1"]


def test_the_evaluator_leaves_too() -> None:
    settings = Settings(plan=Plan(updates=40, evaluate_every=10), max_lead=1)
    runtime = Forewarned([Drain(5.0, ("evaluator",))])
    ended = run(runtime, settings)
    assert [event["role"] for event in ended.of_kind("move")] == ["evaluator"]
    assert [score.version for score in ended.result.scores] == [10, 20, 30, 40]
    assert runtime.were_there == [] and ended.result.restarts == 0


def test_who_can_be_nowhere_else_stays_and_is_built_anew_when_its_place_has_gone() -> None:
    settings = Settings(plan=Plan(updates=60), collectors=2, max_lead=2)
    runtime = Forewarned([Drain(5.0, ("collector-0",), grace_s=10.0, has_room=False)])
    ended = run(runtime, settings)
    assert runtime.were_there == ["collector-0"]
    assert not ended.of_kind("move") and ended.result.restarts == 1
    assert fingerprint(ended.result.weights) == fingerprint(pinned_loop(settings, ToyCollector))


def test_a_run_whose_learner_must_leave_is_saved_and_goes_on_elsewhere_with_the_same_bits(tmp_path: Path) -> None:
    settings = Settings(plan=Plan(updates=60), collectors=2, max_lead=2)
    store = CheckpointStore(tmp_path)
    ended = run(Forewarned([Drain(12.0, ("collector-0", "learner"))]), settings, store=store)
    assert ended.result.stop_reason == f"interrupted: {WHY}, and learner cannot go elsewhere"
    assert not ended.result.is_complete and 5 < ended.result.updates < 60
    assert ended.events[-1]["t"] < 12.0 + 2.0, "within the grace, after the update under way"
    rest = run(Forewarned(), settings, store=store)
    assert rest.result.updates == 60
    assert fingerprint(rest.result.weights) == fingerprint(pinned_loop(settings, ToyCollector))


class DiesOnArrival(Forewarned):
    """What was prepared dies as it takes over."""

    async def move(self, role: str) -> bool:
        is_moved = await super().move(role)
        self._end(role, "died")
        return is_moved


def test_a_second_one_that_dies_as_it_takes_over_is_built_anew_with_the_state_of_the_first() -> None:
    settings = Settings(plan=Plan(updates=60), collectors=2, max_lead=2)
    ended = run(DiesOnArrival([Drain(5.0, ("collector-0",))]), settings)
    assert ended.result.restarts == 1
    assert fingerprint(ended.result.weights) == fingerprint(pinned_loop(settings, ToyCollector))


class CannotBeEnded(Forewarned):
    """What it takes over from does not go."""

    async def move(self, role: str) -> bool:
        raise RoleLate(role, "kill", "process 7 is still there after 5 s")


def test_a_role_that_cannot_be_ended_ends_the_run_with_one_line() -> None:
    settings = Settings(plan=Plan(updates=60, evaluate_every=50), collectors=1, max_lead=1)
    with pytest.raises(RunFailed, match=r"^evaluator\.kill: process 7 is still there after 5 s$"):
        run(CannotBeEnded([Drain(5.0, ("evaluator",))]), settings)


def test_a_move_is_a_notable_moment_of_the_run() -> None:
    settings = Settings(plan=Plan(updates=40), collectors=2, max_lead=2)
    ended = run(Forewarned([Drain(5.0, ("collector-0",))]), settings)
    told = [(moment.kind, moment.text) for moment in notable_moments(tell(ended.events))]
    assert told == [("notice", f"collector-0 has to leave: {WHY}"), ("move", "collector-0 goes on in another place")]
