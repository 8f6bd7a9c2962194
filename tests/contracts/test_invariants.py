"""The invariants of the design, each a test of that name, on every runtime it applies to.

(`lead zero equals the plain loop` is in test_determinism, `resume keeps the bound` in test_resume, and what real
processes do when they are killed in test_real_faults.)
"""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from log_totals import Audit, audit
from waiting import patient, slowness

from headway.coordinator.activities_waits import Stalled
from headway.coordinator.checkpoint import CheckpointStore
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.role_calls import RunFailed
from headway.coordinator.roles import Stations
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Deadlines, Plan, Retries, Settings
from headway.coordinator.tickets_flights import Flights
from headway.core.protocols import Runtime
from headway.core.rules_order import READY, OnStale, window
from headway.core.types import Batch, LearnReport, Rollout, Score, Snapshot, Ticket
from headway.runs.event_log import MemoryRecorder
from headway.runs.fingerprint import fingerprint
from headway.runs.launch_of_functions import run as run_functions
from headway.runtimes.build import build_runtime
from headway.runtimes.virtual import Virtual
from headway.testing.auditor import audit as audit_log
from headway.testing.toy_stations import Pause, ToyCollector, ToyEvaluator, ToyLearner, toy_stations
from headway.tools.simulate.workloads import Constant, FaultyWorkload, Lognormal, SteadyWorkload

RUNTIMES = ["inline", "threads", "processes", "virtual"]


def make(runtime: str, **faults: float) -> Runtime:
    if runtime == "virtual":
        return Virtual(FaultyWorkload(Lognormal(1.0, 1.0), Constant(0.5), Constant(2.0), **faults))
    return build_runtime(runtime)


def run(
    settings: Settings, runtime: str | Runtime, stations: Stations | None = None, **faults: float
) -> tuple[RunResult, Audit]:
    place = make(runtime, **faults) if isinstance(runtime, str) else runtime
    recorder = MemoryRecorder()
    stations = stations or toy_stations(None if place.name == "virtual" else Pause(0.003))
    result = place.run(Coordinator(stations, settings, place, recorder=recorder).run())
    return result, audit(recorder.events)


def free(updates: int = 30, **more: Any) -> Settings:
    more = {"collectors": 3, "max_lead": 2, "tickets_per_batch": 2, "order": READY, **more}
    return Settings(plan=Plan(updates=updates, evaluate_every=10), **more)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_ticket_settles_exactly_once(runtime: str) -> None:
    result, log = run(free(), runtime)
    assert set(log.settled.values()) == {1}
    assert sorted(log.settled) == log.opened
    assert result.ledger.closes
    assert result.ledger.learned == 60
    assert log.learned.total() == 60


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(("lead", "slots"), [(0, 2), (0.5, 3), (2, 6)])
def test_slots_are_never_exceeded(runtime: str, lead: float, slots: int) -> None:
    _, log = run(free(updates=12, max_lead=lead, collectors=4 if runtime != "processes" else 2), runtime)
    assert log.max_live == slots


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_dropping_frees_the_slot(runtime: str) -> None:
    stations = Stations(collector=partial(Sieve, 3), learner=ToyLearner)
    settings = Settings(plan=Plan(updates=12), collectors=2, max_lead=1, dispatch="free")
    result, log = run(settings, runtime, stations)
    assert log.dropped["filtered"] >= 3
    assert result.ledger.learned == 12
    assert log.max_live == 2


class Sieve(ToyCollector):
    """Every n-th ticket carries no signal."""

    def __init__(self, every: int, number: int) -> None:
        super().__init__(number)
        self._every = every

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        rollout = super().collect(ticket, snapshot)
        return Rollout(rollout.payload, filtered=ticket.index % self._every == 0)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_ticket_is_born_with_the_newest_snapshot(runtime: str) -> None:
    _, log = run(free(), runtime)
    assert log.born_late == []
    _, pinned = run(Settings(plan=Plan(updates=20), max_lead=3, collectors=2), runtime)
    assert all(born == max(0, index - 3) for index, born in pinned.births.items())


