"""PPO on Colour Lines: whole boards in, one of 6561 moves out, a correction for what is stale.

    headway run colorlines
    headway run colorlines --num_workers 2 --weight_sync_interval 2 --lr 1e-3
    headway watch runs/colorlines-20260401-101500

Rewards are points with potential-based shaping (the learner's own discount, zero at the end), so runs that are begun
count at once and yet the best policy stays the same. Evaluations count points alone.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, cast

from pydantic import Field, model_validator

from headway.collect.segments import SegmentCollector, segment_collector
from headway.coordinate.roles import Stations
from headway.core.types import derive_seed
from headway.envs.colorlines.gymnasium_vector import ColorLinesVector
from headway.evaluate.episodes import EpisodeEvaluator
from headway.learn.ppo.cells import CellsActor, CellsActorCritic
from headway.learn.ppo.learner import PPOLearner, PPOSettings
from headway.recipes.config import RunConfig, require_correction


class ColorLinesConfig(RunConfig):
    """The game's rewards, the segments and the PPO update."""

    num_envs: int = Field(default=64, ge=1)
    """Games per collector, stepped together. More make each policy call cheaper per step."""
    segment_steps: int = Field(default=16, ge=1)
    """Moves of each game per ticket. Longer segments mean better advantages and older data."""
    updates: int | None = Field(default=300, ge=1)
    """Stop after this many learn calls."""
    evaluate_every: int = Field(default=20, ge=0)
    """Evaluate every n versions and at the end; 0: never."""
    evaluate_in_background: bool = True
    """Evaluate beside collection and learning instead of pausing them: good games are long."""
    eval_episodes: int = Field(default=32, ge=1)
    """Games per evaluation."""
    shaping: float = Field(default=3.0, ge=0)
    """Weight of the potential in the reward: runs of two, three, four. 0: points alone. Raising it rewards runs that
    are begun more, next to those that are completed."""
    reward_scale: float = Field(default=0.1, gt=0)
    """Factor of the rewards the learner sees, so that returns are around 1."""
    max_moves: int | None = Field(default=None, ge=1)
    """Cut games of the collectors after this many moves; unset: never. Evaluations play to the end."""
    width: int = Field(default=24, ge=1)
    """Features per colour and cell. More see more and cost more."""
    lr: float = Field(default=3e-3, gt=0)
    """Step size of Adam."""
    final_lr: float | None = Field(default=None, ge=0)
    """Where a linear decay over `updates` ends; unset: constant."""
    gamma: float = Field(default=0.95, gt=0, le=1)
    """Discount. Closer to 1 looks further ahead, with more variance."""
    lam: float = Field(default=0.7, ge=0, le=1)
    """GAE's lambda: lower trusts the value estimate more."""
    num_epochs: int = Field(default=2, ge=1)
    """Passes over a batch. More squeeze more out of it and move further from the data."""
    batch_size: int = Field(default=256, ge=1)
    """Moves per gradient step."""
    clip: float = Field(default=0.2, gt=0)
    """How far the policy may move per update."""
    value_weight: float = Field(default=0.5, ge=0)
    """Weight of the value loss."""
    entropy_weight: float = Field(default=0.005, ge=0)
    """Bonus for staying undecided."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Largest gradient norm."""
    target_kl: float | None = Field(default=None, gt=0)
    """End the passes over a batch early once the policy has moved this far."""
    correction: Literal["none", "clip", "decoupled", "vtrace"] = "decoupled"
    """What makes up for stale data: the clipped ratio alone, a truncated weight beside it, or V-trace."""
    max_importance: float = Field(default=2.0, gt=0)
    """Truncation of the weight of stale data under `decoupled`."""

    @model_validator(mode="after")
    def _stale_data_need_a_correction(self) -> ColorLinesConfig:
        require_correction(self.correction, self.max_lead)
        return self


CONFIG = ColorLinesConfig


def stations(config: ColorLinesConfig) -> Stations:
    """Everything wired: one line an edge."""
    return Stations(
        collector=partial(_collector, config),
        learner=partial(_learner, config),
        evaluator=partial(_evaluator, config),
    )


def policy(config: ColorLinesConfig, spec: Any = None) -> CellsActor:
    """The acting side, before weights are loaded. The game has one spec, so it is not looked at."""
    return CellsActor(_network(config))


def _network(config: ColorLinesConfig) -> CellsActorCritic:
    return CellsActorCritic(config.width, seed=derive_seed(config.seed, "network"))


def _games(config: ColorLinesConfig) -> ColorLinesVector:
    return ColorLinesVector(
        config.num_envs,
        shaping=config.shaping,
        gamma=config.gamma,
        max_steps=config.max_moves,
        reward_scale=config.reward_scale,
        compact=True,
        masks=False,
    )


def _eval_games(num_envs: int) -> ColorLinesVector:
    return ColorLinesVector(num_envs, compact=True, masks=False)


def _collector(config: ColorLinesConfig, number: int) -> SegmentCollector:
    return segment_collector(
        partial(_games, config),
        partial(policy, config),
        steps=config.segment_steps,
        seed=derive_seed(config.seed, "environment", number) % 2**31,
    )


def _learner(config: ColorLinesConfig) -> PPOLearner:
    settings = PPOSettings(
        learning_rate=config.lr,
        final_learning_rate=config.final_lr,
        total_updates=config.updates,
        gamma=config.gamma,
        lam=config.lam,
        epochs=config.num_epochs,
        minibatch_size=config.batch_size,
        clip=config.clip,
        value_weight=config.value_weight,
        entropy_weight=config.entropy_weight,
        max_grad_norm=config.max_grad_norm,
        correction=config.correction,
        max_importance=config.max_importance,
        target_kl=config.target_kl,
    )
    return PPOLearner(cast(Any, partial(_network, config)), settings, seed=config.seed)


def _evaluator(config: ColorLinesConfig) -> EpisodeEvaluator:
    return EpisodeEvaluator(_eval_games, partial(policy, config), episodes=config.eval_episodes)
