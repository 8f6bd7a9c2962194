"""UniZero on draws from a replay of segments.

The target is a whole network: its encoder says what latents are to be expected, its heads what the end of n steps is
worth (seen alone, as the first latent of a window is).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from headway.zero.model_learner import ModelLearner, ModelSettings
from headway.zero.model_learner_window_loss import Losses, Targets
from headway.zero.unizero_loss import UniZeroLossWeights, unizero_losses
from headway.zero.unizero_network import UniZeroNetwork


class UniZeroSettings(ModelSettings):
    """Learning: the update of UniZero's model."""

    betas: ClassVar[tuple[float, float]] = (0.9, 0.95)

    learning_rate: float = Field(default=1e-4, gt=0)
    """Step size of AdamW. Larger models want less: 1e-4 for a dim of 768."""
    target_tau: float = Field(default=0.05, gt=0, le=1)
    """How far the target network moves to the trained one at each update. More: newer targets, less calm ones."""
    latent_weight: float = Field(default=10.0, ge=0)
    """Weight of the error of the next latent; policy and reward have 1."""
    value_weight: float = Field(default=0.5, ge=0)
    """Weight of the value loss."""
    learn_endings: bool = True
    """Learn that after a termination there is nothing to gain, so that the search sees it too."""

    @property
    def weights(self) -> UniZeroLossWeights:
        """How much each part of the loss counts."""
        return UniZeroLossWeights(
            latent=self.latent_weight,
            value=self.value_weight,
            entropy=self.entropy_weight,
            learn_endings=self.learn_endings,
        )


class UniZeroLearner(ModelLearner[UniZeroNetwork]):
    """The losses of one pass over the window."""

    _settings: UniZeroSettings

    def _losses(self, targets: Targets) -> Losses:
        return unizero_losses(self._network, self._target, targets, self._settings.weights)

    def _target_value_logits(self, observations: Tensor) -> Tensor:
        latents = self._target.encode(observations)[:, None]
        alone = self._target(latents, torch.zeros(len(latents), 0, dtype=torch.long, device=self._device))
        return self._target.judge(alone.seen[:, 0])[1]
