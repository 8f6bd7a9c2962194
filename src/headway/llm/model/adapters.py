"""Low-rank adapters: a few trained numbers beside each frozen matrix, folded into it when weights are published.

W' = W + scale * B A          A [r, in], B [out, r]: trained; W [out, in]: as it came
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from headway.llm.model.types import CausalModel


def add_adapters(model: CausalModel, rank: int, alpha: float, *, seed: int = 0) -> CausalModel:
    """Freezes the model and puts adapters of this rank beside its linear layers, all but the head. Needs peft.

    A starts random, by the seed and nothing else; B starts at zero, so that the model is what it was.
    """
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
    whole: Any = model
    whole = inject_adapter_in_model(config, whole)
    adapted: CausalModel = whole
    random = torch.Generator().manual_seed(seed)  # never the global one: roles are built at the same time
    with torch.no_grad():
        for module in adapted_layers(adapted).values():
            for layer in (*module.lora_A.values(), *module.lora_B.values()):
                if layer.weight.is_meta:  # beside weights that are not read yet
                    layer.weight = torch.nn.Parameter(torch.zeros_like(layer.weight, device="cpu"))
            for layer in module.lora_A.values():
                width = layer.weight.shape[1]
                layer.weight.copy_((torch.rand(layer.weight.shape, generator=random) * 2 - 1) / width**0.5)
    return adapted


def has_adapters(model: CausalModel) -> bool:
    return bool(adapted_layers(model))


@contextmanager
def without_adapters(model: CausalModel) -> Iterator[None]:
    """Makes the model what it was as it came: what a reference wants, without a second copy of the weights.

    Only between a backward pass and the next forward pass: what is computed with gradients in here has none.
    """
    adapted = adapted_layers(model).values()
    for module in adapted:
        module.enable_adapters(False)
    try:
        yield
    finally:
        for module in adapted:
            module.enable_adapters(True)


def adapted_layers(model: CausalModel) -> dict[str, Any]:
    """Finds the layers that have adapters, by their names."""
    return {name: m for name, m in model.named_modules() if hasattr(m, "lora_A") and hasattr(m, "base_layer")}


@torch.no_grad()
def plain_weights(model: CausalModel, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Returns what training has changed, under the model's own names, adapters folded in, as this type or as it is.

    May be the live weights.
    """
    plain: dict[str, Tensor] = {}
    adapted: set[str] = set()
    for name, module in adapted_layers(model).items():
        adapted.update(f"{name}.{inner}" for inner, _ in module.named_parameters())
        change = sum(module.get_delta_weight(adapter) for adapter in module.active_adapters)
        folded = module.base_layer.weight + change
        plain[f"{name}.weight"] = folded.to(dtype or folded.dtype)  # at once: one layer is there in both
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and name not in adapted:
            plain[name] = parameter.detach().to(dtype or parameter.dtype)
    return plain
