"""Targets of steps in a segment: by hand, and against a slow reference that walks step by step."""

from __future__ import annotations

import numpy as np
import pytest
from prior_segments import text_segment

from headway.text_games.prior_learner_returns import step_advantages, step_targets
from headway.zero.segments import GameSegment


def a_segment(
    rewards: list[float], values: list[float], *, ended: tuple[int, ...] = (), cut: tuple[int, ...] = ()
) -> GameSegment:
    """One game; the step after an end or a cut only resets."""
    steps = len(rewards)
    terminated, truncated, valid = (np.full((steps, 1), flag) for flag in (False, False, True))
    for step in ended:
        terminated[step] = True
    for step in cut:
        truncated[step] = True
    for step in (*ended, *cut):
        valid[step + 1 : step + 2] = False
    prompts = [[1] if flag else [] for flag in valid[:, 0]]
    return text_segment(
        prompts,
        [[[2]] if flag else [] for flag in valid[:, 0]],
        [[1.0]] * steps,
        rewards=np.array(rewards, np.float32)[:, None],
        values=np.array(values, np.float32)[:, None],
        terminated=terminated,
        truncated=truncated,
        valid=valid,
    )


def test_rewards_are_summed_up_to_the_value_n_steps_on() -> None:
    segment = a_segment([1, 2, 4, 8], [10, 20, 30, 40])
    targets = step_targets(segment, 2, 0.5)[:, 0]
    # r0 + 0.5 r1 + 0.25 v2; r1 + 0.5 r2 + 0.25 v3; at the last row the value is taken early: r2 + 0.5 v3
    assert targets[:3].tolist() == [1 + 1 + 7.5, 2 + 2 + 10, 4 + 20]
    assert np.isnan(targets[3])
    np.testing.assert_array_equal(step_advantages(segment, 2, 0.5)[:3, 0], targets[:3] - [10, 20, 30])


def test_a_terminated_episode_has_no_value_behind_it() -> None:
    targets = step_targets(a_segment([1, 2, 0, 8], [10, 20, 30, 40], ended=(1,)), 3, 0.5)[:, 0]
    assert targets[:2].tolist() == [1 + 1, 2] and np.isnan(targets[2:]).all()


def test_a_cut_episode_ends_with_the_value_of_its_last_observation() -> None:
    targets = step_targets(a_segment([1, 2, 0, 8], [10, 20, 30, 40], cut=(1,)), 3, 0.5)[:, 0]
    assert targets[:2].tolist() == [1 + 1 + 0.25 * 30, 2 + 0.5 * 30]
    last = step_targets(a_segment([1, 2], [10, 20], cut=(1,)), 3, 0.5)[:, 0]
    assert last[0] == 1 + 0.5 * 20 and np.isnan(last[1]), "what the cut one was worth stands in the next segment"


def test_the_last_row_has_a_target_only_where_its_episode_terminated() -> None:
    targets = step_targets(a_segment([1, 2, 4], [10, 20, 30], ended=(2,)), 9, 0.5)[:, 0]
    assert targets.tolist() == [1 + 1 + 1, 2 + 2, 4]


def slow_target(segment: GameSegment, first: int, td_steps: int, gamma: float) -> float:
    rows, total = len(segment.actions), 0.0
    if not segment.valid[first, 0]:
        return float("nan")
    for ahead in range(td_steps):
        row = first + ahead
        total += gamma**ahead * float(segment.rewards[row, 0])
        if segment.terminated[row, 0]:
            return total
        if row + 1 == rows:
            return float("nan")
        stops = ahead + 1 == td_steps or segment.truncated[row, 0]
        if row + 1 == rows - 1 and not segment.terminated[row + 1, 0]:
            stops = True
        if stops:
            return total + gamma ** (ahead + 1) * float(segment.values[row + 1, 0])
    raise AssertionError


@pytest.mark.parametrize("td_steps", [1, 2, 5, 20])
def test_targets_are_what_a_walk_through_the_segment_finds(td_steps: int) -> None:
    random = np.random.default_rng(td_steps)
    for _ in range(20):
        places = sorted(random.choice(6, 2, replace=False) * 2)
        ended, cut = (int(places[0]),), (int(places[1]),)
        rewards, values = random.normal(size=(2, 12)).tolist()
        segment = a_segment(rewards, values, ended=ended, cut=cut)
        expected = [slow_target(segment, row, td_steps, 0.9) for row in range(12)]
        np.testing.assert_allclose(step_targets(segment, td_steps, 0.9)[:, 0], expected, rtol=1e-5, atol=1e-6)
