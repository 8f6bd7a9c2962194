"""Sweeps as they are run: to their end, interrupted and gone on with, with killed workers and with runs that fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_runs import refused
from running_processes import all_children, is_running, wait_until_gone
from waiting import patient, wait_until

import headway
from headway.cli import main
from headway.tools.sweep.grid_folder import SweepFolder
from headway.tools.sweep.results import read_run

Output = pytest.CaptureFixture[str]
QUICK = ["--collect_ms", "0", "--train_ms", "0", "--evaluate_ms", "0", "--report", "false", "--tensorboard", "false"]
SLOW = ["--collect_ms", "10", "--train_ms", "10", "--evaluate_ms", "0", "--report", "false", "--tensorboard", "false"]


def only(root: Path) -> SweepFolder:
    (path,) = root.iterdir()
    return SweepFolder(path)


def results_in(folder: SweepFolder) -> dict[str, Any]:
    return dict(json.loads(folder.results.read_text()))


def what_was_learned(folder: SweepFolder) -> dict[str, tuple[object, ...]]:
    """Of each run: what the seed determines."""
    sweep = folder.read_plan()
    summaries = {run.folder: json.loads(folder.run_folder(run).summary.read_text()) for run in sweep.runs}
    steps = {run["folder"]: run["env_steps"] for run in results_in(folder)["runs"]}
    return {
        name: (told["fingerprint"], [score["value"] for score in told["scores"]], steps[name])
        for name, told in summaries.items()
    }


def started(root: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "headway", "sweep", *words, "--runs", str(root)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def updates_of(folder: SweepFolder) -> list[int]:
    """How far the runs of a sweep that goes on are, by their logs."""
    logs = [folder.run_folder(run).events for run in folder.read_plan().runs]
    return [log.read_text().count('"e":"learn"') if log.is_file() else 0 for log in logs]


def wait_for_updates(root: Path, each: int) -> SweepFolder:
    """Until the first runs have made so many."""
    wait_until(lambda: root.is_dir() and any((path / "sweep.yaml").is_file() for path in root.iterdir()), 60)
    folder = only(root)
    wait_until(lambda: sum(count >= each for count in updates_of(folder)) >= 2, 60, "two runs at work")
    return folder


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> SweepFolder:
    root = tmp_path_factory.mktemp("sweep") / "runs"
    words = ["--seeds", "2", "--learning_rate", "1,4", "--updates", "20", "--evaluate_every", "5", "--name", "toy"]
    assert main(["sweep", "functions", *words, *QUICK, "--workers", "2", "--runs", str(root), "--quiet"]) == 0
    return only(root)


def test_a_sweep_leaves_a_folder_for_each_run_and_what_they_come_to(swept: SweepFolder) -> None:
    assert swept.path.name.endswith("-toy")
    told = results_in(swept)
    assert [(run["setting"], run["seed"], run["state"], run["updates"]) for run in told["runs"]] == [
        ("learning_rate=1", 0, "finished", 20),
        ("learning_rate=1", 1, "finished", 20),
        ("learning_rate=4", 0, "finished", 20),
        ("learning_rate=4", 1, "finished", 20),
    ]
    for run in told["runs"]:
        summary = json.loads((swept.path / run["folder"] / "summary.json").read_text())
        assert run["last"]["score"] == pytest.approx(summary["scores"][-1]["value"], rel=1e-6)
        assert run["env_steps"] == 20 * 64
    finals = [run["last"]["score"] for run in told["runs"] if run["setting"] == "learning_rate=4"]
    (setting,) = [one for one in told["settings"] if one["label"] == "learning_rate=4"]
    assert setting["final"]["mean"] == pytest.approx([sum(finals) / 2, min(finals), max(finals)], rel=1e-6)
    curve = setting["curves"]["score"]["steps"]
    assert curve["x"] == [320, 640, 960, 1280]
    assert curve["mean"]["y"][-1] == pytest.approx(sum(finals) / 2, rel=1e-6)
    assert told["aggregates"][0]["label"] == "learning_rate=4"
    (pair,) = told["improvement"]
    assert (pair["better"], pair["than"], pair["probability"]) == (
        "learning_rate=4",
        "learning_rate=1",
        [1.0, 1.0, 1.0],
    )


def test_a_run_of_a_sweep_is_the_run_that_headway_run_makes(swept: SweepFolder, tmp_path: Path) -> None:
    words = ["--seed", "1", "--learning_rate", "4", "--updates", "20", "--evaluate_every", "5", *QUICK]
    assert main(["run", "functions", *words, "--runs", str(tmp_path), "--quiet"]) == 0
    (alone,) = tmp_path.iterdir()
    of_sweep = json.loads((swept.path / "learning_rate=4,seed=1" / "summary.json").read_text())
    assert json.loads((alone / "summary.json").read_text())["fingerprint"] == of_sweep["fingerprint"]


def test_the_tables_have_a_row_a_run_and_a_row_a_point(swept: SweepFolder) -> None:
    rows = swept.table.read_text().splitlines()
    assert rows[0] == "folder,learning_rate,seed,state,score,reward,best,env_steps,updates,seconds,error"
    assert len(rows) == 5
    points = [row for row in swept.curves.read_text().splitlines() if row.startswith("learning_rate=1,score,updates,")]
    assert [row.split(",")[3] for row in points] == ["5.0", "10.0", "15.0", "20.0"]


def test_a_sweep_that_is_over_has_nothing_to_go_on_with_and_its_files_are_made_anew(
    swept: SweepFolder, capsys: Output
) -> None:
    before = {path: path.stat().st_mtime_ns for path in swept.path.glob("*/summary.json")}
    swept.report.unlink()
    assert main(["resume", str(swept.path), "--quiet"]) == 0
    assert swept.report.is_file()
    swept.report.unlink()
    assert main(["report", str(swept.path)]) == 0
    assert swept.report.is_file()
    assert main(["status", str(swept.path)]) == 0
    assert capsys.readouterr().out.count("finished") >= 4
    assert {path: path.stat().st_mtime_ns for path in swept.path.glob("*/summary.json")} == before


def test_an_interrupted_sweep_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    words = ["functions", "--seeds", "3", "--updates", "200", "--evaluate_every", "10", "--workers", "2"]
    assert main(["sweep", *words, *QUICK, "--runs", str(tmp_path / "whole"), "--quiet"]) == 0
    whole = only(tmp_path / "whole")
    process = started(tmp_path / "cut", *words, *SLOW)
    folder = wait_for_updates(tmp_path / "cut", 5)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=patient(60))
    assert process.returncode == 130, out
    assert f"to go on: headway sweep --resume {folder.path}" in out
    states = {state.state for state in folder.read_states(folder.read_plan()).values()}
    assert "interrupted" in states and "running" not in states
    assert main(["sweep", "--resume", str(folder.path), "--quiet"]) == 0
    assert what_was_learned(folder) == what_was_learned(whole)


def test_a_sweep_that_is_killed_leaves_no_run_behind_and_goes_on(tmp_path: Path) -> None:
    words = ["functions", "--seeds", "2", "--updates", "200", "--save_every", "5", "--workers", "2"]
    process = started(tmp_path / "runs", *words, *SLOW, "--runtime", "processes")
    folder = wait_for_updates(tmp_path / "runs", 8)
    children = all_children(process.pid)
    assert len(children) >= 4, "two runs, and their roles"
    process.kill()
    process.communicate(timeout=patient(60))
    wait_until_gone(children)
    assert main(["resume", str(folder.path), "--quiet"]) == 0
    assert {run["updates"] for run in results_in(folder)["runs"]} == {200}


def test_a_run_whose_process_is_killed_is_started_again_from_its_checkpoint(tmp_path: Path) -> None:
    words = ["functions", "--seeds", "2", "--updates", "300", "--save_every", "5", "--workers", "2"]
    process = started(tmp_path / "runs", *words, *SLOW)
    folder = wait_for_updates(tmp_path / "runs", 12)
    victim = next(pid for pid in all_children(process.pid) if is_running(pid))
    os.kill(victim, signal.SIGKILL)
    out, _ = process.communicate(timeout=patient(120))
    assert process.returncode == 0, out
    assert "was killed by SIGKILL: it is started again from its last checkpoint" in " ".join(out.split())
    told = json.loads(folder.status.read_text())["runs"]
    assert sorted(state["attempts"] for state in told.values()) == [1, 2]
    assert {state["state"] for state in told.values()} == {"finished"}


OWN = """
from headway.runs import bandit as functions
from headway.coordinator.roles import Stations
import os
CONFIG = functions.CONFIG

