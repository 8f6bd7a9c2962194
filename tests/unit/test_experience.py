"""Records of experience: what they refuse, their sizes, and that dictionaries of former runs become records."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields
from typing import Any

import numpy as np
import pytest

from headway.core.types import Batch, Rollout, size_of
from headway.envs.gymnasium_vector import Discrete, Spec
from headway.ppo.learner import PPOLearner, PPOSettings
from headway.ppo.policy import ActorCritic
from headway.ppo.segments_segment import DrawnSegments, Segment, side_by_side
from headway.replay.records import arrays_of, as_record, record_of
from headway.replay.records_feedback import Priorities
from headway.replay.records_recent_returns import RecentReturns
from headway.runs.fingerprint import fingerprint
from headway.zero.segments import DrawnWindows, GameSegment, OldTargets, SearchedTargets


def a_dictionary(width: int = 2) -> dict[str, np.ndarray]:
    """A payload as it was before there were records."""
    random, shape = np.random.default_rng(3), (5, width)
    return {
        "obs": random.normal(size=(6, width, 3)).astype(np.float32),
        "actions": random.integers(2, size=shape),
        "log_probs": np.full(shape, np.log(0.5), np.float32),
        "rewards": random.normal(size=shape).astype(np.float32),
        "terminated": np.zeros(shape, bool),
        "truncated": np.zeros(shape, bool),
        "valid": np.ones(shape, bool),
    }


@pytest.mark.parametrize("kind", [Segment, DrawnSegments, GameSegment, DrawnWindows, OldTargets, SearchedTargets])
def test_a_dictionary_of_a_former_run_becomes_a_record(kind: Any) -> None:
    former = {field.name: np.arange(3) for field in fields(kind)} | {"flags": np.zeros(3)}  # no longer a field
    record = record_of(Rollout(former), kind)
    assert type(record) is kind
    assert list(arrays_of(record)) == [field.name for field in fields(kind)]
    assert record_of(Rollout(record), kind) is record
    again = pickle.loads(pickle.dumps(record))
    assert type(again) is kind and list(arrays_of(again)) == list(arrays_of(record))


def test_a_learner_learns_the_same_from_a_former_dictionary() -> None:
    weights = []
    for payload in (a_dictionary(), Segment(**a_dictionary())):
        learner = PPOLearner(lambda: ActorCritic(Spec((3,), Discrete(2)), (8,), seed=1), PPOSettings(minibatch_size=4))
        learner.learn(Batch(0, (Rollout(payload),)))
        weights.append(fingerprint(learner.snapshot()))
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (7, "expected a Segment, received a int"),
        (Priorities(np.zeros(1), np.zeros(1)), "expected a Segment, received a Priorities"),
        ({"obs": 1}, r"a dictionary with \['obs'\] is no Segment: .*missing.*'actions'"),
    ],
)
def test_another_payload_is_refused_with_one_line(payload: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message) as caught:
        as_record(payload, Segment)
    assert "\n" not in str(caught.value)


def test_a_record_is_frozen_and_as_large_as_its_arrays() -> None:
    segment = Segment(**a_dictionary())
    assert size_of(segment) == size_of(a_dictionary()) > 0
    assert segment.num_steps == 10
    with pytest.raises(FrozenInstanceError):
        segment.obs = segment.obs  # type: ignore[misc]


def test_segments_side_by_side_are_one_of_more_environments() -> None:
    joined = side_by_side([Segment(**a_dictionary(2)), Segment(**a_dictionary(3))])
    assert joined.obs.shape == (6, 5, 3) and joined.rewards.shape == (5, 5) and joined.masks is None
    np.testing.assert_array_equal(joined.actions[:, 2:], a_dictionary(3)["actions"])


def test_the_mean_return_is_over_the_last_hundred_episodes() -> None:
    returns = RecentReturns()
    assert returns.as_metric() == {}
    returns.see(Rollout(None, info={"episodes": [(float(number), 2 * number) for number in range(150)]}))
    returns.see(Rollout(None))
    assert returns.as_metric() == {"return": np.mean(np.arange(50, 150)), "length": 2 * np.mean(np.arange(50, 150))}
    other = RecentReturns()
    other.restore(returns.state())
    assert other.as_metric() == returns.as_metric()
