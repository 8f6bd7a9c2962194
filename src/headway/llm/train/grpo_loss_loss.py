"""The loss of one microbatch, and what is measured on the way.

    loss = sum over tokens of  scale * ( weight * surrogate  +  kl_weight * k3  -  entropy_weight * entropy )

`scale` holds the aggregation: each token's share of the whole batch, whatever microbatch it is in. So the gradients
of the microbatches add up to the gradient of the batch, and how a batch is cut cannot change what is learned.

    aggregation                scale of a token
    token-mean                 1 / tokens of the batch
    seq-mean-token-mean        1 / (tokens of its sequence * sequences of the batch)
    seq-mean-token-sum         1 / sequences of the batch
    seq-mean-token-sum-norm    1 / (max_tokens * sequences of the batch)       as in Dr. GRPO

    surrogate    of a token, with r = pi / pi_prox
    clip         -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), for A < 0 at most -dual_clip A
    cispo        -sg(clip(r, 1 - clip_low, 1 + clip_high)) A log pi
    topr         -A log pi where A >= 0, else -sg(min(r, 1)) A log pi
    plain        -A log pi
    gspo         -min(s A, clip(s, 1 - clip_low, 1 + clip_high) A), where s is the geometric mean of r over the token's
                 sequence; the gradient of s with respect to a token's log pi is taken as s times the token's share

With equal advantages in a sequence and `seq-mean-token-mean`, gspo is the mean over sequences of min(s A, clip(s) A),
and its gradient is that of s = exp(mean of log r) itself. With advantages by turn each token has its own A.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import torch
from pydantic import BaseModel, Field, model_validator
from torch import Tensor

from headway.core.text_naming import unknown
from headway.llm.train.corrections import MAX_LOG_RATIO, Surrogate, Weighed, exp_ratio
from headway.llm.train.ragged import Ragged

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


class LossSettings(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False):
    """Loss: what a token counts for."""

    clip_low: float = Field(default=0.2, ge=0, le=1)
    """How far a token may become less likely in one update."""
    clip_high: float = Field(default=0.28, ge=0)
    """How far a token may become more likely in one update."""
    dual_clip: float | None = 3.0
    """Cap on the ratio where the advantage is negative."""
    loss_aggregation: Aggregation = "token-mean"
    """Who shares a batch evenly: tokens, sequences, or sequences by their length. The last is the third divided by the
    longest reply allowed (Dr. GRPO): without that the gradient is so many times larger."""
    max_tokens: int = Field(default=16, ge=1)
    """Longest reply."""
    kl_weight: float = Field(default=0.0, ge=0)
    """Holds the policy near the model it started from. With adapters that model is there already; otherwise a second
    one is loaded."""
    entropy_weight: float = Field(default=0.0, ge=0)
    """Bonus for staying undecided."""

    @model_validator(mode="after")
    def _dual_clip_is_beyond_the_clip(self) -> Self:
        if self.dual_clip is not None and not self.dual_clip > 1 + self.clip_high:
            raise ValueError(
                f"dual_clip must be > 1 + clip_high = {1 + self.clip_high!r} or None, received {self.dual_clip!r}"
            )
        return self


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Holds a loss to call backward on, and the sums behind its measures."""

    value: Tensor  # []
    sums: Mapping[str, Tensor]  # each [], over the tokens of the microbatch, without gradient


def token_scale(sequences: Ragged, settings: LossSettings, *, num_tokens: int, num_sequences: int) -> Tensor:
    """Each token's share [N] of a batch of so many tokens and sequences, counted before any masking."""
    if settings.loss_aggregation == "token-mean":
        return torch.full_like(sequences.row, 1 / num_tokens, dtype=torch.float32)
    if settings.loss_aggregation == "seq-mean-token-mean":
        return sequences.spread(1 / (sequences.lengths * num_sequences))
    longest = settings.max_tokens if settings.loss_aggregation == "seq-mean-token-sum-norm" else 1
    return torch.full_like(sequences.row, 1 / (longest * num_sequences), dtype=torch.float32)


def policy_loss(
    logp: Tensor,  # [N] of the policy being trained, with gradient
    logp_prox: Tensor,  # [N]
    advantages: Tensor,  # [N]
    weighed: Weighed,
    scale: Tensor,  # [N], from token_scale
    surrogate: Surrogate,
    settings: LossSettings,
    *,
    logp_ref: Tensor | None = None,  # [N] of the reference, for the k3 penalty
    entropy: Tensor | None = None,  # [N], with gradient if it is to be rewarded
    sequences: Ragged | None = None,  # whole ones; for gspo
) -> TokenLoss:
    """Returns the loss of one microbatch. Its `sums` go to `measures` with those of the other microbatches."""
    if settings.kl_weight and logp_ref is None:
        raise ValueError(f"kl_weight={settings.kl_weight!r} needs the reference's log-probabilities")
    if settings.entropy_weight and entropy is None:
        raise ValueError(f"entropy_weight={settings.entropy_weight!r} needs the entropy of each token")
    log_r = logp - logp_prox
    log_kl = log_r.detach()
    if surrogate == "gspo":
        log_r = _by_sequence(logp, log_r, sequences)
    tokens = weighed.weights * _surrogate(surrogate, logp, log_r, advantages, settings)
    policy = (scale * tokens).sum()
    value = policy
    moved = {"kl": k3(log_kl).sum()}  # of tokens, whatever the surrogate makes of their ratios
    sums = {
        "policy_loss": policy.detach(),
        **moved,
        **_sums_of_ratios(log_r.detach(), advantages, weighed, surrogate, settings),
    }
    if logp_ref is not None:
        penalty = k3(logp_ref - logp)
        value = value + settings.kl_weight * (scale * penalty).sum()
        sums["reference_kl"] = penalty.detach().sum()
    if entropy is not None:
        if settings.entropy_weight:
            value = value - settings.entropy_weight * (scale * entropy).sum()
        sums["entropy"] = entropy.detach().sum()
    return TokenLoss(value, sums)


