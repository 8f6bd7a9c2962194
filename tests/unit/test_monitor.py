"""A monitor of the user's own, and the statistics of every component at intervals."""

from __future__ import annotations

import inspect
import re
import textwrap
import threading
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from waiting import patient

import headway
from headway.cli import main
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.role_calls import RunFailed
from headway.coordinator.settings import Plan, Settings
from headway.core.types import HEALTH, Rollout, Snapshot, Ticket
from headway.runs.config import ConfigError, RunConfig, read_values
from headway.runs.monitor import Monitor, MonitorThread, StopRun, load_monitor
from headway.runs.monitor_components import component_statistics, statistics_lines
from headway.runtimes.build import build_runtime
from headway.runtimes.virtual import Virtual
from headway.testing.toy_stations import toy_stations
from headway.tools.simulate.workloads import Constant, SteadyWorkload


def collect(weights: Any, ticket: Any) -> Any:
    time.sleep(0.002)
    return np.random.default_rng(ticket.seed).normal(loc=3.0, size=8)


def train(weights: Any, rollouts: Any) -> Any:
    error = rollouts[0].mean() - weights
    return weights + 0.1 * error, {"error": float(abs(error))}


def run(monitor: Any = None, **more: Any) -> Any:
    more = {"updates": 60, "max_lead": 2, "monitor_every_s": 0.02, **more}
    return headway.run(collect, train, weights=0.0, monitor=monitor, **more)


# -- what a monitor sees ----------------------------------------------------------------------------

KNOWN = {
    "trainer": {"global_steps", "processed_samples", "current_param_version", "param_sync_count"},
    "rollouter": {
        "total_generated_samples",
        "dropped_stale_samples",
        "generation_errors",
        "param_sync_requests",
        "sync_failures",
    },
    "freshness": {"avg_sample_age", "max_sample_age", "stale_samples_ratio", "avg_sample_age_s", "max_sample_age_s"},
    "queue": {"queue_size", "queue_bytes", "total_produced", "total_consumed", "dropped_samples"},
}


def test_a_monitor_sees_the_statistics_users_know_at_intervals_and_at_the_end() -> None:
    seen: list[Any] = []
    result = run(seen.append)
    assert len(seen) >= 3
    for statistics in seen:
        assert {group: set(statistics[group]) for group in KNOWN} == KNOWN
        assert {"learner", "collector-0"} <= set(statistics["health"])
    assert [statistics["run"]["state"] for statistics in seen] == [*["running"] * (len(seen) - 1), "ended"]
    steps = [statistics["trainer"]["global_steps"] for statistics in seen]
    assert steps == sorted(steps) and steps[-1] == 60
    last = seen[-1]
    assert last["trainer"]["processed_samples"] == last["queue"]["total_consumed"] == 60
    assert last["freshness"]["max_sample_age"] == result.ledger.max_staleness
    assert last["freshness"]["avg_sample_age_s"] == pytest.approx(result.ledger.mean_age_s)
    assert last["learn"] == result.metrics


def test_a_run_that_fails_is_looked_at_once_more() -> None:
    def broken(weights: Any, ticket: Any) -> Any:
        raise KeyError("x")

    seen: list[Any] = []
    with pytest.raises(RunFailed):
        headway.run(broken, train, weights=0.0, updates=3, monitor=seen.append)
    assert [statistics["run"]["state"] for statistics in seen] == ["failed"]


# -- what a monitor can do --------------------------------------------------------------------------


def test_what_a_monitor_returns_is_an_alarm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fussy(statistics: Any) -> str | None:
        return "too few\nsamples" if statistics["run"]["state"] == "ended" else None

    run(fussy, folder=tmp_path / "run")
    line = "ALARM by fussy: too few samples"
    assert f"headway: {line}\n" in capsys.readouterr().err
    assert line in (tmp_path / "run/run.log").read_text().splitlines()


