"""PPO on segments drawn from a replay: anything between fresh and long outdated, and some more often than others.

    draw [T, B] --> values, advantages, pi_prox under the policy as it is now
                --> epochs of weighted PPO
                --> |td| of every segment under the policy as it is then --> feedback, the new priorities

    loss = mean_i w_i (rho_i clipped_i + value_weight (V_i - target_i)^2 - entropy_weight entropy_i)

    w_i     of replay: the segment of move i was drawn more often than others. Its own number, never an average
    rho_i   of staleness: min(pi_prox / pi_b, C) under `decoupled`, else 1 (clipped or in the advantages already)

Both are truncated: w_i by the replay, which divides by the largest. The effective sample size is that of w_i rho_i.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from headway.core.types import Batch, LearnReport
from headway.ppo.learner import MAX_LOG_RATIO, PPOLearner, PPOSettings
from headway.ppo.learner_advantages import effective_sample_size
from headway.ppo.learner_autograd_step import AutogradStep
from headway.ppo.networks_network import PPONetwork
from headway.ppo.segments_segment import DrawnSegments, Segment
from headway.ranks.rank import ALONE, Rank
from headway.replay.records import record_of
from headway.replay.records_feedback import Priorities


class ReplayedPPOLearner(PPOLearner):
    """Trains a policy on draws, and says what surprised it.

    The network must not normalise its observations: their moments would be those of what is drawn.
    """

    def __init__(
        self,
        make_network: Callable[[], PPONetwork],
        settings: PPOSettings,
        *,
        seed: int = 0,
        rank: Rank = ALONE,
        device: str = "cpu",
    ) -> None:
        if settings.correction == "none":
            raise ValueError("correction='none' trains on replayed data as if they were fresh")
        super().__init__(make_network, settings, seed=seed, rank=rank, device=device)
        if self._moments is not None:
            raise ValueError("a network that normalises its observations cannot learn from a replay")
        self._step = AutogradStep(self._network, device)  # over the same parameters; kernels know no replay

    def learn(self, batch: Batch) -> LearnReport:
        (draw,) = batch.rollouts
        data = record_of(draw, DrawnSegments)
        rows, columns, metrics = self._prepare(data)
        metrics |= self._train(rows, columns)
        priorities = self._priorities(data)
        ages = batch.version - data.versions
        metrics |= {"staleness": float(ages.mean()), "staleness_max": float(ages.max())}
        metrics["td_error"] = float(priorities.mean())
        self._updates += 1
        return LearnReport(metrics, samples=float(len(columns)), feedback=Priorities(data.ids, priorities))

    def _prepare(self, data: Segment) -> tuple[Any, np.ndarray, dict[str, float]]:
        """With the weights of replay as a sixth column, and the effective sample size of both weights together."""
        assert isinstance(data, DrawnSegments)
        rows, columns, metrics = super()._prepare(data)
        valid, settings = data.valid, self._settings
        of_replay = np.broadcast_to(data.weights, valid.shape)[valid]
        proximal = columns[:, 0]
        if settings.correction == "clip":  # which needs no pi_prox otherwise
            proximal = self._spread(len(columns), lambda mine: self._step.log_probs(rows, mine))
        log_ratios = np.clip(proximal - data.log_probs[valid], -MAX_LOG_RATIO, MAX_LOG_RATIO)
        truncated = np.minimum(np.exp(log_ratios), settings.max_importance)
        metrics["ess"] = effective_sample_size(of_replay * truncated)
        return rows, np.column_stack([columns, of_replay.astype(np.float32)]), metrics

    def _priorities(self, data: Segment) -> np.ndarray:
        """The mean |td| over the valid moves of each segment [B], with the values as they are now."""
        obs, valid = data.obs, data.valid
        every = obs.reshape(-1, *obs.shape[2:])
        values = self._spread(len(every), lambda mine: self._step.values(every[mine])).reshape(obs.shape[:2])
        next_values = np.where(data.terminated, 0.0, values[1:])
        errors = np.abs(data.rewards + self._settings.gamma * next_values - values[:-1]) * valid
        return errors.sum(axis=0) / np.maximum(valid.sum(axis=0), 1)
