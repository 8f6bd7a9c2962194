"""Advantages of groups and tokens against loops that are slow and obvious."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.llm.train.advantages import ESTIMATORS, at_the_end, group_advantages, token_gae, whiten
from headway.llm.train.grpo_loss_diagnostics import replies
from headway.llm.train.ragged import Ragged

torch.set_num_threads(1)

REWARDS = [1.0, 0.0, 0.0, 1.0, 0.5, 0.5, 0.5, 2.0]
GROUP = [7, 7, 7, 7, 3, 3, 3, 9]

samples = st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.7])), min_size=1, max_size=24)


def slow(estimator: str, rewards: list[float], group: list[int]) -> list[float]:
    """One reply at a time, by the book."""
    result = []
    for i, (reward, mine) in enumerate(zip(rewards, group, strict=True)):
        members = [r for r, g in zip(rewards, group, strict=True) if g == mine]
        others = [r for j, (r, g) in enumerate(zip(rewards, group, strict=True)) if g == mine and j != i]
        if estimator == "reinforce_plus_plus":
            spread = statistics.stdev(rewards) if len(rewards) > 1 else 0.0
            result.append((reward - statistics.fmean(rewards)) / (spread + 1e-6))
        elif len(set(members)) == 1:
            result.append(0.0)
        elif estimator == "grpo":
            result.append((reward - statistics.fmean(members)) / (statistics.stdev(members) + 1e-6))
        elif estimator == "dr_grpo":
            result.append(reward - statistics.fmean(members))
        else:
            result.append(reward - statistics.fmean(others))
    return result


def test_grpo_by_hand() -> None:
    """Four replies, two right: mean 1/2, sample variance (4 * 1/4) / 3 = 1/3."""
    found = group_advantages("grpo", REWARDS, GROUP)
    height = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    assert found.tolist() == pytest.approx([height, -height, -height, height, 0, 0, 0, 0])


def test_dr_grpo_and_rloo_by_hand() -> None:
    assert group_advantages("dr_grpo", REWARDS, GROUP)[:4].tolist() == pytest.approx([0.5, -0.5, -0.5, 0.5])
    rloo = group_advantages("rloo", REWARDS, GROUP)[:4].tolist()
    assert rloo == pytest.approx([1 - 1 / 3, -2 / 3, -2 / 3, 1 - 1 / 3])


def test_groups_without_variance_say_exactly_nothing() -> None:
    """0.1 has no exact float: the mean of three of them is not 0.1, and the gap must still be zero."""
    rewards, group = [0.1, 0.1, 0.1, 1.0, 0.0], [0, 0, 0, 1, 1]
    for estimator in ("grpo", "dr_grpo", "rloo"):
        found = group_advantages(estimator, rewards, group)
        assert found[:3].tolist() == [0.0, 0.0, 0.0]
        assert found[3] > 0 > found[4]


def test_a_group_of_one_has_nobody_to_compare_with() -> None:
    for estimator in ("grpo", "dr_grpo", "rloo"):
        found = group_advantages(estimator, [5.0], [0])
        assert found.tolist() == [0.0]


def test_under_global_whitening_a_silent_group_still_counts() -> None:
    found = group_advantages("reinforce_plus_plus", [1.0, 1.0, 0.0, 0.0], [0, 0, 1, 1])
    assert found[0] > 0 > found[2]
    assert float(found.mean()) == pytest.approx(0, abs=1e-6)
    assert float(found.std()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=samples)
def test_every_estimator_is_the_slow_loop_whatever_the_order_of_replies(
    estimator: str, data: list[tuple[int, float]]
) -> None:
    group, rewards = [g for g, _ in data], [r for _, r in data]
    found = group_advantages(estimator, torch.tensor(rewards, dtype=torch.float64), torch.tensor(group))
    np.testing.assert_allclose(found.numpy(), slow(estimator, rewards, group), atol=1e-8)
    by_group = {g: {r for h, r in data if h == g} for g in group}
    measured = replies(torch.tensor(rewards), torch.tensor(group), torch.ones(len(group)))
    assert measured["silent_groups"] == pytest.approx(np.mean([len(values) == 1 for values in by_group.values()]))


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_rewards_may_be_lists_arrays_or_tensors_also_of_integers(kind: Any) -> None:
    found = group_advantages("dr_grpo", kind([1, 0]), kind([4, 4]))
    assert found.tolist() == [0.5, -0.5]


def test_an_unknown_estimator_and_a_wrong_shape_are_named() -> None:
    with pytest.raises(ValueError, match=r"unknown advantage estimator 'gropo'; did you mean 'grpo'\?"):
        group_advantages("gropo", [1.0], [0])
    with pytest.raises(ValueError, match=r"rewards \(2,\) and group \(1,\) must be \[S\] both"):
        group_advantages("grpo", [1.0, 2.0], [0])


def test_whitening_one_value_is_not_a_division_by_zero() -> None:
    assert whiten(torch.tensor([3.0])).tolist() == [0.0]


# -- tokens -----------------------------------------------------------------------------------------


def slow_gae(
    rewards: list[float], values: list[float], gamma: float, lam: float, after_the_end: float = 0.0
) -> list[float]:
    """One sequence, from its end."""
    result, following = [0.0] * len(values), 0.0
    for t in reversed(range(len(values))):
        after = values[t + 1] if t + 1 < len(values) else after_the_end
        following = rewards[t] + gamma * after - values[t] + gamma * lam * following
        result[t] = following
    return result


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    st.integers(0, 10_000),
    st.lists(st.integers(0, 17), min_size=1, max_size=6),
    st.floats(0.5, 1.0),
    st.floats(0.0, 1.0),
    st.booleans(),
)
def test_token_gae_is_the_backward_loop_over_each_sequence(
    seed: int, lengths: list[int], gamma: float, lam: float, cut_off: bool
) -> None:
    rng = np.random.default_rng(seed)
    sequences = Ragged.of(lengths)
    rewards, values = (torch.from_numpy(rng.normal(size=sum(lengths))) for _ in range(2))
    last = torch.from_numpy(rng.normal(size=len(lengths))) if cut_off else None
    advantages, targets = token_gae(rewards, values, sequences, gamma=gamma, lam=lam, bootstrap=last)
    expected: list[float] = []
    for k, (r, v) in enumerate(zip(rewards.split(lengths), values.split(lengths), strict=True)):
        expected += slow_gae(r.tolist(), v.tolist(), gamma, lam, 0.0 if last is None else float(last[k]))
    np.testing.assert_allclose(advantages.numpy(), expected, atol=1e-9)
    np.testing.assert_allclose(targets.numpy(), (advantages + values).numpy())


def test_with_lambda_one_the_advantage_is_the_reward_to_go_minus_the_value() -> None:
    sequences = Ragged.of([3, 0, 2])
    rewards = at_the_end(torch.tensor([1.0, 9.0, -2.0]), sequences)
    assert rewards.tolist() == [0, 0, 1, 0, -2]
    values = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5])
    advantages, targets = token_gae(rewards, values, sequences, gamma=1.0, lam=1.0)
    assert targets.tolist() == pytest.approx([1, 1, 1, -2, -2])
    assert advantages.tolist() == pytest.approx([0.9, 0.8, 0.7, -2.4, -2.5])


# -- the layout -------------------------------------------------------------------------------------


def test_the_layout_of_a_padded_batch_is_that_of_its_masked_values() -> None:
    mask = torch.tensor([[False, True, True], [False, False, False], [True, True, True]])
    values = torch.arange(9.0).reshape(3, 3)
    rows = Ragged.of(mask.sum(dim=1))
    assert rows.row.tolist() == [0, 0, 2, 2, 2]
    assert rows.sums(values[mask]).tolist() == [3, 0, 21]
    assert rows.means(values[mask]).tolist() == [1.5, 0, 7]
    assert rows.spread(torch.tensor([1.0, 2.0, 3.0])).tolist() == [1, 1, 3, 3, 3]
    assert (rows.num_rows, rows.num_values) == (3, 5)


def test_values_of_another_layout_are_refused() -> None:
    with pytest.raises(ValueError, match="the layout has 5 values, received 4"):
        Ragged.of([2, 3]).sums(torch.zeros(4))
