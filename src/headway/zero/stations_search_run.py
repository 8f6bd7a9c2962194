"""What recipes share that play by search: games, search, a replay of segments, reanalysis, evaluation.

    collect (search) --> segments --> replay --> learn --> versions
                                        ^  |
                                        |  +--> oldest targets --> reanalyze (search) --+
                                        +-----------------------------------------------+

A recipe adds a model: how it is searched with (a planner) and how it learns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
from gymnasium import spaces
from torch import nn

from headway.coordinator.checkpoint_best_weights import Kept
from headway.coordinator.roles import Stations
from headway.core.protocols import Learner
from headway.core.types import derive_seed
from headway.envs.evaluator_episodes import EpisodeEvaluator
from headway.envs.gymnasium_vector import (
    Discrete,
    Space,
    describe,
    describe_spaces,
    is_bytes,
    is_picture_of_bytes,
    legal_actions,
    reaches_255,
)
from headway.envs.policy_env_policy import EnvPolicy
from headway.replay.with_replay import WithReplay
from headway.runs.recipes_facts import Facts
from headway.zero.board_games_matches import MatchEvaluator
from headway.zero.board_games_package import GAMES, symmetries
from headway.zero.config import BOARD_GAMES, SearchConfig, load_prior
from headway.zero.planner_planning import Planner, SearchableModel
from headway.zero.replay_game_segments import GameSegments
from headway.zero.search_interface import SearchSettings
from headway.zero.self_play_planes import as_seen, is_picture, seen_shape
from headway.zero.self_play_reanalyze import SearchReanalyzer
from headway.zero.self_play_search_segments import (
    Games,
    SearchSegmentCollector,
    SelfPlay,
    VectorGames,
    search_segment_collector,
)
from headway.zero.stations_search_parts import replay_of, temperature_of


@dataclass(frozen=True, slots=True)
class GameSpec:
    """What a model and a replay have to know about a game."""

    observation: tuple[int, ...]
    num_actions: int
    players: int
    has_masks: bool
    store_as: str
    """The smallest type its observations fit into."""
    is_bytes: bool = False
    """They are brightnesses 0..255."""

    @property
    def is_picture(self) -> bool:
        return is_picture(self.observation)


def planner_of(config: SearchConfig, model: SearchableModel, settings: SearchSettings) -> Planner:
    """Collectors, reanalyzer and evaluator plan alike: with the same opinion from elsewhere, if there is one."""
    prior = None if config.prior is None else load_prior(config.prior)
    return Planner(model, settings, prior=prior, prior_weight=config.prior_weight)


AnySearch = TypeVar("AnySearch", bound=SearchConfig)
MakePlanner = Callable[[AnySearch, GameSpec, int], Planner]
"""A planner for a config, a game and a number of simulations, before weights are loaded."""


def search_stations(
    config: AnySearch, spec: GameSpec, make_planner: MakePlanner[AnySearch], make_learner: Callable[[], Learner]
) -> Stations:
    """Everything wired: one line an edge."""
    make_replay = partial(_replay, config, spec)
    is_shared = config.replay_mode == "shared"
    return Stations(
        collector=partial(_collector, config, spec, make_planner),
        learner=make_learner if is_shared else partial(WithReplay, make_learner, make_replay),
        evaluator=partial(_evaluator, config, spec, make_planner),
        reanalyzer=partial(_reanalyzer, config, spec, make_planner) if config.reanalyze_ratio else None,
        replay=make_replay if is_shared else None,
        collector_placement=replace(config.placement, num_gpus=config.search_gpus),
        learner_placement=replace(config.placement, num_gpus=config.learner_gpus),
        evaluator_placement=replace(config.placement, num_gpus=config.search_gpus),
        replay_placement=config.placement,
        most_collectors=config.collectors,
    )


def game_spec(config: SearchConfig) -> GameSpec:
    """Looked up where the run is started, once."""
    if config.is_board_game:
        game = GAMES[BOARD_GAMES[config.env]]
        return GameSpec((2, game.rows, game.columns), game.num_actions, 2, True, "uint8")
    env = config.source.vector(1)
    try:
        spec = describe(env)
        if not isinstance(spec.action, Discrete):
            raise ValueError(f"search needs discrete actions; {config.env} has {env.single_action_space}")
        _, info = env.reset(seed=0)
        has_masks = legal_actions(info, spec.action, np.zeros(1, bool)) is not None
        space = env.single_observation_space
        stored = "uint8" if is_bytes(space) or is_picture_of_bytes(space) else "float32"
        return GameSpec(seen_shape(space), spec.action.n, 1, has_masks, stored, reaches_255(space))
    finally:
        env.close()


def _games(config: SearchConfig, number: int) -> Games:
    if config.is_board_game:
        return SelfPlay(BOARD_GAMES[config.env], config.num_envs)
    seed = derive_seed(config.seed, "environment", number) % 2**31
    return VectorGames(partial(config.source.vector, config.num_envs), seed=seed)


def _collector(
    config: AnySearch, spec: GameSpec, make_planner: MakePlanner[AnySearch], number: int
) -> SearchSegmentCollector:
    return search_segment_collector(
        partial(_games, config, number),
        partial(make_planner, config, spec, config.num_simulations),
        steps=config.segment_steps,
        stream=number * config.num_envs,
        temperature=temperature_of(config),
    )


def _replay(config: SearchConfig, spec: GameSpec) -> GameSegments:
    return replay_of(
        config,
        observation=spec.observation,
        num_actions=spec.num_actions,
        store_as=spec.store_as,
        has_masks=spec.has_masks,
        symmetries=symmetries(GAMES[BOARD_GAMES[config.env]]) if config.is_board_game and config.symmetries else None,
    )


def _reanalyzer(config: AnySearch, spec: GameSpec, make_planner: MakePlanner[AnySearch]) -> SearchReanalyzer:
    return SearchReanalyzer(
        partial(make_planner, config, spec, config.num_simulations),
        max_roots=config.reanalyze_roots,
        seed=derive_seed(config.seed, "reanalyze"),
    )


def _evaluator(
    config: AnySearch, spec: GameSpec, make_planner: MakePlanner[AnySearch]
) -> EpisodeEvaluator | MatchEvaluator:
    plan = partial(make_planner, config, spec, config.eval_simulations)
    if config.is_board_game:
        opponents = dict.fromkeys(config.opponents, 1.0)
        return MatchEvaluator(plan, GAMES[BOARD_GAMES[config.env]], opponents, games=config.eval_episodes)
    return EpisodeEvaluator(
        config.source.vector,
        lambda _: plan(),
        episodes=config.eval_episodes,
        max_envs=100,
        max_steps=config.eval_max_steps,
        see=as_seen,
    )


# -- for others -------------------------------------------------------------------------------------


def search_policy(recipe: str, config: SearchConfig, planner: Planner, network: nn.Module, kept: Kept) -> EnvPolicy:
    """A planner with these weights, to act with elsewhere. Of a board it sees the stones of who is to move first."""
    planner.load(kept.weights)
    if config.is_board_game:
        game = GAMES[BOARD_GAMES[config.env]]
        observation: Space = spaces.Box(0, 1, (2, game.rows, game.columns), np.uint8)
        action: Space = spaces.Discrete(game.num_actions)
    else:
        vector = config.source.vector(1)
        observation, action = vector.single_observation_space, vector.single_action_space
        vector.close()
    return EnvPolicy(
        Facts(recipe, config.env, kept.version, kept.score),
        planner,
        network,
        describe_spaces(observation, action),
        observation,
        action,
        make_env=None if config.is_board_game else config.source.make,
        see=as_seen,
        deployable="it plays by search, which no network is by itself",
        seed=config.seed,
    )
