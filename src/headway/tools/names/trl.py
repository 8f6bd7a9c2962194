"""Names of TRL's GRPOConfig, as rows. Those that other systems have too, with other meanings, are in `flat.py`."""

from __future__ import annotations

import math

from headway.core.types_opaque import SettingValue
from headway.tools.names import trl_rewards
from headway.tools.names.rows import Meaning, whole
from headway.tools.names.rows_peer_rows import Beside, Translate, absent, divided, must_be, nothing, number, said, table

GENERATION = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "steps_per_generation",
    "generation_batch_size",
)
VLLM = {
    "vllm_gpu_memory_utilization": "gpu_memory_utilization",
    "vllm_tensor_parallel_size": "tensor_parallel_size",
}
OPTIMIZERS = {"adamw_torch": "full", "adamw_torch_fused": "full", "adamw_8bit": "8bit", "adamw_bnb_8bit": "8bit"}
"""Names of transformers for what keeps AdamW's moments."""


def _per_generation(beside: Beside) -> tuple[int, int]:
    """Completions of one generation, and minibatches in them: optimizer steps of one pass.

    TRL generates per_device_train_batch_size * steps_per_generation completions on each process (steps_per_generation
    is gradient_accumulation_steps unless it is set), and an optimizer step takes per_device_train_batch_size *
    gradient_accumulation_steps of them on each process. Its processes are our learner_ranks.
    """
    processes = beside.number("learner_ranks") if "learner_ranks" in beside else 1
    per_device, accumulated = _count(beside, GENERATION[0], 8), _count(beside, GENERATION[1], 1)
    completions = per_device * _count(beside, GENERATION[2], accumulated) * processes
    completions = _count(beside, GENERATION[3], completions)
    of_a_step = per_device * accumulated * processes
    return completions, divided("the completions of a generation", completions, of_a_step, "an optimizer step")


def _generated(value: SettingValue, beside: Beside) -> Meaning:
    """Completions of one generation, in groups; those of several optimizer steps are several minibatches."""
    completions, minibatches = _per_generation(beside)
    size = beside.number("group_size", "num_generations")
    return {
        "tickets_per_batch": divided("the completions of a generation", completions, size, "num_generations"),
        "num_minibatches": minibatches,
    }


def _count(beside: Beside, name: str, default: int) -> int:
    return beside.number(name) if beside.is_said(name) else default


def _steps_per_update(beside: Beside) -> int:
    """Optimizer steps of one update: its minibatches, num_iterations times."""
    minibatches = _per_generation(beside)[1] if beside.is_said(*GENERATION) else beside.number("num_minibatches")
    return minibatches * beside.number("num_epochs", "num_iterations")


def _max_steps(value: SettingValue, beside: Beside) -> Meaning:
    if value == -1:  # their default
        return "num_train_epochs or updates says how long the run is"
    steps = whole("max_steps", value)
    return {"updates": divided("max_steps", steps, _steps_per_update(beside), "optimizer steps of an update")}


def _updates(name: str, beside: Beside) -> int:
    """How long the run is, for what is a share of it."""
    if _has_max_steps(beside):
        return whole("max_steps", beside.value("max_steps")) // _steps_per_update(beside)
    if beside.is_said("num_train_epochs") and not beside.is_said("updates"):
        raise ValueError(f"{name} needs max_steps: num_train_epochs alone does not say how many steps there are")
    return beside.number("updates")


def _has_max_steps(beside: Beside) -> bool:
    return beside.is_said("max_steps") and beside.value("max_steps") != -1


def _in_updates(name: str, value: SettingValue, beside: Beside) -> float:
    """Optimizer steps, or a share of the run below 1, as transformers has it."""
    steps = number(name, value)
    return steps * _updates(name, beside) if 0 < steps < 1 else steps / _steps_per_update(beside)


