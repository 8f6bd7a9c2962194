"""Limits in seconds and in bytes, on a whole run: what they drop, what they hold back, what they never break."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from waiting import slowness

from headway.coordinator.activities_waits import Stalled
from headway.coordinator.checkpoint import CheckpointStore
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.rerun import replay
from headway.coordinator.roles import Stations
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Deadlines, Plan, Settings
from headway.core.rules import ReplayRatio
from headway.core.rules_order import READY, OnStale
from headway.core.types import Batch, LearnReport, Rollout, Snapshot, Ticket
from headway.runs.event_log import MemoryRecorder
from headway.runs.fingerprint import fingerprint
from headway.runs.metrics import metrics_of
from headway.runtimes.build import build_runtime
from headway.runtimes.virtual import Virtual
from headway.testing.toy_stations import Pause, pinned_loop, toy_stations
from headway.tools.simulate.workloads import Constant, Lognormal, SimulatedLearner, SteadyWorkload


class Sized:
    """Rollouts of 100 to 200 bytes, as their ticket says."""

    def __init__(self, number: int) -> None:
        pass

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        return Rollout(bytes(100 + ticket.seed % 101))


class Even(Sized):
    """All of 150 bytes."""

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        return Rollout(bytes(150))


SIZED = Stations(Sized, SimulatedLearner)


def run(settings: Settings, collect: Any, learn: Any, **more: Any) -> tuple[RunResult, MemoryRecorder]:
    runtime, recorder = Virtual(SteadyWorkload(collect, learn)), MemoryRecorder()
    coordinator = Coordinator(more.pop("stations", SIZED), settings, runtime, recorder=recorder, **more)
    return runtime.run(coordinator.run()), recorder


def waited_s(events: Iterable[dict[str, Any]]) -> list[float]:
    """How long each trained rollout had waited when it was taken, by the log."""
    landed: dict[int, float] = {}
    waits = []
    for event in events:
        if event["e"] == "land":
            landed[event["k"]] = event["t"]
        elif event["e"] in ("learn", "insert"):
            waits += [event["t"] - event["d"] - landed[index] for index in event["k"]]
    return waits


# -- seconds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_stale", [OnStale.DROP, OnStale.REQUEUE], ids=lambda p: p.value)
def test_no_rollout_is_trained_on_after_its_time(on_stale: OnStale) -> None:
    settings = Settings(plan=Plan(updates=60), collectors=8, max_lead=8, order=READY, max_age_s=3.0, on_stale=on_stale)
    result, recorder = run(settings, Lognormal(4.0, 1.0), Constant(1.0))
    waits = waited_s(recorder.events)
    assert 2.0 < max(waits) <= 3.0
    assert result.ledger.max_age_s == pytest.approx(max(waits), abs=1e-5)
    assert result.ledger.mean_age_s == pytest.approx(sum(waits) / len(waits), abs=1e-5)
    thrown_away = result.ledger.dropped.get("expired", 0) + result.ledger.requeued
    assert thrown_away == sum(event.get("reason") == "expired" for event in recorder.events) > 5
    assert result.ledger.closes


def test_what_is_kept_is_counted_and_changes_no_bit() -> None:
    settings = Settings(plan=Plan(updates=40), collectors=4, max_lead=4, max_age_s=0.5, on_stale=OnStale.KEEP)
    assert settings.is_pinned
    result, _ = run(settings, Lognormal(1.0, 1.0), Constant(1.0), stations=toy_stations())
    assert result.ledger.kept_expired > 0
    assert fingerprint(result.weights) == fingerprint(pinned_loop(settings))


def test_rollouts_that_never_meet_in_a_batch_end_the_run_with_the_reason() -> None:
    settings = Settings(
        plan=Plan(updates=3),
        tickets_per_batch=3,
        max_lead=1,
        max_age_s=2.0,
        on_stale=OnStale.DROP,
        deadlines=Deadlines(data_s=100.0),
    )
    with pytest.raises(Stalled, match="no batch of 3 rollouts came together within 100 s") as stalled:
        run(settings, Constant(5.0), Constant(1.0))
    assert "max_age_s=2 for the others; raise max_age_s or collectors, or lower tickets_per_batch" in str(stalled.value)


def test_a_replay_takes_nothing_after_its_time() -> None:
    class Inserting(SimulatedLearner):
        def insert(self, batch: Batch) -> None:
            assert batch.rollouts

        def learn(self, batch: Batch) -> LearnReport:
            return LearnReport(samples=4)

    settings = Settings(
        plan=Plan(updates=40),
        collectors=6,
        max_lead=6,
        replay=ReplayRatio(4, min_size=4, samples_per_update=4, steps_per_ticket=1, slack=40),
        max_age_s=1.0,
        on_stale=OnStale.DROP,
    )
    result, recorder = run(settings, Lognormal(2.0, 1.0), Constant(3.0), stations=Stations(Sized, Inserting))
    assert max(waited_s(recorder.events)) <= 1.0
    assert result.ledger.dropped["expired"] > 5


def test_while_a_run_is_down_its_rollouts_grow_no_older(tmp_path: Path) -> None:
    """The clock of the second session begins at zero again; restoring the learner takes a hundred seconds."""

    class SlowToRestore(SteadyWorkload):
        def duration_s(self, role: str, method: str, args: tuple[Any, ...]) -> float:
            return 100.0 if method == "restore" else super().duration_s(role, method, args)

    settings = Settings(
        plan=Plan(updates=20), collectors=4, max_lead=8, order=READY, max_age_s=30.0, on_stale=OnStale.DROP
    )
    store = CheckpointStore(tmp_path)
    recorder = StopAt(6)
    for is_first in (True, False):
        runtime = Virtual(SlowToRestore(Constant(1.0), Constant(2.0)))
        state = None if is_first else store.load()
        coordinator = Coordinator(SIZED, settings, runtime, recorder=recorder, checkpoints=store, resume=state)
        recorder.coordinator = coordinator
        result = runtime.run(coordinator.run())
    assert state is not None
    ages = [entry["age_s"] for entry in state.ledger["live"] if entry["arrival"] is not None]
    assert len(ages) >= 4 and max(ages) > 1.0
    assert result.updates == 20
    assert result.ledger.dropped == {}
    assert 1.0 < result.ledger.max_age_s < 30.0
    end = {"t": recorder.events[-1]["t"], "e": "look", "lead": 8.0, "spent": {}, "rss": 0}
    *_, last = metrics_of([*recorder.events, end])
    assert last.values["age/max_s"] < 30.0


class StopAt(MemoryRecorder):
    """Asks for a stop after an update, once."""

    def __init__(self, update: int) -> None:
        super().__init__()
        self._update = update
        self.coordinator: Coordinator | None = None

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        super().record(time_s, kind, fields)
        if kind == "learn" and fields["u"] == self._update:
            assert self.coordinator is not None
            self.coordinator.request_stop()


def test_a_replay_of_the_log_drops_what_was_dropped_whatever_the_clock_says_now() -> None:
    """Recorded on threads, where the learner dawdles so that rollouts expire; repeated in one thread, at once."""

    slow = slowness()

    def dawdle(batch: Batch) -> None:
        time.sleep(0.012 * slow)

    settings = Settings(
        plan=Plan(updates=25), collectors=3, max_lead=6, order=READY, max_age_s=0.03 * slow, on_stale=OnStale.DROP
    )
    runtime, recorder = build_runtime("threads"), MemoryRecorder()
    stations = toy_stations(Pause(0.004 * slow), dawdle)
    result = runtime.run(Coordinator(stations, settings, runtime, recorder=recorder).run())
    assert result.ledger.dropped.get("expired", 0) > 0
    again = replay(toy_stations(), recorder.events)
    assert fingerprint(again.weights) == fingerprint(result.weights)


# -- bytes ------------------------------------------------------------------------------------------


def most_bytes(events: Iterable[dict[str, Any]]) -> tuple[int, int]:
    """The most that ready rollouts ever held, and the largest of them."""
    sizes: dict[int, int] = {}
    most = largest = 0
    for event in events:
        if event["e"] == "land":
            sizes[event["k"]] = event["b"]
            most, largest = max(most, sum(sizes.values())), max(largest, event["b"])
        elif event["e"] in ("learn", "drop"):
            for index in event["k"] if event["e"] == "learn" else [event["k"]]:
                sizes.pop(index, None)
    return most, largest


@pytest.mark.parametrize("limit", [800, 2000, 10**6])
@pytest.mark.parametrize("kind", [Even, Sized])
def test_rollouts_that_wait_hold_no_more_than_the_limit(limit: int, kind: type[Sized]) -> None:
    """Up to how much bigger than the mean the four on their way turn out to be."""
    settings = Settings(plan=Plan(updates=60), collectors=4, max_lead=10, tickets_per_batch=2, queue_bytes_limit=limit)
    assert not settings.is_pinned
    result, recorder = run(settings, Lognormal(0.5, 1.0), Constant(3.0), stations=Stations(kind, SimulatedLearner))
    most, largest = most_bytes(recorder.events)
    assert result.updates == 60
    surprise = 0 if kind is Even else 4 * 100
    assert most <= limit + 2 * largest + surprise  # what the learner has is in this count until its update ends
    if limit < 10**6:
        assert most > 0.6 * limit
    else:
        assert most > 2500  # ten versions ahead


def test_a_limit_below_one_batch_collects_batch_by_batch() -> None:
    settings = Settings(plan=Plan(updates=20), collectors=4, max_lead=4, tickets_per_batch=3, queue_bytes_limit=1)
    result, recorder = run(settings, Lognormal(1.0, 1.0), Constant(1.0))
    assert result.updates == 20
    waiting: set[int] = set()
    for event in recorder.events:
        if event["e"] == "open":
            waiting.add(event["k"])
        elif event["e"] == "update":
            assert len(waiting) <= 6  # the batch it takes, and the next one
        elif event["e"] == "learn":
            waiting -= set(event["k"])


def test_the_synchronous_loop_is_the_same_with_a_limit_in_bytes() -> None:
    for limit in (1, 300, None):
        settings = Settings(
            plan=Plan(updates=12),
            collectors=3,
            max_lead=0,
            tickets_per_batch=2,
            publish_every=2,
            queue_bytes_limit=limit,
        )
        assert settings.is_pinned
        result, _ = run(settings, Lognormal(1.0, 1.0), Constant(1.0), stations=toy_stations())
        assert fingerprint(result.weights) == fingerprint(pinned_loop(settings))


def test_bytes_and_ages_are_in_the_metrics() -> None:
    settings = Settings(
        plan=Plan(updates=30), collectors=4, max_lead=6, order=READY, max_age_s=2.0, on_stale=OnStale.DROP
    )
    _, recorder = run(settings, Lognormal(1.0, 1.0), Constant(1.0))
    end = {"t": recorder.events[-1]["t"], "e": "look", "lead": 6.0, "spent": {}, "rss": 0}
    (point,) = [p for p in metrics_of([*recorder.events, end]) if "run/lead" in p.values]
    waits = waited_s(recorder.events)
    expired = sum(event.get("reason") == "expired" for event in recorder.events)
    assert point.values["age/mean_s"] == pytest.approx(sum(waits) / len(waits), abs=1e-4)
    assert point.values["age/max_s"] == pytest.approx(max(waits), abs=1e-4)
    assert point.values["age/expired"] == expired / (expired + len(waits)) > 0
    assert point.values["drops/expired"] == expired
    half = recorder.events[: len(recorder.events) // 2]
    (point,) = [p for p in metrics_of([*half, {**end, "t": half[-1]["t"]}]) if "run/lead" in p.values]
    assert point.values["queue/bytes"] >= 100 * point.values["queue/ready"]


# -- what cannot be ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_age_s": 5.0}, "max_age_s=5 with on_stale='wait' cannot hold"),
        ({"max_age_s": 0.0, "on_stale": OnStale.DROP}, "max_age_s must be a finite number > 0"),
        (
            {"max_age_s": 5.0, "on_stale": OnStale.DROP, "dispatch": "pinned"},
            "dispatch='pinned' is impossible: max_age_s lets the clock decide what is trained on",
        ),
        ({"max_age_s": 5.0, "on_stale": OnStale.DROP, "max_lead": 0}, "needs max_lead > 0: the synchronous loop"),
        ({"queue_bytes_limit": 0}, "queue_bytes_limit must be >= 1, received 0"),
        (
            {"queue_bytes_limit": 9, "dispatch": "pinned"},
            "dispatch='pinned' is impossible: queue_bytes_limit opens tickets when others have landed",
        ),
        (
            {"queue_bytes_limit": 9, "replay": ReplayRatio(1, samples_per_update=1)},
            "queue_bytes_limit is for a queue; a replay has a capacity of its own",
        ),
    ],
)
def test_limits_that_cannot_hold_are_refused_in_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        Settings(plan=Plan(updates=1), **values)
    assert "\n" not in str(refused.value)
