"""What UniZero learns from: everything its model says along a window, in one pass.

    loss = 1/H sum_k  10 MSE(next latent) + CE(reward) + 0.5 CE(value) + CE(policy) - 5e-3 entropy

per sample, times its importance weight, averaged. The tokens are what was seen and done, not what the model expected;
the latent that is to be expected is the target encoder's, and no gradient flows there. Steps past the end of an episode
have no weight. With `learn_endings` a termination is followed by the network's `ending`: it is to be expected, worth 0,
and paid 0, so that the search sees that nothing can be gained there; what comes after a truncation is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from headway.learn.model_learner import Targets, cross_entropy, require_weights, total_loss
from headway.learn.unizero.network import UniZeroNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class LossWeights:
    """How much each part counts."""

    latent: float = 10.0
    reward: float = 1.0
    value: float = 0.5
    policy: float = 1.0
    entropy: float = 5e-3
    learn_endings: bool = True
    """What follows a termination counts too: the ending, worth 0."""

    def __post_init__(self) -> None:
        require_weights(self, "latent", "reward", "value", "policy", "entropy")


class Losses(NamedTuple):
    """Each the weighted mean over samples of the sum over steps; `values` are the predictions at the first step."""

    total: Tensor
    latent: Tensor
    reward: Tensor
    value: Tensor
    policy: Tensor
    entropy: Tensor
    values: Tensor  # [B]


def unizero_losses(network: UniZeroNetwork, target: UniZeroNetwork, targets: Targets, weights: LossWeights) -> Losses:
    """:param target: whose encoder says what latents are to be expected"""
    steps, batch = targets.actions.shape
    counted = targets.mask  # [H + 1, B]
    valued = torch.maximum(counted, targets.ended) if weights.learn_endings else counted
    latents = _latents(network, targets)
    with torch.no_grad():
        wanted = _latents(target, targets)[:, 1:]
    sequence = network(latents, targets.actions.T)
    policy_logits, value_logits = network.judge(sequence.seen)
    expected, reward_logits = network.expect(sequence.done, latents[:, :-1])

    log_policy = functional.log_softmax(policy_logits, -1)  # [B, H + 1, A]
    supports = network.architecture.value_support, network.architecture.reward_support
    policy = -(targets.policies.transpose(0, 1) * log_policy).sum(-1)
    entropy = -(log_policy.exp() * log_policy).sum(-1)
    value = cross_entropy(value_logits, supports[0].encode(targets.values.T))
    reward = cross_entropy(reward_logits, supports[1].encode(targets.rewards.T))
    latent = (expected - wanted).square().mean(-1)
    scale = targets.weights / (steps * batch)

    def mean(losses: Tensor, where: Tensor) -> Tensor:
        return ((losses * where.T).sum(1) * scale).sum()

    parts = {
        "latent": mean(latent, valued[1:]),
        "reward": mean(reward, valued[:-1]),
        "value": mean(value, valued),
        "policy": mean(policy, counted),
        "entropy": mean(entropy, counted),
    }
    values = supports[0].decode(value_logits[:, 0].detach())
    return Losses(total=total_loss(weights, **parts), values=values, **parts)


def _latents(network: UniZeroNetwork, targets: Targets) -> Tensor:
    """[B, H + 1, D]; past a termination the ending."""
    latents = network.encode(targets.observations.flatten(0, 1)).unflatten(0, targets.mask.shape)
    return torch.where(targets.ended[..., None] > 0, network.ending, latents).transpose(0, 1)