@pytest.mark.parametrize("on_stale", [OnStale.WAIT, OnStale.DROP, OnStale.REQUEUE])
@pytest.mark.parametrize("seed", range(5))
def test_staleness_is_measured_when_taken_and_never_exceeds_the_limit(on_stale: OnStale, seed: int) -> None:
    """Heavy-tailed rollouts, first come first served: the case where a limit on the count bounds nothing."""
    settings = free(updates=150, collectors=8, max_lead=2, max_staleness=2, on_stale=on_stale, seed=seed)
    place = Virtual(SteadyWorkload(Lognormal(1.0, 3.0), Constant(0.1), seed=seed))
    result, log = run(settings, place)
    assert max(log.staleness) == result.ledger.max_staleness == 2
    unbounded, _ = run(
        free(updates=150, collectors=8, max_lead=2, seed=seed),
        Virtual(SteadyWorkload(Lognormal(1.0, 3.0), Constant(0.1), seed=seed)),
    )
    assert unbounded.ledger.max_staleness > 10
    kept, _ = run(
        free(updates=150, collectors=8, max_lead=2, max_staleness=2, on_stale=OnStale.KEEP, seed=seed),
        Virtual(SteadyWorkload(Lognormal(1.0, 3.0), Constant(0.1), seed=seed)),
    )
    assert kept.ledger.kept_stale > 0
    assert kept.ledger.max_staleness == unbounded.ledger.max_staleness


@pytest.mark.parametrize("width", [1, 4, 16])
def test_a_window_bounds_the_age_by_its_width(width: int) -> None:
    settings = free(updates=300, collectors=8, max_lead=2, order=window(width))
    result, _ = run(settings, Virtual(SteadyWorkload(Lognormal(1.0, 3.0), Constant(0.1))))
    assert settings.staleness_bound == (6 - 1 + width - 1) // 2
    assert result.ledger.max_staleness <= settings.staleness_bound


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_nothing_is_collected_that_can_no_longer_be_learned(runtime: str) -> None:
    result, log = run(free(updates=15, max_lead=4), runtime)
    assert len(log.opened) == 30
    assert result.ledger.returned == 0


@pytest.mark.parametrize("fault", ["crash", "hang", "error"])
def test_a_dead_worker_heals_the_run(fault: str) -> None:
    settings = free(updates=60, retries=Retries(max_restarts=200, attempts_on_loss=20, attempts_on_error=20))
    result, log = run(settings, "virtual", **{fault: 0.2})
    assert log.kinds["reissue"] > 10
    assert (log.kinds["restart"] > 10) == (fault != "error")
    assert result.ledger.learned == 120
    assert set(log.settled.values()) == {1}


def test_a_dead_worker_stops_the_run_when_the_budget_is_used_up() -> None:
    settings = free(retries=Retries(max_restarts=2, attempts_on_loss=100))
    with pytest.raises(RunFailed, match=r"collector-\d\.collect: crashed \(restarted 2 times, max_restarts=2\)"):
        run(settings, "virtual", crash=0.5)
    with pytest.raises(RunFailed, match=r"ticket \d+ at version \d+ .*failed on collector-\d after 3 attempts"):
        run(free(), "virtual", crash=0.9)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("background", [False, True])
def test_the_last_evaluation_is_not_lost(runtime: str, background: bool) -> None:
    settings = free(updates=23, max_lead=1, tickets_per_batch=1, evaluate_in_background=background)
    result, log = run(settings, runtime)
    assert result.scores[-1].version == 23
    assert (23, result.scores[-1].value) in log.scores


class Watchful(ToyEvaluator):
    """Fails if the weights change while it looks at them."""

    def evaluate(self, snapshot: Snapshot, seed: int) -> Score:
        first = float(abs(snapshot.payload["weights"]).sum())
        threading.Event().wait(0.02)
        second = float(abs(snapshot.payload["weights"]).sum())
        if first != second:
            raise AssertionError("the weights changed during an evaluation")
        return Score(snapshot.version, first)


