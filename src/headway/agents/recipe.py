"""Agents: a language model learns in environments that answer it, over many turns.

    headway run agent
    headway run agent --env guess --model runs/2026-01-02-sft
    headway run agent --env my_games.py:Guess --env_stepping "processes(4)" --max_lead 1 --redundancy 2 --dispatch free
    headway run agent --agent my_agent.py:solve --model smollm2

One ticket is one game instance with a group of episodes. Each episode goes at its own pace, in a thread of its own; the
engine generates for all of them at once, and keeps what it has read between their turns. The trainer learns from
`tickets_per_batch` groups per update and publishes; the engine takes the new weights when whole episodes have drained,
or in the middle of them (`on_publish`). Every token carries the version that drew it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path

from headway.agents.collector_agent_episodes import EpisodeCollector, EpisodeSettings
from headway.agents.collector_group_filters import load_filter
from headway.agents.config import AgentConfig
from headway.agents.endpoint import MAX_REPLIES
from headway.agents.endpoint_player import EndpointPlayer
from headway.agents.endpoint_player_endpoint_episodes import load_agent
from headway.agents.endpoint_tokens import ChatTokens
from headway.agents.env import EnvFactory, EnvFacts
from headway.agents.episodes_episode_loop import EpisodeLimits
from headway.agents.episodes_episode_player import EpisodePlayer, GroupPlayer
from headway.agents.evaluator_agent_games import AgentEvaluator
from headway.agents.evaluator_held_out_games import HeldOutGames
from headway.agents.loading import load_env
from headway.agents.stepping import build_stepping, env_facts
from headway.coordinator.checkpoint_best_weights import Kept
from headway.coordinator.roles import Stations
from headway.core.types import derive_seed
from headway.llm.build_language_model import build_engine, check_engine, learner_of
from headway.llm.build_trained_models import export_model, with_gpus
from headway.llm.engine.protocol_engine import Sampling
from headway.llm.memory.check import check_memory
from headway.llm.memory.check import memory_of as memory
from headway.llm.model.conversation import Conversation
from headway.llm.policy_language_policy import LanguagePolicy
from headway.llm.policy_trained_language_policies import language_policy
from headway.llm.train.grpo_learner_learner import GRPOLearner
from headway.ranks.settings import BEFORE_THE_DEADLINE
from headway.runs.recipes_package import Exported

__all__ = ["CONFIG", "AgentConfig", "export", "load_policy", "memory", "stations"]

CONFIG = AgentConfig


def stations(
    config: AgentConfig,
    *,
    collector: type[EpisodeCollector] = EpisodeCollector,
    learner: type[GRPOLearner] = GRPOLearner,
) -> Stations:
    """Everything wired: one line an edge. `collector` and `learner` may be classes of your own, derived from these."""
    played = _agent_that_plays(config) if config.agent else _game_that_is_played(config)
    check_engine(config)
    check_memory(config)
    engine = with_gpus(config, config.engine_gpus)
    trainer = with_gpus(config, config.learner_gpus, config.learner_ranks)
    return Stations(
        collector=partial(_collector, config, played, collector),
        learner=learner_of(config, learner, trainer),
        evaluator=partial(_evaluator, config, played),
        collector_placement=engine,
        learner_placement=trainer,
        evaluator_placement=engine,
    )


@dataclass(frozen=True, slots=True)
class Played:
    """What episodes are made of: an environment, or a user's agent."""

    title: str
    limits: EpisodeLimits
    make_player: Callable[[Sampling], GroupPlayer]


def _game_that_is_played(config: AgentConfig) -> Played:
    factory = load_env(config.env, config.env_options)
    game = env_facts(config.env_stepping, factory, config.step_deadlines)
    if config.runtime != "ray":  # there the model may be elsewhere
        build_conversation(config, game)  # a template that cannot be used is refused here, not by a role that starts
    limits = config.limits(game.max_turns)
    return Played(title_of(config.env), limits, partial(build_player, config, factory, game))


def _agent_that_plays(config: AgentConfig) -> Played:
    if config.runtime != "ray":
        build_chat_tokens(config)
    limits = config.limits(MAX_REPLIES)
    if limits.deadline_s is None:  # an agent that hangs must be noticed before the collector is given up
        limits = replace(limits, deadline_s=BEFORE_THE_DEADLINE * config.collect_deadline_s)
    return Played(title_of(config.agent), limits, partial(build_endpoint_player, config))


def title_of(env: str) -> str:
    """What the game is called in logs: its name, without the folder that its file is in."""
    return env.rpartition("/")[2]


