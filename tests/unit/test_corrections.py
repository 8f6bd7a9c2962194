"""Corrections for stale data: by hand, against slow loops, and on fresh data, where they must not exist."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headway.llm.train.corrections import CORRECTIONS, MAX_LOG_RATIO, Weighed, find_correction, interpolate
from headway.llm.train.grpo_loss_loss import LossSettings, policy_loss, token_scale
from headway.llm.train.ragged import Ragged

torch.set_num_threads(1)

LENGTHS = [3, 1, 2]
RHO = [1.0, 3.0, 0.25, 1.5, 0.9, 1.1]  # three sequences; products 0.75, 1.5, 0.99


def weigh(name: str, rho: list[float], lengths: list[int], **knobs: Any) -> Weighed:
    logp_b = torch.linspace(-2, -1, len(rho), dtype=torch.float64)
    logp_prox = logp_b + torch.tensor(rho, dtype=torch.float64).log()
    return find_correction(name, **knobs).weigh(logp_prox, logp_b, Ragged.of(lengths))


# -- by hand ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["token_is", "decoupled"])
def test_importance_by_token_is_truncated_from_above_only(name: str) -> None:
    assert weigh(name, RHO, LENGTHS).weights.tolist() == pytest.approx([1.0, 2.0, 0.25, 1.5, 0.9, 1.1])
    assert weigh(name, RHO, LENGTHS, cap=1.0).weights.tolist() == pytest.approx([1.0, 1.0, 0.25, 1.0, 0.9, 1.0])
    assert weigh(name, RHO, LENGTHS).kept.all()


def test_importance_by_sequence_is_one_product_for_all_its_tokens() -> None:
    assert weigh("sequence_is", RHO, LENGTHS).weights.tolist() == pytest.approx([0.75] * 3 + [1.5] + [0.99] * 2)
    assert weigh("sequence_is", [4.0, 4.0], [2]).weights.tolist() == pytest.approx([5.0, 5.0])


def test_icepop_keeps_the_band_and_its_weights() -> None:
    found = weigh("icepop", RHO, LENGTHS)
    assert found.kept.tolist() == [True, False, False, True, True, True]
    assert found.weights.tolist() == pytest.approx([1.0, 0, 0, 1.5, 0.9, 1.1])


def test_m2po_drops_the_furthest_until_the_second_moment_fits() -> None:
    """log^2 of 0.1, 0.2, 0.3, 0.5: 0.01, 0.04, 0.09, 0.25. Means of the smallest: 0.01, 0.025, 0.0467, 0.0975."""
    found = weigh("m2po", [math.exp(x) for x in (0.5, -0.2, 0.1, 0.3)], [4])
    assert found.kept.tolist() == [False, True, True, False]
    assert found.weights.tolist() == pytest.approx([0, math.exp(-0.2), math.exp(0.1), 0])
    assert weigh("m2po", [math.exp(x) for x in (0.5, -0.2, 0.1, 0.3)], [4], limit=0.1).kept.all()


def test_a_sequence_goes_whole_when_its_mean_or_its_product_leaves_the_band() -> None:
    rho = [1.005, 0.995, 1.02, 1.02, 1.5, 0.67]  # geometric means 1.000, 1.02, 1.0025; products 1.000, 1.04, 1.005
    assert weigh("sequence_mask", rho, [2, 2, 2]).kept.tolist() == [True, True, False, False, True, True]
    far = [1.1] * 8 + [0.9, 1.1]  # product 2.14; a mean of 1.1
    found = weigh("sequence_mask", far, [8, 2], statistic="product")
    assert found.kept.tolist() == [False] * 8 + [True] * 2
    assert found.weights.tolist() == [0.0] * 8 + [1.0] * 2
    assert weigh("sequence_mask", far, [8, 2], low=0.8, high=1.2).kept.all()


@pytest.mark.parametrize("name", ["none", "clip", "cispo", "topr"])
def test_where_the_loss_itself_corrects_the_weights_are_one(name: str) -> None:
    found = weigh(name, RHO, LENGTHS)
    assert found.weights.tolist() == [1.0] * 6
    assert found.kept.all()
    assert find_correction(name).proximal == "behaviour"


# -- against slow loops -----------------------------------------------------------------------------


def slow(name: str, log_rho: list[float], lengths: list[int]) -> tuple[list[float], list[bool]]:
    ratio = [math.exp(max(-20.0, min(20.0, x))) for x in log_rho]
    weights, kept = [], []
    start = 0
    for length in lengths:
        mine = log_rho[start : start + length]
        product = math.exp(max(-20.0, min(20.0, sum(mine))))
        mean = math.exp(max(-20.0, min(20.0, sum(mine) / length))) if length else 1.0
        for r in ratio[start : start + length]:
            is_kept = {"icepop": 0.5 <= r <= 2.0, "sequence_mask": 0.99 <= mean <= 1.01}.get(name, True)
            weight = {"sequence_is": min(product, 5.0), "icepop": r, "sequence_mask": 1.0}.get(name, min(r, 2.0))
            kept.append(is_kept)
            weights.append(weight if is_kept else 0.0)
        start += length
    if name == "m2po":
        alive = sorted(range(len(log_rho)), key=lambda i: log_rho[i] ** 2)
        while alive and sum(log_rho[i] ** 2 for i in alive) / len(alive) >= 0.04:
            alive.pop()
        kept = [i in alive for i in range(len(log_rho))]
        weights = [r if k else 0.0 for r, k in zip(ratio, kept, strict=True)]
    return weights, kept


@pytest.mark.parametrize("name", ["token_is", "sequence_is", "decoupled", "icepop", "m2po", "sequence_mask"])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    spread=st.sampled_from([0.0, 0.01, 0.1, 0.5, 3.0, 30.0]),
)
def test_every_rule_is_its_slow_loop(name: str, seed: int, lengths: list[int], spread: float) -> None:
    log_rho = np.random.default_rng(seed).normal(scale=spread, size=sum(lengths))
    found = find_correction(name).weigh(torch.from_numpy(log_rho), torch.zeros(sum(lengths)), Ragged.of(lengths))
    weights, kept = slow(name, log_rho.tolist(), lengths)
    np.testing.assert_allclose(found.weights.numpy(), weights, rtol=1e-9)
    assert found.kept.tolist() == kept
    assert not found.weights[~found.kept].any()
    assert torch.isfinite(found.weights).all()


@pytest.mark.parametrize("name", CORRECTIONS)
def test_log_ratios_are_clamped_so_that_nothing_overflows(name: str) -> None:
    gap = torch.tensor([500.0, -500.0, float("inf"), float("-inf")])
    found = find_correction(name).weigh(gap, torch.zeros(4), Ragged.of([1, 1, 1, 1]))
    assert torch.isfinite(found.weights).all()
    assert float(found.weights.max()) <= math.exp(MAX_LOG_RATIO)


@pytest.mark.parametrize("name", CORRECTIONS)
def test_weights_carry_no_gradient(name: str) -> None:
    logp = torch.zeros(3, requires_grad=True)
    assert not find_correction(name).weigh(logp * 2, torch.zeros(3), Ragged.of([3])).weights.requires_grad


# -- on fresh data ----------------------------------------------------------------------------------


def gradient(logits: Tensor, chosen: Tensor, advantages: Tensor, name: str, **knobs: Any) -> Tensor:
    """Of the loss under a correction, when all three policies are the same."""
    logits = logits.clone().requires_grad_()
    logp = logits.log_softmax(-1).gather(-1, chosen[:, None])[:, 0]
    fresh = logp.detach()
    sequences, correction = Ragged.of(LENGTHS), find_correction(name, **knobs)
    loss_settings = LossSettings()
    scale = token_scale(sequences, loss_settings, num_tokens=6, num_sequences=3)
    weighed = correction.weigh(fresh, fresh, sequences)
    kind = correction.surrogate
    loss = policy_loss(logp, fresh, advantages, weighed, scale, kind, loss_settings, sequences=sequences)
    loss.value.backward()
    assert logits.grad is not None
    return logits.grad


@pytest.mark.parametrize("name", CORRECTIONS)
def test_on_fresh_data_every_correction_is_the_plain_policy_gradient(name: str) -> None:
    rng = np.random.default_rng(5)
    logits = torch.from_numpy(rng.normal(size=(6, 4)))
    chosen = torch.from_numpy(rng.integers(0, 4, 6))
    advantages = torch.from_numpy(rng.normal(size=6))
    found = gradient(logits, chosen, advantages, name)
    expected = torch.zeros_like(logits)
    for t in range(6):  # of -A log softmax, by hand: A (p - one-hot)
        chances = logits[t].exp() / logits[t].exp().sum()
        expected[t] = advantages[t] * (chances - torch.eye(4)[chosen[t]]) / 6
    torch.testing.assert_close(found, expected, atol=1e-8, rtol=1e-6)


# -- an anchor without a forward pass ---------------------------------------------------------------


def test_the_interpolated_anchor_lies_where_its_version_is_between_the_two() -> None:
    logp, logp_b = torch.tensor([-1.0, -1.0, -1.0]), torch.tensor([-3.0, -3.0, -3.0])
    born = torch.tensor([4, 6, 1])
    found = interpolate(logp, logp_b, born, proximal_version=6, version=7)
    assert found.tolist() == pytest.approx([-3 + 2 * 2 / 3, -3.0, -3 + 2 * 5 / 6])


def test_where_data_are_as_new_as_the_policy_the_anchor_is_the_behaviour_policy() -> None:
    found = interpolate(torch.tensor([-1.0]), torch.tensor([-3.0]), torch.tensor([7]), proximal_version=7, version=7)
    assert found.tolist() == [-3.0]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.floats(-8, 0), st.floats(-8, 0), st.integers(0, 9), st.integers(0, 9))
def test_the_interpolated_anchor_never_leaves_the_line(a: float, b: float, born: int, ahead: int) -> None:
    logp, logp_b = torch.tensor([a], dtype=torch.float64), torch.tensor([b], dtype=torch.float64)
    found = interpolate(logp, logp_b, torch.tensor([born]), proximal_version=born + ahead, version=born + ahead + 1)
    assert min(a, b) - 1e-9 <= float(found) <= max(a, b) + 1e-9
    share = ahead / (ahead + 1)
    assert float(found) == pytest.approx(b + share * (a - b), abs=1e-9)


def test_the_interpolated_anchor_carries_no_gradient_and_cannot_be_newer_than_the_policy() -> None:
    logp = torch.zeros(1, requires_grad=True)
    assert not interpolate(logp, torch.zeros(1), torch.tensor([0]), proximal_version=1, version=2).requires_grad
    with pytest.raises(ValueError, match=r"the anchor \(version 3\) cannot be newer than the policy \(2\)"):
        interpolate(logp, torch.zeros(1), torch.tensor([0]), proximal_version=3, version=2)


# -- names and settings -----------------------------------------------------------------------------


def test_the_proximal_policy_of_decoupled_can_be_chosen_and_of_others_not() -> None:
    assert find_correction("decoupled").proximal == "recomputed"
    assert find_correction("decoupled", proximal="interpolated").proximal == "interpolated"
    with pytest.raises(ValueError, match="unknown setting of correction 'm2po' 'proximal'"):
        find_correction("m2po", proximal="interpolated")
    with pytest.raises(ValueError, match=r"did you mean 'interpolated'\?"):
        find_correction("decoupled", proximal="interpolate")


def test_only_m2po_must_see_a_whole_batch() -> None:
    assert [name for name in CORRECTIONS if find_correction(name).needs_whole_batch] == ["m2po"]


@pytest.mark.parametrize(
    ("name", "knobs", "message"),
    [
        ("icepopp", {}, r"unknown correction 'icepopp'; did you mean 'icepop'\? allowed: cispo, clip, decoupled"),
        ("token_is", {"cp": 2}, r"unknown setting of correction 'token_is' 'cp'; did you mean 'cap'\?"),
        ("clip", {"cap": 2}, r"unknown setting of correction 'clip' 'cap'; allowed: \(none\)"),
        ("token_is", {"cap": 0.5}, r"cap must be >= 1, received 0.5"),
        ("sequence_is", {"cap": float("nan")}, r"cap must be >= 1, received nan"),
        ("icepop", {"low": 1.5}, r"a band needs 0 <= low <= 1 <= high, received \[1.5, 2.0\]"),
        ("m2po", {"limit": 0}, r"limit must be > 0, received 0"),
        ("sequence_mask", {"statistic": "prod"}, r"unknown statistic 'prod'; did you mean 'product'\?"),
        ("sequence_mask", {"high": 0.9}, r"a band needs 0 <= low <= 1 <= high, received \[0.99, 0.9\]"),
    ],
)
def test_what_cannot_work_is_refused_before_the_run(name: str, knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_correction(name, **knobs)


def test_a_correction_can_travel_to_another_process() -> None:
    there = pickle.loads(pickle.dumps(find_correction("icepop", high=3.0)))
    assert there.weigh(torch.tensor([1.0]), torch.zeros(1), Ragged.of([1])).kept.tolist() == [True]
