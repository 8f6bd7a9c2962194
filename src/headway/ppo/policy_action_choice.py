"""From a network's outputs to actions, and back: the distribution over every kind of action the environments have.

    outputs --(noise)--> action, its log-probability          acting
    outputs, action --> log-probability, entropy              learning

Noise comes from outside (Gumbel for choices, normal for continuous actions), so both are pure functions.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from headway.envs.gymnasium_vector import ActionSpec, Continuous, Discrete

MASKED = -1e9  # instead of -inf: its log-probability stays finite, and so do gradients


def num_outputs(action: ActionSpec) -> int:
    """How many numbers a network gives for one observation."""
    if isinstance(action, Discrete):
        return action.n
    return len(action.low) if isinstance(action, Continuous) else sum(action.choices)


def noise_for(action: ActionSpec, seed: int, steps: int, num_envs: int) -> np.ndarray:
    """Everything random about `steps` steps, [steps, num_envs, A]."""
    rng = np.random.default_rng(seed)
    shape = (steps, num_envs, num_outputs(action))
    if isinstance(action, Continuous):
        return rng.standard_normal(shape, dtype=np.float32)
    return -np.log(-np.log(rng.random(shape, dtype=np.float32) * (1 - 2e-7) + 1e-7))


def choose(
    action: ActionSpec, outputs: Tensor, log_std: Tensor | None, noise: np.ndarray, mask: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Actions [B, ...] and their log-probabilities [B]; without noise (zeros) the most likely ones."""
    drawn = torch.from_numpy(noise)
    if isinstance(action, Continuous):
        assert log_std is not None
        actions = outputs + log_std.exp() * drawn
        log_probs, _ = gaussian(outputs, log_std, actions)
        return actions.numpy(), log_probs.numpy()
    legal = None if mask is None else torch.from_numpy(mask)
    chosen, log_prob, start = [], torch.zeros(len(outputs)), 0
    for logits in split(action, outputs, legal):
        width = logits.shape[-1]
        choice = (logits + drawn[:, start : start + width]).argmax(-1)
        log_prob = log_prob + torch.log_softmax(logits, -1).gather(1, choice[:, None]).squeeze(1)
        chosen.append(choice)
        start += width
    actions = chosen[0] if isinstance(action, Discrete) else torch.stack(chosen, -1)
    return actions.numpy(), log_prob.numpy()


def judge(
    action: ActionSpec, outputs: Tensor, log_std: Tensor | None, actions: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The log-probability of each action [B], and the entropy of what it was drawn from [B]."""
    if isinstance(action, Continuous):
        assert log_std is not None
        return gaussian(outputs, log_std, actions)
    log_prob = entropy = outputs.new_zeros(len(outputs))
    for place, logits in enumerate(split(action, outputs, mask)):
        logs = torch.log_softmax(logits, -1)
        chosen = actions if isinstance(action, Discrete) else actions[:, place]
        log_prob = log_prob + logs.gather(1, chosen[:, None].long()).squeeze(1)
        entropy = entropy - (logs.exp() * logs).sum(-1)
    return log_prob, entropy


def split(action: ActionSpec, outputs: Tensor, mask: Tensor | None) -> list[Tensor]:
    """Logits of each choice; illegal actions are put out of reach."""
    if mask is not None:
        outputs = torch.where(mask, outputs, MASKED)
    if isinstance(action, Discrete):
        return [outputs]
    return list(outputs.split(list(action.choices), dim=-1))  # type: ignore[union-attr]


def gaussian(means: Tensor, log_std: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities [B] and entropies [B] of independent normal distributions."""
    scaled = (actions - means) / log_std.exp()
    log_probs = (-0.5 * scaled**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
    entropy = (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum().expand(len(means))
    return log_probs, entropy
