"""GRPO and its relatives: a language model learns to answer questions that a rule can check.

    headway run grpo --task larger_than
    headway run grpo --task arithmetic --max_lead 1 --correction token_is
    headway run grpo --model path/to/a/model --task jsonl:prompts.jsonl --task_options "{reward: rewards.py:score}"

One ticket is one prompt with a group of replies. The engine generates for up to `lanes` tickets at once; the trainer
learns from `tickets_per_batch` groups per update and publishes; the engine takes the new weights when it has drained,
or in the middle of its replies (`on_publish`). Every token carries the version that made it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path

import torch

from headway.collect.groups import GroupCollector, GroupSettings
from headway.coordinate.best_weights import Kept
from headway.coordinate.roles import Stations
from headway.core.protocols import Learner
from headway.evaluate.answers import AnswerEvaluator
from headway.learn.grpo.learner import GRPOLearner
from headway.learn.grpo.settings import GRPOSettings
from headway.learn.rank import Rank
from headway.llm.engine import Engine, EngineError, Sampling
from headway.llm.rewards import overlong_penalty
from headway.llm.tasks import (
    Generated,
    Task,
)
from headway.publish.linked_learner import LinkedLearner
from headway.publish.weight_link import Intake
from headway.publish.weight_source import WeightSource
from headway.recipes import Exported
from headway.recipes.config import ConfigError
from headway.recipes.grpo_config import GRPOConfig
from headway.recipes.grpo_prompts import Encoder, build_task, fitting_task
from headway.recipes.learner_ranks import BEFORE_THE_DEADLINE, over_ranks
from headway.recipes.trained_models import device_of, export_model, frozen_model, ranks_on, trained_model, with_gpus

CONFIG = GRPOConfig


def stations(
    config: GRPOConfig, *, collector: type[GroupCollector] = GroupCollector, learner: type[GRPOLearner] = GRPOLearner
) -> Stations:
    """Everything wired: one line an edge. `collector` and `learner` may be classes of your own, derived from these."""
    if config.runtime == "ray":  # the model may be elsewhere
        build_task(config)  # what cannot be is said here, not by a role that starts
    else:
        _check_model(config)
        fitting_task(config, say=_say)
    _check_engine(config)
    engine, trainer = (with_gpus(config, num) for num in (config.engine_gpus, config.learner_gpus))
    return Stations(
        collector=partial(_collector, config, collector),
        learner=_linked(config, over_ranks(config, partial(_learner, config, learner), trainer, ranks_on(config))),
        evaluator=partial(_evaluator, config),
        collector_placement=engine,
        learner_placement=trainer,
        evaluator_placement=engine,
    )


def _say(line: str) -> None:
    print(f"headway: {line}", file=sys.stderr, flush=True)


def _task_of_a_role(config: GRPOConfig) -> tuple[Task, int]:
    was_checked = config.on_long_prompt == "error" and config.runtime != "ray"
    return (build_task(config), 0) if was_checked else fitting_task(config)


def _check_model(config: GRPOConfig) -> None:
    from headway.llm.models import find_template, load_config, load_tokenizer

    load_config(config.model)
    find_template(load_tokenizer(config.model), config.chat_template, config.chat_template_options)


def _check_engine(config: GRPOConfig) -> None:
    if config.engine == "vllm" and config.runtime != "ray":  # on other machines there may be other environments
        from headway.llm.vllm_engine import check_installed, find_python

        try:
            check_installed(find_python(config.vllm_python or None))
        except EngineError as error:
            raise ConfigError(str(error)) from None


def _collector(config: GRPOConfig, kind: type[GroupCollector], number: int) -> GroupCollector:
    penalty = None
    if config.overlong_tokens:
        penalty = partial(overlong_penalty, max_tokens=config.max_tokens, interval=config.overlong_tokens)
    task, left_out = _task_of_a_role(config)
    settings = GroupSettings(
        size=config.group_size,
        sampling=_sampling(config),
        filter_silent=config.filter_silent,
        length_penalty=penalty,
        deadline_s=config.generation_deadline_s,
        on_deadline=config.on_generation_deadline,
        drop_long=config.on_long_prompt == "drop",
        shown=Fraction(config.log_samples, config.tickets_per_batch),
        left_out=left_out,
        system_prompt=config.system_prompt,
    )
    return kind(partial(build_engine, config, settings.sampling), task, Encoder(config), settings)


def _sampling(config: GRPOConfig) -> Sampling:
    return Sampling(config.temperature, config.top_k, config.top_p, config.max_tokens, stop=config.stop)


def _eval_sampling(config: GRPOConfig) -> Sampling:
    return Sampling(config.eval_temperature, top_p=config.eval_top_p, max_tokens=config.max_tokens, stop=config.stop)


def _linked(config: GRPOConfig, make_learner: Callable[[], Learner]) -> Callable[[], Learner]:
    """Engines come for the weights themselves, where that is asked for or quicker."""
    have_own_gpus = config.device != "cpu" and min(config.engine_gpus, config.learner_gpus) >= 1
    if config.weight_transport == "direct":
        return partial(_linked_learner, config, make_learner, only_gpu=False)
    if config.weight_transport == "auto" and config.runtime == "ray" and config.engine != "vllm" and have_own_gpus:
        return partial(_linked_learner, config, make_learner, only_gpu=True)  # the cluster may have none after all
    return make_learner


def _linked_learner(config: GRPOConfig, make_learner: Callable[[], Learner], *, only_gpu: bool) -> LinkedLearner:
    return LinkedLearner(make_learner(), partial(_source, config), only_gpu=only_gpu)


def _source(config: GRPOConfig) -> WeightSource:
    host = "127.0.0.1"
    if config.runtime == "ray":
        import ray

        host = ray.util.get_node_ip_address()
    return WeightSource(host, deadline_s=BEFORE_THE_DEADLINE * config.publish_deadline_s)


def _learner(config: GRPOConfig, kind: type[GRPOLearner], rank: Rank) -> GRPOLearner:
    device = str(rank.device) if rank.device.type == "cuda" else device_of(config)
    load = partial(trained_model, config, device)
    return kind(
        load,
        config.part(GRPOSettings, updates=config.settings().plan.updates),
        load_reference=partial(frozen_model, config, device),
        load_critic=load,
        publish_dtype=torch.bfloat16 if device_of(config) == "cuda" else None,
        seed=config.seed,
        rank=rank,
    )


def _evaluator(config: GRPOConfig) -> AnswerEvaluator:
    sampling = _eval_sampling(config)
    task = _task_of_a_role(config)[0]
    evaluator = AnswerEvaluator(
        partial(build_engine, config, sampling),
        task,
        Encoder(config),
        sampling=sampling,
        prompts=config.eval_prompts,
        samples=config.eval_samples,
        ks=sorted(set(config.eval_ks) or {1, config.eval_samples}),
        passes_at=config.eval_passes_at,
        drop_long=config.on_long_prompt == "drop",
        num_shown=config.log_eval_samples,
        system_prompt=config.system_prompt,
    )
    if isinstance(task.held_out, Generated) and evaluator.num_prompts < config.eval_prompts:
        _say(
            f"task {config.task} holds out {evaluator.num_prompts} different prompts, fewer than "
            f"eval_prompts={config.eval_prompts}: evaluations ask those"
        )
    return evaluator


def build_engine(config: GRPOConfig, sampling: Sampling) -> Engine:
    """An engine with the model's own weights, which are version 0, for requests that sample in this way."""
    return _vllm_engine(config, sampling) if config.engine == "vllm" else _transformers_engine(config)


