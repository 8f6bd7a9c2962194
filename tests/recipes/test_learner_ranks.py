"""Runs whose learner is spread over processes: the same bits everywhere, and no harm when one is killed."""

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
from running_processes import is_running, wait_until_gone
from waiting import patient

from headway import cli
from headway.ppo.colorlines.recipe import ColorLinesConfig
from headway.ppo.colorlines.recipe import stations as colorlines
from headway.ppo.recipe_ppo import PPOConfig
from headway.ppo.recipe_ppo import stations as ppo
from headway.runs.config import ConfigError, read_values
from headway.runs.fingerprint import fingerprint
from headway.runs.launch_session import launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TINY = ["--num_envs", "5", "--segment_steps", "8", "--minibatch_size", "16", "--evaluate_every", "0", "--quiet"]


def run(runs: Path, *words: str) -> dict[str, Any]:
    assert cli.main(["run", "ppo", "--runs", str(runs), *TINY, *words]) == 0
    summary: dict[str, Any] = json.loads(next(runs.glob("*/summary.json")).read_text())
    return summary


def test_a_pinned_run_over_two_ranks_gives_the_same_bits_on_every_runtime(tmp_path: Path) -> None:
    prints = set()
    for runtime in ("inline", "threads", "processes"):
        words = ("--learner_ranks", "2", "--updates", "4", "--normalise", "true", "--runtime", runtime)
        summary = run(tmp_path / runtime, *words)
        prints.add(summary["fingerprint"])
        assert summary["updates"] == 4
    assert len(prints) == 1


@pytest.mark.parametrize("replay", ["none", "learner"])
def test_colour_lines_learns_over_ranks_what_it_learns_on_one(replay: str) -> None:
    weights = []
    for ranks in (1, 2):
        config = ColorLinesConfig(
            updates=2,
            num_envs=5,
            segment_steps=8,
            width=4,
            num_epochs=1,
            batch_size=16,
            lr=3e-4,
            max_lead=0,
            evaluate_every=0,
            learner_ranks=ranks,
            runtime="inline",
            **({} if replay == "none" else {"replay_mode": replay, "replay_min_size": 40}),
        )
        weights.append(launch(colorlines(config), config.settings(), runtime="inline").weights)
    one, two = weights
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-5
    assert fingerprint(one) != fingerprint(colorlines(config).learner().snapshot())


def test_threads_of_torch_are_those_of_every_process() -> None:
    placements = [ppo(PPOConfig(torch_threads=3)), colorlines(ColorLinesConfig(torch_threads=3))]
    for stations in placements:
        assert stations.learner_placement.num_threads == stations.collector_placement.num_threads == 3
        assert stations.learner_placement.num_cpus == 3


def test_a_learner_without_ranks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"learner_ranks=0: .*greater than or equal to 1"):
        read_values(PPOConfig, {"learner_ranks": 0})


# -- really killed ------------------------------------------------------------------------------------


def descendants(pid: int) -> dict[int, str]:
    """Process ids and command lines, roles' children included."""
    found = {}
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, tasks.read_text().split()):
            try:
                found[child] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except FileNotFoundError:
                continue
            found |= descendants(child)
    return found


def start(runs: Path, runtime: str) -> subprocess.Popen[str]:
    """A run that takes its time, until its third checkpoint."""
    words = ["run", "ppo", "--runs", str(runs), *TINY, "--learner_ranks", "2", "--runtime", runtime]
    words += ["--updates", "60", "--num_epochs", "60", "--save_every", "1"]
    process = subprocess.Popen([sys.executable, "-m", "headway.cli", *words], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + patient(120)
    while not list(runs.glob("*/checkpoints/*-v3/manifest.json")):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "no checkpoint within two minutes"
        time.sleep(0.02)
    return process


@pytest.mark.parametrize("runtime", ["threads", "processes"])
def test_a_rank_killed_in_the_middle_is_one_line_and_the_run_can_be_resumed(tmp_path: Path, runtime: str) -> None:
    process = start(tmp_path, runtime)
    family = descendants(process.pid)
    (rank,) = [pid for pid, words in family.items() if words.rstrip().endswith("headway learner rank 1 of 2")]
    os.kill(rank, signal.SIGKILL)
    _, said = process.communicate(timeout=patient(60))
    assert process.returncode == 1
    assert "learner.learn: RankFailed: rank 1 of 2 was killed by SIGKILL" in said
    assert "Traceback" not in said
    wait_until_gone(family)
    (folder,) = tmp_path.iterdir()
    assert cli.main(["resume", str(folder), "--updates", "6", "--quiet"]) == 0
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["complete"]
    assert summary["tickets"]["learned"] == summary["updates"] >= 6


@pytest.mark.parametrize("runtime", ["threads", "processes"])
def test_when_the_run_is_killed_its_ranks_go_too(tmp_path: Path, runtime: str) -> None:
    process = start(tmp_path, runtime)
    family = descendants(process.pid)
    assert [words for words in family.values() if "headway learner rank" in words]
    assert all(map(is_running, family))
    process.kill()
    process.communicate()
    wait_until_gone(family)