def value_loss(
    values: Tensor,  # [N], with gradient
    targets: Tensor,  # [N]
    scale: Tensor,  # [N]
    *,
    old_values: Tensor | None = None,  # [N] before the update, for the clip
    clip: float | None = None,
) -> TokenLoss:
    """Returns the squared error of the critic; with `clip` a step beyond it from the old value earns nothing."""
    if clip is not None and (old_values is None or not clip > 0):
        raise ValueError(f"value clip must be > 0 and needs the old values, received {clip!r}")
    errors = (values - targets) ** 2
    clipped = torch.zeros_like(errors, dtype=torch.bool)
    if clip is not None and old_values is not None:
        near = old_values + (values - old_values).clamp(-clip, clip)
        bounded = (near - targets) ** 2
        clipped = (bounded > errors) & ((values - old_values).abs() > clip)  # the first alone is true of rounding too
        errors = torch.maximum(errors, bounded)
    value = (scale * errors).sum()
    return TokenLoss(value, {"value_loss": value.detach(), "value_clip_fraction": clipped.float().sum()})


def measures(sums: Sequence[Mapping[str, Tensor]], num_tokens: int, num_steps: int = 1) -> dict[str, float]:
    """Makes means over tokens of the sums of microbatches, read from the device once.

    `num_tokens` counts a token as often as it was looked at. Losses are shares of their step's batch already: they add
    up over its microbatches and are averaged over the steps of the optimizer.
    """
    if not sums:
        return {}
    names = list(sums[0])
    totals = torch.stack([torch.stack([part[name].float() for name in names]) for part in sums]).sum(0).tolist()
    found = {
        name: total / (num_steps if name in _SHARES else max(num_tokens, 1))
        for name, total in zip(names, totals, strict=True)
    }
    if "clip_fraction_high" in found:
        found["clip_fraction"] = found["clip_fraction_high"] + found["clip_fraction_low"]
    squares = found.pop("ratio_square", None)
    if squares is not None:
        found["ratio_ess"] = found["ratio"] ** 2 / squares if squares else 0.0
    return found


_SHARES = frozenset({"policy_loss", "value_loss"})
SUMS = (
    *("policy_loss", "kl", "ratio", "ratio_square", "clip_fraction_high", "clip_fraction_low", "dual_clip_fraction"),
    *("masked_fraction", "reference_kl", "entropy", "value_loss", "value_clip_fraction"),
)
"""Every name that `policy_loss` and `value_loss` may have sums under."""


def k3(log_ratio: Tensor) -> Tensor:
    """Returns e^d - 1 - d for d = log q - log p at samples of p: never negative, and KL(p, q) on average."""
    clamped = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return clamped.exp() - 1 - clamped


def _surrogate(kind: Surrogate, logp: Tensor, log_r: Tensor, advantages: Tensor, settings: LossSettings) -> Tensor:
    if kind in ("clip", "gspo"):
        r = exp_ratio(log_r)
        gain = torch.minimum(r * advantages, _clip(r, settings) * advantages)
        if kind == "clip" and settings.dual_clip is not None:
            gain = torch.where(advantages < 0, torch.maximum(gain, settings.dual_clip * advantages), gain)
        return -gain
    if kind == "plain":
        return -advantages * logp
    r = exp_ratio(log_r.detach())
    if kind == "cispo":
        return -_clip(r, settings) * advantages * logp
    if kind == "topr":
        return -torch.where(advantages < 0, r.clamp(max=1.0), 1.0) * advantages * logp
    raise ValueError(unknown("surrogate", kind, ("clip", "cispo", "topr", "plain", "gspo")))


def _by_sequence(logp: Tensor, log_r: Tensor, sequences: Ragged | None) -> Tensor:
    """Puts the mean of a sequence's log-ratios in the place of each: the value is the mean's, the slope a token's."""
    if sequences is None:
        raise ValueError("gspo needs to know where sequences begin and end")
    means = sequences.spread(sequences.means(log_r.detach()))
    return means + (logp - logp.detach())


def _clip(r: Tensor, settings: LossSettings) -> Tensor:
    return r.clamp(1 - settings.clip_low, 1 + settings.clip_high)


def _sums_of_ratios(
    log_r: Tensor, advantages: Tensor, weighed: Weighed, surrogate: Surrogate, settings: LossSettings
) -> dict[str, Tensor]:
    """Sums over tokens how far pi has moved from pi_prox, and counts those that the clip holds back."""
    r = exp_ratio(log_r)
    is_high, is_low = r > 1 + settings.clip_high, r < 1 - settings.clip_low
    if surrogate in ("clip", "gspo"):  # on the other side the smaller of the two is the unclipped one
        is_high, is_low = is_high & (advantages > 0), is_low & (advantages < 0)
    if surrogate in ("topr", "plain"):
        is_high, is_low = torch.zeros_like(is_high), torch.zeros_like(is_low)
    is_dual = torch.zeros_like(is_high)
    if surrogate == "clip" and settings.dual_clip is not None:
        is_dual = (advantages < 0) & (r > settings.dual_clip)
    return {
        "ratio": r.sum(),
        "ratio_square": (r**2).sum(),
        "clip_fraction_high": is_high.float().sum(),
        "clip_fraction_low": is_low.float().sum(),
        "dual_clip_fraction": is_dual.float().sum(),
        "masked_fraction": (~weighed.kept).float().sum(),
    }
