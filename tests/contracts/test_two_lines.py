"""Runs with two lines: each with its own ledger, lead, versions and learner; rollouts are collected once for both."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import pickle
import random
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import patient, wait_until

from headway.coordinator.checkpoint import CheckpointError, CheckpointStore, RunState
from headway.coordinator.checkpoint_best_weights import BestWeights, kept_weights
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.rerun import ReplayError, replay
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Plan, Retries, Settings
from headway.coordinator.settings_line_settings import LineSettings
from headway.core.events_written_events import as_event
from headway.core.history import RunHistory
from headway.core.protocols import PayloadLost, Runtime
from headway.core.rules import ReplayRatio
from headway.core.rules_order import READY, OnStale
from headway.core.types import Batch, Ticket
from headway.runs.event_log import MemoryRecorder
from headway.runs.files_run_summary import statistics_rows
from headway.runs.fingerprint import fingerprint
from headway.runs.folder import RunFolder
from headway.runs.launch_session import launch
from headway.runtimes.build import build_runtime
from headway.runtimes.virtual import Virtual
from headway.testing.auditor import Terms, audit
from headway.testing.two_lines import SECOND, PairEvaluator, plain_two_line_loop, two_line_stations
from headway.tools.report.advice import advise, bottleneck
from headway.tools.report.recorded_run_run_history import read_story, tell
from headway.tools.report.report import document
from headway.tools.report.report_texts import Seen
from headway.tools.report.status import read_end_status, read_whole_status
from headway.tools.report.time_report import account
from headway.tools.report.timeline_trace import trace_events
from headway.tools.report.what_if_fitting import fit
from headway.tools.simulate.simulation import compare
from headway.tools.simulate.workloads import Constant, Exponential, FaultyWorkload, SteadyWorkload

RAY = pytest.param("ray", marks=pytest.mark.slow)
RUNTIMES = ["inline", "threads", "processes", RAY]


def settings_for(
    leads: tuple[float, float] = (2, 1), *, updates: int = 24, second: dict[str, Any] | None = None, **more: Any
) -> Settings:
    """Two learners of different pace: the first trains on two rollouts at a time, the second on three."""
    line = LineSettings(**{"max_lead": leads[1], "tickets_per_batch": 3, "publish_every": 2, **(second or {})})
    plan = more.pop("plan", Plan(updates=updates))
    options = {"collectors": 3, "tickets_per_batch": 2, "seed": 5, **more}
    return Settings(plan=plan, max_lead=leads[0], lines={SECOND: line}, **options)


def run(settings: Settings, runtime: str | Runtime = "inline", stations: Any = None, **options: Any) -> RunResult:
    place = build_runtime(runtime) if isinstance(runtime, str) else runtime
    coordinator = Coordinator(stations or two_line_stations(), settings, place, **options)
    return place.run(coordinator.run())


def bits(result: RunResult) -> tuple[str, str]:
    return fingerprint(result.weights), fingerprint(result.lines[SECOND].weights)


# -- (0, 0) is the plain loop -------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("every", [1, 2, 3])
def test_lead_zero_in_both_lines_equals_the_plain_loop_with_two_learners(runtime: str, every: int) -> None:
    plan = Plan(updates=18, evaluate_every=4)
    settings = settings_for((0, 0), plan=plan, second={"every": every, "tickets_per_batch": 2})
    first, second, scores = plain_two_line_loop(settings)
    result = run(settings, runtime)
    assert bits(result) == (fingerprint(first), fingerprint(second))
    assert [score.value for score in result.scores[: len(scores)]] == [score.value for score in scores]
    assert result.ledger.max_staleness == result.lines[SECOND].ledger.max_staleness == 0


@pytest.mark.parametrize("paces", [((1, 1), (4, 1)), ((4, 1), (1, 1)), ((2, 3), (3, 2))])
def test_the_plain_loop_is_met_whichever_line_is_the_slower_one(paces: tuple[tuple[int, int], tuple[int, int]]) -> None:
    (batch, publish), (second_batch, second_publish) = paces
    second = {"tickets_per_batch": second_batch, "publish_every": second_publish}
    settings = settings_for((0, 0), updates=12, second=second, tickets_per_batch=batch, publish_every=publish)
    first, other, _ = plain_two_line_loop(settings)
    assert bits(run(settings)) == (fingerprint(first), fingerprint(other))


# -- pinned -------------------------------------------------------------------------------------------


class SlowNowAndThen:
    """Takes a moment on some tickets or batches, others each time a run is made."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, what: Ticket | Batch) -> None:
        key = what.index if isinstance(what, Ticket) else what.version
        if (key * 7 + time.perf_counter_ns()) % 3 == 0:
            time.sleep(self._seconds)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("leads", [(2, 1), (1, 0), (0, 2), (0.5, 3)])
