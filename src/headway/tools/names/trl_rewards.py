"""Names of TRL for rewards and data: reward functions and models, and the dataset of its script arguments."""

from __future__ import annotations

from headway.core.text_naming import unknown
from headway.core.types_opaque import SettingValue
from headway.tools.names.rows import Meaning
from headway.tools.names.rows_peer_rows import Beside, PeerName, must_be, said

DATASET = {"dataset_config": "config", "dataset_train_split": "split", "dataset_test_split": "held_out_split"}
"""What is said of a dataset, and the options of the task `datasets` that it is."""
SHIPPED = {"accuracy_reward": "math"}
NOT_HERE = {
    "think_format_reward": "reward=file.py:function can check a format",
    "reasoning_accuracy_reward": "reward=file.py:function can cut the thoughts off before it compares",
    "get_soft_overlong_punishment": "overlong_tokens does that",
}


def _functions(value: SettingValue, beside: Beside) -> Meaning:
    """Functions by their dotted paths, or as we write them; those that TRL ships, where they are here."""
    names = value if isinstance(value, list | tuple) else [value]
    return {"reward": [_function(name) for name in names]}


def _function(name: SettingValue) -> str:
    if not isinstance(name, str) or not name:
        raise ValueError(f"reward_funcs names functions, received {name!r}")
    if name in NOT_HERE:
        raise ValueError(f"reward_funcs: {name!r} of TRL is not here; {NOT_HERE[name]}")
    if name in SHIPPED or ":" in name:
        return SHIPPED.get(name, name)
    module, dot, function = name.rpartition(".")
    if not dot:
        raise ValueError(f"reward_funcs: {unknown('function', name, [*SHIPPED, 'module.function'])}")
    return f"{module}:{function}"


def _dataset(value: SettingValue, beside: Beside) -> Meaning:
    """All that is said of the dataset, as the options of its task."""
    options = {ours: beside.value(name) for name, ours in DATASET.items() if beside.is_said(name)}
    task = {"task": f"datasets:{beside.value('dataset_name')}"} if beside.is_said("dataset_name") else {}
    return {**task, **({"task_options": options} if options else {})}


ROWS: tuple[PeerName, ...] = (
    said("reward_funcs", "reward", "rewards.score", _functions),
    said("reward_model_name_or_path", "reward_model", "models/judge"),
    must_be("multi_objective_aggregation", "sum_then_normalize", "rewards are added up by reward_weights"),
    said("dataset_name", "task, task_options", "trl-lib/maths", _dataset),
    *(said(name, "task_options", ours, _dataset) for name, ours in DATASET.items()),
)