def test_a_monitor_can_end_the_run_and_it_can_go_on_later(tmp_path: Path) -> None:
    def strict(statistics: Any) -> None:
        if statistics["trainer"]["global_steps"] >= 5:
            raise StopRun("seen enough")

    result = run(strict, updates=100_000, folder=tmp_path)
    assert result.stop_reason == "stopped by the monitor: seen enough"
    assert 5 <= result.updates < 100_000
    again = run(updates=result.updates + 10, folder=tmp_path, resume=True)
    assert again.updates == result.updates + 10
    assert again.ledger.closes


def test_a_monitor_that_raises_is_off_and_the_run_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    looks: list[Any] = []

    def shaky(statistics: Any) -> None:
        looks.append(statistics)
        raise KeyError("no_such_group")

    assert run(shaky).updates == 60
    assert len(looks) == 1
    line = "the monitor shaky is off, the run goes on: it raised KeyError: 'no_such_group'"
    assert capsys.readouterr().err.count(line) == 1


def test_a_slow_monitor_misses_looks_and_holds_up_nothing() -> None:
    began, go_on = threading.Event(), threading.Event()
    looks: list[Any] = []

    def slow(statistics: Any) -> None:
        looks.append(statistics)
        began.set()
        assert go_on.wait(patient(20))

    watch = MonitorThread(slow, lambda why: None)
    watch.look({"look": {"number": 1}})
    assert began.wait(patient(20))
    for number in range(2, 100):
        watch.look({"look": {"number": number}})
    go_on.set()
    watch.end({"look": {"number": 100}})
    assert [look["look"]["number"] for look in looks] == [1, 100]


def test_a_monitor_that_never_returns_does_not_keep_the_run_from_ending() -> None:
    said: list[str] = []
    watch = MonitorThread(lambda statistics: threading.Event().wait(600) and None, lambda why: None, say=said.append,
                  end_within_s=0.05)  # fmt: skip
    watch.look({})
    watch.end({})
    assert said == ["the monitor <lambda> has not ended within 0.05 s"]


# -- by name ----------------------------------------------------------------------------------------


def test_a_monitor_is_found_in_a_file_and_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def look(statistics):\n    return f\"{statistics['trainer']['global_steps']} steps\"\n")
    words = ["run", "functions", "--updates", "8", "--runs", str(tmp_path / "runs"), "--quiet"]
    assert main([*words, "--monitor", f"{file}:look"]) == 0
    assert "headway: ALARM by look: 8 steps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nowhere.py:look", "monitor='nowhere.py:look': monitor file nowhere.py does not exist"),
        ("look", "a monitor function is named module:function or file.py:function, received 'look'"),
        ("no_such_module:look", "monitor module no_such_module cannot be loaded: ModuleNotFoundError"),
        ("math:looks", "unknown function of math 'looks'; "),
        ("math:pi", "math:pi is a float, not a function"),
        ("os.path:join2", "did you mean 'join'?"),
        ("time:time_ns2", "did you mean 'time_ns'?"),
    ],
)
def test_a_monitor_that_cannot_be_loaded_is_refused_in_one_line(spec: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_values(RunConfig, {"updates": 1, "monitor": spec})
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_monitor_must_take_the_statistics(tmp_path: Path) -> None:
    (tmp_path / "three.py").write_text("def look(trainer, rollouter, queue):\n    pass\n")
    with pytest.raises(ValueError, match="must take statistics: missing a required argument: 'rollouter'"):
        load_monitor(f"{tmp_path / 'three.py'}:look")


@pytest.mark.parametrize("is_named", [False, True])
def test_a_monitor_with_two_arguments_is_given_trainer_and_rollouter(is_named: bool, tmp_path: Path) -> None:
    def custom_monitor(trainer_stats: Any, rollouter_stats: Any) -> str:
        return f"{trainer_stats['global_steps']} of {rollouter_stats['total_generated_samples']}"

    file = tmp_path / "mine.py"
    file.write_text(textwrap.dedent(inspect.getsource(custom_monitor).replace(": Any", "").replace(" -> str", "")))
    said: list[str] = []
    monitor = load_monitor(f"{file}:custom_monitor") if is_named else custom_monitor
    thread = MonitorThread(cast(Monitor, monitor), lambda reason: None, say=said.append)
    thread.end({"trainer": {"global_steps": 7}, "rollouter": {"total_generated_samples": 9}})
    assert said == ["ALARM by custom_monitor: 7 of 9"]


@pytest.mark.parametrize("values", [{"monitor_every_s": 0}, {"statistics_every_s": -1}])
def test_intervals_that_cannot_be_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="monitor_every_s must be > 0 and statistics_every_s >= 0, received"):
        headway.run(collect, train, weights=0.0, updates=1, **values)


