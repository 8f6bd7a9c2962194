"""MuZero on draws from a replay of segments.

    draw --> z from the target network's values --> losses along H steps --> AdamW --> target network follows
      ^                                                  |
      +------------------ |v - z| by id -----------------+

What goes in is what `buffer/game_segments.py` draws, time first; what comes back besides the metrics is a priority for
each of its positions. Weights are published as one vector.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from headway.core.types import Batch, LearnReport
from headway.learn.muzero.inference import load_weights, pack_weights
from headway.learn.muzero.loss import Losses, LossWeights, Targets, muzero_losses, n_step_values
from headway.learn.muzero.network import MuZeroNetwork

Bootstrap = Literal["network", "search"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MuZeroSettings:
    """The knobs of one update."""

    learning_rate: float = 3e-3
    final_learning_rate: float | None = None
    """Where a linear decay over the run ends; None: constant."""
    total_updates: int | None = None
    """The length of the run, for the decay."""
    weight_decay: float = 1e-4
    max_grad_norm: float = 5.0
    bootstrap: Bootstrap = "network"
    """Where the values at the end of n steps come from: the target network, now, or the search that was there then."""
    target_tau: float = 1.0
    """How far the target network moves to the trained one: 1 takes its place."""
    target_every: int = 100
    """Updates between two such moves. 1 with a small `target_tau` is a soft target."""
    weights: LossWeights = field(default_factory=LossWeights)

    def __post_init__(self) -> None:
        for name in ("learning_rate", "max_grad_norm", "target_every"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be > 0, received {getattr(self, name)!r}")
        if not 0 < self.target_tau <= 1:
            raise ValueError(f"target_tau must be in (0, 1], received {self.target_tau!r}")
        if self.bootstrap not in ("network", "search"):
            raise ValueError(f"bootstrap must be network or search, received {self.bootstrap!r}")
        if self.final_learning_rate is not None and self.total_updates is None:
            raise ValueError(
                f"final_learning_rate={self.final_learning_rate!r} needs total_updates: over which run shall it decay?"
            )

    def rate(self, updates: int) -> float:
        """The step size after so many updates."""
        if self.final_learning_rate is None or self.total_updates is None:
            return self.learning_rate
        progress = min(1.0, updates / self.total_updates)
        return self.learning_rate + progress * (self.final_learning_rate - self.learning_rate)


class MuZeroLearner:
    """Trains a network on draws, one gradient step each."""

    def __init__(
        self, make_network: Callable[[], MuZeroNetwork], settings: MuZeroSettings, *, device: str = "cpu"
    ) -> None:
        self._settings = settings
        self._device = device
        self._network = make_network().to(device)
        self._target = make_network().to(device).requires_grad_(False)
        self._parameters = list(self._network.parameters())
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        )
        self._updates = 0

    def learn(self, batch: Batch) -> LearnReport:
        (draw,) = batch.rollouts
        data = draw.payload
        values = self._values(data)
        losses = muzero_losses(self._network, self._targets(data, values), self._settings.weights)
        norm = self._step(losses)
        errors = (losses.values - values[0]).abs().cpu().numpy()
        feedback = {"ids": data["ids"], "priorities": errors.astype(np.float64)}
        return LearnReport(_metrics(losses, errors, norm), samples=float(draw.steps), feedback=feedback)

    def _values(self, data: dict[str, np.ndarray]) -> Tensor:
        """z [H + 1, B]."""
        if self._settings.bootstrap == "search":
            bootstraps = self._tensor(data["root_values"])
        else:
            bootstraps = self._target_values(self._tensor(data["bootstrap_obs"]).float())
        return n_step_values(self._tensor(data["returns"]), self._tensor(data["factors"]), bootstraps)

    @torch.no_grad()
    def _target_values(self, observations: Tensor) -> Tensor:
        """[H + 1, B] of observations [H + 1, B, ...]."""
        _, logits = self._target.predict(self._target.encode(observations.flatten(0, 1)))
        return self._target.architecture.value_support.decode(logits).view(observations.shape[:2])

    def _targets(self, data: dict[str, np.ndarray], values: Tensor) -> Targets:
        return Targets(
            observations=self._tensor(data["obs"]).float(),
            actions=self._tensor(data["actions"]),
            rewards=self._tensor(data["rewards"]),
            policies=self._tensor(data["policies"]),
            values=values,
            mask=self._tensor(data["mask"]),
            ended=self._tensor(data["ended"]),
            weights=self._tensor(data["weights"]),
        )

    def _step(self, losses: Losses) -> float:
        """One gradient step; the norm of the gradient before it was clipped."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._settings.rate(self._updates)
        self._optimizer.zero_grad(set_to_none=True)
        losses.total.backward()
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._settings.max_grad_norm)
        self._optimizer.step()
        self._updates += 1
        if self._updates % self._settings.target_every == 0:
            self._follow()
        return float(norm)

    @torch.no_grad()
    def _follow(self) -> None:
        for followed, own in zip(self._parameters, self._target.parameters(), strict=True):
            own.lerp_(followed, self._settings.target_tau)

    def _tensor(self, array: np.ndarray) -> Tensor:
        if not array.flags.writeable:  # memory that other processes see
            array = array.copy()
        return torch.from_numpy(array).to(self._device)

    def snapshot(self) -> dict[str, np.ndarray]:
        return {"network": pack_weights(self._network)}

    def state_dict(self) -> dict[str, Any]:
        return {
            "network": pack_weights(self._network),
            "target": pack_weights(self._target),
            "optimizer": self._optimizer.state_dict(),
            "updates": self._updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_weights(self._network, state)
        load_weights(self._target, {"network": state["target"]})
        self._optimizer.load_state_dict(state["optimizer"])
        self._updates = state["updates"]


def _metrics(losses: Losses, errors: np.ndarray, norm: float) -> dict[str, float]:
    names = ("total", "policy", "value", "reward", "consistency")
    parts = torch.stack([getattr(losses, name).detach() for name in (*names, "entropy")]).tolist()
    metrics = dict(zip([f"{name}_loss" for name in names] + ["entropy"], parts, strict=True))
    return metrics | {"value_error": float(errors.mean()), "grad_norm": norm}
