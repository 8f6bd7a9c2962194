"""What MuZero learns from: n-step targets, and the losses along H steps of its own model.

    z_t = sum_{j<n} gamma^j r_{t+j} + gamma^n v_target(o_{t+n})          signs turned where the other player moves

    loss = 1/H sum_k  CE(policy) + 0.25 CE(value) + CE(reward) + ssl_weight * consistency - 5e-3 entropy

per sample, times its importance weight, averaged. Steps past the end of an episode have no weight. With
`learn_endings` what comes after a termination is learned all the same, as a value and rewards of 0, so that the search
sees that nothing can be gained there; what comes after a truncation is unknown and never is.

H unroll steps are computed one after another, all else in one batch over them: rows are [(H + 1) * B], step by step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from headway.learn.model_learner import Targets, cross_entropy, require_weights, total_loss
from headway.learn.muzero.network import MuZeroNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class LossWeights:
    """How much each part counts."""

    policy: float = 1.0
    value: float = 0.25
    reward: float = 1.0
    consistency: float = 2.0
    entropy: float = 5e-3
    learn_endings: bool = False
    """Value and rewards past a termination count too, as 0."""

    def __post_init__(self) -> None:
        require_weights(self, "policy", "value", "reward", "consistency", "entropy")


class Losses(NamedTuple):
    """Each the weighted mean over samples of the sum over steps; `values` are the predictions at the first step."""

    total: Tensor
    policy: Tensor
    value: Tensor
    reward: Tensor
    consistency: Tensor
    entropy: Tensor
    values: Tensor  # [B]


def muzero_losses(network: MuZeroNetwork, targets: Targets, weights: LossWeights) -> Losses:
    steps, batch = targets.actions.shape
    counted = targets.mask  # [H + 1, B]
    valued = torch.maximum(counted, targets.ended) if weights.learn_endings else counted
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
    log_policy = functional.log_softmax(policy_logits, -1).view(steps + 1, batch, -1)
    support = network.architecture.value_support
    policy = -(targets.policies * log_policy).sum(-1)
    entropy = -(log_policy.exp() * log_policy).sum(-1)
    value = cross_entropy(value_logits.view(steps + 1, batch, -1), support.encode(targets.values))
    reward_hot = network.architecture.reward_support.encode(targets.rewards)
    reward = cross_entropy(reward_logits.view(steps, batch, -1), reward_hot)
    consistency = policy.new_zeros(steps, batch)
    if weights.consistency:
        consistency = _consistency(network, every[batch:], targets.observations[1:]).view(steps, batch)
    scale = targets.weights / (steps * batch)

    def mean(losses: Tensor, where: Tensor) -> Tensor:
        return ((losses * where).sum(0) * scale).sum()

    parts = {
        "policy": mean(policy, counted),
        "value": mean(value, valued),
        "reward": mean(reward, valued[:-1]),
        "consistency": mean(consistency, counted[1:]),
        "entropy": mean(entropy, counted),
    }
    values = support.decode(value_logits[:batch].detach())
    return Losses(total=total_loss(weights, **parts), values=values, **parts)


def _consistency(network: MuZeroNetwork, stepped: Tensor, observations: Tensor) -> Tensor:
    """Negative cosine [H * B] between what was stepped to and what was seen there."""
    with torch.no_grad():
        seen = network.project(network.encode(observations.flatten(0, 1)))
    return -functional.cosine_similarity(network.guess(network.project(stepped)), seen, dim=-1)
