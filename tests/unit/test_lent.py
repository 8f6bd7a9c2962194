"""Payloads that stay with the learner: taken where somebody needs the value, given back when nobody does."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headway.coordinator.checkpoint import CheckpointStore
from headway.coordinator.checkpoint_best_weights import BestWeights, kept_weights
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.role_calls import RunFailed
from headway.coordinator.roles import Stations
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Plan, Retries, Settings
from headway.core.types import Batch, LearnReport, Rollout, Score, Snapshot, Ticket
from headway.core.types_lent import Lent, LentLost, taken
from headway.runs.event_log import MemoryRecorder
from headway.runtimes.inline import Inline
from headway.runtimes.threads import Threads


class Keeper:
    """What a learner lends, counted."""

    def __init__(self, failures: int = 0) -> None:
        self.kept: dict[int, int] = {}
        self.given_back: Counter[int] = Counter()
        self.failures = failures

    def lend(self, value: int) -> Handle:
        key = len(self.kept)
        self.kept[key] = value
        return Handle(self, key)


class Handle(Lent):
    __slots__ = ("keeper", "key")

    def __init__(self, keeper: Keeper, key: int) -> None:
        self.keeper, self.key = keeper, key

    def __deepcopy__(self, memo: Any) -> Handle:
        return self

    def take(self) -> int:
        if self.keeper.failures:
            self.keeper.failures -= 1
            raise LentLost("it is silent")
        assert not self.keeper.given_back[self.key], "a value was taken after it was given back"
        return self.keeper.kept[self.key]

    def give_back(self) -> None:
        self.keeper.given_back[self.key] += 1


class Learner:
    def __init__(self, keeper: Keeper) -> None:
        self._keeper, self._value = keeper, 0

    def learn(self, batch: Batch) -> LearnReport:
        self._value += 10
        return LearnReport()

    def snapshot(self) -> Handle:
        return self._keeper.lend(self._value)

    def state_dict(self) -> int:
        return self._value

    def load_state_dict(self, state: int) -> None:
        self._value = state


class Collector:
    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        value = taken(snapshot.payload)
        assert value == 10 * snapshot.version
        return Rollout(value)


class Evaluator:
    def evaluate(self, snapshot: Snapshot, seed: int) -> Score:
        return Score(snapshot.version, float(taken(snapshot.payload)))


def run(keeper: Keeper, folder: Path, runtime: Any, *, log: MemoryRecorder | None = None, **more: Any) -> RunResult:
    stations = Stations(lambda number: Collector(), lambda: Learner(keeper), Evaluator)
    plan = Plan(updates=6, evaluate_every=2, save_every=2)
    settings = Settings(plan=plan, max_lead=2, collectors=2, retries=Retries(publish_attempts=3, publish_delay_s=0.0))
    store, best = CheckpointStore(folder, keep=9), BestWeights(folder)
    coordinator = Coordinator(stations, settings, runtime, recorder=log, checkpoints=store, best=best, **more)
    result: RunResult = runtime.run(coordinator.run())
    return result


@pytest.mark.parametrize("runtime", [Inline, Threads])
def test_what_is_written_and_returned_is_the_value_and_every_older_handle_is_given_back_once(
    runtime: Any, tmp_path: Path
) -> None:
    keeper = Keeper()
    result = run(keeper, tmp_path, runtime())
    assert result.weights == 60 and kept_weights(tmp_path, "best").weights == 60
    states = [CheckpointStore(tmp_path).load(path) for path in CheckpointStore(tmp_path).all()]
    assert {version: w for state in states for version, w in state.snapshots.items()} == {
        version: 10 * version for state in states for version in state.snapshots
    }
    assert keeper.given_back == Counter(range(6))  # all but the newest, which ends with the run

    resumed = run(Keeper(), tmp_path / "more", Inline(), resume=states[0])
    assert resumed.weights == 60


def test_what_cannot_be_taken_is_staged_again(tmp_path: Path) -> None:
    class Silent(Keeper):
        def lend(self, value: int) -> Handle:
            if value == 20 and not any(kept == 20 for kept in self.kept.values()):
                self.failures = 1  # the first to take anything finds nobody
            return super().lend(value)

    keeper, log = Silent(), MemoryRecorder()
    stations = Stations(lambda number: Idle(), lambda: Learner(keeper))
    settings = Settings(plan=Plan(updates=4, save_every=2), max_lead=0, retries=Retries(publish_delay_s=0.0))
    runtime = Inline()
    store = CheckpointStore(tmp_path)
    result = runtime.run(Coordinator(stations, settings, runtime, recorder=log, checkpoints=store).run())
    assert result.weights == 40
    assert [event["v"] for event in log.events if event["e"] == "restage"] == [2]


class Idle:
    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        return Rollout(0)


def test_what_can_never_be_taken_ends_the_run_in_one_line(tmp_path: Path) -> None:
    keeper = Keeper(failures=10**6)
    stations = Stations(lambda number: Idle(), lambda: Learner(keeper))
    retries = Retries(publish_attempts=2, publish_delay_s=0.0)
    settings = Settings(plan=Plan(updates=2), max_lead=0, retries=retries)
    runtime = Inline()
    with pytest.raises(RunFailed, match="version 2 was lost more than publish_attempts times"):
        runtime.run(Coordinator(stations, settings, runtime).run())
