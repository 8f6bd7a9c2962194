"""Grade-school maths: GRPO on GSM8K with a rule reward.

    headway run gsm8k --data path/to/gsm8k --model path/to/a/model

The folder holds train.jsonl and test.jsonl, one question and worked answer a line. The reward is 1 where the number
after `####` is right (scoring=strict), or where the last number is (flexible).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from headway.core.types_opaque import SettingValue
from headway.llm.grpo import GRPOConfig, export, memory, stations
from headway.runs.config import with_defaults

__all__ = ["CONFIG", "GSM8KConfig", "export", "memory", "stations"]

OWN = ("scoring", "format_bonus")
"""Options of the task that are settings of the recipe."""


@with_defaults(max_tokens=256, max_prompt_tokens=384, microbatch_tokens=4096, updates=200, eval_prompts=128)
class GSM8KConfig(GRPOConfig):
    """Data: where it is, and how answers are scored."""

    data: str = "gsm8k"
    """The folder with train.jsonl and test.jsonl."""
    scoring: Literal["strict", "flexible"] = "flexible"
    """strict: the number after ####. flexible: the last number, wherever it stands."""
    format_bonus: float = Field(default=0.0, ge=0)
    """Added for a reply that ends with `#### number`, right or wrong. A weak model learns this and nothing else."""
    task: str = ""
    """Always gsm8k:DATA."""
    task_options: dict[str, SettingValue] = Field(default_factory=dict)
    """Other settings of the task. scoring and format_bonus may stand here too."""

    @model_validator(mode="before")
    @classmethod
    def _task_from_data(cls, values: object) -> SettingValue:
        if isinstance(values, dict):
            kind, _, folder = str(values.get("task") or "gsm8k:").partition(":")
            if kind != "gsm8k":
                raise ValueError(f"the task of this recipe is 'gsm8k:DATA', received {values['task']!r}")
            folder = values.get("data") or folder or cls.model_fields["data"].default  # other data than a file's task
            values = {**values, "data": folder, "task": f"gsm8k:{folder}"}
            if isinstance(values.get("task_options"), dict):
                values |= _as_settings(values)
        return values

    @property
    def all_task_options(self) -> dict[str, SettingValue]:
        return {**self.task_options, **{name: getattr(self, name) for name in OWN}}


def _as_settings(values: dict[str, SettingValue]) -> dict[str, SettingValue]:
    """What the recipe has a setting for is that setting, wherever it is said."""
    said = {name: value for name, value in values["task_options"].items() if name in OWN}
    for name, value in said.items():
        if values.get(name, value) != value:
            raise ValueError(f"task_options say {name}={value!r}, but {name}={values[name]!r} is set too")
    return {**said, "task_options": {n: v for n, v in values["task_options"].items() if n not in OWN}}


CONFIG = GSM8KConfig