@pytest.mark.parametrize("runtime", ["threads", "processes"])
@pytest.mark.parametrize("background", [False, True])
def test_an_evaluation_sees_one_version(runtime: str, background: bool) -> None:
    toy = toy_stations(Pause(0.002))
    stations = Stations(collector=toy.collector, learner=toy.learner, evaluator=Watchful)
    settings = Settings(plan=Plan(updates=40, evaluate_every=4), max_lead=2, evaluate_in_background=background)
    result, _ = run(settings, runtime, stations)
    assert len(result.scores) >= 3
    assert all(score.error is None for score in result.scores)
    expected, _ = run(settings, "inline", toy)
    by_version = {score.version: score.value for score in expected.scores}
    for score in result.scores:
        if score.version == 40:
            assert score.value == pytest.approx(_sum_of(expected.weights))
    assert by_version


def _sum_of(weights: dict[str, Any]) -> float:
    return float(abs(weights["weights"]).sum())


def test_a_blocking_evaluation_pauses_collection_and_learning() -> None:
    recorder = MemoryRecorder()
    place = Virtual(SteadyWorkload(Constant(1.0), Constant(1.0), Constant(10.0)))
    settings = Settings(plan=Plan(updates=20, evaluate_every=5), max_lead=3, collectors=2)
    place.run(Coordinator(toy_stations(), settings, place, recorder=recorder).run())
    inside = None
    for event in recorder.events:
        if event["e"] == "evaluate":
            inside = event["t"]
        elif event["e"] == "score":
            assert event["t"] == inside + 10.0
            inside = None
        else:
            is_harmless = event["e"] in ("open", "wait") or event.get("r") == "evaluator"
            assert inside is None or event["t"] >= inside + 10.0 or is_harmless, event


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("runtime", ["inline", "threads"])
def test_the_initial_weights_are_evaluated_first_if_asked(runtime: str, background: bool) -> None:
    plan = Plan(updates=6, evaluate_every=3, evaluate_first=True)
    settings = Settings(plan=plan, max_lead=1, evaluate_in_background=background)
    place, recorder = build_runtime(runtime), MemoryRecorder()
    result = place.run(Coordinator(toy_stations(), settings, place, recorder=recorder).run())
    events = recorder.events
    assert [score.version for score in result.scores] in ([0, 3, 6], [0, 6])
    first = next(number for number, event in enumerate(events) if event["e"] == "evaluate")
    opened = next(number for number, event in enumerate(events) if event["e"] == "open")
    assert events[first]["v"] == 0
    assert background or first < opened


@pytest.mark.parametrize("background", [False, True])
def test_a_first_evaluation_may_be_the_only_one(background: bool) -> None:
    settings = Settings(plan=Plan(updates=6, evaluate_first=True), evaluate_in_background=background)
    result, _ = run(settings, "threads", toy_stations())
    assert [score.version for score in result.scores] == [0]


@pytest.mark.parametrize("more", [{}, {"evaluate_in_background": True}, {"publish_every": 2}], ids=str)
def test_an_evaluate_function_without_an_interval_scores_the_last_version_once(more: dict[str, Any]) -> None:
    seen: list[int] = []

    def evaluate(weights: int) -> float:
        seen.append(weights)
        return 7.0

    def train(weights: int, rollouts: list[int]) -> int:
        return weights + 1

    result = run_functions(lambda weights, ticket: 1, train, evaluate, weights=0, updates=5, **more)
    assert seen == [5]
    assert [(score.version, score.value) for score in result.scores] == [(result.version, 7.0)]


def test_without_evaluations_no_evaluator_is_built() -> None:
    built: list[str] = []

    def evaluator() -> ToyEvaluator:
        built.append("evaluator")
        return ToyEvaluator()

    toy = toy_stations()
    stations = Stations(collector=toy.collector, learner=toy.learner, evaluator=evaluator)
    for plan, times in (({}, 0), ({"evaluate_first": True}, 1), ({"evaluate_every": 9}, 2)):
        run(Settings(plan=Plan(updates=3, **plan)), "inline", stations)
        assert len(built) == times, plan


