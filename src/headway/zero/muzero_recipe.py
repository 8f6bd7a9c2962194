"""MuZero: a model is learned, and games are played by searching in it.

    headway run muzero --env CartPole-v1 --target_score 475
    headway run muzero --env tictactoe --wall_s 300
    headway run muzero --env connect_four --wall_s 900 --reanalyze_ratio 0.25 --replay_mode shared

Knobs known from other systems are translated: collector_env_num, game_segment_length, data_queue_size and so on
(`headway explain`).
"""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field

from headway.coordinator.checkpoint_best_weights import Kept
from headway.coordinator.roles import Stations
from headway.core.types import derive_seed
from headway.core.types_opaque import SettingValue
from headway.envs.policy_env_policy import EnvPolicy
from headway.ranks.rank import device_for
from headway.runs.config import with_defaults
from headway.zero.config import SearchConfig
from headway.zero.muzero_inference import searchable
from headway.zero.muzero_learner import MuZeroLearner, MuZeroSettings
from headway.zero.muzero_network import MuZeroArchitecture, MuZeroNetwork, build_network
from headway.zero.planner_planning import Planner
from headway.zero.stations_search_run import GameSpec, game_spec, planner_of, search_policy, search_stations


@with_defaults(learning_rate=2e-3, target_every=20, average=0.99, learn_endings=True)
class MuZeroConfig(MuZeroSettings, SearchConfig):
    """Network: what MuZero learns."""

    own_board_defaults: ClassVar[dict[str, dict[str, SettingValue]]] = {
        "tic_tac_toe": {
            "network": "vector",  # as good on nine cells, and searched by compiled kernels
            "hidden": 128,
            "learning_rate": 4e-3,
            "batch_size": 256,
            "num_unroll_steps": 3,
            "num_simulations": 50,
            "replay_ratio": 0.03,
            "eval_simulations": 100,
            "evaluate_every": 1000,
        },
        "connect_four": {
            "latent": 16,
            "hidden": 128,
            "learning_rate": 8e-3,
            "batch_size": 128,
            "num_envs": 64,
            "segment_steps": 16,
            "num_simulations": 25,
            "replay_ratio": 0.04,
            "replay_min_size": 8000,
            "evaluate_every": 2000,
        },
    }

    network: Literal["auto", "vector", "board", "planes"] = "auto"
    """vector: layers on the flat observation. board: cells that moves change, and a look at every window of 4 by 4 of
    them. planes: convolutions on [C, height, width] all the way. auto: planes for pictures, board for board games,
    vector for everything else. The default for tictactoe is vector."""
    latent: int = Field(default=64, ge=1)
    """Features of a latent, of each cell where there are cells."""
    hidden: int = Field(default=64, ge=1)
    """Width of the layers between."""
    blocks: int = Field(default=1, ge=1)
    """Residual blocks of the convolutions."""
    board_features: int = Field(default=64, ge=1)
    """Features of each window of a board."""


CONFIG = MuZeroConfig


def stations(config: MuZeroConfig) -> Stations:
    """Everything wired."""
    spec = game_spec(config)
    _architecture(config, spec)  # refuses what cannot be, before anything is started
    return search_stations(config, spec, planner, partial(_learner, config, spec))


def planner(
    config: MuZeroConfig, spec: GameSpec, num_simulations: int, network: MuZeroNetwork | None = None
) -> Planner:
    """The acting side, before weights are loaded."""
    network = network or _network(config, spec)
    settings = config.search_settings(spec.players, num_simulations)
    return planner_of(config, searchable(network, device=device_for(config.search_gpus)), settings)


def _network(config: MuZeroConfig, spec: GameSpec) -> MuZeroNetwork:
    torch.set_num_threads(config.torch_threads)
    return build_network(_architecture(config, spec), seed=derive_seed(config.seed, "network"))


def _architecture(config: MuZeroConfig, spec: GameSpec) -> MuZeroArchitecture:
    shape, kind = spec.observation, config.network
    if kind == "auto":
        kind = "board" if config.is_board_game else "planes" if spec.is_picture else "vector"
    if kind != "vector" and len(shape) != 3:
        raise ValueError(f"network={kind!r} needs observations [C, height, width]; {config.env} has {list(shape)}")
    seen = (math.prod(shape),) if kind == "vector" else shape
    return MuZeroArchitecture(
        observation=seen,
        num_actions=spec.num_actions,
        latent=config.latent,
        hidden=config.hidden,
        blocks=config.blocks,
        windows=config.board_features if kind == "board" else 0,
        projection=config.hidden,
        normalise=config.normalises(seen),
        is_bytes=spec.is_bytes and len(seen) == 3,
        value_support=config.support,
        reward_support=config.support,
    )


def _learner(config: MuZeroConfig, spec: GameSpec) -> MuZeroLearner:
    settings = config.part(MuZeroSettings)
    return MuZeroLearner(partial(_network, config, spec), settings, device=device_for(config.learner_gpus))


def load_policy(config: MuZeroConfig, kept: Kept) -> EnvPolicy:
    """The policy with these weights, to act with elsewhere: it searches as in evaluations."""
    spec = game_spec(config)
    network = _network(config, spec)
    acting = planner(config, spec, config.eval_simulations, network)
    return search_policy("muzero", config, acting, network, kept)
