"""A model that trains without dropout.

Training mode is what gradient checkpointing asks for, but it brings dropout along. A policy gradient compares the same
token under two sets of weights, so whatever else changes the answer is noise in the ratio.
"""

from __future__ import annotations

import torch

from headway.llm.model.types import CausalModel

RANDOM_PARTS = ("drop", "jitter")
"""What the names of such numbers have in common: attention_dropout, attn_pdrop, layerdrop, router_jitter_noise."""


def without_dropout(model: CausalModel) -> CausalModel:
    """The model in training mode, every dropout off: as a module, or as a number that a module keeps for itself."""
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and any(part in name for part in RANDOM_PARTS):
                setattr(module, name, 0.0)
    return model
