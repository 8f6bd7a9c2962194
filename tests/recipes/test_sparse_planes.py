"""PPO with kernels that skip what is zero in a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")

import headway
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.run_result import RunResult
from headway.ppo.recipe_ppo import PPOConfig, stations
from headway.runs.config import ConfigError, read_values
from headway.runs.fingerprint import fingerprint
from headway.runtimes.build import build_runtime

LIGHTS: dict[str, Any] = {
    "env": "picture_games:Lights-gray-v0",
    "network": "small",
    "hidden": (32,),
    "num_envs": 8,
    "segment_steps": 12,
    "updates": 3,
    "evaluate_every": 0,
}


def run(**more: Any) -> RunResult:
    config = PPOConfig(**{**LIGHTS, **more})
    place = build_runtime(config.runtime)
    return place.run(Coordinator(stations(config), config.settings(), place).run())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_it_learns_what_torch_learns(precision: str) -> None:
    plan = {"updates": 12, "learning_rate": 1e-3, "gamma": 0.5, "max_lead": 0, "evaluate_every": 12, "seed": 1}
    result = run(sparse_planes=precision, **plan)
    assert result.scores[-1].value is not None
    assert result.scores[-1].value >= 5, "of 6; chance makes 3"


def test_a_pinned_run_gives_the_same_bits_on_every_runtime() -> None:
    plan = {"sparse_planes": "float32", "max_lead": 1}
    prints = {fingerprint(run(runtime=runtime, **plan).weights) for runtime in ("inline", "threads", "processes")}
    assert len(prints) == 1
    assert prints != {fingerprint(run(max_lead=1).weights)}, "sums are taken in another order than by torch"


def test_two_ranks_learn_what_one_does() -> None:
    one, two = (run(sparse_planes="float32", max_lead=0, learner_ranks=ranks).weights for ranks in (1, 2))
    for name in one:
        np.testing.assert_allclose(one[name], two[name], atol=1e-4)


def test_a_loaded_policy_acts_with_them_too(tmp_path: Path) -> None:
    headway.start("ppo", folder=tmp_path / "run", sparse_planes="bfloat16", **LIGHTS).wait()
    policy = headway.load(tmp_path / "run", "last")
    assert [episode.steps for episode in policy.play(episodes=2)] == [6, 6]


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"network": "mlp", "hidden": [64]}, "knows network='small' with one layer"),
        ({"memory": "gru"}, "sparse_planes='float32' needs memory='none'"),
        ({"learner_gpus": 1}, "computes on the CPU: set learner_gpus=0"),
    ],
)
def test_what_does_not_go_together_is_one_line(more: dict[str, Any], line: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=line):
        stations(read_values(PPOConfig, {**LIGHTS, "sparse_planes": "float32", **more}))
