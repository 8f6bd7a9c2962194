"""Weights under training, with their optimizer: the one place where gradients become a step.

    gradients --> added up over ranks --> clipped to a norm --> AdamW --> weights

What belongs to it goes into a checkpoint and comes back bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field
from torch import Tensor


class OptimizerSettings(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False):
    """Optimizer: AdamW and its learning rate."""

    learning_rate: float = Field(default=1e-6, gt=0)
    """Step size of AdamW."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After its warmup the learning rate stays, or falls to lr_floor at the end of `updates`."""
    lr_floor: float = Field(default=0.0, ge=0, le=1)
    """Where such a fall ends, as a share of the learning rate."""
    warmup_updates: int = Field(default=0, ge=0)
    """The learning rate rises over this many updates."""
    updates: int | None = Field(default=None, ge=1)
    """Stop after this many learn calls."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """How long AdamW remembers the direction. Raising it makes smoother steps."""
    adam_beta2: float = Field(default=0.95, ge=0, lt=1)
    """How long AdamW remembers the size of gradients. Raising it makes it slower to notice that they have changed."""
    adam_eps: float = Field(default=1e-8, gt=0)
    """Added to the size of gradients. Raising it makes the steps of weights with tiny gradients smaller."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Of AdamW."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Largest gradient norm."""
    num_epochs: int = Field(default=1, ge=1)
    """Passes over a batch."""
    num_minibatches: int = Field(default=1, ge=1)
    """Gradient steps per pass. More learn faster from a batch and move further from its data."""


class TrainedWeights:
    """Holds named parameters and AdamW for them."""

    def __init__(self, named: Mapping[str, Tensor], settings: OptimizerSettings, learning_rate: float) -> None:
        self.named = dict(named)
        self._optimizer = torch.optim.AdamW(
            self.parameters,
            lr=learning_rate,
            betas=(settings.adam_beta1, settings.adam_beta2),
            eps=settings.adam_eps,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self._max_grad_norm = settings.max_grad_norm

    @property
    def parameters(self) -> list[Tensor]:
        return list(self.named.values())

    @property
    def learning_rate(self) -> float:
        rate: float = self._optimizer.param_groups[0]["lr"]
        return rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def forget_gradients(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    def clip(self) -> Tensor:
        """Scales the gradients down where they are too long; returns how long they were."""
        return torch.nn.utils.clip_grad_norm_(self.parameters, self._max_grad_norm, foreach=True)

    def step(self) -> None:
        self._optimizer.step()

    def values(self) -> dict[str, Tensor]:
        """Returns the weights themselves, without a gradient."""
        return {name: parameter.detach() for name, parameter in self.named.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.values(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, parameter in self.named.items():
                parameter.copy_(torch.as_tensor(state["weights"][name]))
        self._optimizer.load_state_dict(state["optimizer"])
