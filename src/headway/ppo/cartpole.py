"""CartPole to 475 in about a second: PPO with a small network and many copies.

    headway run cartpole
    headway run cartpole --max_lead 0        the synchronous loop, for comparison

A vector of CartPoles takes as long for 64 copies as for 8, so there are many and segments are short. The first run
ever compiles the gradient step, which takes longer than all the learning; later ones find it on disk.
"""

from __future__ import annotations

from headway.ppo.recipe_ppo import PPOConfig, load_policy, stations
from headway.runs.config import with_defaults

__all__ = ["CONFIG", "CartPoleConfig", "load_policy", "stations"]


@with_defaults(
    num_envs=64,
    segment_steps=16,
    updates=300,
    target_score=475.0,
    hidden=(32, 32),
    learning_rate=4e-3,
    gamma=0.98,
    lam=0.9,
    num_epochs=6,
    clip=0.15,  # less than usual: with a lead, more of an update is on older data
    entropy_weight=0.0,
    evaluate_in_background=True,
    eval_episodes=100,
)
class CartPoleConfig(PPOConfig):
    """CartPole: PPO's settings with other defaults."""


CONFIG = CartPoleConfig