def stations(config):
    if config.seed == 1 and not os.path.exists("mended"):
        raise ValueError("seed 1 is not for me")
    return functions.stations(config)
"""


def test_a_run_that_fails_is_said_in_a_line_and_tried_again_on_demand(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own_toy.py").write_text(OWN)
    assert main(["sweep", "own_toy.py", "--seeds", "2", "--updates", "5", *QUICK, "--workers", "2"]) == 1
    told = capsys.readouterr()
    assert "failed seed=1: seed 1 is not for me" in told.out
    folder = only(tmp_path / "runs")
    assert (
        f"1 of 2 runs failed; to try again: headway sweep --resume {Path('runs') / folder.path.name} --retry"
        in told.err
    )
    assert main(["sweep", "--resume", str(folder.path)]) == 1
    assert "left as it is (--retry): seed=1: seed 1 is not for me" in capsys.readouterr().out
    Path("mended").touch()
    assert main(["sweep", "--resume", str(folder.path), "--retry", "--quiet"]) == 0
    assert {run["state"] for run in results_in(folder)["runs"]} == {"finished"}


def test_two_sweeps_cannot_be_in_one_folder(swept: SweepFolder, capsys: Output) -> None:
    with swept.hold():
        assert f"{swept.path} is in use by process {os.getpid()}" in refused(capsys, "resume", str(swept.path))


def test_a_run_is_no_sweep(swept: SweepFolder, capsys: Output) -> None:
    line = refused(capsys, "sweep", "--resume", str(swept.path / "learning_rate=1,seed=0"))
    assert "is a run, not a sweep" in line


def test_a_sweep_from_python_returns_its_results(tmp_path: Path) -> None:
    quiet = {"collect_ms": 0, "train_ms": 0, "evaluate_ms": 0, "report": False, "tensorboard": False}
    told = headway.sweep(
        "functions",
        grid={"max_lead": [0, 1]},
        seeds=[4, 6],
        updates=6,
        runs=tmp_path,
        workers=2,
        say=lambda line: None,
        **quiet,
    )
    assert [(run["setting"], run["seed"]) for run in told["runs"]] == [
        ("max_lead=0", 4),
        ("max_lead=0", 6),
        ("max_lead=1", 4),
        ("max_lead=1", 6),
    ]


def test_several_environments_are_the_tasks_over_which_settings_are_compared(tmp_path: Path) -> None:
    words = ["--env", "CartPole-v1,Acrobot-v1", "--learning_rate", "1e-3,1e-2", "--seeds", "1", "--updates", "3"]
    small = ["--num_envs", "2", "--segment_steps", "8", "--evaluate_every", "3", "--eval_episodes", "2"]
    rest = ["--eval_max_steps", "20", "--report", "false", "--tensorboard", "false", "--workers", "2", "--quiet"]
    assert main(["sweep", "ppo", *words, *small, *rest, "--runs", str(tmp_path)]) == 0
    folder = only(tmp_path)
    told = results_in(folder)
    assert told["tasks"] == ["CartPole-v1", "Acrobot-v1"]
    assert sorted(one["label"] for one in told["aggregates"]) == ["learning_rate=0.001", "learning_rate=0.01"]
    assert all(one["runs"] == 2 and 0 <= one["iqm"][0] <= 1 for one in told["aggregates"])
    assert {"score", "score_length"} <= set(told["measures"])
    run = folder.read_plan().runs[0]
    assert read_run(folder, run, folder.read_states(folder.read_plan())[run.folder]).env_steps > 0
