"""TextZero on draws from a replay of segments.

Before each update the actions that could be done at the first observations of its windows are written into the table of
known actions. The target and the average have the same table as the network: it is copied, not averaged.
"""

from __future__ import annotations

from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn

from headway.text_games.textzero_loss import TextZeroLossWeights, textzero_losses
from headway.text_games.textzero_network import TextZeroNetwork
from headway.zero.model_learner import ModelLearner, ModelSettings
from headway.zero.model_learner_window_loss import Losses, Targets


class TextZeroSettings(ModelSettings):
    """Learning: the update of a model of texts."""

    learning_rate: float = Field(default=3e-3, gt=0)
    """Step size of AdamW."""
    target_every: int = Field(default=20, ge=1)
    """Updates between two moves of the target network to the trained one."""
    value_weight: float = Field(default=0.25, ge=0)
    """Weight of the value loss; policy and reward have 1."""
    entropy_weight: float = Field(default=0.03, ge=0)
    """Bonus for staying undecided. With less, a policy that never saw a reward drifts to a few actions."""
    legality_weight: float = Field(default=1.0, ge=0)
    """Weight of saying which of the known actions can be done."""
    agreement_weight: float = Field(default=2.0, ge=0)
    """Weight of the agreement between latents that were stepped to and those of what was seen there. 0: off."""
    learn_endings: bool = True
    """Learn that after a termination there is nothing to gain, so that the search sees it too."""

    @property
    def weights(self) -> TextZeroLossWeights:
        """How much each part of the loss counts."""
        return TextZeroLossWeights(
            value=self.value_weight,
            legality=self.legality_weight,
            agreement=self.agreement_weight,
            entropy=self.entropy_weight,
            learn_endings=self.learn_endings,
        )


class TextZeroLearner(ModelLearner[TextZeroNetwork]):
    """The losses of a body along windows, and a table of the actions that were seen."""

    _settings: TextZeroSettings

    def _losses(self, targets: Targets) -> Losses:
        self._network.known.see(self._network.candidates(targets.observations[0].long()))
        return textzero_losses(self._network, self._target, targets, self._settings.weights)

    def _target_value_logits(self, observations: Tensor) -> Tensor:
        return self._target.values(observations)

    @torch.no_grad()
    def _follow(self, follower: nn.Module, share: float) -> None:
        newest = self._network
        learned = [one for one in zip(follower.parameters(), newest.parameters(), strict=True) if one[1].requires_grad]
        torch._foreach_lerp_([mine for mine, _ in learned], [new for _, new in learned], share)
        table = cast(TextZeroNetwork, follower).known
        table.words.copy_(newest.known.words)
        table.usage.copy_(newest.known.usage)
