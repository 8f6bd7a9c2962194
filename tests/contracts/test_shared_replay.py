"""A replay with a role of its own: the same bits as the plain loop, on every runtime, after a resume, when replayed."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.coordinator.checkpoint import CheckpointError, CheckpointStore
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.rerun import ReplayError, replay
from headway.coordinator.role_calls import RunFailed
from headway.coordinator.roles import Stations
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Deadlines, Plan, Retries, Settings
from headway.core.protocols import Runtime
from headway.core.rules import ReplayRatio
from headway.core.rules_order import READY
from headway.core.types import Batch, LearnReport, Rollout, Snapshot, Ticket
from headway.replay.with_replay import WithReplay
from headway.runs.event_log import EventLog, MemoryRecorder, read_events
from headway.runs.fingerprint import fingerprint
from headway.runs.log_file import Mark
from headway.runs.log_parts import go_on_at
from headway.runtimes.build import build_runtime
from headway.runtimes.processes import Processes
from headway.runtimes.virtual import Fault, Virtual
from headway.testing.replay_fakes import ToyDrawLearner, ToyReplay, plain_replay_loop, toy_replay_stations
from headway.testing.toy_stations import Pause, ToyCollector, ToyLearner, ToyReplayLearner, toy_stations
from headway.tools.simulate.workloads import Constant, Exponential, FaultyWorkload, Lognormal, SteadyWorkload

RUNTIMES = ["inline", "threads", "processes"]
RATIO = ReplayRatio(2, min_size=12, samples_per_update=4, steps_per_ticket=4)


def settings_for(lead: float, *, updates: int = 30, save_every: int = 0, **more: Any) -> Settings:
    plan = Plan(updates=updates, save_every=save_every)
    return Settings(plan=plan, max_lead=lead, **{"collectors": 2, "replay": RATIO, "seed": 5, **more})


def run(settings: Settings, runtime: str | Runtime = "inline", stations: Any = None, **more: Any) -> RunResult:
    place = build_runtime(runtime) if isinstance(runtime, str) else runtime
    return place.run(Coordinator(stations or toy_replay_stations(), settings, place, **more).run())


# -- bits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_lead_zero_equals_the_plain_loop(runtime: str) -> None:
    settings = settings_for(0)
    recorder = MemoryRecorder()
    result = run(settings, runtime, toy_replay_stations(Pause(0.002)), recorder=recorder)
    assert fingerprint(result.weights) == fingerprint(plain_replay_loop(toy_replay_stations(), settings))
    assert result.ledger.closes
    assert all(event["k"] == [] for event in recorder.events if event["e"] == "learn")
    assert sum(event["e"] == "draw" for event in recorder.events) == result.updates == 30


@pytest.mark.parametrize("more", [{}, {"publish_every": 3}, {"tickets_per_batch": 2, "collectors": 3}])
def test_a_pinned_run_is_determined_by_its_seed_at_any_lead(more: dict[str, Any]) -> None:
    settings = settings_for(2, **more)
    prints = {
        fingerprint(run(settings, runtime, toy_replay_stations(Pause(0.002))).weights)
        for runtime in ("inline", "threads", "processes", "threads")
    }
    assert len(prints) == 1
    assert prints != {fingerprint(run(settings_for(2, **{**more, "seed": 6})).weights)}


@pytest.mark.parametrize("lead", [0, 2])
def test_a_replay_inside_the_learner_gives_the_same_bits(lead: int) -> None:
    toy = toy_replay_stations()
    inside = Stations(collector=toy.collector, learner=partial(WithReplay, toy.learner, ToyReplay))
    results = [run(settings_for(lead), "threads", stations) for stations in (toy, inside)]
    assert len({fingerprint(result.weights) for result in results}) == 1
    assert results[0].metrics == results[1].metrics


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("more", [{"dispatch": "free"}, {"order": READY}], ids=["free", "ready"])
def test_a_recorded_free_run_replays_to_the_same_bits(runtime: str, more: dict[str, Any]) -> None:
    """A free run draws ahead: the log holds in which order the replay was spoken to."""
    settings = settings_for(3, collectors=3, **more)
    recorder = MemoryRecorder()
    stations = toy_replay_stations(Pause(0.004))
    result = run(settings, runtime, stations, recorder=recorder)
    again = replay(stations, recorder.events)
    assert fingerprint(again.weights) == fingerprint(result.weights)
    assert (again.version, again.updates) == (result.version, result.updates)


def test_a_log_whose_draws_are_missing_is_refused() -> None:
    recorder = MemoryRecorder()
    run(settings_for(1), recorder=recorder)
    holes = [event for event in recorder.events if event["e"] != "draw"]
    with pytest.raises(ReplayError, match="update 1 has no draw in the log"):
        replay(toy_replay_stations(), holes)
    with pytest.raises(ReplayError, match="the stations have none"):
        replay(Stations(collector=toy_stations().collector, learner=ToyReplayLearner), recorder.events)


# -- drawing ahead ------------------------------------------------------------------------------------


class Slow(SteadyWorkload):
    """Virtual time: an update takes 10 s, a draw 2 s, feedback 1 s, everything else none."""

    def __init__(self) -> None:
        super().__init__(Constant(0.0), Constant(10.0))
        self.calls: list[str] = []

    def duration_s(self, role: str, method: str, args: tuple[Any, ...]) -> float:
        if role == "replay" and method in ("insert", "sample", "update"):
            self.calls.append(method)
        return {"sample": 2.0, "update": 1.0}.get(method, super().duration_s(role, method, args))


def test_a_pinned_run_draws_in_turn_and_a_free_one_beside_the_update() -> None:
    ratio = ReplayRatio(20, min_size=12, samples_per_update=4, steps_per_ticket=4)
    walls: dict[str, float] = {}
    for dispatch in ("pinned", "free"):
        workload = Slow()
        result = run(settings_for(1, updates=20, replay=ratio, dispatch=dispatch), Virtual(workload))
        walls[dispatch] = result.wall_s
        order = [call for call in workload.calls if call != "insert"]
        if dispatch == "pinned":
            assert order == ["sample", "update"] * 20
        else:
            assert order == ["sample", "sample", *["update", "sample"] * 18, "update", "update"]
        assert Counter(order) == {"sample": 20, "update": 20}
    assert walls["pinned"] == 20 * (10 + 2 + 1)
    assert walls["free"] == 2 + 20 * 10 + 2 * 1, "the first draw, twenty updates, and the feedback nobody waits for"


def test_the_next_draw_is_not_made_ahead_while_the_ratio_would_not_allow_it() -> None:
    """Half a sample per step: between any two updates something must be collected first."""
    ratio = ReplayRatio(0.5, min_size=12, samples_per_update=4, steps_per_ticket=4)
    workload = Slow()
    run(settings_for(1, updates=10, replay=ratio, dispatch="free"), Virtual(workload))
    order = [call for call in workload.calls if call != "insert"]
    assert order[-2:] == ["sample", "update"]
    assert Counter(order) == {"sample": 10, "update": 10}


# -- ratio, feedback, numbers -------------------------------------------------------------------------


@pytest.mark.parametrize("dispatch", ["pinned", "free"])
@pytest.mark.parametrize("per_insert", [0.5, 4.0])
def test_the_replay_ratio_is_kept(dispatch: str, per_insert: float) -> None:
    ratio = ReplayRatio(per_insert, min_size=12, samples_per_update=4, steps_per_ticket=4)
    result = run(settings_for(2, updates=60, replay=ratio, dispatch=dispatch), "threads", toy_replay_stations())
    drawn = 60 * 4
    overshoot = per_insert * 7  # a ticket of the toy problem may bring 7 steps instead of 4
    assert abs(drawn - per_insert * (result.ledger.steps - 12)) <= ratio.slack + overshoot


class Picky(ToyCollector):
    """Every third rollout carries no signal."""

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        return replace(super().collect(ticket, snapshot), filtered=ticket.index % 3 == 2)


@pytest.mark.parametrize("dispatch", ["pinned", "free"])
def test_a_rollout_without_signal_is_dropped_and_never_inserted(dispatch: str) -> None:
    toy, recorder = toy_replay_stations(), MemoryRecorder()
    stations = Stations(collector=Picky, learner=toy.learner, replay=toy.replay)
    result = run(settings_for(2, dispatch=dispatch), "threads", stations, recorder=recorder)
    inserted = [index for event in recorder.events if event["e"] == "insert" for index in event["k"]]
    assert inserted and all(index % 3 != 2 for index in inserted)
    assert result.ledger.dropped["filtered"] > 0
    assert result.ledger.closes


def test_the_numbers_of_the_replay_join_the_metrics_of_the_update() -> None:
    recorder = MemoryRecorder()
    result = run(settings_for(1), recorder=recorder)
    learned = [event["m"] for event in recorder.events if event["e"] == "learn"]
    inserted = [0]
    for event in recorder.events:
        if event["e"] == "insert":
            inserted.append(inserted[-1] + len(event["k"]))
    assert {numbers["replay_inserted"] for numbers in learned} <= set(inserted)
    assert result.metrics["replay_inserted"] == inserted[-1]
    assert result.metrics["error"] > 0


class Watched(ToyReplay):
    """Remembers what was written back, and what the leaves were before and after."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []

    def update(self, feedback: Any) -> None:
        before = self._leaves()
        super().update(feedback)
        self.seen.append((feedback["ids"].copy(), feedback["priorities"].copy(), before, self._leaves()))

    def _leaves(self) -> np.ndarray:
        return np.array(self._kept.state_dict()["leaves"])

    @property
    def newest(self) -> int:
        return self._kept.statistics().inserted