def test_a_pinned_run_is_the_same_on_every_runtime_however_long_anything_takes(
    leads: tuple[float, float], every: int
) -> None:
    settings = settings_for(leads, second={"every": every})
    assert settings.is_pinned
    expected = bits(run(settings))
    slow = SlowNowAndThen(0.004)
    for stations in (
        two_line_stations(),
        two_line_stations(collect=slow),
        two_line_stations(learn=slow),
        two_line_stations(learn_second=slow),
    ):
        assert bits(run(settings, "threads", stations)) == expected
    assert bits(run(settings, "processes")) == expected


@pytest.mark.slow
@pytest.mark.parametrize("leads", [(2, 1), (0, 2)])
def test_a_pinned_run_is_the_same_on_ray(leads: tuple[float, float]) -> None:
    settings = settings_for(leads, second={"every": 2})
    assert bits(run(settings, "ray")) == bits(run(settings))


@pytest.mark.parametrize("runtime", ["threads", "processes", RAY])
def test_collectors_that_hold_weights_get_those_of_both_lines(runtime: str) -> None:
    settings = settings_for((2, 1))
    assert bits(run(settings, runtime, two_line_stations(holds_weights=True))) == bits(run(settings))


def test_the_version_of_every_line_is_a_function_of_the_ticket() -> None:
    def versions(workload: Any) -> dict[int, tuple[int, int]]:
        recorder = MemoryRecorder()
        run(settings_for((2, 1)), Virtual(workload), recorder=recorder)
        starts = [event for event in recorder.events if event["e"] == "start"]
        return {event["k"]: (event["v"], event["others"][SECOND]) for event in starts}

    expected = versions(SteadyWorkload(Constant(1.0), Constant(0.1)))
    for seed in range(5):
        workload = FaultyWorkload(Exponential(2.0), Exponential(1.0), seed=seed)
        assert versions(workload) == expected


def test_scores_of_a_pinned_run_do_not_depend_on_timing() -> None:
    settings = settings_for((2, 1), plan=Plan(updates=24, evaluate_every=3))
    expected = run(settings).scores
    assert len(expected) >= 4
    slow = SlowNowAndThen(0.004)
    for stations in (two_line_stations(learn=slow), two_line_stations(learn_second=slow)):
        assert run(settings, "threads", stations).scores == expected


# -- both ledgers close, neither bound is exceeded ------------------------------------------------------


@pytest.mark.parametrize("dispatch", ["pinned", "free"])
@pytest.mark.parametrize("leads", [(0, 0), (2, 1), (1, 3)])
def test_both_ledgers_close_and_neither_bound_is_exceeded(leads: tuple[float, float], dispatch: Any) -> None:
    for seed in range(6):
        settings = settings_for(leads, dispatch=dispatch if leads != (0, 0) else None, seed=seed)
        result = run(settings, Virtual(FaultyWorkload(Exponential(2.0), Exponential(1.0), seed=seed)))
        second = result.lines[SECOND]
        assert result.ledger.closes
        assert second.ledger.closes
        assert result.ledger.max_staleness <= leads[0]
        assert second.ledger.max_staleness <= leads[1]
        assert result.updates == 24
        assert second.updates == 16, "48 rollouts, three at a time"
        assert (result.ledger.learned, second.ledger.learned) == (48, 48)


