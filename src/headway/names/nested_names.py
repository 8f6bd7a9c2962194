"""The nested configuration that users of verl and its relatives have, and what each name in it is here.

    async_training: {staleness_threshold: 3}      -->   max_lead: 3
    actor_rollout_ref: {rollout: {n: 8}}          -->   group_size: 8
    trainer: {nccl_timeout: 600}                  -->   nothing, with the reason, said when the run begins

A file is flattened to dotted paths (`actor_rollout_ref.rollout.n`), which can also be given on the command line. Every
path is in one of two tables: `PATHS` are translated, `WITHOUT_EFFECT` are accepted and said to have none. A path in
neither is refused with the nearest one. A name that ends in `.*` is all that is below it. Some mean something
only together (`data.train_batch_size` and
`actor.ppo_mini_batch_size` make a number of minibatches): those name what else they read.

`headway explain --config FILE` prints the translation of a file, `docs/guides/llm.md` the table. LightZero's names are
in `lightzero_names.py`; reading, at the end, is the same for both.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from headway.core.naming import unknown
from headway.names import known_paths, lightzero_names
from headway.names.known_names import KNOWN_NAMES
from headway.names.known_paths import KnownPath, Meaning, Theirs, only
from headway.names.nested_corrections import CORRECTION_PATHS, NEW, find_meaning

# -- ways to translate ------------------------------------------------------------------------------


def _flat(name: str) -> Callable[..., Meaning]:
    return lambda value, theirs, fields: KNOWN_NAMES[name].in_recipe(value, fields)


def _or_off(ours: str) -> Callable[..., Meaning]:
    """-1 is never."""
    return lambda value, theirs, fields: {ours: 0 if value == -1 else value}


def _with_gae(ours: str) -> Callable[..., Meaning]:
    def translate(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
        if theirs.get("algorithm.adv_estimator") in ("gae", "ppo"):
            return {ours: value}
        return "without adv_estimator=gae there is no critic, and nothing is discounted"

    return translate


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number >= 1, received {value!r}")
    return value


BATCH = "data.train_batch_size"
FETCHES = "async_training.min_batch_count"
REQUIRED = "async_training.require_batches"
MINI = "actor_rollout_ref.actor.ppo_mini_batch_size"


def _fetched(theirs: Theirs) -> int:
    return max(_whole(name, theirs.get(name, 1)) for name in (FETCHES, REQUIRED))


def _fetches_minibatches(theirs: Theirs) -> bool:
    """The asynchronous trainer has no batches: with train_batch_size=0 it fetches require_batches minibatches."""
    return theirs.get(BATCH, 0 if REQUIRED in theirs and MINI in theirs else 1) == 0


def _prompts_per_update(theirs: Theirs) -> int:
    if not _fetches_minibatches(theirs):
        return _fetched(theirs) * _whole(BATCH, theirs.get(BATCH, 1))
    if MINI not in theirs:
        raise ValueError(f"with {BATCH}=0 an update takes require_batches * ppo_mini_batch_size prompts: set {MINI}")
    return _fetched(theirs) * _whole(MINI, theirs[MINI])


def _batch(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return {"tickets_per_batch": _prompts_per_update(theirs)}


def _minibatches(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if BATCH not in theirs and not _fetches_minibatches(theirs):
        raise ValueError(f"it says how a batch is cut, so {BATCH} is needed too")
    batch, part = _prompts_per_update(theirs), _whole(MINI, value)
    if batch % part:
        raise ValueError(f"a batch of {batch} prompts cannot be cut into minibatches of {part}")
    return {"num_minibatches": batch // part}


CLIP = "actor_rollout_ref.actor.clip_ratio"


def _clip(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    sides = {"clip_low": f"{CLIP}_low", "clip_high": f"{CLIP}_high"}
    own = {ours: value for ours, path in sides.items() if path not in theirs}
    return own or "clip_ratio_low and clip_ratio_high say it"


LORA = "actor_rollout_ref.model.lora"


def _lora(ours: str) -> Callable[..., Meaning]:
    def translate(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
        return {ours: value} if theirs.get(f"{LORA}.rank") else "lora_rank and lora_alpha say it"

    return translate


USE_KL, KL = "actor_rollout_ref.actor.use_kl_loss", "actor_rollout_ref.actor.kl_loss_coef"
IN_REWARD, IN_REWARD_KL = "algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef"
ALL_KL_PATHS = (USE_KL, KL, IN_REWARD, IN_REWARD_KL)
THEIR_KL = 0.001


def _kl(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if theirs.get(USE_KL) and theirs.get(IN_REWARD):
        raise ValueError("the penalty is in the loss or taken from the rewards, not both")
    if theirs.get(IN_REWARD):
        return {"kl_in_reward": True, "kl_weight": theirs.get(IN_REWARD_KL, THEIR_KL)}
    off = {"kl_in_reward": False} if IN_REWARD in theirs else {}
    return {**off, "kl_weight": theirs.get(KL, THEIR_KL) if theirs.get(USE_KL) else 0.0}


ESTIMATORS = ("grpo", "dr_grpo", "rloo", "reinforce_plus_plus", "gae", "ppo")
ESTIMATOR, BY_STD = "algorithm.adv_estimator", "algorithm.norm_adv_by_std_in_grpo"


def _estimator(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    name = theirs.get(ESTIMATOR, "grpo")
    if name not in ESTIMATORS:
        raise ValueError(unknown("estimator", str(name), ESTIMATORS))
    if name == "grpo" and theirs.get(BY_STD) is False:
        name = "dr_grpo"
    return {"estimator": name}


ENGINES = {"hf": "transformers", "transformers": "transformers", "vllm": "vllm"}


def _engine(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if value not in ENGINES:
        raise ValueError(unknown("engine", str(value), ENGINES))
    return {"engine": ENGINES[value]}


ROLLOUT = "actor_rollout_ref.rollout"
ENGINE_NAME = f"{ROLLOUT}.name"
VLLM_KWARGS = f"{ROLLOUT}.engine_kwargs.vllm"
VLLM_OPTIONS = {
    f"{ROLLOUT}.{theirs}": ours
    for theirs, ours in (
        ("gpu_memory_utilization", "gpu_memory_utilization"),
        ("max_num_batched_tokens", "max_num_batched_tokens"),
        ("enforce_eager", "enforce_eager"),
        ("enable_chunked_prefill", "enable_chunked_prefill"),
        ("enable_prefix_caching", "enable_prefix_caching"),
        ("dtype", "dtype"),
        ("tensor_model_parallel_size", "tensor_parallel_size"),
    )
}


def _vllm(why: str, *only: Any) -> Callable[..., Meaning]:
    """An argument of vLLM; in the engine of this process it has no effect, or only these values do."""

    def translate(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
        if theirs.get("engine", theirs.get(ENGINE_NAME)) == "vllm":
            return {"vllm_options": _vllm_options(theirs)}
        if only and value not in only:
            raise ValueError(f"only {only[0]} is possible with the engine in this process: {why}")
        return f"{why}; it is an argument of vLLM ({ENGINE_NAME}=vllm)"

    return translate


def _vllm_options(theirs: Theirs) -> dict[str, Any]:
    below = {path.removeprefix(f"{VLLM_KWARGS}."): path for path in theirs if path.startswith(f"{VLLM_KWARGS}.")}
    named = {ours: path for path, ours in VLLM_OPTIONS.items() if path in theirs}
    for ours in named.keys() & below.keys():
        if theirs[named[ours]] != theirs[below[ours]]:
            raise ValueError(
                f"{named[ours]}={theirs[named[ours]]!r} and {below[ours]}={theirs[below[ours]]!r} disagree"
            )
    return {ours: theirs[path] for ours, path in (named | below).items()}


def _stop(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return {"stop": [value] if isinstance(value, str) else value}


def _correction(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return find_meaning(theirs)


def _weight_transport(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if value not in ("naive", "nccl"):
        raise ValueError("only naive or nccl is possible here: both are auto, which is NCCL between GPUs")
    return {"weight_transport": "auto"}


def _do_sample(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return "val_kwargs.temperature says it" if value else {"eval_temperature": 0.0}


GROUP = "actor_rollout_ref.rollout.n"


def _group(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return f"{GROUP} says it" if GROUP in theirs else {"group_size": value}


def _eval_prompts(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return "eval_prompts says how many there are" if value == -1 else {"eval_prompts": value}


VAL_TEMPERATURE, VAL_SAMPLE = (f"actor_rollout_ref.rollout.val_kwargs.{name}" for name in ("temperature", "do_sample"))


def _eval_temperature(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if theirs.get(VAL_SAMPLE, False):
        return {"eval_temperature": value}
    return {"eval_temperature": 0.0}


def _eval_top_p(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if theirs.get(VAL_SAMPLE) and theirs.get(VAL_TEMPERATURE):
        return {"eval_top_p": value}
    return "without do_sample and a temperature an evaluation takes the most likely token"


TRAIN_FILES, VAL_FILES, PROMPT_KEY = "data.train_files", "data.val_files", "data.prompt_key"
MEDIA_KEYS = ("data.image_key", "data.video_key")
REWARD_FILE, REWARD_NAME = "custom_reward_function.path", "custom_reward_function.name"
NEW_REWARD_FILE, NEW_REWARD_NAME = f"reward.{REWARD_FILE}", f"reward.{REWARD_NAME}"


def _one_file(path: str, theirs: Theirs) -> str:
    value = theirs[path]
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, str):
        raise ValueError(f"one file is read, received {value!r}")
    if value.endswith(".parquet"):
        raise ValueError(f"{value}: parquet is not read; write it as JSON lines (one object a line, .jsonl)")
    return value


def _files(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    """For a recipe with a folder of its own, that folder; otherwise a task of this file."""
    if "data" in fields:
        files = [Path(_one_file(path, theirs)) for path in (TRAIN_FILES, VAL_FILES) if path in theirs]
        folders = {str(file.parent if file.suffix else file) for file in files}
        if len(folders) > 1 or any(file.suffix and file.name not in ("train.jsonl", "test.jsonl") for file in files):
            raise ValueError("the recipe reads train.jsonl and test.jsonl of one folder")
        return {"data": folders.pop()}
    if TRAIN_FILES not in theirs:
        raise ValueError(f"it needs {TRAIN_FILES} too")
    return {"task": f"jsonl:{_one_file(TRAIN_FILES, theirs)}", "task_options": _options(theirs)}


def _reward(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if REWARD_FILE not in theirs and NEW_REWARD_FILE not in theirs and value == "compute_score":
        return "it is the name that a function in custom_reward_function.path would have"
    if "data" in fields:
        raise ValueError("the recipe has a reward of its own; `headway run grpo` takes yours")
    return _files(value, theirs, fields)


def _options(theirs: Theirs) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if VAL_FILES in theirs:
        options["held_out"] = _one_file(VAL_FILES, theirs)
    if PROMPT_KEY in theirs:
        options["prompt_field"] = theirs[PROMPT_KEY]
    media = [theirs[path] for path in MEDIA_KEYS if path in theirs]
    if media:
        options["media_fields"] = media
    file = theirs.get(REWARD_FILE, theirs.get(NEW_REWARD_FILE))
    name = theirs.get(REWARD_NAME, theirs.get(NEW_REWARD_NAME))
    if file is not None or name is not None:
        options["reward"] = f"{file or ''}:{name or 'compute_score'}"
    return options


def _media_key(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if "data" in fields or TRAIN_FILES not in theirs:
        return "prompts are text"
    return _files(value, theirs, fields)


TEMPLATE = "data.apply_chat_template_kwargs"


def _template_options(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    begin = f"{TEMPLATE}."
    return {"chat_template_options": {p.removeprefix(begin): told for p, told in theirs.items() if p.startswith(begin)}}


def _prompt_key(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return "the recipe knows its own file" if "data" in fields else _files(value, theirs, fields)


def _long_prompts(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return {"on_long_prompt": "drop" if value else "error"}


STEPS, EPOCHS = "trainer.total_training_steps", "trainer.total_epochs"
SAMPLES = "rollout.total_rollout_steps"


def _epochs(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if STEPS in theirs or SAMPLES in theirs:
        return "total_training_steps (or total_rollout_steps) says when the run ends"
    return {"data_epochs": value, "updates": None}


def _rollout_steps(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if STEPS in theirs:
        return "total_training_steps says when the run ends"
    return {"updates": max(1, _whole(SAMPLES, value) // _prompts_per_update(theirs))}


OPTIM = "actor_rollout_ref.actor.optim"
WARMUP, WARMUP_RATIO = f"{OPTIM}.lr_warmup_steps", f"{OPTIM}.lr_warmup_steps_ratio"
SCHEDULES = (f"{OPTIM}.lr_scheduler_type", f"{OPTIM}.warmup_style")


def _warmup(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    """A number of updates; where that is negative or not said, a share of all."""
    steps, ratio = theirs.get(WARMUP, -1), theirs.get(WARMUP_RATIO, 0)
    if isinstance(steps, int) and steps >= 0:
        return {"warmup_updates": steps}
    if not isinstance(ratio, int | float) or not 0 <= ratio <= 1:
        raise ValueError(f"lr_warmup_steps_ratio must be a number in [0, 1], received {ratio!r}")
    return {"warmup_updates": int(ratio * _total_updates(theirs)) if ratio else 0}


def _total_updates(theirs: Theirs) -> int:
    for path in ("updates", STEPS):
        if path in theirs:
            return _whole(path, theirs[path])
    if SAMPLES not in theirs:
        raise ValueError(f"a share of all updates needs {STEPS}; or say lr_warmup_steps")
    return max(1, _whole(SAMPLES, theirs[SAMPLES]) // _prompts_per_update(theirs))


def _floor(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    schedule = next((theirs[path] for path in ("lr_schedule", *SCHEDULES) if path in theirs), "constant")
    return "a constant learning rate does not fall" if schedule == "constant" else {"lr_floor": value}


def _places(group: str, ours: str) -> Callable[..., Meaning]:
    """GPUs in all: per node, times nodes."""

    def translate(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
        paths = (f"{group}.n_gpus_per_node", f"{group}.nnodes")
        per_node, nodes = (_whole(path, theirs.get(path, 1)) for path in paths)
        if ours in fields:
            return {ours: per_node * nodes}
        if per_node * nodes > 1:
            raise ValueError(f"{per_node * nodes} GPUs, but this recipe uses one there")
        return "there is one of it"

    return translate


LOGGERS = {"console": {}, "file": {}, "wandb": {"use_wandb": True}, "tensorboard": {"tensorboard": True}}


def _loggers(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    names = yaml.safe_load(value) if isinstance(value, str) else value
    settings: dict[str, Any] = {}
    for name in names if isinstance(names, list) else [names]:
        if name not in LOGGERS:
            raise ValueError(unknown("logger", str(name), LOGGERS))
        settings |= LOGGERS[name]
    return settings or "the console and metrics.jsonl are always written"


def _betas(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
    betas = yaml.safe_load(value) if isinstance(value, str) else value
    if not isinstance(betas, list) or len(betas) != 2:
        raise ValueError(f"two numbers are needed, received {value!r}")
    return {"adam_beta1": betas[0], "adam_beta2": betas[1]}


OVERLONG = "reward_model.overlong_buffer"
OVERLONGS = (OVERLONG, *(f"{group}.reward_kwargs.overlong_buffer_cfg" for group in ("reward_model", "reward")))
"""The same group, as it was called from version to version."""


def _overlong(group: str) -> Callable[..., Meaning]:
    def translate(value: Any, theirs: Theirs, fields: Collection[str]) -> Meaning:
        if not theirs.get(f"{group}.enable"):
            return "the overlong buffer's enable is off"
        return {"overlong_tokens": theirs.get(f"{group}.len", 0)}

    return translate


# -- the tables -------------------------------------------------------------------------------------

ALL_TASK_PATHS = (
    *(TRAIN_FILES, VAL_FILES, PROMPT_KEY, *MEDIA_KEYS),
    *(REWARD_FILE, REWARD_NAME, NEW_REWARD_FILE, NEW_REWARD_NAME),
)
ALL_BATCH_PATHS = (BATCH, FETCHES, REQUIRED, MINI)
CORRECTION_EXAMPLES = (
    *("token", 2.0, "geometric", 1.01, 0.99, True, True, 2.0, 0.5, "token", "truncate", 2.0, "cispo"),
    False,
)
_BY_ROWS = "the engine in this process sizes itself by engine_rows, max_prompt_tokens and max_tokens"
VLLM_ROWS: tuple[tuple[str, str, tuple[Any, ...], Any, str], ...] = (
    (f"{ROLLOUT}.gpu_memory_utilization", _BY_ROWS, (), 0.4, ""),
    (f"{ROLLOUT}.max_num_batched_tokens", _BY_ROWS, (), 8192, ""),
    (f"{ROLLOUT}.enforce_eager", "its decoders choose CUDA graphs themselves", (), False, ""),
    (f"{ROLLOUT}.enable_chunked_prefill", "a prompt is read in one piece", (), True, ""),
    (f"{ROLLOUT}.enable_prefix_caching", "a prompt is read once for all of its replies", (), True, ""),
    (f"{ROLLOUT}.dtype", "bfloat16 on a GPU, float32 on a CPU", (), "bfloat16", ""),
    (f"{ROLLOUT}.tensor_model_parallel_size", "its model is not spread over GPUs", (1,), 1, "; else only 1"),
    (f"{VLLM_KWARGS}.*", "they are for vLLM alone", (), 0, ""),
)
ASYNC = (
    *("staleness_threshold", "max_staleness_allowed", "max_queue_size", "batch_timeout", "generation_timeout"),
    *("batch_generation_interval", "max_sync_retries", "sync_timeout", "sync_retry_delay"),
)


def _paths() -> list[KnownPath]:
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    model, val = "actor_rollout_ref.model", "actor_rollout_ref.rollout.val_kwargs"
    flat = [
        KnownPath(f"async_training.{name}", ", ".join(known.translate(known.example)), _flat(name), known.example)
        for name, known in KNOWN_NAMES.items()
        if name in ASYNC
    ]

    def same(path: str, ours: str, example: Any) -> KnownPath:
        return KnownPath(path, ours, known_paths.same(ours), example)

    gae = (ESTIMATOR,)
    return [
        *flat,
        KnownPath(FETCHES, "tickets_per_batch (times train_batch_size)", _batch, 1, ALL_BATCH_PATHS),
        KnownPath(REQUIRED, "tickets_per_batch (times train_batch_size)", _batch, 1, ALL_BATCH_PATHS),
        same("async_training.trigger_parameter_sync_step", "publish_every", 1),
        KnownPath(
            "async_training.partial_rollout",
            "on_publish (partial or drain)",
            lambda value, theirs, fields: {"on_publish": "partial" if value else "drain"},
            True,
        ),
        same("async_training.parallel_validate_and_rollout", "evaluate_in_background", False),
        same(f"{model}.path", "model", "smollm2"),
        KnownPath(f"{LORA}.rank", "lora_rank (unless 0)", _lora("lora_rank"), 16),
        KnownPath(f"{LORA}.alpha", "lora_alpha (with lora.rank)", _lora("lora_alpha"), 32, (f"{LORA}.rank",)),
        same(f"{model}.lora_rank", "lora_rank", 16),
        same(f"{model}.lora_alpha", "lora_alpha", 32),
        same(f"{model}.enable_gradient_checkpointing", "gradient_checkpointing", True),
        KnownPath(MINI, "num_minibatches", _minibatches, 8, ALL_BATCH_PATHS),
        same(f"{actor}.ppo_epochs", "num_epochs", 1),
        same(f"{actor}.ppo_max_token_len_per_gpu", "microbatch_tokens", 16384),
        KnownPath(CLIP, "clip_low, clip_high", _clip, 0.2, (f"{CLIP}_low", f"{CLIP}_high")),
        same(f"{CLIP}_low", "clip_low", 0.2),
        same(f"{CLIP}_high", "clip_high", 0.28),
        same(f"{CLIP}_c", "dual_clip", 3.0),
        same(f"{actor}.grad_clip", "max_grad_norm", 1.0),
        same(f"{OPTIM}.clip_grad", "max_grad_norm", 1.0),
        same(f"{actor}.entropy_coeff", "entropy_weight", 0.0),
        KnownPath(USE_KL, "kl_weight (0 when off)", _kl, True, ALL_KL_PATHS),
        KnownPath(KL, "kl_weight (if use_kl_loss)", _kl, 0.001, ALL_KL_PATHS),
        KnownPath(IN_REWARD, "kl_in_reward, kl_weight", _kl, False, ALL_KL_PATHS),
        KnownPath(IN_REWARD_KL, "kl_weight (if use_kl_in_reward)", _kl, 0.001, ALL_KL_PATHS),
        same(f"{actor}.loss_agg_mode", "loss_aggregation", "token-mean"),
        same(f"{actor}.optim.lr", "learning_rate", 1e-6),
        *(
            KnownPath(path, ours, _warmup, example, (WARMUP, WARMUP_RATIO, STEPS, SAMPLES, "updates", *ALL_BATCH_PATHS))
            for path, ours, example in (
                (WARMUP, "warmup_updates", 10),
                (WARMUP_RATIO, "warmup_updates (of total_training_steps)", 0.0),
            )
        ),
        KnownPath(f"{OPTIM}.min_lr_ratio", "lr_floor (unless constant)", _floor, 0.1, (*SCHEDULES, "lr_schedule")),
        same(f"{actor}.optim.weight_decay", "weight_decay", 0.01),
        same(f"{actor}.optim.warmup_style", "lr_schedule", "constant"),
        same(f"{actor}.optim.lr_scheduler_type", "lr_schedule", "cosine"),
        KnownPath(f"{actor}.optim.betas", "adam_beta1, adam_beta2", _betas, [0.9, 0.999]),
        *(
            KnownPath(path, "correction, correction_options", _correction, example, CORRECTION_PATHS)
            for path, example in zip(CORRECTION_PATHS, CORRECTION_EXAMPLES, strict=True)
        ),
        *(
            KnownPath(path, f"vllm_options (vllm){note}", _vllm(why, *only), example, (ENGINE_NAME, "engine", *more))
            for path, why, only, example, note in VLLM_ROWS
            for more in [(*VLLM_OPTIONS, f"{VLLM_KWARGS}.*")]
        ),
        KnownPath(f"{rollout}.stop", "stop", _stop, ["###"]),
        KnownPath(f"{rollout}.name", "engine (hf: transformers)", _engine, "hf"),
        same(f"{rollout}.n", "group_size", 8),
        same(f"{rollout}.temperature", "temperature", 1.0),
        same(f"{rollout}.top_p", "top_p", 1.0),
        KnownPath(f"{rollout}.top_k", "top_k (-1: 0, all)", _or_off("top_k"), -1),
        same(f"{rollout}.response_length", "max_tokens", 256),
        same(f"{rollout}.prompt_length", "max_prompt_tokens", 384),
        same(f"{rollout}.max_num_seqs", "engine_rows", 64),
        KnownPath(f"{rollout}.checkpoint_engine.backend", "weight_transport (auto)", _weight_transport, "nccl"),
        same(f"{val}.n", "eval_samples", 1),
        KnownPath(VAL_TEMPERATURE, "eval_temperature (if do_sample)", _eval_temperature, 0.0, (VAL_SAMPLE,)),
        KnownPath(f"{val}.top_p", "eval_top_p (if do_sample)", _eval_top_p, 0.7, (VAL_SAMPLE, VAL_TEMPERATURE)),
        KnownPath(VAL_SAMPLE, "eval_temperature (0 when off)", _do_sample, False),
        KnownPath(ESTIMATOR, "estimator", _estimator, "grpo", (BY_STD,)),
        KnownPath(BY_STD, "estimator (dr_grpo when off)", _estimator, True, (ESTIMATOR,)),
        KnownPath("algorithm.gamma", "gae_gamma (with gae)", _with_gae("gae_gamma"), 1.0, gae),
        KnownPath("algorithm.lam", "gae_lambda (with gae)", _with_gae("gae_lambda"), 0.95, gae),
        same("algorithm.filter_groups.enable", "filter_silent", False),
        KnownPath("critic.optim.lr", "critic_learning_rate (with gae)", _with_gae("critic_learning_rate"), 1e-5, gae),
        KnownPath("critic.cliprange_value", "value_clip (with gae)", _with_gae("value_clip"), 0.5, gae),
        KnownPath(
            "trainer.critic_warmup", "critic_warmup_updates (with gae)", _with_gae("critic_warmup_updates"), 0, gae
        ),
        KnownPath(TRAIN_FILES, "data (gsm8k), task (grpo)", _files, "gsm8k/train.jsonl", ALL_TASK_PATHS),
        KnownPath(VAL_FILES, "data (gsm8k), task_options (grpo)", _files, "gsm8k/test.jsonl", ALL_TASK_PATHS),
        KnownPath(PROMPT_KEY, "task_options (grpo)", _prompt_key, "prompt", ALL_TASK_PATHS),
        KnownPath("data.image_key", "task_options (grpo): refused", _media_key, "images", ALL_TASK_PATHS),
        KnownPath("data.video_key", "task_options (grpo): refused", _media_key, "videos", ALL_TASK_PATHS),
        *(
            KnownPath(path, "task_options (grpo)", _reward, example, ALL_TASK_PATHS)
            for path, example in (
                *((REWARD_FILE, "rewards.py"), (REWARD_NAME, "score")),
                *((NEW_REWARD_FILE, "rewards.py"), (NEW_REWARD_NAME, "score")),
            )
        ),
        KnownPath("data.val_max_samples", "eval_prompts (unless -1)", _eval_prompts, 100),
        KnownPath(BATCH, "tickets_per_batch", _batch, 64, ALL_BATCH_PATHS),
        same("data.max_prompt_length", "max_prompt_tokens", 384),
        same("data.max_response_length", "max_tokens", 256),
        KnownPath("data.filter_overlong_prompts", "on_long_prompt (drop or error)", _long_prompts, True),
        KnownPath(f"{TEMPLATE}.*", "chat_template_options", _template_options, False, (f"{TEMPLATE}.*",)),
        same("data.seed", "seed", 0),
        *(
            KnownPath(f"{group}.{name}", "overlong_tokens", _overlong(group), example, (f"{group}.{other}",))
            for group in OVERLONGS
            for name, example, other in (("enable", True, "len"), ("len", 64, "enable"))
        ),
        same(STEPS, "updates", 100),
        *(
            KnownPath(path, "data_epochs (unless total_training_steps)", _epochs, 1, (STEPS, SAMPLES))
            for path in (EPOCHS, "rollout.total_epochs")
        ),
        KnownPath("trainer.save_freq", "save_every (-1: 0)", _or_off("save_every"), 20),
        KnownPath("trainer.test_freq", "evaluate_every (-1: 0)", _or_off("evaluate_every"), 10),
        same("trainer.val_before_train", "evaluate_first", False),
        same("trainer.max_actor_ckpt_to_keep", "keep_checkpoints", 2),
        same("trainer.log_val_generations", "log_eval_samples", 8),
        same("trainer.device", "device", "cuda"),
        *(
            KnownPath(f"trainer.{name}", "learner_ranks (in all)", _places("trainer", "learner_ranks"), 1, other)
            for name, other in (("n_gpus_per_node", ("trainer.nnodes",)), ("nnodes", ("trainer.n_gpus_per_node",)))
        ),
        KnownPath("trainer.logger", "use_wandb, tensorboard", _loggers, ["console", "tensorboard"]),
        same("trainer.project_name", "wandb_project", "headway"),
        *(
            KnownPath(f"rollout.{name}", "collectors (in all)", _places("rollout", "collectors"), 1, other)
            for name, other in (("n_gpus_per_node", ("rollout.nnodes",)), ("nnodes", ("rollout.n_gpus_per_node",)))
        ),
        KnownPath(SAMPLES, "updates (over tickets_per_batch)", _rollout_steps, 1000, (STEPS, *ALL_BATCH_PATHS)),
        KnownPath("rollout.n", f"group_size (unless {GROUP})", _group, 8, (GROUP,)),
        same("rollout.max_concurrent_samples_per_replica", "lanes", 4),
        KnownPath("rollout.test_freq", "evaluate_every (-1: 0)", _or_off("evaluate_every"), 10),
        # one value exists here; others are refused
        *(
            KnownPath(path, f"(only {allowed[0]})", only(*allowed, why=why), allowed[0])
            for path, allowed, why in (
                ("algorithm.kl_ctrl.type", ("fixed",), "the weight of the penalty stays as it is"),
                (f"{actor}.kl_loss_type", ("low_var_kl", "k3"), "the k3 estimate is used"),
                (f"{actor}.ulysses_sequence_parallel_size", (1,), "a sequence is not spread over GPUs"),
                (f"{model}.trust_remote_code", (False,), "a model's own code is not run"),
                (f"{model}.target_modules", ("all-linear",), "adapters go to every linear layer"),
                (f"{rollout}.do_sample", (True,), "replies to train on are sampled"),
                (f"{rollout}.ignore_eos", (False,), "a reply ends where it ends"),
                (f"{rollout}.multi_turn.enable", (False,), "a ticket is one prompt and its replies"),
                (f"{OPTIM}.num_cycles", (0.5,), "a schedule falls once"),
                (f"{NEW}.rollout_is_batch_normalize", (False,), "weights are not divided by their mean"),
                (f"{NEW}.use_policy_gradient", (False,), "what is kept is clipped"),
                (f"{NEW}.loss_type", ("ppo_clip",), "what is kept is clipped"),
                (f"{NEW}.rollout_token_veto_threshold", ("off",), "one token does not veto its reply"),
                ("algorithm.rollout_is_veto_threshold", ("off",), "one token does not veto its reply"),
                (f"{val}.top_k", (-1, 0), "evaluation samples from all tokens"),
                ("data.shuffle", (True,), "every epoch is shuffled"),
                ("data.truncation", ("error",), "a prompt that is too long is named, never cut"),
                ("reward_model.enable", (False,), "rewards come from rules and functions"),
                ("reward.reward_model.enable", (False,), "rewards come from rules and functions"),
                *((f"{group}.penalty_factor", (1.0, 1), "the reward falls by up to 1") for group in OVERLONGS),
                ("data.trust_remote_code", (False,), "a model's own code is not run"),
                ("data.train_max_samples", (-1,), "all prompts of a file are used"),
                ("algorithm.use_pf_ppo", (False,), "every reply of a batch is learned from alike"),
                ("distillation.enabled", (False,), "there is no teacher"),
                (f"{OPTIM}.optimizer", ("AdamW",), "AdamW is used"),
                (f"{OPTIM}.optimizer_impl", ("torch.optim",), "AdamW is used"),
                (f"{rollout}.over_sample_rate", (0,), "every reply that is begun is finished"),
                (f"{rollout}.data_parallel_size", (1,), "collectors says how many engines there are"),
                (f"{rollout}.expert_parallel_size", (1,), "an engine's experts are not spread over GPUs"),
                (f"{rollout}.pipeline_model_parallel_size", (1,), "an engine's layers are not spread over GPUs"),
                (f"{rollout}.enable_rollout_routing_replay", (False,), "experts are chosen anew when it is learned"),
            )
        ),
    ]


PATHS: dict[str, KnownPath] = {known.path: known for known in _paths()}

_MEMORY = "weights and gradients stay where the learner is; microbatch_tokens and lora_rank bound the memory"
_TOKENS = "forward passes are cut by tokens (microbatch_tokens), not by samples"
_FOLDER = "a run has a folder of its own, named after the recipe and the time (--runs says where, --name adds a name)"
_LOGS = "every event and every metric is in the run's folder"
_SAMPLES = "some replies are in samples.jsonl in the run's folder"
_STREAMED = "prompts are generated one by one, whenever there is a slot (max_lead says how many there are)"
_FUSED = "the loss is computed in pieces (logit_chunk_tokens), without kernels of its own"
_SCORED = "a group is scored where it was generated, beside everything else"
_TASK_SCORES = "the task scores"
_TEXT = "prompts are text"
_DENSE = "a model's experts are trained as its own code routes them"
_RAY = "runtime, ray_address and its neighbours say where work runs"

WITHOUT_EFFECT: dict[str, str] = {
    "defaults": "files are not composed: what is in this one counts",
    "hydra.*": "files are not composed: what is in this one counts",
    "async_training.use_rollout_log_probs": "the engine's log-probabilities are always used, token by token",
    "async_training.checkpoint_engine.*": "weights are handed on by the runtime",
    "async_training.use_trainer_do_validate": "evaluations have a role of their own",
    "actor_rollout_ref.nccl_timeout": "publish_deadline_s bounds how long weights may take",
    "actor_rollout_ref.checkpoint_engine.*": "weights are handed on by the runtime",
    "actor_rollout_ref.hybrid_engine": "engine and learner are roles of their own",
    "actor_rollout_ref.model.use_remove_padding": "padding is never computed",
    "actor_rollout_ref.model.use_shm": "a model is read from where it is",
    "actor_rollout_ref.model.external_lib": "nothing is imported by name",
    "actor_rollout_ref.model.enable_activation_offload": _MEMORY,
    "actor_rollout_ref.model.use_fused_kernels": _FUSED,
    "actor_rollout_ref.model.fused_kernel_options.*": _FUSED,
    "actor_rollout_ref.model.use_liger": _FUSED,
    "actor_rollout_ref.model.tiled_mlp.*": _MEMORY,
    "actor_rollout_ref.model.lora.*": "adapters go to every linear layer; lora_rank and lora_alpha say how large",
    "actor_rollout_ref.model.mtp.*": "one token is predicted at a time",
    "actor_rollout_ref.model.tokenizer_path": "a model has its own",
    "actor_rollout_ref.model.hf_config_path": "a model has its own",
    "actor_rollout_ref.model.override_config.*": "a model is loaded as its own config says",
    "actor_rollout_ref.actor.strategy": "the learner is one process, or learner_ranks of them",
    "actor_rollout_ref.actor.use_dynamic_bsz": _TOKENS,
    "actor_rollout_ref.actor.ppo_micro_batch_size": _TOKENS,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": _TOKENS,
    "actor_rollout_ref.actor.use_torch_compile": "the update is not compiled",
    "actor_rollout_ref.actor.shuffle": "minibatches are drawn anew in every update",
    "actor_rollout_ref.actor.data_loader_seed": "`seed` decides everything",
    "actor_rollout_ref.actor.fsdp_config.*": _MEMORY,
    "actor_rollout_ref.actor.megatron.*": _MEMORY,
    "actor_rollout_ref.actor.entropy_from_logits_with_chunking": _MEMORY,
    "actor_rollout_ref.actor.entropy_from_logits_chunk_size": _MEMORY,
    "actor_rollout_ref.actor.entropy_checkpointing": _MEMORY,
    "actor_rollout_ref.actor.use_fused_kernels": _FUSED,
    "actor_rollout_ref.actor.use_prefix_grouper": _FUSED,
    "actor_rollout_ref.actor.use_rollout_log_probs": "the engine's log-probabilities are always used, token by token",
    "actor_rollout_ref.actor.use_remove_padding": "padding is never computed",
    "actor_rollout_ref.actor.pad_to_length": "padding is never computed",
    "actor_rollout_ref.actor.rollout_n": "actor_rollout_ref.rollout.n says it",
    "actor_rollout_ref.actor.calculate_entropy": _LOGS,
    "actor_rollout_ref.actor.calculate_sum_pi_squared": _LOGS,
    "actor_rollout_ref.actor.tau_pos": "the losses vanilla and cispo do not read it",
    "actor_rollout_ref.actor.tau_neg": "the losses vanilla and cispo do not read it",
    "actor_rollout_ref.actor.freeze_vision_tower": _TEXT,
    "actor_rollout_ref.actor.router_replay.*": _DENSE,
    "actor_rollout_ref.actor.qat.*": "weights are trained as they are",
    "actor_rollout_ref.actor.optim.zero_indexed_step": "a schedule counts updates",
    "actor_rollout_ref.actor.optim.override_optimizer_config.*": "AdamW is used",
    "actor_rollout_ref.actor.checkpoint.*": "a checkpoint always holds everything",
    "actor_rollout_ref.actor.profiler.*": _LOGS,
    "actor_rollout_ref.actor.optim.total_training_steps": "trainer.total_training_steps says it",
    "actor_rollout_ref.actor.policy_loss.*": "the losses vanilla and cispo do not read it",
    "actor_rollout_ref.ref.*": "the reference is computed with the learner's own settings",
    "actor_rollout_ref.rollout.mode": "replies are always generated asynchronously, request by request",
    "actor_rollout_ref.rollout.max_model_len": "an engine's context is max_prompt_tokens + max_tokens",
    "actor_rollout_ref.rollout.free_cache_engine": "an engine keeps its cache: it generates while the learner learns",
    "actor_rollout_ref.rollout.load_format": "an engine starts from the model's own weights",
    "actor_rollout_ref.rollout.layered_summon": "weights are handed on as they are",
    "actor_rollout_ref.rollout.disable_log_stats": _LOGS,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size": _TOKENS,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": _TOKENS,
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": _TOKENS,
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": _TOKENS,
    "actor_rollout_ref.rollout.calculate_log_probs": "they always are",
    "actor_rollout_ref.rollout.engine_kwargs.*": "they are for another engine",
    "actor_rollout_ref.rollout.nnodes": "rollout.nnodes says it",
    "actor_rollout_ref.rollout.n_gpus_per_node": "rollout.n_gpus_per_node says it",
    "actor_rollout_ref.rollout.seed": "`seed` decides everything",
    "actor_rollout_ref.rollout.full_determinism": "`seed` decides everything",
    "actor_rollout_ref.rollout.cudagraph_capture_sizes": "decoders choose CUDA graphs themselves",
    "actor_rollout_ref.rollout.scheduling_policy": "tickets are generated in the order in which they were opened",
    "actor_rollout_ref.rollout.logprobs_mode": "a token is recorded with the probability that it was drawn with",
    "actor_rollout_ref.rollout.multi_stage_wake_up": "an engine does not sleep: it generates while the learner learns",
    "actor_rollout_ref.rollout.skip_tokenizer_init": "an engine takes and gives token ids",
    "actor_rollout_ref.rollout.moe_load_balance_metrics_interval": _DENSE,
    "actor_rollout_ref.rollout.qat.*": "weights are trained as they are",
    "actor_rollout_ref.rollout.disaggregation.*": "one engine reads prompts and writes replies",
    "actor_rollout_ref.rollout.prometheus.*": "prometheus_port says where metrics are served",
    "actor_rollout_ref.rollout.profiler.*": _LOGS,
    "actor_rollout_ref.rollout.trace.*": _LOGS,
    "actor_rollout_ref.rollout.agent.*": "a ticket is one prompt and its replies",
    "actor_rollout_ref.rollout.multi_turn.*": "a ticket is one prompt and its replies",
    "actor_rollout_ref.rollout.checkpoint_engine.*": "weights travel in messages of 64 MB",
    "actor_rollout_ref.rollout.update_weights_bucket_megabytes": "weights travel in messages of 64 MB, or in one piece",
    "algorithm.kl_penalty": "one estimate of the divergence is used",
    "algorithm.kl_ctrl.*": "the weight of the penalty stays as it is",
    "algorithm.pf_ppo.*": "every reply of a batch is learned from alike",
    "algorithm.filter_groups.max_inflight_gen_batches": _STREAMED,
    "algorithm.filter_groups.metric": "groups are filtered by their reward",
    "algorithm.filter_groups.max_num_gen_batches": "what is filtered is collected anew, under the same lead",
    "critic.*": "the critic shares the learner's settings (critic=shared), or is a second model (critic=own)",
    "data.gen_batch_size": _STREAMED,
    "data.audio_key": _TEXT,
    "data.image_patch_size": _TEXT,
    "data.return_multi_modal_inputs": _TEXT,
    "data.mm_processor_kwargs.*": _TEXT,
    "data.val_batch_size": "an evaluation generates engine_rows samples at once; eval_prompts says how many there are",
    "data.filter_overlong_prompts_workers": "one process looks at the prompts",
    "data.reward_fn_key": "the task has one reward",
    "data.tokenizer": "a model has its own",
    "data.use_shm": "a file is read once",
    "data.return_raw_input_ids": "every rollout holds the token ids",
    "data.return_raw_chat": "every rollout holds the token ids",
    "data.return_full_prompt": "every rollout holds the token ids",
    "data.dataloader_num_workers": "a prompt is made when its ticket starts",
    "data.validation_shuffle": "an evaluation takes the first eval_prompts, always the same",
    "reward_model.reward_manager": _TASK_SCORES,
    "reward_model.launch_reward_fn_async": _SCORED,
    "reward_model.num_workers": _SCORED,
    "reward_model.overlong_buffer.log": _LOGS,
    "reward_model.reward_kwargs.overlong_buffer_cfg.log": _LOGS,
    "reward_model.reward_kwargs.max_resp_len": "data.max_response_length says it",
    "reward.num_workers": _SCORED,
    "reward.launch_reward_fn_async": _SCORED,
    "reward.reward_manager.*": _TASK_SCORES,
    "reward.reward_model.*": "rewards come from rules and functions",
    "reward.reward_kwargs.overlong_buffer_cfg.log": _LOGS,
    "reward.reward_kwargs.max_resp_len": "data.max_response_length says it",
    "reward.sandbox_fusion.*": "a reward function of yours calls what it needs",
    "sandbox_fusion.*": "a reward function of yours calls what it needs",
    "distillation.*": "there is no teacher",
    "transfer_queue.*": "rollouts are handed on by the runtime",
    "skip.*": "nothing is skipped; `headway run --replay RUN` does recorded work again",
    "trainer.experiment_name": _FOLDER,
    "trainer.default_local_dir": _FOLDER,
    "trainer.default_hdfs_dir": _FOLDER,
    "trainer.resume_mode": "`headway resume RUN` goes on from the last checkpoint",
    "trainer.resume_from_path": "`headway resume RUN` goes on from the last checkpoint",
    "trainer.del_local_ckpt_after_load": "keep_checkpoints says how many are kept",
    "trainer.max_critic_ckpt_to_keep": "a checkpoint holds the critic too",
    "trainer.use_legacy_worker_impl": "there is one implementation",
    "trainer.esi_redundant_time": "save_every says how often; SIGTERM saves and ends",
    "trainer.nccl_timeout": "nothing waits for NCCL alone: publish_deadline_s and learn_deadline_s bound those waits",
    "trainer.ray_wait_register_center_timeout": "start_deadline_s bounds the start of every role",
    "trainer.balance_batch": _TOKENS,
    "trainer.rollout_data_dir": f"{_SAMPLES} (log_samples replies of every update)",
    "trainer.validation_data_dir": f"{_SAMPLES} (log_eval_samples answers of every evaluation)",
    "trainer.val_only": "a run trains; `headway evaluate RUN` scores a checkpoint without training",
    "ray_init.*": _RAY,
    "ray_kwargs.*": _RAY,
    "global_profiler.*": _LOGS,
}
"""Accepted, said to have no effect when the run begins, and why. `.*` is everything below."""

ALL_PATHS = PATHS | lightzero_names.PATHS
ALL_WITHOUT_EFFECT = WITHOUT_EFFECT | lightzero_names.WITHOUT_EFFECT
GROUPS = {path.partition(".")[0] for path in (*ALL_PATHS, *ALL_WITHOUT_EFFECT)}


# -- reading ----------------------------------------------------------------------------------------


def is_theirs(name: str, value: Any) -> bool:
    """A group of their file, or a path of it. `data` is ours too where it is no group."""
    head, dot, _ = str(name).partition(".")
    return head in GROUPS and (bool(dot) or isinstance(value, Mapping) or name in ALL_WITHOUT_EFFECT)


def flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Groups as dotted paths. What is null is left out; `${another.path}` is that one's value."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{path}": inner for path, inner in flatten(value).items()}
        elif value is not None:
            flat[str(name)] = value
    return flat


INTERPOLATION = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)(,[^${}]*)?\}")
"""`${another.path}`, or `${oc.select:another.path,what it is otherwise}`; `${.name}` is in the same group."""


def resolve(flat: Theirs) -> dict[str, Any]:
    """Values that refer to others, replaced."""
    return {path: resolved(path, flat) for path in flat}


def resolved(path: str, flat: Theirs, seen: tuple[str, ...] = ()) -> Any:
    """One of them; `${oc.env:...}` and the like are refused."""
    value, first = flat[path], (*seen, path)[0]
    while isinstance(value, str) and (match := INTERPOLATION.search(value)):
        other = path.rpartition(".")[0] + match[1] if match[1].startswith(".") else match[1]
        if other in flat and other not in (*seen, path):
            found = resolved(other, flat, (*seen, path))
        elif match[2] is not None:
            found = yaml.safe_load(match[2][1:])
        else:
            raise ValueError(f"{first}={flat[first]!r}: {other} is not set in the file")
        value = found if match[0] == value.strip() else value.replace(match[0], str(found))
    if isinstance(value, str) and "${" in value:
        raise ValueError(f"{first}={flat[first]!r}: only ${{another.path}} is understood; write the value")
    return value


def mean(path: str, theirs: Theirs, fields: Collection[str]) -> Meaning:
    """What a path with its value sets in a recipe with these settings, or why it has no effect."""
    value, known = theirs[path], find_path(path)
    if known is None:
        why = _without_effect(path)
        if why is None:
            raise ValueError(unknown_path(path))
        return why
    try:
        meaning = known.translate(value, theirs, fields)
    except ValueError as error:
        raise ValueError(f"{path}={value!r}: {error}") from None
    if isinstance(meaning, dict):
        for field in meaning:
            if field not in fields:
                raise ValueError(f"setting {path!r} means {field!r}, which this recipe does not have")
    return meaning


def are_read_together(path: str, other: str) -> bool:
    """Whether one of two paths decides along with the other, so that both are refused for one reason."""
    known = [(name, find_path(name)) for name in (path, other)]
    (first, one), (second, two) = ((found.path if found else name, found) for name, found in known)
    return second in (one.reads if one else ()) or first in (two.reads if two else ())


def touched(paths: Collection[str], theirs: Theirs) -> list[str]:
    """These paths and the others in `theirs` whose meaning depends on them."""
    changed = {known.path if (known := find_path(path)) else path for path in paths}
    return [
        path
        for path in theirs
        if path not in OUR_WORDS
        and (path in paths or ((known := find_path(path)) is not None and not changed.isdisjoint(known.reads)))
    ]


def our_words(values: Mapping[str, Any], paths: Collection[str]) -> dict[str, Any]:
    """What a layer says in our words that their names depend on; None where it says so in theirs instead."""
    said: dict[str, Any] = {}
    for ours, theirs in OUR_WORDS.items():
        if ours in values:
            said[ours] = values[ours]
        elif not set(theirs).isdisjoint(paths):
            said[ours] = None
    return said


OUR_WORDS = {"engine": (ENGINE_NAME,), "updates": (STEPS, SAMPLES, EPOCHS), "lr_schedule": SCHEDULES}
"""Settings that decide what some of their names mean, and their names for these."""


def find_path(path: str) -> KnownPath | None:
    found: KnownPath | None = _most_specific(path, ALL_PATHS)
    return found


def _without_effect(path: str) -> str | None:
    if path.endswith("._target_"):
        return "classes are not named"
    found: str | None = _most_specific(path, ALL_WITHOUT_EFFECT)
    return found or ALL_WITHOUT_EFFECT.get(f"{path}.*")  # a whole group that another path is to fill


def _most_specific(path: str, table: Mapping[str, Any]) -> Any:
    if path in table:
        return table[path]
    parts = path.split(".")
    for size in range(len(parts) - 1, 0, -1):
        found = table.get(".".join([*parts[:size], "*"]))
        if found is not None:
            return found
    return None


def unknown_path(path: str) -> str:
    names = [*GROUPS, *(name.removesuffix(".*") for name in (*ALL_PATHS, *ALL_WITHOUT_EFFECT))]
    near = difflib.get_close_matches(path, names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown setting {path!r}{hint} (headway explain lists all that are known)"
