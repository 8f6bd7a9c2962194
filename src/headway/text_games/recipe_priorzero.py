"""PriorZero: story games played by searching in a world model, with the opinion of a language model at the root.

    headway run priorzero
    headway run priorzero --env_id zork1.z5 --quick_test
    headway run priorzero --env textworld:coin --model smollm2 --prior frozen --wall_s 600
    headway run priorzero --prior none

    collect (ask the prior, search, act) --> segments --> replay --> world model's learner --> versions
                                                 |
                                                 +--> every n-th --> prior's learner --> versions of its own

Two learners and one kind of collector: the world model learns from a replay, by MuZero's losses; the language model
from every `prior_every`-th segment, by imitation of the search or by PPO. Each has its own lead and its own versions.

Knobs known from PriorZero and LightZero are translated: off_policy_degree, enable_async_eval, wm_weight,
collector_env_num and so on (`headway explain`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from headway.coordinator.roles import LineStations, Stations
from headway.core.protocols import Placement
from headway.core.types import derive_seed
from headway.llm.build_language_model import build_engine, check_engine, check_model
from headway.llm.build_trained_models import device_of, frozen_model, trained_model, with_gpus
from headway.llm.engine.protocol_engine import Sampling
from headway.llm.model.loading_models import load_tokenizer
from headway.ranks.rank import device_for
from headway.replay.with_replay import WithReplay
from headway.text_games.action_prior import ActionPrior
from headway.text_games.action_prior_opinion_cache import OpinionCache
from headway.text_games.collector import TextSegmentCollector
from headway.text_games.config import MADE, PriorZeroConfig
from headway.text_games.evaluator_played_stories import PlayedStories
from headway.text_games.evaluator_text_games import StoryEvaluator
from headway.text_games.guidance import LINE, Guide, PriorOfActions
from headway.text_games.guidance_repeatable_prior import RepeatablePrior
from headway.text_games.loading import load_story
from headway.text_games.prior_learner_learner import PriorLearner
from headway.text_games.prior_learner_settings import PriorSettings
from headway.text_games.prompts import situation_prompt
from headway.text_games.prompts_action_chat import ActionChat
from headway.text_games.recipe_story_models import check_story, with_model
from headway.text_games.story_interface import Scene, StoryFactory
from headway.text_games.textzero_inference import searchable
from headway.text_games.textzero_learner import TextZeroLearner, TextZeroSettings
from headway.text_games.textzero_network import TextZeroNetwork
from headway.text_games.vector_story_games import StoryGames
from headway.zero.planner_planning import Planner
from headway.zero.planner_prior_weight import Mode
from headway.zero.replay_game_segments import GameSegments
from headway.zero.search_interface import SearchSettings
from headway.zero.self_play_reanalyze import SearchReanalyzer
from headway.zero.stations_search_parts import replay_of, temperature_of

__all__ = ["CONFIG", "PriorZeroConfig", "stations"]

CONFIG = PriorZeroConfig

MakePrior = Callable[[PriorZeroConfig], PriorOfActions]
MakeGuide = Callable[[Mode], Guide]


def stations(config: PriorZeroConfig, *, make_prior: MakePrior | None = None) -> Stations:
    """Everything wired: one line an edge. `make_prior` makes somebody else to ask in the language model's place."""
    check_story(config)
    if config.has_prior and make_prior is None:
        check_engine(config)
        _check_model(config)
    ask = partial(make_prior, config) if make_prior else partial(action_prior, config, OpinionCache(config.prior_cache))
    guide = partial(_guide, config, ask if config.has_prior else None)
    make_replay, make_learner = partial(_replay, config), partial(_learner, config)
    is_shared = config.replay_mode == "shared"
    return Stations(
        collector=partial(_collector, config, guide),
        learner=make_learner if is_shared else partial(WithReplay, make_learner, make_replay),
        evaluator=partial(_evaluator, config, guide),
        reanalyzer=partial(_reanalyzer, config) if config.reanalyze_ratio else None,
        replay=make_replay if is_shared else None,
        collector_placement=_playing(config),
        learner_placement=replace(config.placement, num_gpus=config.learner_gpus),
        evaluator_placement=_playing(config),
        replay_placement=config.placement,
        most_collectors=config.collectors,
        lines={LINE: _prior_line(config)} if config.is_learned else {},
    )


def _check_model(config: PriorZeroConfig) -> None:
    """A language model that cannot be is refused before there is a run, and not by a role that starts."""
    if config.runtime == "ray":  # there the model may be elsewhere, and so may a GPU
        return
    device_of(config)
    if config.model != MADE:
        check_model(config)


def _prior_line(config: PriorZeroConfig) -> LineStations:
    return LineStations(partial(_prior_learner, config), learner_placement=with_gpus(config, config.prior_learner_gpus))


def _playing(config: PriorZeroConfig) -> Placement:
    """Of whoever searches and asks: on one GPU, if either wants one."""
    asking = with_gpus(config, config.engine_gpus).num_gpus if config.has_prior else 0.0
    return replace(config.placement, num_gpus=max(config.search_gpus, asking))


# -- games --------------------------------------------------------------------------------------------


def _story(config: PriorZeroConfig) -> StoryFactory:
    """One for each role: its games share what was made and what was found out about states."""
    return load_story(config.env, config.env_options)


