"""What a run promises of its folder: one run at a time, something to go on from, no observer that can stop it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from command_runs import refused, run_of
from waiting import patient, wait_until

from headway.cli import main
from headway.coordinator.checkpoint import CheckpointStore, RunState
from headway.coordinator.checkpoint_best_weights import kept_weights
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.role_calls import RunFailed
from headway.coordinator.settings import Deadlines, Plan, Settings
from headway.runs.event_log import MemoryRecorder, read_events
from headway.runs.fingerprint import fingerprint
from headway.runs.folder import FolderInUse, RunFolder
from headway.runs.launch_of_functions import run
from headway.runs.launch_session import launch
from headway.runtimes.build import build_runtime
from headway.runtimes.virtual import Virtual
from headway.testing.toy_stations import Pause, pinned_loop, toy_stations
from headway.tools.simulate.workloads import Constant, SteadyWorkload

ENOUGH_S = patient(60)
LONG = ["--updates", "100000", "--collect_ms", "2", "--train_ms", "2", "--evaluate_every", "0"]
Output = pytest.CaptureFixture[str]


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@contextmanager
def live_run(runs: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], RunFolder]]:
    """A run by the command line in a process of its own, once it trains."""
    command = [sys.executable, "-m", "headway", "run", "functions", *LONG, "--quiet", "--report", "false", *words]
    with subprocess.Popen(
        [*command, "--tensorboard", "false", "--runs", str(runs)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            wait_until(lambda: list(runs.glob("*/events.jsonl")), what="a run")
            folder = RunFolder(next(runs.iterdir()))
            wait_until(lambda: b'"learn"' in folder.events.read_bytes(), what="training")
            yield process, folder
        finally:
            process.kill()


# -- one run at a time ------------------------------------------------------------------------------


def test_a_second_run_in_a_folder_is_refused_in_one_line_with_the_process(tmp_path: Path, capsys: Output) -> None:
    with live_run(tmp_path / "runs") as (process, folder):
        expected = f"{folder.path} is in use by process {process.pid}"
        assert refused(capsys, "resume", str(folder.path)) == expected
        with pytest.raises(FolderInUse, match=str(process.pid)):
            launch(toy_stations(), Settings(plan=Plan(updates=1)), folder=folder, resume=True)
        before = size(folder.events)
        wait_until(lambda: size(folder.events) > before, what="the first run going on")
        process.kill()
        process.wait()
    again = RunFolder(folder.path)
    with again.hold(), again.hold():  # the lock ended with its process; who holds it may hold it again
        pass


def test_removing_the_lock_file_lets_nobody_into_a_folder_where_a_run_lives(tmp_path: Path, capsys: Output) -> None:
    with live_run(tmp_path / "runs") as (process, folder):
        (folder.path / "run.lock").unlink()
        assert refused(capsys, "resume", str(folder.path)) == f"{folder.path} is in use by process ?"
        process.terminate()
        assert process.wait(ENOUGH_S) == 0, process.stderr
    assert sum(event["e"] == "run" for event in read_events(folder.events)) == 1


def test_a_folder_that_is_moved_ends_its_run_in_a_line_with_the_way_back(tmp_path: Path) -> None:
    with live_run(tmp_path / "runs", "--save_every", "10") as (process, folder):
        wait_until(lambda: CheckpointStore(folder.checkpoints).all(), what="a checkpoint")
        moved = folder.path.rename(tmp_path / "moved")
        _, said = process.communicate(timeout=ENOUGH_S)
    newest = CheckpointStore(moved / "checkpoints").all()[-1].name
    way_back = f"to go on from checkpoint {newest}: headway resume {moved}"
    assert said == f"headway: {folder.path} was moved to {moved} while the run went on; {way_back}\n"
    assert process.returncode == 1
    assert not folder.path.exists(), "nothing is made in its place"
    assert main(["resume", str(moved), "--updates", newest.partition("-v")[2], "--quiet"]) == 0


def test_a_folder_that_is_deleted_ends_its_run_in_a_line(tmp_path: Path) -> None:
    with live_run(tmp_path / "runs", "--save_every", "10") as (process, folder):

        def is_gone() -> bool:
            shutil.rmtree(folder.path, ignore_errors=True)  # the run may have written a file meanwhile
            return not folder.path.exists()

        wait_until(is_gone, what="the end of the folder")
        _, said = process.communicate(timeout=ENOUGH_S)
    assert said == (
        f"headway: {folder.path} was deleted or moved while the run went on: nothing more can be saved there\n"
    )
    assert process.returncode == 1
    assert not folder.path.exists(), "nothing is made in its place"


def test_two_resumes_at_once_are_one_resume_and_one_refusal(tmp_path: Path) -> None:
    folder = run_of(tmp_path, "functions", updates=20, collect_ms=1, train_ms=1, evaluate_every=0)
    words = ["resume", str(folder.path), "--updates", "150", "--collect_ms", "5", "--quiet"]
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "headway", *words], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=ENOUGH_S) for process in both]
    assert sorted(process.returncode for process in both) == [0, 2], said
    (line,) = [err for process, (_, err) in zip(both, said, strict=True) if process.returncode == 2]
    assert "is in use by process" in line
    assert line.count("\n") == 1
    assert json.loads(folder.summary.read_text())["updates"] == 150
    assert sum(event["e"] == "run" for event in read_events(folder.events)) == 2


# -- something to go on from ------------------------------------------------------------------------


def test_a_run_that_is_killed_before_its_first_checkpoint_begins_again_in_its_folder(
    tmp_path: Path, capsys: Output
) -> None:
    with live_run(tmp_path / "runs", "--seed", "7") as (process, folder):
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not CheckpointStore(folder.checkpoints).all()
    capsys.readouterr()
    assert main(["resume", str(folder.path), "--updates", "40", "--quiet"]) == 0
    assert "nothing was saved yet" in capsys.readouterr().err
    alone = run_of(tmp_path / "alone", "functions", updates=40, evaluate_every=0, seed=7, collect_ms=2, train_ms=2)
    assert folder.recorded_fingerprint() == alone.recorded_fingerprint()
    learned = [event["k"] for event in read_events(folder.events) if event["e"] == "learn"]
    assert learned == [[number] for number in range(40)], "every ticket once"


def test_a_folder_without_a_run_is_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no checkpoint in .*: nothing was saved yet"):
        launch(toy_stations(), Settings(plan=Plan(updates=1)), folder=RunFolder(tmp_path), resume=True)


def saves_of(recorder: MemoryRecorder) -> list[float]:
    return [event["t"] for event in recorder.events if event["e"] == "save"]


@pytest.mark.parametrize(("save_every_s", "expected"), [(300.0, 300.0), (60.0, 60.0), (0.0, None)])
def test_a_run_saves_by_the_clock(tmp_path: Path, save_every_s: float, expected: float | None) -> None:
    place, recorder = Virtual(SteadyWorkload(Constant(1.0), Constant(10.0), Constant(1.0))), MemoryRecorder()
    settings = Settings(plan=Plan(updates=100, save_every_s=save_every_s), max_lead=1)
    store = CheckpointStore(tmp_path)
    place.run(Coordinator(toy_stations(), settings, place, recorder=recorder, checkpoints=store).run())
    saves = saves_of(recorder)
    if expected is None:
        assert len(saves) == 1, "at the end"
    else:
        assert len(saves) == 1001 // int(expected) + 1
        gaps = [after - before for before, after in pairwise(saves[:-1])]
        assert all(expected <= gap < expected + 11 for gap in gaps), gaps


def test_a_default_run_saves_by_the_clock() -> None:
    assert Plan(updates=1).save_every_s == 300.0


@pytest.mark.parametrize("runtime", ["inline", "threads"])
def test_a_run_that_ends_within_a_version_keeps_the_weights_it_ends_with(tmp_path: Path, runtime: str) -> None:
    def session(updates: int, *, resume: bool = False) -> Any:
        settings = Settings(plan=Plan(updates=updates), publish_every=4, max_lead=0)
        return launch(toy_stations(), settings, runtime=runtime, folder=RunFolder(tmp_path), resume=resume)

    first = session(10)
    assert first.version == 3, "two whole versions, and what was left"
    kept = kept_weights(tmp_path / "checkpoints")
    assert (kept.version, fingerprint(kept.weights)) == (3, fingerprint(first.weights))
    assert fingerprint(kept_weights(tmp_path / "checkpoints", 3).weights) == fingerprint(first.weights)
    second = session(16, resume=True)
    whole = Settings(plan=Plan(updates=16), publish_every=4, max_lead=0)
    assert fingerprint(second.weights) == fingerprint(pinned_loop(whole)), "who goes on completes the version"
    assert kept_weights(tmp_path / "checkpoints").version == second.version == 4


def test_damaged_best_weights_do_not_keep_a_run_from_going_on(tmp_path: Path, capsys: Output) -> None:
    folder = run_of(tmp_path, "functions", updates=20, collect_ms=0, train_ms=0, evaluate_every=10)
    kept = folder.checkpoints / "best.weights"
    kept.write_bytes(b"\0" * 100)
    capsys.readouterr()
    assert main(["resume", str(folder.path), "--updates", "40", "--quiet"]) == 0
    assert "best.weights cannot be read" in capsys.readouterr().err
    assert (folder.checkpoints / "damaged-best.weights").read_bytes() == b"\0" * 100
    assert kept_weights(folder.checkpoints, "best").version in (30, 40)


# -- settings of each session -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "first", "then"),
    [
        ("functions", {"updates": 20, "collect_ms": 0, "train_ms": 0}, {"updates": 30, "learning_rate": 0.5}),
        ("functions", {"updates": 20, "collect_ms": 0, "train_ms": 0}, {"updates": 30, "episodes": 16}),
        ("cartpole", {"updates": 4, "num_envs": 4, "final_learning_rate": 0.0}, {"updates": 8}),
        ("cartpole", {"updates": 4, "num_envs": 4}, {"updates": 8, "segment_steps": 8}),
        ("cartpole", {"updates": 4, "num_envs": 4}, {"updates": 8, "learning_rate": 1e-3}),
        ("colorlines", {"updates": 4, "num_envs": 4, "replay_mode": "shared", "batch_size": 32, "replay_min_size": 64},
         {"updates": 8, "learning_rate": 1e-3}),
    ],
)  # fmt: skip
def test_a_resumed_run_is_done_again_with_the_settings_each_part_had(
    tmp_path: Path, recipe: str, first: dict[str, Any], then: dict[str, Any], capsys: Output
) -> None:
    folder = run_of(tmp_path, recipe, **first, evaluate_every=0, target_score=None)
    words = [word for name, value in then.items() for word in (f"--{name}", str(value))]
    assert main(["resume", str(folder.path), *words, "--quiet", "--report", "false"]) == 0
    configs = [event["config"] for event in read_events(folder.events) if event["e"] == "run"]
    assert [{name: config[name] for name in then} for config in configs][1] == then
    assert configs[0]["updates"] == first["updates"]
    assert main(["run", "--replay", str(folder.path)]) == 0
    assert "the same bits as recorded" in capsys.readouterr().out


def test_settings_of_a_resume_that_is_killed_stay(tmp_path: Path) -> None:
    with live_run(tmp_path / "runs", "--save_every", "5") as (process, folder):
        wait_until(lambda: CheckpointStore(folder.checkpoints).all(), what="a checkpoint")
        process.kill()
        process.wait()
    command = [sys.executable, "-m", "headway", "resume", str(folder.path), "--learning_rate", "0.125", "--quiet"]
    before = folder.config.read_text()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: folder.config.read_text() != before, what="the new settings")
        process.kill()
    assert folder.read_config()[1]["learning_rate"] == 0.125


# -- observers --------------------------------------------------------------------------------------


def test_a_disk_without_room_for_the_log_does_not_end_a_run(tmp_path: Path, capsys: Output) -> None:
    folder = RunFolder(tmp_path)
    for path in (folder.metrics, folder.log, folder.samples):
        path.symlink_to("/dev/full")
    settings = Settings(plan=Plan(updates=30), max_lead=1)
    result = launch(toy_stations(), settings, runtime="threads", folder=folder, statistics_every_s=0.01)
    assert result.updates == 30
    said = capsys.readouterr().err
    assert f"cannot write {folder.log}: No space left on device" in said
    assert "the metrics sink JsonLines is off, the run goes on" in said
    assert "Traceback" not in said


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
import headway
import headway.runs.files_run_files
headway.runs.files_run_files.TRACE_UP_TO_BYTES = 0
result = headway.run(
    lambda weights, ticket: ticket.index,
    lambda weights, rollouts: weights + rollouts[0],
    weights=0, updates=2000, save_every=500, folder=sys.argv[1], runtime="inline", statistics_every_s=0,
)
print(result.updates, result.weights)
"""