def test_a_slow_background_evaluation_delays_the_next_and_is_never_cancelled() -> None:
    recorder = MemoryRecorder()
    place = Virtual(SteadyWorkload(Constant(1.0), Constant(1.0), Constant(7.0)))
    settings = Settings(plan=Plan(updates=20, evaluate_every=2), max_lead=2, evaluate_in_background=True)
    result = place.run(Coordinator(toy_stations(), settings, place, recorder=recorder).run())
    begun = [event["v"] for event in recorder.events if event["e"] == "evaluate"]
    assert begun == [score.version for score in result.scores], "everything begun was finished"
    assert result.evaluations_skipped == 10 - len(begun)
    assert result.evaluations_skipped > 3
    assert begun[-1] == 20
    assert result.wall_s < 20 + 1 + 3 * 7, "learning did not wait for evaluations"


@pytest.mark.parametrize("background", [False, True])
def test_a_target_score_ends_the_run(background: bool) -> None:
    place = Virtual(SteadyWorkload(Constant(1.0), Constant(1.0), Constant(0.5)))
    settings = Settings(
        plan=Plan(target_score=12, evaluate_every=3),
        max_lead=1,
        order=READY,
        evaluate_in_background=background,
    )
    stations = Stations(collector=toy_stations().collector, learner=ToyLearner, evaluator=Counting)
    result = place.run(Coordinator(stations, settings, place).run())
    assert result.stop_reason == "reached a score of 12 (target 12)"
    assert (result.version, result.scores[-1].version) == (12, 12)
    assert result.updates == 12 if not background else result.updates in (12, 13)
    assert result.is_complete


class Counting:
    def evaluate(self, snapshot: Snapshot, seed: int) -> Score:
        return Score(snapshot.version, float(snapshot.version))


@pytest.mark.parametrize("evaluate_s", [0.1, 2.9, 50.0])
def test_a_pinned_run_stops_at_the_same_version_however_long_evaluations_take(evaluate_s: float) -> None:
    place = Virtual(SteadyWorkload(Constant(1.0), Constant(1.0), Constant(evaluate_s)))
    settings = Settings(plan=Plan(target_score=9, evaluate_every=3), max_lead=2, evaluate_in_background=True)
    stations = Stations(collector=toy_stations().collector, learner=ToyLearner, evaluator=Counting)
    recorder = MemoryRecorder()
    result = place.run(Coordinator(stations, settings, place, recorder=recorder).run())
    assert not audit_log(recorder.events, result={"version": result.version, "stop_reason": result.stop_reason})
    assert result.updates == 12, "the score of version 9 is looked at when the next evaluation is due"
    assert [score.version for score in result.scores] == [3, 6, 9]
    at_nine, _ = run(Settings(plan=Plan(updates=9), max_lead=2), Virtual(SteadyWorkload(Constant(1.0), Constant(1.0))))
    assert result.version == 9 and fingerprint(result.weights) == fingerprint(at_nine.weights)


def test_a_run_that_reached_its_target_ends_with_those_weights_again_when_resumed(tmp_path: Path) -> None:
    def session(**more: Any) -> RunResult:
        place = Virtual(SteadyWorkload(Constant(1.0), Constant(1.0), Constant(2.5)))
        plan = Plan(target_score=9, evaluate_every=3)
        settings = Settings(plan=plan, max_lead=1, order=READY, evaluate_in_background=True)
        stations = Stations(collector=toy_stations().collector, learner=ToyLearner, evaluator=Counting)
        store = CheckpointStore(tmp_path)
        return place.run(Coordinator(stations, settings, place, checkpoints=store, **more).run())

    first = session()
    again = session(resume=CheckpointStore(tmp_path).load())
    assert first.version == again.version == 9 < first.updates
    assert first.stop_reason == again.stop_reason == "reached a score of 9 (target 9)"
    assert fingerprint(first.weights) == fingerprint(again.weights)
    assert [score.version for score in first.scores] == [score.version for score in again.scores] == [3, 6, 9]


def test_every_wait_has_a_deadline_and_can_say_what_it_waits_for() -> None:
    """Rollouts take longer than the learner may wait for one: the run says who waited for whom."""
    place = Virtual(SteadyWorkload(Constant(100.0), Constant(1.0)))
    settings = Settings(plan=Plan(updates=10), max_lead=2, deadlines=Deadlines(data_s=50))
    with pytest.raises(Stalled) as caught:
        run(settings, place)
    text = str(caught.value)
    assert "learner waits for the rollout of ticket 0 (order=oldest) (since 50.0 s, at most 50 s)" in text
    assert "collector-0 is busy: collect, ticket 0 at version 0 (since 50.0 s, at most 600 s)" in text


