"""Names of prime-rl's TOML files, as rows: flat ones, and those in its groups."""

from __future__ import annotations

from collections.abc import Collection

from headway.core.types_opaque import SettingValue
from headway.tools.names.rows import KnownPath, Meaning, Theirs, by_path, only, row, whole
from headway.tools.names.rows_peer_rows import Beside, divided, said, table

BATCH, SIZE = "orchestrator.batch_size", "orchestrator.rollouts_per_example"


def _rollouts(value: SettingValue, beside: Beside) -> Meaning:
    size = beside.number("group_size", "rollouts_per_example")
    return {"tickets_per_batch": divided("batch_size", whole("batch_size", value), size, "rollouts_per_example")}


def _batch(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    rollouts, size = whole(BATCH, value), whole(SIZE, theirs.get(SIZE, 1))
    return {"tickets_per_batch": divided(BATCH, rollouts, size, SIZE), "group_size": size}


def _compiles(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return {"compile_trainer": "on" if value else "off"}


def _schedule(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    kinds = ("constant", "linear", "cosine")
    if value not in kinds:
        raise ValueError(f"allowed are {', '.join(kinds)} (lr_schedule)")
    return {"lr_schedule": value}


def _fixed(path: str, value: object, why: str) -> KnownPath:
    return KnownPath(path, f"(only {value!r})", only(value, why=why), value)


def _of_models(*, trainer: str) -> tuple[KnownPath, ...]:
    """What is said of a model, for all or for the trainer alone."""
    return (
        row(f"{trainer}model.lora.rank", "lora_rank", 16),
        row(f"{trainer}model.lora.alpha", "lora_alpha", 32.0),
        row(f"{trainer}model.compile", "compile_trainer", True, _compiles),
    )


NAMES = table(
    said("max_async_level", "max_lead", 2),
    said("rollouts_per_example", "group_size", 16),
    said("max_off_policy_steps", "max_staleness", 8),
    said("batch_size", "tickets_per_batch", 128, _rollouts),
    said("seq_len", "microbatch_tokens", 4096),
    said("lr", "learning_rate", 1e-6),
)

PATHS = by_path(
    row("model.name", "model", "smollm2"),
    row("orchestrator.model.name", "model", "smollm2"),
    row("trainer.model.name", "model", "smollm2"),
    row(BATCH, "tickets_per_batch", 128, _batch, SIZE),
    row(SIZE, "group_size", 16),
    row("orchestrator.seq_len", "microbatch_tokens", 4096),
    row("orchestrator.max_off_policy_steps", "max_staleness", 8),
    row("orchestrator.max_async_level", "max_lead", 2),
    row("orchestrator.sampling.max_tokens", "max_tokens", 512),
    row("orchestrator.sampling.temperature", "temperature", 1.0),
    row("orchestrator.sampling.top_p", "top_p", 1.0),
    row("orchestrator.eval.interval", "evaluate_every", 50),
    row("orchestrator.eval.num_examples", "eval_prompts", 64),
    row("orchestrator.eval.rollouts_per_example", "eval_samples", 4),
    row("trainer.max_async_level", "max_lead", 2),
    row("trainer.optim.lr", "learning_rate", 1e-6),
    row("trainer.optim.weight_decay", "weight_decay", 0.0),
    row("trainer.optim.betas1", "adam_beta1", 0.9),
    row("trainer.optim.betas2", "adam_beta2", 0.95),
    row("trainer.optim.max_norm", "max_grad_norm", 1.0),
    row("trainer.scheduler.type", "lr_schedule", "constant", _schedule),
    row("trainer.scheduler.warmup_steps", "warmup_updates", 10),
    row("orchestrator.buffer.online_difficulty_filtering", "filter_silent", True),
    *_of_models(trainer=""),
    *_of_models(trainer="trainer."),
    _fixed("trainer.optim.type", "adamw", "AdamW is what there is"),
    _fixed("orchestrator.sampling.min_tokens", 0, "a reply ends where its model ends it"),
    _fixed("orchestrator.advantage.type", "default", "estimator says how advantages are made"),
    _fixed("orchestrator.strict_async_level", False, "max_lead is a limit of its own"),
    row("trainer.ckpt.interval", "save_every", 50),
    row("trainer.ckpt.keep_last", "keep_checkpoints", 2),
    row("ckpt.interval", "save_every", 50),
    row("ckpt.keep_last", "keep_checkpoints", 2),
    row("wandb.project", "wandb_project", "headway"),
    row("wandb.name", "name", "first"),
)
WITHOUT_EFFECT: dict[str, str] = {
    "inference_gpu_ids": "the runtime places engines; engine_gpus says how many each has",
    "trainer_gpu_ids": "the runtime places ranks; learner_ranks and learner_gpus say how many",
    "inference.*": "vllm_options go to vLLM as they are",
    "log.*": "log_level says how much is printed",
    "trainer.log.*": "log_level says how much is printed",
    "orchestrator.log.*": "log_level says how much is printed",
    "orchestrator.client.*": "a run starts its engines itself",
    "orchestrator.sampling.seed": "seed says it all",
    "orchestrator.wandb.*": "log_samples says how many replies are kept",
    "trainer.wandb.*": "every update is recorded",
    "weight_broadcast.*": "weight_transport says how weights travel",
    "trainer.weight_broadcast.*": "weight_transport says how weights travel",
    "deployment.*": "the runtime places roles; engine_gpus, learner_gpus and learner_ranks say how many each has",
    "model.attn": "trainer_attention says how the trainer attends",
    "trainer.model.attn": "trainer_attention says how the trainer attends",
    "trainer.output_dir": "a run has a folder of its own, under its name",
    "orchestrator.output_dir": "a run has a folder of its own, under its name",
}
"""Accepted, said to have no effect when the run begins, and why. `.*` is everything below."""
