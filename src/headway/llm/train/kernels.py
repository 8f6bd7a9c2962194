"""How the body of a model in training is run on its device: by which attention, and compiled or not.

    dense    a mask of every pair of places; rows are trees, padded to the longest. What is fastest on a CPU
    flex     a table of blocks (trees_block_masks.py); trees stand end to end in one row, of one of few lengths
    flash    such rows too, read as sequences (llm/train/trees_flash_trees.py): no windows, no caps

    auto     on a GPU flash, or flex where that does not fit, and compiled layers; else dense and layers as they are

What a model says with one or the other must be what it says by itself, up to rounding: a short made-up group is read
before anything is trained, and log-probabilities and a gradient are compared. A model that neither fits or that cannot
be compiled is read by dense masks, with one line that says why. What was asked for by name is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from headway.llm.model.types import CausalModel
from headway.llm.train.heads_layer_compiler import compile_layers, layers_of, undo_compiling
from headway.llm.train.kernels_flex_attention import can_read_by_flash, expect_slow_attention, use_flex_attention
from headway.llm.train.kernels_layouts import (
    PROMPT,
    REPLIES,
    Layout,
    first_line,
    log_probs_of_group,
    name_of,
    short_window,
)
from headway.llm.train.trees import Windows, body_of, windows_of
from headway.llm.train.trees_row_packing import row_length

Attention = Literal["auto", "dense", "flex", "flash"]
BY_FLASH: Windows = ()
"""In the place of the windows that FlexAttention needs tables for."""
Compiling = Literal["auto", "on", "off"]
ROUNDING, COARSE_ROUNDING = (1e-4, 1e-4), (0.03, 0.1)
"""Differences that need no excuse, in log-probabilities and as a share of a gradient: in float32, and below."""
GROUP = (200, 130, 150)
"""Tokens of a made-up prompt and its replies: more than a block each; where a model reads so many."""
EXCUSE = 3
"""So many times the difference that the same precision makes with a dense mask is rounding too."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """Says how a body is run. `windows` are those of its layers, for flex; BY_FLASH: flash; None: dense."""

    windows: Windows | None = None
    is_compiled: bool = False

    def apply(self, model: CausalModel) -> CausalModel:
        """Lets a model be run so: the one they were chosen for, or another of its kind."""
        if self.windows is not None:
            use_flex_attention(model)
            if self.windows and not self.is_compiled:
                expect_slow_attention()
        if self.is_compiled:
            compile_layers(model, few_lengths=self.windows is not None)
        return model


PLAIN = Kernels()
Found = tuple[Tensor, Tensor]
"""Log-probabilities [N] and a gradient."""
Precision = Callable[[torch.device], AbstractContextManager[object]]


def choose_kernels(
    model: CausalModel, layout: Layout, attention: Attention, compiling: Compiling, budget: int, precision: Precision
) -> Kernels:
    """Finds how a model that is read in this layout is run, and lets it be run so; ValueError, one line, where what is
    asked for does not fit.

    `budget`: places of the longest row. `precision`: what computes in the precision of the training.
    """
    device = device_of(model)
    is_chosen = attention == "auto" and device.type == "cuda" and layout == "tree"
    by_row = [attention] if attention in ("flex", "flash") else ["flash", "flex"] if is_chosen else []
    is_compiled = compiling == "on" or (compiling == "auto" and device.type == "cuda" and bool(by_row))
    asked = [
        *([f"trainer_attention={attention!r}"] if attention in ("flex", "flash") else []),
        *([f"compile_trainer={compiling!r}"] if compiling == "on" else []),
    ]
    if by_row and layout == "rows":
        raise ValueError(
            f"trainer_attention={attention!r} reads trees, and {name_of(model)} is read in rows; "
            "allowed: 'auto', 'dense'"
        )
    if not by_row and not is_compiled:
        return PLAIN
    why = ""
    for way in by_row or ["dense"]:
        if way == "flash" and is_chosen and not can_read_by_flash(model):
            continue
        windows = {"dense": None, "flex": windows_of(model), "flash": BY_FLASH}[way]
        chosen = Kernels(windows, is_compiled)
        why = _why_not(model, chosen, layout, budget, precision)
        if not why:
            return chosen
        if way == "flash" and is_chosen:
            print(f"headway: {name_of(model)} is trained by FlexAttention: {why}", file=sys.stderr, flush=True)
    if asked:
        raise ValueError(f"{' and '.join(asked)} does not fit {name_of(model)}: {why}; allowed: 'auto'")
    print(f"headway: {name_of(model)} is trained with dense masks: {why}", file=sys.stderr, flush=True)
    return PLAIN


def device_of(model: CausalModel) -> torch.device:
    return next(model.parameters()).device


def _why_not(model: CausalModel, chosen: Kernels, layout: Layout, budget: int, precision: Precision) -> str:
    """Says what is wrong with these kernels, or nothing; then they are in the model, else not."""
    if chosen.is_compiled and not any(True for _ in layers_of(model)):
        return "transformers does not tell its layers"
    config, apart = body_of(model).config.get_text_config(), layout == "rows"
    before, device = config._attn_implementation, next(model.parameters()).device
    probe = _first_small_weight(model)
    with short_window(model), torch.random.fork_rng(devices=[]):
        exact = _read(model, probe, PLAIN, apart, 0)
        with precision(device):
            rounded = _read(model, probe, PLAIN, apart, 0)
            is_coarse = torch.is_autocast_enabled(device.type)
        if next(model.parameters()).element_size() < 4:  # no precision to compare with: attention that is written out
            is_coarse, config._attn_implementation = True, "eager"
            try:
                rounded = _read(model, probe, PLAIN, apart, 0)
            finally:
                config._attn_implementation = before
        try:
            with precision(device):
                chosen.apply(model)
                short = replace(chosen, windows=windows_of(model)) if chosen.windows else chosen
                found = _read(model, probe, short, apart, row_length(budget) if chosen.is_compiled else 0)
        except Exception as error:  # noqa: BLE001 - whatever a compiler says, or a model that is given a table of blocks
            why = first_line(error)
        else:
            why = _difference(exact, rounded, found, COARSE_ROUNDING if is_coarse else ROUNDING)
    if why:
        config._attn_implementation = before
        undo_compiling(model)
    return why


def _first_small_weight(model: CausalModel) -> Tensor | None:
    """Finds a trained weight near the input whose gradient goes through all layers: the first of a norm, or the first
    of all. None where there is none, or where weights are in shards, whose gradients come by another way."""
    named = body_of(model).named_parameters()
    trained = {name: one for name, one in named if one.requires_grad and not hasattr(one, "full_tensor")}
    norms = [weight for name, weight in trained.items() if weight.dim() == 1 and not name.endswith("bias")]
    return next(iter((*norms, *trained.values())), None)


def _read(model: CausalModel, probe: Tensor | None, kernels: Kernels, apart: bool, length: int) -> Found:
    """Returns the log-probabilities of a made-up group [N], and the gradient of their sum."""
    with torch.set_grad_enabled(probe is not None):
        logs = log_probs_of_group(
            model,
            apart=apart,
            windows=kernels.windows,
            length=length,
            sizes=_sizes(model),
            fused=kernels.is_compiled,
        )
        total = logs.sum()
    if probe is None:
        return logs, torch.zeros(1, device=logs.device)
    (gradient,) = torch.autograd.grad(total, probe)
    return logs.detach(), gradient


def _sizes(model: CausalModel) -> tuple[int, ...]:
    context = getattr(model.config.get_text_config(), "max_position_embeddings", 0)
    return GROUP if (context or 0) > GROUP[0] + max(GROUP[1:]) else (PROMPT, *REPLIES)


def _difference(exact: Found, rounded: Found, found: Found, limits: tuple[float, float]) -> str:
    gaps = [float((one[0] - exact[0]).abs().mean()) for one in (rounded, found)]
    if not gaps[1] <= limits[0] + EXCUSE * gaps[0]:
        return f"log-probabilities differ from its own by {gaps[1]:.2g} (with a dense mask by {gaps[0]:.2g})"
    size = float(exact[1].double().norm()) or 1.0
    shares = [float((one[1] - exact[1]).double().norm()) / size for one in (rounded, found)]
    if not shares[1] <= limits[1] + EXCUSE * shares[0]:
        return f"a gradient differs from its own by {shares[1]:.2g} of it (with a dense mask by {shares[0]:.2g})"
    return ""
