"""Draws from a replay of segments as the learners of models are given them, made up."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.core.types import Rollout
from headway.zero.model_learner_window_loss import Targets
from headway.zero.segments import DrawnWindows
from headway.zero.world_model_two_hot import Support, squash


def a_batch(
    batch: int = 6, steps: int = 3, *, seed: int = 0, shape: tuple[int, ...] = (4,), num: int = 3
) -> dict[str, Any]:
    """The fields of a draw as the replay makes them; sample 1 terminates after one step, sample 2 is cut after two."""
    rng = np.random.default_rng(seed)
    mask = np.ones((steps + 1, batch), np.float32)
    ended = np.zeros_like(mask)
    mask[1:, 1], ended[1:, 1] = 0, 1
    mask[2:, 2] = 0
    return {
        "obs": rng.normal(size=(steps + 1, batch, *shape)).astype(np.float32),
        "bootstrap_obs": rng.normal(size=(steps + 1, batch, *shape)).astype(np.float32),
        "actions": rng.integers(num, size=(steps, batch)),
        "rewards": rng.normal(size=(steps, batch)).astype(np.float32) * mask[:-1],
        "policies": rng.dirichlet(np.ones(num), size=(steps + 1, batch)).astype(np.float32),
        "returns": rng.normal(size=(steps + 1, batch)).astype(np.float32) * mask,
        "factors": (rng.random((steps + 1, batch)) * mask).astype(np.float32),
        "root_values": rng.normal(size=(steps + 1, batch)).astype(np.float32),
        "mask": mask,
        "ended": ended,
        "weights": rng.uniform(0.2, 1.0, size=batch).astype(np.float32),
        "ids": np.arange(batch) + 100,
        "versions": np.zeros(batch, np.int64),
        "target_versions": np.zeros(batch, np.int64),
    }


def drawn(data: dict[str, Any]) -> Rollout:
    return Rollout(DrawnWindows(**data), steps=len(data["ids"]))


def targets_of(data: dict[str, Any]) -> Targets:
    tensors = {name: torch.from_numpy(values) for name, values in data.items()}
    values = tensors["returns"] + tensors["factors"] * tensors["root_values"]
    names = ("actions", "rewards", "policies", "mask", "ended", "weights")
    return Targets(observations=tensors["obs"], values=values, **{name: tensors[name] for name in names})


def classes(logits: Tensor, value: Tensor, support: Support) -> Tensor:
    """The cross entropy of logits [bins] and one value, from the definition."""
    place = float((squash(value) - support.low) / support.step)
    lower = min(max(int(np.floor(place)), 0), support.num_bins - 2)
    share = min(max(place - lower, 0.0), 1.0)
    logs = logits.log_softmax(-1)
    return -((1 - share) * logs[lower] + share * logs[lower + 1])