# -- statistics in the log --------------------------------------------------------------------------


def test_the_log_has_a_block_of_statistics_at_intervals_and_at_the_end(tmp_path: Path) -> None:
    run(folder=tmp_path, statistics_every_s=0.03)
    log = (tmp_path / "run.log").read_text()
    heads = re.findall(r"^[\d-]{10} [\d:]{8} Component Statistics \((\w+) for", log, re.MULTILINE)
    assert len(heads) >= 3
    assert heads[0] == "running" and heads[-1] == "ended"
    assert re.search(r"  trainer: global_steps 60, processed_samples 60, current_param_version 60", log)
    assert re.search(r"  Parameter sync: 60 versions, 0 failed attempts$", log, re.MULTILINE)
    assert re.search(r"  queue: queue_size 0, queue_bytes 0, total_produced 60, total_consumed 60, dropped_sa", log)
    assert re.search(r"  learn: error ", log)
    assert re.search(r"  learner (is|waits)", log)


def test_the_blocks_can_be_left_out(tmp_path: Path) -> None:
    run(folder=tmp_path, statistics_every_s=0)
    assert "Component Statistics" not in (tmp_path / "run.log").read_text()


def test_an_engine_says_how_it_is_with_every_rollout() -> None:
    class Engine:
        def __init__(self, number: int) -> None:
            self._tokens = 0

        def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
            self._tokens += 5
            return Rollout({"seen": np.zeros(16), "ticket": np.zeros(1)}, info={HEALTH: {"tokens": self._tokens}})

    runtime = Virtual(SteadyWorkload(Constant(1.0), Constant(0.1)))
    stations = toy_stations(evaluates=False)
    settings = Settings(plan=Plan(updates=6), collectors=2, max_lead=1)
    coordinator = Coordinator(headway.Stations(collector=Engine, learner=stations.learner), settings, runtime)
    runtime.run(coordinator.run())
    statistics = component_statistics(coordinator, "ended")
    assert set(statistics["engines"]) == {"collector-0", "collector-1"}
    assert statistics["engines"]["collector-0"]["tokens"] == 15
    assert any(line.startswith("  engine of collector-1: tokens 15, sec") for line in statistics_lines(statistics))


def test_retries_of_a_publish_are_counted() -> None:
    class Unsteady:
        def __init__(self) -> None:
            self._calls = 0

        def learn(self, batch: Any) -> Any:
            return headway.LearnReport()

        def snapshot(self) -> Any:
            self._calls += 1
            if self._calls % 2 == 0:
                raise ConnectionError("the link is down")
            return {"weights": np.zeros(16)}

        def state_dict(self) -> Any:
            return {}

        def load_state_dict(self, state: Any) -> None:
            pass

    runtime = build_runtime("inline")
    settings = Settings(plan=Plan(updates=4), max_lead=1, retries=headway.Retries(publish_delay_s=0.0))
    stations = headway.Stations(collector=toy_stations().collector, learner=Unsteady)
    coordinator = Coordinator(stations, settings, runtime)
    runtime.run(coordinator.run())
    assert component_statistics(coordinator)["rollouter"]["param_sync_requests"] == 4 + coordinator.publish_retries
    assert coordinator.publish_retries == 4
