"""What every learner of a model does with a draw from a replay of segments, whatever the model is.

    draw --> z from the target's values --> losses along the window --> AdamW --> target and average follow
      ^                                                  |
      +------------------ |v - z| by id -----------------+

What goes in is what `zero/replay_game_segments.py` draws, time first; what comes back besides the metrics is a
priority for
each of its positions. Weights are published as one vector: the trained ones, or their average over the last updates,
which plays more evenly than any of them.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Generic, Literal, Self, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, Field, model_validator
from torch import Tensor, nn

from headway.core.types import Batch, LearnReport, State
from headway.replay.records import record_of
from headway.replay.records_feedback import Priorities
from headway.zero.model_learner_window_loss import Losses, Targets
from headway.zero.segments import DrawnWindows
from headway.zero.world_model import WorldModel
from headway.zero.world_model_packed import load_weights, pack_weights, writeable

Bootstrap = Literal["network", "search"]
Network = TypeVar("Network", bound=WorldModel)


class ModelSettings(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False):
    """Learning: the update of a model that is searched in."""

    betas: ClassVar[tuple[float, float]] = (0.9, 0.999)
    """Of AdamW."""

    learning_rate: float = Field(default=1e-3, gt=0)
    """Step size of AdamW."""
    final_learning_rate: float | None = Field(default=None, ge=0)
    """Where a linear decay over `updates` ends; unset: constant."""
    updates: int | None = Field(default=None, ge=1)
    """Stop after this many learn calls."""
    weight_decay: float = Field(default=1e-4, ge=0)
    """Pull of AdamW towards zero."""
    max_grad_norm: float = Field(default=5.0, gt=0)
    """Largest gradient norm."""
    bootstrap: Bootstrap = "network"
    """The value that is trusted after td_steps rewards: the target network's, computed when drawn; or the root value of
    the search that was there."""
    target_tau: float = Field(default=1.0, gt=0, le=1)
    """How far the target network moves to the trained one. More: newer targets, less calm ones."""
    target_every: int = Field(default=1, ge=1)
    """Updates between two such moves. 1 with a small target_tau is a soft target."""
    average: float = Field(default=0.0, ge=0, lt=1)
    """Play by a running average of the weights that keeps this share of itself at each update: 0.99 is about the last
    hundred. 0: by the newest weights, which play less evenly."""
    entropy_weight: float = Field(default=5e-3, ge=0)
    """Bonus for staying undecided."""

    @model_validator(mode="after")
    def _a_decay_needs_an_end(self) -> Self:
        if self.final_learning_rate is not None and self.updates is None:
            raise ValueError(f"final_learning_rate={self.final_learning_rate!r} needs updates: over which run?")
        return self

    def rate(self, updates: int) -> float:
        """The step size after so many updates."""
        if self.final_learning_rate is None or self.updates is None:
            return self.learning_rate
        progress = min(1.0, updates / self.updates)
        return self.learning_rate + progress * (self.final_learning_rate - self.learning_rate)


class ModelLearner(ABC, Generic[Network]):
    """Trains a network on draws, one gradient step each. A kind of model says what its losses and its values are."""

    def __init__(self, make_network: Callable[[], Network], settings: ModelSettings, *, device: str = "cpu") -> None:
        self._settings = settings
        self._device = device
        self._network = make_network().to(device)
        self._target = make_network().to(device).requires_grad_(False)
        self._average = make_network().to(device).requires_grad_(False) if settings.average else None
        self._parameters: list[Tensor] = [
            parameter for parameter in self._network.parameters() if parameter.requires_grad
        ]
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self._updates = 0

    @abstractmethod
    def _losses(self, targets: Targets) -> Losses: ...

    @abstractmethod
    def _target_value_logits(self, observations: Tensor) -> Tensor:
        """Value logits [N, bins] of observations [N, ...], as the target sees them."""

    def learn(self, batch: Batch) -> LearnReport:
        (draw,) = batch.rollouts
        data = record_of(draw, DrawnWindows)
        targets = self._targets(data)
        if self._network.inputs is not None:
            self._network.inputs.see(targets.observations[0])
        losses = self._losses(targets)
        norm = self._step(losses.total)
        errors = (losses.values - targets.values[0]).abs().cpu().numpy()
        feedback = Priorities(data.ids, errors.astype(np.float64))
        weights = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(self._parameters)))
        metrics = _metrics(losses, {"grad_norm": norm, "weight_norm": weights}, errors)
        return LearnReport(metrics, samples=float(draw.steps), feedback=feedback)

    def _values(self, data: DrawnWindows) -> Tensor:
        """z [H + 1, B]: rewards on the way, and the value at its end times its discount (and sign; 0 past an end)."""
        if self._settings.bootstrap == "search":
            bootstraps = self._tensor(data.root_values)
        else:
            assert data.bootstrap_obs is not None, "the replay brings what the values are to be computed for"
            with torch.no_grad():
                seen = self._tensor(data.bootstrap_obs).float()
                logits = self._target_value_logits(seen.flatten(0, 1))
                bootstraps = self._target.value_support.decode(logits).view(seen.shape[:2])
        return self._tensor(data.returns) + self._tensor(data.factors) * bootstraps

    def _targets(self, data: DrawnWindows) -> Targets:
        return Targets(
            observations=self._tensor(data.obs).float(),
            actions=self._tensor(data.actions),
            rewards=self._tensor(data.rewards),
            policies=self._tensor(data.policies),
            values=self._values(data),
            mask=self._tensor(data.mask),
            ended=self._tensor(data.ended),
            weights=self._tensor(data.weights),
        )

    def _step(self, total: Tensor) -> Tensor:
        """One gradient step; the norm of the gradient before it was clipped."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._settings.rate(self._updates)
        self._optimizer.zero_grad(set_to_none=True)
        total.backward()
        norm = nn.utils.clip_grad_norm_(self._parameters, self._settings.max_grad_norm)
        self._optimizer.step()
        self._updates += 1
        if self._updates % self._settings.target_every == 0:
            self._follow(self._target, self._settings.target_tau)
        if self._average is not None:  # of all so far at first, so that the beginning is forgotten
            self._follow(self._average, max(1.0 - self._settings.average, 1.0 / self._updates))
        return norm

    @torch.no_grad()
    def _follow(self, follower: nn.Module, share: float) -> None:
        torch._foreach_lerp_(list(follower.parameters()), list(self._network.parameters()), share)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(writeable(array)).to(self._device)

    def snapshot(self) -> dict[str, np.ndarray]:
        return {"network": pack_weights(self._average or self._network)}

    def state_dict(self) -> State:
        return {
            "network": pack_weights(self._network),
            "target": pack_weights(self._target),
            "average": None if self._average is None else pack_weights(self._average),
            "optimizer": self._optimizer.state_dict(),
            "updates": self._updates,
        }

    def load_state_dict(self, state: State) -> None:
        load_weights(self._network, state)
        load_weights(self._target, {"network": state["target"]})
        if self._average is not None:
            load_weights(self._average, {"network": state["average"]})
        self._optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))  # it would go on in the same tensors
        self._updates = state["updates"]


def _metrics(losses: Losses, norms: dict[str, Tensor], errors: np.ndarray) -> dict[str, float]:
    parts = {name if name == "entropy" else f"{name}_loss": part for name, part in losses.parts.items()}
    named = {"total_loss": losses.total, **parts, **norms}
    numbers = torch.stack([part.detach() for part in named.values()]).tolist()
    return {**dict(zip(named, numbers, strict=True)), "value_error": float(errors.mean())}
