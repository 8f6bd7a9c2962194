"""AdamW whose state takes less of the device's memory, and which moves bfloat16 weights by less than they can show.

    state        bytes a weight   where
    full         8                on the device
    8bit         2.03             on the device: a byte for each of the two moments, and a scale for every 256 in a row
    host         8                in the memory of the machine; a piece at a time is on the device during a step

A moment in 8 bit is scale * (code / 255)^4 for the mean square, and with a sign scale * (code / 127)^3 for the mean:
the steps between codes grow with what they stand for, as with floating-point numbers. Moments, and weights in bfloat16,
are rounded up or down by chance, so that many changes that are smaller than a step add up to what they are on average.
The dice are those of the step's number: a run that goes on throws the same.

Blocks lie within rows. So whoever cuts a weight by its rows can cut its state the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from headway.core.types import State

OptimizerState = Literal["full", "8bit", "host"]
BLOCK = 256
SHORT = 64
"""A tensor whose rows have fewer numbers, or that has none, keeps its moments in full: there is little to save. How
many rows there are does not matter, so that a shard is kept like the whole."""
PIECE = 1 << 24
"""Numbers that are worked on at once: what a step needs besides the state is bounded by it."""


class LeanAdamW:
    """Moves parameters [rows, ...] by their gradients. `state` says how the moments are kept; `salt` tells the dice of
    one rank from those of another."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        state: OptimizerState = "full",
        salt: int = 0,
    ) -> None:
        self.param_groups: list[dict[str, Any]] = [
            {"params": list(parameters), "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        ]
        self._kind = state
        self._salt = salt
        self.steps = 0
        self.state: dict[int, dict[str, Tensor]] = {}

    @property
    def parameters(self) -> list[Tensor]:
        found: list[Tensor] = self.param_groups[0]["params"]
        return found

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        dice: dict[torch.device, torch.Generator] = {}
        for number, parameter in enumerate(self.parameters):
            if parameter.grad is None or not parameter.numel():
                continue
            if parameter.device not in dice:
                dice[parameter.device] = torch.Generator(parameter.device)
                dice[parameter.device].manual_seed(self.steps * 1_000_003 + self._salt)
            state = self.state.get(number)
            if state is None:
                state = self.state[number] = self._begun(parameter)
            rows = max(1, parameter.shape[0]) if parameter.dim() else 1
            per_piece = max(1, PIECE // max(1, parameter.numel() // rows))
            for first in range(0, rows, per_piece):
                here = slice(first, first + per_piece)
                self._move(parameter, state, here, dice[parameter.device])

    def _begun(self, parameter: Tensor) -> dict[str, Tensor]:
        where = "cpu" if self._kind == "host" else parameter.device
        if self._kind == "8bit" and is_quantised(parameter):
            rows, columns = parameter.shape[0], math.prod(parameter.shape[1:])
            blocks = -(-columns // BLOCK)
            return {
                "exp_avg": torch.zeros(rows, columns, dtype=torch.int8, device=where),
                "exp_avg_scale": torch.zeros(rows, blocks, device=where),
                "exp_avg_sq": torch.zeros(rows, columns, dtype=torch.uint8, device=where),
                "exp_avg_sq_scale": torch.zeros(rows, blocks, device=where),
            }
        is_pinned = self._kind == "host" and parameter.is_cuda
        return {
            name: torch.zeros(parameter.shape, dtype=torch.float32, device=where, pin_memory=is_pinned)
            for name in ("exp_avg", "exp_avg_sq")
        }

    def _move(self, parameter: Tensor, state: dict[str, Tensor], here: slice, dice: torch.Generator) -> None:
        """Takes the step for some rows."""
        group = self.param_groups[0]
        beta1, beta2 = group["betas"]
        is_flat = not parameter.dim()
        live = parameter.detach() if is_flat else parameter.detach()[here]
        assert parameter.grad is not None
        gradient = (parameter.grad if is_flat else parameter.grad[here]).float()
        parts = {name: part if is_flat else part[here] for name, part in state.items()}
        coded = "exp_avg_scale" in parts
        if coded:
            mean = _decoded(parts["exp_avg"], parts["exp_avg_scale"], 127, 3).view_as(gradient)
            square = _decoded(parts["exp_avg_sq"], parts["exp_avg_sq_scale"], 255, 4).view_as(gradient)
        else:
            mean, square = (parts[name].to(live.device) for name in ("exp_avg", "exp_avg_sq"))
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        bias1, bias2 = 1 - beta1**self.steps, 1 - beta2**self.steps
        size = square.sqrt().div_(bias2**0.5).add_(group["eps"])
        weight = live.float() if live.dtype != torch.float32 else live
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.addcdiv_(mean, size, value=-group["lr"] / bias1)
        if weight is not live:
            live.copy_(_rounded(weight, live.dtype, dice))
        if coded:
            _encode(mean, parts["exp_avg"], parts["exp_avg_scale"], 127, 3, dice)
            _encode(square, parts["exp_avg_sq"], parts["exp_avg_sq_scale"], 255, 4, dice)
        else:
            for name, part in (("exp_avg", mean), ("exp_avg_sq", square)):
                if part is not parts[name]:
                    parts[name].copy_(part)

    # -- what must survive ------------------------------------------------------------------------------

    def state_dict(self) -> State:
        steps = torch.tensor(float(self.steps))
        return {
            "state": {number: {"step": steps, **parts} for number, parts in self.state.items()},
            "param_groups": [{**self.param_groups[0], "params": list(range(len(self.parameters)))}],
        }

    def load_state_dict(self, saved: State) -> None:
        self.state = {}
        self.steps = 0
        for number, parts in saved["state"].items():
            parameter = self.parameters[int(number)]
            begun = self._begun(parameter)
            given = {name: torch.as_tensor(part) for name, part in parts.items() if name != "step"}
            if set(given) != set(begun) or any(given[name].dtype != part.dtype for name, part in begun.items()):
                raise ValueError(
                    f"the saved state is of another optimizer_state than {self._kind!r}: "
                    f"it has {', '.join(f'{name} ({part.dtype})' for name, part in sorted(given.items()))}"
                )
            for name, part in begun.items():
                part.copy_(given[name].view(part.shape))
            self.state[int(number)] = begun
            self.steps = int(parts["step"])
        group = {name: value for name, value in saved["param_groups"][0].items() if name in self.param_groups[0]}
        self.param_groups[0] |= {**group, "params": self.parameters}


def is_quantised(parameter: Tensor) -> bool:
    return parameter.dim() > 1 and math.prod(parameter.shape[1:]) >= SHORT


def _blocks(values: Tensor) -> Tensor:
    """Makes [rows, blocks, BLOCK] of [rows, columns], with zeros behind the last column."""
    rows, columns = values.shape[0], values.numel() // max(1, values.shape[0])
    flat = values.reshape(rows, columns)
    more = -columns % BLOCK
    return (functional.pad(flat, (0, more)) if more else flat).view(rows, -1, BLOCK)


def _decoded(codes: Tensor, scale: Tensor, most: int, power: int) -> Tensor:
    share = codes.float().div_(most)
    values = share.pow_(power) if power % 2 == 0 else share.sign() * share.abs().pow(power)
    return (_blocks(values) * scale[:, :, None]).reshape(codes.shape[0], -1)[:, : codes.shape[1]].contiguous()


def _encode(values: Tensor, codes: Tensor, scale: Tensor, most: int, power: int, dice: torch.Generator) -> None:
    blocks = _blocks(values)
    scale.copy_(blocks.abs().amax(-1))
    share = blocks.abs() / scale.clamp_min(torch.finfo(torch.float32).tiny)[:, :, None]
    found = share.pow(1 / power).mul_(most).floor_().clamp_(max=most - 1)
    below = (found / most).pow_(power)
    gap = ((found + 1) / most).pow_(power).sub_(below)
    chance = torch.rand(found.shape, generator=dice, device=found.device)
    found.add_(chance.mul_(gap) < share.sub_(below))  # by chance between what the two codes stand for: right on average
    if power % 2 == 0:  # what is divided by is never rounded to nothing
        found = torch.where((blocks > 0) & (found < 1), 1.0, found)
    else:
        found = found * blocks.sign()
    codes.copy_(found.reshape(codes.shape[0], -1)[:, : codes.shape[1]])


def _rounded(values: Tensor, kind: torch.dtype, dice: torch.Generator) -> Tensor:
    """Rounds float32 to bfloat16 up or down by chance, nearer is likelier; other types to the nearest."""
    if kind != torch.bfloat16:
        return values.to(kind)
    chance = torch.randint(0, 1 << 16, values.shape, generator=dice, device=values.device, dtype=torch.int32)
    bits = values.contiguous().view(torch.int32) + chance
    return (bits & ~0xFFFF).view(torch.float32).to(kind)
