"""Advantages against references that are slow and obvious."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.ppo.learner_advantages import effective_sample_size, gae, vtrace


def random_segment(seed: int, steps: int, width: int) -> dict[str, np.ndarray]:
    """Rewards, values and ends; the step after an end only resets, as in the environments."""
    rng = np.random.default_rng(seed)
    ended = rng.random((steps, width)) < 0.2
    valid = np.ones((steps, width), bool)
    for t in range(1, steps):
        ended[t] &= ~ended[t - 1]
        valid[t] = ~ended[t - 1]
    terminated = ended & (rng.random((steps, width)) < 0.5)
    return {
        "rewards": rng.normal(size=(steps, width)) * valid,
        "values": rng.normal(size=(steps + 1, width)),
        "terminated": terminated,
        "truncated": ended & ~terminated,
        "valid": valid,
    }


def slow_gae(data: dict[str, np.ndarray], gamma: float, lam: float) -> np.ndarray:
    """Sum over future deltas, one start at a time, until the episode ends."""
    steps, width = data["rewards"].shape
    result = np.zeros((steps, width))
    for i in range(width):
        for start in range(steps):
            factor = 1.0
            for t in range(start, steps):
                if not data["valid"][t, i]:
                    break
                after = 0.0 if data["terminated"][t, i] else data["values"][t + 1, i]
                result[start, i] += factor * (data["rewards"][t, i] + gamma * after - data["values"][t, i])
                if data["terminated"][t, i] or data["truncated"][t, i]:
                    break
                factor *= gamma * lam
    return result


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 4), st.floats(0.5, 1.0), st.floats(0.0, 1.0))
def test_gae_is_the_discounted_sum_of_deltas(seed: int, steps: int, width: int, gamma: float, lam: float) -> None:
    data = random_segment(seed, steps, width)
    advantages, targets = gae(**data, gamma=gamma, lam=lam)
    np.testing.assert_allclose(advantages, slow_gae(data, gamma, lam), atol=1e-9)
    np.testing.assert_allclose(targets, advantages + data["values"][:-1])
    assert not advantages[~data["valid"]].any()


def test_truncation_is_bootstrapped_and_termination_is_not() -> None:
    shape = {
        "rewards": np.array([[1.0, 1.0]]),
        "values": np.array([[0.0, 0.0], [10.0, 10.0]]),
        "valid": np.ones((1, 2), bool),
    }
    ends = {"terminated": np.array([[True, False]]), "truncated": np.array([[False, True]])}
    advantages, _ = gae(**shape, **ends, gamma=0.9, lam=0.95)
    assert advantages[0].tolist() == pytest.approx([1.0, 1.0 + 0.9 * 10.0])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.integers(1, 10), st.floats(0.5, 1.0), st.floats(0.0, 1.0))
def test_on_fresh_data_vtrace_is_gae(seed: int, steps: int, gamma: float, lam: float) -> None:
    data = random_segment(seed, steps, 3)
    expected_advantages, expected_targets = gae(**data, gamma=gamma, lam=lam)
    advantages, targets = vtrace(**data, ratios=np.ones_like(data["rewards"]), gamma=gamma, lam=lam)
    np.testing.assert_allclose(targets, expected_targets, atol=1e-9)
    np.testing.assert_allclose(advantages, expected_advantages, atol=1e-9)


def slow_vtrace(data: dict[str, np.ndarray], ratios: np.ndarray, gamma: float, lam: float) -> np.ndarray:
    """v_s by the sum over products of lambda c that the paper writes, one start at a time."""
    steps, width = ratios.shape
    targets = data["values"][:-1].copy()
    rho, c = np.minimum(ratios, 1.0), lam * np.minimum(ratios, 1.0)
    for i in range(width):
        for start in range(steps):
            factor = 1.0
            for t in range(start, steps):
                if not data["valid"][t, i]:
                    break
                after = 0.0 if data["terminated"][t, i] else data["values"][t + 1, i]
                delta = rho[t, i] * (data["rewards"][t, i] + gamma * after - data["values"][t, i])
                targets[start, i] += factor * delta
                if data["terminated"][t, i] or data["truncated"][t, i]:
                    break
                factor *= gamma * c[t, i]
    return targets


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.integers(1, 10), st.one_of(st.just(1.0), st.floats(0.0, 1.0)))
def test_vtrace_is_the_sum_over_products_of_truncated_ratios(seed: int, steps: int, lam: float) -> None:
    data = random_segment(seed, steps, 3)
    ratios = np.random.default_rng(seed + 1).lognormal(0, 0.7, data["rewards"].shape)
    advantages, targets = vtrace(**data, ratios=ratios, gamma=0.95, lam=lam)
    expected = slow_vtrace(data, ratios, 0.95, lam)
    np.testing.assert_allclose(targets, expected, atol=1e-9)
    for t in range(steps):
        for i in range(3):
            if not data["valid"][t, i]:
                assert advantages[t, i] == 0
                continue
            ends = data["terminated"][t, i] or data["truncated"][t, i]
            after = data["values"][t + 1, i]
            if not ends and t + 1 < steps:
                after = lam * expected[t + 1, i] + (1 - lam) * after
            after = 0.0 if data["terminated"][t, i] else after
            gap = data["rewards"][t, i] + 0.95 * after - data["values"][t, i]
            assert advantages[t, i] == pytest.approx(min(ratios[t, i], 1.0) * gap, abs=1e-9)


def test_vtrace_by_hand_with_ends_in_the_middle_of_a_segment() -> None:
    """Of four steps: one environment terminates at the second, one is truncated there, and both reset at the third."""
    data = {
        "rewards": np.array([[1.0, 1.0], [2.0, 2.0], [0.0, 0.0], [4.0, 4.0]]),
        "values": np.array([[1.0, 1.0], [2.0, 2.0], [8.0, 8.0], [3.0, 3.0], [5.0, 5.0]]),
        "terminated": np.array([[False, False], [True, False], [False, False], [False, False]]),
        "truncated": np.array([[False, False], [False, True], [False, False], [False, False]]),
        "valid": np.array([[True, True], [True, True], [False, False], [True, True]]),
    }
    ratios = np.array([[0.5, 2.0], [2.0, 0.5], [1.0, 1.0], [0.5, 2.0]])
    advantages, targets = vtrace(**data, ratios=ratios, gamma=0.5, lam=0.5)
    # The last step: rho (4 + 0.5 * 5 - 3) = rho 3.5. The second: 2 - 2 = 0 where it terminated, 2 + 0.5 * 8 - 2 = 4
    # where it was cut. The first: delta 1 + 0.5 * 2 - 1 = 1, and what follows counts with gamma lambda c.
    assert targets[:, 0].tolist() == pytest.approx([1 + 0.5 * 1 + 0.5 * 0.5 * 0.5 * 0.0, 2.0, 8.0, 3 + 0.5 * 3.5])
    assert targets[:, 1].tolist() == pytest.approx([1 + 1 + 0.5 * 0.5 * 1 * (0.5 * 4), 2 + 0.5 * 4, 8.0, 3 + 3.5])
    # V' = 2 of the first step is followed by v' = 2 and v' = 4: halfway between are 2 and 3.
    assert advantages[:, 0].tolist() == pytest.approx([0.5 * (1 + 0.5 * 2 - 1), 0.0, 0.0, 0.5 * 3.5])
    assert advantages[:, 1].tolist() == pytest.approx([1 + 0.5 * 3 - 1, 0.5 * 4, 0.0, 3.5])


def test_the_effective_sample_size_is_the_share_that_counts() -> None:
    assert effective_sample_size(np.ones(8)) == pytest.approx(1.0)
    assert effective_sample_size(np.array([1.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)
    assert effective_sample_size(np.zeros(4)) == 0.0
