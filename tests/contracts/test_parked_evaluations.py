"""A blocking evaluation that parks what is in flight: it goes on afterwards, late for nobody, the same bits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from waiting import patient

from headway.coordinator.coordinator import Coordinator
from headway.coordinator.role_calls import RunFailed
from headway.coordinator.roles import Stations
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Deadlines, Plan, Retries, Settings
from headway.core.protocols import Runtime
from headway.core.types import Rollout, Score, Snapshot, Ticket
from headway.runs.event_log import MemoryRecorder
from headway.runs.fingerprint import fingerprint
from headway.runtimes.build import build_runtime
from headway.runtimes.virtual import Fault, Virtual
from headway.testing.auditor import audit
from headway.testing.toy_stations import ToyEngine, ToyEvaluator, ToyLearner, engine_stations, pinned_loop
from headway.tools.report.recorded_run_run_history import tell

PATIENCE_S = 20.0


class PausableEngine(ToyEngine):
    """Works in small steps, none of which begins while it is paused."""

    def __init__(self, number: int, steps: int = 0) -> None:
        super().__init__(number)
        self._steps = steps
        self._may_go_on = threading.Event()
        self._may_go_on.set()

    def pause(self) -> None:
        self._may_go_on.clear()

    def resume(self) -> None:
        self._may_go_on.set()

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        for _ in range(self._steps * (1 + ticket.index % 3)):
            if not self._may_go_on.wait(patient(PATIENCE_S)):
                raise TimeoutError("nobody let me go on")
            time.sleep(0.002)
        return super().collect(ticket, snapshot)


class SlowEvaluator(ToyEvaluator):
    """Takes so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def evaluate(self, snapshot: Snapshot, seed: int) -> Score:
        time.sleep(self._seconds)
        return super().evaluate(snapshot, seed)


def stations(steps: int = 0, evaluator: Callable[[], Any] = ToyEvaluator) -> Stations:
    return Stations(partial(PausableEngine, steps=steps), ToyLearner, evaluator)


def settings_for(*, updates: int = 6, every: int = 2, **more: Any) -> Settings:
    plan = Plan(updates=updates, evaluate_every=every)
    given = {"max_lead": 1, "lanes": 4, "tickets_per_batch": 2, "evaluation_waits_for": "parked", "seed": 3}
    return Settings(plan=plan, **{**given, **more})


def run(settings: Settings, runtime: str | Runtime, given: Stations) -> tuple[RunResult, list[dict[str, Any]]]:
    place = build_runtime(runtime) if isinstance(runtime, str) else runtime
    recorder = MemoryRecorder()
    result = place.run(Coordinator(given, settings, place, recorder=recorder).run())
    return result, recorder.events


def parked_over(events: list[dict[str, Any]]) -> set[int]:
    """The tickets that were in flight when an evaluation began, and still when it ended."""
    in_flight: set[int] = set()
    before: set[int] = set()
    found: set[int] = set()
    for event in events:
        if event["e"] == "start":
            in_flight.add(event["k"])
        elif event["e"] in ("land", "reissue"):
            in_flight.discard(event["k"])
        elif event["e"] == "evaluate":
            before = set(in_flight)
        elif event["e"] == "score":
            found |= before & in_flight
    return found


class Durations:
    """A workload of constant durations, and perhaps one collect call that never ends."""

    def __init__(self, hangs: int = -1, /, **seconds: float) -> None:
        self._hangs = hangs
        self._seconds = seconds

    def duration_s(self, role: str, method: str, args: tuple[Any, ...]) -> float:
        return self._seconds.get(method, 0.0)

    def fault(self, role: str, method: str, args: tuple[Any, ...]) -> Fault | None:
        is_it = method == "collect" and args[0].index == self._hangs and not args[0].attempt
        return Fault.HANG if is_it else None


@pytest.mark.parametrize("runtime", ["inline", "threads", "processes"])
def test_a_parked_evaluation_changes_no_bit(runtime: str) -> None:
    settings = settings_for()
    result, events = run(settings, runtime, stations(steps=4))
    assert fingerprint(result.weights) == fingerprint(pinned_loop(settings, ToyEngine))
    assert [score.version for score in result.scores] == [2, 4, 6]
    assert not audit(events)
    if runtime != "inline":  # where a call runs to its end before anything else happens
        assert parked_over(events)


def test_an_evaluation_does_not_wait_for_long_rollouts_in_virtual_time() -> None:
    runtime = Virtual(Durations(collect=100.0, learn=1.0, evaluate=5.0))
    settings = settings_for(updates=4, every=1, tickets_per_batch=1, max_lead=2, lanes=3, dispatch="free")
    _, events = run(settings, runtime, stations())
    asked = {event["v"]: event["t"] for event in events if event["e"] == "publish"}
    began = {event["v"]: event["t"] for event in events if event["e"] == "evaluate"}
    assert all(began[version] == asked[version] for version in (1, 2, 3))
    assert parked_over(events)
    assert not audit(events)


def test_time_in_which_a_call_is_parked_does_not_count_against_its_deadline() -> None:
    """Collecting takes 25 seconds and may take 26; what an evaluation of 50 seconds overlaps is in flight for 75."""
    seconds = {"collect": 25.0, "learn": 20.0, "evaluate": 50.0}
    settings = settings_for(
        updates=4, every=1, tickets_per_batch=1, lanes=2, max_lead=1, deadlines=Deadlines(collect_s=26.0)
    )
    result, events = run(settings, Virtual(Durations(**seconds)), stations())
    assert result.restarts == 0
    assert not [event for event in events if event["e"] == "reissue"]


