"""Learns a language model from episodes that others have played or written.

    episodes --> microbatches of trees (trees.py) or of rows --> -log p of what was said, mean over trained tokens
                                                                                  |
    weights <-- AdamW <-- gradients, added up over ranks <------------------------+

Only tokens that are marked as trained count: what the environment said gets no gradient and is in no mean. An episode
may have a weight (one of its `parts`); then the mean is one over weights. Data do not depend on the policy, so they are
as good when they are old: no correction is needed at any lead.

As one rank of several a learner has the whole batch and does its share of the episodes; the mean is that of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from headway.core.types import Batch, LearnReport
from headway.llm.model.types import CausalModel
from headway.llm.rollouts_episode import Episodes
from headway.llm.tasks.chat_files import WEIGHT
from headway.llm.train.heads import chosen_log_probs, logit_transform_of
from headway.llm.train.imitation_settings import ImitationSettings
from headway.llm.train.model_in_training import LearnsAModel, ModelInTraining
from headway.llm.train.model_in_training_policy import autocast
from headway.llm.train.ragged_device_copies import send
from headway.llm.train.replies import Microbatch, Replies, minibatches
from headway.llm.train.trees import hidden_states
from headway.ranks.rank import ALONE, Rank


class _Step(NamedTuple):
    """What one step of the optimizer has seen."""

    loss: Tensor  # the sum over trained tokens of weight times -log p, of all ranks
    weight: float
    norm: Tensor  # of the gradient


class ImitationLearner(LearnsAModel):
    """Trains a causal language model to say what is recorded. `load` builds the model, where the learner runs."""

    def __init__(
        self,
        load: Callable[[], CausalModel],
        settings: ImitationSettings,
        *,
        publish_dtype: torch.dtype | None = None,
        seed: int = 0,
        rank: Rank = ALONE,
        shard_ranks: int | None = None,
    ) -> None:
        self._settings = settings
        self._rank = rank
        self._training = ModelInTraining(
            load,
            settings,
            layout=settings.layout,
            kernels=settings,
            microbatch_tokens=settings.microbatch_tokens,
            publish_dtype=publish_dtype,
            seed=seed,
            rank=rank,
            shard_ranks=shard_ranks,
        )
        self._transform = logit_transform_of(self._training.model)

    # -- the learner's face -------------------------------------------------------------------------

    def learn(self, batch: Batch) -> LearnReport:
        rate = self._settings.learning_rate * self._settings.schedule().share(self._training.updates)
        self._training.trained.learning_rate = rate
        records: list[Episodes] = [rollout.payload for rollout in batch.rollouts]
        data, weights = Replies.of(records, self._training.device), episode_weights(records)
        steps = [
            self._step(data, weights, groups)
            for _ in range(self._settings.num_epochs)
            for groups in minibatches(data.num_groups, self._settings.num_minibatches, self._training.random)
        ]
        self._training.updates += 1
        nll = float(sum(step.loss for step in steps)) / sum(step.weight for step in steps)
        return LearnReport(
            {
                "nll": nll,
                "perplexity": float(np.exp(min(nll, 80.0))),
                "trained_tokens": float(data.num_tokens),
                "episode_tokens": data.num_tokens / data.sequences.num_rows,
                "read_tokens": float(data.sizes.sum()),
                **self._training.trained.norms([step.norm for step in steps]),
                "learning_rate": rate,
            }
        )

    # -- one step of the optimizer ------------------------------------------------------------------

    def _step(self, data: Replies, weights: np.ndarray, groups: np.ndarray) -> _Step:
        """Takes one step on some groups. The mean is over their tokens, whichever rank and microbatch these are in."""
        numbers = data.numbers(groups)
        whole = float((weights[numbers] * data.sequences.lengths[numbers].numpy()).sum())
        sizes = self._training.sizes
        loss = torch.zeros((), device=sizes.device)
        self._training.trained.forget_gradients()
        mine = groups[self._rank.share_by_size(data.sizes[groups])]
        for part in self._training.in_step(data.microbatches(mine, sizes), data):
            with self._training.gpu.turn():
                if part.is_filler:
                    (0.0 * self._log_probs(part).sum()).backward()
                    continue
                counts = send(torch.from_numpy(weights[list(part.trees.replies)]), sizes.device)
                part_loss = -(part.sequences.spread(counts) * self._log_probs(part)).sum()
                (part_loss / whole).backward()
                loss += part_loss.detach()
        self._rank.add_up(loss)
        return _Step(loss, whole, self._training.step())

    def _log_probs(self, part: Microbatch) -> Tensor:
        """Returns log p of the trained tokens of a microbatch, [n]."""
        model = self._training.model
        with autocast(self._training.device):
            found, _ = chosen_log_probs(
                model.get_output_embeddings(),
                hidden_states(model, part.trees),
                part.trees.targets,
                transform=self._transform,
                chunk=self._settings.logit_chunk_tokens,
                fused=self._training.kernels.is_compiled,
            )
        return found.float()


def episode_weights(records: Sequence[Episodes]) -> np.ndarray:
    """Returns how much each episode counts, [S] float32."""
    found = []
    for record in records:
        parts = dict(zip(record.part_names, record.parts, strict=True)) if record.part_names else {}
        found.append(parts.get(WEIGHT, np.ones(record.size, np.float32)))
    return np.concatenate(found).astype(np.float32)
