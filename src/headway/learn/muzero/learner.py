"""MuZero on draws from a replay of segments."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from headway.learn.model_learner import ModelLearner, ModelSettings
from headway.learn.muzero.loss import MuZeroLossWeights, muzero_losses
from headway.learn.muzero.network import MuZeroNetwork
from headway.learn.window_loss import Losses, Targets


@dataclass(frozen=True, slots=True, kw_only=True)
class MuZeroSettings(ModelSettings):
    """The knobs of one update."""

    learning_rate: float = 3e-3
    target_every: int = 100
    weights: MuZeroLossWeights = field(default_factory=MuZeroLossWeights)


class MuZeroLearner(ModelLearner[MuZeroNetwork]):
    """The losses along H steps of the model; values of what the target encodes."""

    _settings: MuZeroSettings

    def _losses(self, targets: Targets) -> Losses:
        return muzero_losses(self._network, targets, self._settings.weights)

    def _target_value_logits(self, observations: Tensor) -> Tensor:
        return self._target.predict(self._target.encode(observations))[1]