def _games(config: PriorZeroConfig, story: StoryFactory, num: int, max_steps: int, seed: int) -> StoryGames:
    return StoryGames(
        story,
        num,
        seed=seed,
        shape=config.shape,
        max_steps=max_steps,
        history_steps=config.history_steps,
    )


def written_prompt(scene: Scene, objective: str, history: Sequence[tuple[str, str]]) -> str:
    """What the language model is asked about a scene."""
    return situation_prompt(objective, scene, history)


# -- the world model ----------------------------------------------------------------------------------


def planner(config: PriorZeroConfig, num_simulations: int) -> Planner:
    """The searching side, before weights are loaded."""
    settings = config.part(SearchSettings, num_simulations=num_simulations, discount=config.gamma, players=1)
    model = searchable(
        _network(config),
        device_for(config.search_gpus),
        context_steps=config.context_steps,
        least_chance=config.least_chance,
    )
    return Planner(model, settings)


def _network(config: PriorZeroConfig) -> TextZeroNetwork:
    torch.set_num_threads(config.torch_threads)
    return TextZeroNetwork(config.architecture(), seed=derive_seed(config.seed, "network"))


def _learner(config: PriorZeroConfig) -> TextZeroLearner:
    settings = config.part(TextZeroSettings)
    return TextZeroLearner(partial(_network, config), settings, device=device_for(config.learner_gpus))


def _replay(config: PriorZeroConfig) -> GameSegments:
    return replay_of(
        config,
        observation=(config.shape.length,),
        num_actions=config.slots,
        store_as=np.int32,
        has_masks=True,
        has_priors=config.has_prior,
    )


def _reanalyzer(config: PriorZeroConfig) -> SearchReanalyzer:
    return SearchReanalyzer(
        partial(planner, config, config.num_simulations),
        max_roots=config.reanalyze_roots,
        prior_weight=config.weight_of_prior() if config.has_prior else None,
        seed=derive_seed(config.seed, "reanalyze"),
    )


# -- the prior ----------------------------------------------------------------------------------------


def action_prior(config: PriorZeroConfig, opinions: OpinionCache | None = None) -> PriorOfActions:
    """The language model as one that is asked about actions, with its own weights: version 0.

    `opinions` are those of the whole run, as far as it is in one process: who plays and who evaluates ask alike.

    A pinned run on CPUs asks so that the same question gets the same bits; elsewhere what is asked together is scored
    together, which is quicker.
    """
    config = with_model(config)
    chat = ActionChat(
        load_tokenizer(config.model),
        chat_template=config.chat_template,
        chat_template_options=config.chat_template_options,
        system_prompt=config.system_prompt,
    )
    is_repeatable = config.settings().is_pinned and device_of(config) == "cpu"
    prior = ActionPrior(
        build_engine(config, Sampling()),
        chat,
        temperature=config.prior_temperature,
        floor=config.prior_floor,
        cache_size=0 if is_repeatable else config.prior_cache,
        cache=None if is_repeatable else opinions,
        deadline_s=config.prior_deadline_s,
    )
    return RepeatablePrior(prior, size=config.prior_cache) if is_repeatable else prior


def _prior_learner(config: PriorZeroConfig) -> PriorLearner:
    config = with_model(config)
    torch.set_num_threads(config.torch_threads)
    device = device_of(config)
    return PriorLearner(
        partial(trained_model, config, device),
        config.part(PriorSettings),
        load_reference=partial(frozen_model, config, device),
        publish_dtype=torch.bfloat16 if device == "cuda" else None,
        seed=derive_seed(config.seed, LINE),
    )


def _guide(config: PriorZeroConfig, make_prior: Callable[[], PriorOfActions] | None, mode: Mode) -> Guide:
    return Guide(make_prior, written_prompt, weight=config.weight_of_prior(), mode=mode)


# -- who plays ----------------------------------------------------------------------------------------


def _collector(config: PriorZeroConfig, make_guide: MakeGuide, number: int) -> TextSegmentCollector:
    seed = derive_seed(config.seed, "environment", number)
    return TextSegmentCollector(
        partial(_games, config, _story(config), config.num_envs, config.max_episode_steps, seed),
        partial(planner, config, config.num_simulations),
        partial(make_guide, config.collect_mode),
        steps=config.segment_steps,
        stream=number * config.num_envs,
        temperature=temperature_of(config),
        keeps_tokens=config.is_learned,
    )


def _evaluator(config: PriorZeroConfig, make_guide: MakeGuide) -> StoryEvaluator:
    player = partial(
        PlayedStories,
        partial(
            _games, config, _story(config), config.eval_episodes, config.eval_max_steps or config.max_episode_steps
        ),
        partial(planner, config, config.eval_simulations),
        partial(make_guide, "both"),
        temperature=config.eval_temperature,
    )
    return StoryEvaluator(player, mode=config.eval_mode, modes=None if config.eval_all_modes else (config.eval_mode,))


def seen_by_an_audience(
    config: PriorZeroConfig, mode: Mode, seed: int, max_moves: int = 0
) -> tuple[StoryGames, Planner, Guide]:
    """One game, and who plays it, for somebody who looks on; `max_moves` 0: as many as in an evaluation."""
    limit = max_moves or config.eval_max_steps or config.max_episode_steps
    make_prior = partial(action_prior, config) if config.has_prior else None
    return (
        _games(config, _story(config), 1, limit, seed),
        planner(config, config.eval_simulations),
        _guide(config, make_prior, mode),
    )
