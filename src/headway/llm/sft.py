"""Supervised learning: a language model learns to say what an expert, or a file, has said. A warm start for RL.

    headway run sft --env lights
    headway run sft --env my_games.py:Guess --expert_share 1 --episodes 3200
    headway run sft --data conversations.jsonl --model smollm2 --learning_rate 1e-5 --data_epochs 2

One ticket is one episode: a game that its expert (or chance) plays, or a conversation of the file. Replies are trained
on, what is said to them is only read. What is learned from does not depend on the policy, so a lead costs nothing. The
run's folder is a model to begin with: `headway run grpo --model RUN`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from headway.agents import recipe as agent
from headway.agents.config import AgentConfig
from headway.coordinator.checkpoint_best_weights import Kept
from headway.coordinator.roles import Stations
from headway.core.protocols import Evaluator
from headway.llm.build_trained_models import (
    device_of,
    export_model,
    frozen_model,
    loading_device,
    offering_rows,
    ranks_on,
    trained_model,
    with_gpus,
)
from headway.llm.engine.protocol_engine import Sampling
from headway.llm.evaluator_likelihood import LikelihoodAndGames, LikelihoodEvaluator
from headway.llm.memory.check import check_memory
from headway.llm.memory.check import memory_of as memory
from headway.llm.policy_language_policy import LanguagePolicy
from headway.llm.policy_trained_language_policies import language_policy
from headway.llm.sft_config import SFTConfig
from headway.llm.sft_episodes import check_episodes, held_out_episodes, source_of
from headway.llm.sft_episodes_recorded_episodes import RecordedEpisodeCollector
from headway.llm.train.imitation_learner import ImitationLearner
from headway.llm.train.imitation_settings import ImitationSettings
from headway.ranks.rank import Rank
from headway.ranks.settings import over_ranks
from headway.runs.recipes_package import Exported

__all__ = ["CONFIG", "SFTConfig", "export", "load_policy", "memory", "stations"]

CONFIG = SFTConfig


def stations(config: SFTConfig) -> Stations:
    """Everything wired: one line an edge."""
    if config.runtime != "ray":  # there the model and the data may be elsewhere
        _check_room(config)
        check_episodes(config)
    check_memory(config)
    trainer = with_gpus(config, config.learner_gpus, config.learner_ranks)
    return Stations(
        collector=partial(_collector, config),
        learner=over_ranks(config, offering_rows(config, partial(_learner, config)), trainer, ranks_on(config)),
        evaluator=partial(_evaluator, config),
        collector_placement=config.placement,
        learner_placement=trainer,
        evaluator_placement=with_gpus(config, config.learner_gpus),
    )


def _check_room(config: SFTConfig) -> None:
    from headway.llm.model.loading_models import context_length, load_config

    room = context_length(load_config(config.model))
    if config.max_context_tokens > room:
        raise ValueError(
            f"max_context_tokens={config.max_context_tokens} is more than the {room} tokens that {config.model} reads"
        )


def _collector(config: SFTConfig, number: int) -> RecordedEpisodeCollector:
    return RecordedEpisodeCollector(
        source_of(config), max_tokens=config.max_context_tokens, on_long=config.on_long_episode
    )


def _learner(config: SFTConfig, rank: Rank) -> ImitationLearner:
    return ImitationLearner(
        partial(trained_model, config, loading_device(config, rank)),
        config.part(ImitationSettings, updates=config.settings().plan.updates),
        publish_dtype=torch.bfloat16 if device_of(config) == "cuda" else None,
        seed=config.seed,
        rank=rank,
        shard_ranks=config.ranks_of_a_model,
    )


def _evaluator(config: SFTConfig) -> Evaluator:
    torch.set_num_threads(config.torch_threads)
    likelihood = config.part(
        LikelihoodEvaluator,
        load=partial(frozen_model, config, device_of(config)),
        episodes=held_out_episodes(config),
    )
    if not config.env or not config.eval_games:
        return likelihood
    make_games = agent.stations(_as_agent(config)).evaluator
    assert make_games is not None
    return LikelihoodAndGames(likelihood, make_games())


AS_AGENT = (
    *("env", "env_options", "model", "device", "torch_threads", "seed"),
    *("system_prompt", "chat_template", "chat_template_options", "reply_prefix"),
    *("max_turn_tokens", "max_context_tokens", "microbatch_tokens", "eval_games", "eval_temperature"),
)


def _as_agent(config: SFTConfig) -> AgentConfig:
    """The settings of a run in which the model plays the same games itself."""
    said = {name: getattr(config, name) for name in AS_AGENT}
    return AgentConfig(**said, max_episode_tokens=config.max_context_tokens, memory_check="off")


def export(config: SFTConfig, kept: Kept, folder: Path, *, adapters: bool = False) -> Exported:
    """The model with these weights, or with `adapters` those alone, as transformers and peft load them."""
    what = {"environment": config.env} if config.env else {"data": config.data}
    return export_model(config, kept, folder, facts=what, adapters=adapters)


def load_policy(config: SFTConfig, kept: Kept) -> LanguagePolicy:
    """The model with these weights, to ask elsewhere."""
    sampling = Sampling(config.eval_temperature, max_tokens=config.max_turn_tokens)
    title = config.env or config.data
    return language_policy(config, kept, "sft", title, sampling, context=config.max_context_tokens)
