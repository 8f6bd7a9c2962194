"""An evaluation that takes long keeps nobody: an interruption abandons it, and a resumed run makes up for it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headway.coordinator.checkpoint import CheckpointStore
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Plan, Settings
from headway.core.types import Score, Snapshot
from headway.runs.event_log import MemoryRecorder
from headway.runs.files_run_summary import statistics_rows
from headway.runs.fingerprint import fingerprint
from headway.runs.launch_of_functions import run
from headway.runtimes.build import build_runtime
from headway.runtimes.virtual import Virtual
from headway.testing.toy_stations import ToyEvaluator, pinned_loop, toy_stations
from headway.tools.simulate.workloads import Constant, SteadyWorkload

pytestmark = pytest.mark.timeout(60)
NEVER = 1e9
every_runtime = pytest.mark.parametrize("runtime", ["threads", "processes", "virtual"])


class Endless(ToyEvaluator):
    """Never comes to an end with one version, or with any."""

    def __init__(self, version: int | None = None) -> None:
        self._version = version

    def evaluate(self, snapshot: Snapshot, seed: int) -> Score:
        if self._version in (None, snapshot.version):
            threading.Event().wait()
        return super().evaluate(snapshot, seed)


class Interrupting(MemoryRecorder):
    """Asks for a stop as soon as the evaluation of a version has begun."""

    def __init__(self, version: int) -> None:
        super().__init__()
        self._version = version
        self.coordinator: Coordinator | None = None

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        super().record(time_s, kind, fields)
        if (kind, fields.get("v")) == ("evaluate", self._version) and self.coordinator is not None:
            self._soon(self._soon, self.coordinator.request_stop)  # two turns later: the call is under way then

    @staticmethod
    def _soon(callback: Callable[..., Any], *args: Any) -> None:
        asyncio.get_running_loop().call_soon(callback, *args)


def run_interrupted(runtime: str, plan: Plan, version: int, store: CheckpointStore | None, **more: Any) -> RunResult:
    workload = SteadyWorkload(Constant(1.0), Constant(1.0), Constant(NEVER))
    place = Virtual(workload) if runtime == "virtual" else build_runtime(runtime)
    stations = toy_stations()
    if runtime != "virtual":
        stations = toy_stations(evaluates=False)
        stations = type(stations)(stations.collector, stations.learner, partial(Endless, version))
    recorder = Interrupting(version)
    settings = Settings(plan=plan, max_lead=1, **more)
    coordinator = Coordinator(stations, settings, place, recorder=recorder, checkpoints=store)
    recorder.coordinator = coordinator
    return place.run(coordinator.run())


@every_runtime
@pytest.mark.parametrize("background", [False, True])
def test_an_interruption_abandons_an_evaluation_in_the_middle_of_a_run(
    tmp_path: Path, runtime: str, background: bool
) -> None:
    plan, store = Plan(updates=1000, evaluate_every=4), CheckpointStore(tmp_path)
    result = run_interrupted(runtime, plan, 4, store, evaluate_in_background=background)
    assert not result.is_complete
    assert 4 in result.evaluations_abandoned
    assert result.updates >= 4
    assert statistics_rows(result)["Last score"].startswith("- (that of version 4 was abandoned")
    settings = Settings(plan=Plan(updates=result.updates + 4, evaluate_every=4), max_lead=1)
    place = build_runtime("inline")
    again = place.run(Coordinator(toy_stations(), settings, place, checkpoints=store, resume=store.load()).run())
    assert again.scores[0].version == 4, "a resumed run makes up for it"
    assert fingerprint(again.weights) == fingerprint(pinned_loop(settings))


@every_runtime
@pytest.mark.parametrize("background", [False, True])
def test_the_evaluation_of_the_last_version_can_be_abandoned_too(
    tmp_path: Path, runtime: str, background: bool
) -> None:
    plan, store = Plan(updates=6, evaluate_every=100), CheckpointStore(tmp_path)
    result = run_interrupted(runtime, plan, 6, store, evaluate_in_background=background)
    assert result.stop_reason == "reached 6 updates"
    assert result.evaluations_abandoned == (6,)
    assert statistics_rows(result)["Evaluations"] == "0, 1 abandoned"
    assert statistics_rows(result)["Last score"] == "- (that of version 6 was abandoned)"
    place = build_runtime("inline")
    coordinator = Coordinator(toy_stations(), Settings(plan=plan, max_lead=1), place, resume=store.load())
    assert [score.version for score in place.run(coordinator.run()).scores] == [6]


@every_runtime
def test_the_evaluation_of_the_first_weights_can_be_abandoned_too(runtime: str) -> None:
    result = run_interrupted(runtime, Plan(updates=6, evaluate_first=True), 0, None)
    assert (result.updates, result.evaluations_abandoned) == (0, (0,))


def test_a_second_evaluation_does_not_begin_when_the_first_was_abandoned() -> None:
    plan = Plan(updates=1000, evaluate_every=1)
    result = run_interrupted("threads", plan, 1, None, evaluate_in_background=True)
    assert result.scores == ()
    assert result.evaluations_abandoned[0] == 1


# -- what is said of it -------------------------------------------------------------------------------


def _collect(weights: int, ticket: Any) -> int:
    return ticket.index


def _train(weights: int, rollouts: list[int]) -> int:
    return weights + 1


def score_row(evaluate: Callable[[int], float], **more: Any) -> str:
    result = run(_collect, _train, evaluate, weights=0, updates=4, runtime="inline", **more)
    return statistics_rows(result)["Last score"]


def test_the_reason_for_a_missing_score_is_in_the_statistics() -> None:
    def fails(weights: int) -> float:
        raise ValueError("the arena is closed\nfor today")

    def fails_at_last(weights: int) -> float:
        return fails(weights) if weights == 4 else weights

    assert score_row(fails) == "- (that of version 4 failed: ValueError: the arena is closed)"
    row = score_row(fails_at_last, evaluate_every=2)
    assert row == "2.000 (that of version 4 failed: ValueError: the arena is closed)"
    assert score_row(float) == "4.000"
    result = run(_collect, _train, fails, weights=0, updates=4, evaluate_every=1, runtime="inline")
    assert statistics_rows(result)["Evaluations"] == "4, 4 failed"


def test_a_terminated_run_of_an_endless_environment_ends_and_says_so(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    words = ["run", "ppo", "--env", "CliffWalking-v1", "--updates", "1", "--evaluate_every", "1", "--num_envs", "2"]
    words += ["--segment_steps", "4", "--eval_max_steps", "1000000000", "--runs", str(tmp_path), "--quiet"]
    command = [sys.executable, "-m", "headway", *words, "--statistics_every_s", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while not any('"e":"evaluate"' in path.read_text() for path in tmp_path.glob("*/events.jsonl")):
            assert process.poll() is None, process.communicate()
            threading.Event().wait(0.1)
        process.terminate()
        out, err = process.communicate(timeout=45)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert "Last score: - (that of version 1 was abandoned)" in out


def test_episodes_that_were_cut_are_counted_and_shown() -> None:
    pytest.importorskip("gymnasium")
    from headway.ppo.recipe_ppo import PPOConfig, stations

    more: dict[str, Any] = {"num_envs": 2, "segment_steps": 4, "eval_episodes": 3, "eval_max_steps": 12}
    config = PPOConfig(env="CliffWalking-v1", updates=1, evaluate_every=1, runtime="inline", **more)
    place = build_runtime(config.runtime)
    result = place.run(Coordinator(stations(config), config.settings(), place).run())
    (score,) = result.scores
    assert score.metrics["cut_episodes"] == 3
    assert statistics_rows(result)["Last score"].endswith("(3 of 3 episodes were cut)")
