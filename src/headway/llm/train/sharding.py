"""A model cut into shards, one for each rank: parameters, gradients and what is kept of them (FSDP2).

    every rank     rows 0..k of each weight      layer by layer: gathered --> used --> let go
                   their gradients               layer by layer: summed over ranks, each keeps its rows
                   their optimizer state         never leaves its rank

Each layer is gathered when it is read and let go behind it. What belongs to no layer (embedding, last norm, head) is
one more part, gathered when the body is called and kept until the gradient is there, so that the head can be used
outside of the forward pass: log-probabilities are read off it in chunks (llm/train/heads.py).

All ranks must make the same passes in the same order. Gradients are sums over ranks: denominators are those of the
whole batch.

A model that has no layers to be found, or that shares weights between layers, is not cut: every rank keeps all of it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.llm.model.meta_loading import is_unread, read_rows
from headway.llm.model.types import CausalModel
from headway.llm.train.sharding_published_rows import first_row
from headway.llm.train.trees import body_of
from headway.ranks.rank import Rank


class Shards:
    """Holds the parts of a model that was cut."""

    def __init__(self, root: Any, *, is_first_replica: bool) -> None:
        self._root = root
        self.is_first_replica = is_first_replica
        """Of replicas that hold the same rows, one publishes them."""

    def forget_gathered(self) -> None:
        """Lets go of what was gathered: the next pass reads the weights as they are then."""
        for module in self._root.modules():
            if hasattr(module, "reshard"):
                module.reshard()


def shard_model(
    model: CausalModel, rank: Rank, shard_ranks: int | None, *, in_bfloat16: bool | None = None
) -> Shards | None:
    """Cuts a model in place, over `shard_ranks` of the ranks (all of them, or replicas of so many; None: not at all).
    Returns None where it is kept whole: there is one rank, replicas are asked for, or it cannot be cut, which is said
    in one line. `in_bfloat16`: layers are gathered in bfloat16, whatever their weights are kept in, for a pass under
    autocast (None: on GPUs, and of weights in bfloat16); gradients are summed in float32 then."""
    return _shard(body_of(model), model.get_output_embeddings(), rank, shard_ranks, in_bfloat16)


def shard_body(body: Any, rank: Rank, shard_ranks: int | None) -> Shards | None:
    """Does the same with a model without a head."""
    return _shard(body, None, rank, shard_ranks)


def _shard(body: Any, head: Any, rank: Rank, shard_ranks: int | None, in_bfloat16: bool | None = None) -> Shards | None:
    if rank.size == 1 or shard_ranks is None or shard_ranks == 1:
        return None
    layers = find_layers(body)
    why = _why_not(body, head, layers)
    if why:
        if rank.index == 0:
            line = f"{type(body).__name__} is not cut into shards, every rank keeps all of it: {why}"
            print(f"headway: {line}", file=sys.stderr, flush=True)
        _with_head(body, head, partial(_read, rank))
        for whole in (body,) if head is None else (body, head):
            whole.to(rank.device)
        return None
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    kind = next(body.parameters()).dtype
    is_lean = rank.device.type == "cuda" or kind == torch.bfloat16 if in_bfloat16 is None else in_bfloat16
    precise = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if is_lean else None,
        reduce_dtype=torch.float32 if is_lean else None,
        cast_forward_inputs=False,
    )
    mesh = rank.mesh(shard_ranks)
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=precise)

    def cut(whole: Any) -> None:
        fully_shard(whole, mesh=mesh, mp_policy=precise, reshard_after_forward=False)
        _read(rank, whole)

    _with_head(body, head, cut)
    for part in (body, *layers):
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)  # gloo knows no other
    return Shards(body, is_first_replica=rank.index < shard_ranks)


def _with_head(body: Any, head: Any, work: Callable[[Any], None]) -> None:
    """Works on body and head as one, so that the head is gathered and let go with the body."""
    if head is not None:
        body.add_module("_head_while_it_is_cut", head)
    try:
        work(body)
    finally:
        if head is not None:
            del body._modules["_head_while_it_is_cut"]


def _read(rank: Rank, whole: Any) -> None:
    if is_unread(whole):
        read_rows(whole, rank.device, first_row)


def find_layers(body: Any) -> list[Any]:
    """Finds the repeated layers of a model: the longest list of modules that hold weights."""
    lists: list[Any] = [one for one in body.modules() if isinstance(one, torch.nn.ModuleList) and len(one) > 1]
    sizes = [sum(p.numel() for p in one.parameters()) for one in lists]
    return list(lists[int(np.argmax(sizes))]) if lists else []


def _why_not(body: Any, head: Any, layers: list[Any]) -> str:
    if not layers:
        return "it has no list of layers"
    owners = Counter(id(p) for layer in layers for p in {id(p): p for p in layer.parameters()}.values())
    if max(owners.values()) > 1:
        return "layers share weights"
    inside = set(owners)
    rest = [body] if head is None else [body, head]
    around = {id(p) for module in rest for p in _parameters_outside(module, layers)}
    if inside & around:
        return "a layer shares a weight with what is around the layers"
    kinds = {p.dtype for p in body.parameters()}
    if not all(kind.is_floating_point for kind in kinds):
        return f"it has weights of the types {', '.join(sorted(map(str, kinds)))}"
    return ""


def _parameters_outside(module: Any, layers: Iterable[Any]) -> list[Tensor]:
    within = {id(inner) for layer in layers for inner in layer.modules()}
    return [p for inner in module.modules() if id(inner) not in within for p in inner.parameters(recurse=False)]
