"""Thousands of schedules with crashes, hangs, stragglers, failed publishes and evaluator errors.

Whatever happens, a run ends: with its plan reached or with one clear error. The ledger closes, no ticket is
trained on twice, and no rollout is older than the settings allow.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from headway.coordinate.coordinator import Coordinator, RunResult
from headway.coordinate.crew import RunFailed
from headway.coordinate.roles import Stations
from headway.coordinate.settings import Deadlines, Plan, Retries, Settings
from headway.core.order import OLDEST, READY, OnStale, window
from headway.core.rules import ReplayRatio
from headway.core.types import Batch, LearnReport, Rollout, Score, Snapshot, Ticket
from headway.observe.recorder import MemoryRecorder
from headway.runtime.virtual import Virtual
from headway.testing.workloads import Exponential, FaultyWorkload, Lognormal, SimulatedLearner

SCHEDULES = 5000
CHUNKS = 10


class Engine:
    """A collector that may hold weights itself, and then must have been given the right ones."""

    def __init__(self, holds_weights: bool, filters: bool) -> None:
        self._filters = filters
        self._held: int | None = None
        if holds_weights:
            self.apply = self._apply

    def _apply(self, snapshot: Snapshot) -> None:
        self._held = snapshot.version

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        assert ticket.version == snapshot.version == snapshot.payload
        if hasattr(self, "apply"):
            assert self._held == snapshot.version, "took off with a version it never acknowledged"
        return Rollout(ticket.index, filtered=self._filters and ticket.seed % 5 == 0)


class Trainer(SimulatedLearner):
    """Publishing fails now and then; training on a ticket twice fails at once."""

    def __init__(self, seed: int, publish_fails: float) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._publish_fails = publish_fails
        self._version = -1
        self._seen: set[int] = set()

    def learn(self, batch: Batch) -> LearnReport:
        for rollout in batch.rollouts:
            assert rollout.payload not in self._seen, "trained on a ticket twice"
            self._seen.add(rollout.payload)
            assert not rollout.filtered
        return LearnReport()

    def snapshot(self) -> Any:
        if self._random.random() < self._publish_fails:
            raise ConnectionError("the link is down")
        self._version += 1
        return self._version


class ReplayTrainer(Trainer):
    def insert(self, batch: Batch) -> None:
        super().learn(batch)

    def learn(self, batch: Batch) -> LearnReport:
        assert not batch.rollouts
        return LearnReport(samples=3)


class Judge:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def evaluate(self, snapshot: Snapshot, seed: int) -> Score:
        assert snapshot.payload == snapshot.version, "an evaluation sees one version"
        if self._random.random() < 0.2:
            raise RuntimeError("the arena is closed")
        return Score(snapshot.version, float(snapshot.version))


def _engine(holds_weights: bool, filters: bool, number: int) -> Engine:
    return Engine(holds_weights, filters)


def draw_settings(rng: random.Random) -> Settings:
    """Any combination that the constructor accepts."""
    while True:
        replays = rng.random() < 0.15
        try:
            return Settings(
                plan=Plan(
                    updates=rng.randint(4, 18),
                    evaluate_every=rng.choice([0, 0, 1, 3]),
                    warmup_s=rng.choice([0.0, 0.0, 3.0]),
                ),
                collectors=rng.randint(1, 4),
                max_lead=rng.choice([0, 0.5, 1, 2, 4, "auto"]),
                order=rng.choice([OLDEST, window(3), READY]),
                max_staleness=rng.choice([None, None, 0, 1, 2, 4]),
                on_stale=rng.choice(list(OnStale)),
                dispatch=rng.choice([None, None, "free"]),
                tickets_per_batch=rng.randint(1, 3),
                publish_every=rng.randint(1, 2),
                buffer_capacity=rng.choice([None, None, 3, 6]),
                pacing_s=rng.choice([0.0, 0.0, 0.4]),
                evaluate_in_background=rng.random() < 0.5,
                replay=ReplayRatio(3, min_size=4, samples_per_update=3, steps_per_ticket=1) if replays else None,
                seed=rng.randrange(1000),
                deadlines=Deadlines(collect_s=30, learn_s=60, evaluate_s=60, publish_s=10, start_s=20),
                retries=Retries(
                    attempts_on_error=rng.choice([1, 4]),
                    attempts_on_loss=rng.choice([2, 6]),
                    on_failure=rng.choice(["stop", "drop"]),
                    max_restarts=rng.choice([1, 60]),
                    publish_attempts=rng.choice([2, 8]),
                ),
            )
        except ValueError:
            continue


def run_schedule(seed: int) -> tuple[Settings, MemoryRecorder, RunResult | RunFailed]:
    rng = random.Random(seed)
    settings = draw_settings(rng)
    workload = FaultyWorkload(
        Lognormal(1.0, rng.choice([0.2, 1.5])),
        Exponential(rng.choice([0.2, 1.0])),
        Exponential(3.0),
        seed=seed,
        crash=rng.choice([0, 0.05]),
        hang=rng.choice([0, 0.03]),
        error=rng.choice([0, 0.05]),
        slow=rng.choice([0, 0.05]),
    )
    filters = rng.random() < 0.2 and settings.replay is None
    stations = Stations(
        collector=partial(_engine, rng.random() < 0.3, filters),
        learner=partial(ReplayTrainer if settings.replay else Trainer, seed, rng.choice([0, 0.1])),
        evaluator=partial(Judge, seed),
    )
    runtime, recorder = Virtual(workload), MemoryRecorder()
    try:
        return settings, recorder, runtime.run(Coordinator(stations, settings, runtime, recorder=recorder).run())
    except RunFailed as failure:
        return settings, recorder, failure


def check_log(settings: Settings, recorder: MemoryRecorder, *, finished: bool) -> None:
    """Read the log as an auditor would."""
    opened: list[int] = []
    ended: Counter[int] = Counter()
    births: dict[int, int] = {}
    trained: list[int] = []
    newest = 0
    for event in recorder.events:
        match event["e"]:
            case "open":
                opened.append(event["k"])
            case "publish":
                assert event["v"] == newest + 1 or event["v"] == 0
                newest = event["v"]
            case "start":
                assert settings.is_pinned or event["v"] == newest, "born with an older snapshot"
                births[event["k"]] = event["v"]
            case "learn" | "insert":
                trained += event["k"]
                for index in event["k"]:
                    if settings.staleness_bound is not None:
                        assert event["v"] - births[index] <= settings.staleness_bound
            case "settle":
                ended.update(event["k"])
            case "drop":
                ended[event["k"]] += 1
    assert opened == list(range(len(opened)))
    assert len(trained) == len(set(trained)), "trained on a ticket twice"
    assert all(count == 1 for count in ended.values()), "settled twice"
    if finished and settings.replay is None:
        assert set(ended) == set(opened), "a run of N updates leaves nothing behind"


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_schedule_deadlocks_loses_a_ticket_or_breaks_the_bound(chunk: int) -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(chunk * SCHEDULES // CHUNKS, (chunk + 1) * SCHEDULES // CHUNKS):
        settings, recorder, result = run_schedule(seed)
        finished = isinstance(result, RunResult)
        try:
            check_log(settings, recorder, finished=finished)
            if isinstance(result, RunResult):
                assert result.ledger.closes
                assert result.updates == settings.plan.updates
                if settings.plan.evaluate_every:
                    assert result.scores[-1].version == result.version, "the last evaluation is lost"
            else:
                assert "\n" not in str(result)
        except AssertionError as error:
            raise AssertionError(f"schedule {seed}: {error} ({settings})") from error
        outcomes["finished" if finished else "failed"] += 1
    assert outcomes["finished"] > 10 * CHUNKS
    assert outcomes["failed"] > CHUNKS, "small budgets must be seen to end a run"


def test_a_schedule_is_the_same_every_time() -> None:
    first, second = run_schedule(17), run_schedule(17)
    assert first[1].events == second[1].events
    assert isinstance(first[2], RunResult) == isinstance(second[2], RunResult)


def test_with_enough_patience_every_schedule_finishes() -> None:
    patient = Retries(attempts_on_error=50, attempts_on_loss=50, max_restarts=500, publish_attempts=50)
    for seed in range(200):
        rng = random.Random(seed)
        settings = replace(draw_settings(rng), retries=patient)
        workload = FaultyWorkload(Lognormal(1, 1), Exponential(0.5), seed=seed, crash=0.1, hang=0.05, error=0.1)
        stations = Stations(
            collector=partial(_engine, False, False),
            learner=partial(ReplayTrainer if settings.replay else Trainer, seed, 0.2),
            evaluator=partial(Judge, seed),
        )
        runtime = Virtual(workload)
        result = runtime.run(Coordinator(stations, settings, runtime).run())
        assert result.updates == settings.plan.updates
        assert result.ledger.dropped.get("failed", 0) == 0
