"""What a rank publishes of a model in shards: its rows of what training has changed, as an engine wants them.

    W' = W + scale * B A    rows of W' need the same rows of W and B, which lie on the same rank, and all of A, which is
                            small and gathered for the one layer that is being made

Nothing is made before it is asked for, and nothing is kept: one layer at a time is in memory twice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.llm.model.adapters import adapted_layers
from headway.llm.model.types import CausalModel


class PublishedRows(NamedTuple):
    """Some rows of one weight, under the name it has in a plain model."""

    name: str
    dtype: torch.dtype
    first: int
    shape: tuple[int, ...]  # of the rows that are here
    whole: tuple[int, ...]
    make: Callable[[], Tensor]


def published_rows(model: CausalModel, dtype: torch.dtype | None) -> list[PublishedRows]:
    """Finds what this rank has to publish. All ranks make all of theirs, in this order."""
    found: list[PublishedRows] = []
    adapted: set[str] = set()
    for name, module in adapted_layers(model).items():
        adapted.update(f"{name}.{inner}" for inner, _ in module.named_parameters())
        found.append(_rows(f"{name}.weight", module.base_layer.weight, dtype, partial(_folded, module)))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and name not in adapted:
            found.append(_rows(name, parameter, dtype, partial(_local, parameter)))
    return found


def _rows(name: str, weight: Any, dtype: torch.dtype | None, make: Callable[[], Tensor]) -> PublishedRows:
    local = _local(weight)
    return PublishedRows(name, dtype or weight.dtype, first_row(weight), tuple(local.shape), tuple(weight.shape), make)


def first_row(weight: Any) -> int:
    """Says which row of the whole is the first one here: rows are dealt out in equal parts, the last may be short."""
    mesh = getattr(weight, "device_mesh", None)
    if mesh is None:
        return 0
    total: int = weight.shape[0]
    return min(total, -(-total // mesh.size(-1)) * mesh.get_local_rank(mesh.ndim - 1))


def _local(weight: Any) -> Tensor:
    rows: Tensor = weight.to_local() if hasattr(weight, "to_local") else weight
    return rows.detach()


def _gathered(weight: Any) -> Tensor:
    whole: Tensor = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
    return whole.detach()


@torch.no_grad()
def _folded(module: Any) -> Tensor:
    base = module.base_layer.weight
    rows = _local(base)
    here = slice(first_row(base), first_row(base) + len(rows))
    for adapter in module.active_adapters:
        down, up = module.lora_A[adapter].weight, module.lora_B[adapter].weight
        if getattr(module, "fan_in_fan_out", False):
            change = (_gathered(up) @ _gathered(down)).T[here]
        else:
            change = _local(up) @ _gathered(down)
        rows = rows + change * module.scaling[adapter]
    return rows
