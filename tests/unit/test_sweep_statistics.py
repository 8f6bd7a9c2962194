"""What several runs come to: against numbers computed by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from headway.tools.sweep.results_aggregate import (
    Curve,
    Estimate,
    at_points,
    bootstrap,
    common_points,
    drawn_anew,
    estimate,
    improvement,
    interquartile_mean,
    mean,
    normalised,
    probability_of_improvement,
)


def column(*values: float) -> np.ndarray:
    return np.array(values, float)[:, None]


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([7.0], 7.0),
        ([1.0, 2.0, 9.0], 4.0),  # fewer than four: nothing is left out
        ([1.0, 2.0, 4.0, 100.0], 3.0),
        ([100.0, 1.0, 2.0, 3.0, 4.0], 3.0),
        ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 70.0], 3.5),
    ],
)
def test_the_interquartile_mean_leaves_a_quarter_out_at_each_end(scores: list[float], expected: float) -> None:
    assert interquartile_mean(column(*scores)) == pytest.approx([expected])


def test_the_interval_of_two_runs_has_the_runs_as_its_ends() -> None:
    """Of two runs a quarter of the draws is the lower twice and a quarter the higher twice."""
    assert estimate([np.array([2.0, 6.0])], mean) == Estimate(4.0, 2.0, 6.0)


def test_the_interval_of_three_runs_is_that_of_all_27_draws() -> None:
    scores = (0.0, 3.0, 9.0)
    every = sorted(sum(draw) / 3 for draw in itertools.product(scores, repeat=3))
    found = estimate([np.array(scores)], mean, resamples=40_000)
    assert found.value == 4.0
    assert (found.low, found.high) == (every[0], every[-1])  # a 27th of the draws, more than 2.5 %
    middle = bootstrap(
        [column(*scores)], lambda runs: np.quantile(mean(runs), 0.5, axis=0, keepdims=True), resamples=10
    )
    assert middle[0] == pytest.approx([4.0])


def test_a_single_run_has_no_interval() -> None:
    assert estimate([np.array([3.0])], mean) == Estimate(3.0)
    assert improvement([np.array([3.0])], [np.array([1.0])]) == Estimate(1.0)


def test_runs_are_drawn_anew_within_their_stratum() -> None:
    drawn = drawn_anew([column(1, 2), column(10, 20, 30)], 500, np.random.default_rng(0))
    assert drawn.shape == (500, 5, 1)
    assert set(np.unique(drawn[:, :2])) == {1, 2}
    assert set(np.unique(drawn[:, 2:])) == {10, 20, 30}


def test_the_probability_of_improvement_counts_pairs_and_ties_half() -> None:
    # 3 > 1, 3 > 2, 3 = 3 (half); 1 = 1 (half), 1 < 2, 1 < 3: three of six pairs
    assert probability_of_improvement(np.array([3.0, 1.0]), np.array([1.0, 2.0, 3.0])) == pytest.approx(0.5)
    found = improvement([np.array([5.0, 6.0]), np.array([1.0, 1.0])], [np.array([1.0, 2.0]), np.array([2.0, 3.0])])
    assert found == Estimate(0.5, 0.5, 0.5), "always on one task, never on the other"


def test_scores_of_a_task_are_brought_to_0_to_1_over_all_settings() -> None:
    first, second = normalised([np.array([10.0, 30.0]), np.array([20.0, 50.0])])
    assert list(first) == [0.0, 0.5]
    assert list(second) == [0.25, 1.0]
    assert [list(one) for one in normalised([np.array([4.0]), np.array([4.0])])] == [[0.0], [0.0]]


def test_curves_are_compared_where_all_of_them_have_a_value() -> None:
    first = Curve(np.array([0.0, 10.0, 20.0, 30.0]), np.array([0.0, 1.0, 2.0, 3.0]))
    second = Curve(np.array([5.0, 15.0, 25.0]), np.array([10.0, 20.0, 30.0]))
    points = common_points([first, second])
    assert list(points) == [5, 10, 15, 20, 25]
    assert at_points([first, second], points).tolist() == [[0.5, 1, 1.5, 2, 2.5], [10, 15, 20, 25, 30]]
    assert len(common_points([first, second], most=3)) == 3


def test_a_run_that_reached_its_target_stays_where_it_was() -> None:
    reached = Curve(np.array([0.0, 10.0]), np.array([0.0, 500.0]), is_held=True)
    other = Curve(np.array([0.0, 20.0]), np.array([0.0, 100.0]))
    points = common_points([reached, other])
    assert list(points) == [0, 10, 20]
    assert at_points([reached, other], points).tolist() == [[0, 500, 500], [0, 50, 100]]


def test_curves_without_a_stretch_in_common_have_no_points() -> None:
    assert len(common_points([Curve(np.array([0.0, 1.0]), np.zeros(2)), Curve(np.array([5.0, 6.0]), np.zeros(2))])) == 0


def test_a_band_holds_its_curve_and_is_the_same_every_time() -> None:
    runs = np.random.default_rng(3).normal(size=(5, 40)).cumsum(axis=1)
    for statistic in (mean, interquartile_mean):
        middle, low, high = bootstrap([runs], statistic)
        assert np.all(low <= middle) and np.all(middle <= high)
        again = bootstrap([runs], statistic)
        assert all(np.array_equal(one, other) for one, other in zip((middle, low, high), again, strict=True))
