"""What recipes whose model generates are wired of, besides the model itself: its engine, and a learner linked to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch

from headway.core.protocols import Learner, Placement
from headway.core.types_opaque import JsonObject
from headway.llm.build_trained_models import (
    TrainsAModel,
    device_of,
    frozen_model,
    loading_device,
    offering_rows,
    ranks_on,
    trained_dtype,
    trained_model,
)
from headway.llm.config import LanguageModelConfig
from headway.llm.engine.protocol_engine import Engine, EngineError, Sampling
from headway.llm.train.grpo_learner_learner import GRPOLearner
from headway.llm.weights.receiver_weight_link import Intake
from headway.llm.weights.source_linked_learner import LinkedLearner
from headway.llm.weights.source_weight_source import WeightSource
from headway.ranks.rank import Rank
from headway.ranks.settings import BEFORE_THE_DEADLINE, over_ranks
from headway.runs.config import ConfigError


class SpeaksAsAModel(Protocol):
    """The settings of a recipe, as far as they concern which model is read and how it is spoken to."""

    @property
    def model(self) -> str: ...

    @property
    def chat_template(self) -> str: ...

    @property
    def chat_template_options(self) -> JsonObject: ...


class UsesAnEngine(TrainsAModel, Protocol):
    """The settings of a recipe, as far as they concern what generates or scores."""

    @property
    def engine(self) -> str: ...

    @property
    def engine_rows(self) -> int: ...

    @property
    def context_tokens(self) -> int: ...

    @property
    def recompute_cache(self) -> bool: ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...

    @property
    def vllm_python(self) -> str: ...

    @property
    def vllm_options(self) -> JsonObject: ...

    @property
    def silence_s(self) -> float: ...

    @property
    def start_deadline_s(self) -> float: ...

    @property
    def engine_restarts(self) -> int: ...


def learner_of(config: LanguageModelConfig, kind: type[GRPOLearner], placement: Placement) -> Callable[[], Learner]:
    """The factory of the learner's role: over its ranks, and with a link to the engines where that is asked for."""
    one_rank = offering_rows(config, partial(build_learner, config, kind))
    return linked(config, over_ranks(config, one_rank, placement, ranks_on(config)))


def check_model(config: SpeaksAsAModel) -> None:
    """Refuses a model or a chat template that cannot be, without loading weights, and a file that is not there before
    the default model is unpacked."""
    from headway.llm.model.loading_models import RAW, find_template, load_config, load_tokenizer, template_of_a_file

    if config.chat_template not in ("", RAW):
        template_of_a_file(config.chat_template)
    load_config(config.model)
    find_template(load_tokenizer(config.model), config.chat_template, config.chat_template_options)


def check_engine(config: UsesAnEngine) -> None:
    if config.engine == "vllm" and config.runtime != "ray":  # on other machines there may be other environments
        from headway.llm.engine.vllm_engine import check_installed, find_python

        try:
            check_installed(find_python(config.vllm_python or None))
        except EngineError as error:
            raise ConfigError(str(error)) from None
        parts = int(config.vllm_options.get("tensor_parallel_size", 1))
        if device_of(config) == "cuda" and parts > torch.cuda.device_count():
            raise ConfigError(
                f"vllm_options: tensor_parallel_size={parts} needs {parts} GPUs, and torch sees "
                f"{torch.cuda.device_count()} here"
            )


def linked(config: LanguageModelConfig, make_learner: Callable[[], Learner]) -> Callable[[], Learner]:
    """Engines come for the weights themselves, where that is asked for or quicker."""
    have_own_gpus = config.device != "cpu" and min(config.engine_gpus, config.learner_gpus) >= 1
    if config.weight_transport == "direct":
        return partial(_linked_learner, config, make_learner, only_gpu=False)
    if config.weight_transport == "auto" and config.runtime == "ray" and config.engine != "vllm" and have_own_gpus:
        return partial(_linked_learner, config, make_learner, only_gpu=True)  # the cluster may have none after all
    return make_learner


def _linked_learner(
    config: LanguageModelConfig, make_learner: Callable[[], Learner], *, only_gpu: bool
) -> LinkedLearner:
    return LinkedLearner(make_learner(), partial(_source, config), only_gpu=only_gpu)


def _source(config: LanguageModelConfig) -> WeightSource:
    host = "127.0.0.1"
    if config.runtime == "ray":
        import ray

        host = ray.util.get_node_ip_address()
    return WeightSource(host, deadline_s=BEFORE_THE_DEADLINE * config.publish_deadline_s)


def build_learner(config: LanguageModelConfig, kind: type[GRPOLearner], rank: Rank) -> GRPOLearner:
    device = loading_device(config, rank)
    return kind(
        partial(trained_model, config, device),
        config.learner_settings(),
        load_reference=partial(frozen_model, config, device, trained_dtype(config)),
        load_critic=partial(trained_model, config, device),
        publish_dtype=torch.bfloat16 if device_of(config) == "cuda" else None,
        seed=config.seed,
        rank=rank,
        shard_ranks=config.ranks_of_a_model,
    )


def build_engine(config: UsesAnEngine, sampling: Sampling) -> Engine:
    """An engine with the model's own weights, which are version 0, for requests that sample in this way."""
    return _vllm_engine(config, sampling) if config.engine == "vllm" else _transformers_engine(config)


def _vllm_engine(config: UsesAnEngine, sampling: Sampling) -> Engine:
    from headway.llm.engine.vllm_engine import VLLMEngine

    return VLLMEngine(
        config.model,
        sampling,
        context=config.context_tokens,
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


def _transformers_engine(config: UsesAnEngine) -> Engine:
    from headway.llm.engine.transformers_engine import TransformersEngine, build_decoder
    from headway.llm.model.loading_models import load_model, load_tokenizer, stop_tokens

    torch.set_num_threads(config.torch_threads)
    device = device_of(config)
    model = load_model(config.model, dtype=torch.bfloat16 if device == "cuda" else torch.float32, device=device)
    tokenizer = load_tokenizer(config.model)
    decoder = build_decoder(model, rows=config.engine_rows, context=config.context_tokens)
    return TransformersEngine(
        decoder,
        tokenizer,
        stop_tokens(config.model, tokenizer, config.stop_token_ids),
        recompute=config.recompute_cache,
        intake=Intake(decoder.device),
    )