def test_an_event_log_that_may_not_grow_does_not_end_a_run_and_its_checkpoints_are_whole(
    tmp_path: Path, capsys: Output
) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ENOUGH_S, check=False)
    assert done.stdout.split() == ["2000", str(sum(range(2000)))], done.stderr
    lines = [line for line in done.stderr.splitlines() if "events.jsonl" in line]
    assert len(lines) == 2, done.stderr
    assert "events.jsonl: File too large; the run goes on" in lines[0]
    assert "events.jsonl is off" in lines[1]
    assert list(read_events(tmp_path / "events.jsonl")), "what is there is whole lines"
    again = run(
        lambda weights, ticket: ticket.index,
        lambda weights, rollouts: weights + rollouts[0],
        weights=0,
        updates=2010,
        folder=tmp_path,
        resume=True,
        runtime="inline",
    )
    assert again.weights == sum(range(2010)), "nothing lost, nothing twice"
    assert "cannot be replayed from its beginning" in capsys.readouterr().err


class StuckStore(CheckpointStore):
    """A disk that does not answer while a checkpoint is written."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.answers = threading.Event()

    def save(self, state: RunState) -> Path:
        self.answers.wait(ENOUGH_S)
        return super().save(state)


@pytest.mark.parametrize("runtime", ["threads", "processes"])
def test_a_checkpoint_that_is_never_written_ends_the_run_with_one_line(tmp_path: Path, runtime: str) -> None:
    store, place = StuckStore(tmp_path), build_runtime(runtime)
    settings = Settings(plan=Plan(updates=10, save_every=2), max_lead=1, deadlines=Deadlines(save_s=0.2))
    with pytest.raises(RunFailed) as failed:
        place.run(Coordinator(toy_stations(), settings, place, checkpoints=store).run())
    assert str(failed.value) == "the disk has not taken the checkpoint of version 2 within save_deadline_s=0.2"
    store.answers.set()


def test_a_run_without_updates_is_looked_at_and_its_alarm_rings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.runs.sinks.LOOK_AT_LEAST_EVERY_S", 0.0)
    monkeypatch.setattr("headway.runs.console_run_status.LOOK_EVERY_S", 0.02)
    rang = threading.Event()
    folder = RunFolder(tmp_path)

    def collect(weights: int, ticket: Any) -> int:
        until = time.monotonic() + ENOUGH_S
        while not rang.is_set() and time.monotonic() < until:
            time.sleep(0.01)
            if folder.events.exists() and b'"e":"alarm","name":"no_update_s","on":true' in folder.events.read_bytes():
                rang.set()
        return 1

    result = run(
        collect,
        lambda weights, rollouts: weights + 1,
        weights=0,
        updates=3,
        folder=tmp_path,
        alarms={"no_update_s": 0.05},
        metrics_interval_s=0.0,
    )
    assert rang.is_set()
    assert result.updates == 3
    looks = [event["t"] for event in read_events(folder.events) if event["e"] == "look"]
    first = next(event["t"] for event in read_events(folder.events) if event["e"] == "learn")
    assert sum(time_s < first for time_s in looks) >= 4


def test_a_log_on_a_disk_that_does_not_answer_does_not_keep_a_run_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    """A pipe that is full and that nobody reads is such a disk."""
    monkeypatch.setattr("headway.runs.log_file.CLOSE_WITHIN_S", 0.5)
    folder = RunFolder(tmp_path)
    os.mkfifo(folder.log)
    reader = os.open(folder.log, os.O_RDONLY | os.O_NONBLOCK)
    filler = os.open(folder.log, os.O_WRONLY | os.O_NONBLOCK)
    while True:
        try:
            os.write(filler, b"x" * 4096)
        except BlockingIOError:
            break
    settings = Settings(plan=Plan(updates=30))
    result = launch(toy_stations(Pause(0.001)), settings, runtime="threads", folder=folder, statistics_every_s=0.01)
    assert result.updates == 30
    assert f"{folder.log} is off, the run goes on without it" in capsys.readouterr().err
    os.close(filler)
    os.close(reader)
