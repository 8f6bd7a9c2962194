"""What the PPO learner asks of a network."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn


class ObservationScale(nn.Module):
    """What every network of PPO says about its observations. Parameters are float32 on the CPU."""

    normalise: bool
    """Whether it scales observations by the two below, which the learner then keeps up to date."""
    obs_mean: Tensor
    obs_scale: Tensor
    is_bytes: bool = False
    """Whether it is given pictures of bytes."""


class PPONetwork(ObservationScale, ABC):
    """A policy and its value estimate."""

    @abstractmethod
    def values(self, obs: Tensor) -> Tensor:
        """[B] of observations [B, ...]."""

    @abstractmethod
    def log_probs_and_entropy(self, obs: Tensor, actions: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Of each action [B], and of the distribution it was drawn from [B]."""

    @abstractmethod
    def evaluate(self, obs: Tensor, actions: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities, entropies and values, each [B]: what a loss is made of."""
