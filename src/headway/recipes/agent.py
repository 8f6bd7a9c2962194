"""Agents: a language model learns in environments that answer it, over many turns.

    headway run agent
    headway run agent --env guess --model runs/2026-01-02-sft
    headway run agent --env my_games.py:Guess --env_stepping "processes(4)" --max_lead 1 --redundancy 2 --dispatch free

One ticket is one game instance with a group of episodes. Each episode goes at its own pace, in a thread of its own; the
engine generates for all of them at once, and keeps what it has read between their turns. The trainer learns from
`tickets_per_batch` groups per update and publishes; the engine takes the new weights when whole episodes have drained,
or in the middle of them (`on_publish`). Every token carries the version that drew it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from headway.collect.agent_episodes import EpisodeCollector, EpisodeSettings
from headway.collect.episode_player import EpisodePlayer
from headway.collect.group_filters import load_filter
from headway.collect.held_out_games import HeldOutGames
from headway.coordinate.best_weights import Kept
from headway.coordinate.roles import Stations
from headway.core.types import derive_seed
from headway.envs.agents.interface import EnvFactory
from headway.envs.agents.loading import load_env
from headway.envs.agents.stepping import build_stepping
from headway.evaluate.agent_games import AgentEvaluator
from headway.learn.grpo.learner import GRPOLearner
from headway.llm.conversation import Conversation
from headway.llm.engine import Sampling
from headway.recipes import Exported
from headway.recipes.agent_config import AgentConfig
from headway.recipes.language_model import build_engine, check_engine, learner_of
from headway.recipes.trained_models import export_model, with_gpus

__all__ = ["CONFIG", "AgentConfig", "export", "stations"]

CONFIG = AgentConfig


def stations(
    config: AgentConfig,
    *,
    collector: type[EpisodeCollector] = EpisodeCollector,
    learner: type[GRPOLearner] = GRPOLearner,
) -> Stations:
    """Everything wired: one line an edge. `collector` and `learner` may be classes of your own, derived from these."""
    factory = load_env(config.env, config.env_options)
    game = GameFacts.of(factory)
    if config.runtime != "ray":  # there the model may be elsewhere
        build_conversation(config, game)  # a template that cannot be used is refused here, not by a role that starts
    check_engine(config)
    engine, trainer = (with_gpus(config, num) for num in (config.engine_gpus, config.learner_gpus))
    return Stations(
        collector=partial(_collector, config, factory, game, collector),
        learner=learner_of(config, learner, trainer),
        evaluator=partial(_evaluator, config, factory, game),
        collector_placement=engine,
        learner_placement=trainer,
        evaluator_placement=engine,
    )


@dataclass(frozen=True, slots=True)
class GameFacts:
    """What an environment says of itself before it is played."""

    max_turns: int
    system_prompt: str = ""
    reply_prefix: str = ""
    tools: Sequence[Any] = ()

    @classmethod
    def of(cls, factory: EnvFactory) -> GameFacts:
        env = factory()
        facts = cls(
            env.max_turns,
            str(getattr(env, "system_prompt", "") or ""),
            str(getattr(env, "reply_prefix", "") or ""),
            tuple(getattr(env, "tools", ()) or ()),
        )
        getattr(env, "close", lambda: None)()
        return facts


def title_of(env: str) -> str:
    """What the game is called in logs: its name, without the folder that its file is in."""
    return env.rpartition("/")[2]


def build_conversation(config: AgentConfig, game: GameFacts) -> Conversation:
    """How what is said in the game becomes tokens of the model."""
    from headway.llm.models import load_tokenizer

    return Conversation(
        load_tokenizer(config.model),
        name=config.model,
        chat_template=config.chat_template,
        chat_template_options=config.chat_template_options,
        system_prompt=config.system_prompt or game.system_prompt,
        tools=game.tools,
        reply_prefix=game.reply_prefix if config.reply_prefix is None else config.reply_prefix,
    )


def build_player(config: AgentConfig, factory: EnvFactory, game: GameFacts, sampling: Sampling) -> EpisodePlayer:
    """Engine, environments and threads of one role, where it runs."""
    conversation = build_conversation(config, game)
    ends = () if conversation.end_token is None else (conversation.end_token,)
    with_ends = config.model_copy(update={"stop_token_ids": tuple(dict.fromkeys((*config.stop_token_ids, *ends)))})
    stepping = build_stepping(
        config.env_stepping, factory, deadlines=config.step_deadlines, max_under_way=config.max_steps_under_way
    )
    engine = build_engine(with_ends, sampling)
    return EpisodePlayer(engine, stepping, conversation, attempts=config.env_attempts)


def _collector(
    config: AgentConfig, factory: EnvFactory, game: GameFacts, kind: type[EpisodeCollector], number: int
) -> EpisodeCollector:
    sampling = Sampling(config.temperature, config.top_k, config.top_p, config.max_turn_tokens, stop=config.stop)
    settings = EpisodeSettings(
        name=title_of(config.env),
        limits=config.limits(game.max_turns),
        sampling=sampling,
        group_size=config.group_size,
        redundancy=config.redundancy,
        min_group=config.min_group,
        held_out=config.share_held_out,
        filter_silent=config.filter_silent,
        compares_turns=config.compares_turns,
        filter=None if config.filter is None else load_filter(config.filter),
        shown=Fraction(config.log_samples, config.tickets_per_batch),
    )
    return kind(partial(build_player, config, factory, game, sampling), settings)


def _evaluator(config: AgentConfig, factory: EnvFactory, game: GameFacts) -> AgentEvaluator:
    sampling = Sampling(
        config.eval_temperature, top_p=config.eval_top_p, max_tokens=config.max_turn_tokens, stop=config.stop
    )
    games = partial(
        HeldOutGames,
        partial(build_player, config, factory, game, sampling),
        name=title_of(config.env),
        seed=derive_seed(config.seed, "games"),
        games=config.eval_games,
        episodes=config.eval_samples,
        sampling=sampling,
        limits=config.limits(game.max_turns),
        share=config.share_held_out,
    )
    return AgentEvaluator(games, num_shown=config.log_eval_samples)


# -- for others -------------------------------------------------------------------------------------


def export(config: AgentConfig, kept: Kept, folder: Path, *, adapters: bool = False) -> Exported:
    """The model with these weights, or with `adapters` those alone, as transformers and peft load them."""
    return export_model(config, kept, folder, facts={"environment": config.env}, adapters=adapters)
