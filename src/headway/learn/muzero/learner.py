"""MuZero on draws from a replay of segments."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from headway.learn.model_learner import ModelLearner, ModelSettings, Targets
from headway.learn.muzero.loss import Losses, LossWeights, muzero_losses
from headway.learn.muzero.network import MuZeroNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class MuZeroSettings(ModelSettings):
    """The knobs of one update."""

    learning_rate: float = 3e-3
    target_every: int = 100
    weights: LossWeights = field(default_factory=LossWeights)


class MuZeroLearner(ModelLearner[MuZeroNetwork]):
    """The losses along H steps of the model; values of what the target encodes."""

    _settings: MuZeroSettings

    def _losses(self, targets: Targets) -> Losses:
        return muzero_losses(self._network, targets, self._settings.weights)

    def _target_values(self, observations: Tensor) -> Tensor:
        _, logits = self._target.predict(self._target.encode(observations.flatten(0, 1)))
        return self._target.architecture.value_support.decode(logits).view(observations.shape[:2])
