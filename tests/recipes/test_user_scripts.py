"""Scripts and command lines that users of other systems have run here, with nothing but their imports changed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from grpo_runs import make_material, tiny_values
from waiting import patient

from headway.cli import main

SCRIPTS = Path(__file__).parents[1] / "user_scripts"


def run_script(name: str, folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / name), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=patient(100),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("degree", "mode"), [(0, "SYNCHRONOUS"), (5, "ASYNCHRONOUS"), (-1, "ASYNCHRONOUS")])
@pytest.mark.parametrize("is_async_eval", [False, True])
def test_a_loop_around_the_coordinator_runs(degree: int, mode: str, is_async_eval: bool, tmp_path: Path) -> None:
    said = run_script("own_loop.py", tmp_path, str(degree), str(is_async_eval))
    for line in ("Async Training Statistics:", f"Mode: {mode}", "Train iterations: 12", "Avg eval time: "):
        assert line in said


@pytest.mark.parametrize("mode", ["sync", "async_low", "async_high", "async_eval", "auto_tune"])
def test_a_loop_of_coroutines_around_the_coordinator_runs(mode: str, tmp_path: Path) -> None:
    said = run_script("own_loop_of_coroutines.py", tmp_path, "--mode", mode)
    assert f"Mode: {'SYNCHRONOUS' if mode in ('sync', 'async_eval') else 'ASYNCHRONOUS'}" in said
    assert f"Train iterations: {3 if mode in ('sync', 'async_eval') else 10}" in said


def test_the_asynchronous_entry_of_lightzero_returns_a_policy(tmp_path: Path) -> None:
    said = run_script("cartpole_unizero_async.py", tmp_path)
    assert "exp_name=data/cartpole_async has no effect" in said.replace("\n", " ")


def test_the_same_file_runs_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--config", str(SCRIPTS / "cartpole_unizero_async.py"), "--runs", str(tmp_path), "--quiet"]
    assert main(["run", *words]) == 0
    assert "Stopped: reached 90 steps" in capsys.readouterr().out


def test_a_command_of_parallel_ppo_with_a_prioritized_replay_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = "--num_workers 2 --num_iterations 2 --batch_size 128 --buffer_capacity 100000 --per_alpha 0.6 --lr 3e-4"
    theirs += " --min_buffer_size 64 --weight_sync_interval 10 --per_beta_start 0.4 --eval_interval 100"
    theirs += " --save_interval 500 --num_epochs 1"
    small = "--num_envs 4 --segment_steps 16 --width 4 --runs"
    assert main(["run", "colorlines", *theirs.split(), *small.split(), str(tmp_path), "--quiet"]) == 0
    assert "Train iterations: 2" in capsys.readouterr().out


def test_a_file_of_fully_asynchronous_training_is_named_as_hydra_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--config-path", str(SCRIPTS), "--config-name", "fully_async"]
    assert main(["explain", "grpo", *words]) == 0
    said = capsys.readouterr().out
    assert "async_training.staleness_threshold=3  ->  max_lead=3" in said
    assert "async_training.max_sync_retries=3  ->  publish_attempts=4" in said
    assert "trainer.nnodes=2  ->  learner_ranks=8" in said
    assert main(["run", "grpo", "--config-path", str(SCRIPTS)]) == 2
    assert "--config-path FOLDER with --config-name NAME" in capsys.readouterr().err


def test_that_file_runs_on_one_processor_with_a_monitor_of_both_sides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_material(tmp_path)
    places = ["trainer.n_gpus_per_node=1", "trainer.nnodes=1", "trainer.device=cpu", "rollout.n_gpus_per_node=1"]
    values = {name: value for name, value in tiny_values(folder).items() if name not in ("device", "max_lead")}
    values |= {"updates": 2, "group_size": 2, "task_options": json.dumps(values["task_options"])}
    del values["tickets_per_batch"]  # the file says it
    words = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    theirs = ["--config-path", str(SCRIPTS), "--config-name", "fully_async", *places]
    watched = ["--monitor", f"{SCRIPTS / 'custom_monitor.py'}:custom_monitor", "--runs", str(tmp_path / "runs")]
    assert main(["run", "grpo", *theirs, *words, *watched, "--quiet"]) == 0
    said = capsys.readouterr()
    assert "Stopped: reached 2 updates" in said.out
    assert "ALARM by custom_monitor: Custom metric: " in said.err