def test_a_call_that_hangs_is_given_up_when_its_own_time_is_over() -> None:
    seconds = {"collect": 10.0, "learn": 1.0, "evaluate": 50.0}
    settings = settings_for(
        updates=3, every=1, tickets_per_batch=1, lanes=2, max_lead=1, deadlines=Deadlines(collect_s=30.0)
    )
    result, events = run(settings, Virtual(Durations(1, **seconds)), stations())
    (again,) = (event for event in events if event["e"] == "reissue" and event["k"] == 1)
    started = next(event["t"] for event in events if event["e"] == "start" and event["k"] == 1)
    assert again["t"] - started == pytest.approx(30.0 + 50.0)
    assert "no answer within 30 s" in again["why"]
    assert result.restarts == 1
    assert result.ledger.learned == 3


@pytest.mark.parametrize("runtime", ["threads", "processes"])
def test_an_evaluation_that_takes_longer_than_a_collect_call_may_restarts_nobody(runtime: str) -> None:
    limit_s = patient(0.4)
    settings = settings_for(updates=3, every=1, deadlines=Deadlines(collect_s=limit_s))
    result, events = run(settings, runtime, stations(steps=10, evaluator=partial(SlowEvaluator, 1.25 * limit_s)))
    assert result.restarts == 0
    assert parked_over(events)


def test_a_collector_that_dies_while_it_is_parked_is_replaced() -> None:
    class Dies(Durations):
        def fault(self, role: str, method: str, args: tuple[Any, ...]) -> Fault | None:
            return Fault.CRASH if method == "collect" and args[0].index == 1 and not args[0].attempt else None

    settings = settings_for(
        updates=4, every=1, tickets_per_batch=1, lanes=2, max_lead=1, retries=Retries(attempts_on_loss=2)
    )
    result, events = run(settings, Virtual(Dies(collect=10.0, learn=8.0, evaluate=50.0)), stations())
    assert result.ledger.learned == 4
    assert result.restarts == 1
    assert not audit(events)


def test_the_log_says_who_was_parked() -> None:
    _, events = run(
        settings_for(updates=3, every=1), Virtual(Durations(collect=10.0, learn=1.0, evaluate=50.0)), stations()
    )
    parked = [interval for interval in tell(events).intervals if interval.what == "parked"]
    assert parked
    assert all(interval.kind == "blocked" and interval.ticket is not None for interval in parked)


def test_collectors_that_cannot_pause_are_refused() -> None:
    with pytest.raises(RunFailed, match=r"parked' is for collectors with the methods pause and resume; ToyEngine has"):
        run(settings_for(), "inline", engine_stations())


def test_one_lane_is_refused() -> None:
    with pytest.raises(ValueError, match="evaluation_waits_for='parked' needs lanes > 1"):
        settings_for(lanes=1)


def test_an_unknown_posture_is_refused() -> None:
    with pytest.raises(ValueError, match="must be 'landed' or 'parked', received 'aborted'"):
        settings_for(evaluation_waits_for="aborted")


# -- collectors that say what they do ---------------------------------------------------------------


class TalkingEngine(ToyEngine):
    """Says what it does while it waits for ever."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self._never = threading.Event()

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        if ticket.index == 1 and not ticket.attempt:
            self._never.wait()
        return super().collect(ticket, snapshot)

    def doing(self) -> list[str]:
        return [f"game {number}: step {number} since 9.9 s" for number in range(5)]

    def close(self) -> None:
        self._never.set()


@pytest.mark.parametrize("runtime", ["threads", "processes"])
def test_what_a_late_collector_was_doing_is_said(runtime: str) -> None:
    given, limit_s = Stations(TalkingEngine, ToyLearner, ToyEvaluator), patient(0.25)
    settings = settings_for(
        updates=1,
        evaluation_waits_for="landed",
        deadlines=Deadlines(collect_s=limit_s),
        retries=Retries(attempts_on_loss=2),
    )
    result, events = run(settings, runtime, given)
    (again,) = (event for event in events if event["e"] == "reissue" and event["k"] == 1)
    said = "(game 0: step 0 since 9.9 s; game 1: step 1 since 9.9 s; game 2: step 2 since 9.9 s; and 2 more)"
    assert again["why"] == f"no answer within {limit_s:g} s {said}"
    assert result.restarts == 1


def test_what_a_collector_does_for_long_stands_in_why() -> None:
    given = Stations(TalkingEngine, ToyLearner, ToyEvaluator)
    runtime = Virtual(Durations(1, collect=1.0))
    settings = settings_for(updates=1, evaluation_waits_for="landed", deadlines=Deadlines(collect_s=30.0))
    said: list[str] = []

    class Listener(MemoryRecorder):
        def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
            super().record(time_s, kind, fields)
            if kind == "reissue":
                return
            said.append(coordinator.why())

    coordinator = Coordinator(given, settings, runtime, recorder=Listener())

    async def look_after_a_while() -> RunResult:
        running = asyncio.ensure_future(coordinator.run())
        await asyncio.sleep(12.0)
        said.append(coordinator.why())
        return await running

    runtime.run(look_after_a_while())
    assert any("collect, ticket 1 at version 0 (game 0: step 0 since 9.9 s" in line for line in said)