def test_priorities_reach_the_items_they_are_for_and_no_others() -> None:
    watched: list[Watched] = []

    def build() -> Watched:
        watched.append(Watched())
        return watched[-1]

    toy = toy_replay_stations()
    result = run(settings_for(1, updates=40), "threads", Stations(toy.collector, toy.learner, replay=build))
    assert len(watched[0].seen) == result.updates == 40
    for ids, priorities, before, after in watched[0].seen:
        touched = ids % 12
        for index, priority in zip(ids, priorities, strict=True):
            last = priorities[np.flatnonzero(ids == index)[-1]]
            assert after[index % 12] == pytest.approx((last + 1e-6) ** 0.6)
            assert priority > 0
        others = np.setdiff1d(np.arange(len(after)), touched)
        np.testing.assert_array_equal(before[others], after[others])


def test_feedback_that_comes_after_its_item_was_overwritten_is_ignored_and_counted() -> None:
    """In a free run twelve places are overwritten while a draw made ahead is still being trained on."""
    ratio = ReplayRatio(0.6, min_size=12, samples_per_update=4, steps_per_ticket=4)
    settings = settings_for(8, updates=60, replay=ratio, dispatch="free", collectors=4)
    runtime = Virtual(SteadyWorkload(Constant(0.3), Constant(5.0)))
    result = run(settings, runtime)
    assert result.metrics["replay_late"] > 0
    assert result.updates == 60


