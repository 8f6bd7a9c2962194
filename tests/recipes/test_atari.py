"""Atari's games as they are usually treated, and MinAtar's: under one switch, by every program that steps them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from command_runs import run_of
from gymnasium import spaces
from waiting import patient

import headway
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.run_result import RunResult
from headway.core.types import Snapshot, Ticket
from headway.envs.atari import EpisodePerLife, FireFirst, NoOpStarts
from headway.envs.resumable import can_be_carried
from headway.envs.source_env_source import EnvSource
from headway.ppo.recipe_ppo import PPOConfig, stations
from headway.ppo.segments_reward_scale import RewardSigns
from headway.runs.config import ConfigError, read_values
from headway.runs.fingerprint import fingerprint
from headway.runtimes.build import build_runtime

pytestmark = pytest.mark.timeout(120)
BREAKOUT = "ALE/Breakout-v5"
TINY: dict[str, Any] = {"num_envs": 2, "segment_steps": 4, "updates": 2, "minibatch_size": 8, "num_epochs": 1}
TINY |= {"evaluate_every": 2, "eval_episodes": 1, "eval_max_steps": 8, "learner_gpus": 0}


def run(config: PPOConfig) -> RunResult:
    place = build_runtime(config.runtime)
    return place.run(Coordinator(stations(config), config.settings(), place).run())


class ThreeLives(gym.Env[np.ndarray, int]):
    """Counts what it was told. A life is lost on every fourth step, the third ends the game."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, (1,), np.uint8)
        self.action_space = spaces.Discrete(4)
        self.games = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.games += 1
        self.actions: list[int] = []
        return np.zeros(1, np.uint8), {"lives": 3}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.actions.append(int(action))
        lives = 3 - len(self.actions) // 4
        return np.full(1, len(self.actions), np.uint8), 1.0, lives == 0, False, {"lives": lives}


def test_a_lost_life_ends_the_episode_and_the_game_goes_on() -> None:
    game = ThreeLives()
    env = EpisodePerLife(game)
    env.reset(seed=0)
    ends = []
    for _ in range(3):
        is_over = False
        while not is_over:
            *_, is_over, _, _ = env.step(2)
        ends.append((len(game.actions), game.games))
        env.reset()
    assert ends == [(4, 1), (8, 1), (12, 1)], "the step that begins a life is one of the game's"
    assert game.games == 2


def test_episodes_begin_with_some_actions_that_do_nothing() -> None:
    game = ThreeLives()
    env = NoOpStarts(game, 3)
    counts = set()
    for seed in range(20):
        env.reset(seed=seed)
        assert set(game.actions) == {0}
        counts.add(len(game.actions))
    assert counts == {1, 2, 3}


def test_fire_is_pressed_first() -> None:
    game = ThreeLives()
    seen, _ = FireFirst(game).reset(seed=0)
    assert (game.actions, seen.tolist()) == ([1], [1])


def test_rewards_are_learned_from_by_their_sign_and_reported_as_they_are() -> None:
    config = PPOConfig(env="Pendulum-v1", clip_rewards=True, **TINY | {"segment_steps": 210})
    parts = stations(config)
    rollout = parts.collector(0).collect(Ticket(0, 5, 0), Snapshot(0, parts.learner().snapshot()))
    assert set(np.unique(rollout.payload.rewards)) <= {-1.0, 0.0}
    assert min(total for total, _ in rollout.info["episodes"]) < -200
    assert RewardSigns is not None
    with pytest.raises(ConfigError, match="two scales for one reward"):
        read_values(PPOConfig, {"clip_rewards": True, "normalise_rewards": True})


# -- the games themselves ---------------------------------------------------------------------------


def test_every_program_shows_the_same_pictures_of_a_game() -> None:
    pytest.importorskip("ale_py")
    source = PPOConfig(env=BREAKOUT, atari=True, **TINY).source
    vector, single = source.vector(2), source.make()
    seen, _ = vector.reset(seed=3)
    alone, _ = single.reset(seed=3)
    assert seen.shape[1:] == alone.shape == (4, 84, 84)
    assert seen.dtype == alone.dtype == np.uint8
    assert vector.single_action_space.n == single.action_space.n == 4  # type: ignore[attr-defined]
    walls = (slice(None), slice(10, 30))  # bricks, which no start changes
    np.testing.assert_allclose(seen[0][walls].astype(int), alone[walls].astype(int), atol=2)
    vector.close()
    single.close()


