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

import math
from collections.abc import Callable
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import BaseModel, Field, model_validator
from torch import Tensor

from headway.core.types import Batch, LearnReport, State
from headway.ppo.learner_advantages import effective_sample_size, gae, vtrace
from headway.ppo.learner_autograd_step import AutogradStep
from headway.ppo.mlp_flat import Adam
from headway.ppo.mlp_kernels import advantage_moments
from headway.ppo.mlp_memory import Loss
from headway.ppo.networks_network import ObservationScale, PPONetwork
from headway.ppo.policy import compiled
from headway.ppo.segments_segment import Segment, side_by_side
from headway.ranks.rank import ALONE, Rank
from headway.replay.records import record_of
from headway.replay.records_recent_returns import RecentReturns

Correction = Literal["none", "clip", "decoupled", "vtrace"]
MEASURES = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction")
MAX_LOG_RATIO = 20.0


class PPOSettings(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False):
    """PPO: the update."""

    learning_rate: float = Field(default=3e-4, gt=0)
    """Step size of Adam."""
    final_learning_rate: float | None = Field(default=None, ge=0)
    """Where a linear decay over `updates` ends; unset: constant."""
    updates: int | None = Field(default=None, ge=1)
    """Stop after this many learn calls."""
    gamma: float = Field(default=0.99, gt=0, le=1)
    """Discount. Closer to 1 looks further ahead, with more variance."""
    lam: float = Field(default=0.95, ge=0, le=1)
    """GAE's lambda: lower trusts the value estimate more."""
    num_epochs: int = Field(default=4, ge=1)
    """Passes over a batch. More squeeze more out of it and move further from the data."""
    minibatch_size: int = Field(default=256, ge=1)
    """Steps per gradient step."""
    clip: float = Field(default=0.2, gt=0)
    """How far the policy may move per update."""
    final_clip: float | None = Field(default=None, ge=0)
    """Where a linear decay of `clip` over `updates` ends; unset: constant."""
    value_weight: float = Field(default=0.5, ge=0)
    """Weight of the value loss."""
    value_clip: float | None = Field(default=None, gt=0)
    """Clip the value's move as well; unset: do not."""
    entropy_weight: float = Field(default=0.01, ge=0)
    """Bonus for staying undecided."""
    max_grad_norm: float = Field(default=0.5, gt=0)
    """Largest gradient norm."""
    target_kl: float | None = Field(default=None, gt=0)
    """End the passes over a batch early once the policy has moved this far."""
    correction: Correction = "decoupled"
    """What makes up for stale data: the clipped ratio alone, a truncated weight beside it, or V-trace."""
    max_importance: float = Field(default=2.0, gt=0)
    """Truncation of the weight of stale data under `decoupled`."""

    @model_validator(mode="after")
    def _a_decay_needs_an_end(self) -> Self:
        for name in ("final_learning_rate", "final_clip"):
            if getattr(self, name) is not None and self.updates is None:
                raise ValueError(f"{name}={getattr(self, name)!r} needs updates: over which run shall it decay?")
        return self

    def loss(self, progress: float) -> Loss:
        """What a minibatch is scored by, `progress` (0 to 1) into the run."""
        return Loss(
            clip=_decayed(self.clip, self.final_clip, progress),
            value_weight=self.value_weight,
            value_clip=math.inf if self.value_clip is None else self.value_clip,
            entropy_weight=self.entropy_weight,
            is_plain=self.correction == "none",
        )

    def rate(self, progress: float) -> float:
        """Adam's step size."""
        return _decayed(self.learning_rate, self.final_learning_rate, progress)

    def progress(self, updates: int) -> float:
        return min(1.0, updates / self.updates) if self.updates else 0.0


def _decayed(first: float, last: float | None, progress: float) -> float:
    return first if last is None else first + progress * (last - first)


