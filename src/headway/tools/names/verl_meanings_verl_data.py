"""The names of verl for data and rewards, as rows: files, reward functions, reward models."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import yaml

from headway.tools.names.rows import KnownPath, Meaning, Theirs, only

TRAIN_FILES, VAL_FILES, PROMPT_KEY = "data.train_files", "data.val_files", "data.prompt_key"
MEDIA_KEYS = ("data.image_key", "data.video_key")
REWARD_FILE, REWARD_NAME = "custom_reward_function.path", "custom_reward_function.name"
NEW_REWARD_FILE, NEW_REWARD_NAME = f"reward.{REWARD_FILE}", f"reward.{REWARD_NAME}"


def _files(path: str, theirs: Theirs) -> list[str]:
    value = theirs[path]
    names = yaml.safe_load(value) if isinstance(value, str) and value.startswith("[") else value
    names = names if isinstance(names, list) else [names]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"a file, or a list of files, is read; received {value!r}")
    return names


def _one_file(path: str, theirs: Theirs) -> str:
    names = _files(path, theirs)
    if len(names) > 1:
        raise ValueError(f"{path}: one file is read, received {names!r}")
    return names[0]


def files(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    """For a recipe with a folder of its own, that folder; otherwise a task of this file."""
    if "data" in fields:
        files = [Path(_one_file(path, theirs)) for path in (TRAIN_FILES, VAL_FILES) if path in theirs]
        folders = {str(file.parent if file.suffix else file) for file in files}
        known = [f"{name}{suffix}" for name in ("train", "test") for suffix in (".jsonl", ".parquet")]
        if len(folders) > 1 or any(file.suffix and file.name not in known for file in files):
            raise ValueError("the recipe reads train and test of one folder, as .jsonl or .parquet")
        return {"data": folders.pop()}
    if TRAIN_FILES not in theirs:
        raise ValueError(f"it needs {TRAIN_FILES} too")
    first, *_ = _files(TRAIN_FILES, theirs)
    kind = "jsonl" if first.endswith((".jsonl", ".json")) else "parquet"  # a folder holds parquet files
    return {"task": f"{kind}:{first}", "task_options": _options(theirs)}


def reward(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    file = theirs.get(REWARD_FILE, theirs.get(NEW_REWARD_FILE))
    name = theirs.get(REWARD_NAME, theirs.get(NEW_REWARD_NAME, "compute_score"))
    if file is None:
        if value == "compute_score":
            return "it is the name that a function in custom_reward_function.path would have"
        raise ValueError(f"it is the name of a function in a file: {REWARD_FILE} is needed too")
    return {"reward": [f"{file}:{name}"]}


def reward_options(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    """What the function gets besides, by name."""
    found: dict[str, object] = {}
    for begin in (f"{group}custom_reward_function.reward_kwargs." for group in ("", "reward.")):
        found |= {path.removeprefix(begin): told for path, told in theirs.items() if path.startswith(begin)}
    return {"reward_options": found}


MODEL_PATHS = {"reward_model": "reward_model.model.path", "reward.reward_model": "reward.reward_model.model_path"}
MODEL_ROWS = ("micro_batch_size", "micro_batch_size_per_gpu")
ALL_MODEL_PATHS = (
    *(f"{group}.enable" for group in MODEL_PATHS),
    *MODEL_PATHS.values(),
    *(f"{group}.{name}" for group in MODEL_PATHS for name in MODEL_ROWS),
)


def reward_model(group: str) -> Callable[..., Meaning]:
    def translate(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
        if not theirs.get(f"{group}.enable"):
            return "rewards come from rules and functions, unless its enable is on"
        if MODEL_PATHS[group] not in theirs:
            raise ValueError(f"a reward model is named by its folder or id: {MODEL_PATHS[group]} is needed too")
        rows = [theirs[f"{group}.{name}"] for name in MODEL_ROWS if f"{group}.{name}" in theirs]
        return {"reward_model": theirs[MODEL_PATHS[group]], **({"reward_model_rows": rows[-1]} if rows else {})}

    return translate


def _options(theirs: Theirs) -> dict[str, object]:
    options: dict[str, object] = {}
    if VAL_FILES in theirs:
        options["held_out"] = _one_file(VAL_FILES, theirs)
    if PROMPT_KEY in theirs:
        options["prompt_field"] = theirs[PROMPT_KEY]
    media = [theirs[path] for path in MEDIA_KEYS if path in theirs]
    if media:
        options["media_fields"] = media
    more = _files(TRAIN_FILES, theirs)[1:]
    if more:
        options["more_files"] = more
    return options


def media_key(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if "data" in fields or TRAIN_FILES not in theirs:
        return "prompts are text"
    return files(value, theirs, fields)


def prompt_key(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    return "the recipe knows its own file" if "data" in fields else files(value, theirs, fields)


ALL_TASK_PATHS = (TRAIN_FILES, VAL_FILES, PROMPT_KEY, *MEDIA_KEYS)
ALL_REWARD_PATHS = (REWARD_FILE, REWARD_NAME, NEW_REWARD_FILE, NEW_REWARD_NAME)

ROWS: tuple[KnownPath, ...] = (
    KnownPath(TRAIN_FILES, "data (gsm8k), task (grpo)", files, "gsm8k/train.jsonl", ALL_TASK_PATHS),
    KnownPath(VAL_FILES, "data (gsm8k), task_options (grpo)", files, "gsm8k/test.jsonl", ALL_TASK_PATHS),
    KnownPath(PROMPT_KEY, "task_options (grpo)", prompt_key, "prompt", ALL_TASK_PATHS),
    KnownPath("data.image_key", "task_options (grpo): refused", media_key, "images", ALL_TASK_PATHS),
    KnownPath("data.video_key", "task_options (grpo): refused", media_key, "videos", ALL_TASK_PATHS),
    *(
        KnownPath(path, "reward", reward, example, ALL_REWARD_PATHS)
        for path, example in (
            *((REWARD_FILE, "rewards.py"), (REWARD_NAME, "score")),
            *((NEW_REWARD_FILE, "rewards.py"), (NEW_REWARD_NAME, "score")),
        )
    ),
    *(
        KnownPath(f"{group}custom_reward_function.reward_kwargs.*", "reward_options", reward_options, 1)
        for group in ("", "reward.")
    ),
    *(
        KnownPath(path, "reward_model, reward_model_rows", reward_model(group), example, ALL_MODEL_PATHS)
        for group in MODEL_PATHS
        for path, example in (
            (f"{group}.enable", False),
            (MODEL_PATHS[group], "models/judge"),
            *((f"{group}.{name}", 8) for name in MODEL_ROWS),
        )
    ),
    KnownPath(
        "reward_model.model.trust_remote_code",
        "(only False)",
        only(False, why="a model's own code is not run"),
        False,
    ),
)

_TASK_SCORES = "the task scores"
_SCORED = "rewards are always computed beside generation; reward_calls says how many at once"
_JUDGE = "a reward model computes in its collector, on reward_model_device, with its own tokenizer and chat template"
WITHOUT_EFFECT: dict[str, str] = {
    "reward_model.reward_manager": _TASK_SCORES,
    "reward_model.launch_reward_fn_async": _SCORED,
    "reward_model.model.*": _JUDGE,
    "reward_model.rollout.*": _JUDGE,
    "reward_model.strategy": _JUDGE,
    "reward_model.max_length": _JUDGE,
    "reward_model.use_dynamic_bsz": _JUDGE,
    "reward_model.forward_max_token_len_per_gpu": _JUDGE,
    "reward_model.ulysses_sequence_parallel_size": _JUDGE,
    "reward_model.enable_resource_pool": _JUDGE,
    "reward_model.n_gpus_per_node": _JUDGE,
    "reward_model.nnodes": _JUDGE,
    "reward_model.sandbox_fusion.*": "a reward function of yours calls what it needs",
    "reward_model.num_workers": _SCORED,
    "reward_model.overlong_buffer.log": "every metric is in the run's folder",
    "reward_model.reward_kwargs.overlong_buffer_cfg.log": "every metric is in the run's folder",
    "reward_model.reward_kwargs.max_resp_len": "data.max_response_length says it",
    "reward.num_workers": _SCORED,
    "reward.launch_reward_fn_async": _SCORED,
    "reward.reward_manager.*": _TASK_SCORES,
    "reward.reward_model.*": _JUDGE,
    "reward.reward_kwargs.overlong_buffer_cfg.log": "every metric is in the run's folder",
    "reward.reward_kwargs.max_resp_len": "data.max_response_length says it",
    "reward.sandbox_fusion.*": "a reward function of yours calls what it needs",
    "sandbox_fusion.*": "a reward function of yours calls what it needs",
}
