"""The same seed, the same bits: without a lead, with one, on every runtime, under load, and when replayed."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from headway.coordinator.coordinator import Coordinator
from headway.coordinator.rerun import ReplayError, replay
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Plan, Settings
from headway.core.rules import ReplayRatio
from headway.core.rules_order import READY, OnStale, parse_order
from headway.runs.event_log import MemoryRecorder
from headway.runs.fingerprint import fingerprint
from headway.runtimes.build import build_runtime
from headway.runtimes.virtual import Virtual
from headway.testing.toy_stations import Pause, ToyReplayLearner, pinned_loop, plain_loop, toy_stations
from headway.tools.simulate.workloads import Constant, SteadyWorkload

RUNTIMES = ["inline", "threads", "processes"]


def run(settings: Settings, runtime: str = "inline", stations: Any = None, recorder: Any = None) -> RunResult:
    place = build_runtime(runtime)
    return place.run(Coordinator(stations or toy_stations(), settings, place, recorder=recorder).run())


def settings_for(lead: float, *, updates: int = 24, **more: Any) -> Settings:
    return Settings(plan=Plan(updates=updates, evaluate_every=8), max_lead=lead, **more)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(("collectors", "batch", "every"), [(1, 1, 1), (3, 2, 1), (2, 2, 3)])
def test_lead_zero_equals_the_plain_loop(runtime: str, collectors: int, batch: int, every: int) -> None:
    settings = settings_for(0, collectors=collectors, tickets_per_batch=batch, publish_every=every, seed=5)
    result = run(settings, runtime, toy_stations(Pause(0.002)))
    assert fingerprint(result.weights) == fingerprint(plain_loop(settings))
    assert result.ledger.max_staleness == 0


@pytest.mark.parametrize("order", ["oldest", "ready"])
def test_lead_zero_is_the_plain_loop_whatever_the_order(order: str) -> None:
    settings = settings_for(0, collectors=3, tickets_per_batch=3, order=parse_order(order))
    result = run(settings, "threads", toy_stations(Pause(0.003)))
    assert fingerprint(result.weights) == fingerprint(plain_loop(settings))


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("collectors", [1, 3])
@pytest.mark.parametrize("lead", [1, 2, 4])
def test_a_pinned_run_is_determined_by_its_seed_at_any_lead(runtime: str, collectors: int, lead: int) -> None:
    settings = settings_for(lead, collectors=collectors)
    expected = fingerprint(pinned_loop(settings))
    result = run(settings, runtime, toy_stations(Pause(0.002)))
    assert fingerprint(result.weights) == expected
    assert result.ledger.max_staleness == lead


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["threads", "processes"])
def test_load_on_the_machine_does_not_change_a_bit_of_a_pinned_run(runtime: str) -> None:
    settings = settings_for(2, collectors=3, updates=40)
    stop = threading.Event()

    def burn() -> None:
        while not stop.is_set():
            sum(range(1000))

    burners = [threading.Thread(target=burn) for _ in range(3)]
    for burner in burners:
        burner.start()
    try:
        prints = {fingerprint(run(settings, runtime, toy_stations(Pause(0.004))).weights) for _ in range(3)}
    finally:
        stop.set()
        for burner in burners:
            burner.join()
    assert prints == {fingerprint(pinned_loop(settings))}


@pytest.mark.parametrize(("lead", "batch", "every"), [(0.5, 4, 1), (1.5, 2, 1), (1, 2, 3), (0.25, 2, 2)])
def test_fractions_of_a_lead_and_longer_versions_are_pinned_too(lead: float, batch: int, every: int) -> None:
    settings = settings_for(lead, collectors=2, tickets_per_batch=batch, publish_every=every)
    for runtime in ("inline", "threads"):
        result = run(settings, runtime, toy_stations(Pause(0.001)))
        assert fingerprint(result.weights) == fingerprint(pinned_loop(settings))


def test_different_seeds_and_leads_give_different_bits() -> None:
    prints = {fingerprint(run(settings_for(lead, seed=seed)).weights) for lead in (0, 1, 2) for seed in (0, 1)}
    assert len(prints) == 6


@pytest.mark.parametrize("runtime", ["threads", "processes"])
@pytest.mark.parametrize(
    "more",
    [
        {"order": READY},
        {"dispatch": "free"},
        {"order": READY, "max_staleness": 1, "on_stale": OnStale.DROP},
        {"order": READY, "max_staleness": 1, "on_stale": OnStale.REQUEUE},
    ],
    ids=["ready", "free", "drop", "requeue"],
)
def test_a_recorded_free_run_replays_to_the_same_bits(runtime: str, more: dict[str, Any]) -> None:
    settings = settings_for(3, collectors=3, tickets_per_batch=2, **more)
    recorder = MemoryRecorder()
    stations = toy_stations(Pause(0.006))
    result = run(settings, runtime, stations, recorder)
    again = replay(stations, recorder.events)
    assert fingerprint(again.weights) == fingerprint(result.weights)
    assert (again.version, again.updates) == (result.version, result.updates)


def test_a_replay_can_stop_at_a_version() -> None:
    settings = settings_for(2, dispatch="free")
    recorder = MemoryRecorder()
    run(settings, "inline", recorder=recorder)
    early = replay(toy_stations(), recorder.events, until_version=10)
    assert early.version == 10
    assert early.updates == 10


def test_a_log_that_is_not_one_or_has_holes_is_refused() -> None:
    recorder = MemoryRecorder()
    run(settings_for(2), "inline", recorder=recorder)
    with pytest.raises(ReplayError, match="does not begin"):
        replay(toy_stations(), recorder.events[5:])
    holes = [event for event in recorder.events if not (event["e"] == "land" and event["k"] == 7)]
    with pytest.raises(ReplayError, match="refers to 7"):
        replay(toy_stations(), holes)


@pytest.mark.parametrize("lead", [0, 2])
def test_a_pinned_replay_run_is_determined_by_its_seed(lead: int) -> None:
    prints = set()
    for runtime in ("inline", "threads", "threads"):
        stations = toy_stations(Pause(0.002), evaluates=False)
        stations = type(stations)(collector=stations.collector, learner=ToyReplayLearner)
        ratio = ReplayRatio(2, min_size=12, samples_per_update=4, steps_per_ticket=4)
        settings = Settings(plan=Plan(updates=30), max_lead=lead, collectors=2, replay=ratio)
        result = run(settings, runtime, stations)
        assert result.updates == 30
        assert result.ledger.closes
        prints.add(fingerprint(result.weights))
    assert len(prints) == 1


@pytest.mark.parametrize("steps", range(18, 30))
def test_when_a_background_score_comes_does_not_decide_where_a_pinned_run_ends(steps: int) -> None:
    def batches(evaluate_s: float) -> list[Any]:
        place, recorder = Virtual(SteadyWorkload(Constant(1.0), Constant(0.3), Constant(evaluate_s))), MemoryRecorder()
        settings = Settings(
            plan=Plan(steps=steps, evaluate_every=1),
            replay=ReplayRatio(1, min_size=4, samples_per_update=6, steps_per_ticket=4),
            evaluate_in_background=True,
            max_lead=1,
        )
        stations = replace(toy_stations(), learner=partial(ToyReplayLearner, 6))
        place.run(Coordinator(stations, settings, place, recorder=recorder).run())
        return [(event["u"], event["v"]) for event in recorder.events if event["e"] == "learn"]

    ends = {len(batches(0.05 + 0.25 * quarters)) for quarters in range(20)}
    assert len(ends) == 1, ends