def _interval(name: str, ours: str) -> Translate:
    """To the nearest update, and never to none."""

    def translate(value: SettingValue, beside: Beside) -> Meaning:
        updates = _in_updates(name, value, beside)
        return {ours: max(1, round(updates)) if updates else 0}

    return translate


def _epsilon(value: SettingValue, beside: Beside) -> Meaning:
    return {"clip_low": value} if beside.is_said("epsilon_high") else {"clip_low": value, "clip_high": value}


def _loss(value: SettingValue, beside: Beside) -> Meaning:
    modes = {"grpo": "seq-mean-token-mean", "dapo": "token-mean", "bnpo": "token-mean"}
    modes["dr_grpo"] = "seq-mean-token-sum-norm"
    if value == "cispo":
        return {"correction": "cispo"}
    if str(value) not in modes:
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
    if _has_max_steps(beside):
        return "max_steps says how long the run is"
    found: dict[str, object] = {"data_epochs": number("num_train_epochs", value)}
    if not beside.is_said("updates"):
        found["updates"] = None
    return found


def _schedule(value: SettingValue, beside: Beside) -> Meaning:
    kinds = {"linear": "linear", "cosine": "cosine", "constant": "constant", "constant_with_warmup": "constant"}
    if str(value) not in kinds:
        raise ValueError(f"lr_scheduler_type={value!r}: allowed are {', '.join(kinds)}")
    return {"lr_schedule": kinds[str(value)]}


def _warmup(name: str) -> Translate:
    """Whole updates, the last one begun included."""

    def translate(value: SettingValue, beside: Beside) -> Meaning:
        return {"warmup_updates": math.ceil(_in_updates(name, value, beside) - 1e-9)}

    return translate


def _engine(value: SettingValue, beside: Beside) -> Meaning:
    return {"engine": "vllm" if value else "transformers"}


def _vllm_options(value: SettingValue, beside: Beside) -> Meaning:
    return {"vllm_options": {ours: beside.value(name) for name, ours in VLLM.items() if beside.is_said(name)}}


def _by_steps(name: str, ours: str, how_often: str) -> Translate:
    """A strategy: not at all, or every so many updates."""

    def translate(value: SettingValue, beside: Beside) -> Meaning:
        if value in ("no", False):  # YAML, and our command line with it, takes a bare `no` for False
            return {ours: 0}
        if value == "steps":
            return f"{how_often} says how often"
        raise ValueError(f"{name}={value!r}: no and steps are possible here")

    return translate


def _dtype(value: SettingValue, beside: Beside) -> Meaning:
    kinds = ("float32", "bfloat16")
    last = str(value).removeprefix("torch.")
    if last not in kinds:
        raise ValueError(f"dtype={value!r}: allowed are {', '.join(kinds)} (parameter_dtype)")
    return {"parameter_dtype": last}


def _optimizer(value: SettingValue, beside: Beside) -> Meaning:
    if str(value) not in OPTIMIZERS:
        raise ValueError(f"optim={value!r}: allowed are {', '.join(OPTIMIZERS)} (optimizer_state)")
    return {"optimizer_state": OPTIMIZERS[str(value)]}


def _adapters(value: SettingValue, beside: Beside) -> Meaning:
    """A rank of its own where none is said: TRL's is 16."""
    if value and beside.is_said("lora_r", "lora_rank"):
        return "lora_r says of which rank"
    return {"lora_rank": 16 if value else 0}


def _reports(value: SettingValue, beside: Beside) -> Meaning:
    names = value if isinstance(value, list | tuple) else [value]
    return {"use_wandb": "wandb" in names}


TURNS = {"tools": "env_options", "max_tool_calling_iterations": "max_turns", "environment_factory": "env"}
TURNS["rollout_func"] = "agent=file.py:function"
CAPS = ("vllm_importance_sampling_mode", "vllm_importance_sampling_cap")
SAPO = ("sapo_temperature_neg", "sapo_temperature_pos")
REFERENCES = ("ref_model_mixup_alpha", "ref_model_sync_steps")
DATA = ("train_dataset", "eval_dataset")

