"""The loss of one microbatch, and what is measured on the way.

    loss = sum over tokens of  scale * ( weight * surrogate  +  kl_weight * k3  -  entropy_weight * entropy )

`scale` holds the aggregation: each token's share of the whole batch, whatever microbatch it is in. So the gradients
of the microbatches add up to the gradient of the batch, and how a batch is cut cannot change what is learned.

    aggregation            scale of a token
    token-mean             1 / tokens of the batch
    seq-mean-token-mean    1 / (tokens of its sequence * sequences of the batch)
    seq-mean-token-sum     1 / (max_length * sequences of the batch)       max_length: a constant (Dr.GRPO), or 1

    surrogate    of a token, with r = pi / pi_prox
    clip         -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), for A < 0 at most -dual_clip A
    cispo        -sg(clip(r, 1 - clip_low, 1 + clip_high)) A log pi
    topr         -A log pi where A >= 0, else -sg(min(r, 1)) A log pi
    plain        -A log pi
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headway.core.naming import unknown
from headway.learn.corrections import MAX_LOG_RATIO, Surrogate, Weighed, exp_ratio
from headway.learn.ragged import Ragged

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"]
AGGREGATIONS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """The knobs of the loss."""

    clip_low: float = 0.2
    """How far a token may become less likely in one update. Raising it lets bad replies be unlearned faster."""
    clip_high: float = 0.28
    """How far a token may become more likely. Raising it lets rare tokens rise, which keeps entropy up."""
    dual_clip: float | None = 3.0
    """Cap on r where the advantage is negative: one token cannot be punished without bound. None: no cap."""
    aggregation: Aggregation = "token-mean"
    """Who shares a batch evenly: its tokens, its sequences, or its sequences by their length."""
    max_length: int | None = None
    """The constant that `seq-mean-token-sum` divides by (Dr.GRPO takes the longest reply allowed)."""
    kl_weight: float = 0.0
    """How strongly the policy is held near the reference."""
    entropy_weight: float = 0.0
    """How strongly entropy is rewarded."""

    def __post_init__(self) -> None:
        if self.aggregation not in AGGREGATIONS:
            raise ValueError(unknown("aggregation", self.aggregation, AGGREGATIONS))
        if not 0 <= self.clip_low <= 1:
            raise ValueError(f"clip_low must be in [0, 1], received {self.clip_low!r}")
        if not self.clip_high >= 0:
            raise ValueError(f"clip_high must be >= 0, received {self.clip_high!r}")
        if self.dual_clip is not None and not self.dual_clip > 1 + self.clip_high:
            raise ValueError(
                f"dual_clip must be > 1 + clip_high = {1 + self.clip_high!r} or None, received {self.dual_clip!r}"
            )
        if self.max_length is not None and not (self.max_length >= 1 and self.aggregation == "seq-mean-token-sum"):
            raise ValueError(
                f"max_length must be >= 1 and goes with seq-mean-token-sum, received {self.max_length!r} "
                f"with {self.aggregation}"
            )
        for name in ("kl_weight", "entropy_weight"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be >= 0, received {getattr(self, name)!r}")


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Holds a loss to call backward on, and the sums behind its measures."""

    value: Tensor  # []
    sums: Mapping[str, Tensor]  # each [], over the tokens of the microbatch, without gradient


def token_scale(sequences: Ragged, settings: LossSettings, *, num_tokens: int, num_sequences: int) -> Tensor:
    """Each token's share [N] of a batch of so many tokens and sequences, counted before any masking."""
    if settings.aggregation == "token-mean":
        return torch.full_like(sequences.row, 1 / num_tokens, dtype=torch.float32)
    if settings.aggregation == "seq-mean-token-mean":
        return sequences.spread(1 / (sequences.lengths * num_sequences))
    return torch.full_like(sequences.row, 1 / ((settings.max_length or 1) * num_sequences), dtype=torch.float32)


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
) -> TokenLoss:
    """Returns the loss of one microbatch. Its `sums` go to `measures` with those of the other microbatches."""
    if settings.kl_weight and logp_ref is None:
        raise ValueError(f"kl_weight={settings.kl_weight!r} needs the reference's log-probabilities")
    if settings.entropy_weight and entropy is None:
        raise ValueError(f"entropy_weight={settings.entropy_weight!r} needs the entropy of each token")
    log_r = logp - logp_prox
    tokens = weighed.weights * _surrogate(surrogate, logp, log_r, advantages, settings)
    policy = (scale * tokens).sum()
    value = policy
    sums = {"policy_loss": policy.detach(), **_sums_of_ratios(log_r.detach(), advantages, weighed, surrogate, settings)}
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
    if kind == "clip":
        r = exp_ratio(log_r)
        gain = torch.minimum(r * advantages, _clip(r, settings) * advantages)
        if settings.dual_clip is not None:
            gain = torch.where(advantages < 0, torch.maximum(gain, settings.dual_clip * advantages), gain)
        return -gain
    if kind == "plain":
        return -advantages * logp
    r = exp_ratio(log_r.detach())
    if kind == "cispo":
        return -_clip(r, settings) * advantages * logp
    if kind == "topr":
        return -torch.where(advantages < 0, r.clamp(max=1.0), 1.0) * advantages * logp
    raise ValueError(unknown("surrogate", kind, ("clip", "cispo", "topr", "plain")))


def _clip(r: Tensor, settings: LossSettings) -> Tensor:
    return r.clamp(1 - settings.clip_low, 1 + settings.clip_high)


def _sums_of_ratios(
    log_r: Tensor, advantages: Tensor, weighed: Weighed, surrogate: Surrogate, settings: LossSettings
) -> dict[str, Tensor]:
    """Sums over tokens how far pi has moved from pi_prox, and counts those that the clip holds back."""
    r = exp_ratio(log_r)
    is_high, is_low = r > 1 + settings.clip_high, r < 1 - settings.clip_low
    if surrogate == "clip":  # on the other side the smaller of the two is the unclipped one
        is_high, is_low = is_high & (advantages > 0), is_low & (advantages < 0)
    if surrogate in ("topr", "plain"):
        is_high, is_low = torch.zeros_like(is_high), torch.zeros_like(is_low)
    is_dual = torch.zeros_like(is_high)
    if surrogate == "clip" and settings.dual_clip is not None:
        is_dual = (advantages < 0) & (r > settings.dual_clip)
    return {
        "kl": k3(log_r).sum(),
        "ratio": r.sum(),
        "ratio_square": (r**2).sum(),
        "clip_fraction_high": is_high.float().sum(),
        "clip_fraction_low": is_low.float().sum(),
        "dual_clip_fraction": is_dual.float().sum(),
        "masked_fraction": (~weighed.kept).float().sum(),
    }