def _vllm_engine(config: GRPOConfig, sampling: Sampling) -> Engine:
    from headway.llm.vllm_engine import VLLMEngine

    return VLLMEngine(
        config.model,
        sampling,
        context=config.max_prompt_tokens + config.max_tokens,
        rows=config.engine_rows,
        device=device_of(config),
        threads=config.torch_threads,
        python=config.vllm_python or None,
        options=config.vllm_options,
        deadline_s=config.silence_s,
        start_s=5 / 6 * config.start_deadline_s,  # before the coordinator gives up: it can say what went wrong
        restarts=config.engine_restarts,
        recompute=config.recompute_cache,
        stop_token_ids=config.stop_token_ids,
        intake=Intake("cpu"),
    )


def _transformers_engine(config: GRPOConfig) -> Engine:
    from headway.llm.models import load_model, load_tokenizer, stop_tokens
    from headway.llm.transformers_engine import TransformersEngine, build_decoder

    torch.set_num_threads(config.torch_threads)
    device = device_of(config)
    model = load_model(config.model, dtype=torch.bfloat16 if device == "cuda" else torch.float32, device=device)
    tokenizer = load_tokenizer(config.model)
    decoder = build_decoder(model, rows=config.engine_rows, context=config.max_prompt_tokens + config.max_tokens)
    return TransformersEngine(
        decoder,
        tokenizer,
        stop_tokens(config.model, tokenizer, config.stop_token_ids),
        recompute=config.recompute_cache,
        intake=Intake(decoder.device),
    )


# -- for others -------------------------------------------------------------------------------------


def export(config: GRPOConfig, kept: Kept, folder: Path, *, adapters: bool = False) -> Exported:
    """The model with these weights, or with `adapters` those alone, as transformers and peft load them."""
    return export_model(config, kept, folder, facts={"task": config.task}, adapters=adapters)