def test_lives_end_episodes_where_is_learned_and_not_where_is_measured() -> None:
    pytest.importorskip("ale_py")
    config = PPOConfig(env=BREAKOUT, atari=True, **TINY)

    def lives_at_the_end(source: EnvSource) -> int:
        env = source.make()
        env.reset(seed=1)
        while True:
            *_, terminated, truncated, info = env.step(0)
            if terminated or truncated:
                return int(info["lives"])
            if env.unwrapped.ale.lives() < 5 and source.atari == "measured":  # type: ignore[attr-defined]
                return 0  # it goes on after the first life

    assert lives_at_the_end(config.source) == 4
    assert lives_at_the_end(config.measured_source) == 0


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"env_backend": "envpool"},
        {"stepping": "first_ready", "env_workers": 1, "env_backend": "gymnasium"},
        {"memory": "gru", "frame_stack": 1},
        {"resize": (64, 64), "wrappers": ("RecordEpisodeStatistics",), "network": "impala"},
    ],
    ids=lambda more: " ".join(more) or "usual",
)
def test_an_atari_game_is_played_by_every_program(more: dict[str, Any]) -> None:
    pytest.importorskip("envpool" if "envpool" in more.values() else "ale_py")
    pytest.importorskip("ale_py")
    result = run(PPOConfig(env=BREAKOUT, atari=True, runtime="inline", **TINY | more))
    assert result.updates == 2
    assert result.scores[-1].value is not None


def test_what_is_usual_stands_in_the_settings_of_the_run(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    folder = run_of(tmp_path, "ppo", env=BREAKOUT, atari=True, frame_stack=2, env_backend="gymnasium", **TINY)
    said = folder.read_config()[1]
    assert [said[name] for name in ("frame_skip", "frame_stack", "grey")] == [4, 2, True]
    policy = headway.load(folder.path, "last")
    assert policy.observation_space.shape == (2, 84, 84)
    assert policy.play(max_steps=5)[0].steps == 5


def test_a_game_as_it_comes_is_the_same_one_by_one_and_in_a_vector() -> None:
    pytest.importorskip("ale_py")
    source = EnvSource(BREAKOUT)
    vector = source.vector(2)
    assert vector.single_observation_space.shape == source.make().observation_space.shape == (210, 160, 3)
    vector.close()


def test_atari_is_for_atari() -> None:
    with pytest.raises(ConfigError, match=r"atari=True is for games of ale-py .* received 'CartPole-v1'"):
        read_values(PPOConfig, {"env": "CartPole-v1", "atari": True})


def test_a_game_is_found_without_its_family_or_guessed() -> None:
    pytest.importorskip("ale_py")
    alone = "import sys; from headway.envs.gymnasium_vector import registered; print(registered(sys.argv[1]).id)"
    seen = {}
    for name in ("Breakout-v4", "Pong-v5", "Pung-v7"):
        words = [sys.executable, "-c", alone, name]
        done = subprocess.run(words, capture_output=True, text=True, timeout=patient(60), check=False)
        seen[name] = (done.stdout.strip().splitlines() or done.stderr.strip().splitlines())[-1]
    assert seen["Breakout-v4"] == "Breakout-v4"
    assert seen["Pong-v5"] == "ValueError: unknown environment 'Pong-v5'; did you mean 'Pong-v4'?"
    assert seen["Pung-v7"].startswith("ValueError: unknown environment 'Pung-v7'; allowed: what gymnasium.pprint")


def test_an_environment_that_pickles_only_how_it_is_made_is_not_carried() -> None:
    pytest.importorskip("ale_py")
    assert can_be_carried(EnvSource("CartPole-v1").make())
    assert not can_be_carried(EnvSource(BREAKOUT).make())


# -- MinAtar ----------------------------------------------------------------------------------------


def test_minatar_is_played_by_its_names_with_the_same_bits_everywhere() -> None:
    pytest.importorskip("minatar")
    settings = TINY | {"env": "MinAtar/Seaquest-v1", "eval_max_steps": 20}
    prints = {fingerprint(run(PPOConfig(runtime=runtime, **settings)).weights) for runtime in ("inline", "processes")}
    assert len(prints) == 1