class PPOLearner:
    """Trains a policy on batches of segments.

    As one `rank` of several it does its share of what the network does: of the rows when a batch is looked at, of
    each minibatch in a gradient step. The rest is the same everywhere, and so are minibatches and weights.
    `device` is where the network computes; weights and optimizer are on the CPU in any case.
    """

    def __init__(
        self,
        make_network: Callable[[], ObservationScale],
        settings: PPOSettings,
        *,
        seed: int = 0,
        rank: Rank = ALONE,
        device: str = "cpu",
    ) -> None:
        self._rank = rank
        self._network = make_network()
        self._settings = settings
        self._step: Any = self._make_step(device)
        self._adam = Adam(self._step.flat, max_norm=settings.max_grad_norm)
        self._vector = torch.from_numpy(self._step.flat)  # all parameters, for the other ranks
        self._random = np.random.default_rng([seed, 11])
        self._updates = 0
        self._returns = RecentReturns()
        self._moments = _Moments(tuple(self._network.obs_mean.shape)) if self._network.normalise else None

    def _make_step(self, device: str) -> Any:
        """What computes values, log-probabilities and gradients."""
        kernels = compiled(self._network) if device == "cpu" else None
        assert isinstance(self._network, PPONetwork)
        return kernels or AutogradStep(self._network, device)

    def learn(self, batch: Batch) -> LearnReport:
        data = side_by_side([record_of(rollout, Segment) for rollout in batch.rollouts])
        if self._moments is not None:
            self._update_normalisation(data.obs[:-1][data.valid])
        rows, columns, anchor = self._prepare(data)
        metrics = self._train(rows, columns)
        ages = [batch.version - r.span.oldest for r in batch.rollouts if r.span is not None]
        metrics |= anchor
        metrics["staleness"] = float(np.mean(ages)) if ages else 0.0
        for rollout in batch.rollouts:
            self._returns.see(rollout)
        metrics |= self._returns.as_metric()
        self._updates += 1
        return LearnReport(metrics, samples=float(len(columns)))

    def snapshot(self) -> dict[str, Tensor]:
        """Tensors of their own: the network's are views of one vector, which each of them would carry along."""
        return {name: tensor.clone() for name, tensor in self._network.state_dict().items()}

    def state_dict(self) -> State:
        return {
            "network": self.snapshot(),
            "optimizer": self._adam.state_dict(),
            "random": self._random.bit_generator.state,
            "updates": self._updates,
            "returns": self._returns.state(),
            "moments": None if self._moments is None else self._moments.state(),
        }

    def load_state_dict(self, state: State) -> None:
        self._network.load_state_dict(state["network"])
        self._adam.load_state_dict(state["optimizer"])
        self._random.bit_generator.state = state["random"]
        self._updates = state["updates"]
        self._returns.restore(state["returns"])
        if self._moments is not None:
            self._moments.restore(state["moments"])

    @np.errstate(over="ignore", invalid="ignore")  # what is not finite shows in the measures of the update
    def _prepare(self, data: Segment) -> tuple[Any, np.ndarray, dict[str, float]]:
        """Rows [B, ...] without the invalid steps; their advantages and targets under the policy as it is now."""
        settings, valid = self._settings, data.valid
        rows, values, proximal = self._look(data)
        log_ratios = np.clip(proximal - data.log_probs[valid], -MAX_LOG_RATIO, MAX_LOG_RATIO)
        ratios = np.exp(log_ratios)
        ends = (data.rewards, values, data.terminated, data.truncated, valid)
        if settings.correction == "vtrace":
            everywhere = np.ones(valid.shape, ratios.dtype)
            everywhere[valid] = ratios
            advantages, targets = vtrace(*ends, everywhere, gamma=settings.gamma, lam=settings.lam)
        else:
            advantages, targets = gae(*ends, gamma=settings.gamma, lam=settings.lam)
        behaviour, before, after = data.log_probs[valid], values[:-1][valid], targets[valid]
        anchor = behaviour if settings.correction == "clip" else behaviour + log_ratios
        is_decoupled = settings.correction == "decoupled"
        weights = np.minimum(ratios, settings.max_importance) if is_decoupled else np.ones_like(ratios)
        columns = np.stack([anchor, advantages[valid], after, before, weights], 1).astype(np.float32, copy=False)
        variance = float(np.var(after))
        return (
            rows,
            columns,
            {
                "ess": effective_sample_size(ratios),
                "behaviour_kl": float((ratios - 1 - log_ratios).mean()),
                "explained_variance": 1 - float(np.var(after - before)) / variance if variance else 0.0,
            },
        )

    def _look(self, data: Segment) -> tuple[Any, np.ndarray, np.ndarray]:
        """Rows to learn from; the values [T + 1, N] of all observations; the log-probabilities [B] of valid actions."""
        steps, width = data.valid.shape
        keep = np.flatnonzero(data.valid)
        masks = None if data.masks is None else data.masks.reshape(steps * width, -1)[keep]
        rows = self._step.rows(_lines(data.obs[:-1])[keep], _lines(data.actions)[keep], masks)
        every = _lines(data.obs)
        values = self._spread(len(every), lambda mine: self._step.values(every[mine])).reshape(steps + 1, width)
        return rows, values, self._spread(len(keep), lambda mine: self._step.log_probs(rows, mine))

    def _spread(self, count: int, compute: Callable[[slice], np.ndarray]) -> np.ndarray:
        """`compute` for `count` rows, each rank for its share."""
        return self._rank.spread(count, lambda mine: torch.from_numpy(compute(mine))).numpy()

    def _minibatches(self, rows: Any, columns: np.ndarray) -> tuple[np.ndarray, int]:
        """Everything that is learned from in a new order, and how many of it a gradient step takes: here rows."""
        return self._random.permutation(len(columns)), self._settings.minibatch_size

    def _rows_in(self, rows: Any, part: np.ndarray) -> np.ndarray:
        """The rows of a part of that."""
        return part

    def _train(self, rows: object, columns: np.ndarray) -> dict[str, float]:
        settings, measured = self._settings, []
        progress = settings.progress(self._updates)
        loss, rate = settings.loss(progress), settings.rate(progress)
        for _ in range(settings.num_epochs):
            order, size = self._minibatches(rows, columns)
            if self._rank.size == 1:
                steps = self._step.learn(rows, columns, order, size, loss, self._adam, rate)
            else:
                parts = np.split(order, range(size, len(order), size))
                steps = np.stack([self._gradient_step(rows, columns, part, loss, rate) for part in parts])
            measured.append(steps)
            if settings.target_kl is not None and steps[-1, MEASURES.index("kl")] > settings.target_kl:
                break
        metrics = dict(zip(MEASURES, np.concatenate(measured).mean(0).tolist(), strict=True))
        return {**metrics, "weight_norm": float(np.linalg.norm(self._step.flat))}

    def _gradient_step(
        self, rows: object, columns: np.ndarray, part: np.ndarray, loss: Loss, rate: float
    ) -> np.ndarray:
        """One step of Adam on `part`, together with the other ranks; returns the MEASURES."""
        mine = part[self._rank.share(len(part))]
        measures, self._vector.grad = np.zeros(len(MEASURES)), None
        if len(mine):
            moments = advantage_moments(columns, self._rows_in(rows, part))  # of the whole minibatch
            measures = self._step.gradient_of(rows, columns, mine, moments, loss)
            self._vector.grad = torch.from_numpy(self._step.gradient)
        share = len(self._rows_in(rows, mine)) / len(self._rows_in(rows, part))
        everywhere = self._rank.average([self._vector], torch.from_numpy(measures), share)
        assert self._vector.grad is not None
        self._adam.apply(self._vector.grad.numpy(), rate)
        return everywhere.numpy()

    def _update_normalisation(self, obs: np.ndarray) -> None:
        assert self._moments is not None
        self._moments.add(obs)
        with torch.no_grad():
            self._network.obs_mean.copy_(torch.from_numpy(self._moments.mean))
            self._network.obs_scale.copy_(torch.from_numpy(self._moments.scale))


def _lines(values: np.ndarray) -> np.ndarray:
    """[T, N, ...] as [T * N, ...]."""
    return values.reshape(-1, *values.shape[2:])


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

    def state(self) -> State:
        return {"count": self._count, "mean": self._mean, "variance": self._variance}

    def restore(self, state: State) -> None:
        self._count, self._mean, self._variance = state["count"], state["mean"], state["variance"]