# -- surviving ----------------------------------------------------------------------------------------


class StopAt:
    """An event log that asks for a stop when an update is recorded."""

    def __init__(self, log: EventLog, updates: int | None) -> None:
        self._log = log
        self._updates = updates
        self.coordinator: Coordinator | None = None

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        self._log.record(time_s, kind, fields)
        if kind == "learn" and fields["u"] == self._updates:
            assert self.coordinator is not None
            self.coordinator.request_stop()

    def mark(self) -> Mark:
        return self._log.mark()

    def close(self) -> None:
        self._log.close()


def session(
    folder: Path, settings: Settings, runtime: str = "inline", *, stop_at: int | None = None, stations: Any = None
) -> RunResult:
    """One session of a run: from its last checkpoint, if there is one, to its end or to an interruption."""
    folder.mkdir(exist_ok=True)
    place = build_runtime(runtime)
    store = CheckpointStore(folder / "checkpoints")
    state = store.load() if store.all() else None
    if state is not None:
        go_on_at(folder / "events.jsonl", state.events_position, None)
    log = StopAt(EventLog(folder / "events.jsonl"), stop_at)
    coordinator = Coordinator(
        stations or toy_replay_stations(Pause(0.002)),
        settings,
        place,
        recorder=log,
        checkpoints=store,
        resume=state,
    )
    log.coordinator = coordinator
    return place.run(coordinator.run())


@pytest.mark.parametrize("runtime", ["inline", "threads"])
@pytest.mark.parametrize("lead", [0, 2])
def test_a_pinned_run_interrupted_twice_ends_with_the_bits_of_the_uninterrupted_one(
    tmp_path: Path, runtime: str, lead: int
) -> None:
    settings = settings_for(lead, publish_every=2 if lead else 1)
    whole = session(tmp_path / "whole", settings, runtime)
    for stop_at in (7, 18):
        assert session(tmp_path / "parts", settings, runtime, stop_at=stop_at).updates == stop_at
    parts = session(tmp_path / "parts", settings, runtime)
    assert parts.updates == 30
    assert fingerprint(parts.weights) == fingerprint(whole.weights)
    again = replay(toy_replay_stations(), read_events(tmp_path / "parts" / "events.jsonl"))
    assert fingerprint(again.weights) == fingerprint(whole.weights)


