"""Low-rank adapters: a few trained numbers beside each frozen matrix, folded into it when weights are published.

W' = W + scale * B A          A [r, in], B [out, r]: trained; W [out, in]: as it came
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def add_adapters(model: Any, rank: int, alpha: float) -> Any:
    """Freeze the model and put adapters of this rank beside its linear layers, all but the head. Needs peft."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ModuleNotFoundError:
        raise ValueError("lora_rank > 0 needs peft: pip install 'headway[llm]'") from None
    head = model.get_output_embeddings()
    names = sorted(
        {
            name.rpartition(".")[2]
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear) and module is not head
        }
    )
    model.requires_grad_(False)
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=names, lora_dropout=0.0)  # type: ignore[arg-type]
    return inject_adapter_in_model(config, model)


@torch.no_grad()
def plain_weights(model: Any) -> dict[str, Tensor]:
    """What training has changed, under the model's own names, adapters folded in. May be the live weights."""
    plain: dict[str, Tensor] = {}
    adapted: set[str] = set()
    for name, module in model.named_modules():
        if hasattr(module, "lora_A") and hasattr(module, "base_layer"):
            adapted.update(f"{name}.{inner}" for inner, _ in module.named_parameters())
            change = sum(module.get_delta_weight(adapter) for adapter in module.active_adapters)
            plain[f"{name}.weight"] = module.base_layer.weight + change
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and name not in adapted:
            plain[name] = parameter.detach()
    return plain
