"""Thousands of schedules with crashes, hangs, stragglers, lost payloads, failed publishes and evaluator errors.

Whatever happens, a run ends: with its plan reached or with one clear error. The ledger closes, no ticket is
trained on twice, nothing is trained on that was lost, and no rollout is older than the settings allow.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import pytest

from headway.coordinator.coordinator import Coordinator
from headway.coordinator.role_calls import RunFailed
from headway.coordinator.roles import Stations
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Deadlines, Plan, Retries, Settings
from headway.core.rules import ReplayRatio
from headway.core.rules_order import OLDEST, READY, OnStale, window
from headway.core.types import Batch, LearnReport, Rollout, Score, Snapshot, Span, Ticket
from headway.runs.event_log import MemoryRecorder
from headway.runtimes.virtual import Virtual
from headway.tools.simulate.workloads import Exponential, FaultyWorkload, Lognormal, SimulatedLearner

SCHEDULES = 5000
LANE_SCHEDULES = 2500
CHUNKS = 10


@dataclass(frozen=True)
class Makers:
    """How many updates make a version, and whether one may be staged again, with updates of the next in it."""

    publish_every: int
    may_be_lost: bool

    def made(self, snapshot: Snapshot) -> bool:
        """Are these the weights of that version? The last one may be short of updates."""
        first, last = (snapshot.version - 1) * self.publish_every + 1, snapshot.version * self.publish_every
        return first <= snapshot.payload <= last + self.publish_every * self.may_be_lost


class Engine:
    """A collector that may hold weights itself, and then must have been given the right ones."""

    def __init__(self, holds_weights: bool, filters: bool, makers: Makers) -> None:
        self._filters = filters
        self._makers = makers
        self._held: int | None = None
        if holds_weights:
            self.apply = self._apply

    def _apply(self, snapshot: Snapshot) -> None:
        self._held = snapshot.version

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        assert ticket.version == snapshot.version
        assert self._makers.made(snapshot)
        if hasattr(self, "apply"):
            assert self._held == snapshot.version, "took off with a version it never acknowledged"
        return Rollout(ticket.index, filtered=self._filters and ticket.seed % 5 == 0)


class Trainer(SimulatedLearner):
    """Its weights are the number of its updates. Publishing fails now and then; training on a ticket twice fails at
    once."""

    def __init__(self, seed: int, publish_fails: float) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._publish_fails = publish_fails
        self._updates = 0
        self._seen: set[int] = set()

    def learn(self, batch: Batch) -> LearnReport:
        self._updates += 1
        self.look_at(batch)
        return LearnReport()

    def look_at(self, batch: Batch) -> None:
        for rollout in batch.rollouts:
            assert rollout.payload not in self._seen, "trained on a ticket twice"
            self._seen.add(rollout.payload)
            assert not rollout.filtered

    def snapshot(self) -> Any:
        if self._random.random() < self._publish_fails:
            raise ConnectionError("the link is down")
        return self._updates


class ReplayTrainer(Trainer):
    def insert(self, batch: Batch) -> None:
        self.look_at(batch)

    def learn(self, batch: Batch) -> LearnReport:
        assert not batch.rollouts
        self._updates += 1
        return LearnReport(samples=3)


class Judge:
    def __init__(self, seed: int, makers: Makers) -> None:
        self._random = random.Random(seed)
        self._makers = makers

    def evaluate(self, snapshot: Snapshot, seed: int) -> Score:
        assert self._makers.made(snapshot), "an evaluation sees one version"
        if self._random.random() < 0.2:
            raise RuntimeError("the arena is closed")
        return Score(snapshot.version, float(snapshot.version))


def _engine(holds_weights: bool, filters: bool, makers: Makers, number: int) -> Engine:
    return Engine(holds_weights, filters, makers)


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
                max_age_s=rng.choice([None, None, None, 3.0, 12.0]),
                dispatch=rng.choice([None, None, "free"]),
                tickets_per_batch=rng.randint(1, 3),
                publish_every=rng.randint(1, 2),
                queue_capacity=rng.choice([None, None, 3, 6]),
                queue_bytes_limit=rng.choice([None, None, None, 1, 30]),
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
    lose = rng.choice([0, 0.08])
    workload = FaultyWorkload(
        Lognormal(1.0, rng.choice([0.2, 1.5])),
        Exponential(rng.choice([0.2, 1.0])),
        Exponential(3.0),
        seed=seed,
        crash=rng.choice([0, 0.05]),
        hang=rng.choice([0, 0.03]),
        error=rng.choice([0, 0.05]),
        slow=rng.choice([0, 0.05]),
        lose=lose,
    )
    makers = Makers(settings.publish_every, may_be_lost=lose > 0)
    filters = rng.random() < 0.2 and settings.replay is None
    stations = Stations(
        collector=partial(_engine, rng.random() < 0.3, filters, makers),
        learner=partial(ReplayTrainer if settings.replay else Trainer, seed, rng.choice([0, 0.1])),
        evaluator=partial(Judge, seed, makers),
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
    here: dict[int, float] = {}  # landed, and when
    newest = 0
    max_age_s = math.inf if settings.max_age_s is None or settings.on_stale is OnStale.KEEP else settings.max_age_s
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
            case "restage":
                assert event["v"] == newest
            case "land":
                here[event["k"]] = event["t"]
            case "lose" | "requeue":
                del here[event["k"]]
            case "learn" | "insert":
                trained += event["k"]
                for index in event["k"]:
                    assert index in here, "trained on what was lost"
                    waited_s = event["t"] - event["d"] - here[index]
                    assert waited_s <= max_age_s + 1e-5, f"ticket {index} had waited {waited_s} s"
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
    kinds: Counter[str] = Counter()
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
        kinds.update(event["e"] for event in recorder.events)
        kinds.update(event["reason"] for event in recorder.events if event["e"] in ("drop", "requeue"))
        if isinstance(result, RunResult):
            assert result.ledger.lost == sum(event["e"] == "lose" for event in recorder.events)
    assert outcomes["finished"] > 10 * CHUNKS
    assert outcomes["failed"] > CHUNKS, "small budgets must be seen to end a run"
    assert kinds["lose"] > 10 * CHUNKS
    assert kinds["restage"] > 10 * CHUNKS
    assert min(kinds["stale"], kinds["expired"]) > CHUNKS


def test_a_schedule_is_the_same_every_time() -> None:
    first, second = run_schedule(17), run_schedule(17)
    assert first[1].events == second[1].events
    assert isinstance(first[2], RunResult) == isinstance(second[2], RunResult)


def test_with_enough_patience_every_schedule_finishes() -> None:
    patient = Retries(attempts_on_error=50, attempts_on_loss=50, max_restarts=500, publish_attempts=50)
    for seed in range(200):
        rng = random.Random(seed)
        settings = replace(draw_settings(rng), retries=patient)
        workload = FaultyWorkload(
            Lognormal(1, 1), Exponential(0.5), seed=seed, crash=0.1, hang=0.05, error=0.1, lose=0.1
        )
        makers = Makers(settings.publish_every, may_be_lost=True)
        stations = Stations(
            collector=partial(_engine, False, False, makers),
            learner=partial(ReplayTrainer if settings.replay else Trainer, seed, 0.2),
            evaluator=partial(Judge, seed, makers),
        )
        runtime = Virtual(workload)
        result = runtime.run(Coordinator(stations, settings, runtime).run())
        assert result.updates == settings.plan.updates
        assert result.ledger.dropped.get("failed", 0) == 0


# -- lanes ------------------------------------------------------------------------------------------


class LaneEngine(Engine):
    """Works on several tickets at once. What it was given wrongly is written down, for a retry would hide it."""

    is_concurrent = True
    wrong: ClassVar[list[str]] = []

    def __init__(self, holds_weights: bool, filters: bool, makers: Makers, mixes: bool) -> None:
        super().__init__(holds_weights, filters, makers)
        self._mixes = mixes

    def _apply(self, snapshot: Snapshot) -> None:
        if not self._makers.made(snapshot):
            self.wrong.append(f"{snapshot} are not the weights of that version")
        if self._mixes and self._held is not None and self._held >= snapshot.version:
            self.wrong.append(f"version {snapshot.version} was applied over version {self._held}")
        super()._apply(snapshot)

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        rollout = Rollout(ticket.index, filtered=self._filters and ticket.seed % 5 == 0)
        if not hasattr(self, "apply"):
            return rollout
        assert ticket.version is not None
        held = -1 if self._held is None else self._held
        if held < ticket.version or (held != ticket.version and not self._mixes):
            self.wrong.append(f"{ticket} ended with version {held}")
        return replace(rollout, span=Span(ticket.version, held)) if self._mixes else rollout


class SlowToApply(FaultyWorkload):
    """Applying and restarting take their time too; and everything takes whole ticks, so that much happens at once."""

    def duration_s(self, role: str, method: str, args: tuple[Any, ...]) -> float:
        if method in ("apply", "restart"):
            return self._random.choice([0.0, 0.25, 0.5, 1.0])
        return math.ceil(4 * super().duration_s(role, method, args)) / 4


class Watched(Virtual):
    """Counts how often each role died and was restarted."""

    def __init__(self, workload: FaultyWorkload) -> None:
        super().__init__(workload)
        self.deaths: Counter[str] = Counter()
        self.restarts_of_the_dead: Counter[str] = Counter()
        self.restarts_of_the_living: Counter[str] = Counter()

    async def restart(self, role: str) -> None:
        (self.restarts_of_the_living if role in self._objects else self.restarts_of_the_dead)[role] += 1
        await super().restart(role)

    def _end(self, role: str, how: str) -> None:
        self.deaths[role] += role in self._objects and how != "restarted"
        super()._end(role, how)


def draw_lanes(settings: Settings, rng: random.Random) -> Settings:
    """The same with lanes, and where the constructor accepts it with weights that change in the middle."""
    lanes = rng.randint(1, 4)
    for on_publish in rng.sample(["drain", "partial"], 2):
        try:
            return replace(settings, lanes=lanes, on_publish=on_publish)
        except ValueError:
            continue
    raise AssertionError("drain is always possible")


def check_lanes(settings: Settings, recorder: MemoryRecorder, *, drains: bool) -> None:
    """One ticket a seat; with drain one version a collector; with partial no version that is not there yet.

    A ticket whose weights were lost no longer flies, but its event comes when they are staged again.
    """
    flying: dict[int, tuple[int, int]] = {}  # seat -> ticket, version
    newest = 0
    ends_at = next((event["t"] for event in recorder.events if event["e"] == "fail"), math.inf)
    for event in recorder.events:
        if event["t"] == ends_at:
            break  # what fails for good has no event of its own
        match event["e"]:
            case "publish":
                newest = event["v"]
            case "start":
                assert 0 <= event["c"] < settings.seats
                assert event["c"] not in flying, "two tickets on one seat"
                assert not settings.is_pinned or event["c"] == event["k"] % settings.seats
                flying[event["c"]] = event["k"], event["v"]
                beside = {v for seat, (_, v) in flying.items() if (seat - event["c"]) % settings.collectors == 0}
                assert len(beside) == 1 or not drains, "two versions on one collector"
            case "reissue":
                del flying[event["c"]]
            case "land" | "drop":
                seat = next((seat for seat, (index, _) in flying.items() if index == event["k"]), None)
                if seat is None:
                    assert event["e"] == "drop"
                    continue
                _, version = flying.pop(seat)
                if event["e"] == "land":
                    oldest, last = event["v"]
                    assert version <= oldest <= last <= newest
                    assert settings.on_publish == "partial" or oldest == last == version


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_with_lanes_every_ticket_settles_once_and_every_incident_is_one_restart(chunk: int) -> None:
    seen: Counter[str] = Counter()
    LaneEngine.wrong.clear()
    for seed in range(chunk * LANE_SCHEDULES // CHUNKS, (chunk + 1) * LANE_SCHEDULES // CHUNKS):
        rng = random.Random(seed)
        settings = draw_lanes(draw_settings(rng), rng)
        settings = replace(settings, deadlines=replace(settings.deadlines, collect_s=rng.choice([3, 30])))
        mixes = settings.on_publish == "partial"
        holds_weights = mixes or rng.random() < 0.6
        lose = rng.choice([0, 0, 0.05])
        workload = SlowToApply(
            Lognormal(1.0, rng.choice([0.2, 1.5])),
            Exponential(rng.choice([0.2, 1.0])),
            Exponential(3.0),
            seed=seed,
            crash=rng.choice([0, 0.03]),
            hang=rng.choice([0, 0.02]),
            error=rng.choice([0, 0.03]),
            slow=rng.choice([0, 0.03]),
            lose=lose,
        )
        makers = Makers(settings.publish_every, may_be_lost=lose > 0)
        filters = rng.random() < 0.2 and settings.replay is None
        stations = Stations(
            collector=partial(_lane_engine, holds_weights, filters, makers, mixes),
            learner=partial(ReplayTrainer if settings.replay else Trainer, seed, rng.choice([0, 0.1])),
            evaluator=partial(Judge, seed, makers),
        )
        runtime, recorder = Watched(workload), MemoryRecorder()
        result: RunResult | RunFailed
        try:
            result = runtime.run(Coordinator(stations, settings, runtime, recorder=recorder).run())
        except RunFailed as failure:
            result = failure
        finished = isinstance(result, RunResult)
        try:
            check_log(settings, recorder, finished=finished)
            check_lanes(settings, recorder, drains=holds_weights and not mixes and not lose)
            assert not LaneEngine.wrong
            if isinstance(result, RunResult):
                assert result.ledger.closes
                assert result.updates == settings.plan.updates
            quarantines = sum(event["e"] == "restart" and "quarantined" in event["why"] for event in recorder.events)
            assert runtime.restarts_of_the_living.total() == quarantines
            for role, count in runtime.restarts_of_the_dead.items():
                assert count <= runtime.deaths[role], f"{role} was restarted more often than it died"
        except AssertionError as error:
            raise AssertionError(f"schedule {seed}: {error} ({settings}) {result}") from error
        seen["finished" if finished else "failed"] += 1
        seen["partial"] += mixes
        seen["mixed"] += sum(e["e"] == "land" and e["v"][0] < e["v"][1] for e in recorder.events)
        seen["restarts"] += runtime.restarts_of_the_dead.total()
        seen["innocent"] += sum(e["e"] == "reissue" and "given up" in e["why"] for e in recorder.events)
        seen["quarantines"] += runtime.restarts_of_the_living.total()
    assert seen["finished"] > 10 * CHUNKS
    assert seen["failed"] > CHUNKS
    assert min(seen[kind] for kind in ("partial", "mixed", "restarts", "innocent")) > CHUNKS, seen


def _lane_engine(holds_weights: bool, filters: bool, makers: Makers, mixes: bool, number: int) -> LaneEngine:
    return LaneEngine(holds_weights, filters, makers, mixes)


def test_with_lanes_and_enough_patience_every_schedule_finishes() -> None:
    patient = Retries(attempts_on_error=50, attempts_on_loss=50, max_restarts=500, publish_attempts=50)
    for seed in range(200):
        rng = random.Random(seed)
        settings = draw_lanes(replace(draw_settings(rng), retries=patient), rng)
        workload = SlowToApply(
            Lognormal(1, 1), Exponential(0.5), seed=seed, crash=0.05, hang=0.05, error=0.1, lose=0.05
        )
        makers = Makers(settings.publish_every, may_be_lost=True)
        stations = Stations(
            collector=partial(_lane_engine, True, False, makers, settings.on_publish == "partial"),
            learner=partial(ReplayTrainer if settings.replay else Trainer, seed, 0.2),
            evaluator=partial(Judge, seed, makers),
        )
        runtime = Virtual(workload)
        result = runtime.run(Coordinator(stations, settings, runtime).run())
        assert result.updates == settings.plan.updates
        assert result.ledger.dropped.get("failed", 0) == 0
