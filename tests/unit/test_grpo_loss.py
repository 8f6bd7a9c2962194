"""The loss over tokens, its aggregations and its measures: by hand, by finite differences, by slow loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headway.llm.train.corrections import Surrogate, Weighed
from headway.llm.train.grpo_loss_diagnostics import behaviour, explained_variance, mismatch, staleness
from headway.llm.train.grpo_loss_loss import LossSettings, TokenLoss, k3, measures, policy_loss, token_scale, value_loss
from headway.llm.train.grpo_settings import GRPOSettings
from headway.llm.train.ragged import Ragged

torch.set_num_threads(1)

SURROGATES: tuple[Surrogate, ...] = ("clip", "cispo", "topr", "plain")


def everyone(size: int) -> Weighed:
    return Weighed(torch.ones(size, dtype=torch.float64), torch.ones(size, dtype=torch.bool))


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def one_token(surrogate: Surrogate, r: float, advantage: float, **knobs: Any) -> tuple[float, float]:
    """Loss and its derivative by log pi, of one token with log pi = -0.7."""
    logp = doubles(-0.7).requires_grad_()
    anchor = logp.detach() - math.log(r)
    chosen = LossSettings(**knobs)
    found = policy_loss(logp, anchor, doubles(advantage), everyone(1), torch.ones(1), surrogate, chosen)
    found.value.backward()
    assert logp.grad is not None
    return found.value.item(), logp.grad.item()


@pytest.mark.parametrize(
    ("r", "advantage", "loss", "slope"),
    [
        (1.1, 2.0, -2.2, -2.2),  # inside: -r A, and d r / d log pi = r
        (1.5, 2.0, -2.56, 0.0),  # too high already: held at 1.28
        (0.5, 2.0, -1.0, -1.0),  # too low, and to be raised: free
        (0.5, -2.0, 1.6, 0.0),  # too low already: held at 0.8
        (1.5, -2.0, 3.0, 3.0),  # too high, and to be lowered: free
        (4.0, -2.0, 6.0, 0.0),  # beyond the dual clip: at most 3 |A|
    ],
)
def test_the_clipped_loss_by_hand(r: float, advantage: float, loss: float, slope: float) -> None:
    assert one_token("clip", r, advantage) == pytest.approx((loss, slope))


def test_without_dual_clip_a_negative_advantage_knows_no_bound() -> None:
    assert one_token("clip", 4.0, -2.0, dual_clip=None) == pytest.approx((8.0, 8.0))


@pytest.mark.parametrize(
    ("r", "advantage", "weight"), [(1.1, 2.0, 1.1), (1.5, 2.0, 1.28), (0.5, 2.0, 0.8), (1.5, -2.0, 1.28)]
)
def test_cispo_clips_the_weight_and_keeps_every_gradient(r: float, advantage: float, weight: float) -> None:
    assert one_token("cispo", r, advantage) == pytest.approx((0.7 * weight * advantage, -weight * advantage))


@pytest.mark.parametrize(("r", "advantage", "weight"), [(3.0, 2.0, 1.0), (0.3, 2.0, 1.0), (0.3, -2.0, 0.3), (3, -2, 1)])
def test_topr_tapers_only_what_is_to_be_unlearned(r: float, advantage: float, weight: float) -> None:
    assert one_token("topr", r, advantage) == pytest.approx((0.7 * weight * advantage, -weight * advantage))


@pytest.mark.parametrize("surrogate", SURROGATES)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000))
def test_the_gradient_is_that_of_finite_differences(surrogate: Surrogate, seed: int) -> None:
    """For cispo and topr with the stopped ratio held fixed, which is what stopping it means."""
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(size=(5, 3))).requires_grad_()
    chosen = torch.from_numpy(rng.integers(0, 3, 5))
    old, reference = (torch.from_numpy(rng.normal(-1, 0.4, 5)) for _ in range(2))
    advantages, weights = torch.from_numpy(rng.normal(size=5)), torch.from_numpy(rng.uniform(0, 2, 5))
    knobs = LossSettings(kl_weight=0.3, entropy_weight=0.2)
    scale = token_scale(Ragged.of([2, 3]), knobs, num_tokens=9, num_sequences=4)
    weighed = Weighed(weights, weights > 0)
    frozen = {}

    def loss(values: Tensor, *, is_frozen: bool = True) -> Tensor:
        logs = values.log_softmax(-1)
        logp = logs.gather(-1, chosen[:, None])[:, 0]
        entropy = -(logs.exp() * logs).sum(-1)
        if not is_frozen or surrogate in ("clip", "plain"):
            return policy_loss(
                logp, old, advantages, weighed, scale, surrogate, knobs, logp_ref=reference, entropy=entropy
            ).value
        tokens = -weights * frozen["weight"] * advantages * logp + 0.3 * k3(reference - logp) - 0.2 * entropy
        return (scale * tokens).sum()

    r = (logits.detach().log_softmax(-1).gather(-1, chosen[:, None])[:, 0] - old).exp()
    frozen["weight"] = r.clamp(0.8, 1.28) if surrogate == "cispo" else torch.where(advantages < 0, r.clamp(max=1), 1.0)
    loss(logits, is_frozen=False).backward()
    assert logits.grad is not None
    for t in range(5):
        for a in range(3):
            step = torch.zeros_like(logits)
            step[t, a] = 1e-6
            slope = (loss(logits.detach() + step) - loss(logits.detach() - step)) / 2e-6
            assert float(logits.grad[t, a]) == pytest.approx(float(slope), abs=1e-7)


# -- aggregation ------------------------------------------------------------------------------------


def aggregated(tokens: Tensor, lengths: list[int], **knobs: Any) -> float:
    chosen = LossSettings(**knobs)
    scale = token_scale(Ragged.of(lengths), chosen, num_tokens=sum(lengths), num_sequences=len(lengths))
    return float((scale * tokens).sum())


def test_aggregations_by_hand() -> None:
    tokens = torch.tensor([1.0, 2.0, 3.0, 10.0])  # two sequences: 1 2 3, and 10
    assert aggregated(tokens, [3, 1]) == pytest.approx(16 / 4)
    assert aggregated(tokens, [3, 1], loss_aggregation="seq-mean-token-mean") == pytest.approx((2 + 10) / 2)
    assert aggregated(tokens, [3, 1], loss_aggregation="seq-mean-token-sum") == pytest.approx((6 + 10) / 2)
    dr_grpo = aggregated(tokens, [3, 1], loss_aggregation="seq-mean-token-sum-norm", max_tokens=8)
    assert dr_grpo == pytest.approx((6 + 10) / 2 / 8)


AGGREGATIONS: tuple[dict[str, Any], ...] = (
    {"loss_aggregation": "token-mean"},
    {"loss_aggregation": "seq-mean-token-mean"},
    {"loss_aggregation": "seq-mean-token-sum-norm", "max_tokens": 16},
)


@pytest.mark.parametrize("knobs", AGGREGATIONS, ids=lambda knobs: knobs["loss_aggregation"])
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    num_parts=st.integers(1, 4),
)
def test_however_a_batch_is_cut_the_parts_add_up_to_its_loss_gradient_and_measures(
    knobs: dict[str, Any], seed: int, lengths: list[int], num_parts: int
) -> None:
    rng = np.random.default_rng(seed)
    size, chosen = sum(lengths), LossSettings(**knobs, kl_weight=0.1, entropy_weight=0.05)
    logp, anchor, reference, advantages, entropy = (torch.from_numpy(rng.normal(size=size)) for _ in range(5))
    kept = torch.from_numpy(rng.random(size) < 0.8)
    weights = torch.from_numpy(rng.uniform(0.5, 2, size)) * kept

    def part(picked: list[int], *, of: Tensor) -> TokenLoss:
        starts = np.concatenate([[0], np.cumsum(lengths)])
        tokens = torch.tensor([t for k in picked for t in range(starts[k], starts[k + 1])])
        sequences = Ragged.of([lengths[k] for k in picked])
        return policy_loss(
            of[tokens],
            anchor[tokens],
            advantages[tokens],
            Weighed(weights[tokens], kept[tokens]),
            token_scale(sequences, chosen, num_tokens=size, num_sequences=len(lengths)),
            "clip",
            chosen,
            logp_ref=reference[tokens],
            entropy=entropy[tokens],
        )

    whole, cut = logp.clone().requires_grad_(), logp.clone().requires_grad_()
    expected = part(list(range(len(lengths))), of=whole)
    expected.value.backward()
    home = rng.integers(0, num_parts, len(lengths))
    losses = [part(picked, of=cut) for k in range(num_parts) if (picked := np.flatnonzero(home == k).tolist())]
    for loss in losses:
        loss.value.backward()
    assert sum(loss.value.item() for loss in losses) == pytest.approx(expected.value.item(), abs=1e-9)
    torch.testing.assert_close(cut.grad, whole.grad)
    found, wanted = measures([loss.sums for loss in losses], size), measures([expected.sums], size)
    assert found == pytest.approx(wanted, rel=1e-4, abs=1e-6)


def test_a_masked_token_still_counts_in_the_denominator() -> None:
    """Two tokens, one masked: the other has half of the batch, not all of it."""
    weighed = Weighed(doubles(1.0, 0.0), torch.tensor([True, False]))
    chosen = LossSettings()
    scale = token_scale(Ragged.of([2]), chosen, num_tokens=2, num_sequences=1)
    logp = doubles(0.0, 0.0).requires_grad_()
    found = policy_loss(logp, doubles(0.0, 0.0), doubles(1.0, 1.0), weighed, scale, "clip", chosen)
    found.value.backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == [-0.5, 0.0]
    assert measures([found.sums], 2)["masked_fraction"] == 0.5


# -- penalties and the critic -----------------------------------------------------------------------


def test_k3_is_never_negative_and_on_average_the_divergence() -> None:
    p, q = np.array([0.7, 0.2, 0.1]), np.array([0.4, 0.4, 0.2])
    gaps = torch.from_numpy(np.log(q) - np.log(p))
    assert (k3(gaps) >= 0).all()
    mean = float((torch.from_numpy(p) * k3(gaps)).sum())
    assert mean == pytest.approx(float((p * np.log(p / q)).sum()))
    assert torch.isfinite(k3(doubles(1000.0, -1000.0))).all()


def test_the_reference_and_the_entropy_enter_by_their_weights() -> None:
    logp, ref = doubles(-1.0, -2.0), doubles(-1.5, -1.0)
    chosen = LossSettings(kl_weight=0.1, entropy_weight=0.01)
    scale = token_scale(Ragged.of([2]), chosen, num_tokens=2, num_sequences=1)
    entropy = doubles(0.5, 1.5)
    found = policy_loss(logp, logp, doubles(1, -1), everyone(2), scale, "clip", chosen, logp_ref=ref, entropy=entropy)
    penalty = (math.exp(-0.5) - 1 + 0.5 + math.exp(1.0) - 1 - 1) / 2
    assert found.value.item() == pytest.approx(0.0 + 0.1 * penalty - 0.01 * 1.0)
    seen = measures([found.sums], 2)
    assert (seen["reference_kl"], seen["entropy"]) == pytest.approx((penalty, 1.0))


def test_an_entropy_that_is_only_reported_changes_nothing() -> None:
    entropy = doubles(3.0).requires_grad_()
    found = policy_loss(
        doubles(0.0).requires_grad_(), doubles(0.0), doubles(1.0), everyone(1), torch.ones(1), "clip", LossSettings(),
        entropy=entropy,
    )  # fmt: skip
    found.value.backward()
    assert entropy.grad is None
    assert measures([found.sums], 1)["entropy"] == 3.0


def test_the_critic_is_clipped_around_its_old_values_if_asked() -> None:
    values, targets, old = doubles(2.0, 1.0).requires_grad_(), doubles(3.0, 0.0), doubles(0.0, 1.1)
    scale = doubles(0.5, 0.5)
    assert value_loss(values, targets, scale).value.item() == pytest.approx(0.5 * (1 + 1))
    found = value_loss(values, targets, scale, old_values=old, clip=0.5)
    assert found.value.item() == pytest.approx(0.5 * (2.5**2 + 1))
    found.value.backward()
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([0.0, 1.0])  # the first has moved far enough
    assert measures([found.sums], 2)["value_clip_fraction"] == 0.5


# -- measures ---------------------------------------------------------------------------------------


def test_measures_count_what_the_clip_holds_back() -> None:
    r, advantages = [1.5, 1.5, 0.5, 0.5, 4.0, 1.0], doubles(1, -1, 1, -1, -1, 1)
    logp = doubles(*(math.log(x) for x in r))
    counts = {
        "clip": (1 / 6, 1 / 6, 1 / 6),
        "cispo": (3 / 6, 2 / 6, 0.0),
        "topr": (0.0, 0.0, 0.0),
        "plain": (0.0, 0.0, 0.0),
    }
    for surrogate in SURROGATES:
        found = policy_loss(logp, torch.zeros(6), advantages, everyone(6), torch.ones(6), surrogate, LossSettings())
        seen = measures([found.sums], 6)
        names = ("clip_fraction_high", "clip_fraction_low", "dual_clip_fraction")
        assert tuple(seen[name] for name in names) == pytest.approx(counts[surrogate])
        assert seen["kl"] == pytest.approx(sum(x - 1 - math.log(x) for x in r) / 6, rel=1e-5)
        assert seen["ratio"] == pytest.approx(sum(r) / 6)
        assert seen["ratio_ess"] == pytest.approx(sum(r) ** 2 / (6 * sum(x * x for x in r)))


def test_losses_are_averaged_over_steps_and_the_rest_over_tokens() -> None:
    first = {"policy_loss": torch.tensor(2.0), "kl": torch.tensor(3.0)}
    second = {"policy_loss": torch.tensor(4.0), "kl": torch.tensor(5.0)}
    assert measures([first, second], 16, num_steps=2) == {"policy_loss": 3.0, "kl": 0.5}
    assert measures([first, second], 16) == {"policy_loss": 6.0, "kl": 0.5}


def test_measures_of_nothing_are_none() -> None:
    assert measures([], 0) == {}


def test_the_behaviour_is_measured_before_and_after_weighing() -> None:
    rho, weights = [1.0, 4.0, 0.5], doubles(1.0, 2.0, 0.0)
    logp_b = doubles(-1.0, -2.0, -0.5)
    logp_prox = logp_b + doubles(*rho).log()
    found = behaviour(logp_prox, logp_b, Weighed(weights, weights > 0))
    assert found == pytest.approx(
        {
            "ess": 5.5**2 / (3 * (1 + 16 + 0.25)),
            "weights_ess": 9 / (3 * 5),
            "behaviour_kl": sum(x - 1 - math.log(x) for x in rho) / 3,
            "weight_mean": 1.0,
            "weight_max": 2.0,
        }
    )
    nothing = behaviour(logp_prox, logp_b, Weighed(torch.zeros(3), torch.zeros(3, dtype=torch.bool)))
    assert nothing["weights_ess"] == 0.0


def test_the_mismatch_of_engine_and_trainer_is_described_by_its_tail_too() -> None:
    engine = torch.zeros(101, dtype=torch.float64)
    trainer = torch.linspace(-0.5, 0.5, 101, dtype=torch.float64).roll(37)
    found = mismatch(trainer, engine)
    gaps = trainer.tolist()
    assert found["mismatch_mean"] == pytest.approx(sum(map(abs, gaps)) / 101)
    assert found["mismatch_max"] == pytest.approx(0.5)
    assert found["mismatch_kl"] == pytest.approx(sum(math.exp(g) - 1 - g for g in gaps) / 101)
    ratios = [found[f"mismatch_ratio_p{p}"] for p in ("01", "50", "99")]
    assert ratios == pytest.approx([math.exp(-0.49), 1.0, math.exp(0.49)])


def test_staleness_is_per_token() -> None:
    found = staleness(7, torch.tensor([7, 6, 3, 3]))
    assert found == {"token_staleness": 2.25, "token_staleness_max": 4.0}


def test_explained_variance_is_one_zero_or_worse() -> None:
    targets = doubles(1.0, 2.0, 3.0)
    assert explained_variance(targets, targets) == 1.0
    assert explained_variance(doubles(2.0, 2.0, 2.0), targets) == pytest.approx(0.0)
    assert explained_variance(-targets, targets) == pytest.approx(-3.0)
    assert explained_variance(targets, doubles(5.0, 5.0, 5.0)) == 0.0


# -- settings that cannot work ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"loss_aggregation": "token_mean"}, r"loss_aggregation\n  Input should be 'token-mean', "),
        ({"clip_low": 1.2}, r"clip_low\n  Input should be less than or equal to 1 .*input_value=1.2"),
        ({"clip_high": -0.1}, r"clip_high\n  Input should be greater than or equal to 0 .*input_value=-0.1"),
        ({"dual_clip": 1.1}, r"dual_clip must be > 1 \+ clip_high = 1.28 or None, received 1.1"),
        ({"max_tokens": 0}, r"max_tokens\n  Input should be greater than or equal to 1 .*input_value=0"),
        ({"kl_weight": -1}, r"kl_weight\n  Input should be greater than or equal to 0 .*input_value=-1"),
        ({"entropy_weight": float("nan")}, r"entropy_weight\n  Input should be a finite number .*input_value=nan"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LossSettings(**knobs)


@pytest.mark.parametrize(
    ("correction", "options", "cut"),
    [
        ("gspo", {}, {"top_p": 0.9}),
        ("gspo", {"clip_low": 0.1}, {"top_k": 20}),
        ("sequence_mask", {}, {"top_p": 0.9}),
        ("sequence_mask", {"statistic": "product"}, {"top_k": 20}),
    ],
)
def test_a_band_for_whole_replies_is_refused_where_the_tail_is_cut(
    correction: str, options: dict[str, Any], cut: dict[str, Any]
) -> None:
    told = "".join(f"{name}={value}" for name, value in cut.items())
    with pytest.raises(ValueError, match=f"correction='{correction}' with {told}: .*use top_p=1 and top_k=0, or "):
        GRPOSettings(correction=correction, correction_options=options, **cut)
    GRPOSettings(correction=correction, correction_options=options)


def test_gspo_takes_a_cut_tail_with_an_anchor_of_the_trainer() -> None:
    GRPOSettings(correction="gspo", correction_options={"proximal": "recomputed"}, top_p=0.9)


def test_a_penalty_without_its_input_is_refused() -> None:
    token = (doubles(0.0), doubles(0.0), doubles(1.0), everyone(1), torch.ones(1))
    with pytest.raises(ValueError, match=r"kl_weight=0.1 needs the reference's log-probabilities"):
        policy_loss(*token, "clip", LossSettings(kl_weight=0.1))
    with pytest.raises(ValueError, match=r"entropy_weight=0.1 needs the entropy of each token"):
        policy_loss(*token, "clip", LossSettings(entropy_weight=0.1))
    with pytest.raises(ValueError, match="unknown surrogate 'ppo'"):
        policy_loss(*token, "ppo", LossSettings())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"value clip must be > 0 and needs the old values, received 0.2"):
        value_loss(doubles(0.0), doubles(0.0), torch.ones(1), clip=0.2)


# -- gspo -------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(0, 999), st.sampled_from([0.02, 0.3]))
def test_gspo_is_the_clipped_mean_over_sequences_of_their_ratio(lengths: list[int], seed: int, reach: float) -> None:
    """Against autograd through s = (pi / pi_prox)^(1 / length), one sequence at a time."""
    random = np.random.default_rng(seed)
    size = sum(lengths)
    anchor = torch.from_numpy(random.normal(-2, 0.5, size))
    start = anchor + torch.from_numpy(random.normal(0, reach, size))
    worth = random.normal(size=len(lengths))
    low, high = 0.05, 0.1
    sequences, chosen = Ragged.of(lengths), LossSettings(loss_aggregation="seq-mean-token-mean", dual_clip=None)
    chosen = chosen.model_copy(update={"clip_low": low, "clip_high": high})
    logp = start.clone().requires_grad_()
    found = policy_loss(
        logp,
        anchor,
        sequences.spread(torch.from_numpy(worth)),
        everyone(size),
        token_scale(sequences, chosen, num_tokens=size, num_sequences=len(lengths)).double(),
        "gspo",
        chosen,
        sequences=sequences,
    )
    found.value.backward()
    slow = start.clone().requires_grad_()
    terms, held_high, held_low = [], 0, 0
    for part, before, advantage in zip(slow.split(lengths), anchor.split(lengths), worth, strict=True):
        ratio = (part.exp().prod() / before.exp().prod()) ** (1 / len(part))
        terms.append(torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage))
        held_high += len(part) * int(advantage > 0 and float(ratio.detach()) > 1 + high)
        held_low += len(part) * int(advantage < 0 and float(ratio.detach()) < 1 - low)
    expected = -torch.stack(terms).mean()
    expected.backward()
    assert found.value.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)
    assert logp.grad is not None and slow.grad is not None
    torch.testing.assert_close(logp.grad, slow.grad, rtol=1e-5, atol=1e-6)
    shares = measures([found.sums], num_tokens=size)
    assert shares["clip_fraction_high"] == pytest.approx(held_high / size)
    assert shares["clip_fraction_low"] == pytest.approx(held_low / size)
    assert shares["kl"] == pytest.approx(float(k3(start - anchor).mean()), rel=1e-5)


def test_gspo_without_sequences_is_refused() -> None:
    with pytest.raises(ValueError, match="gspo needs to know where sequences begin and end"):
        one_token("gspo", 1.0, 1.0)