def test_a_line_may_drop_what_the_other_learns_from() -> None:
    """Each has its own ticket for the same rollout."""
    second = {"order": READY, "max_staleness": 0, "on_stale": OnStale.DROP, "tickets_per_batch": 1, "publish_every": 1}
    settings = settings_for((3, 2), second=second, updates=30)
    result = run(settings, Virtual(FaultyWorkload(Exponential(3.0), Exponential(1.0), seed=3)))
    dropped = result.lines[SECOND].ledger.dropped
    assert dropped["stale"] > 0
    assert result.ledger.dropped == {}
    assert result.ledger.learned == 60
    assert result.lines[SECOND].ledger.closes


def test_the_faster_line_waits_for_the_slower_one_and_why_says_so() -> None:
    """Nothing takes off that the slower line has no slot for."""
    settings = settings_for((4, 0), updates=12)
    place = Virtual(SteadyWorkload(Constant(1.0), Constant(0.1)))
    seen: list[str] = []

    coordinator = Coordinator(two_line_stations(), settings, place, when_begun=lambda: seen.append(coordinator.why()))
    place.run(coordinator.run())
    assert "line second: version 0, update 0, lead 0:" in seen[0]
    assert seen[0].startswith("version 0, update 0, lead 4:")


@pytest.mark.parametrize("runtime", ["inline", "threads"])
def test_a_second_line_may_keep_a_replay(runtime: str) -> None:
    second = {"replay": ReplayRatio(2.0, min_size=8, slack=16), "tickets_per_batch": 1, "publish_every": 2}
    settings = settings_for((2, 2), second=second)
    result = run(settings, runtime, two_line_stations(replays=True))
    assert result.lines[SECOND].updates > 5
    assert result.lines[SECOND].ledger.closes
    assert bits(result) == bits(run(settings, "inline", two_line_stations(replays=True)))


# -- surviving ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("leads", [(0, 0), (2, 1), (1, 2)])
def test_a_run_with_two_lines_that_was_interrupted_goes_on_to_the_same_bits(
    leads: tuple[float, float], every: int, tmp_path: Path
) -> None:
    settings = settings_for(leads, plan=Plan(updates=24, evaluate_every=5), second={"every": every})
    expected = run(settings)
    store = CheckpointStore(tmp_path)
    for at in (3, 8, 14, 19):
        stops = StopsAt(at)
        place = Virtual(FaultyWorkload(Exponential(2.0), Exponential(1.0), seed=at))
        resume = store.load() if store.all() else None
        coordinator = Coordinator(two_line_stations(learn=stops), settings, place, checkpoints=store, resume=resume)
        stops.stop = coordinator.request_stop
        assert not place.run(coordinator.run()).is_complete
    result = run(settings, "threads", checkpoints=store, resume=store.load())
    assert bits(result) == bits(expected)
    assert result.scores == expected.scores
    assert result.ledger.learned == expected.ledger.learned
    assert result.lines[SECOND].ledger.learned == expected.lines[SECOND].ledger.learned


class StopsAt:
    """Asks the run to stop in an update at this version."""

    def __init__(self, version: int) -> None:
        self._version = version
        self.stop: Any = None

    def __call__(self, batch: Batch) -> None:
        if batch.version == self._version:
            self.stop()


def test_a_checkpoint_with_two_lines_is_not_resumed_with_one(tmp_path: Path) -> None:
    settings = settings_for((1, 1), plan=Plan(updates=4, save_every=2))
    store = CheckpointStore(tmp_path)
    run(settings, checkpoints=store)
    other = settings_for((1, 1), plan=Plan(updates=8), second={"tickets_per_batch": 2})
    with pytest.raises(CheckpointError, match="the checkpoint was written with lines="):
        run(other, checkpoints=store, resume=store.load())


@pytest.mark.parametrize("dispatch", ["pinned", "free"])
def test_crashes_hangs_and_losses_cost_nothing_in_either_line(dispatch: Any) -> None:
    for seed in range(12):
        retries = Retries(attempts_on_loss=50, attempts_on_error=50, max_restarts=1000, publish_attempts=50)
        settings = settings_for((2, 1), dispatch=dispatch, retries=retries, second={"every": 1 + seed % 3})
        workload = FaultyWorkload(Exponential(2.0), Exponential(1.0), seed=seed, crash=0.05, hang=0.02, lose=0.05)
        result = run(settings, Virtual(workload))
        assert result.ledger.closes
        assert result.lines[SECOND].ledger.closes
        assert result.ledger.learned == 48
        assert result.lines[SECOND].ledger.max_staleness <= 1 + 2, "a lost rollout is collected again by newer weights"


