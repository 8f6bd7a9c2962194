"""Targets that are made again: in turn where the seed decides every bit, beside everything else where it does not."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headway.coordinator.checkpoint import CheckpointStore
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.rerun import ReplayError, replay
from headway.coordinator.role_calls import RunFailed
from headway.coordinator.roles import Stations
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Deadlines, Plan, Retries, Settings
from headway.core.protocols import Runtime
from headway.core.rules import ReplayRatio
from headway.core.types import Rollout
from headway.replay.with_replay import WithReplay
from headway.runs.event_log import MemoryRecorder
from headway.runs.fingerprint import fingerprint
from headway.runs.metrics import metrics_of
from headway.runtimes.build import build_runtime
from headway.runtimes.virtual import Fault, Virtual
from headway.testing.replay_fakes import (
    ToyReanalyzer,
    ToyTargets,
    plain_replay_loop,
    toy_reanalysis_stations,
    toy_replay_stations,
)
from headway.testing.toy_stations import Pause, toy_stations
from headway.tools.simulate.workloads import Constant, Exponential, FaultyWorkload, SteadyWorkload

RUNTIMES = ["inline", "threads", "processes"]
RATIO = ReplayRatio(2, min_size=12, samples_per_update=4, steps_per_ticket=4)


def settings_for(lead: float, *, updates: int = 30, save_every: int = 0, **more: Any) -> Settings:
    plan = Plan(updates=updates, save_every=save_every)
    return Settings(plan=plan, max_lead=lead, **{"collectors": 2, "replay": RATIO, "seed": 5, **more})


def run(settings: Settings, runtime: str | Runtime = "inline", stations: Any = None, **more: Any) -> RunResult:
    place = build_runtime(runtime) if isinstance(runtime, str) else runtime
    return place.run(Coordinator(stations or toy_reanalysis_stations(), settings, place, **more).run())


# -- bits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_lead_zero_equals_the_plain_loop_with_reanalysis_in_turn(runtime: str) -> None:
    settings, recorder = settings_for(0), MemoryRecorder()
    result = run(settings, runtime, toy_reanalysis_stations(Pause(0.002)), recorder=recorder)
    assert fingerprint(result.weights) == fingerprint(plain_replay_loop(toy_reanalysis_stations(), settings))
    counts = Counter(event["e"] for event in recorder.events)
    assert counts["work"] == counts["refresh"] == 30


@pytest.mark.parametrize("more", [{}, {"publish_every": 3}])
def test_a_pinned_run_is_determined_by_its_seed_at_any_lead(more: dict[str, Any]) -> None:
    settings = settings_for(2, **more)
    stations = toy_reanalysis_stations(Pause(0.002))
    prints = {fingerprint(run(settings, runtime, stations).weights) for runtime in (*RUNTIMES, "threads")}
    assert len(prints) == 1
    off = Stations(collector=stations.collector, learner=stations.learner, replay=stations.replay)
    assert prints != {fingerprint(run(settings, "inline", off).weights)}, "newer targets must matter"


@pytest.mark.parametrize("lead", [0, 2])
def test_a_replay_inside_the_learner_is_reanalyzed_to_the_same_bits(lead: int) -> None:
    toy = toy_reanalysis_stations()
    inside = Stations(
        collector=toy.collector, learner=partial(WithReplay, toy.learner, ToyTargets), reanalyzer=toy.reanalyzer
    )
    results = [run(settings_for(lead), "threads", stations) for stations in (toy, inside)]
    assert len({fingerprint(result.weights) for result in results}) == 1


@pytest.mark.parametrize("lead", [0, 2])
def test_a_run_resumed_in_the_middle_ends_with_the_same_bits(lead: int, tmp_path: Path) -> None:
    whole = run(settings_for(lead))
    store = CheckpointStore(tmp_path / "checkpoints")
    run(settings_for(lead, updates=13, save_every=4), "threads", checkpoints=store)
    resumed = run(settings_for(lead), "threads", resume=store.load())
    assert fingerprint(resumed.weights) == fingerprint(whole.weights)


@pytest.mark.parametrize("runtime", ["inline", "threads"])
def test_a_recorded_free_run_replays_to_the_same_bits(runtime: str) -> None:
    """Draws, inserts and refreshes come as they come: the log holds in which order the replay was spoken to."""
    recorder = MemoryRecorder()
    stations = toy_reanalysis_stations(Pause(0.004), PauseOnWork(0.003))
    result = run(settings_for(3, collectors=3, dispatch="free"), runtime, stations, recorder=recorder)
    assert any(event["e"] == "refresh" for event in recorder.events), "or nothing was tested"
    again = replay(toy_reanalysis_stations(), recorder.events)
    assert fingerprint(again.weights) == fingerprint(result.weights)
    with pytest.raises(ReplayError, match="no reanalyzer"):
        replay(Stations(collector=stations.collector, learner=stations.learner, replay=ToyTargets), recorder.events)


class PauseOnWork:
    """Takes a while."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, work: Rollout) -> None:
        time.sleep(self._seconds)


# -- beside -------------------------------------------------------------------------------------------


class Slow(SteadyWorkload):
    """Virtual time: an update takes 10 s, a reanalysis 7 s, everything else none."""

    def duration_s(self, role: str, method: str, args: tuple[Any, ...]) -> float:
        return 7.0 if method == "reanalyze_work" else super().duration_s(role, method, args)


def test_a_free_run_reanalyzes_beside_learning_and_a_pinned_one_in_turn() -> None:
    ratio = ReplayRatio(20, min_size=12, samples_per_update=4, steps_per_ticket=4)
    walls = {}
    for dispatch in ("pinned", "free"):
        settings = settings_for(1, updates=20, replay=ratio, dispatch=dispatch)
        walls[dispatch] = run(settings, Virtual(Slow(Constant(0.0), Constant(10.0)))).wall_s
    assert walls == {"pinned": 20 * (10 + 7), "free": 20 * 10}


