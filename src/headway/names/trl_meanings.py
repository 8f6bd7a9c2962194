"""How names of TRL are translated, where that takes more than another name: its rewards and its data."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headway.core.naming import unknown

DATASET = {
    "dataset_config": "config",
    "dataset_train_split": "split",
    "dataset_test_split": "held_out_split",
}
"""Names of TRL's script arguments, and the options of the task `datasets` that they are."""
THEIR_REWARDS = {"accuracy_reward": "math"}
NOT_HERE = {
    "think_format_reward": "reward=file.py:function can check a format",
    "reasoning_accuracy_reward": "reward=file.py:function can cut the thoughts off before it compares",
    "get_soft_overlong_punishment": "overlong_tokens does that",
}


def reward_funcs(value: object) -> dict[str, object]:
    """Functions by their dotted paths, or as we write them; what TRL ships itself, where it is here."""
    names = value if isinstance(value, list | tuple) else [value]
    return {"reward": [_reward(name) for name in names]}


def _reward(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise ValueError(f"reward_funcs names functions, received {name!r}")
    if name in NOT_HERE:
        raise ValueError(f"reward_funcs: {name!r} of TRL is not here; {NOT_HERE[name]}")
    if name in THEIR_REWARDS:
        return THEIR_REWARDS[name]
    if ":" in name:
        return name
    module, dot, function = name.rpartition(".")
    if not dot:
        raise ValueError(f"reward_funcs: {unknown('function', name, [*THEIR_REWARDS, 'module.function'])}")
    return f"{module}:{function}"


def aggregation(value: object) -> dict[str, object]:
    if value != "sum_then_normalize":
        raise ValueError(
            f"multi_objective_aggregation={value!r}: only sum_then_normalize is possible here: rewards are added up by "
            "reward_weights, and the sum is compared within its group"
        )
    return {}


def dataset_name(value: object, together: Mapping[str, object]) -> dict[str, object]:
    return {"task": f"datasets:{value}", **dataset_options(value, together)}


def dataset_option(ours: str) -> Callable[[object], dict[str, object]]:
    return lambda value: {"task_options": {ours: value}}


def dataset_options(value: object, together: Mapping[str, object]) -> dict[str, object]:
    """All that is said of the dataset, as the options of its task."""
    options = {ours: together[name] for name, ours in DATASET.items() if together.get(name) is not None}
    return {"task_options": options} if options else {}