def test_a_free_run_that_was_resumed_replays_to_the_same_bits(tmp_path: Path) -> None:
    """A draw that was made ahead of the checkpoint is not kept: the replayed run forgets it too."""
    ratio = ReplayRatio(20, min_size=12, samples_per_update=4, steps_per_ticket=4)
    settings = settings_for(2, dispatch="free", replay=ratio)
    session(tmp_path, settings, "threads", stop_at=9)
    result = session(tmp_path, settings, "threads")
    events = list(read_events(tmp_path / "events.jsonl"))
    assert sum(event["e"] == "draw" for event in events) > result.updates == 30
    assert fingerprint(replay(toy_replay_stations(), events).weights) == fingerprint(result.weights)


def test_a_checkpoint_with_a_replay_of_its_own_is_not_resumed_without_one(tmp_path: Path) -> None:
    toy = toy_replay_stations()
    inside = Stations(collector=toy.collector, learner=partial(WithReplay, toy.learner, ToyReplay))
    session(tmp_path / "shared", settings_for(1), stop_at=5)
    with pytest.raises(CheckpointError, match="written with a replay in its own role"):
        session(tmp_path / "shared", settings_for(1), stations=inside)
    session(tmp_path / "inside", settings_for(1), stop_at=5, stations=inside)
    with pytest.raises(CheckpointError, match="written without a replay in its own role"):
        session(tmp_path / "inside", settings_for(1))


class Saboteur(MemoryRecorder):
    """Sends a signal to a role's process when an update is recorded."""

    def __init__(self, runtime: Processes, update: int, what: signal.Signals) -> None:
        super().__init__()
        self._runtime, self._update, self._what = runtime, update, what
        self.killed = 0

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        super().record(time_s, kind, fields)
        if kind == "learn" and fields["u"] == self._update:
            self.killed = self._runtime.pid("replay")
            os.kill(self.killed, self._what)


@pytest.mark.parametrize(("what", "how"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGSTOP, "no answer within 10 s")])
def test_a_replay_whose_process_is_killed_or_frozen_ends_the_run_with_one_line_and_the_way_back(
    tmp_path: Path, what: signal.Signals, how: str
) -> None:
    runtime = Processes()
    settings = settings_for(1, save_every=5, deadlines=Deadlines(learn_s=10.0))
    log = Saboteur(runtime, 12, what)
    store = CheckpointStore(tmp_path / "checkpoints")
    with pytest.raises(RunFailed, match=rf"^replay\.\w+: .*{how}.*; what it held is gone: ") as caught:
        run(settings, runtime, recorder=log, checkpoints=store)
    assert log.killed
    line = str(caught.value)
    assert f"`headway resume {tmp_path}` goes back to checkpoint {store.all()[-1].name}" in line
    assert "\n" not in line
    whole = run(settings)
    assert fingerprint(session(tmp_path, settings).weights) == fingerprint(whole.weights), "and so it does"


def test_without_a_checkpoint_a_dead_replay_says_that_there_is_none() -> None:
    class Dying(SteadyWorkload):
        def fault(self, role: str, method: str, args: tuple[Any, ...]) -> Fault | None:
            return Fault.CRASH if (role, method) == ("replay", "update") else None

    with pytest.raises(RunFailed, match=r"^replay\.update: crashed; what it held is gone, and there is no checkpoint"):
        run(settings_for(1), Virtual(Dying(Constant(1.0), Constant(1.0))))


class ReplayFaults(FaultyWorkload):
    """The same faults, with the replay among those that fail, and calls to it that take time."""

    def duration_s(self, role: str, method: str, args: tuple[Any, ...]) -> float:
        if role == "replay":
            return self._faults.choice([0.0, 0.3, 2.0])
        return super().duration_s(role, method, args)

    def fault(self, role: str, method: str, args: tuple[Any, ...]) -> Fault | None:
        if role == "replay" and method != "start" and self._faults.random() < 0.002:
            return self._faults.choice([Fault.CRASH, Fault.HANG, Fault.RAISE])
        return super().fault(role, method, args)