def test_even_a_bug_in_the_coordinator_ends_with_an_explanation(monkeypatch: pytest.MonkeyPatch) -> None:
    """It loses rollouts: the kind of bug that deadlines are for."""
    monkeypatch.setattr(Flights, "land", lambda self, ticket, snapshot, rollout, now: None)
    place = Virtual(SteadyWorkload(Constant(1.0), Constant(1.0)))
    settings = Settings(plan=Plan(updates=10), max_lead=2)
    with pytest.raises(Stalled, match="collector-0 waits for a ticket: all 3 slots of max_lead=2 are occupied"):
        place.run(Coordinator(toy_stations(), settings, place).run())


@pytest.mark.parametrize("runtime", ["threads", "processes", "virtual"])
def test_times_of_every_role_add_up_to_the_wall_clock(runtime: str) -> None:
    place = make(runtime)
    recorder = MemoryRecorder()
    coordinator = Coordinator(
        toy_stations(None if runtime == "virtual" else Pause(0.003)),
        free(evaluate_in_background=True),
        place,
        recorder=recorder,
    )
    result = place.run(coordinator.run())
    began, ended = recorder.events[0]["t"], recorder.events[-1]["t"]
    nearly = 1e-3 if runtime == "virtual" else 0.05 * slowness()  # of real clocks, which are read one after the other
    for role, spent in result.time_spent.seconds.items():
        assert sum(spent.values()) <= ended - began + nearly, role
        if role != "evaluator":
            assert sum(spent.values()) == pytest.approx(ended - began, rel=nearly, abs=nearly), role


class Misbehaves(ToyCollector):
    def __init__(self, how: str, number: int) -> None:
        super().__init__(number)
        self._how = how

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Any:
        if ticket.index < 4:
            return super().collect(ticket, snapshot)
        if self._how == "raises":
            raise KeyError("reward")
        if self._how == "wrong":
            return {"reward": 1.0}
        threading.Event().wait()
        return None


LINES = {
    "raises": r"ticket 4 at version 3 failed on collector-0: KeyError: 'reward'",
    "wrong": r"ticket 4 at version 3 failed on collector-0: TypeError: collect must return a Rollout, received dict",
    "hangs": r"ticket 4 at version 3 .*failed on collector-0 after 2 attempts: no answer within [\d.]+ s",
}


@pytest.mark.parametrize(
    ("runtime", "how"),
    [
        (runtime, how)
        for runtime in ("inline", "threads", "processes")
        for how in LINES
        if (runtime, how) != ("inline", "hangs")  # which cannot interrupt a call
    ],
)
def test_a_collector_that_misbehaves_ends_the_run_with_one_clear_line(runtime: str, how: str) -> None:
    stations = Stations(collector=partial(Misbehaves, how), learner=ToyLearner)
    settings = Settings(
        plan=Plan(updates=20),
        max_lead=1,
        deadlines=Deadlines(collect_s=patient(0.2)),
        retries=Retries(attempts_on_loss=2),
    )
    with pytest.raises(RunFailed, match=LINES[how]) as caught:
        run(settings, runtime, stations)
    assert "\n" not in str(caught.value)


class BadLearner(ToyLearner):
    def __init__(self, how: str) -> None:
        super().__init__()
        self._how = how

    def learn(self, batch: Batch) -> Any:
        if batch.version < 3:
            return super().learn(batch)
        if self._how == "raises":
            raise FloatingPointError("loss is nan")
        return LearnReport() if self._how == "mute" else None

    def snapshot(self) -> Any:
        if self._how == "mute" and len(self._trained) >= 3:
            raise ConnectionError("no route")
        return super().snapshot()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raises", r"^learner\.learn: FloatingPointError: loss is nan$"),
        ("wrong", r"^learner\.learn: TypeError: learn must return a LearnReport, received NoneType$"),
        ("mute", r"^version 3 could not be published in 4 attempts: ConnectionError: no route$"),
    ],
)
def test_a_learner_that_fails_ends_the_run_with_one_clear_line(how: str, message: str) -> None:
    stations = Stations(collector=toy_stations().collector, learner=partial(BadLearner, how))
    with pytest.raises(RunFailed, match=message):
        run(Settings(plan=Plan(updates=20), max_lead=1), "virtual", stations)


