"""Recipes on a Ray of their own, with more roles than this machine may have cores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import ray
from running_processes import all_children, wait_until_gone

from headway import cli

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150), pytest.mark.usefixtures("no_ray")]

TINY = ["--updates", "4", "--num_envs", "4", "--segment_steps", "4", "--evaluate_every", "4", "--eval_episodes", "2"]


@pytest.mark.parametrize("recipe", [["cartpole"], ["colorlines", "--collectors", "4"]], ids=lambda words: words[0])
def test_a_recipe_runs_on_ray_and_leaves_nothing(
    recipe: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(all_children(os.getpid()))
    words = ["run", *recipe, *TINY, "--runtime", "ray", "--runs", str(tmp_path), "--quiet", "--tensorboard", "false"]
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert "Train iterations: 4" in out
    assert "Restarts: 0" in out
    assert "Last score: -" not in out
    assert not ray.is_initialized()
    wait_until_gone(set(all_children(os.getpid())) - before)
