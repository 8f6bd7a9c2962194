"""Names of TRL's GRPOConfig, as rows. Those that other systems have too, with other meanings, are in `flat.py`."""

from __future__ import annotations

from headway.core.opaque import SettingValue
from headway.names.peer_rows import Beside, divided, must_be, nothing, number, said, table
from headway.names.rows import Meaning

GENERATION = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation")
VLLM = {"vllm_gpu_memory_utilization": "gpu_memory_utilization", "vllm_tensor_parallel_size": "tensor_parallel_size"}


def _generated(value: SettingValue, beside: Beside) -> Meaning:
    """Completions of one generation, in groups; those of several optimizer steps are several minibatches."""
    per_device, accumulated = _count(beside, GENERATION[0], 8), _count(beside, GENERATION[1], 1)
    steps = _count(beside, GENERATION[2], accumulated)
    completions = per_device * steps
    if beside.is_said("generation_batch_size"):
        completions = beside.number("generation_batch_size")
    size = beside.number("group_size", "num_generations")
    minibatches = divided("the completions of a generation", completions, per_device * accumulated, "an optimizer step")
    return {
        "tickets_per_batch": divided("the completions of a generation", completions, size, "num_generations"),
        "num_minibatches": minibatches,
    }


def _count(beside: Beside, name: str, default: int) -> int:
    return beside.number(name) if beside.is_said(name) else default


def _epsilon(value: SettingValue, beside: Beside) -> Meaning:
    return {"clip_low": value} if beside.is_said("epsilon_high") else {"clip_low": value, "clip_high": value}


def _loss(value: SettingValue, beside: Beside) -> Meaning:
    modes = {"grpo": "seq-mean-token-mean", "dapo": "token-mean", "bnpo": "token-mean"}
    modes["dr_grpo"] = "seq-mean-token-sum-norm"
    if value == "cispo":
        return {"correction": "cispo"}
    if value not in modes:
        raise ValueError(
            f"loss_type={value!r}: allowed are {', '.join(modes)} (loss_aggregation) and cispo (correction)"
        )
    return {"loss_aggregation": modes[str(value)]}


def _scale(value: SettingValue, beside: Beside) -> Meaning:
    if value in (True, "group"):
        return {"estimator": "grpo"}
    if value in (False, "none"):
        return {"estimator": "dr_grpo"}
    raise ValueError(f"scale_rewards={value!r}: group (estimator grpo) and none (dr_grpo) are possible here")


def _level(value: SettingValue, beside: Beside) -> Meaning:
    if value == "token":
        return "ratios are those of tokens, unless a correction says otherwise"
    if value == "sequence":
        return {"correction": "gspo"}
    raise ValueError(f"importance_sampling_level={value!r}: token and sequence (correction gspo) are possible here")


def _epochs(value: SettingValue, beside: Beside) -> Meaning:
    found: dict[str, object] = {"data_epochs": number("num_train_epochs", value)}
    if not beside.is_said("max_steps", "updates"):
        found["updates"] = None
    return found


def _schedule(value: SettingValue, beside: Beside) -> Meaning:
    kinds = {"linear": "linear", "cosine": "cosine", "constant": "constant", "constant_with_warmup": "constant"}
    if value not in kinds:
        raise ValueError(f"lr_scheduler_type={value!r}: allowed are {', '.join(kinds)}")
    return {"lr_schedule": kinds[str(value)]}


def _warmup(value: SettingValue, beside: Beside) -> Meaning:
    updates = beside.number("updates", "max_steps")
    return {"warmup_updates": round(number("warmup_ratio", value) * updates)}


def _engine(value: SettingValue, beside: Beside) -> Meaning:
    return {"engine": "vllm" if value else "transformers"}


def _vllm_options(value: SettingValue, beside: Beside) -> Meaning:
    return {"vllm_options": {ours: beside.value(name) for name, ours in VLLM.items() if beside.is_said(name)}}


def _evaluates(value: SettingValue, beside: Beside) -> Meaning:
    if value == "no":
        return {"evaluate_every": 0}
    if value == "steps":
        return "eval_steps says how often"
    raise ValueError(f"eval_strategy={value!r}: no and steps are possible here")


def _reports(value: SettingValue, beside: Beside) -> Meaning:
    names = value if isinstance(value, list | tuple) else [value]
    return {"use_wandb": "wandb" in names}


NAMES = table(
    said("model_name_or_path", "model", "smollm2"),
    said("num_generations", "group_size", 8),
    said(GENERATION[0], "tickets_per_batch, num_minibatches", 8, _generated),
    said(GENERATION[1], "tickets_per_batch, num_minibatches", 8, _generated),
    said(GENERATION[2], "tickets_per_batch, num_minibatches", 8, _generated),
    said("generation_batch_size", "tickets_per_batch, num_minibatches", 64, _generated),
    said("max_completion_length", "max_tokens", 256),
    said("max_prompt_length", "max_prompt_tokens", 512),
    said("beta", "kl_weight", 0.04),
    said("epsilon", "clip_low, clip_high", 0.2, _epsilon),
    said("epsilon_high", "clip_high", 0.28),
    said("delta", "dual_clip", 4.0),
    said("loss_type", "loss_aggregation; cispo: correction", "dapo", _loss),
    said("scale_rewards", "estimator", "group", _scale),
    said("importance_sampling_level", "correction (sequence: gspo)", "sequence", _level),
    said("mask_truncated_completions", "mask_truncated", True),
    said("num_train_epochs", "data_epochs", 1, _epochs),
    said("lr_scheduler_type", "lr_schedule", "linear", _schedule),
    said("warmup_steps", "warmup_updates", 10),
    said("warmup_ratio", "warmup_updates", 0.1, _warmup),
    said("adam_epsilon", "adam_eps", 1e-8),
    said("use_vllm", "engine", False, _engine),
    *(said(name, "vllm_options", 0.3 if "memory" in name else 1, _vllm_options) for name in VLLM),
    said("save_total_limit", "keep_checkpoints", 2),
    said("eval_strategy", "evaluate_every", "no", _evaluates),
    said("report_to", "use_wandb", "none", _reports),
    said("run_name", "name", "grpo"),
    said("lora_r", "lora_rank", 16),
    must_be("shuffle_dataset", True, "the order of the prompts is drawn by the seed"),
    must_be("disable_dropout", True, "a policy without dropout is the one that has drawn the tokens"),
    must_be("sync_ref_model", False, "the reference stays the model that the run began with"),
    nothing("output_dir", "a run has a folder of its own, under its name", "out"),
    nothing("bf16", "a GPU computes in bfloat16", True),
    nothing("logging_steps", "every update is recorded", 1),
    nothing("log_completions", "log_samples says how many are kept (headway samples RUN)", True),
    nothing("vllm_mode", "engine_gpus and learner_gpus say who shares a GPU", "colocate"),
    nothing("per_device_eval_batch_size", "engine_rows says how many are generated at once", 8),
    nothing("remove_unused_columns", "a reward sees all columns", False),
    nothing("dataloader_num_workers", "prompts are read once", 0),
    nothing("ds3_gather_for_generation", "the engine has weights of its own", True),
)