def test_an_evaluation_that_fails_is_recorded_and_the_run_goes_on() -> None:
    stations = Stations(collector=toy_stations().collector, learner=ToyLearner, evaluator=Moody)
    result, _ = run(Settings(plan=Plan(updates=8, evaluate_every=2), max_lead=1), "virtual", stations)
    assert [(score.version, score.value) for score in result.scores] == [(2, 2.0), (4, None), (6, 6.0), (8, None)]
    assert result.scores[1].error == "RuntimeError: the arena is closed"
    assert result.updates == 8


class Moody:
    def evaluate(self, snapshot: Snapshot, seed: int) -> float:
        if snapshot.version % 4 == 0:
            raise RuntimeError("the arena is closed")
        return float(snapshot.version)


def test_warm_up_pacing_and_wall_time_are_kept() -> None:
    place = Virtual(SteadyWorkload(Constant(1.0), Constant(0.5)))
    recorder = MemoryRecorder()
    settings = Settings(plan=Plan(wall_s=50, warmup_s=6), max_lead=8, pacing_s=4.0, dispatch="free")
    result = place.run(Coordinator(toy_stations(), settings, place, recorder=recorder).run())
    starts = [event["t"] for event in recorder.events if event["e"] == "start"]
    assert starts[:4] == [0.0, 4.0, 8.0, 12.0]
    assert next(event["t"] for event in recorder.events if event["e"] == "learn") == 6.5
    assert result.stop_reason == "reached 50 seconds"
    assert result.wall_s == pytest.approx(50.5, abs=0.5)


@pytest.mark.parametrize("background", [False, True])
def test_a_run_that_ends_by_the_clock_has_time_for_its_last_evaluation(background: bool) -> None:
    place = Virtual(SteadyWorkload(Constant(1.0), Constant(1.0), Constant(37.0)))
    plan = Plan(wall_s=150, evaluate_every=20)
    settings = Settings(plan=plan, max_lead=1, evaluate_in_background=background)
    recorder = MemoryRecorder()
    result = place.run(Coordinator(toy_stations(), settings, place, recorder=recorder).run())
    assert not audit_log(recorder.events, result={"version": result.version, "stop_reason": result.stop_reason})
    assert result.stop_reason == "reached 150 seconds"
    assert result.scores[-1].version == result.version and len(result.scores) > 1
    assert 100 < result.wall_s < 155


def test_steps_end_a_run_and_capacity_bounds_the_buffer() -> None:
    result, log = run(
        Settings(plan=Plan(steps=100), max_lead=8, queue_capacity=3, dispatch="free", collectors=4), "virtual"
    )
    assert 100 <= result.ledger.steps < 107 + 7
    assert log.max_live <= 4, "three in the buffer or on their way, one with the learner"


def test_an_auto_lead_grows_until_the_learner_stops_waiting_and_no_further() -> None:
    settings = Settings(plan=Plan(updates=600), max_lead="auto", collectors=8, order=READY, max_staleness=None)
    place = Virtual(SteadyWorkload(Constant(4.0), Constant(1.0)))
    result, log = run(settings, place)
    assert log.kinds["lead"] >= 2
    assert 3 <= result.lead <= 6, "eight collectors of 4 s feed a learner of 1 s with a lead of about 4"
    spent = result.time_spent
    assert spent.total("learner", "data") / result.wall_s < 0.1


def test_stopping_by_request_returns_what_is_in_flight() -> None:
    place = Virtual(SteadyWorkload(Constant(3.0), Constant(1.0)))
    settings = Settings(plan=Plan(updates=100), max_lead=4, collectors=3)
    coordinator = Coordinator(toy_stations(), settings, place)

    async def main() -> RunResult:
        asyncio.get_running_loop().call_later(20.0, coordinator.request_stop)
        return await coordinator.run()

    result = place.run(main())
    assert result.stop_reason == "interrupted"
    assert not result.is_complete
    assert result.ledger.returned > 0
    assert result.ledger.closes
