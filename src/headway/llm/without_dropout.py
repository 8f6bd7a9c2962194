"""A model that trains without dice.

Training mode is what gradient checkpointing asks for, but it brings dropout along. A policy gradient compares the same
token under two sets of weights, so whatever else changes the answer is noise in the ratio.
"""

from __future__ import annotations

from typing import Any

import torch

DICE = ("drop", "jitter")
"""What the names of such numbers have in common: attention_dropout, attn_pdrop, layerdrop, router_jitter_noise."""


def steady(model: Any) -> Any:
    """The model in training mode, every dropout off: as a module, or as a number that a module keeps for itself."""
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and any(part in name for part in DICE):
                setattr(module, name, 0.0)
    return model
