"""CartPole to 475 in about a second: PPO with a small network and many copies.

    headway run cartpole
    headway run cartpole --max_lead 0        the synchronous loop, for comparison

A vector of CartPoles takes as long for 64 copies as for 8, so there are many and segments are short. The first run
ever compiles the gradient step, which takes longer than all the learning; later ones find it on disk.
"""

from __future__ import annotations

from pydantic import Field

from headway.recipes.ppo import PPOConfig, stations

__all__ = ["CONFIG", "CartPoleConfig", "stations"]


class CartPoleConfig(PPOConfig):
    """PPO's settings with other defaults."""

    num_envs: int = Field(default=64, ge=1)
    """Copies per collector, stepped together."""
    segment_steps: int = Field(default=16, ge=1)
    """Steps of each copy per ticket."""
    updates: int | None = Field(default=300, ge=1)
    """Stop after this many learn calls, if the target is not reached before."""
    target_score: float | None = 475.0
    """Stop when an evaluation reaches this."""
    hidden: tuple[int, ...] = (32, 32)
    """Widths of the layers of both towers."""
    learning_rate: float = Field(default=4e-3, gt=0)
    """Step size of Adam."""
    gamma: float = Field(default=0.98, gt=0, le=1)
    """Discount. Closer to 1 looks further ahead, with more variance."""
    lam: float = Field(default=0.9, ge=0, le=1)
    """GAE's lambda: lower trusts the value estimate more."""
    num_epochs: int = Field(default=6, ge=1)
    """Passes over a batch. More squeeze more out of it and move further from the data."""
    clip: float = Field(default=0.15, gt=0)
    """How far the policy may move per update. Less than usual: with a lead, more of it is on older data."""
    entropy_weight: float = Field(default=0.0, ge=0)
    """Bonus for staying undecided."""
    evaluate_in_background: bool = True
    """Evaluate beside collection and learning instead of pausing them."""
    eval_episodes: int = Field(default=100, ge=1)
    """Episodes per evaluation."""


CONFIG = CartPoleConfig
