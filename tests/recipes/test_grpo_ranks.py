"""Runs of the GRPO recipe whose learner is spread over processes: one update, however many share it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from waiting import patient

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from running_processes import wait_until_gone  # noqa: E402
from test_learner_ranks import descendants  # noqa: E402

from headway import cli  # noqa: E402
from headway.coordinator.checkpoint import CheckpointStore  # noqa: E402
from headway.testing.tiny_models import save_tiny_model  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("ranks")
    save_tiny_model(root / "model")
    tiny = {"model": root / "model", "task": "arithmetic", "max_tokens": 6, "max_prompt_tokens": 96, "group_size": 3}
    more = {"tickets_per_batch": 4, "learning_rate": 1e-3, "evaluate_every": 0, "device": "cpu", "adam_eps": 1e-3}
    more |= {"start_deadline_s": 300}
    return [word for name, value in (tiny | more).items() for word in (f"--{name}", str(value))] + ["--quiet"]


def run(runs: Path, words: list[str], *more: str) -> tuple[dict[str, Any], Path]:
    assert cli.main(["run", "grpo", "--runs", str(runs), *words, *more]) == 0
    (folder,) = runs.iterdir()
    return json.loads((folder / "summary.json").read_text()), folder


def weights(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = CheckpointStore(folder / "checkpoints").load().learner["weights"]
    return found


@pytest.mark.parametrize("critic", [(), ("--estimator", "ppo", "--critic", "own")], ids=["grpo", "ppo"])
def test_two_ranks_learn_what_one_learns_with_the_same_bits_on_every_runtime(
    tmp_path: Path, words: list[str], critic: tuple[str, ...]
) -> None:
    options = ("--updates", "3", "--max_lead", "0", *critic)
    _, alone = run(tmp_path / "one", words, *options, "--runtime", "inline")
    prints, folders = set(), []
    for runtime in ("inline", "processes"):
        summary, folder = run(tmp_path / runtime, words, *options, "--learner_ranks", "2", "--runtime", runtime)
        prints.add(summary["fingerprint"])
        folders.append(folder)
    assert len(prints) == 1
    one, two = weights(alone), weights(folders[0])
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-5


def test_a_rank_killed_in_the_middle_is_one_line_and_the_run_goes_on_with_another_number_of_ranks(
    tmp_path: Path, words: list[str]
) -> None:
    more = ["--learner_ranks", "2", "--updates", "200", "--num_epochs", "20", "--save_every", "1"]
    command = [sys.executable, "-m", "headway.cli", "run", "grpo", "--runs", str(tmp_path), *words, *more]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + patient(400)
    while not list(tmp_path.glob("*/checkpoints/*-v2/manifest.json")):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "no checkpoint in time"
        time.sleep(0.05)
    family = descendants(process.pid)
    (rank,) = [pid for pid, line in family.items() if line.rstrip().endswith("headway learner rank 1 of 2")]
    os.kill(rank, signal.SIGKILL)
    _, said = process.communicate(timeout=patient(100))
    assert process.returncode == 1
    assert "learner.learn: RankFailed: rank 1 of 2 was killed by SIGKILL" in said
    assert "Traceback" not in said
    wait_until_gone(family)
    (folder,) = tmp_path.iterdir()
    assert cli.main(["resume", str(folder), "--updates", "4", "--learner_ranks", "1", "--quiet"]) == 0
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["complete"]
    assert summary["updates"] >= 4
