"""A model that trains without dice.

Training mode is what gradient checkpointing asks for, but it brings dropout along. A policy gradient compares the same
token under two sets of weights, so whatever else changes the answer is noise in the ratio.
"""

from __future__ import annotations

from typing import Any

import torch


def steady(model: Any) -> Any:
    """The model in training mode, every dropout off."""
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
    return model
