"""MuZero: a model is learned, and games are played by searching in it.

    headway run muzero --env CartPole-v1 --target_score 475
    headway run muzero --env tictactoe --wall_s 300
    headway run muzero --env connect_four --wall_s 900 --reanalyze_ratio 0.25 --replay_mode shared

Knobs known from other systems are translated: collector_env_num, game_segment_length, data_queue_size and so on
(`headway explain`).
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from pydantic import Field, model_validator

from headway.coordinate.roles import Stations
from headway.core.types import derive_seed
from headway.learn.muzero.inference import searchable
from headway.learn.muzero.learner import MuZeroLearner, MuZeroSettings
from headway.learn.muzero.loss import LossWeights
from headway.learn.muzero.network import Architecture, MuZeroNetwork, build_network
from headway.learn.two_hot import Support
from headway.recipes.search_run import BOARD_GAMES, GameSpec, SearchConfig, game_spec, search_stations
from headway.search.planning import Planner

BOARD_DEFAULTS: dict[str, dict[str, Any]] = {
    "tic_tac_toe": {
        "td_steps": 9,
        "gamma": 1.0,
        "replay_ratio": 0.05,
        "segment_steps": 20,
        "num_envs": 32,
        "value_bins": 21,
        "value_range": 1.0,
        "opponents": ("random", "perfect"),
        "eval_episodes": 100,
        "root_dirichlet_alpha": 0.5,
        "learn_endings": True,
    },
    "connect_four": {
        "td_steps": 42,
        "gamma": 1.0,
        "replay_ratio": 0.02,
        "replay_capacity": 200_000,
        "replay_min_size": 4000,
        "segment_steps": 32,
        "num_envs": 32,
        "value_bins": 21,
        "value_range": 1.0,
        "latent": 128,
        "hidden": 128,
        "opponents": ("random", "depth_2"),
        "eval_episodes": 100,
        "eval_simulations": 50,
        "batch_size": 256,
        "root_dirichlet_alpha": 0.5,
        "learn_endings": True,
    },
}


class MuZeroConfig(SearchConfig):
    """The network and the losses, besides what every search has."""

    network: Literal["auto", "vector", "planes"] = "auto"
    """vector: layers on the flat observation. planes: convolutions on [C, height, width]. auto: planes for pictures,
    vector for everything else, small boards too: that is much faster on a CPU."""
    latent: int = Field(default=64, ge=1)
    """Features of a latent, of each cell where there are cells."""
    hidden: int = Field(default=64, ge=1)
    """Width of the layers between."""
    blocks: int = Field(default=1, ge=1)
    """Residual blocks of the convolutions."""
    value_bins: int = Field(default=101, ge=2)
    """Bins of the supports of values and rewards. More: finer, slower."""
    value_range: float = Field(default=50.0, gt=0)
    """Their reach to both sides, after squashing: 50 is a value of about 2300; 1 is one of about 3."""
    learning_rate: float = Field(default=2e-3, gt=0)
    """Step size of AdamW."""
    final_learning_rate: float | None = Field(default=None, ge=0)
    """Where a linear decay over `updates` ends; unset: constant."""
    weight_decay: float = Field(default=1e-4, ge=0)
    """Pull of AdamW towards zero."""
    max_grad_norm: float = Field(default=5.0, gt=0)
    """Largest gradient norm."""
    value_weight: float = Field(default=0.25, ge=0)
    """Weight of the value loss; policy and reward have 1."""
    consistency_weight: float = Field(default=2.0, ge=0)
    """Weight of the agreement between latents that were stepped to and those of what was seen there. 0: off."""
    entropy_weight: float = Field(default=5e-3, ge=0)
    """Bonus for staying undecided."""
    learn_endings: bool = True
    """Learn that after a termination there is nothing to gain, so that the search sees it too."""
    target_tau: float = Field(default=1.0, gt=0, le=1)
    """How far the target network moves to the trained one."""
    target_every: int = Field(default=20, ge=1)
    """Updates between two such moves. 1 with a small target_tau is a soft target."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_game(cls, values: Any) -> Any:
        game = BOARD_GAMES.get(values.get("env", "")) if isinstance(values, dict) else None
        if game is None:
            return values
        defaults = dict(BOARD_DEFAULTS[game])
        if values.get("update_per_collect") is not None:
            del defaults["replay_ratio"]
        return {**defaults, **values}

    @model_validator(mode="after")
    def _a_decay_needs_an_end(self) -> MuZeroConfig:
        if self.final_learning_rate is not None and self.updates is None:
            raise ValueError(f"final_learning_rate={self.final_learning_rate!r} needs updates: over which run?")
        return self


CONFIG = MuZeroConfig


def stations(config: MuZeroConfig) -> Stations:
    """Everything wired."""
    spec = game_spec(config)
    return search_stations(config, spec, planner, partial(_learner, config, spec))


def planner(config: Any, spec: GameSpec, num_simulations: int) -> Planner:
    """The acting side, before weights are loaded."""
    settings = config.search_settings(spec.players, num_simulations)
    return Planner(searchable(_network(config, spec)), settings)


def _network(config: MuZeroConfig, spec: GameSpec) -> MuZeroNetwork:
    torch.set_num_threads(config.torch_threads)
    shape = spec.observation
    is_picture = len(shape) == 3 and (config.network == "planes" or (config.network == "auto" and min(shape[1:]) > 9))
    if config.network == "planes" and len(shape) != 3:
        raise ValueError(f"network='planes' needs observations [C, height, width]; {config.env} has {list(shape)}")
    size = 1
    for length in shape:
        size *= length
    support = Support(-config.value_range, config.value_range, config.value_bins)
    architecture = Architecture(
        observation=shape if is_picture else (size,),
        num_actions=spec.num_actions,
        latent=config.latent,
        hidden=config.hidden,
        blocks=config.blocks,
        projection=config.hidden,
        value_support=support,
        reward_support=support,
    )
    return build_network(architecture, seed=derive_seed(config.seed, "network"))


def _learner(config: MuZeroConfig, spec: GameSpec) -> MuZeroLearner:
    settings = MuZeroSettings(
        learning_rate=config.learning_rate,
        final_learning_rate=config.final_learning_rate,
        total_updates=config.updates,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        bootstrap=config.bootstrap,
        target_tau=config.target_tau,
        target_every=config.target_every,
        weights=LossWeights(
            value=config.value_weight,
            consistency=config.consistency_weight,
            entropy=config.entropy_weight,
            learn_endings=config.learn_endings,
        ),
    )
    return MuZeroLearner(partial(_network, config, spec), settings)
