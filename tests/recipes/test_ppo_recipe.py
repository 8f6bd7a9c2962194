"""PPO learns, and asynchrony does not change what `max_lead=0` and pinned runs give."""

from __future__ import annotations

from typing import Any

import pytest

from headway.coordinate.coordinator import Coordinator, RunResult
from headway.coordinate.replay import replay
from headway.launching import build_runtime
from headway.observe.fingerprint import fingerprint
from headway.observe.recorder import MemoryRecorder
from headway.recipes.cartpole import CartPoleConfig
from headway.recipes.config import ConfigError, read_values
from headway.recipes.ppo import PPOConfig, stations


def run(config: PPOConfig, recorder: Any = None) -> RunResult:
    place = build_runtime(config.runtime)
    return place.run(Coordinator(stations(config), config.settings(), place, recorder=recorder).run())


def tiny(**more: Any) -> PPOConfig:
    base: dict[str, Any] = {"updates": 6, "num_envs": 4, "segment_steps": 16, "evaluate_every": 0}
    return PPOConfig(**{**base, **more})


@pytest.mark.parametrize("lead", [0, 2])
def test_a_pinned_run_gives_the_same_bits_on_every_runtime(lead: int) -> None:
    prints = {
        fingerprint(run(tiny(max_lead=lead, collectors=2, tickets_per_batch=2, runtime=runtime)).weights)
        for runtime in ("inline", "threads", "processes")
    }
    assert len(prints) == 1


@pytest.mark.parametrize("correction", ["clip", "decoupled", "vtrace"])
def test_a_free_run_replays_to_the_same_bits(correction: str) -> None:
    config = tiny(max_lead=3, collectors=2, order="ready", correction=correction)
    recorder = MemoryRecorder()
    result = run(config, recorder)
    assert fingerprint(replay(stations(config), recorder.events).weights) == fingerprint(result.weights)
    assert 0 < result.metrics["ess"] <= 1 + 1e-6


@pytest.mark.parametrize("env", ["Pendulum-v1", "FrozenLake-v1", "Acrobot-v1"])
def test_other_kinds_of_environment_run(env: str) -> None:
    result = run(tiny(env=env, normalise=True, updates=3, evaluate_every=3, eval_episodes=2))
    assert result.updates == 3
    assert result.scores[-1].value is not None


def test_stale_data_without_a_correction_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"correction='none' with max_lead=1.* trains on stale data"):
        read_values(PPOConfig, {"correction": "none"})
    assert read_values(PPOConfig, {"correction": "none", "max_lead": 0})


@pytest.mark.parametrize(("lead", "runtime"), [(0, "inline"), (1, "threads")])
def test_cartpole_is_learned(lead: int, runtime: str) -> None:
    """Not to 475, which takes longer than a test should: to several times what a random player gets (22)."""
    config = CartPoleConfig(max_lead=lead, runtime=runtime, updates=30, target_score=None, evaluate_every=0, seed=1)
    assert run(config).metrics["return"] > 110
