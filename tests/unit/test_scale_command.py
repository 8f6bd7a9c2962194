"""`headway scale` and `Run.scale`: a run that goes on is told to have another number of collectors, or says why not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_runs import refused
from log_totals import audit as totals
from waiting import patient, wait_until

import headway
from headway.cli import main
from headway.coordinator.scaling import ScaleRefused
from headway.core.types import Ticket
from headway.runs import requests as run_requests
from headway.runs.event_log import read_events
from headway.runs.folder import RunFolder
from headway.runs.requests import ANSWER, ASK, ask_to_scale
from headway.testing.auditor import audit
from headway.tools.report.status import read_status


def collect(weights: float, ticket: Ticket) -> float:
    threading.Event().wait(0.01)
    return weights


def train(weights: float, rollouts: list[float]) -> float:
    return weights + 1


def start(folder: Path | None, collect: Any = collect, **more: Any) -> headway.Run:
    settings = {"max_lead": 8, "collectors": 2, "dispatch": "free", "updates": 1_000_000, **more}
    return headway.start(collect, train, weights=0.0, folder=folder, **settings)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Of a run that goes on."""
    path = tmp_path / "run"
    run = start(path)
    wait_until((path / "requests").is_dir, what="the run to listen")
    yield path
    run.stop()
    assert run.wait().stop_reason == "interrupted by stop()"
    assert not (path / "requests").exists()
    assert audit(list(read_events(path / "events.jsonl"))) == []


def scaled(path: Path) -> list[tuple[int, int]]:
    return [(e["before"], e["collectors"]) for e in read_events(path / "events.jsonl") if e["e"] == "scale"]


def test_a_run_in_the_background_gets_more_collectors_and_fewer() -> None:
    run = start(None)
    change = run.scale(4)
    assert (change.before, change.now) == (2, 4)
    assert change.line() == "2 -> 4 collectors: collector-2 to collector-3 take tickets now"
    wait_until(lambda: {role.role for role in run.status().roles} >= {"collector-3"})
    assert run.scale(3).line() == "4 -> 3 collectors: collector-3 leaves when its last tickets have landed"
    wait_until(lambda: "collector-3" not in run.why(), what="collector-3 to leave")
    with pytest.raises(ScaleRefused, match="there are 3 collectors already"):
        run.scale(3)
    run.stop()
    run.wait()
    with pytest.raises(ScaleRefused, match="the run is over"):
        run.scale(5)


