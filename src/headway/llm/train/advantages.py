"""From rewards to advantages.

    grpo                   (R - mean of the group) / (std of the group + 1e-6)
    dr_grpo                 R - mean of the group
    rloo                    R - mean of the others in the group
    reinforce_plus_plus    (R - mean of the batch) / (std of the batch + 1e-6)
    gae                     sum over later tokens of (gamma lam)^k (r + gamma V' - V), with a critic (critic.py)

The first three compare the replies to one prompt: a group whose rewards are all equal says nothing, and its
advantages are exactly zero. With a critic, `token_gae` gives every token an advantage of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from headway.core.text_naming import unknown
from headway.llm.train.ragged import Ragged

EPSILON = 1e-6

Values = Tensor | np.ndarray | Sequence[float]


def group_advantages(estimator: str, rewards: Values, group: Values) -> Tensor:
    """Returns the advantages [S] of replies with these rewards [S]; equal numbers in `group` [S] share a prompt."""
    if estimator not in ESTIMATORS:
        raise ValueError(unknown("advantage estimator", estimator, ESTIMATORS))
    rewards, group = torch.as_tensor(rewards), torch.as_tensor(group)
    if rewards.shape != group.shape or rewards.dim() != 1:
        raise ValueError(f"rewards {tuple(rewards.shape)} and group {tuple(group.shape)} must be [S] both")
    if not rewards.is_floating_point():
        rewards = rewards.float()
    order = torch.argsort(group, stable=True)
    groups = Ragged.of(torch.unique(group, return_counts=True)[1])
    ordered = rewards[order]
    values = ESTIMATORS[estimator](ordered, groups)
    if estimator != "reinforce_plus_plus":
        is_silent = groups.largest(ordered) == groups.smallest(ordered)
        values = torch.where(groups.spread(is_silent), 0.0, values)
    return values[torch.argsort(order)]


def _grpo(rewards: Tensor, groups: Ragged) -> Tensor:
    gaps = _dr_grpo(rewards, groups)
    variances = groups.sums(gaps**2) / (groups.lengths - 1).clamp(min=1)
    return gaps / (groups.spread(variances.sqrt()) + EPSILON)


def _dr_grpo(rewards: Tensor, groups: Ragged) -> Tensor:
    return rewards - groups.spread(groups.means(rewards))


def _rloo(rewards: Tensor, groups: Ragged) -> Tensor:
    others = groups.spread((groups.lengths - 1).clamp(min=1))
    return rewards - (groups.spread(groups.sums(rewards)) - rewards) / others


def _reinforce_plus_plus(rewards: Tensor, groups: Ragged) -> Tensor:
    return whiten(rewards)


ESTIMATORS: dict[str, Callable[[Tensor, Ragged], Tensor]] = {
    "grpo": _grpo,
    "dr_grpo": _dr_grpo,
    "rloo": _rloo,
    "reinforce_plus_plus": _reinforce_plus_plus,
}


GAE = "gae"
"""The estimator that needs a critic, and no group."""
ALL_ESTIMATORS = (*ESTIMATORS, GAE)
COMPARE_THE_BATCH = ("reinforce_plus_plus", GAE)
"""Those that learn from a group whose rewards are all equal, as long as the others have different ones."""


def whiten(values: Tensor) -> Tensor:
    """Scales values to mean 0 and standard deviation 1 over everything that is passed."""
    gaps = values - values.mean()
    return gaps / ((gaps**2).sum() / max(len(values) - 1, 1)).sqrt().add(EPSILON)


def at_the_end(rewards: Tensor, sequences: Ragged) -> Tensor:
    """Puts the reward of each reply [S] at its last token: rewards of tokens [N]."""
    per_token = rewards.new_zeros(sequences.num_values)
    has_tokens = sequences.lengths > 0
    per_token[sequences.lengths.cumsum(0)[has_tokens] - 1] = rewards[has_tokens]
    return per_token


def token_gae(
    rewards: Tensor,  # [N]
    values: Tensor,  # [N]: of the text before each token
    sequences: Ragged,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    bootstrap: Tensor | None = None,  # [S]: value after the last token of what was cut off; None: everything ended
) -> tuple[Tensor, Tensor]:
    """Returns the advantages and the value targets of tokens, both [N].

    The discounted sum of deltas is built by doubling: after k rounds each token has the sum of the next 2^k. So
    a reply of 8000 tokens takes 13 rounds of whole-tensor arithmetic instead of 8000 steps.
    """
    size = len(values)
    after = torch.zeros_like(values)
    after[:-1] = torch.where(sequences.row[1:] == sequences.row[:-1], values[1:], 0.0)
    if bootstrap is not None:
        is_last = torch.ones_like(sequences.row, dtype=torch.bool)
        is_last[:-1] = sequences.row[1:] != sequences.row[:-1]
        after = torch.where(is_last, sequences.spread(bootstrap.to(values.dtype)), after)
    advantages = rewards + gamma * after - values
    reach, factor = 1, gamma * lam
    longest = int(sequences.lengths.max()) if size else 0
    while reach < longest:
        together = sequences.row[reach:] == sequences.row[:-reach]
        further = torch.where(together, factor * advantages[reach:], 0.0)
        advantages = torch.cat([advantages[:-reach] + further, advantages[-reach:]])
        reach, factor = 2 * reach, factor * factor
    return advantages, advantages + values