class LateLosses(Virtual):
    """The first rollout of the first update of these learners is lost, which each finds out in its own time."""

    def __init__(self, learn_s: dict[str, float], losers: set[str]) -> None:
        super().__init__(SteadyWorkload(Constant(1.0), Constant(0.1)))
        self._learn_s = learn_s
        self._losers = losers

    async def call(self, role: str, method: str, *args: Any, deadline_s: float) -> Any:
        if method == "learn" and role in self._learn_s:
            await asyncio.sleep(self._learn_s[role])
            if role in self._losers:
                self._losers.remove(role)
                tickets = [args[0].rollouts[0].ticket]
                raise PayloadLost(role, method, f"ticket {tickets[0]} is gone", tickets=tickets)
        return await super().call(role, method, *args, deadline_s=deadline_s)


LOSSES = {
    "both at once": ({"learner": 1.0, "second/learner": 1.0}, {"learner", "second/learner"}),
    "the second later": ({"learner": 0.1, "second/learner": 0.5}, {"learner", "second/learner"}),
    "the first later": ({"learner": 0.5, "second/learner": 0.1}, {"learner", "second/learner"}),
    "the second when it is here again": ({"learner": 0.1, "second/learner": 9.0}, {"learner", "second/learner"}),
    "the first alone": ({"learner": 1.0, "second/learner": 0.5}, {"learner"}),
    "the second alone": ({"learner": 0.5, "second/learner": 1.0}, {"second/learner"}),
}


@pytest.mark.parametrize("dispatch", ["pinned", "free"])
@pytest.mark.parametrize("losses", LOSSES)
def test_a_rollout_that_is_lost_is_collected_again_for_every_line_that_lost_it(losses: str, dispatch: Any) -> None:
    """The learners find out one after the other: who is late waits for the flight that is under way."""
    learn_s, losers = LOSSES[losses]
    recorder = MemoryRecorder()
    settings = settings_for((2, 2), dispatch=dispatch, updates=12, second={"tickets_per_batch": 2}, collectors=8)
    result = run(settings, LateLosses(learn_s, set(losers)), recorder=recorder)
    ledgers = {"": result.ledger, SECOND: result.lines[SECOND].ledger}
    assert all(ledger.closes for ledger in ledgers.values())
    assert {name: ledger.learned for name, ledger in ledgers.items()} == {"": 24, SECOND: 24}
    lost = {event.get("line", "") for event in recorder.events if event["e"] == "lose"}
    assert lost == {role.removesuffix("learner").rstrip("/") for role in losers}
    assert audit(recorder.events, Terms(updates=12, may_lose_payloads=True)) == []
    again = replay(two_line_stations(), recorder.events)
    assert (fingerprint(again.weights), fingerprint(again.lines[SECOND].weights)) == bits(result)
    history = RunHistory()
    for event in recorder.events:
        history.apply(as_event(event))
    assert {name: line.counts["learned"] for name, line in history.lines.items()} == {"": 24, SECOND: 24}
    assert {tuple(line.sizes[1:]) for line in history.lines.values()} == {(0, 0, 0)}, "some may be open"


def test_a_checkpoint_has_nothing_that_a_line_has_taken_and_not_learned_from(tmp_path: Path) -> None:
    """The second learner may be ready for an update while the first one saves the run."""
    settings = settings_for((3, 3), plan=Plan(updates=24, save_every=1), second={"tickets_per_batch": 1})
    taken: list[set[int]] = []

    class Store(CheckpointStore):
        def save(self, state: RunState) -> Path:
            assert state.lines is not None
            second = state.lines[SECOND]
            taken.append({entry["index"] for entry in second.ledger["live"] if entry["taken"]})
            assert len(taken[-1]) == second.updates_in_version
            return super().save(state)

    for seed in range(4):
        place = Virtual(FaultyWorkload(Exponential(1.0), Exponential(1.0), seed=seed))
        run(settings, place, checkpoints=Store(tmp_path / str(seed)))
    assert any(taken), "some were saved in the middle of a version of the second line"


