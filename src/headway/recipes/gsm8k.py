"""Grade-school maths: GRPO on GSM8K with a rule reward.

    headway run gsm8k --data path/to/gsm8k --model path/to/a/model

The folder holds train.jsonl and test.jsonl, one question and worked answer a line. The reward is 1 where the number
after `####` is right (scoring=strict), or where the last number is (flexible).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from headway.recipes.grpo import GRPOConfig, stations

__all__ = ["CONFIG", "GSM8KConfig", "stations"]


class GSM8KConfig(GRPOConfig):
    """GRPO's settings with other defaults, and where the data are."""

    data: str = "gsm8k"
    """The folder with train.jsonl and test.jsonl."""
    scoring: Literal["strict", "flexible"] = "flexible"
    """strict: the number after ####. flexible: the last number, wherever it stands."""
    format_bonus: float = Field(default=0.0, ge=0)
    """Added for a reply that ends with `#### number`, right or wrong. A weak model learns this and nothing else."""
    task: str = ""
    """Always gsm8k:DATA."""
    max_tokens: int = Field(default=256, ge=1)
    """Longest reply."""
    max_prompt_tokens: int = Field(default=384, ge=1)
    """Room for the longest prompt."""
    microbatch_tokens: int = Field(default=4096, ge=1)
    """Tokens per forward pass. Fewer take less memory; what is learned is the same."""
    updates: int | None = Field(default=200, ge=1)
    """Stop after this many learn calls."""
    eval_prompts: int = Field(default=128, ge=1)
    """Held-out prompts per evaluation."""

    @model_validator(mode="before")
    @classmethod
    def _task_from_data(cls, values: Any) -> Any:
        if isinstance(values, dict):
            folder = values.get("data", cls.model_fields["data"].default)
            expected = f"gsm8k:{folder}"
            if values.get("task", expected) not in ("", expected):
                raise ValueError(f"the task of this recipe is {expected!r}, received {values['task']!r}")
            options = {name: values.get(name, cls.model_fields[name].default) for name in ("scoring", "format_bonus")}
            values = {**values, "task": expected, "task_options": options}
        return values


CONFIG = GSM8KConfig
