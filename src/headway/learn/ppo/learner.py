"""PPO on segments that may be a few versions old.

    correction    ratio that is clipped       weight beside it              advantages
    none          -                           -                             GAE, plain policy gradient
    clip          pi / pi_b                   -                             GAE
    decoupled     pi / pi_prox                min(pi_prox / pi_b, C)        GAE
    vtrace        pi / pi_prox                -                             V-trace, with pi_prox / pi_b in it

pi_b made the data, pi_prox is the policy at the start of this update, pi is being trained. On fresh data
pi_prox = pi_b and the last three are PPO.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from headway.core.types import Batch, LearnReport
from headway.learn.advantages import effective_sample_size, gae, vtrace
from headway.learn.ppo.policy import ActorCritic

Correction = Literal["none", "clip", "decoupled", "vtrace"]
MEASURES = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction")
MAX_LOG_RATIO = 20.0
EPISODES_AVERAGED = 100  # the reported return is the mean over this many finished episodes


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOSettings:
    """The knobs of one update."""

    learning_rate: float = 3e-4
    final_learning_rate: float | None = None
    """Where a linear decay over the run ends; None: constant."""
    total_updates: int | None = None
    """The length of the run, for that decay."""
    gamma: float = 0.99
    lam: float = 0.95
    epochs: int = 4
    minibatch_size: int = 256
    clip: float = 0.2
    value_weight: float = 0.5
    value_clip: float | None = None
    entropy_weight: float = 0.01
    max_grad_norm: float = 0.5
    correction: Correction = "decoupled"
    max_importance: float = 2.0
    """C: truncation of the weight of stale data."""
    target_kl: float | None = None
    """Stop the epochs of an update when the policy has moved this far."""

    def __post_init__(self) -> None:
        if self.correction not in ("none", "clip", "decoupled", "vtrace"):
            raise ValueError(f"correction must be none, clip, decoupled or vtrace, received {self.correction!r}")
        for name in ("learning_rate", "epochs", "minibatch_size", "clip", "max_grad_norm", "max_importance"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be > 0, received {getattr(self, name)!r}")


class PPOLearner:
    """Trains a policy on batches of segments."""

    def __init__(self, make_network: Callable[[], ActorCritic], settings: PPOSettings, *, seed: int = 0) -> None:
        self._network = make_network()
        self._settings = settings
        self._parameters = list(self._network.parameters())
        self._optimizer = torch.optim.Adam(self._parameters, settings.learning_rate, eps=1e-5, fused=True)
        self._random = np.random.default_rng([seed, 11])
        self._updates = 0
        self._returns: deque[float] = deque(maxlen=EPISODES_AVERAGED)
        self._moments = _Moments(tuple(self._network.obs_mean.shape)) if self._network.normalise else None

    def learn(self, batch: Batch) -> LearnReport:
        data = _join([rollout.payload for rollout in batch.rollouts])
        if self._moments is not None:
            self._update_normalisation(data["obs"][:-1][data["valid"]])
        self._decay_learning_rate()
        rows, anchor = self._prepare(data)
        metrics = self._train(rows)
        ages = [batch.version - r.span.oldest for r in batch.rollouts if r.span is not None]
        metrics |= anchor
        metrics["staleness"] = float(np.mean(ages)) if ages else 0.0
        for rollout in batch.rollouts:
            self._returns.extend(episode[0] for episode in rollout.info.get("episodes", ()))
        if self._returns:
            metrics["return"] = float(np.mean(self._returns))
        self._updates += 1
        return LearnReport(metrics, samples=float(len(rows["columns"])))

    def snapshot(self) -> dict[str, Tensor]:
        return dict(self._network.state_dict())

    def state_dict(self) -> Any:
        return {
            "network": self._network.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "random": self._random.bit_generator.state,
            "updates": self._updates,
            "returns": list(self._returns),
            "moments": None if self._moments is None else self._moments.state(),
        }

    def load_state_dict(self, state: Any) -> None:
        self._network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))  # torch would share its tensors
        self._random.bit_generator.state = state["random"]
        self._updates = state["updates"]
        self._returns = deque(state["returns"], maxlen=EPISODES_AVERAGED)
        if self._moments is not None:
            self._moments.restore(state["moments"])

    def _prepare(self, data: dict[str, np.ndarray]) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Advantages and targets under the policy as it is now, as rows [B, ...] without the invalid steps."""
        settings, valid = self._settings, data["valid"]
        steps, width = valid.shape
        flat = {
            name: torch.from_numpy(data[name].reshape(steps * width, *data[name].shape[2:]))
            for name in _ROWS
            if name in data
        }
        flat["obs"] = torch.from_numpy(data["obs"][:-1].reshape(steps * width, *data["obs"].shape[2:]))
        with torch.no_grad():
            every = torch.from_numpy(data["obs"].reshape((steps + 1) * width, *data["obs"].shape[2:]))
            values = self._network.values(every).numpy().reshape(steps + 1, width)
            proximal, _ = self._network.log_probs_and_entropy(flat["obs"], flat["actions"], flat.get("masks"))
        log_ratios = np.clip(proximal.numpy().reshape(steps, width) - data["log_probs"], -MAX_LOG_RATIO, MAX_LOG_RATIO)
        ratios = np.exp(log_ratios)
        ends = (data["rewards"], values, data["terminated"], data["truncated"], valid)
        if settings.correction == "vtrace":
            advantages, targets = vtrace(*ends, ratios, gamma=settings.gamma, lam=settings.lam)
        else:
            advantages, targets = gae(*ends, gamma=settings.gamma, lam=settings.lam)
        keep = valid.reshape(-1)
        weights = (
            np.minimum(ratios, settings.max_importance) if settings.correction == "decoupled" else np.ones_like(ratios)
        )
        anchor = data["log_probs"] if settings.correction == "clip" else data["log_probs"] + log_ratios
        columns = [anchor, advantages, targets, values[:-1], weights]
        rows = {name: tensor[torch.from_numpy(keep)] for name, tensor in flat.items()}
        rows["columns"] = torch.from_numpy(np.stack([c.reshape(-1)[keep] for c in columns], 1).astype(np.float32))
        here = ratios[valid]
        variance = float(np.var(targets[valid]))
        return rows, {
            "ess": effective_sample_size(here),
            "behaviour_kl": float((here - 1 - log_ratios[valid]).mean()),
            "explained_variance": 1 - float(np.var((targets - values[:-1])[valid])) / variance if variance else 0.0,
        }

    def _train(self, rows: dict[str, Tensor]) -> dict[str, float]:
        settings, size = self._settings, len(rows["columns"])
        measured: list[Tensor] = []
        for _ in range(settings.epochs):
            order = torch.from_numpy(self._random.permutation(size))
            for part in order.split(settings.minibatch_size):
                measured.append(self._gradient_step({name: tensor[part] for name, tensor in rows.items()}))
            if settings.target_kl is not None and float(measured[-1][MEASURES.index("kl")]) > settings.target_kl:
                break
        return dict(zip(MEASURES, torch.stack(measured).mean(0).tolist(), strict=True))

    def _gradient_step(self, rows: dict[str, Tensor]) -> Tensor:
        """One step of Adam; returns the MEASURES."""
        settings, network = self._settings, self._network
        anchor, advantages, targets, old_values, weights = rows["columns"].unbind(1)
        log_probs, entropies = network.log_probs_and_entropy(rows["obs"], rows["actions"], rows.get("masks"))
        if len(advantages) > 1:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        log_ratio = (log_probs - anchor).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        ratio = log_ratio.exp()
        if settings.correction == "none":
            policy_loss = -(advantages * log_probs).mean()
        else:
            clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
            policy_loss = -(weights * torch.minimum(ratio * advantages, clipped * advantages)).mean()
        value_loss = self._value_loss(network.values(rows["obs"]), old_values, targets)
        entropy = entropies.mean()
        loss = policy_loss + settings.value_weight * value_loss - settings.entropy_weight * entropy
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._parameters, settings.max_grad_norm, foreach=True)
        self._optimizer.step()
        with torch.no_grad():
            moved = (ratio - 1 - log_ratio).mean()
            clip_fraction = ((ratio - 1).abs() > settings.clip).float().mean()
            return torch.stack([policy_loss, value_loss, entropy, moved, clip_fraction])

    def _value_loss(self, values: Tensor, old_values: Tensor, targets: Tensor) -> Tensor:
        loss = (values - targets) ** 2
        if self._settings.value_clip is not None:
            near = old_values + (values - old_values).clamp(-self._settings.value_clip, self._settings.value_clip)
            loss = torch.maximum(loss, (near - targets) ** 2)
        return loss.mean()

    def _decay_learning_rate(self) -> None:
        settings = self._settings
        if settings.final_learning_rate is None or settings.total_updates is None:
            return
        progress = min(1.0, self._updates / settings.total_updates)
        rate = settings.learning_rate + progress * (settings.final_learning_rate - settings.learning_rate)
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def _update_normalisation(self, obs: np.ndarray) -> None:
        assert self._moments is not None
        self._moments.add(obs)
        with torch.no_grad():
            self._network.obs_mean.copy_(torch.from_numpy(self._moments.mean))
            self._network.obs_scale.copy_(torch.from_numpy(self._moments.scale))


_ROWS = ("actions", "masks")


class _Moments:
    """Running mean and variance of the observations, by parallel updates."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._count = 0
        self._mean = np.zeros(shape)
        self._variance = np.zeros(shape)

    def add(self, obs: np.ndarray) -> None:
        count, mean, variance = len(obs), obs.mean(axis=0, dtype=np.float64), obs.var(axis=0, dtype=np.float64)
        total, gap = self._count + count, mean - self._mean
        squares = self._variance * self._count + variance * count + gap**2 * self._count * count / total
        self._mean = self._mean + gap * count / total
        self._variance, self._count = squares / total, total

    @property
    def mean(self) -> np.ndarray:
        return self._mean.astype(np.float32)

    @property
    def scale(self) -> np.ndarray:
        return np.sqrt(self._variance + 1e-8).astype(np.float32)

    def state(self) -> dict[str, Any]:
        return {"count": self._count, "mean": self._mean, "variance": self._variance}

    def restore(self, state: dict[str, Any]) -> None:
        self._count, self._mean, self._variance = state["count"], state["mean"], state["variance"]


def _join(segments: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Segments side by side: [T, N1 + N2 + ...]."""
    return {name: np.concatenate([segment[name] for segment in segments], axis=1) for name in segments[0]}
