"""The losses of a model along windows, whatever the model is.

    loss = 1/H sum_k  CE(policy) + CE(value) + CE(reward) + what the kind of model adds - entropy, each times its weight

per sample, times its importance weight, averaged. Steps past the end of an episode have no weight. With `learn_endings`
what comes after a termination is learned all the same, as a value and rewards of 0, so that the search sees that
nothing can be gained there; what comes after a truncation is unknown and never is.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from headway.zero.world_model_two_hot import Support


class Targets(NamedTuple):
    """What a batch says, time first. B samples, H unroll steps, A actions."""

    observations: Tensor  # [H + 1, B, ...]
    actions: Tensor  # [H, B] int64
    rewards: Tensor  # [H, B]
    policies: Tensor  # [H + 1, B, A]
    values: Tensor  # [H + 1, B]: z
    mask: Tensor  # [H + 1, B]: 1 where the step belongs to the episode
    ended: Tensor  # [H + 1, B]: 1 past a termination
    weights: Tensor  # [B] importance weights

    def counted(self, learn_endings: bool) -> Tensor:
        """[H + 1, B]: 1 where a value or a reward counts."""
        return torch.maximum(self.mask, self.ended) if learn_endings else self.mask


class Predictions(NamedTuple):
    """What a model says along a window: logits with time first, or with rows first where `window_losses` is told so."""

    policies: Tensor  # [H + 1, B, A]
    values: Tensor  # [H + 1, B, bins]
    rewards: Tensor  # [H, B, bins]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossWeights:
    """How much each part of a loss counts. A kind of model adds the parts it has as fields, in the order of the sum."""

    learn_endings: bool
    """Value and rewards past a termination count too, as 0."""

    def __post_init__(self) -> None:
        for name in self.parts:
            if not getattr(self, name) >= 0:
                raise ValueError(f"the weight of {name} must be >= 0, received {getattr(self, name)!r}")

    @property
    def parts(self) -> list[str]:
        return [field.name for field in fields(self) if field.name != "learn_endings"]

    def total(self, parts: dict[str, Tensor]) -> Tensor:
        """The sum of the parts, each times its weight; of entropy more is better."""
        weighed = [(-1 if name == "entropy" else 1) * getattr(self, name) * part for name, part in parts.items()]
        return sum(weighed[1:], weighed[0])


class Losses(NamedTuple):
    """Each part is the weighted mean over samples of the sum over steps."""

    total: Tensor
    parts: dict[str, Tensor]
    values: Tensor  # [B], predicted for the first step


def window_losses(
    targets: Targets,
    said: Predictions,
    weights: LossWeights,
    supports: tuple[Support, Support],
    *,
    rows_first: bool = False,
    **own: tuple[Tensor, Tensor],
) -> Losses:
    """The losses of a batch.

    :param supports: of values and of rewards
    :param rows_first: predictions and own losses are [B, H, ...] instead of [H, B, ...]
    :param own: other parts by name: the loss of each step after the first, and where it counts, [H, B]
    """
    steps, batch = targets.actions.shape

    def turned(values: Tensor) -> Tensor:
        return values.transpose(0, 1) if rows_first else values

    scale = targets.weights / (steps * batch)

    def mean(losses: Tensor, where: Tensor) -> Tensor:
        return ((losses * turned(where)).sum(1 if rows_first else 0) * scale).sum()

    counted, valued = targets.mask, targets.counted(weights.learn_endings)
    log_policy = functional.log_softmax(said.policies, -1)
    parts = {
        "policy": mean(-(turned(targets.policies) * log_policy).sum(-1), counted),
        "value": mean(_cross_entropy(said.values, supports[0].encode(turned(targets.values))), valued),
        "reward": mean(_cross_entropy(said.rewards, supports[1].encode(turned(targets.rewards))), valued[:-1]),
        "entropy": mean(-(log_policy.exp() * log_policy).sum(-1), counted),
        **{name: mean(*losses) for name, losses in own.items()},
    }
    parts = {name: parts[name] for name in weights.parts}
    first = turned(said.values)[0].detach()
    return Losses(total=weights.total(parts), parts=parts, values=supports[0].decode(first))


def _cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """[...] of logits and distributions [..., bins]."""
    return -(target * functional.log_softmax(logits, -1)).sum(-1)
