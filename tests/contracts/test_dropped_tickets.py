"""What a collector does after its ticket was dropped: something new, and not for ever."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from log_totals import audit

from headway.coordinator.checkpoint import CheckpointStore
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.rerun import replay
from headway.coordinator.role_calls import RunFailed
from headway.coordinator.roles import Stations
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Plan, Retries, Settings
from headway.core.types import Rollout, Snapshot, Ticket
from headway.runs.event_log import MemoryRecorder
from headway.runs.fingerprint import fingerprint
from headway.runtimes.build import build_runtime
from headway.runtimes.virtual import Virtual
from headway.testing.toy_stations import SIZE, ToyCollector, ToyLearner
from headway.tools.simulate.workloads import Constant, SteadyWorkload

DROPS = Retries(on_failure="drop")
every_runtime = pytest.mark.parametrize("runtime", ["inline", "threads", "processes", "virtual"])


class Trapped(ToyCollector):
    """Walks into a trap after `free` rollouts: from then on every attempt fails, and so would any that begins there."""

    def __init__(self, number: int, free: int = 3, how: str = "raises") -> None:
        super().__init__(number)
        self._free = self._left = free
        self._how = how

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        if not self._left:
            if self._how == "dies":
                os._exit(3)
            raise RuntimeError(f"trapped after {self._free}")
        self._left -= 1
        return super().collect(ticket, snapshot)

    def state_dict(self) -> Any:
        return self._carried, self._left

    def load_state_dict(self, state: Any) -> None:
        self._carried, self._left = state


class Freed(Trapped):
    """Can begin anew by itself, from a seed."""

    def begin_anew(self, seed: int) -> None:
        self._carried = np.random.default_rng(seed).normal(size=SIZE)
        self._left = self._free


class Reluctant(Freed):
    """Its first attempt to begin anew fails, as a constructor may."""

    _refused = False

    def begin_anew(self, seed: int) -> None:
        self._refused = not self._refused
        if self._refused:
            raise ConnectionError("the simulator does not answer")
        super().begin_anew(seed)


def _collector(kind: type[Trapped], free: int, how: str, number: int) -> Trapped:
    return kind(number, free, how)


def stations_of(kind: type[Trapped], free: int = 3, how: str = "raises") -> Stations:
    return Stations(partial(_collector, kind, free, how), ToyLearner)


def run(
    stations: Stations, settings: Settings, runtime: str = "inline", **more: Any
) -> tuple[RunResult, list[dict[str, Any]]]:
    place = Virtual(SteadyWorkload(Constant(1.0), Constant(1.0))) if runtime == "virtual" else build_runtime(runtime)
    recorder = MemoryRecorder()
    result = place.run(Coordinator(stations, settings, place, recorder=recorder, **more).run())
    return result, recorder.events


@every_runtime
@pytest.mark.parametrize("kind", [Trapped, Freed])
def test_a_collector_begins_anew_after_a_drop(kind: type[Trapped], runtime: str) -> None:
    result, events = run(stations_of(kind), Settings(plan=Plan(updates=10), max_lead=0, retries=DROPS), runtime)
    assert result.updates == 10
    assert result.ledger.dropped == {"failed": 3}, "one after every third"
    assert audit(events).kinds["anew"] == 3
    assert fingerprint(replay(stations_of(kind), events).weights) == fingerprint(result.weights)


def test_every_runtime_begins_the_same_anew() -> None:
    settings = Settings(plan=Plan(updates=10), max_lead=0, retries=DROPS)
    names = ("inline", "threads", "processes", "virtual")
    assert len({fingerprint(run(stations_of(Freed), settings, name)[0].weights) for name in names}) == 1


@every_runtime
def test_several_collectors_with_a_lead_go_on_after_drops(runtime: str) -> None:
    settings = Settings(plan=Plan(updates=12), collectors=3, max_lead=2, tickets_per_batch=2, retries=DROPS)
    result, events = run(stations_of(Freed), settings, runtime)
    assert result.updates == 12
    assert set(audit(events).learned.values()) == {1}
    assert fingerprint(replay(stations_of(Freed), events).weights) == fingerprint(result.weights)


def test_new_episodes_begin_from_another_seed_every_time() -> None:
    _, events = run(stations_of(Freed, free=1), Settings(plan=Plan(updates=8), max_lead=0, retries=DROPS))
    assert len({(event["k"], event["a"]) for event in events if event["e"] == "anew"}) == 7


def test_a_collector_that_died_is_restarted_and_begins_anew() -> None:
    settings = Settings(
        plan=Plan(updates=5), max_lead=0, retries=Retries(on_failure="drop", attempts_on_loss=1, max_restarts=5)
    )
    result, events = run(stations_of(Freed, how="dies"), settings, "processes")
    assert (result.updates, result.restarts, result.ledger.dropped) == (5, 1, {"failed": 1})
    again, _ = run(stations_of(Freed), settings)
    assert fingerprint(result.weights) == fingerprint(again.weights), "dying and raising come to the same"
    assert fingerprint(replay(stations_of(Freed), events).weights) == fingerprint(result.weights)


def test_an_attempt_to_begin_anew_may_fail_too() -> None:
    result, events = run(stations_of(Reluctant), Settings(plan=Plan(updates=8), max_lead=0, retries=DROPS))
    assert result.ledger.dropped == {"failed": 2}
    assert [event["a"] for event in events if event["e"] == "anew"] == [1, 1]
    assert fingerprint(replay(stations_of(Freed), events).weights) == fingerprint(result.weights)


@every_runtime
def test_a_collector_that_never_succeeds_ends_the_run_with_its_last_error(runtime: str) -> None:
    settings = Settings(plan=Plan(updates=10), max_lead=1, retries=Retries(on_failure="drop", max_failures_in_a_row=5))
    line = (
        r"^collector-0 failed 5 times in a row \(max_failures_in_a_row=5\), the last time on ticket 4 at version 0: "
        "RuntimeError: trapped after 0$"
    )
    with pytest.raises(RunFailed, match=line):
        run(stations_of(Freed, free=0), settings, runtime)


def test_only_failures_in_a_row_count() -> None:
    settings = Settings(plan=Plan(updates=10), max_lead=0, retries=Retries(on_failure="drop", max_failures_in_a_row=2))
    result, _ = run(stations_of(Freed, free=1), settings)
    assert result.ledger.dropped == {"failed": 9}


def test_attempts_to_begin_anew_count_too() -> None:
    settings = Settings(plan=Plan(updates=10), max_lead=0, retries=Retries(on_failure="drop", max_failures_in_a_row=2))
    with pytest.raises(RunFailed, match=r"collector-0 failed 2 times in a row.*ConnectionError: the simulator does"):
        run(stations_of(Reluctant), settings)


def test_a_ticket_that_flies_again_still_finds_the_same_state() -> None:
    settings = Settings(plan=Plan(updates=10), max_lead=0, retries=Retries(attempts_on_error=4))
    with pytest.raises(RunFailed, match=r"ticket 3 at .* failed on collector-0 after 4 attempts: .*trapped"):
        run(stations_of(Freed), settings)


def test_a_run_with_drops_resumes_to_the_same_bits(tmp_path: Path) -> None:
    def settings(updates: int) -> Settings:
        return Settings(plan=Plan(updates=updates, save_every=1), max_lead=0, retries=DROPS)

    whole, _ = run(stations_of(Freed), settings(12))
    for first in range(1, 12):
        store = CheckpointStore(tmp_path / str(first), keep=1)
        run(stations_of(Freed), settings(first), checkpoints=store)
        result, _ = run(stations_of(Freed), settings(12), checkpoints=store, resume=store.load())
        assert fingerprint(result.weights) == fingerprint(whole.weights), first


@pytest.mark.parametrize("bad", [0, -1])
def test_a_limit_below_one_is_refused(bad: int) -> None:
    with pytest.raises(ValueError, match=f"max_failures_in_a_row must be >= 1, received {bad}"):
        Retries(max_failures_in_a_row=bad)
