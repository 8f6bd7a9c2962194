"""Environments of one's own: found by file, module and class, made with options, wrapped, skipped, stacked and cut."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from command_runs import refused, run_of
from gymnasium import spaces
from search_runs import TINY, TINY_MODEL

import headway
from headway.core.types import Snapshot, Ticket
from headway.envs.atari_observation_wrappers import FrameSkip, Grey, Resize, shares
from headway.envs.source_env_source import EnvSource
from headway.ppo.first_ready import first_ready_collector
from headway.ppo.policy import Actor, ActorCritic
from headway.ppo.recipe_ppo import PPOConfig
from headway.ppo.segments import segment_collector
from headway.ppo.segments_reward_scale import MOST, RewardScale
from headway.ppo.segments_segment import Segment
from headway.runs.config import ConfigError, read_values
from headway.runs.fingerprint import fingerprint
from headway.zero.muzero_recipe import MuZeroConfig

pytestmark = pytest.mark.timeout(120)

CODE = """
import gymnasium as gym
import numpy as np
from gymnasium import spaces

class Line(gym.Env):
    metadata = {"render_modes": ["ansi"]}
    def __init__(self, length=5, *, start=0, render_mode=None):
        if length < 1:
            raise RuntimeError("a line needs a length,\\nof 1 or more")
        self.observation_space = spaces.Box(0, 1, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.length, self.start, self.render_mode = length, start, render_mode
    def _look(self):
        return np.array([self.place / self.length], np.float32), {}
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.start
        return self._look()
    def step(self, action):
        self.place = max(self.place + (1 if action else -1), 0)
        seen, info = self._look()
        return seen, float(self.place), self.place >= self.length, False, info
    def render(self):
        return "." * self.place + "o"

class Louder(gym.RewardWrapper):
    def reward(self, reward):
        return 10 * reward

class Refusing(gym.Wrapper):
    def __init__(self, env):
        raise OSError("not around this one")

def no_environment():
    return 3

class Spaceless(gym.Env):
    pass

gym.register("OwnLine-v0", entry_point=Line, max_episode_steps=7)
"""
TINY_PPO = {"num_envs": 2, "segment_steps": 8, "updates": 2, "evaluate_every": 2, "eval_episodes": 1, "hidden": [4]}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "own_lines.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one not in ("", str(tmp_path))])
    yield tmp_path
    sys.modules.pop("own_lines", None)
    gym.registry.pop("OwnLine-v0", None)


# -- found ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "env", ["own_lines.py:Line", "own_lines:Line", "own_lines:OwnLine-v0", "own_lines.py:OwnLine-v0"]
)
@pytest.mark.parametrize("stepping", ["vector", "first_ready"])
def test_an_environment_is_found_in_the_working_directory(env: str, stepping: str, here: Path) -> None:
    folder = run_of(here, "ppo", **TINY_PPO, env=env, stepping=stepping, env_kwargs={"length": 3}, time_limit=9)
    policy = headway.load(folder, "last")
    made = policy.make_env()
    assert made.unwrapped.length == 3
    assert policy.play()[0].steps <= 9


def test_it_is_found_from_another_folder_again(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_of(here, "ppo", **TINY_PPO, env="own_lines.py:Line", time_limit=9)
    assert folder.read_config()[1]["env"] == f"{here / 'own_lines.py'}:Line"
    (elsewhere := here / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    assert headway.load(folder, "last").make_env().reset()[0].shape == (1,)


def test_processes_and_the_installed_command_find_it_too(here: Path) -> None:
    words = ["run", "ppo", "--env", "own_lines:Line", "--env_kwargs", "{length: 3}", "--runtime", "processes"]
    small = ["--num_envs=2", "--segment_steps=8", "--updates=2", "--evaluate_every=0", "--quiet", "--time_limit=9"]
    script = "import sys; sys.path[:] = [p for p in sys.path if p not in ('', sys.argv[1])]; del sys.argv[1]\n"
    script += "from headway.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", script, str(here), *words, *small, "--tensorboard=false", "--report=false"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_search_takes_environments_of_ones_own_too(here: Path) -> None:
    values = {**TINY, **TINY_MODEL["muzero"], "updates": 2, "env": "own_lines.py:Line", "time_limit": 20}
    folder = run_of(here, "muzero", **values, env_kwargs={"length": 4}, frame_stack=2)
    policy = headway.load(folder, "last")
    assert policy.observation_space.shape == (2, 1)
    assert policy.play(max_steps=5)[0].steps <= 5


# -- refused, in one line ---------------------------------------------------------------------------


def test_what_cannot_be_made_is_one_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, line in {
        ("--env", "own_lines.py:Lin"): "unknown environment of",
        ("--env", "own_lines:Lin"): "unknown environment of own_lines 'Lin'; did you mean 'Line'?",
        ("--env", "own_lines.py"): "names a file and no environment in it; allowed: own_lines.py:Class",
        ("--env", "no_lines.py:Line"): "environment file no_lines.py does not exist",
        ("--env", "no_lines:Line"): "cannot be registered: No module named 'no_lines'",
        ("--env", "own_lines.py:no_environment"): "makes a int; allowed: a gymnasium.Env",
        ("--env", "own_lines.py:Spaceless"): "own_lines.py:Spaceless' has no observation_space: set it in __init__",
        ("--env", "own_lines.py:Line", "--env_kwargs", "{lenght: 3}"): "did you mean 'length'?",
        (
            "--env",
            "own_lines.py:Line",
            "--env_kwargs",
            "{length: 0}",
        ): "RuntimeError: a line needs a length, of 1 or more",
        (
            "--env",
            "own_lines:OwnLine-v0",
            "--env_kwargs",
            "{length: 0}",
        ): "cannot be made: RuntimeError: a line needs a length",
        ("--env", "CartPole-v1", "--env_kwargs", "{gravity: 1}"): "unknown option of environment CartPole-v1 'gravity'",
        ("--env", "own_lines.py:Line", "--wrappers", "own_lines.py:Refusing"): "OSError: not around this one",
        (
            "--env",
            "own_lines.py:Line",
            "--wrappers",
            "ClipRewards",
        ): "unknown wrapper 'ClipRewards'; did you mean 'ClipReward'?",
        ("--env", "own_lines.py:Line", "--grey", "true"): "grey needs pictures of bytes",
        ("--env", "own_lines.py:Line", "--resize", "84"): "resize needs pictures of bytes",
        (
            "--env",
            "Acrobot-v1",
            "--frame_stack",
            "2",
            "--env_backend",
            "envpool",
        ): "takes no wrappers: frame_stack needs",
        ("--env", "own_lines.py:Line", "--frame_skip", "0"): "greater than or equal to 1",
    }.items():
        gym.registry.pop("OwnLine-v0", None)  # the file and the module are two modules
        sys.modules.pop("own_lines", None)
        assert line in refused(capsys, "run", "ppo", *words), words
    with pytest.raises(ConfigError, match="frame_skip is for Gymnasium environments, received env='tictactoe'"):
        read_values(MuZeroConfig, {"env": "tictactoe", "updates": 1, "frame_skip": 2})
    board = read_values(MuZeroConfig, {"env": "tictactoe", "updates": 1})
    assert read_values(MuZeroConfig, board.model_dump(mode="json")).env == "tictactoe"  # as a resumed run is read


def test_the_backend_is_settled_where_the_settings_are_read() -> None:
    assert PPOConfig(env="CartPole-v1", frame_stack=2).env_backend == "gymnasium"
    assert PPOConfig(env="CartPole-v1").model_dump()["env_backend"] == "gymnasium"
    assert not PPOConfig(env="CartPole-v1", frame_stack=2).source.has_own_vector
    assert PPOConfig(env="CartPole-v1", time_limit=7).source.has_own_vector


# -- around it --------------------------------------------------------------------------------------


def test_options_limits_and_wrappers_reach_every_copy(here: Path) -> None:
    source = EnvSource("own_lines.py:Line", kwargs={"length": 50}, wrappers=("own_lines.py:Louder",), time_limit=4)
    env = source.vector(2)
    env.reset(seed=0)
    seen = [env.step(np.ones(2, int)) for _ in range(4)]
    assert [list(step[1]) for step in seen] == [[10, 10], [20, 20], [30, 30], [40, 40]]
    assert [bool(step[3].all()) for step in seen] == [False, False, False, True]
    assert EnvSource("Acrobot-v1", wrappers=("FlattenObservation",)).make().observation_space.shape == (6,)


@pytest.mark.parametrize("env", ["CartPole-v1", "Acrobot-v1"])
def test_a_time_limit_takes_the_place_of_the_environments_own(env: str) -> None:
    vector = EnvSource(env, time_limit=3).vector(2)
    vector.reset(seed=0)
    cut = [bool(vector.step(np.zeros(2, int))[3].all()) for _ in range(3)]
    assert cut == [False, False, True]
    made = EnvSource(env, time_limit=3).make()
    made.reset(seed=0)
    assert [made.step(0)[3] for _ in range(3)] == cut


class Counts(gym.Env[Any, Any]):
    """Pictures whose brightness is the step, brighter on one side in even steps; ends at 10."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, (4, 6, 3), np.uint8)
        self.action_space = spaces.Discrete(2)
        self._count = 0

    def _look(self) -> np.ndarray:
        picture = np.full((4, 6, 3), self._count, np.uint8)
        picture[:, : 3 if self._count % 2 else 6, 0] = 200
        return picture

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._count = 0
        return self._look(), {}

    def step(self, action: Any) -> Any:
        self._count += 1
        return self._look(), float(self._count), self._count == 10, False, {}


def test_an_action_is_done_several_times_and_rewards_add_up() -> None:
    env = FrameSkip(Counts(), 4)
    env.reset()
    seen, reward, terminated, *_ = env.step(0)
    assert (reward, terminated, seen[0, 0, 2]) == (1 + 2 + 3 + 4, False, 4)
    assert seen[0, 5, 0] == 200  # of the last two pictures the brighter
    env.step(0)
    _, reward, terminated, *_ = env.step(0)
    assert (reward, terminated) == (9 + 10, True)


def test_pictures_lose_colours_and_size() -> None:
    grey = Grey(Counts())
    seen, _ = grey.reset()
    assert seen.shape == (4, 6) and seen.dtype == np.uint8
    assert int(seen[0, 0]) == round(200 * 0.299)
    small = Resize(Counts(), 2, 3)
    seen, _ = small.reset()
    assert small.observation_space.contains(seen) and seen.shape == (2, 3, 3)
    picture = np.arange(24, dtype=np.uint8).reshape(4, 6, 1).repeat(3, 2)
    np.testing.assert_array_equal(
        small.observation(picture)[:, :, 0], picture[..., 0].reshape(2, 2, 3, 2).mean((1, 3)).round()
    )
    np.testing.assert_allclose(shares(5, 3).sum(1), 1, rtol=1e-6)
    np.testing.assert_allclose(shares(5, 3).sum(0), 3 / 5, rtol=1e-6)


def test_the_usual_chain_of_pictures_learns(here: Path) -> None:
    gym.register("OwnCounts-v0", Counts)
    try:
        around = {"frame_skip": 2, "grey": True, "resize": "12x16", "frame_stack": 4}
        folder = run_of(here, "ppo", **TINY_PPO, env="OwnCounts-v0", **around, learner_gpus=0)
        policy = headway.load(folder, "last")
        assert policy.observation_space.shape == (4, 12, 16)
        assert policy.play()[0].steps == 5
    finally:
        gym.registry.pop("OwnCounts-v0")


# -- rewards on one scale ---------------------------------------------------------------------------


def segment_of(rewards: np.ndarray, ended: np.ndarray, valid: np.ndarray) -> Segment:
    steps, num = rewards.shape
    obs = np.zeros((steps + 1, num, 1), np.float32)
    zeros = np.zeros((steps, num), np.float32)
    return Segment(
        obs=obs, actions=zeros, log_probs=zeros, rewards=rewards, terminated=ended, truncated=ended & False, valid=valid
    )


def test_rewards_are_divided_by_the_deviation_of_the_returns_so_far() -> None:
    rng = np.random.default_rng(0)
    rewards = rng.normal(3, 50, (40, 3)).astype(np.float32)
    ended = rng.random((40, 3)) < 0.2
    valid = np.ones((40, 3), bool)
    valid[1:][ended[:-1]] = False
    rewards[~valid] = 0.0
    ended &= valid
    scale = RewardScale(0.9)
    parts = [
        scale.scaled(segment_of(*(one[part] for one in (rewards, ended, valid)))) for part in (slice(20), slice(20, 40))
    ]
    scaled = np.concatenate([part.rewards for part in parts])
    seen: list[float] = []
    running = np.zeros(3)
    for step in range(40):
        for index in range(3):
            if valid[step, index]:
                running[index] = 0.9 * running[index] + rewards[step, index]
                seen.append(running[index])
        wanted = np.clip(rewards[step] / np.sqrt(np.var(seen) + 1e-8), -MOST, MOST)
        np.testing.assert_allclose(scaled[step], wanted, rtol=1e-4)
        running[ended[step]] = 0.0


def test_first_ready_scales_as_lock_step_does_and_goes_on_after_a_restart() -> None:
    source = EnvSource("Acrobot-v1", time_limit=6)
    spec_of = lambda spec: Actor(ActorCritic(spec, (4,)))  # noqa: E731
    made = segment_collector(lambda: source.vector(2), spec_of, steps=7, seed=3, scale=RewardScale(0.9))
    weights = made._policy._network.state_dict()
    snapshot = Snapshot(0, {name: tensor.numpy() for name, tensor in weights.items()})
    tickets = [Ticket(index, index) for index in range(4)]
    wanted = [fingerprint(made.collect(ticket, snapshot).payload.rewards) for ticket in tickets]
    plain = segment_collector(lambda: source.vector(2), spec_of, steps=7, seed=3)
    assert fingerprint(plain.collect(tickets[0], snapshot).payload.rewards) != wanted[0]

    def apart() -> Any:
        return first_ready_collector(
            source.make, spec_of, num_envs=2, steps=7, seed=3, num_workers=1, scale=RewardScale(0.9)
        )

    for build in (
        apart,
        lambda: segment_collector(lambda: source.vector(2), spec_of, steps=7, seed=3, scale=RewardScale(0.9)),
    ):
        first = build()
        got = [fingerprint(first.collect(ticket, snapshot).payload.rewards) for ticket in tickets[:2]]
        second = build()
        second.load_state_dict(first.state_dict())
        got += [fingerprint(second.collect(ticket, snapshot).payload.rewards) for ticket in tickets[2:]]
        for one in (first, second):
            getattr(one, "close", lambda: None)()
        assert got == wanted


def test_a_run_with_scaled_rewards_reports_returns_as_they_are(here: Path) -> None:
    folder = run_of(here, "ppo", **TINY_PPO, env="own_lines.py:Line", env_kwargs={"length": 1}, normalise_rewards=True)
    policy = headway.load(folder, "last")
    assert policy.facts.score == pytest.approx(policy.play()[0].total)
