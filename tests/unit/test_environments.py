"""Environments by name, what a policy sees of them, and EnvPool's."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.spaces.utils import flatten
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.types import Snapshot, Ticket
from headway.envs import envpool_vector
from headway.envs.evaluator_episodes import EpisodeEvaluator
from headway.envs.gymnasium_vector import (
    Discrete,
    MultiDiscrete,
    as_features,
    as_features_of_one,
    choose_backend,
    describe,
    describe_spaces,
    legal_actions,
    make_vector,
    single_maker,
)
from headway.ppo.policy import Actor, ActorCritic
from headway.ppo.recipe_ppo import PPOConfig
from headway.ppo.segments import SegmentCollector, segment_collector
from headway.replay.records import arrays_of
from headway.runs.config import ConfigError, read_values

torch.set_num_threads(1)
NO_ENVPOOL = importlib.util.find_spec("envpool") is None
needs_envpool = pytest.mark.skipif(NO_ENVPOOL, reason="EnvPool is not installed: pip install 'headway[envpool]'")


def policy(spec: Any) -> Actor:
    return Actor(ActorCritic(spec, (8,)))


def collect(collector: SegmentCollector, weights: Any, index: int = 0) -> Any:
    return collector.collect(Ticket(index, 100 + index), Snapshot(0, weights))


# -- by name ----------------------------------------------------------------------------------------


def test_a_module_before_the_colon_is_imported_and_registers_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "import gymnasium as gym\nfrom gymnasium.envs.classic_control import AcrobotEnv\n"
    (tmp_path / "my_environments.py").write_text(lines + "gym.register('mine/Acrobot-v0', AcrobotEnv)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert make_vector("my_environments:mine/Acrobot-v0", 2).num_envs == 2
        assert PPOConfig(env="my_environments:mine/Acrobot-v0").env_backend == "gymnasium"
    finally:
        gym.registry.pop("mine/Acrobot-v0", None)
        sys.modules.pop("my_environments", None)
    with pytest.raises(ValueError, match=r"^environment 'no_such:Acrobot-v1' cannot be registered: No module named"):
        make_vector("no_such:Acrobot-v1", 2)


def test_an_environment_that_lacks_a_package_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "no_such_simulator", None)
    gym.register("test/Lacking-v0", "no_such_simulator:Env")
    try:
        for make in (lambda: make_vector("test/Lacking-v0", 1), single_maker("test/Lacking-v0")):
            with pytest.raises(ValueError, match=r"^environment 'test/Lacking-v0' cannot be made: .*no_such_simulator"):
                make()
    finally:
        gym.registry.pop("test/Lacking-v0")


def test_a_vector_that_starts_episodes_in_another_mode_is_refused() -> None:
    class SameStep(gym.vector.VectorEnv[Any, Any, Any]):
        metadata = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}  # noqa: RUF012

        def __init__(self, num_envs: int) -> None:
            self.num_envs = num_envs

    gym.register("test/SameStep-v0", vector_entry_point=SameStep)
    try:
        with pytest.raises(
            ValueError, match=r"'test/SameStep-v0' starts episodes in mode .*SAME_STEP; allowed: .*NEXT"
        ):
            make_vector("test/SameStep-v0", 2)
        with pytest.raises(ValueError, match=r"'test/SameStep-v0' can only be made as a vector"):
            single_maker("test/SameStep-v0")
    finally:
        gym.registry.pop("test/SameStep-v0")


# -- what a policy sees -----------------------------------------------------------------------------

LEAVES = st.one_of(
    st.tuples(st.integers(1, 4), st.integers(-2, 2)).map(lambda drawn: spaces.Discrete(drawn[0], start=drawn[1])),
    st.lists(st.integers(1, 3), min_size=1, max_size=3).map(spaces.MultiDiscrete),
    st.integers(1, 4).map(spaces.MultiBinary),
    st.lists(st.integers(1, 3), min_size=1, max_size=3).map(lambda shape: spaces.Box(-5, 5, tuple(shape))),
    st.integers(1, 3).map(lambda size: spaces.Box(0, 255, (size,), np.uint8)),
)
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, min_size=1, max_size=3).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(NESTED, st.integers(0, 2**31 - 1))
def test_nested_observations_are_flattened_as_gymnasium_does(space: spaces.Space[Any], seed: int) -> None:
    space.seed(seed)
    drawn = [space.sample() for _ in range(3)]
    together = gym.vector.utils.concatenate(space, drawn, gym.vector.utils.create_empty_array(space, 3))
    features = as_features(together, space)
    assert features.shape == (3, *describe_spaces(space, spaces.Discrete(2)).observation)
    assert features.dtype == np.float32
    for row, observation in zip(features, drawn, strict=True):
        np.testing.assert_array_equal(row.reshape(-1), np.float32(flatten(space, observation)))
        np.testing.assert_array_equal(as_features_of_one(observation, space), row)


def test_a_number_is_an_observation_too() -> None:
    space = spaces.Box(-1, 1, ())
    assert describe_spaces(space, spaces.Discrete(2)).observation == (1,)
    assert as_features(np.zeros(4), space).shape == (4, 1)


@pytest.mark.parametrize(
    "space", [spaces.Text(5), spaces.Dict(a=spaces.Discrete(2), b=spaces.Sequence(spaces.Discrete(2)))]
)
def test_observations_that_are_not_numbers_are_refused_by_name(space: spaces.Space[Any]) -> None:
    culprit = "Text" if isinstance(space, spaces.Text) else "Sequence"
    with pytest.raises(
        ValueError, match=rf"^observation space {culprit}\(.*\) is not supported; allowed: Box, Discrete"
    ):
        describe_spaces(space, spaces.Discrete(2))


@pytest.mark.parametrize("env_id", ["Blackjack-v1", "Taxi-v4"])
def test_nested_observations_and_masks_are_collected_and_evaluated(env_id: str) -> None:
    """Blackjack observes a Tuple; Taxi says its legal actions, as int8."""
    env = make_vector(env_id, 3)
    weights = ActorCritic(describe(env), (8,)).state_dict()
    data = collect(segment_collector(lambda: make_vector(env_id, 3), policy, steps=20, seed=1), weights).payload
    if env_id == "Taxi-v4":
        chosen = np.take_along_axis(data.masks, data.actions[..., None], 2)
        assert chosen[data.valid].all()
        assert not data.masks.all()
    score = EpisodeEvaluator(lambda n: make_vector(env_id, n), policy, episodes=2).evaluate(Snapshot(0, weights), 3)
    assert score.value is not None


# -- masks ------------------------------------------------------------------------------------------


def test_a_mask_without_a_legal_action_names_the_environment() -> None:
    alive = np.zeros(2, bool)
    info = {"action_mask": np.array([[1, 0, 0], [0, 0, 0]], np.int8)}
    with pytest.raises(ValueError, match=r"^environment 1 has a mask with no legal action$"):
        legal_actions(info, Discrete(3), alive)
    both = {"action_mask": np.array([[1, 1, 1, 0, 0], [0, 1, 0, 0, 1]], bool)}  # a choice of 2 and one of 3
    with pytest.raises(ValueError, match=r"^environment 0 has a mask with no legal action$"):
        legal_actions({"action_mask": both["action_mask"][:, ::-1]}, MultiDiscrete((2, 3)), alive)
    np.testing.assert_array_equal(legal_actions(both, MultiDiscrete((2, 3)), alive), both["action_mask"])


def test_a_mask_of_another_size_says_what_is_needed() -> None:
    info = {"action_mask": np.ones((2, 4), bool)}
    with pytest.raises(ValueError, match="an entry for each of 3 actions, received 4"):
        legal_actions(info, Discrete(3), np.zeros(2, bool))


def test_an_environment_that_ended_needs_no_legal_action() -> None:
    info = {"action_mask": np.array([[1, 0], [0, 0]], np.int8)}
    legal = legal_actions(info, Discrete(2), np.array([False, True]))
    assert legal is not None
    assert legal.tolist() == [[True, False], [True, True]]


# -- which backend ----------------------------------------------------------------------------------


@pytest.fixture
def imaginary_envpool(monkeypatch: pytest.MonkeyPatch) -> None:
    """An EnvPool that knows two names, whether or not the real one is installed."""
    pool = SimpleNamespace(list_all_envs=lambda: ["CartPole-v1", "Acrobot-v1", "Pong-v5"])
    monkeypatch.setitem(sys.modules, "envpool", pool)
    monkeypatch.setattr(envpool_vector, "is_installed", lambda: True)


@pytest.mark.usefixtures("imaginary_envpool")
def test_auto_takes_the_own_vector_then_envpool_then_copies() -> None:
    assert choose_backend("CartPole-v1") == "gymnasium"  # it has a vector entry point
    assert choose_backend("Acrobot-v1") == "envpool"
    assert choose_backend("Pong-v5") == "envpool"  # which Gymnasium does not know
    assert choose_backend("Pendulum-v1") == "gymnasium"  # which this EnvPool does not know
    for backend in ("gymnasium", "envpool"):
        assert PPOConfig(env="Acrobot-v1", env_backend=backend).env_backend == backend


@pytest.mark.usefixtures("imaginary_envpool")
def test_the_configuration_says_what_auto_came_down_to() -> None:
    assert PPOConfig(env="Acrobot-v1").model_dump()["env_backend"] == "envpool"
    assert PPOConfig(env="Pendulum-v1").model_dump()["env_backend"] == "gymnasium"
    assert PPOConfig(env="Acrobot-v1", stepping="first_ready").env_backend == "gymnasium"
    with pytest.raises(
        ConfigError, match="env_backend='envpool' steps its copies itself: use stepping='vector' with it"
    ):
        read_values(PPOConfig, {"env": "Acrobot-v1", "env_backend": "envpool", "stepping": "first_ready"})
    with pytest.raises(ConfigError, match=r"^unknown EnvPool environment 'Acrobat-v1'; did you mean 'Acrobot-v1'\?"):
        read_values(PPOConfig, {"env": "Acrobat-v1", "env_backend": "envpool"})
    with pytest.raises(ConfigError, match=r"^unknown environment 'Acrobat-v1'; did you mean 'Acrobot-v1'\?"):
        read_values(PPOConfig, {"env": "Acrobat-v1"})


def test_envpool_that_is_not_installed_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envpool_vector, "is_installed", lambda: False)
    assert choose_backend("Acrobot-v1") == "gymnasium"
    with pytest.raises(ConfigError, match=r"^env_backend='envpool' needs EnvPool: pip install 'headway\[envpool\]'$"):
        read_values(PPOConfig, {"env": "Acrobot-v1", "env_backend": "envpool"})


# -- EnvPool itself ---------------------------------------------------------------------------------


@needs_envpool
def test_envpool_starts_episodes_on_the_step_after_the_end() -> None:
    env = make_vector("MountainCarContinuous-v0", 2, "envpool", max_episode_steps=5)
    weights = ActorCritic(describe(env), (8,)).state_dict()
    rollout = collect(SegmentCollector(lambda: env, policy, steps=13, seed=3), weights)
    data = rollout.payload
    assert data.truncated[:, 0].tolist() == ([False] * 4 + [True, False]) * 2 + [False]
    assert data.valid[:, 0].tolist() == ([True] * 5 + [False]) * 2 + [True]
    assert not data.terminated.any()
    assert not data.rewards[~data.valid].any()
    assert (data.obs[6, :, 1] == 0).all()  # a new episode begins at rest
    assert [length for _, length in rollout.info["episodes"]] == [5] * 4


@needs_envpool
@pytest.mark.parametrize("env_id", ["LunarLander-v3", "BipedalWalker-v3", "CartPole-v1", "HalfCheetah-v5"])
def test_what_envpool_shows_lies_in_the_observation_space(env_id: str) -> None:
    env = make_vector(env_id, 2, "envpool")
    observations, _ = env.reset(seed=0)
    space = env.single_observation_space
    assert all(space.contains(observation) for observation in observations)
    unbounded = {"LunarLander-v3": [0, 7], "BipedalWalker-v3": [0, 23], "CartPole-v1": [1], "HalfCheetah-v5": [0]}
    assert np.isinf([(space.low[place], space.high[place]) for place in unbounded[env_id]]).all()


@needs_envpool
def test_the_seed_determines_what_envpool_does() -> None:
    weights = ActorCritic(describe(make_vector("Acrobot-v1", 1, "envpool")), (8,)).state_dict()
    seeds = (5, 5, 6, 2**31 - 1)
    runs = [
        collect(SegmentCollector(lambda: make_vector("Acrobot-v1", 4, "envpool"), policy, steps=30, seed=seed), weights)
        for seed in seeds
    ]
    one, again, other, _ = (run.payload for run in runs)
    for name, values in arrays_of(one).items():
        np.testing.assert_array_equal(values, getattr(again, name))
    assert not np.array_equal(one.obs, other.obs)


@needs_envpool
@pytest.mark.parametrize("env_id", ["Pendulum-v1", "FrozenLake-v1", "HalfCheetah-v5", "Play2048-v1", "Snake-v1"])
def test_every_kind_of_envpool_environment_is_collected(env_id: str) -> None:
    """Continuous, counted, float64 and nested observations; masks in the info and in the observation."""
    env = make_vector(env_id, 3, "envpool")
    weights = ActorCritic(describe(env), (8,)).state_dict()
    data = collect(SegmentCollector(lambda: env, policy, steps=10, seed=3), weights).payload
    assert data.obs.dtype == np.float32 and data.rewards.dtype == np.float32
    assert (data.masks is not None) == (env_id in ("Play2048-v1", "Snake-v1"))
    if data.masks is not None:
        chosen = np.take_along_axis(data.masks, data.actions[..., None], 2)
        assert chosen[data.valid].all()


@needs_envpool
def test_a_collector_of_envpool_is_not_resumable_and_says_it_by_its_kind() -> None:
    collector = segment_collector(lambda: make_vector("Acrobot-v1", 2, "envpool"), policy, steps=3, seed=0)
    assert type(collector) is SegmentCollector


@needs_envpool
def test_envpool_refuses_what_it_cannot_serve_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^environment 'Go9x9-v1' of EnvPool has several players"):
        make_vector("Go9x9-v1", 2, "envpool")
    with pytest.raises(ValueError, match=r"^environment 'Pendulum-v1' cannot be made by EnvPool: .*'no_such_option'"):
        make_vector("Pendulum-v1", 2, "envpool", no_such_option=1)
    with pytest.raises(ValueError, match=r"unknown EnvPool environment 'Pendulun-v1'; did you mean 'Pendulum-v1'\?"):
        make_vector("Pendulun-v1", 2, "envpool")


def test_the_waiting_cartpole_is_cartpole_later(monkeypatch: pytest.MonkeyPatch) -> None:
    from headway.envs import waiting_cartpole

    waited: list[float] = []
    monkeypatch.setattr(waiting_cartpole.time, "sleep", waited.append)
    plain, waiting = (
        make_vector(name, 3) for name in ("CartPole-v1", "headway.envs.waiting_cartpole:" + waiting_cartpole.ID)
    )
    assert np.array_equal(plain.reset(seed=1)[0], waiting.reset(seed=1)[0])
    for step in range(600):  # over the end of every episode
        actions = np.array([step % 2, (step // 2) % 2, 1])
        for ours, theirs in zip(waiting.step(actions)[:4], plain.step(actions)[:4], strict=True):
            assert np.array_equal(ours, theirs)
    assert waited == [waiting_cartpole.STEP_S] * 600