NAMES = table(
    said("model_name_or_path", "model", "smollm2"),
    said("num_generations", "group_size", 8),
    said(GENERATION[0], "tickets_per_batch, num_minibatches", 8, _generated),
    said(GENERATION[1], "tickets_per_batch, num_minibatches", 8, _generated),
    said(GENERATION[2], "tickets_per_batch, num_minibatches", 8, _generated),
    said(GENERATION[3], "tickets_per_batch, num_minibatches", 64, _generated),
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
    *trl_rewards.ROWS,
    said("num_train_epochs", "data_epochs", 1, _epochs),
    said("lr_scheduler_type", "lr_schedule", "linear", _schedule),
    *(
        said(name, "warmup_updates", example, _warmup(name))
        for name, example in (("warmup_steps", 10), ("warmup_ratio", 0.1))
    ),
    said("max_steps", "updates (over the optimizer steps of one)", 100, _max_steps),
    said(
        "eval_steps",
        "evaluate_every (over the optimizer steps of an update)",
        10,
        _interval("eval_steps", "evaluate_every"),
    ),
    said("save_steps", "save_every (over the optimizer steps of an update)", 10, _interval("save_steps", "save_every")),
    said("adam_epsilon", "adam_eps", 1e-8),
    said("use_vllm", "engine", False, _engine),
    *(said(name, "vllm_options", 0.3 if "gpu" in name else 1, _vllm_options) for name in VLLM),
    said("save_total_limit", "keep_checkpoints", 2),
    *(
        said(name, "evaluate_every", "no", _by_steps(name, "evaluate_every", "eval_steps"))
        for name in ("eval_strategy", "evaluation_strategy")
    ),
    said("save_strategy", "save_every", "no", _by_steps("save_strategy", "save_every", "save_steps")),
    said("eval_on_start", "evaluate_first", True),
    said("num_generations_eval", "eval_samples", 1),
    said("chat_template_kwargs", "chat_template_options", {"enable_thinking": False}),
    said("torch_compile", "compile_trainer", True, lambda value, beside: {"compile_trainer": "on" if value else "off"}),
    said("optim", "optimizer_state", "adamw_torch", _optimizer),
    *(said(name, "parameter_dtype", "bfloat16", _dtype) for name in ("dtype", "torch_dtype")),
    said("use_peft", "lora_rank", True, _adapters),
    said("use_cpu", "device", True, lambda value, beside: {"device": "cpu" if value else "auto"}),
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
    must_be("fp16", False, "a GPU computes in bfloat16"),
    must_be("min_p", None, "top_p, top_k and temperature say what is drawn", 0, 0.0),
    must_be("repetition_penalty", 1.0, "top_p, top_k and temperature say what is drawn"),
    must_be("top_entropy_quantile", 1.0, "all tokens of a reply are learned from"),
    must_be("off_policy_mask_threshold", None, "max_staleness and correction say what becomes of stale replies"),
    must_be("use_bias_correction_kl", False, "the penalty is of the policy that learns"),
    must_be("vllm_enable_sleep_mode", False, "an engine keeps its memory"),
    must_be("vllm_importance_sampling_correction", True, "ratios are of what the engine drew with"),
    must_be("lora_dropout", 0.0, "a policy without dropout is the one that has drawn the tokens"),
    must_be("lora_target_modules", "all-linear", "adapters go to every linear layer"),
    must_be("use_rslora", False, "adapters are scaled by lora_alpha / lora_rank"),
    must_be("load_in_4bit", False, "weights are not quantised"),
    must_be("load_in_8bit", False, "weights are not quantised"),
    must_be("model_revision", "main", "a folder holds the model that is meant"),
    must_be("trust_remote_code", False, "a model's own code is not run"),
    must_be("dataset_streaming", False, "prompts are read once, before the run begins"),
    must_be("push_to_hub", False, "nothing is sent anywhere; headway export writes a folder"),
    must_be("neftune_noise_alpha", None, "a policy without noise is the one that has drawn the tokens"),
    nothing("hub_model_id", "nothing is sent anywhere; headway export writes a folder", "me/model"),
    nothing("attn_implementation", "trainer_attention says how the trainer attends", "sdpa"),
    nothing("tf32", "a GPU computes in bfloat16", True),
    nothing("vllm_max_model_length", "it is max_prompt_tokens and max_tokens together", 1024),
    nothing("vllm_model_impl", "vllm_options go to vLLM as they are", "vllm"),
    *(
        nothing(name, "a run starts its engines itself", example)
        for name, example in (("vllm_server_host", "0.0.0.0"), ("vllm_server_port", 8000), ("vllm_group_port", 51216))
    ),
    nothing("vllm_server_base_url", "a run starts its engines itself", "http://localhost:8000"),
    nothing("vllm_server_timeout", "engine_deadline_s says how long one may be silent", 240.0),
    nothing("use_transformers_paged", "the engine batches continuously", False),
    nothing("cache_implementation", "the engine has a cache of its own", "static"),
    nothing("use_liger_kernel", "logit_chunk_tokens keeps logits small", False),
    nothing("use_liger_loss", "logit_chunk_tokens keeps logits small", False),
    nothing("gradient_checkpointing_kwargs", "gradient_checkpointing switches it", {"use_reentrant": False}),
    nothing("data_seed", "seed says it all", 42),
    nothing("full_determinism", "a run can be repeated bit for bit", True),
    nothing("dataloader_drop_last", "an update has tickets_per_batch prompts", False),
    nothing("overwrite_output_dir", "a run has a folder of its own, under its name", True),
    *(
        nothing(name, "every update is recorded", example)
        for name, example in (("logging_dir", "logs"), ("logging_strategy", "steps"), ("logging_first_step", True))
    ),
    nothing("disable_tqdm", "--quiet says how much is printed", True),
    nothing("num_completions_to_print", "log_samples says how many are kept (headway samples RUN)", 4),
    nothing("log_unique_prompts", "log_samples says how many are kept (headway samples RUN)", False),
    nothing("wandb_log_unique_prompts", "log_samples says how many are kept (headway samples RUN)", False),
    nothing("do_train", "headway run trains, headway evaluate evaluates", True),
    nothing("do_eval", "headway run trains, headway evaluate evaluates", True),
    nothing("load_best_model_at_end", "headway.load and headway export take --checkpoint best", False),
    nothing("save_only_model", "a checkpoint holds all that a run goes on with", False),
    nothing("lora_task_type", "the task is a language model's", "CAUSAL_LM"),
    nothing("ddp_find_unused_parameters", "ranks add up all gradients", False),
    nothing("average_tokens_across_devices", "loss_aggregation says who shares a batch evenly", True),
    *(absent(name, "learner_ranks and sharding spread a model over processes") for name in ("deepspeed", "fsdp")),
    *(absent(name, f"tools and turns are of headway run agent ({what})") for name, what in TURNS.items()),
    *(absent(name, "correction_options says the limits of a correction") for name in CAPS),
    *(absent(name, "loss_type and correction say which losses there are") for name in SAPO),
    *(absent(name, "the reference stays the model that the run began with") for name in REFERENCES),
    *(absent(name, "task says where prompts come from: jsonl:FILE, parquet:FILE, datasets:ID") for name in DATA),
    absent("generation_kwargs", "temperature, top_p, top_k, stop and max_tokens say how replies are drawn"),
    absent("vllm_guided_decoding_regex", "a reply may be any text"),
    absent("vllm_structured_outputs_regex", "a reply may be any text"),
    absent("resume_from_checkpoint", "headway resume RUN --checkpoint NAME goes on with a run"),
    absent("log_completions_hub_repo", "log_samples says how many are kept (headway samples RUN)"),
)
