"""PPO for any Gymnasium environment: segments from many copies at once, a correction for what is stale.

headway run ppo --env CartPole-v1 --target_score 475
headway run ppo --env Pendulum-v1 --normalise true --max_lead 2 --correction vtrace
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from pydantic import Field, model_validator

from headway.collect.segments import SegmentCollector, segment_collector
from headway.coordinate.roles import Stations
from headway.core.types import derive_seed
from headway.envs.gymnasium_vector import Spec, describe, make_vector
from headway.evaluate.episodes import EpisodeEvaluator
from headway.learn.ppo.learner import PPOLearner, PPOSettings
from headway.learn.ppo.policy import Actor, ActorCritic
from headway.recipes.config import RunConfig, require_correction


class PPOConfig(RunConfig):
    """Environment, segments and the PPO update."""

    env: str = "CartPole-v1"
    """A registered Gymnasium environment."""
    num_envs: int = Field(default=16, ge=1)
    """Copies per collector, stepped together. More make each policy call cheaper per step."""
    segment_steps: int = Field(default=128, ge=1)
    """Steps of each copy per ticket. Longer segments mean better advantages and older data."""
    updates: int | None = Field(default=500, ge=1)
    """Stop after this many learn calls."""
    evaluate_every: int = Field(default=10, ge=0)
    """Evaluate every n versions and at the end; 0: never."""
    eval_episodes: int = Field(default=20, ge=1)
    """Episodes per evaluation."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the layers of both towers."""
    normalise: bool = False
    """Scale observations by their running mean and deviation (part of the published weights)."""
    learning_rate: float = Field(default=3e-4, gt=0)
    """Step size of Adam."""
    final_learning_rate: float | None = Field(default=None, ge=0)
    """Where a linear decay over `updates` ends; unset: constant."""
    gamma: float = Field(default=0.99, gt=0, le=1)
    """Discount. Closer to 1 looks further ahead, with more variance."""
    lam: float = Field(default=0.95, ge=0, le=1)
    """GAE's lambda: lower trusts the value estimate more."""
    num_epochs: int = Field(default=4, ge=1)
    """Passes over a batch. More squeeze more out of it and move further from the data."""
    minibatch_size: int = Field(default=256, ge=1)
    """Steps per gradient step."""
    clip: float = Field(default=0.2, gt=0)
    """How far the policy may move per update."""
    value_weight: float = Field(default=0.5, ge=0)
    """Weight of the value loss."""
    value_clip: float | None = Field(default=None, gt=0)
    """Clip the value's move as well; unset: do not."""
    entropy_weight: float = Field(default=0.01, ge=0)
    """Bonus for staying undecided."""
    max_grad_norm: float = Field(default=0.5, gt=0)
    """Largest gradient norm."""
    target_kl: float | None = Field(default=None, gt=0)
    """End the passes over a batch early once the policy has moved this far."""
    correction: Literal["none", "clip", "decoupled", "vtrace"] = "decoupled"
    """What makes up for stale data: the clipped ratio alone, a truncated weight beside it, or V-trace."""
    torch_threads: int = Field(default=1, ge=1)
    """Threads of torch in each process. One, where roles share the cores: more are slower, and differ in bits."""
    max_importance: float = Field(default=2.0, gt=0)
    """Truncation of the weight of stale data under `decoupled`."""

    @model_validator(mode="after")
    def _stale_data_need_a_correction(self) -> PPOConfig:
        require_correction(self.correction, self.max_lead)
        return self


CONFIG = PPOConfig


def stations(config: PPOConfig) -> Stations:
    """Everything wired: one line an edge."""
    spec = _spec_of(config)
    return Stations(
        collector=partial(_collector, config),
        learner=partial(_learner, config, spec),
        evaluator=partial(_evaluator, config),
    )


def _spec_of(config: PPOConfig) -> Spec:
    env = make_vector(config.env, 1)
    try:
        return describe(env)
    finally:
        env.close()


def _network(config: PPOConfig, spec: Spec) -> ActorCritic:
    torch.set_num_threads(config.torch_threads)
    return ActorCritic(spec, config.hidden, normalise=config.normalise, seed=derive_seed(config.seed, "network"))


def _policy(config: PPOConfig, spec: Spec) -> Actor:
    return Actor(_network(config, spec))


def _collector(config: PPOConfig, number: int) -> SegmentCollector:
    return segment_collector(
        partial(make_vector, config.env, config.num_envs),
        partial(_policy, config),
        steps=config.segment_steps,
        seed=derive_seed(config.seed, "environment", number) % 2**31,
    )


def _learner(config: PPOConfig, spec: Spec) -> PPOLearner:
    settings = PPOSettings(
        learning_rate=config.learning_rate,
        final_learning_rate=config.final_learning_rate,
        total_updates=config.updates,
        gamma=config.gamma,
        lam=config.lam,
        epochs=config.num_epochs,
        minibatch_size=config.minibatch_size,
        clip=config.clip,
        value_weight=config.value_weight,
        value_clip=config.value_clip,
        entropy_weight=config.entropy_weight,
        max_grad_norm=config.max_grad_norm,
        correction=config.correction,
        max_importance=config.max_importance,
        target_kl=config.target_kl,
    )
    return PPOLearner(partial(_network, config, spec), settings, seed=config.seed)


def _evaluator(config: PPOConfig) -> EpisodeEvaluator:
    return EpisodeEvaluator(partial(_eval_env, config.env), partial(_policy, config), episodes=config.eval_episodes)


def _eval_env(env_id: str, num_envs: int) -> Any:
    return make_vector(env_id, num_envs)
