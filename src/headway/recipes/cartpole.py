"""CartPole to 475 in seconds: PPO with settings that take few, large gradient steps.

    headway run cartpole
    headway run cartpole --max_lead 0        the synchronous loop, for comparison

Learning, not collecting, takes the time here (a vector of CartPoles steps half a million times a second), so
a lead buys little: at most the fifth of the time that collecting takes.
"""

from __future__ import annotations

from pydantic import Field

from headway.recipes.ppo import PPOConfig, stations

__all__ = ["CONFIG", "CartPoleConfig", "stations"]


class CartPoleConfig(PPOConfig):
    """PPO's settings with other defaults."""

    num_envs: int = Field(default=32, ge=1)
    """Copies per collector, stepped together."""
    segment_steps: int = Field(default=64, ge=1)
    """Steps of each copy per ticket."""
    updates: int | None = Field(default=250, ge=1)
    """Stop after this many learn calls, if the target is not reached before."""
    target_score: float | None = 475.0
    """Stop when an evaluation reaches this."""
    learning_rate: float = Field(default=1.5e-3, gt=0)
    """Step size of Adam."""
    minibatch_size: int = Field(default=512, ge=1)
    """Steps per gradient step."""
    entropy_weight: float = Field(default=0.0, ge=0)
    """Bonus for staying undecided."""
    evaluate_in_background: bool = True
    """Evaluate beside collection and learning instead of pausing them."""
    eval_episodes: int = Field(default=100, ge=1)
    """Episodes per evaluation."""


CONFIG = CartPoleConfig