def test_what_a_checkpoint_holds_does_not_change_while_it_is_written(tmp_path: Path) -> None:
    """Rollouts land meanwhile."""
    written = 0

    class SlowStore(CheckpointStore):
        def save(self, state: RunState) -> Path:
            nonlocal written
            before = pickle.dumps((state.companions, state.lines, state.ledger, sorted(state.rollouts)))
            time.sleep(0.03)
            assert pickle.dumps((state.companions, state.lines, state.ledger, sorted(state.rollouts))) == before
            written += 1
            return super().save(state)

    settings = settings_for((4, 4), plan=Plan(updates=16, save_every=1), second={"every": 3})
    run(settings, "threads", two_line_stations(collect=TakesAMoment(0.002)), checkpoints=SlowStore(tmp_path))
    assert written >= 16


@pytest.mark.parametrize("dispatch", ["pinned", "free"])
@pytest.mark.parametrize("every", [1, 2])
def test_a_recorded_run_is_done_again_to_the_same_bits_in_both_lines(dispatch: Any, every: int) -> None:
    recorder = MemoryRecorder()
    settings = settings_for((2, 1), dispatch=dispatch, second={"every": every})
    result = run(settings, "threads", two_line_stations(collect=SlowNowAndThen(0.004)), recorder=recorder)
    again = replay(two_line_stations(), recorder.events)
    assert (fingerprint(again.weights), fingerprint(again.lines[SECOND].weights)) == bits(result)
    assert (again.updates, again.lines[SECOND].updates) == (24, result.lines[SECOND].updates)
    with pytest.raises(ReplayError, match="the log has a line 'second', and the stations have none of that name"):
        replay(replace(two_line_stations(), lines={}), recorder.events)


@pytest.mark.parametrize("dispatch", ["pinned", "free"])
def test_the_auditor_finds_nothing_wrong_in_either_line(dispatch: Any) -> None:
    for seed in range(8):
        recorder = MemoryRecorder()
        retries = Retries(attempts_on_loss=50, attempts_on_error=50, max_restarts=1000, publish_attempts=50)
        settings = settings_for((2, 1), dispatch=dispatch, retries=retries, second={"every": 1 + seed % 3}, seed=seed)
        workload = FaultyWorkload(Exponential(2.0), Exponential(1.0), seed=seed, crash=0.05, hang=0.02)
        run(settings, Virtual(workload), recorder=recorder)
        assert audit(recorder.events) == []


def test_the_auditor_sees_a_line_that_exceeds_its_own_bound() -> None:
    recorder = MemoryRecorder()
    run(settings_for((2, 1), updates=12), recorder=recorder)
    events = [dict(event) for event in recorder.events]
    events[0]["lines"][SECOND]["max_lead"] = 0
    events[0]["lines"][SECOND]["staleness_bound"] = 0
    broken = {violation.rule for violation in audit(events)}
    assert "slots" in broken


def test_metrics_of_the_other_line_have_its_name_before_them() -> None:
    last: dict[str, float] = {}

    class Keep:
        def write(self, moment: Any, values: Any) -> None:
            last.update(values)

        def close(self) -> None:
            pass

    result = launch(two_line_stations(), settings_for((2, 1)), sinks=[Keep()], metrics_interval_s=0.0)
    assert last["run/version"] == result.version
    assert last["second/run/version"] == result.lines[SECOND].version
    assert last["second/tickets/learned"] == result.lines[SECOND].ledger.learned
    assert last["second/staleness/max"] <= 1


# -- what is seen of it -----------------------------------------------------------------------------------


