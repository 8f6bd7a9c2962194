"""Layers of a model, compiled: one program for all of them, for each length of a row.

A model is many layers of one kind, and the kind is what is compiled: that takes seconds where the whole model would
take a minute, and what runs is nearly the same. Programs are kept on disk, for the next process that wants them.

What a layer does when it is called is exchanged, in the layer: whatever wraps it (checkpoints of activations, shards)
stays around it. Hooks and names of weights do not change.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import MethodType
from typing import Any

import torch

from headway.llm.model.types import CausalModel

CACHE = "TORCHINDUCTOR_CACHE_DIR"
"""The variable by which torch knows where compiled programs are kept."""
MANY_PROGRAMS = 64
"""Lengths, with and without gradients, of a policy, its critic and its reference: more than torch expects of a layer,
which would go on uncompiled, and slow, without a word."""


def compile_layers(model: CausalModel, *, few_lengths: bool) -> int:
    """Compiles the layers of a model when they are first called; returns how many there are.

    `few_lengths`: each length gets a program of its own; else one program for all lengths, after the first.
    """
    keep_programs()
    layers = list(layers_of(model))
    for layer in layers:
        forward = _compiled(type(layer).forward, False if few_lengths else None)
        layer.__dict__["forward"] = MethodType(forward, layer)
    return len(layers)


def undo_compiling(model: CausalModel) -> None:
    """Makes the layers what they were."""
    for layer in layers_of(model):
        layer.__dict__.pop("forward", None)


def layers_of(model: CausalModel) -> Iterator[Any]:
    """Yields the layers, as transformers tells them: modules that must not be split among devices."""
    kinds = set(getattr(model, "_no_split_modules", None) or ())
    return (module for module in model.modules() if type(module).__name__.removeprefix("FSDP") in kinds)


@cache
def _compiled(forward: Callable[..., Any], dynamic: bool | None) -> Callable[..., Any]:
    """Returns the one compiled function of a kind of layer, shared by all models that have it."""
    return torch.compile(forward, dynamic=dynamic)


def keep_programs() -> None:
    """Says where compiled programs are kept, unless the user has said it, that there may be many, and that they are the
    same ones in every process."""
    cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault(CACHE, str(cached / "headway" / "compiled"))
    compiler: Any = torch._inductor.config
    compiler.triton.autotune_pointwise = False  # else the fastest program of the moment decides on an order of sums
    if hasattr(compiler, "deterministic"):
        compiler.deterministic = True
    settings: Any = torch._dynamo.config
    settings.recompile_limit = max(settings.recompile_limit, MANY_PROGRAMS)
    settings.accumulated_recompile_limit = max(settings.accumulated_recompile_limit, 4 * MANY_PROGRAMS)