def test_the_command_says_what_came_of_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", str(folder), "--collectors", "5"]) == 0
    assert capsys.readouterr().out == "2 -> 5 collectors: collector-2 to collector-4 take tickets now\n"
    wait_until(lambda: len([r for r in read_status(folder).status.roles if r.role.startswith("collector")]) == 5)
    assert main(["scale", str(folder), "--collectors", "1"]) == 0
    wait_until(lambda: scaled(folder) == [(2, 5), (5, 1)], what="both changes in the log")
    wait_until(lambda: len([r for r in read_status(folder).status.roles if r.role.startswith("collector")]) == 1)
    assert list((folder / "requests").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--collectors", "2"], "there are 2 collectors already"),
        (["--collectors", "0"], "--collectors must be a whole number from 1 on, received 0"),
        (["--collectors", "-3"], "--collectors must be a whole number from 1 on, received -3"),
        (["--collectors", "many"], "--collectors must be a whole number from 1 on, received 'many'"),
        (["--collectors", "100001"], "a run has 1 to 100000 collectors, received 100001"),
        (["--collectors", "3", "--within", "0"], "--within must be a number of seconds, received 0"),
        (["--learners", "3"], "unknown option 'learners'; allowed: collectors, within"),
        ([], "how many? headway scale {run} --collectors N"),
        (["--collectors"], "how many? headway scale {run} --collectors N"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(
    words: list[str], why: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, "scale", str(folder), *words) == why.format(run=folder)
    assert scaled(folder) == []


def test_a_run_that_is_over_or_was_killed_is_not_running(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run"
    start(path, updates=3).wait()
    assert refused(capsys, "scale", str(path), "--collectors", "3") == f"{path} is not running"
    (path / "requests").mkdir()  # as one that was killed leaves it
    environment = json.loads((path / "environment.json").read_text())
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    environment["sessions"][-1]["pid"] = int(ended.stdout)
    (path / "environment.json").write_text(json.dumps(environment))
    assert refused(capsys, "scale", str(path), "--collectors", "3") == f"{path} is not running"
    nowhere = tmp_path / "nowhere"
    assert refused(capsys, "scale", str(nowhere), "--collectors", "3") == f"no run folder at {nowhere}"
    assert "is not a run folder" in refused(capsys, "scale", str(tmp_path), "--collectors", "3")
    assert "needs the folder of a run" in refused(capsys, "scale")


def test_only_the_owner_of_a_run_may_change_it(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (folder / "requests").stat().st_mode & 0o777 == 0o700
    with monkeypatch.context() as patch:
        patch.setattr(run_requests.os, "geteuid", lambda: os.getuid() + 1)
        said = refused(capsys, "scale", str(folder), "--collectors", "3")
    assert said == f"{folder} belongs to user {os.getuid()}: only its owner may change a run"
    assert scaled(folder) == []


def test_what_is_no_small_plain_file_is_thrown_away_and_answered(folder: Path, tmp_path: Path) -> None:
    requests = folder / "requests"
    elsewhere = tmp_path / "secret.json"
    elsewhere.write_text(json.dumps({"collectors": 4}))
    (requests / f"{ASK}link.json").symlink_to(elsewhere)
    os.mkfifo(requests / f"{ASK}pipe.json")
    (requests / ".big").write_text(json.dumps({"collectors": 4, "more": "x" * 5000}))
    (requests / ".big").rename(requests / f"{ASK}big.json")
    (requests / ".text").write_text("collectors: 4")
    (requests / ".text").rename(requests / f"{ASK}text.json")
    (requests / ".flag").write_text(json.dumps({"collectors": True}))
    (requests / ".flag").rename(requests / f"{ASK}flag.json")
    names = ["link", "pipe", "big", "text", "flag"]
    wait_until(lambda: all((requests / f"{ANSWER}{name}.json").exists() for name in names), what="five answers")
    said = {name: json.loads((requests / f"{ANSWER}{name}.json").read_text())["refused"] for name in names}
    assert all(why.startswith("the request cannot be read: ") for why in said.values())
    assert "cannot be opened" in said["link"]
    assert "not a small file" in said["pipe"]
    assert "not a small file" in said["big"]
    assert "whole number" in said["flag"]
    assert elsewhere.exists()
    assert scaled(folder) == []
    for name in names:
        (requests / f"{ANSWER}{name}.json").unlink()
    assert ask_to_scale(RunFolder(folder), 3, patient(60)) == "2 -> 3 collectors: collector-2 takes tickets now"


def test_a_run_that_cannot_listen_goes_on_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    elsewhere.mkdir()
    path.mkdir()
    (path / "requests").symlink_to(elsewhere)
    assert start(path, updates=3).wait().updates == 3
    assert "`headway scale` cannot reach this run" in capsys.readouterr().err
    assert elsewhere.exists()


def test_a_run_that_does_not_answer_is_said_to_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the runtime inline the coordinator answers between two calls."""
    gate = threading.Event()

    def waits(weights: float, ticket: Ticket) -> float:
        assert gate.wait(patient(60))
        return weights

    run = start(tmp_path / "run", waits, runtime="inline", updates=3)
    wait_until((tmp_path / "run" / "requests").is_dir, what="the run to listen")
    assert main(["scale", str(tmp_path / "run"), "--collectors", "3", "--within", "0.5"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"headway: {tmp_path / 'run'} ")
    assert "after 0.5 s; what it does: headway status" in said
    assert said.count("\n") == 1
    gate.set()
    assert run.wait().updates == 3


@pytest.mark.parametrize("dispatch", ["free", "pinned"])
def test_a_scaled_run_that_is_killed_goes_on_with_the_number_it_had(tmp_path: Path, dispatch: str) -> None:
    options = ["--collect_ms", "3", "--train_ms", "3", "--evaluate_ms", "1", "--save_every", "4", "--quiet"]
    options += ["--collectors", "2", "--max_lead", "4", "--dispatch", dispatch, "--runs", str(tmp_path)]
    options += ["--report", "false", "--tensorboard", "false", "--runtime", "threads"]
    headway_command = [sys.executable, "-m", "headway.cli"]
    process = subprocess.Popen([*headway_command, "run", "functions", "--updates", "100000", *options])
    wait_until(lambda: any(tmp_path.glob("*/checkpoints/*/manifest.json")), 60, "a checkpoint")
    run = next(tmp_path.glob("*/checkpoints/*/manifest.json")).parents[2]
    assert ask_to_scale(RunFolder(run), 5, patient(60)).startswith("2 -> 5 collectors")
    known = {path.name for path in (run / "checkpoints").iterdir()}
    wait_until(
        lambda: len({path.parent.name for path in run.glob("checkpoints/*/manifest.json")} - known) > 1,
        60,
        "a checkpoint after the change",
    )
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (run / "requests").is_dir()
    updates = int(max(path.name for path in run.glob("checkpoints/[0-9]*")).partition("-v")[2]) + 40
    resumed = [*headway_command, "resume", str(run), "--updates", str(updates), "--quiet"]
    assert subprocess.run(resumed, timeout=patient(100), check=False).returncode == 0
    events = list(read_events(run / "events.jsonl"))
    assert [event["collectors"] for event in events if event["e"] == "run"] == [2, 5]
    assert audit(events) == []
    seen = totals(events)
    assert sorted(seen.learned) == list(range(updates))
    assert set(seen.learned.values()) == {1}
    replayed = [*headway_command, "run", "--replay", str(run)]
    again = subprocess.run(replayed, capture_output=True, text=True, timeout=patient(100), check=False)
    assert "the same bits as recorded" in again.stdout, again.stdout + again.stderr
    assert not (run / "requests").exists()
