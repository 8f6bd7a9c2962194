"""A run that was interrupted and resumed is the run that was not."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from log_totals import audit
from waiting import patient, wait_until

from headway.cli import main
from headway.coordinator.checkpoint import CheckpointError, CheckpointStore
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Plan, Settings
from headway.core.rules import ReplayRatio
from headway.core.rules_order import READY
from headway.runs.event_log import EventLog, read_events
from headway.runs.fingerprint import fingerprint
from headway.runs.folder import RunFolder
from headway.runs.launch_session import launch
from headway.runs.log_file import Mark
from headway.runs.log_parts import go_on_at
from headway.runtimes.build import build_runtime
from headway.runtimes.virtual import Virtual
from headway.testing.toy_stations import Pause, ToyLearner, ToyReplayLearner, pinned_loop, toy_stations
from headway.tools.simulate.workloads import Constant, Lognormal, SteadyWorkload


def session(
    folder: Path, settings: Settings, runtime: str, *, stop_after: int | None = None, stations: Any = None
) -> RunResult:
    """One session of a run: from its last checkpoint, if there is one, to its end or to an interruption."""
    place = (
        Virtual(SteadyWorkload(Lognormal(1.0, 1.0), Constant(0.5), Constant(2.0)))
        if runtime == "virtual"
        else build_runtime(runtime)
    )
    store = CheckpointStore(folder / "checkpoints")
    state = store.load() if store.all() else None
    if state is not None:
        go_on_at(folder / "events.jsonl", state.events_position, None)
    log = EventLog(folder / "events.jsonl")
    stopper = StopAfter(stop_after)
    coordinator = Coordinator(
        stations or toy_stations(None if runtime == "virtual" else Pause(0.002)),
        settings,
        place,
        recorder=Stopping(log, stopper),
        checkpoints=store,
        resume=state,
    )
    stopper.coordinator = coordinator
    return place.run(coordinator.run())


class StopAfter:
    def __init__(self, updates: int | None) -> None:
        self.updates = updates
        self.coordinator: Coordinator | None = None


class Stopping:
    """An event log that asks for a stop when an update is recorded."""

    def __init__(self, log: EventLog, stopper: StopAfter) -> None:
        self._log = log
        self._stopper = stopper

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        self._log.record(time_s, kind, fields)
        if kind == "learn" and fields["u"] == self._stopper.updates:
            assert self._stopper.coordinator is not None
            self._stopper.coordinator.request_stop()

    def mark(self) -> Mark:
        return self._log.mark()

    def close(self) -> None:
        self._log.close()


class GoingOnInWhatItWasGiven(ToyLearner):
    """As optimizers do that take over the tensors of their state."""

    def load_state_dict(self, state: Any) -> None:
        self._weights, self._momentum, self._trained = state["weights"], state["momentum"], state["trained"]


@pytest.mark.parametrize("runtime", ["inline", "threads"])
def test_a_loaded_state_can_be_resumed_from_more_than_once(tmp_path: Path, runtime: str) -> None:
    settings = Settings(plan=Plan(updates=12, save_every=4), max_lead=1)
    stations = replace(toy_stations(None), learner=GoingOnInWhatItWasGiven)
    session(tmp_path, settings, runtime, stop_after=6, stations=stations)
    state = CheckpointStore(tmp_path / "checkpoints").load()
    ends = []
    for _ in range(2):
        place = build_runtime(runtime)
        ends.append(fingerprint(place.run(Coordinator(stations, settings, place, resume=state).run()).weights))
    assert ends == [fingerprint(pinned_loop(settings))] * 2


@pytest.mark.parametrize("runtime", ["inline", "threads", "virtual"])
@pytest.mark.parametrize(
    ("lead", "batch", "every"), [(0, 1, 1), (0, 2, 3), (1, 1, 1), (2, 2, 1), (4, 1, 2), (0.5, 4, 1)]
)
def test_a_pinned_run_interrupted_twice_ends_with_the_same_bits(
    tmp_path: Path, runtime: str, lead: float, batch: int, every: int
) -> None:
    settings = Settings(
        plan=Plan(updates=24, evaluate_every=6, save_every=5),
        max_lead=lead,
        collectors=3,
        tickets_per_batch=batch,
        publish_every=every,
    )
    for stop_after in (7, 16):
        result = session(tmp_path, settings, runtime, stop_after=stop_after)
        assert result.stop_reason == "interrupted"
        assert result.updates == stop_after
    result = session(tmp_path, settings, runtime)
    assert result.updates == 24
    assert fingerprint(result.weights) == fingerprint(pinned_loop(settings))
    seen = audit(read_events(tmp_path / "events.jsonl"))
    assert sorted(seen.learned) == list(range(24 * batch))
    assert set(seen.learned.values()) == {1}
    assert [score.version for score in result.scores] == [
        *(v for v in range(1, result.version + 1) if v % 6 == 0),
        *([result.version] if result.version % 6 else []),
    ]


@pytest.mark.parametrize("runtime", ["threads", "virtual", "processes"])
def test_resume_keeps_the_bound(tmp_path: Path, runtime: str) -> None:
    settings = Settings(
        plan=Plan(updates=30, evaluate_every=7), max_lead=2, collectors=3, tickets_per_batch=2, order=READY
    )
    for stop_after in (4, 9, 20):
        session(tmp_path, settings, runtime, stop_after=stop_after)
    result = session(tmp_path, settings, runtime)
    seen = audit(read_events(tmp_path / "events.jsonl"))
    assert seen.max_live <= 6
    assert sorted(seen.learned) == seen.opened == list(range(60))
    assert set(seen.learned.values()) == {1}
    assert result.ledger.closes
    assert result.ledger.opened == result.ledger.learned == 60


def test_a_replay_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    ratio = ReplayRatio(2, min_size=12, samples_per_update=4, steps_per_ticket=4)
    settings = Settings(plan=Plan(updates=20), max_lead=1, collectors=2, replay=ratio)
    toy = toy_stations(evaluates=False)
    stations = type(toy)(collector=toy.collector, learner=SavingReplayLearner)
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole = session(tmp_path / "whole", settings, "inline", stations=stations)
    session(tmp_path / "parts", settings, "inline", stop_after=8, stations=stations)
    parts = session(tmp_path / "parts", settings, "inline", stations=stations)
    assert fingerprint(parts.weights) == fingerprint(whole.weights)


class SavingReplayLearner(ToyReplayLearner):
    def state_dict(self) -> Any:
        return {**super().state_dict(), "kept": self._kept, "random": self._random.bit_generator.state}

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        self._kept = list(state["kept"])
        self._random.bit_generator.state = state["random"]


@pytest.mark.parametrize(("name", "value"), [("seed", 1), ("tickets_per_batch", 2), ("collectors", 2), ("max_lead", 3)])
def test_what_decides_which_tickets_exist_cannot_change_in_the_middle(tmp_path: Path, name: str, value: int) -> None:
    first = {"max_lead": 1, "seed": 0}
    session(tmp_path, Settings(plan=Plan(updates=10), **first), "inline", stop_after=4)
    with pytest.raises(CheckpointError, match=rf"written with {name}=\d+; it cannot be resumed with {name}={value}"):
        session(tmp_path, Settings(plan=Plan(updates=10), **{**first, name: value}), "inline")


@pytest.mark.parametrize("runtime", ["virtual", "inline"])
def test_a_signal_in_the_middle_of_an_update_saves_the_run_and_resume_goes_on(tmp_path: Path, runtime: str) -> None:
    class Signalled(ToyLearner):
        def learn(self, batch: Any) -> Any:
            if len(self._trained) == 6 and not (tmp_path / "was-there").exists():
                (tmp_path / "was-there").touch()
                signal.raise_signal(signal.SIGINT)
            return super().learn(batch)

    def go_on(resume: bool) -> RunResult:
        place = (
            Virtual(SteadyWorkload(Constant(1.0), Constant(0.5))) if runtime == "virtual" else build_runtime(runtime)
        )
        stations = replace(toy_stations(None), learner=Signalled)
        return launch(stations, settings, runtime=place, folder=RunFolder(tmp_path / "run"), resume=resume)

    settings = Settings(plan=Plan(updates=12), max_lead=2)
    first = go_on(False)
    assert first.stop_reason == "interrupted by SIGINT" and first.updates < 12
    again = go_on(True)
    assert (again.updates, again.ledger.closes) == (12, True)
    assert fingerprint({"weights": again.weights["weights"]}) == fingerprint(
        {"weights": pinned_loop(settings)["weights"]}
    )


def test_an_evaluation_under_way_when_the_run_is_interrupted_is_done_on_resume(tmp_path: Path) -> None:
    settings = Settings(plan=Plan(updates=12, evaluate_every=4), max_lead=1, evaluate_in_background=True)
    first = session(tmp_path, settings, "virtual", stop_after=5)
    assert first.scores == ()
    second = session(tmp_path, settings, "virtual")
    assert [score.version for score in second.scores] == [4, 8, 12]


@pytest.mark.parametrize("background", [True, False])
def test_an_evaluation_under_way_is_left_if_evaluations_are_turned_off_for_the_rest(
    background: bool, tmp_path: Path
) -> None:
    evaluating = Settings(plan=Plan(updates=12, evaluate_every=4), max_lead=1, evaluate_in_background=True)
    session(tmp_path, evaluating, "virtual", stop_after=5)
    off = Settings(plan=Plan(updates=12), max_lead=1, evaluate_in_background=background)
    result = session(tmp_path, off, "virtual")
    assert (result.updates, result.scores) == (12, ())


@pytest.mark.parametrize("stop_at", [7, 8])
@pytest.mark.parametrize("lead", [0, 1])
def test_a_finished_run_can_be_resumed_with_a_longer_plan(tmp_path: Path, stop_at: int, lead: int) -> None:
    """Without a lead it is the longer run. With one, the shorter run did not collect ahead of its own end."""

    def plan(updates: int) -> Settings:
        return Settings(plan=Plan(updates=updates, evaluate_every=2), max_lead=lead, collectors=2, publish_every=3)

    short = session(tmp_path, plan(stop_at), "inline")
    assert short.is_complete
    assert short.scores[-1].version == short.version
    longer = session(tmp_path, plan(17), "inline")
    assert longer.updates == 17
    assert longer.ledger.max_staleness <= lead
    if lead == 0:
        assert fingerprint(longer.weights) == fingerprint(pinned_loop(plan(17)))


# -- kill -9 of the whole run -------------------------------------------------------------------------


def command(root: Path, *more: str) -> list[str]:
    options = ["--collect_ms", "3", "--train_ms", "3", "--evaluate_ms", "1", "--save_every", "4"]
    return [sys.executable, "-m", "headway.cli", "run", "functions", "--runs", str(root), *options, *more]


@pytest.mark.parametrize(("runtime", "dispatch"), [("threads", "pinned"), ("threads", "free"), ("processes", "pinned")])
def test_kill_nine_at_random_moments_then_resume_loses_and_repeats_nothing(
    tmp_path: Path, runtime: str, dispatch: str
) -> None:
    rng = random.Random(os.urandom(8))
    more = ["--updates", "150", "--collectors", "2", "--max_lead", "2", "--dispatch", dispatch, "--quiet"]
    process = subprocess.Popen(command(tmp_path, *more, "--runtime", runtime), stdout=subprocess.DEVNULL)

    def is_saved() -> bool:
        assert process.poll() is None
        return any(tmp_path.glob("*/checkpoints/*/manifest.json"))

    wait_until(is_saved, 60, "a checkpoint")
    run = next(tmp_path.glob("*/checkpoints/*/manifest.json")).parents[2]
    kills = 0
    for _ in range(2):
        try:
            process.wait(rng.uniform(0.0, 0.4))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
        process = subprocess.Popen(
            [sys.executable, "-m", "headway.cli", "resume", str(run), "--quiet"], stdout=subprocess.DEVNULL
        )
        time.sleep(rng.uniform(0.0, 1.0))  # not to hide a race: to land the next kill anywhere, start-up included
    assert process.wait(timeout=patient(100)) == 0
    assert kills >= 1
    seen = audit(read_events(run / "events.jsonl"))
    assert sorted(seen.learned) == list(range(150))
    assert set(seen.learned.values()) == {1}
    summary = json.loads((run / "summary.json").read_text())
    assert summary["complete"]
    if dispatch == "pinned":
        assert main(["run", "functions", "--runs", str(tmp_path / "whole"), *more, *command(tmp_path)[7:]]) == 0
        whole = json.loads(next((tmp_path / "whole").glob("*/summary.json")).read_text())
        assert summary["fingerprint"] == whole["fingerprint"]