def build_conversation(config: AgentConfig, game: EnvFacts) -> Conversation:
    """How what is said in the game becomes tokens of the model."""
    from headway.llm.model.loading_models import load_tokenizer

    return Conversation(
        load_tokenizer(config.model),
        name=config.model,
        chat_template=config.chat_template,
        chat_template_options=config.chat_template_options,
        system_prompt=config.system_prompt or game.system_prompt,
        tools=game.tools,
        reply_prefix=game.reply_prefix if config.reply_prefix is None else config.reply_prefix,
    )


def build_player(config: AgentConfig, factory: EnvFactory, game: EnvFacts, sampling: Sampling) -> EpisodePlayer:
    """Engine, environments and threads of one role, where it runs."""
    conversation = build_conversation(config, game)
    stepping = build_stepping(
        config.env_stepping, factory, deadlines=config.step_deadlines, max_under_way=config.max_steps_under_way
    )
    engine = build_engine(_ending_at(config, conversation.end_token), sampling)
    return EpisodePlayer(engine, stepping, conversation, attempts=config.env_attempts)


def build_chat_tokens(config: AgentConfig) -> ChatTokens:
    """How what an agent says becomes tokens of the model."""
    from headway.llm.model.loading_models import load_tokenizer

    return ChatTokens(
        load_tokenizer(config.model),
        name=config.model,
        chat_template=config.chat_template,
        chat_template_options=config.chat_template_options,
    )


def build_endpoint_player(config: AgentConfig, sampling: Sampling) -> EndpointPlayer:
    """Engine, endpoint and threads of one role whose agent has its own loop, where it runs."""
    tokens = build_chat_tokens(config)
    engine = build_engine(_ending_at(config, tokens.end_token), sampling)
    agent, name = load_agent(config.agent), title_of(config.agent)
    return EndpointPlayer(engine, tokens, agent, name=name, attempts=config.env_attempts)


def _ending_at(config: AgentConfig, end: int | None) -> AgentConfig:
    """The same settings, with one more token that ends a reply."""
    ends = () if end is None else (end,)
    return config.model_copy(update={"stop_token_ids": tuple(dict.fromkeys((*config.stop_token_ids, *ends)))})


def _collector(config: AgentConfig, played: Played, kind: type[EpisodeCollector], number: int) -> EpisodeCollector:
    sampling = Sampling(config.temperature, config.top_k, config.top_p, config.max_turn_tokens, stop=config.stop)
    settings = EpisodeSettings(
        name=played.title,
        limits=played.limits,
        sampling=sampling,
        group_size=config.group_size,
        redundancy=config.redundancy,
        min_group=config.min_group,
        held_out=config.share_held_out,
        filter_silent=config.filter_silent,
        compared=config.compared,
        filter=None if config.filter is None else load_filter(config.filter),
        shown=Fraction(config.log_samples, config.tickets_per_batch),
    )
    return kind(partial(played.make_player, sampling), settings)


def _eval_sampling(config: AgentConfig) -> Sampling:
    return Sampling(
        config.eval_temperature, top_p=config.eval_top_p, max_tokens=config.max_turn_tokens, stop=config.stop
    )


def _evaluator(config: AgentConfig, played: Played) -> AgentEvaluator:
    sampling = _eval_sampling(config)
    games = partial(
        HeldOutGames,
        partial(played.make_player, sampling),
        name=played.title,
        seed=derive_seed(config.seed, "games"),
        games=config.eval_games,
        episodes=config.eval_samples,
        sampling=sampling,
        limits=played.limits,
        share=None if config.agent else config.share_held_out,
    )
    return AgentEvaluator(games, num_shown=config.log_eval_samples)


# -- for others -------------------------------------------------------------------------------------


def export(config: AgentConfig, kept: Kept, folder: Path, *, adapters: bool = False) -> Exported:
    """The model with these weights, or with `adapters` those alone, as transformers and peft load them."""
    return export_model(config, kept, folder, facts={"environment": config.agent or config.env}, adapters=adapters)


def load_policy(config: AgentConfig, kept: Kept) -> LanguagePolicy:
    """The model with these weights, to ask elsewhere, with the system prompt of its game."""
    title, sampling = config.agent or config.env, _eval_sampling(config)
    conversation = None
    if not config.agent:
        factory = load_env(config.env, config.env_options)
        conversation = build_conversation(config, env_facts(config.env_stepping, factory, config.step_deadlines))
    return language_policy(
        config, kept, "agent", title, sampling, context=config.max_context_tokens, conversation=conversation
    )
