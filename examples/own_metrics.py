"""A trainer that adds metrics of its own to every update.

headway run examples/own_metrics.py --task arithmetic
"""

from dataclasses import replace
from functools import partial

import numpy as np

from headway import Batch, LearnReport
from headway.llm import grpo
from headway.llm.train.grpo_learner_learner import GRPOLearner


class SolvedLearner(GRPOLearner):
    """The share of prompts to which every reply, or none, was right: `learn/always_solved`, `learn/never_solved`."""

    def learn(self, batch: Batch) -> LearnReport:
        report = super().learn(batch)
        right = np.array([(rollout.payload.rewards >= 1).mean() for rollout in batch.rollouts])
        mine = {"always_solved": float((right == 1).mean()), "never_solved": float((right == 0).mean())}
        return replace(report, metrics={**report.metrics, **mine})


CONFIG = grpo.CONFIG
stations = partial(grpo.stations, learner=SolvedLearner)
