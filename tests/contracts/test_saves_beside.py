"""A learner that writes its state while it goes on: a checkpoint is whole or absent, training does not wait for it."""

from __future__ import annotations

import errno
import json
import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headway.coordinator.checkpoint import CheckpointError, CheckpointStore
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.role_calls import RunFailed
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Deadlines, Plan, Settings
from headway.coordinator.state_files_saved_beside import SavedBeside, SavedSoon
from headway.core.types import Batch, LearnReport
from headway.runs.event_log import MemoryRecorder
from headway.runs.fingerprint import fingerprint
from headway.runtimes.build import build_runtime
from headway.testing.toy_stations import ToyLearner, pinned_loop, toy_stations
from headway.tools.report.recorded_run_run_history import tell
from headway.tools.report.what_if_fitting import fit

NOTE = "shard-00000.note"
NUM_UPDATES = 12
SETTINGS = Settings(plan=Plan(updates=NUM_UPDATES, save_every=2), max_lead=1, tickets_per_batch=2, seed=3)


class WritesLater(ToyLearner):
    """Its files are there when it has learned `later` times more, or for the last time; with `is_stuck` never."""

    saves_beside = True

    def __init__(self, later: int, problem: str = "", *, is_stuck: bool = False) -> None:
        super().__init__()
        self._later, self._problem, self._is_stuck = later, problem, is_stuck
        self._updates = 0
        self._begun: list[tuple[int, Path, bytes]] = []

    def learn(self, batch: Batch) -> LearnReport:
        report = super().learn(batch)
        self._updates += 1
        self._write()
        return report

    def save_beside(self, folder: str) -> SavedSoon:
        Path(folder).mkdir()
        state = pickle.dumps({**self.state_dict(), "updates": self._updates})
        self._begun.append((min(self._updates + self._later, NUM_UPDATES), Path(folder), state))
        self._write()
        return SavedSoon(folder, {}, None, (NOTE,))

    def _write(self) -> None:
        while self._begun and self._updates >= self._begun[0][0] and not self._is_stuck:
            _, folder, state = self._begun.pop(0)
            (folder / "state").write_bytes(state)
            said: dict[str, Any] = {"files": {"state": len(state)}}
            if self._problem:
                said = {"error": self._problem, "errno": errno.ENOSPC, "path": str(folder / "state")}
            (folder / NOTE).write_text(json.dumps(said))

    def load_state_dict(self, state: Any) -> None:
        assert isinstance(state, SavedBeside)
        found = pickle.loads((Path(state.folder) / "state").read_bytes())
        self._updates = found["updates"]
        super().load_state_dict(found)


def run(
    folder: Path, learner: Any, runtime: str = "threads", *, settings: Settings = SETTINGS, going_on: str = ""
) -> tuple[RunResult, list[dict[str, Any]]]:
    recorder, place = MemoryRecorder(), build_runtime(runtime)
    store = CheckpointStore(folder, keep=20)
    resume = store.load(store.find(going_on)) if going_on else None
    stations = replace(toy_stations(evaluates=False), learner=learner)
    coordinator = Coordinator(stations, settings, place, recorder=recorder, checkpoints=store, resume=resume)
    return place.run(coordinator.run()), recorder.events


@pytest.mark.parametrize("runtime", ["inline", "threads", "processes"])
def test_learning_goes_on_while_a_checkpoint_is_written(runtime: str, tmp_path: Path) -> None:
    """The first one is written while version 7 is made: 4 and 6 come due meanwhile. No bit depends on any of it."""
    result, events = run(tmp_path, partial(WritesLater, 5), runtime)
    assert fingerprint(result.weights) == fingerprint(pinned_loop(SETTINGS))
    kinds = [(event["e"], event.get("v")) for event in events if event["e"] in ("save", "skip_save", "publish")]
    assert kinds.index(("save", 2)) > kinds.index(("publish", 6))
    skipped = [version for kind, version in kinds if kind == "skip_save"]
    saved = [version for kind, version in kinds if kind == "save"]
    assert skipped[:2] == [4, 6]
    assert saved[0] == 2
    assert saved[-1] == NUM_UPDATES
    assert {*skipped, *saved} == {2, 4, 6, 8, 10, 12}
    asked = [one.seconds for one in tell(events).intervals if (one.role, one.what) == ("learner", "state")]
    assert len(asked) == len(saved)
    fitted: Any = fit(tell(events)).save  # what a save costs is what the learner was asked for, not until it was there
    assert [fitted.nth(place) for place in range(len(asked))] == asked
    assert [path.name.rpartition("v")[2] for path in CheckpointStore(tmp_path).all()] == [str(v) for v in saved]
    resumed, _ = run(tmp_path, partial(WritesLater, 0), runtime, going_on="000000-v2")
    assert fingerprint(resumed.weights) == fingerprint(result.weights)


def test_what_is_written_at_once_is_never_skipped(tmp_path: Path) -> None:
    """Whoever is asked again only when its files are there saves as often as it is asked."""
    settings = replace(SETTINGS, plan=Plan(updates=NUM_UPDATES, save_every=6))
    _, events = run(tmp_path, partial(WritesLater, 0), "inline", settings=settings)
    assert [event["v"] for event in events if event["e"] == "save"][-1] == NUM_UPDATES
    assert CheckpointStore(tmp_path).load().version == NUM_UPDATES


def test_what_a_rank_cannot_write_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as failed:
        run(tmp_path, partial(WritesLater, 2, "No space left on device"))
    assert failed.value.errno == errno.ENOSPC
    assert failed.value.filename.endswith("state")
    with pytest.raises(CheckpointError, match="nothing was saved yet"):
        CheckpointStore(tmp_path).load()


def test_what_is_never_written_ends_the_run_within_the_deadline_and_names_the_shard(tmp_path: Path) -> None:
    settings = replace(SETTINGS, deadlines=Deadlines(save_s=0.2))
    line = r"^the checkpoint of version 2 was not written within save_deadline_s=0.2: no shard-00000.note$"
    with pytest.raises(RunFailed, match=line):
        run(tmp_path, partial(WritesLater, 1, is_stuck=True), settings=settings)
    assert CheckpointStore(tmp_path).all() == []


def test_a_state_whose_files_are_not_there_yet_is_no_checkpoint(tmp_path: Path) -> None:
    learner = WritesLater(1)
    soon = learner.save_beside(str(tmp_path / "learner"))
    assert soon.when_written() is None
    assert soon.unwritten() == NOTE
    assert soon.missing() == f"{tmp_path / 'learner'} is still being written"