class TakesAMoment:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, what: Ticket | Batch) -> None:
        time.sleep(self._seconds)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose second line is the slower one: each of its updates takes as long as four of the first."""
    path = tmp_path_factory.mktemp("recorded") / "run"
    second = {"tickets_per_batch": 1, "publish_every": 1, "max_lead": 0}
    settings = settings_for((3, 0), plan=Plan(updates=20, save_every=10), second=second, tickets_per_batch=1)
    stations = two_line_stations(learn_second=TakesAMoment(0.02))
    launch(stations, settings, runtime="threads", folder=RunFolder(path), metrics_interval_s=0.05)
    return path


def test_status_has_a_line_for_each_line(recorded: Path) -> None:
    whole, end = read_whole_status(RunFolder(recorded)), read_end_status(RunFolder(recorded))
    assert end is not None
    for status in (whole.status, end.status):
        (second,) = status.lines
        assert (second.name, second.updates, second.version, second.lead) == (SECOND, 20, 20, 0.0)
        assert status.line().splitlines()[1].startswith("line second: update 20, version 20, lead 0, staleness 0.00")


def test_the_summary_of_a_run_has_its_lines(recorded: Path) -> None:
    second = json.loads((recorded / "summary.json").read_text())["lines"][SECOND]
    assert (second["updates"], second["version"], second["lead"], second["staleness"]) == (20, 20, 0, {"0": 20})
    assert second["tickets"]["learned"] == 20


def test_a_line_has_one_role_in_the_story_the_trace_and_the_metrics(recorded: Path) -> None:
    story = read_story(recorded)
    assert [role for role in story.roles if "learner" in role] == ["learner", "second/learner"]
    last = json.loads((recorded / "metrics.jsonl").read_text().splitlines()[-1])
    assert {"second/busy/learner", "second/waiting/learner", "second/run/lead"} <= last.keys()
    tracks = {e["args"]["name"] for e in trace_events(story) if e.get("name") == "thread_name"}
    assert {"learner", "second/learner", "version", "version of second"} <= tracks


def test_doctor_says_which_line_holds_collection_back(recorded: Path) -> None:
    story = read_story(recorded)
    found = {finding.about: finding for finding in advise(story, account(story))}
    assert "Line second holds collection back" in found["another line"].title
    assert "lead too small" not in found, "that of the first line has nothing to do with it"


def test_doctor_says_what_the_other_learner_does_and_what_its_line_throws_away(recorded: Path) -> None:
    story = read_story(recorded)
    assert "; second/learner worked " in bottleneck(story, account(story))
    second = {"order": READY, "max_staleness": 0, "on_stale": OnStale.DROP, "tickets_per_batch": 1, "publish_every": 1}
    recorder = MemoryRecorder()
    place = Virtual(FaultyWorkload(Exponential(3.0), Exponential(1.0), seed=3))
    run(settings_for((3, 2), second=second, updates=30), place, recorder=recorder)
    dropping = tell(recorder.events)
    found = {finding.about: finding for finding in advise(dropping, account(dropping))}
    assert found["drops of another line"].title == "Line second throws rollouts away for their age"


def test_a_fitted_simulation_has_the_lines_of_the_run(recorded: Path) -> None:
    workshop = fit(read_story(recorded))
    assert workshop.lines[SECOND].settings.max_lead == 0
    outcomes = compare(workshop, [0, 3])
    for outcome in outcomes:
        assert outcome.lines[SECOND].staleness_max == 0
        assert outcome.updates_per_s < 60, "no faster than the second line, which takes 20 ms for an update"


def test_a_report_has_a_section_for_the_lines(recorded: Path) -> None:
    story = read_story(recorded)
    told = document([Seen("run", story, account(story))])["runs"][0]["lines"]
    assert [(line["name"], line["updates"], line["lead"]) for line in told] == [("first line", 20, 3), (SECOND, 20, 0)]


KILLED = """
import sys, time
from pathlib import Path
from headway.coordinator.settings_line_settings import LineSettings
from headway.coordinator.settings import Plan, Settings
from headway.runs.launch_session import launch
from headway.runs.fingerprint import fingerprint
from headway.runs.folder import RunFolder
from headway.testing.auditor import audit
from headway.testing.two_lines import SECOND, two_line_stations

def take_a_moment(what):
    time.sleep(0.004)

if __name__ == "__main__":
    folder, runtime = Path(sys.argv[1]), sys.argv[2]
    second = LineSettings(max_lead=1, tickets_per_batch=3, publish_every=2, every=2)
    settings = Settings(plan=Plan(updates=90, save_every=2), max_lead=2, collectors=2, seed=3, lines={SECOND: second})
    stations = two_line_stations(collect=take_a_moment, learn=take_a_moment, learn_second=take_a_moment)
    result = launch(stations, settings, runtime=runtime, folder=RunFolder(folder), resume=folder.exists())
    second = result.lines[SECOND]
    print(fingerprint(result.weights), fingerprint(second.weights), result.ledger.learned, second.ledger.learned)