def test_what_is_reanalyzed_is_counted() -> None:
    recorder = MemoryRecorder()
    settings = settings_for(1, updates=20, dispatch="free")
    result = run(settings, Virtual(Slow(Constant(1.0), Constant(10.0))), recorder=recorder)
    refreshed = [event for event in recorder.events if event["e"] == "refresh"]
    assert result.metrics["rounds"] >= len(refreshed) - 1 > 5
    assert all(event["d"] == 7.0 for event in refreshed)
    look = {"e": "look", "t": refreshed[4]["t"] + 1, "lead": 1, "rss": 0, "spent": {}, "memory": {}}
    events = [event for event in recorder.events if event["t"] <= look["t"]]
    (point,) = [p for p in metrics_of([*events, look]) if "throughput/targets_per_s" in p.values]
    refreshed_until_then = sum(event["n"] for event in refreshed[:5])
    assert point.values["throughput/targets_per_s"] * look["t"] == pytest.approx(refreshed_until_then)


# -- faults -------------------------------------------------------------------------------------------


class DiesOnce:
    """Kills its process at the third work, if nobody has before."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __call__(self, work: Rollout) -> None:
        if work.payload["round"] == 3 and not self._marker.exists():
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("dispatch", ["pinned", "free"])
def test_a_killed_reanalyzer_heals_and_does_its_work_once(dispatch: Any, tmp_path: Path) -> None:
    settings, recorder = settings_for(2, dispatch=dispatch), MemoryRecorder()
    stations = toy_reanalysis_stations(Pause(0.002), DiesOnce(tmp_path / "died"))
    result = run(settings, "processes", stations, recorder=recorder)
    assert result.restarts == 1
    assert result.ledger.closes
    counts = Counter(event["e"] for event in recorder.events)
    assert 0 <= counts["work"] - counts["refresh"] <= 1, "what was given out came back, or the run ended"
    if dispatch == "pinned":
        assert fingerprint(result.weights) == fingerprint(run(settings).weights)


class Raises:
    def __call__(self, work: Rollout) -> None:
        raise ArithmeticError("no tree grows here")


def test_a_reanalyzer_that_raises_ends_the_run_with_one_line() -> None:
    with pytest.raises(RunFailed, match=r"reanalyzer.reanalyze_work: ArithmeticError: no tree grows here$"):
        run(settings_for(1), "threads", toy_reanalysis_stations(None, Raises()))


class WrongKind(ToyReanalyzer):
    def reanalyze(self, snapshot: Any, work: Any) -> Any:
        return {"values": 1}


def test_what_is_no_rollout_is_refused() -> None:
    toy = toy_reanalysis_stations()
    stations = Stations(collector=toy.collector, learner=toy.learner, replay=toy.replay, reanalyzer=WrongKind)
    with pytest.raises(RunFailed, match="reanalyze must return the targets as a Rollout, received dict"):
        run(settings_for(1), "inline", stations)


@pytest.mark.parametrize("stations", [toy_replay_stations(), toy_stations()], ids=["replay", "queue"])
def test_a_reanalyzer_without_a_replay_that_gives_it_work_is_refused(stations: Stations) -> None:
    idle = replace(stations, reanalyzer=toy_reanalysis_stations().reanalyzer)
    settings = settings_for(1) if stations.replay else Settings(plan=Plan(updates=2))
    with pytest.raises(RunFailed, match="a reanalyzer needs a replay that gives it work"):
        run(settings, "inline", idle)


class Mishaps(FaultyWorkload):
    """The reanalyzer's calls may fail too."""

    def __init__(self, seed: int) -> None:
        super().__init__(Exponential(3.0), Exponential(2.0), seed=seed, crash=0.05, hang=0.02, lose=0.05)

    def duration_s(self, role: str, method: str, args: tuple[Any, ...]) -> float:
        return 2.5 if method == "reanalyze_work" else super().duration_s(role, method, args)

    def fault(self, role: str, method: str, args: tuple[Any, ...]) -> Fault | None:
        if method == "reanalyze_work" and self._faults.random() < 0.15:
            return Fault.CRASH if self._faults.random() < 0.7 else Fault.HANG
        if method in ("learn", "insert"):
            return None
        return super().fault(role, method, args)


@pytest.mark.parametrize("dispatch", ["pinned", "free"])
def test_reanalysis_survives_whatever_happens_in_virtual_time(dispatch: Any) -> None:
    quiet = fingerprint(run(settings_for(2, dispatch="pinned")).weights)
    deadlines = Deadlines(collect_s=30.0, learn_s=40.0, start_s=5.0)
    retries = Retries(attempts_on_loss=50, max_restarts=1000, attempts_on_error=50)
    died = 0
    for seed in range(25):
        settings = settings_for(2, dispatch=dispatch, deadlines=deadlines, retries=retries)
        recorder = MemoryRecorder()
        result = run(settings, Virtual(Mishaps(seed)), recorder=recorder)
        assert result.ledger.closes
        assert result.updates == 30
        died += sum(event["e"] == "restart" and event["role"] == "reanalyzer" for event in recorder.events)
        events = [event["e"] for event in recorder.events if event["e"] in ("work", "refresh")]
        assert all(first != second or first == "work" for first, second in itertools.pairwise(events))
        lost = sum(first == second == "work" for first, second in itertools.pairwise(events))
        if dispatch == "pinned" and not lost:
            assert fingerprint(result.weights) == quiet
    assert died > 10
