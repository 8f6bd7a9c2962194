"""Runs whose learner is cut into shards over processes: the same update, checkpoints in files, other numbers of ranks.

Ranks are processes on CPUs. With GPUs they are the same but for NCCL and bfloat16, which needs two GPUs.
"""

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

from grpo_runs import tiny  # noqa: E402
from running_processes import wait_until_gone  # noqa: E402
from test_grpo_ranks import run, words  # noqa: E402, F401
from test_learner_ranks import descendants  # noqa: E402

from headway import cli  # noqa: E402
from headway.coordinator.checkpoint import CheckpointStore  # noqa: E402
from headway.coordinator.state_files_saved_beside import SavedBeside  # noqa: E402
from headway.llm.train.shard_files import SavedShards  # noqa: E402


def saved_weights(folder: Path) -> dict[str, Any]:
    learner = CheckpointStore(folder / "checkpoints").load().learner
    assert isinstance(learner, SavedBeside)
    saved = SavedShards(Path(learner.folder))
    return {name.split("/", 2)[2]: saved.read(name) for name in saved.shapes if "/weights/" in name}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_in_shards_learns_what_one_rank_learns_and_goes_on_with_one(
    tmp_path: Path,
    words: list[str],  # noqa: F811
) -> None:
    options = ("--updates", "2", "--max_lead", "0", "--runtime", "inline", "--sharding", "full")
    _, alone = run(tmp_path / "one", words, *options)
    _, folder = run(tmp_path / "two", words, *options, "--learner_ranks", "2")
    one, two = saved_weights(alone), saved_weights(folder)
    assert one.keys() == two.keys()
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-5
    assert cli.main(["resume", str(folder), "--updates", "3", "--learner_ranks", "1", "--quiet"]) == 0
    assert json.loads((folder / "summary.json").read_text())["updates"] == 3


def killed_after_two_versions(runs: Path, options: list[str], victim: str) -> str:
    """What a run says whose process of this title is killed when it has saved version 2; nothing of it is left."""
    command = [sys.executable, "-m", "headway.cli", "run", "grpo", "--runs", str(runs), *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + patient(400)
    while not list(runs.glob("*/checkpoints/*-v2/manifest.json")):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "no checkpoint in time"
        time.sleep(0.05)
    family = descendants(process.pid)
    (pid,) = [pid for pid, line in family.items() if line.rstrip().endswith(victim)]
    os.kill(pid, signal.SIGKILL)
    _, said = process.communicate(timeout=patient(100))
    assert process.returncode == 1
    assert "Traceback" not in said
    wait_until_gone(family)
    return said


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_learner_killed_while_it_saves_is_one_line_and_the_resumed_run_has_the_bits_of_one_that_was_not(
    tmp_path: Path,
    words: list[str],  # noqa: F811
) -> None:
    """Every version is saved, beside the next one's update: wherever the kill comes, the last checkpoint is whole."""
    more = ["--learner_ranks", "2", "--sharding", "full", "--num_epochs", "8", "--max_lead", "0", "--save_every", "1"]
    more += ["--runtime", "processes"]
    said = killed_after_two_versions(tmp_path / "killed", [*words, *more, "--updates", "200"], "headway role learner")
    assert "learner" in said.splitlines()[-1]
    assert "killed by SIGKILL" in said
    (folder,) = (tmp_path / "killed").iterdir()
    assert cli.main(["resume", str(folder), "--updates", "6", "--quiet"]) == 0
    resumed = json.loads((folder / "summary.json").read_text())
    whole, _ = run(tmp_path / "whole", words, *more, "--updates", str(resumed["updates"]))
    assert resumed["fingerprint"] == whole["fingerprint"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_rank_killed_in_the_middle_is_one_line_and_the_run_goes_on_in_other_shards(
    tmp_path: Path,
    words: list[str],  # noqa: F811
) -> None:
    more = ["--learner_ranks", "2", "--sharding", "full", "--updates", "200", "--num_epochs", "20", "--save_every", "1"]
    more += [
        "--runtime",
        "processes",
        "--optimizer_state",
        "8bit",
        "--lora_rank",
        "4",
        "--gradient_checkpointing",
        "true",
    ]
    said = killed_after_two_versions(tmp_path, [*words, *more], "headway learner rank 1 of 2")
    assert "RankFailed: rank 1 of 2 was killed by SIGKILL" in said
    (folder,) = tmp_path.iterdir()
    assert cli.main(["resume", str(folder), "--updates", "4", "--learner_ranks", "3", "--quiet"]) == 0
    assert json.loads((folder / "summary.json").read_text())["updates"] >= 4


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"shard_ranks": 2}, "shard_ranks goes with sharding='hybrid', received shard_ranks=2"),
        ({"sharding": "hybrid"}, "shard_ranks goes with sharding='hybrid', received shard_ranks=None"),
        ({"sharding": "hybrid", "shard_ranks": 2, "learner_ranks": 3}, "shard_ranks=2 must divide learner_ranks=3"),
    ],
)
def test_shards_that_do_not_fit_the_ranks_are_refused(given: dict[str, Any], line: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=line):
        tiny(tmp_path, **given)
