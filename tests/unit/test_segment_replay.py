"""Segments in a replay: what goes in comes out whole, under its id, with its own weight and version."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.types import Batch, LearnReport, Rollout, Span
from headway.ppo.colorlines.replay_segment_replay import SegmentReplay
from headway.ppo.segments_segment import Segment
from headway.replay.records import arrays_of
from headway.replay.records_feedback import Priorities
from headway.replay.with_replay import WithReplay

STEPS = 3


def rollout(tag: int, num_envs: int, *, version: int = 0, valid: Any = None, episodes: Any = ()) -> Rollout:
    """Every number says where it comes from: rollout `tag`, environment, step."""
    steps, envs = np.arange(STEPS + 1)[:, None], np.arange(num_envs)[None, :]
    marks = 100.0 * tag + 10.0 * envs + steps  # [T + 1, N]
    alive = np.ones((STEPS, num_envs), bool) if valid is None else np.asarray(valid, bool)
    segment = Segment(
        obs=np.repeat(marks[..., None], 2, axis=2).astype(np.float32),
        actions=marks[:-1].astype(np.int64),
        log_probs=-marks[:-1].astype(np.float32),
        rewards=marks[:-1].astype(np.float32),
        terminated=np.zeros((STEPS, num_envs), bool),
        truncated=np.zeros((STEPS, num_envs), bool),
        valid=alive,
    )
    return Rollout(segment, steps=int(alive.sum()), span=Span(version, version), info={"episodes": episodes})


def replay_of(capacity: int = 30, batch_size: int = 6, **more: Any) -> SegmentReplay:
    return SegmentReplay(capacity, segment_steps=STEPS, batch_size=batch_size, seed=1, **more)


def insert(replay: SegmentReplay, *rollouts: Rollout) -> None:
    replay.insert(Batch(0, rollouts))


# -- in and out ---------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.integers(0, 100))
def test_a_draw_holds_whole_segments_of_what_was_inserted_last(sizes: list[int], seed: int) -> None:
    replay = SegmentReplay(5 * STEPS, segment_steps=STEPS, batch_size=4 * STEPS, seed=seed)
    marks: list[float] = []
    for tag, num_envs in enumerate(sizes):
        insert(replay, rollout(tag, num_envs, version=tag))
        marks += [100.0 * tag + 10.0 * env for env in range(num_envs)]
    draw = replay.sample(version=9)
    data = draw.payload
    assert data.obs.shape == (STEPS + 1, 4, 2)
    assert draw.steps == data.valid.sum() == 4 * STEPS
    for place in range(4):
        first = marks[data.ids[place]]
        assert data.ids[place] >= len(marks) - 5, "only the last five are kept"
        np.testing.assert_array_equal(data.obs[:, place, 0], first + np.arange(STEPS + 1))
        np.testing.assert_array_equal(data.rewards[:, place], first + np.arange(STEPS))
        np.testing.assert_array_equal(data.actions[:, place], first + np.arange(STEPS))
        assert data.versions[place] == first // 100
    assert draw.span == Span(int(data.versions.min()), int(data.versions.max()))
    assert data.weights.shape == (4,)


def test_a_segment_that_only_reset_its_environment_is_not_kept() -> None:
    replay = replay_of(batch_size=3)
    valid = np.ones((STEPS, 3), bool)
    valid[:, 1] = False
    valid[0, 2] = False
    insert(replay, rollout(0, 3, valid=valid))
    assert replay.statistics()["replay_segments"] == 2
    assert {replay.sample(0).steps for _ in range(40)} == {2, 3}


def test_observations_are_stored_small_only_if_nothing_is_lost() -> None:
    replay = replay_of(store_as={"obs": np.uint8})
    insert(replay, rollout(0, 2))
    assert replay.sample(0).payload.obs.dtype == np.uint8
    with pytest.raises(ValueError, match="field 'obs' does not fit into uint8: it would be changed"):
        insert(replay, rollout(9, 1))


# -- priorities ---------------------------------------------------------------------------------------


def shares(replay: SegmentReplay, draws: int = 300) -> np.ndarray:
    counts: np.ndarray = np.bincount(np.concatenate([replay.sample(0).payload.ids for _ in range(draws)]))
    return counts / counts.sum()


def test_feedback_decides_what_is_drawn_and_what_it_weighs() -> None:
    replay = replay_of(alpha=1.0, beta_start=1.0)
    insert(replay, rollout(0, 4))
    replay.update(Priorities(np.arange(4), np.array([6.0, 2.0, 1.0, 1.0])))
    np.testing.assert_allclose(shares(replay), [0.6, 0.2, 0.1, 0.1], atol=0.03)
    data = replay.sample(0).payload
    expected = 1.0 / np.array([6.0, 2.0, 1.0, 1.0])[data.ids]
    np.testing.assert_allclose(data.weights, expected, rtol=1e-5)


def test_late_feedback_does_not_touch_the_segment_that_took_the_slot() -> None:
    replay = replay_of(capacity=4 * STEPS, alpha=1.0)
    insert(replay, rollout(0, 4))
    late = replay.sample(0).payload.ids
    insert(replay, rollout(1, 4))
    before = replay.state_dict()["replay"]["leaves"]
    replay.update(Priorities(late, np.full(len(late), 50.0)))
    np.testing.assert_array_equal(replay.state_dict()["replay"]["leaves"], before)
    assert replay.statistics()["replay_late_updates"] == len(late) == 2


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_a_priority_that_cannot_be_is_refused_and_changes_nothing(bad: float) -> None:
    replay = replay_of()
    insert(replay, rollout(0, 2))
    before = replay.state_dict()["replay"]["leaves"]
    with pytest.raises(ValueError, match=r"priorities must be finite and >= 0.* at position 1"):
        replay.update(Priorities(np.array([0, 1]), np.array([3.0, bad])))
    np.testing.assert_array_equal(replay.state_dict()["replay"]["leaves"], before)


def test_segments_of_older_policies_are_drawn_less_with_a_decay() -> None:
    replay = replay_of(alpha=1.0, version_decay=0.5)
    insert(replay, rollout(0, 1, version=0), rollout(1, 1, version=2))
    np.testing.assert_allclose(shares(replay), [0.2, 0.8], atol=0.04)


# -- the run's length, numbers, state -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "betas"),
    [
        ({"total_draws": 4}, [0.4, 0.55, 0.7, 0.85, 1.0]),
        ({"total_steps": 24}, [0.55, 0.55, 0.55, 0.55, 0.55]),
        ({"total_draws": 8, "total_steps": 24}, [0.55, 0.55, 0.55, 0.625, 0.7]),
        ({}, [0.4, 0.4, 0.4, 0.4, 0.4]),
    ],
)
def test_the_weights_exponent_rises_by_draws_or_steps_whichever_is_further(
    more: dict[str, int], betas: list[float]
) -> None:
    replay = replay_of(**more)
    insert(replay, rollout(0, 2))
    seen = [replay.statistics()["replay_beta"]]
    for _ in range(4):
        replay.sample(0)
        seen.append(replay.statistics()["replay_beta"])
    np.testing.assert_allclose(seen, betas)


def test_the_mean_return_of_finished_episodes_is_reported() -> None:
    replay = replay_of()
    assert "return" not in replay.statistics()
    insert(replay, rollout(0, 2, episodes=[(4.0, 9), (8.0, 3)]))
    assert replay.statistics()["return"] == 6.0


def test_a_loaded_replay_goes_on_as_the_saved_one() -> None:
    first, second = replay_of(total_draws=9), replay_of(total_draws=9)
    insert(first, rollout(0, 3, episodes=[(4.0, 9)]))
    first.update(Priorities(first.sample(0).payload.ids, np.array([2.0, 3.0])))
    second.load_state_dict(first.state_dict())
    assert second.statistics() == first.statistics()
    for replay in (first, second):
        insert(replay, rollout(1, 4))
    for _ in range(5):
        drawn, again = first.sample(1).payload, second.sample(1).payload
        for name, values in arrays_of(drawn).items():
            np.testing.assert_array_equal(values, getattr(again, name))


@pytest.mark.parametrize(
    ("capacity", "batch_size", "message"),
    [
        (30, 4, "batch_size=4 must be a multiple of segment_steps=3"),
        (30, 2, "batch_size=2 must be a multiple of segment_steps=3"),
        (8, 9, "a replay of 8 steps cannot hold a batch of 9"),
    ],
)
def test_sizes_that_cannot_work_are_refused(capacity: int, batch_size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replay_of(capacity, batch_size)


# -- beside a learner ---------------------------------------------------------------------------------


class Remembers:
    """A learner that finds the second segment of every draw the most surprising."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def learn(self, batch: Batch) -> LearnReport:
        self.batches.append(batch)
        ids = batch.rollouts[0].payload.ids
        return LearnReport({"loss": 1.0}, feedback=Priorities(ids, np.arange(len(ids), dtype=float)))

    def snapshot(self) -> int:
        return len(self.batches)

    def state_dict(self) -> Any:
        return len(self.batches)

    def load_state_dict(self, state: Any) -> None:
        self.batches = [Batch(0, ())] * state


def test_a_learner_with_its_replay_draws_learns_and_writes_back() -> None:
    both = WithReplay(Remembers, replay_of)
    both.insert(Batch(0, (rollout(0, 2),)))
    report = both.learn(Batch(7, ()))
    assert (report.samples, report.feedback) == (2 * STEPS, None)
    assert report.metrics["loss"] == 1.0
    assert report.metrics["replay_segments"] == 2
    assert both.snapshot() == 1
    saved = both.state_dict()
    other = WithReplay(Remembers, replay_of)
    other.load_state_dict(saved)
    assert other.snapshot() == 1
    np.testing.assert_array_equal(other.state_dict()["replay"]["replay"]["leaves"], saved["replay"]["replay"]["leaves"])
    assert len(set(saved["replay"]["replay"]["leaves"])) == 2, "the priorities were written back"
