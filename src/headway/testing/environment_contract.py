"""What every environment must do to be collected from. A new one is accepted when it passes this suite.

Derive a test class, name the environment, and let pytest find it:

    class TestMaze(EnvironmentContract):
        env_id = "my_games:Maze-v0"

An environment whose vector cannot be pickled, because it lives in threads or on a device, says `is_picklable = False`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import cloudpickle
import numpy as np

from headway.envs.gymnasium_vector import (
    ActionSpec,
    Backend,
    Continuous,
    Discrete,
    EnvVector,
    as_features,
    choices_of,
    describe,
    legal_actions,
    make_vector,
    to_environment,
)

NUM_ENVS = 3
SEED = 11


class VectorStep(NamedTuple):
    """What a vector of N copies showed."""

    features: np.ndarray  # [N, ...]
    rewards: np.ndarray  # [N]
    terminated: np.ndarray  # [N] bool
    truncated: np.ndarray  # [N] bool

    @property
    def ended(self) -> np.ndarray:
        return self.terminated | self.truncated


class EnvironmentContract:
    """A vector of copies, played by chance among its legal actions."""

    env_id: str
    backend: Backend = "gymnasium"
    steps = 300
    """Enough that some episode ends."""
    is_picklable = True

    def make(self) -> EnvVector:
        return make_vector(self.env_id, NUM_ENVS, self.backend)

    def test_shapes_and_types_are_those_it_declares(self) -> None:
        env = self.make()
        spec = describe(env)
        for step in play(env, 20):
            assert step.features.shape == (NUM_ENVS, *spec.observation)
            assert step.features.dtype == spec.dtype
            assert np.isfinite(step.features.astype(np.float64)).all()
            for row in step[1:]:
                assert row.shape == (NUM_ENVS,)
            assert step.terminated.dtype == step.truncated.dtype == np.bool_

    def test_the_seed_determines_every_episode(self) -> None:
        assert_same(play(self.make(), self.steps), play(self.make(), self.steps))

    def test_an_episode_that_ended_begins_again_on_the_next_step(self) -> None:
        before: np.ndarray = np.zeros(NUM_ENVS, np.bool_)
        num_ended = 0
        for step in play(self.make(), self.steps):
            assert not step.rewards[before].any(), "the step that only starts again has no reward"
            assert not step.ended[before].any(), "the step that only starts again does not end"
            num_ended += int(step.ended.sum())
            before = step.ended
        assert num_ended, f"no episode ended within {self.steps} steps: raise `steps`"

    def test_a_pickled_vector_goes_on_bit_for_bit(self) -> None:
        if self.is_picklable:
            assert_same(play(self.make(), 60), play(self.make(), 60, pickled_at=30))


def play(env: EnvVector, steps: int, *, pickled_at: int | None = None) -> Iterator[VectorStep]:
    """So many steps by chance: for the same legal actions the same are chosen."""
    space, action, rng = env.single_observation_space, describe(env).action, np.random.default_rng(SEED)
    _, info = env.reset(seed=SEED)
    legal = legal_actions(info, action, np.zeros(env.num_envs, np.bool_))
    for number in range(steps):
        if number == pickled_at:
            env = cloudpickle.loads(cloudpickle.dumps(env))
        chosen = to_environment(_choose(rng, action, legal, env.num_envs), action, env.single_action_space)
        observation, rewards, terminated, truncated, info = env.step(chosen)
        step = VectorStep(as_features(observation, space).copy(), rewards.copy(), terminated.copy(), truncated.copy())
        legal = legal_actions(info, action, step.ended)
        yield step


def assert_same(one: Iterable[VectorStep], other: Iterable[VectorStep]) -> None:
    for number, (mine, yours) in enumerate(zip(one, other, strict=True)):
        for name, left, right in zip(VectorStep._fields, mine, yours, strict=True):
            assert np.array_equal(left, right), f"{name} differ at step {number}"


def _choose(rng: np.random.Generator, action: ActionSpec, legal: np.ndarray | None, num_envs: int) -> np.ndarray:
    """Any legal action of each copy, all equally likely."""
    if isinstance(action, Continuous):
        low, high = np.clip(action.low, -1, 1), np.clip(action.high, -1, 1)
        return rng.uniform(low, high, (num_envs, len(low))).astype(np.float32)
    choices = choices_of(action)
    lots = rng.random((num_envs, sum(choices))) + (0 if legal is None else legal)
    parts = np.split(lots, np.cumsum(choices)[:-1], axis=1)
    chosen = np.stack([part.argmax(axis=1) for part in parts], axis=1)  # [N, choices]
    return chosen[:, 0] if isinstance(action, Discrete) else chosen
