"""Segments from vector environments, and the environments' edges."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from headway.core.types import Snapshot, Ticket
from headway.envs.evaluator_episodes import EpisodeEvaluator
from headway.envs.gymnasium_vector import Continuous, Discrete, MultiDiscrete, describe, make_vector
from headway.ppo.policy import Actor, ActorCritic
from headway.ppo.segments import ResumableSegmentCollector, SegmentCollector, segment_collector
from headway.replay.records import arrays_of

torch.set_num_threads(1)  # two tests on two cores would only wait for each other


class Counter(gym.Env[np.ndarray, Any]):
    """Observes how many steps it has made; ends after `length`, by truncation for odd copies."""

    def __init__(self, length: int = 3, flaw: str = "", action: gym.Space[Any] | None = None) -> None:
        self.observation_space = gym.spaces.Box(-10, 10, (2,))
        self.action_space = gym.spaces.Discrete(2) if action is None else action
        self._length = length
        self._flaw = flaw
        self._count = 0
        self._cuts = False

    def _look(self) -> tuple[np.ndarray, dict[str, Any]]:
        mask = [False, False] if self._flaw == "mask" and self._count == 2 else [True, False]
        return np.array([self._count, self._cuts], np.float32), {
            "action_mask": np.array(mask)
        } if self._flaw == "mask" else {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._count, self._cuts = 0, seed is not None and seed % 2 == 1
        return self._look()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._count += 1
        obs, info = self._look()
        if self._flaw == "obs" and self._count == 2:
            obs = obs * np.nan
        reward = float("nan") if self._flaw == "reward" and self._count == 2 else 1.0
        over = self._count >= self._length
        return obs, reward, over and not self._cuts, over and self._cuts, info


def counters(num: int, **kwargs: Any) -> gym.vector.SyncVectorEnv:
    return gym.vector.SyncVectorEnv([partial(Counter, **kwargs) for _ in range(num)])


def policy(spec: Any) -> Actor:
    return Actor(ActorCritic(spec, (8,)))


def weights_for(env: Any) -> Any:
    return ActorCritic(describe(env), (8,)).state_dict()


def collect(collector: SegmentCollector, index: int, env: Any) -> Any:
    return collector.collect(Ticket(index, 100 + index), Snapshot(0, weights_for(env)))


def test_a_segment_shows_ends_and_marks_steps_that_only_reset() -> None:
    env = counters(2)
    collector = SegmentCollector(lambda: counters(2), policy, steps=9, seed=0)
    rollout = collect(collector, 0, env)
    data = rollout.payload
    assert data.obs[:, 0, 0].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert data.terminated[:, 0].tolist() == [False, False, True, False] * 2 + [False]
    assert data.valid[:, 0].tolist() == [True, True, True, False] * 2 + [True]
    assert data.truncated[:, 1].tolist()[:4] == [False, False, True, False]
    assert data.rewards[:, 0].tolist() == [1, 1, 1, 0] * 2 + [1]
    assert rollout.steps == int(data.valid.sum()) == 14
    assert rollout.info["episodes"] == [(3.0, 3)] * 4
    assert data.log_probs.shape == data.actions.shape == (9, 2)


def test_environments_go_on_where_the_last_ticket_left_them() -> None:
    env = counters(1)
    collector = SegmentCollector(lambda: counters(1), policy, steps=2, seed=0)
    seen = [collect(collector, index, env).payload.obs[:, 0, 0].tolist() for index in range(3)]
    assert seen == [[0, 1, 2], [2, 3, 0], [0, 1, 2]]


@pytest.mark.parametrize(("flaw", "message"), [("obs", "observation"), ("reward", "reward")])
def test_values_that_are_not_numbers_name_environment_step_and_ticket(flaw: str, message: str) -> None:
    env = counters(2, flaw=flaw)
    collector = SegmentCollector(lambda: counters(2, flaw=flaw), policy, steps=4, seed=0)
    with pytest.raises(ValueError, match=rf"^{message} of environment 0 is not finite at step \d of ticket 0$"):
        collect(collector, 0, env)


def test_masks_are_obeyed_and_an_empty_one_is_refused() -> None:
    env = counters(2, flaw="mask", length=2)
    collector = SegmentCollector(lambda: counters(2, flaw="mask", length=9), policy, steps=2, seed=0)
    with pytest.raises(ValueError, match="environment 0 has a mask with no legal action"):
        collect(collector, 0, env)


def test_a_resumed_collector_goes_on_bit_for_bit() -> None:
    make = partial(make_vector, "CartPole-v1", 4)
    env = make()
    first = segment_collector(make, policy, steps=30, seed=3)
    assert isinstance(first, ResumableSegmentCollector)
    weights = weights_for(env)
    first.collect(Ticket(0, 5), Snapshot(0, weights))
    state = first.state_dict()
    second = segment_collector(make, policy, steps=30, seed=99)
    assert isinstance(second, ResumableSegmentCollector)
    second.load_state_dict(state)
    one, other = (c.collect(Ticket(1, 6), Snapshot(0, weights)).payload for c in (first, second))
    for name, values in arrays_of(one).items():
        np.testing.assert_array_equal(values, getattr(other, name))


def test_an_environment_that_cannot_be_pickled_still_collects() -> None:
    def make() -> Any:
        env = counters(1)
        env.handle = (step for step in range(3))  # type: ignore[attr-defined]
        return env

    collector = segment_collector(make, policy, steps=4, seed=0)
    assert type(collector) is SegmentCollector
    assert collect(collector, 0, counters(1)).steps == 3


def test_an_unknown_environment_gets_the_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"unknown environment 'CartPole-v7'; did you mean 'CartPole-v1'\?"):
        make_vector("CartPole-v7", 2)


def test_spaces_are_described_and_unsupported_ones_refused() -> None:
    assert describe(make_vector("CartPole-v1", 1)).action == Discrete(2)
    assert isinstance(describe(make_vector("Pendulum-v1", 1)).action, Continuous)
    assert describe(make_vector("FrozenLake-v1", 1)).observation == (16,)
    assert describe(counters(1, action=gym.spaces.MultiDiscrete([2, 3]))).action == MultiDiscrete((2, 3))
    assert describe(counters(1, action=gym.spaces.MultiBinary((2, 2)))).action == MultiDiscrete((2, 2, 2, 2))
    whole = gym.spaces.Box(np.array([-1, 0]), np.array([1, 4]), dtype=np.int32)
    assert describe(counters(1, action=whole)).action == MultiDiscrete((3, 5))
    with pytest.raises(ValueError, match=r"action space Dict\(.*\) is not supported; allowed: Discrete"):
        describe(counters(1, action=gym.spaces.Dict(a=gym.spaces.Discrete(2))))
    with pytest.raises(ValueError, match=r"action space Box\(.*\) is not supported; allowed: Discrete"):
        describe(counters(1, action=gym.spaces.Box(0, 2**31 - 1, (1,), np.int32)))


@pytest.mark.parametrize(
    "action",
    [
        gym.spaces.MultiDiscrete([2, 3]),
        gym.spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[1, 0], [7, -2]]),
        gym.spaces.MultiBinary((2, 3)),
        gym.spaces.Box(-1, 1, (2,)),
        gym.spaces.Box(-0.01, 0.01, (2, 2), np.float64),
        gym.spaces.Box(3, 5, (2,), np.int32),
        gym.spaces.Discrete(3, start=5),
    ],
    ids=str,
)
def test_every_kind_of_action_reaches_the_environment_in_its_own_form(action: gym.Space[Any]) -> None:
    seen: list[Any] = []

    class Listening(Counter):
        def step(self, given: Any) -> Any:
            assert self.action_space.contains(given), given
            seen.append(given)
            return super().step(given)

    def make() -> Any:
        return gym.vector.SyncVectorEnv([lambda: Listening(action=action)])

    collector = SegmentCollector(make, policy, steps=6, seed=0)
    collect(collector, 0, make())
    assert len(seen) >= 4


@pytest.mark.parametrize(("episodes", "at_once", "copies"), [(100, 32, 25), (100, 128, 100), (7, 3, 3), (1, 32, 1)])
def test_an_evaluation_plays_no_more_episodes_than_its_copies_can_share(
    episodes: int, at_once: int, copies: int
) -> None:
    made: list[int] = []

    def make(count: int) -> Any:
        made.append(count)
        return counters(count)

    evaluator = EpisodeEvaluator(make, policy, episodes=episodes, max_envs=at_once)
    score = evaluator.evaluate(Snapshot(0, weights_for(counters(1))), seed=0)
    assert made == [copies]
    assert score.metrics["episodes"] == -(-episodes // copies) * copies


def test_an_evaluation_counts_the_same_number_of_episodes_of_every_copy() -> None:
    evaluator = EpisodeEvaluator(counters, policy, episodes=6, max_envs=3)
    score = evaluator.evaluate(Snapshot(4, weights_for(counters(1))), seed=11)
    assert (score.version, score.value, score.metrics["episodes"]) == (4, 3.0, 6)
    again = evaluator.evaluate(Snapshot(4, weights_for(counters(1))), seed=11)
    assert again == score
    assert score.metrics["cut_episodes"] == 0


@pytest.mark.parametrize(("most", "cut"), [(1, 2), (49, 2), (50, 0), (51, 0)])
def test_an_episode_that_does_not_end_is_cut_and_counts_with_its_return_so_far(most: int, cut: int) -> None:
    evaluator = EpisodeEvaluator(partial(counters, length=50), policy, episodes=2, max_steps=most)
    score = evaluator.evaluate(Snapshot(0, weights_for(counters(1))), seed=0)
    assert score.value == min(most, 50), "one point a step"
    assert (score.metrics["episodes"], score.metrics["cut_episodes"]) == (2, cut)


def test_a_copy_whose_episode_was_cut_plays_no_more() -> None:
    evaluator = EpisodeEvaluator(partial(counters, length=50), policy, episodes=6, max_envs=2, max_steps=7)
    score = evaluator.evaluate(Snapshot(0, weights_for(counters(1))), seed=0)
    assert (score.value, score.metrics["episodes"], score.metrics["cut_episodes"]) == (7.0, 2, 2)


def test_an_evaluation_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="an episode needs at least one step, received max_steps=0"):
        EpisodeEvaluator(counters, policy, episodes=1, max_steps=0)
