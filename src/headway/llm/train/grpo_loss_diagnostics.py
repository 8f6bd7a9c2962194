"""How far the data are from the policy that learns from them: looked at once per batch, before its first step."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from headway.llm.train.corrections import Weighed, exp_ratio
from headway.llm.train.grpo_loss_loss import k3
from headway.llm.train.ragged import Ragged

PERCENTILES = (1, 50, 99)
MISMATCH = (
    *("mismatch_mean", "mismatch_max", "mismatch_kl"),
    *(f"mismatch_ratio_p{percent:02d}" for percent in PERCENTILES),
)
"""What `mismatch` finds."""


def replies(rewards: Tensor, group: Tensor, lengths: Tensor) -> dict[str, float]:
    """Sums up rewards [S] and lengths [S] of a batch, and counts the groups whose rewards are all equal."""
    groups = Ragged.of(torch.unique(group, return_counts=True)[1])
    ordered = rewards[torch.argsort(group, stable=True)]
    return _read(
        {
            "reward": rewards.mean(),
            "reward_std": rewards.std(correction=0),
            "reward_min": rewards.min(),
            "reward_max": rewards.max(),
            "reply_tokens": lengths.double().mean(),
            "reply_tokens_max": lengths.max(),
            "silent_groups": (groups.largest(ordered) == groups.smallest(ordered)).double().mean(),
        }
    )


def without_signal(found: Mapping[str, float], *, in_groups: bool) -> float:
    """Returns the share of a batch that nothing can be learned from, given what `replies` has found: its silent groups,
    or all of it where the estimator compares the whole batch and every reward is the same."""
    if in_groups:
        return found["silent_groups"]
    return float(found["reward_min"] == found["reward_max"])


def behaviour(logp_prox: Tensor, logp_b: Tensor, weighed: Weighed) -> dict[str, float]:
    """Measures how far pi_prox is from pi_b over tokens [N]: effective sample sizes, KL and the weights."""
    with torch.no_grad():
        log_rho = logp_prox - logp_b
        return _read(
            {
                "ess": effective_sample_size(exp_ratio(log_rho)),
                "weights_ess": effective_sample_size(weighed.weights),
                "behaviour_kl": k3(log_rho).mean(),
                "weight_mean": weighed.weights.mean(),
                "weight_max": weighed.weights.max(),
            }
        )


def mismatch(logp_trainer: Tensor, logp_engine: Tensor) -> dict[str, float]:
    """Measures how differently two implementations see the same tokens [N].

    Pass tokens of the version being trained to see the engine alone; of older ones to see staleness with it.
    """
    with torch.no_grad():
        gaps = logp_trainer - logp_engine
        ratios = torch.sort(exp_ratio(gaps)).values
        found = {
            "mismatch_mean": gaps.abs().mean(),
            "mismatch_max": gaps.abs().max(),
            "mismatch_kl": k3(gaps).mean(),
        }
        for percent in PERCENTILES:
            found[f"mismatch_ratio_p{percent:02d}"] = ratios[round((len(ratios) - 1) * percent / 100)]
        return _read(found)


def staleness(version: int, born: Tensor) -> dict[str, float]:
    """Returns mean and maximum over tokens [N] of the version being trained minus the one that made the token."""
    ages = (version - born).float()
    return _read({"token_staleness": ages.mean(), "token_staleness_max": ages.max()})


def explained_variance(values: Tensor, targets: Tensor) -> float:
    """Returns how much of the targets' variance the critic foresees: 1 all of it, 0 nothing, below 0 worse."""
    spread = float(targets.double().var(correction=0))
    return 1 - float((targets - values).double().var(correction=0)) / spread if spread else 0.0


def effective_sample_size(weights: Tensor) -> Tensor:
    """Returns (sum w)^2 / (n sum w^2): the share of the tokens that still count."""
    doubles = weights.double()
    return doubles.sum() ** 2 / (len(doubles) * (doubles**2).sum()).clamp(min=torch.finfo(torch.float64).tiny)


def _read(found: dict[str, Tensor]) -> dict[str, float]:
    """Reads all numbers from the device in one go."""
    numbers = torch.stack([value.double() for value in found.values()]).tolist()
    return dict(zip(found, numbers, strict=True))
