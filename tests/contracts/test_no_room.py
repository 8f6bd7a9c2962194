"""Rollouts that find no room where they are kept: collection waits for the learner, and ends with a line if that is no
help."""

from __future__ import annotations

from typing import Any

import pytest
from log_totals import audit

from headway.coordinator.coordinator import Coordinator
from headway.coordinator.role_calls import RunFailed
from headway.coordinator.settings import Deadlines, Plan, Settings
from headway.core.protocols import NoRoom
from headway.core.rules_order import READY
from headway.core.types import Batch, Rollout
from headway.runs.event_log import MemoryRecorder
from headway.runs.fingerprint import fingerprint
from headway.runtimes.virtual import Virtual
from headway.testing.auditor import audit as faults_in
from headway.testing.toy_stations import engine_stations, pinned_loop, toy_stations
from headway.tools.simulate.workloads import Constant, Lognormal, SteadyWorkload


class SmallStore(Virtual):
    """Keeps so many rollouts and no more."""

    def __init__(self, room: int) -> None:
        super().__init__(SteadyWorkload(Lognormal(0.2, 0.5), Constant(1.0)))
        self._room = room
        self._kept = 0

    async def call(self, role: str, method: str, *args: object, deadline_s: float) -> Any:
        answer = await super().call(role, method, *args, deadline_s=deadline_s)
        if method == "collect":
            if self._kept >= self._room:
                raise NoRoom(role, method, "the store is full")
            self._kept += 1
        for given in args:
            if isinstance(given, Batch):
                self._kept -= sum(isinstance(rollout, Rollout) for rollout in given.rollouts)
        return answer


def run(settings: Settings, room: int, *, lanes: bool = False) -> tuple[Any, MemoryRecorder]:
    recorder = MemoryRecorder()
    stations = engine_stations(evaluates=False) if lanes else toy_stations(evaluates=False)
    runtime = SmallStore(room)
    return runtime.run(Coordinator(stations, settings, runtime, recorder=recorder).run()), recorder


def assert_waited(result: Any, log: MemoryRecorder) -> None:
    seen = audit(log.events)
    assert seen.kinds["reissue"] == result.ledger.reissued > 10
    assert (result.restarts, result.ledger.lost, result.ledger.dropped) == (0, 0, {})
    assert sorted(seen.learned) == list(range(60)) and set(seen.learned.values()) == {1}
    assert not faults_in(log.events)
    assert {event["a"] for event in log.events if event["e"] == "reissue"} == {0}, "nobody is blamed"


@pytest.mark.parametrize("lanes", [1, 3])
def test_collectors_wait_for_room_and_nothing_is_lost_or_learned_twice(lanes: int) -> None:
    settings = Settings(plan=Plan(updates=60), collectors=3, lanes=lanes, max_lead=20, order=READY)
    assert_waited(*run(settings, room=4, lanes=lanes > 1))


@pytest.mark.parametrize("collectors", [1, 3])
def test_a_pinned_run_that_waited_for_room_has_the_bits_of_one_that_did_not(collectors: int) -> None:
    settings = Settings(plan=Plan(updates=60), collectors=collectors, max_lead=8)
    result, log = run(settings, room=7)
    assert_waited(result, log)
    assert fingerprint(result.weights) == fingerprint(pinned_loop(settings)), "what a collector carried was put back"


def test_a_batch_for_which_there_will_never_be_room_ends_the_run_with_one_line() -> None:
    settings = Settings(
        plan=Plan(updates=5), collectors=2, max_lead=0, tickets_per_batch=8, deadlines=Deadlines(collect_s=30)
    )
    with pytest.raises(RunFailed) as caught:
        run(settings, room=6)
    assert "\n" not in str(caught.value)
    assert "the store is full, for 30 s (collect_deadline_s); fewer or smaller rollouts" in str(caught.value)
