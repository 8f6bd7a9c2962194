"""UniZero on draws from a replay of segments.

The target is a whole network: its encoder says what latents are to be expected, its heads what the end of n steps is
worth (seen alone, as the first latent of a window is).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from headway.learn.model_learner import ModelLearner, ModelSettings
from headway.learn.unizero.loss import UniZeroLossWeights, unizero_losses
from headway.learn.unizero.network import UniZeroNetwork
from headway.learn.window_loss import Losses, Targets


@dataclass(frozen=True, slots=True, kw_only=True)
class UniZeroSettings(ModelSettings):
    """The knobs of one update."""

    learning_rate: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.95)
    target_tau: float = 0.05
    weights: UniZeroLossWeights = field(default_factory=UniZeroLossWeights)


class UniZeroLearner(ModelLearner[UniZeroNetwork]):
    """The losses of one pass over the window."""

    _settings: UniZeroSettings

    def _losses(self, targets: Targets) -> Losses:
        return unizero_losses(self._network, self._target, targets, self._settings.weights)

    def _target_value_logits(self, observations: Tensor) -> Tensor:
        latents = self._target.encode(observations)[:, None]
        alone = self._target(latents, torch.zeros(len(latents), 0, dtype=torch.long, device=self._device))
        return self._target.judge(alone.seen[:, 0])[1]
