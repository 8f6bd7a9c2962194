"""Log-probabilities of chosen tokens, read off the head of a model without keeping its logits.

    hidden [N, H] --head--> logits [n, V] --> log p(chosen) [n], entropy [n]        a chunk of n rows at a time

The logits are by far the largest thing a language model makes: 4 bytes times rows times vocabulary, several times over
where log_softmax, its gradient and the entropy are left to autograd. Here the rows go through in chunks and only the
probabilities of one chunk live at a time. A batch of one chunk keeps them for its gradient; a larger one computes them
again, for a third more work in the head. What comes out does not depend on the chunk, up to rounding.

    d log p(c) / dz = onehot(c) - p          d entropy / dz = -p (log p + entropy)

Some families do more to their logits than the head: they scale them, or bend them so that none is beyond a cap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from headway.llm.model.types import CausalModel
from headway.llm.train.heads_fused_heads import FusedLogProbs

CHUNK = 1024
CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
FACTORS = ("logit_scale", "lm_head_multiplier")


@dataclass(frozen=True, slots=True)
class LogitTransform:
    """Says what a model does to the logits z of its head: cap tanh(scale z / cap)."""

    scale: float = 1.0
    cap: float | None = None


PLAIN = LogitTransform()


def logit_transform_of(model: CausalModel) -> LogitTransform:
    """Reads it from the model's config, under the names that the families use."""
    config = model.config.get_text_config()
    caps = [cap for name in CAPS if (cap := getattr(config, name, None))]
    scale = 1.0
    for name in FACTORS:
        scale *= getattr(config, name, None) or 1.0
    scaling = getattr(config, "logits_scaling", None) or 1.0
    scale = scale * scaling if config.model_type == "hyperclovax" else scale / scaling  # the others divide by it
    return LogitTransform(scale, caps[0] if caps else None)


def chosen_log_probs(
    head: torch.nn.Linear,
    hidden: Tensor,  # [N, H]
    targets: Tensor,  # [N]
    *,
    transform: LogitTransform = PLAIN,
    temperature: float = 1.0,
    chunk: int = CHUNK,
    with_entropy_gradient: bool = False,
    fused: bool = False,
) -> tuple[Tensor, Tensor]:
    """Returns log p of the targets [N] and the entropy of what they were drawn from [N], in float32 or better.

    The entropy carries a gradient only where it is asked for: that costs the head's work once more. `fused`: what
    follows the logits is compiled (llm/train/heads_fused_heads.py).
    """
    where = hidden.device.type
    kind = torch.get_autocast_dtype(where) if torch.is_autocast_enabled(where) else None
    function = FusedLogProbs if fused else _ChosenLogProbs
    with torch.autocast(where, enabled=False):  # the products are cast here, everything else stays precise
        found: tuple[Tensor, Tensor] = function.apply(
            hidden, head.weight, head.bias, targets, transform, temperature, chunk, with_entropy_gradient, kind
        )
    return found if with_entropy_gradient else (found[0], found[1].detach())


def model_logits(head: torch.nn.Linear, hidden: Tensor, transform: LogitTransform) -> Tensor:
    """Returns what the model says of every word, [N, V], without a gradient."""
    with torch.no_grad():
        return _Head(head.weight, head.bias, transform, 1.0, None).logits(hidden)


class _ChosenLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        transform: LogitTransform,
        temperature: float,
        chunk: int,
        with_entropy_gradient: bool,
        kind: torch.dtype | None,
    ) -> tuple[Tensor, Tensor]:
        head = _Head(weight, bias, transform, temperature, kind)
        logs, entropies = [], []
        kept = None
        for rows, chosen in zip(hidden.split(chunk), targets.split(chunk), strict=True):
            logits = head.logits(rows)
            shares = torch.softmax(logits, -1)
            norm = _log_sum(logits, shares)
            logs.append(logits.gather(1, chosen[:, None])[:, 0] - norm)
            entropies.append(norm - _row_dots(shares, logits))
            is_alone = len(hidden) <= chunk and not with_entropy_gradient and transform.cap is None
            kept = shares if is_alone and any(ctx.needs_input_grad[:3]) else None
        ctx.save_for_backward(hidden, weight, bias, targets, kept)
        ctx.settings = transform, temperature, chunk, with_entropy_gradient, kind
        return torch.cat(logs), torch.cat(entropies)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, kept = ctx.saved_tensors
        transform, temperature, chunk, with_entropy_gradient, kind = ctx.settings
        head = _Head(weight, bias, transform, temperature, kind)
        of_hidden: list[Tensor] = []
        of_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        of_bias = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
        parts = [part.split(chunk) for part in (hidden, targets, *gradients)]
        for rows, chosen, slope, entropy_slope in zip(*parts, strict=True):
            factor = -slope[:, None]
            bend = None
            if kept is not None:
                shares = kept
            else:
                logits = head.logits(rows)
                bend = head.bend(logits)
                shares = torch.softmax(logits, -1)
                if with_entropy_gradient:
                    logs = logits.sub_(_log_sum(logits, shares)[:, None])  # finite where the share is 0
                    entropy = -_row_dots(shares, logs)
                    factor = factor - entropy_slope[:, None] * (logs + entropy[:, None])
            change = shares.mul_(factor).scatter_add_(1, chosen[:, None], slope[:, None]).div_(temperature)
            if transform.scale != 1:
                change.mul_(transform.scale)
            if bend is not None:
                change.mul_(bend)
            change = change.to(head.kind)
            of_hidden.append((change @ head.weight).to(hidden.dtype))
            if of_weight is not None:
                of_weight += change.T @ rows.to(head.kind)
            if of_bias is not None:
                of_bias += change.sum(0)
        return torch.cat(of_hidden), of_weight, of_bias, *[None] * 6


class _Head:
    """Is a linear layer in the precision it computes in; the logits it makes are in float32 or better."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        transform: LogitTransform,
        temperature: float,
        kind: torch.dtype | None,
    ) -> None:
        self.kind = kind or weight.dtype
        self.weight = weight.to(self.kind)
        self._bias = None if bias is None else bias.to(self.kind)
        self._transform = transform
        self._temperature = temperature

    def logits(self, hidden: Tensor) -> Tensor:
        found = functional.linear(hidden.to(self.kind), self.weight, self._bias)
        if found.dtype != torch.float64:
            found = found.float()
        scale, cap = self._transform.scale, self._transform.cap
        if scale != 1:
            found.mul_(scale)
        if cap is not None:
            found.div_(cap).tanh_().mul_(cap)
        return found if self._temperature == 1 else found.div_(self._temperature)

    def bend(self, logits: Tensor) -> Tensor | None:
        """Says how much of a change the cap lets through, where these logits came out; None: all of it."""
        cap = self._transform.cap
        return None if cap is None else 1 - (logits * (self._temperature / cap)) ** 2


def _log_sum(logits: Tensor, shares: Tensor) -> Tensor:
    """Returns log sum exp of each row: the largest logit has the share exp(0) / sum."""
    return logits.amax(-1) - shares.amax(-1).log()


def _row_dots(first: Tensor, second: Tensor) -> Tensor:
    """Multiplies row by row and sums up, without a third matrix."""
    return torch.bmm(first.unsqueeze(1), second.unsqueeze(2)).view(-1)
