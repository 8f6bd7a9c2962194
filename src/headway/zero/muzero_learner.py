"""MuZero on draws from a replay of segments."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from headway.zero.model_learner import ModelLearner, ModelSettings
from headway.zero.model_learner_window_loss import Losses, Targets
from headway.zero.muzero_loss import MuZeroLossWeights, muzero_losses
from headway.zero.muzero_network import MuZeroNetwork


class MuZeroSettings(ModelSettings):
    """Learning: the update of MuZero's model."""

    learning_rate: float = Field(default=3e-3, gt=0)
    """Step size of AdamW."""
    target_every: int = Field(default=100, ge=1)
    """Updates between two moves of the target network to the trained one."""
    value_weight: float = Field(default=0.25, ge=0)
    """Weight of the value loss; policy and reward have 1."""
    consistency_weight: float = Field(default=2.0, ge=0)
    """Weight of the agreement between latents that were stepped to and those of what was seen there. 0: off."""
    learn_endings: bool = False
    """Learn that after a termination there is nothing to gain, so that the search sees it too."""

    @property
    def weights(self) -> MuZeroLossWeights:
        """How much each part of the loss counts."""
        return MuZeroLossWeights(
            value=self.value_weight,
            consistency=self.consistency_weight,
            entropy=self.entropy_weight,
            learn_endings=self.learn_endings,
        )


class MuZeroLearner(ModelLearner[MuZeroNetwork]):
    """The losses along H steps of the model; values of what the target encodes."""

    _settings: MuZeroSettings

    def _losses(self, targets: Targets) -> Losses:
        return muzero_losses(self._network, targets, self._settings.weights)

    def _target_value_logits(self, observations: Tensor) -> Tensor:
        return self._target.predict(self._target.encode(observations))[1]
