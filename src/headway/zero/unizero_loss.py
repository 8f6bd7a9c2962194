"""What UniZero learns from: everything its model says along a window, in one pass.

    loss = 1/H sum_k  10 MSE(next latent) + CE(reward) + 0.5 CE(value) + CE(policy) - 5e-3 entropy

The tokens are what was seen and done, not what the model expected; the latent that is to be expected is the target
encoder's, and no gradient flows there. With `learn_endings` a termination is followed by the network's `ending`: it is
to be expected, worth 0, and paid 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headway.zero.model_learner_window_loss import Losses, LossWeights, Predictions, Targets, window_losses
from headway.zero.unizero_network import UniZeroNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class UniZeroLossWeights(LossWeights):
    """How much each part counts."""

    latent: float = 10.0
    reward: float = 1.0
    value: float = 0.5
    policy: float = 1.0
    entropy: float = 5e-3
    learn_endings: bool = True


def unizero_losses(
    network: UniZeroNetwork, target: UniZeroNetwork, targets: Targets, weights: UniZeroLossWeights
) -> Losses:
    """:param target: whose encoder says what latents are to be expected"""
    latents = _latents(network, targets)
    with torch.no_grad():
        wanted = _latents(target, targets)[:, 1:]
    sequence = network(latents, targets.actions.T)
    policy_logits, value_logits = network.judge(sequence.seen)
    expected, reward_logits = network.expect(sequence.done, latents[:, :-1])
    return window_losses(
        targets,
        Predictions(policy_logits, value_logits, reward_logits),
        weights,
        (network.value_support, network.reward_support),
        rows_first=True,
        latent=((expected - wanted).square().mean(-1), targets.counted(weights.learn_endings)[1:]),
    )


def _latents(network: UniZeroNetwork, targets: Targets) -> Tensor:
    """[B, H + 1, D]; past a termination the ending."""
    latents = network.encode(targets.observations.flatten(0, 1)).unflatten(0, targets.mask.shape)
    return torch.where(targets.ended[..., None] > 0, network.ending, latents).transpose(0, 1)
