"""UniZero: MuZero with a transformer as its model, which sees the whole way it took.

    headway run unizero --env CartPole-v1 --target_score 475

Knobs known from other systems are translated, as for MuZero (`headway explain`).
"""

from __future__ import annotations

import math
from functools import partial

import torch
from pydantic import Field, model_validator

from headway.coordinator.checkpoint_best_weights import Kept
from headway.coordinator.roles import Stations
from headway.core.types import derive_seed
from headway.envs.policy_env_policy import EnvPolicy
from headway.ranks.rank import device_for
from headway.runs.config import with_defaults
from headway.zero.config import SearchConfig
from headway.zero.planner_planning import Planner
from headway.zero.stations_search_run import GameSpec, game_spec, planner_of, search_policy, search_stations
from headway.zero.unizero_inference import searchable
from headway.zero.unizero_learner import UniZeroLearner, UniZeroSettings
from headway.zero.unizero_network import UniZeroArchitecture, UniZeroNetwork


@with_defaults(learning_rate=1e-3, average=0.99)
class UniZeroConfig(UniZeroSettings, SearchConfig):
    """Network: the transformer that UniZero learns."""

    dim: int = Field(default=64, ge=1)
    """Features of a token, and of a latent."""
    layers: int = Field(default=2, ge=1)
    """Layers of the transformer. More: slower in search and in learning alike."""
    heads: int = Field(default=4, ge=1)
    """Heads of its attention; dim must be a multiple of twice as many."""
    context_steps: int = Field(default=0, ge=0)
    """Steps before an observation that a search sees too: for games in which one observation does not show all. They
    are encoded anew in every search, so more are slower. Learning sees up to num_unroll_steps."""
    attention_steps: int | None = Field(default=None, ge=1)
    """Steps back that a token looks, its own among them. Unset: num_unroll_steps + 1, as far as learning ever looks."""
    board_features: int = Field(default=64, ge=1)
    """Features of each window of a board, which its latent is made from."""

    @model_validator(mode="after")
    def _the_model_can_be(self) -> UniZeroConfig:
        if self.dim % (2 * self.heads):
            raise ValueError(f"dim must be a multiple of 2 * heads = {2 * self.heads}, received {self.dim}")
        if self.is_board_game and self.context_steps:
            raise ValueError(f"context_steps={self.context_steps}: a board shows everything, it must be 0")
        return self


CONFIG = UniZeroConfig


def stations(config: UniZeroConfig) -> Stations:
    """Everything wired."""
    spec = game_spec(config)
    _architecture(config, spec)  # refuses what cannot be, before anything is started
    return search_stations(config, spec, planner, partial(_learner, config, spec))


def planner(
    config: UniZeroConfig, spec: GameSpec, num_simulations: int, network: UniZeroNetwork | None = None
) -> Planner:
    """The acting side, before weights are loaded."""
    network = network or _network(config, spec)
    settings = config.search_settings(spec.players, num_simulations)
    device = device_for(config.search_gpus)
    model = searchable(network, context_steps=config.context_steps, device=device)
    return planner_of(config, model, settings)


def _network(config: UniZeroConfig, spec: GameSpec) -> UniZeroNetwork:
    torch.set_num_threads(config.torch_threads)
    return UniZeroNetwork(_architecture(config, spec), seed=derive_seed(config.seed, "network"))


def _architecture(config: UniZeroConfig, spec: GameSpec) -> UniZeroArchitecture:
    shape = spec.observation
    seen = shape if spec.is_picture or config.is_board_game else (math.prod(shape),)
    return UniZeroArchitecture(
        observation=seen,
        num_actions=spec.num_actions,
        dim=config.dim,
        layers=config.layers,
        heads=config.heads,
        attention_steps=config.attention_steps or config.num_unroll_steps + 1,
        normalise=config.normalises(seen),
        is_bytes=spec.is_bytes and len(seen) == 3,
        windows=config.board_features if config.is_board_game else 0,
        value_support=config.support,
        reward_support=config.support,
    )


def _learner(config: UniZeroConfig, spec: GameSpec) -> UniZeroLearner:
    settings = config.part(UniZeroSettings)
    return UniZeroLearner(partial(_network, config, spec), settings, device=device_for(config.learner_gpus))


def load_policy(config: UniZeroConfig, kept: Kept) -> EnvPolicy:
    """The policy with these weights, to act with elsewhere: it searches as in evaluations."""
    spec = game_spec(config)
    network = _network(config, spec)
    acting = planner(config, spec, config.eval_simulations, network)
    return search_policy("unizero", config, acting, network, kept)
