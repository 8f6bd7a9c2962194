"""Three plain functions: a policy gradient on a bandit with contexts, in numpy.

    collect   play `episodes` rounds with the current weights, and wait as long as a simulator would
    train     one step of REINFORCE with truncated importance weights, so that older data stay usable
    evaluate  the expected reward, exactly

The problem is small so that the time goes where the knobs say (`collect_ms`, `train_ms`, `evaluate_ms`), and
what asynchrony buys and costs can be seen in seconds.
"""

from __future__ import annotations

import time
from functools import partial

import numpy as np
from pydantic import Field

from headway.coordinator.functions import stations_from_functions
from headway.coordinator.roles import Stations
from headway.core.types import Rollout, Ticket
from headway.core.types_opaque import Payload
from headway.runs.config import RunConfig, with_defaults

Weights = dict[str, np.ndarray]


@with_defaults(updates=200, evaluate_every=20)
class FunctionsConfig(RunConfig):
    """Bandit: the toy problem and its timing."""

    shown_first = "max_lead collectors updates learning_rate collect_ms train_ms"
    also_for_evaluation = ("evaluate_ms",)

    contexts: int = Field(12, ge=1)
    """Different situations; more take longer to learn."""
    actions: int = Field(6, ge=2)
    """Choices in each, one of them right."""
    episodes: int = Field(64, ge=1)
    """Rounds played per ticket; more make the gradient steadier."""
    learning_rate: float = Field(4.0, gt=0)
    """Step size. Raising it learns faster until stale data make it overshoot."""
    max_importance: float = Field(2.0, gt=0)
    """Truncation of the importance weights: larger trusts old data more."""
    collect_ms: float = Field(20.0, ge=0)
    """How long the simulator keeps a collector waiting, per ticket."""
    train_ms: float = Field(20.0, ge=0)
    """How long an accelerator would keep the learner waiting, per update."""
    evaluate_ms: float = Field(20.0, ge=0)
    """The same for an evaluation."""


CONFIG = FunctionsConfig


def stations(config: FunctionsConfig) -> Stations:
    """The three functions, wired."""
    weights = {"logits": np.zeros((config.contexts, config.actions))}
    return stations_from_functions(
        partial(collect, config), partial(train, config), partial(evaluate, config), weights=weights
    )


def right_actions(config: FunctionsConfig) -> np.ndarray:
    """The answer for each context, fixed by the seed."""
    return np.random.default_rng([config.seed, 7]).integers(config.actions, size=config.contexts)  # [contexts]


def policy(weights: Weights) -> np.ndarray:
    """Softmax over actions, per context."""  # [contexts, actions]
    logits = weights["logits"] - weights["logits"].max(axis=1, keepdims=True)
    chances: np.ndarray = np.exp(logits)
    chances /= chances.sum(axis=1, keepdims=True)
    return chances


def collect(config: FunctionsConfig, weights: Weights, ticket: Ticket) -> Rollout:
    """Play with these weights. Everything random follows from the ticket's seed."""
    rng = np.random.default_rng(ticket.seed)
    chances = policy(weights)
    contexts = rng.integers(config.contexts, size=config.episodes)
    draws = rng.random((config.episodes, 1))
    actions = (draws > np.cumsum(chances[contexts], axis=1)[:, :-1]).sum(axis=1)
    rewards = (actions == right_actions(config)[contexts]).astype(float) + 0.1 * rng.normal(size=config.episodes)
    time.sleep(config.collect_ms / 1000)
    payload = {"contexts": contexts, "actions": actions, "rewards": rewards, "chances": chances[contexts, actions]}
    return Rollout(payload, steps=config.episodes)


def train(config: FunctionsConfig, weights: Weights, rollouts: list[Payload]) -> tuple[Weights, dict[str, float]]:
    """One gradient step on the batch, each round weighted by how likely it still is."""
    names = ("contexts", "actions", "rewards", "chances")
    contexts, actions, rewards, chances = (np.concatenate([r[name] for r in rollouts]) for name in names)
    now = policy(weights)
    ratios = now[contexts, actions] / chances
    importance = np.minimum(ratios, config.max_importance)
    advantages = importance * (rewards - rewards.mean())
    gradient = np.zeros_like(weights["logits"])  # [contexts, actions]
    np.add.at(gradient, (contexts, actions), advantages)
    np.add.at(gradient, contexts, -advantages[:, None] * now[contexts])
    time.sleep(config.train_ms / 1000)
    ess = ratios.sum() ** 2 / (len(ratios) * (ratios**2).sum())
    metrics = {"reward": float(rewards.mean()), "ess": float(ess)}
    return {"logits": weights["logits"] + config.learning_rate / len(rewards) * gradient}, metrics


def evaluate(config: FunctionsConfig, weights: Weights) -> float:
    """The expected reward of the policy: 1 is perfect, 1 / actions is chance."""
    time.sleep(config.evaluate_ms / 1000)
    return float(policy(weights)[np.arange(config.contexts), right_actions(config)].mean())
