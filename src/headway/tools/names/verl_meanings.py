"""How names of verl and its relatives are translated, where that takes more than another name.

Each function is given a value, all of their names that are set, and the settings of the recipe; it returns settings
here, or the reason why there is no effect. `verl.py` says which name is translated by which.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import yaml

from headway.core.text_naming import unknown
from headway.tools.names.flat import KNOWN_NAMES
from headway.tools.names.rows import Meaning, Theirs, whole
from headway.tools.names.verl_meanings_verl_corrections import CLIP, find_meaning


def flat(name: str) -> Callable[..., Meaning]:
    return lambda value, theirs, fields: KNOWN_NAMES[name].in_recipe(value, fields)


def or_off(ours: str) -> Callable[..., Meaning]:
    """-1 is never."""
    return lambda value, theirs, fields: {ours: 0 if value == -1 else value}


def with_gae(ours: str) -> Callable[..., Meaning]:
    def translate(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
        if theirs.get("algorithm.adv_estimator") in ("gae", "ppo"):
            return {ours: value}
        return "without adv_estimator=gae there is no critic, and nothing is discounted"

    return translate


BATCH = "data.train_batch_size"
FETCHES = "async_training.min_batch_count"
REQUIRED = "async_training.require_batches"
MINI = "actor_rollout_ref.actor.ppo_mini_batch_size"


def _fetched(theirs: Theirs) -> int:
    return max(whole(name, theirs.get(name, 1)) for name in (FETCHES, REQUIRED))


def _fetches_minibatches(theirs: Theirs) -> bool:
    """The asynchronous trainer has no batches: with train_batch_size=0 it fetches require_batches minibatches."""
    return theirs.get(BATCH, 0 if REQUIRED in theirs and MINI in theirs else 1) == 0


def _prompts_per_update(theirs: Theirs) -> int:
    if not _fetches_minibatches(theirs):
        return _fetched(theirs) * whole(BATCH, theirs.get(BATCH, 1))
    if MINI not in theirs:
        raise ValueError(f"with {BATCH}=0 an update takes require_batches * ppo_mini_batch_size prompts: set {MINI}")
    return _fetched(theirs) * whole(MINI, theirs[MINI])


def batch(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return {"tickets_per_batch": _prompts_per_update(theirs)}


def minibatches(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if BATCH not in theirs and not _fetches_minibatches(theirs):
        raise ValueError(f"it says how a batch is cut, so {BATCH} is needed too")
    batch, part = _prompts_per_update(theirs), whole(MINI, value)
    if batch % part:
        raise ValueError(f"a batch of {batch} prompts cannot be cut into minibatches of {part}")
    return {"num_minibatches": batch // part}


def clip(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    sides = {"clip_low": f"{CLIP}_low", "clip_high": f"{CLIP}_high"}
    own = {ours: value for ours, path in sides.items() if path not in theirs}
    return own or "clip_ratio_low and clip_ratio_high say it"


LORA = "actor_rollout_ref.model.lora"


def lora(ours: str) -> Callable[..., Meaning]:
    def translate(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
        return {ours: value} if theirs.get(f"{LORA}.rank") else "lora_rank and lora_alpha say it"

    return translate


USE_KL, KL = "actor_rollout_ref.actor.use_kl_loss", "actor_rollout_ref.actor.kl_loss_coef"
IN_REWARD, IN_REWARD_KL = "algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef"
ALL_KL_PATHS = (USE_KL, KL, IN_REWARD, IN_REWARD_KL)
THEIR_KL = 0.001


def kl(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if theirs.get(USE_KL) and theirs.get(IN_REWARD):
        raise ValueError("the penalty is in the loss or taken from the rewards, not both")
    if theirs.get(IN_REWARD):
        return {"kl_in_reward": True, "kl_weight": theirs.get(IN_REWARD_KL, THEIR_KL)}
    off = {"kl_in_reward": False} if IN_REWARD in theirs else {}
    return {**off, "kl_weight": theirs.get(KL, THEIR_KL) if theirs.get(USE_KL) else 0.0}


ESTIMATORS = ("grpo", "dr_grpo", "rloo", "reinforce_plus_plus", "gae", "ppo")
ESTIMATOR, BY_STD = "algorithm.adv_estimator", "algorithm.norm_adv_by_std_in_grpo"


def estimator(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    name = theirs.get(ESTIMATOR, "grpo")
    if name == "gigpo":
        return gigpo_mode(value, theirs, fields)
    if name not in ESTIMATORS:
        raise ValueError(unknown("estimator", str(name), (*ESTIMATORS, "gigpo")))
    if name == "grpo" and theirs.get(BY_STD) is False:
        name = "dr_grpo"
    return {"estimator": name}


GIGPO_MODE = "algorithm.gigpo.mode"
GIGPO_MODES = {"mean_norm": "dr_grpo", "mean_std_norm": "grpo"}


def gigpo_mode(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    """Comparison among equal states beside that of whole episodes; both divide by the deviation, or do not."""
    if theirs.get(ESTIMATOR) != "gigpo":
        return "without adv_estimator=gigpo equal states are not compared"
    mode = theirs.get(GIGPO_MODE, "mean_norm" if theirs.get(BY_STD) is False else "mean_std_norm")
    if mode not in GIGPO_MODES:
        raise ValueError(unknown("mode", str(mode), GIGPO_MODES))
    return {"estimator": GIGPO_MODES[mode], "credit": "gigpo"}


ENGINES = {"hf": "transformers", "transformers": "transformers", "vllm": "vllm"}


def engine(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if str(value) not in ENGINES:
        raise ValueError(unknown("engine", str(value), ENGINES))
    return {"engine": ENGINES[str(value)]}


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


PARTS = f"{ROLLOUT}.tensor_model_parallel_size"


def vllm(why: str, *only: object, is_parts: bool = False) -> Callable[..., Meaning]:
    """An argument of vLLM; in the engine of this process it has no effect, or only these values do.

    `is_parts`: it says over how many GPUs an engine is spread, which are then asked for.
    """

    def translate(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
        if theirs.get("engine", theirs.get(ENGINE_NAME)) == "vllm":
            options = _vllm_options(theirs)
            parts = whole(PARTS, value) if is_parts and "engine_gpus" in fields else 1
            return {"vllm_options": options, **({"engine_gpus": float(parts)} if parts > 1 else {})}
        if only and value not in only:
            raise ValueError(f"only {only[0]} is possible with the engine in this process: {why}")
        return f"{why}; it is an argument of vLLM ({ENGINE_NAME}=vllm)"

    return translate


def _vllm_options(theirs: Theirs) -> dict[str, object]:
    below = {path.removeprefix(f"{VLLM_KWARGS}."): path for path in theirs if path.startswith(f"{VLLM_KWARGS}.")}
    named = {ours: path for path, ours in VLLM_OPTIONS.items() if path in theirs}
    for ours in named.keys() & below.keys():
        if theirs[named[ours]] != theirs[below[ours]]:
            raise ValueError(
                f"{named[ours]}={theirs[named[ours]]!r} and {below[ours]}={theirs[below[ours]]!r} disagree"
            )
    return {ours: theirs[path] for ours, path in (named | below).items()}


def stop(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return {"stop": [value] if isinstance(value, str) else value}


def correction(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return find_meaning(theirs)


def weight_transport(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if value not in ("naive", "nccl"):
        raise ValueError("only naive or nccl is possible here: both are auto, which is NCCL between GPUs")
    return {"weight_transport": "auto"}


def do_sample(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return "val_kwargs.temperature says it" if value else {"eval_temperature": 0.0}


GROUP = "actor_rollout_ref.rollout.n"


def group(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return f"{GROUP} says it" if GROUP in theirs else {"group_size": value}


def eval_prompts(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return "eval_prompts says how many there are" if value == -1 else {"eval_prompts": value}


VAL_TEMPERATURE, VAL_SAMPLE = (f"actor_rollout_ref.rollout.val_kwargs.{name}" for name in ("temperature", "do_sample"))


def eval_temperature(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if theirs.get(VAL_SAMPLE, False):
        return {"eval_temperature": value}
    return {"eval_temperature": 0.0}


def eval_top_p(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if theirs.get(VAL_SAMPLE) and theirs.get(VAL_TEMPERATURE):
        return {"eval_top_p": value}
    return "without do_sample and a temperature an evaluation takes the most likely token"


TEMPLATE = "data.apply_chat_template_kwargs"


def template_options(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    begin = f"{TEMPLATE}."
    return {"chat_template_options": {p.removeprefix(begin): told for p, told in theirs.items() if p.startswith(begin)}}


def long_prompts(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return {"on_long_prompt": "drop" if value else "error"}


STEPS, EPOCHS = "trainer.total_training_steps", "trainer.total_epochs"
SAMPLES = "rollout.total_rollout_steps"


def epochs(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if STEPS in theirs or SAMPLES in theirs:
        return "total_training_steps (or total_rollout_steps) says when the run ends"
    return {"data_epochs": value, "updates": None}


def rollout_steps(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if STEPS in theirs:
        return "total_training_steps says when the run ends"
    return {"updates": max(1, whole(SAMPLES, value) // _prompts_per_update(theirs))}


OPTIM = "actor_rollout_ref.actor.optim"
WARMUP, WARMUP_RATIO = f"{OPTIM}.lr_warmup_steps", f"{OPTIM}.lr_warmup_steps_ratio"
SCHEDULES = (f"{OPTIM}.lr_scheduler_type", f"{OPTIM}.warmup_style")


def warmup(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
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
            return whole(path, theirs[path])
    if SAMPLES not in theirs:
        raise ValueError(f"a share of all updates needs {STEPS}; or say lr_warmup_steps")
    return max(1, whole(SAMPLES, theirs[SAMPLES]) // _prompts_per_update(theirs))


def floor(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    schedule = next((theirs[path] for path in ("lr_schedule", *SCHEDULES) if path in theirs), "constant")
    return "a constant learning rate does not fall" if schedule == "constant" else {"lr_floor": value}


LOGGERS = {"console": {}, "file": {}, "wandb": {"use_wandb": True}, "tensorboard": {"tensorboard": True}}


def loggers(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    names = yaml.safe_load(value) if isinstance(value, str) else value
    settings: dict[str, object] = {}
    for name in names if isinstance(names, list) else [names]:
        if name not in LOGGERS:
            raise ValueError(unknown("logger", str(name), LOGGERS))
        settings |= LOGGERS[name]
    return settings or "the console and metrics.jsonl are always written"


def betas(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    betas = yaml.safe_load(value) if isinstance(value, str) else value
    if not isinstance(betas, list) or len(betas) != 2:
        raise ValueError(f"two numbers are needed, received {value!r}")
    return {"adam_beta1": betas[0], "adam_beta2": betas[1]}


OVERLONG = "reward_model.overlong_buffer"
OVERLONGS = (OVERLONG, *(f"{group}.reward_kwargs.overlong_buffer_cfg" for group in ("reward_model", "reward")))
"""The same group, as it was called from version to version."""


FILTERS, METRIC = "algorithm.filter_groups.enable", "algorithm.filter_groups.metric"


def metric(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    """Groups are filtered before anything is taken off their rewards for the divergence."""
    if not theirs.get(FILTERS):
        return "filter_groups.enable is off"
    allowed = ("score", "seq_reward", *(() if theirs.get(IN_REWARD) else ("seq_final_reward",)))
    if value not in allowed:
        raise ValueError(f"only {' or '.join(allowed)} is possible here: groups are filtered by their rewards")
    return "groups are filtered by their rewards"


def overlong(group: str) -> Callable[..., Meaning]:
    def translate(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
        if not theirs.get(f"{group}.enable"):
            return "the overlong buffer's enable is off"
        return {"overlong_tokens": theirs.get(f"{group}.len", 0)}

    return translate
