"""GRPO small enough for a test: a tiny model, forty prompts, and a reward for digits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from waiting import patient

from headway.llm.grpo import GRPOConfig
from headway.runs.config import read_values
from headway.testing.tiny_models import save_tiny_model

START_S = patient(120)
REWARD = """
def share_of_digits(prompt, response, truth, info):
    return sum(c.isdigit() for c in response) / max(len(response), 1)
"""


def make_material(root: Path, reward: str = REWARD, kind: str = "llama") -> Path:
    """What such a run reads, in this folder."""
    save_tiny_model(root / "model", kind)
    (root / "rewards.py").write_text(reward)
    lines = [json.dumps({"prompt": f"Count to {n}.", "truth": str(n)}) for n in range(40)]
    (root / "prompts.jsonl").write_text("\n".join(lines))
    return root


def tiny_values(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "model": str(folder / "model"),
        "task": f"jsonl:{folder / 'prompts.jsonl'}",
        "task_options": {"reward": f"{folder / 'rewards.py'}:share_of_digits"},
        "max_tokens": 8,
        "max_prompt_tokens": 64,
        "tickets_per_batch": 3,
        "group_size": 4,
        "learning_rate": 1e-2,
        "max_lead": 1,
        "evaluate_every": 0,
        "device": "cpu",
        "start_deadline_s": START_S,
        **changes,
    }


def tiny(folder: Path, **changes: Any) -> GRPOConfig:
    config = read_values(GRPOConfig, tiny_values(folder, **changes))
    assert isinstance(config, GRPOConfig)
    return config
