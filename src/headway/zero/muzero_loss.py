"""What MuZero learns from: n-step targets, and the losses along H steps of its own model.

    z_t = sum_{j<n} gamma^j r_{t+j} + gamma^n v_target(o_{t+n})          signs turned where the other player moves

    loss = 1/H sum_k  CE(policy) + 0.25 CE(value) + CE(reward) + ssl_weight * consistency - 5e-3 entropy

H unroll steps are computed one after another, all else in one batch over them: rows are [(H + 1) * B], step by step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from headway.zero.model_learner_window_loss import Losses, LossWeights, Predictions, Targets, window_losses
from headway.zero.muzero_network import MuZeroNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class MuZeroLossWeights(LossWeights):
    """How much each part counts."""

    policy: float = 1.0
    value: float = 0.25
    reward: float = 1.0
    consistency: float = 2.0
    entropy: float = 5e-3
    learn_endings: bool = False


def muzero_losses(network: MuZeroNetwork, targets: Targets, weights: MuZeroLossWeights) -> Losses:
    steps, batch = targets.actions.shape
    latent = network.encode(targets.observations[0])
    latents, traces = [latent], []
    for k in range(steps):
        latent, trace = network.step(latent, targets.actions[k])
        latents.append(latent)
        traces.append(trace)
    every = torch.cat(latents)  # [(H + 1) * B, ...]
    features = network.look(every)
    policy_logits, value_logits = network.judge(features)
    reward_logits = network.rewards(features[batch:], torch.cat(traces))
    said = Predictions(
        policy_logits.view(steps + 1, batch, -1),
        value_logits.view(steps + 1, batch, -1),
        reward_logits.view(steps, batch, -1),
    )
    consistency = features.new_zeros(steps, batch)
    if weights.consistency:
        consistency = _consistency(network, every[batch:], targets.observations[1:]).view(steps, batch)
    supports = network.value_support, network.reward_support
    return window_losses(targets, said, weights, supports, consistency=(consistency, targets.mask[1:]))


def _consistency(network: MuZeroNetwork, stepped: Tensor, observations: Tensor) -> Tensor:
    """Negative cosine [H * B] between what was stepped to and what was seen there."""
    with torch.no_grad():
        seen = network.project(network.encode(observations.flatten(0, 1)))
    return -functional.cosine_similarity(network.guess(network.project(stepped)), seen, dim=-1)