def test_no_schedule_with_a_shared_replay_hangs_loses_a_ticket_or_draws_out_of_turn() -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(200):
        rng = random.Random(seed)
        settings = settings_for(
            rng.choice([0, 0.5, 1, 4]),
            updates=rng.randint(4, 25),
            collectors=rng.randint(1, 4),
            dispatch=rng.choice([None, "free"]),
            publish_every=rng.randint(1, 3),
            replay=ReplayRatio(rng.choice([0.5, 2, 8]), min_size=6, samples_per_update=4, steps_per_ticket=4),
            deadlines=Deadlines(collect_s=30, learn_s=60, start_s=20),
            retries=Retries(attempts_on_error=50, attempts_on_loss=50, max_restarts=500),
        )
        runtime = Virtual(ReplayFaults(Lognormal(1, 1), Exponential(0.5), seed=seed, crash=0.05, hang=0.02, error=0.05))
        recorder = MemoryRecorder()
        result: RunResult | RunFailed
        try:
            result = run(settings, runtime, recorder=recorder)
        except RunFailed as failure:
            result = failure
        if isinstance(result, RunFailed):
            assert str(result).startswith("replay."), f"schedule {seed}: {result}"
            assert "\n" not in str(result)
            outcomes["failed"] += 1
            continue
        outcomes["finished"] += 1
        assert result.ledger.closes
        kinds = [event["e"] for event in recorder.events]
        assert kinds.count("learn") == kinds.count("draw") == settings.plan.updates
        inserted = [index for event in recorder.events if event["e"] == "insert" for index in event["k"]]
        assert len(inserted) == len(set(inserted))
        again = replay(toy_replay_stations(), recorder.events)
        assert fingerprint(again.weights) == fingerprint(result.weights), f"schedule {seed}"
    assert outcomes["finished"] > 100
    assert outcomes["failed"] > 5


# -- what cannot be -----------------------------------------------------------------------------------


class Forgetful(ToyReplay):
    def sample(self, version: int) -> Any:
        return {"nothing": version}


class Empty(ToyReplay):
    def sample(self, version: int) -> Rollout:
        return Rollout({}, steps=0)


class Diverging(ToyDrawLearner):
    def learn(self, batch: Batch) -> LearnReport:
        report = super().learn(batch)
        report.feedback["priorities"][2] = np.nan
        return report


@pytest.mark.parametrize(
    ("changes", "settings", "line"),
    [
        ({"replay": Forgetful}, {}, r"^replay\.sample: TypeError: sample must return a Rollout, received dict$"),
        ({"replay": Empty}, {}, r"^replay\.sample: ValueError: sample returned a draw of 0 samples"),
        ({"learner": Diverging}, {}, r"^replay\.update: ValueError: priorities must be finite.* nan at position 2"),
        ({}, {"replay": None}, r"^there is a replay with its own role .*: set `replay`$"),
        ({"learner": ToyReplayLearner}, {}, r"^two replays: the learner keeps one"),
        ({"learner": ToyDrawLearner, "replay": None}, {}, r"^`replay` is set, but the learner has no insert method"),
    ],
    ids=["no rollout", "empty", "nan", "no ratio", "two", "none"],
)
def test_what_cannot_be_is_one_line(changes: dict[str, Any], settings: dict[str, Any], line: str) -> None:
    toy = toy_replay_stations()
    parts = {"collector": toy.collector, "learner": toy.learner, "replay": toy.replay, **changes}
    with pytest.raises(RunFailed, match=line):
        run(settings_for(1, **settings), stations=Stations(**parts))


class Talkative(ToyReplayLearner):
    def learn(self, batch: Batch) -> LearnReport:
        return LearnReport(samples=super().learn(batch).samples, feedback={"ids": []})


class TalkativeWithoutReplay(ToyLearner):
    def learn(self, batch: Batch) -> LearnReport:
        return LearnReport(super().learn(batch).metrics, feedback={"ids": []})


@pytest.mark.parametrize(("learner", "ratio"), [(Talkative, RATIO), (TalkativeWithoutReplay, None)])
def test_feedback_that_nobody_takes_is_refused(learner: Any, ratio: ReplayRatio | None) -> None:
    stations = Stations(collector=toy_stations().collector, learner=learner)
    with pytest.raises(RunFailed, match="learn reported feedback, but no replay has its own role to take it"):
        run(settings_for(1, replay=ratio), stations=stations)
