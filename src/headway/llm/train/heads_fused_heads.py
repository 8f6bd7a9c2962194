"""What follows the logits of a head (llm/train/heads.py), compiled: read once, in the precision the product has them
in.

    hidden [n, H] --product--> logits [n, V], bfloat16 --one kernel--> log p [n], entropy [n], log sum exp [n]

    backward: the product again --one kernel--> change of the logits [n, V], bfloat16 --two products--> gradients

One chunk of logits, and their change in the backward pass, are all that is ever there of [tokens x vocabulary].
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from headway.llm.train.heads_layer_compiler import keep_programs


class _Shape(NamedTuple):
    """Says what a model does to the logits z of its head, cap tanh(scale z / cap), and the temperature they are at."""

    scale: float
    cap: float | None
    temperature: float

    def of(self, logits: Tensor) -> Tensor:
        found = logits if logits.dtype == torch.float64 else logits.float()
        if self.scale != 1:
            found = found * self.scale
        if self.cap is not None:
            found = torch.tanh(found / self.cap) * self.cap
        return found if self.temperature == 1 else found / self.temperature


class _Programs(NamedTuple):
    measure: Any
    slopes: Any


@cache
def _programs(shape: _Shape) -> _Programs:
    def measure(logits: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns log p of the chosen words, entropy and log sum exp, [n] each."""
        shaped = shape.of(logits)
        top = shaped.amax(-1, keepdim=True)
        shares = torch.exp(shaped - top)
        total = shares.sum(-1)
        norm = top[:, 0] + total.log()
        entropy = norm - (shares * shaped).sum(-1) / total
        return shape.of(logits.gather(1, chosen[:, None]))[:, 0] - norm, entropy, norm

    def slopes(
        logits: Tensor, chosen: Tensor, norm: Tensor, entropy: Tensor, slope: Tensor, entropy_slope: Tensor | None
    ) -> Tensor:
        """Returns how the loss changes with each logit, [n, V], as precise as the logits."""
        shaped = shape.of(logits)
        logs = shaped - norm[:, None]
        factor = -slope[:, None]
        if entropy_slope is not None:
            factor = factor - entropy_slope[:, None] * (logs + entropy[:, None])
        words = torch.arange(logits.shape[1], device=logits.device)
        change = torch.exp(logs) * factor + torch.where(words[None] == chosen[:, None], slope[:, None], 0.0)
        change = change * (shape.scale / shape.temperature)
        if shape.cap is not None:
            change = change * (1 - (shaped * (shape.temperature / shape.cap)) ** 2)
        return change.to(logits.dtype)

    keep_programs()
    return _Programs(torch.compile(measure), torch.compile(slopes))


class FusedLogProbs(torch.autograd.Function):
    """Is what llm/train/heads.py computes, by compiled kernels."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        transform: Any,
        temperature: float,
        chunk: int,
        with_entropy_gradient: bool,
        kind: torch.dtype | None,
    ) -> tuple[Tensor, Tensor]:
        shape = _Shape(transform.scale, transform.cap, temperature)
        rows, matrix, shift = _in_kind(kind or weight.dtype, hidden, weight, bias)
        found, kept = [], None
        for some, chosen in zip(rows.split(chunk), targets.split(chunk), strict=True):
            logits = functional.linear(some, matrix, shift)
            found.append(_programs(shape).measure(logits, chosen))
            kept = logits if len(rows) <= chunk and any(ctx.needs_input_grad[:3]) else None
        logs, entropy, norm = (torch.cat(line) for line in zip(*found, strict=True))
        ctx.save_for_backward(hidden, weight, bias, targets, kept, entropy, norm)
        ctx.settings = shape, chunk, with_entropy_gradient, kind
        return logs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor, entropy_slope: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, kept, entropy, norm = ctx.saved_tensors
        shape, chunk, with_entropy_gradient, kind = ctx.settings
        rows, matrix, shift = _in_kind(kind or weight.dtype, hidden, weight, bias)
        of_hidden: list[Tensor] = []
        of_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        of_bias = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
        lines = (rows, targets, norm, entropy, slope, entropy_slope)
        for some, *others in zip(*(line.split(chunk) for line in lines), strict=True):
            logits = functional.linear(some, matrix, shift) if kept is None else kept
            if not with_entropy_gradient:
                others[-1] = None
            change = _programs(shape).slopes(logits, *others)
            of_hidden.append((change @ matrix).to(hidden.dtype))
            if of_weight is not None:
                of_weight += change.T @ some
            if of_bias is not None:
                of_bias += change.sum(0)
        return torch.cat(of_hidden), of_weight, of_bias, *[None] * 6


def _in_kind(
    kind: torch.dtype, hidden: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    return hidden.to(kind), weight.to(kind), None if bias is None else bias.to(kind)