"""


@pytest.mark.parametrize("runtime", ["threads", "processes", RAY])
def test_kill_nine_then_resume_is_exact_in_both_lines(runtime: str, tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    whole = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "whole"), "inline"], check=True, capture_output=True, text=True
    )
    folder = tmp_path / "killed"
    rng = random.Random(os.urandom(8))
    kills = 0
    for attempt in itertools.count():
        command = [sys.executable, str(script), str(folder), runtime]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if attempt < 3:
            wait_until(partial(has_saved, folder, attempt, process), 60, "a checkpoint")
            try:
                process.wait(rng.uniform(0.0, 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                kills += 1
                process.communicate()
                continue
        output, errors = process.communicate(timeout=patient(100))
        assert process.returncode == 0, errors
        break
    assert kills >= 1
    assert output == whole.stdout
    assert output.split()[2:] == ["90", "45"]


def has_saved(folder: Path, number: int, process: subprocess.Popen[str]) -> bool:
    """Is there a checkpoint later than this one, or will there be none?"""
    saved = max((int(path.name[:6]) for path in folder.glob("checkpoints/0*")), default=-1)
    return saved > number or process.poll() is not None


# -- what cannot work -------------------------------------------------------------------------------------


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="on_stale='requeue' in line 'second'"):
        settings_for((2, 1), second={"max_staleness": 1, "on_stale": OnStale.REQUEUE})
    with pytest.raises(ValueError, match="a line is named like a variable, received 'a b'"):
        Settings(plan=Plan(updates=1), lines={"a b": LineSettings()})
    with pytest.raises(ValueError, match="the first line takes every rollout, received every=2"):
        Settings(plan=Plan(updates=1), every=2)
    with pytest.raises(ValueError, match=r"the settings have the lines \[\], the stations \['second'\]"):
        Coordinator(two_line_stations(), Settings(plan=Plan(updates=1)), build_runtime("inline"))


def test_a_dispatch_that_one_line_makes_impossible_is_free() -> None:
    assert settings_for((2, 1)).is_pinned
    assert not settings_for((2, 1), second={"order": READY}).is_pinned
    assert settings_for((0, 0), dispatch="free").is_pinned
    assert np.isfinite(settings_for((2, 1)).patience_s)


def test_a_checkpoint_is_looked_at_together_with_the_other_line(recorded: Path) -> None:
    state = CheckpointStore(recorded / "checkpoints").load()
    assert state.companions is not None
    kept = kept_weights(recorded / "checkpoints")
    beside = state.companions[1][SECOND]
    assert kept.snapshot.others[SECOND].version == beside
    assert kept.title() == f"version {kept.version} with {SECOND} {beside}"
    assert state.lines is not None
    whole = state.lines[SECOND].snapshots[beside]
    assert fingerprint(kept.snapshot.others[SECOND].payload) == fingerprint(whole)


def test_the_best_weights_are_kept_together_with_those_of_the_other_line(tmp_path: Path) -> None:
    best, settings = BestWeights(tmp_path), settings_for((2, 1), plan=Plan(updates=24, evaluate_every=3))
    result = run(settings, "threads", best=best)
    kept = kept_weights(tmp_path, "best")
    score = next(score for score in result.scores if score.version == kept.version)
    assert kept.snapshot.others[SECOND].version == score.metrics[SECOND]
    again = PairEvaluator().evaluate(kept.snapshot, 0)
    assert again.value == score.value == max(score.value for score in result.scores if score.value is not None)


def test_the_statistics_at_the_end_have_rows_for_each_line() -> None:
    result = run(settings_for((2, 1), second={"every": 2}))
    rows = statistics_rows(result)
    second = result.lines[SECOND]
    assert rows["Train iterations"] == "24"
    assert rows["Line second, train iterations"] == f"{second.updates} (version {second.version}, of one in 2 rollouts)"
    assert rows["Line second, lead / order"] == "1 / oldest"
    assert rows["Line second, dropped"] == "none"
    assert rows["Line second, staleness mean / max"].endswith(f"/ {second.ledger.max_staleness}")
