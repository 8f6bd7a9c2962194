"""A trained network as one function for other programs: features in, the environment's own actions out."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from headway.envs.gymnasium_vector import Continuous, Discrete, Space, first_choice
from headway.ppo.policy import ActorCritic
from headway.ppo.recurrent_policy import RecurrentActorCritic


class _MostLikely(nn.Module):
    """The most likely of the environment's own actions, by what a network gives for them."""

    low: Tensor
    high: Tensor
    first: Tensor

    def __init__(self, network: ActorCritic | RecurrentActorCritic, space: Space) -> None:
        super().__init__()
        self._action = network.action
        self._shape = tuple(space.shape or ())
        if isinstance(self._action, Continuous):
            self.register_buffer("low", torch.tensor(self._action.low))
            self.register_buffer("high", torch.tensor(self._action.high))
        elif not isinstance(self._action, Discrete):
            first = np.broadcast_to(np.asarray(first_choice(space)), self._shape)
            self.register_buffer("first", torch.tensor(first.astype(np.int64)))

    @property
    def names(self) -> tuple[str, str]:
        return "action", "mean" if isinstance(self._action, Continuous) else "logits"

    def forward(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(self._action, Continuous):
            clipped = torch.minimum(torch.maximum(scores, self.low), self.high)
            return clipped.unflatten(1, self._shape) if len(self._shape) != 1 else clipped, scores
        if isinstance(self._action, Discrete):
            return scores.argmax(-1) + self._action.start, scores
        chosen = [logits.argmax(-1) for logits in scores.split(list(self._action.choices), dim=-1)]
        actions = torch.stack(chosen, -1)
        return (actions.unflatten(1, self._shape) if len(self._shape) != 1 else actions) + self.first, scores


class MostLikelyActions(nn.Module):
    """The most likely actions for features [B, ...], and what they were chosen by: logits [B, A], or means."""

    def __init__(self, network: ActorCritic, space: Space) -> None:
        super().__init__()
        self.network = network
        self._most_likely = _MostLikely(network, space)

    @property
    def outputs(self) -> tuple[str, ...]:
        return self._most_likely.names

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        best: tuple[Tensor, Tensor] = self._most_likely(self.network.outputs(features))
        return best


class MostLikelyActionsFrom(nn.Module):
    """The same for a policy with a memory: from a state [B, S], zeros where an episode begins, with the state after."""

    def __init__(self, network: RecurrentActorCritic, space: Space) -> None:
        super().__init__()
        self.network = network
        self._most_likely = _MostLikely(network, space)

    @property
    def outputs(self) -> tuple[str, ...]:
        return *self._most_likely.names, "next_state"

    def forward(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores, after = self.network.step(features, state)
        return *self._most_likely(scores), after
