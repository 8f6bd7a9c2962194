"""Learns a language model from episodes that others have played or written.

    episodes --> microbatches of trees (llm/trees.py) or of rows --> -log p of what was said, mean over trained tokens
                                                                                  |
    weights <-- AdamW <-- gradients, added up over ranks <------------------------+

Only tokens that are marked as trained count: what the environment said gets no gradient and is in no mean. An episode
may have a weight (one of its `parts`); then the mean is one over weights. Data do not depend on the policy, so they are
as good when they are old: no correction is needed at any lead.

As one rank of several a learner has the whole batch and does its share of the episodes; the mean is that of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headway.core.types import Batch, LearnReport
from headway.experience.episode import Episodes
from headway.learn.grpo.policy import autocast
from headway.learn.grpo.replies import Microbatch, MicrobatchSizes, Replies
from headway.learn.imitation.settings import ImitationSettings
from headway.learn.rank import ALONE, Rank
from headway.llm.adapters import plain_weights
from headway.llm.chat_files import WEIGHT
from headway.llm.heads import chosen_log_probs, logit_transform_of
from headway.llm.layouts import choose_layout
from headway.llm.model_types import CausalModel
from headway.llm.trees import hidden_states, pair_price
from headway.llm.without_dropout import without_dropout


class _Step(NamedTuple):
    """What one step of the optimizer has seen."""

    loss: Tensor  # the sum over trained tokens of weight times -log p, of all ranks
    weight: float
    norm: Tensor  # of the gradient


class ImitationLearner:
    """Trains a causal language model to say what is recorded. `load` builds the model, where the learner runs."""

    def __init__(
        self,
        load: Callable[[], CausalModel],
        settings: ImitationSettings,
        *,
        publish_dtype: torch.dtype | None = None,
        seed: int = 0,
        rank: Rank = ALONE,
    ) -> None:
        self._settings = settings
        self._rank = rank
        self._model = without_dropout(load())
        self._transform = logit_transform_of(self._model)
        apart = choose_layout(self._model, settings.layout) == "rows"
        device = next(self._model.parameters()).device
        price = 0.0 if apart else pair_price(self._model)
        self._sizes = MicrobatchSizes(settings.microbatch_tokens, price, device, apart)
        self._trained = {name: p for name, p in self._model.named_parameters() if p.requires_grad}
        if not self._trained:
            raise ValueError("the model has no weights to train")
        self._optimizer = torch.optim.AdamW(
            self._trained.values(),
            lr=settings.learning_rate,
            betas=(settings.adam_beta1, settings.adam_beta2),
            eps=settings.adam_eps,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self._publish_dtype = publish_dtype
        self._random = np.random.default_rng(seed)
        self._updates = 0

    # -- the learner's face -------------------------------------------------------------------------

    def learn(self, batch: Batch) -> LearnReport:
        rate = self._settings.learning_rate * self._settings.schedule().share(self._updates)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        records: list[Episodes] = [rollout.payload for rollout in batch.rollouts]
        data, weights = Replies.of(records, self._sizes.device), episode_weights(records)
        steps = [
            self._step(data, weights, groups)
            for _ in range(self._settings.num_epochs)
            for groups in self._minibatches(data.num_groups)
        ]
        self._updates += 1
        nll = float(sum(step.loss for step in steps)) / sum(step.weight for step in steps)
        return LearnReport(
            {
                "nll": nll,
                "perplexity": float(np.exp(min(nll, 80.0))),
                "trained_tokens": float(data.num_tokens),
                "episode_tokens": data.num_tokens / data.sequences.num_rows,
                "read_tokens": float(data.sizes.sum()),
                "grad_norm": float(torch.stack([step.norm for step in steps]).mean()),
                "learning_rate": rate,
            }
        )

    def snapshot(self) -> dict[str, Tensor]:
        """Returns what training has changed, as an engine wants it: plain weights under the model's own names."""
        weights = plain_weights(self._model)
        if self._publish_dtype is None:
            return weights
        return {name: tensor.to(self._publish_dtype) for name, tensor in weights.items()}

    def held_alike(self) -> dict[str, Tensor]:
        """Returns the weights that are the same on every rank."""
        return {name: parameter.detach() for name, parameter in self._trained.items()}

    def state_dict(self) -> dict[str, Any]:
        return {
            "weights": self.held_alike(),
            "optimizer": self._optimizer.state_dict(),
            "updates": self._updates,
            "random": self._random.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, parameter in self._trained.items():
                parameter.copy_(torch.as_tensor(state["weights"][name]))
        self._optimizer.load_state_dict(state["optimizer"])
        self._updates = state["updates"]
        self._random.bit_generator.state = state["random"]

    # -- one step of the optimizer ------------------------------------------------------------------

    def _minibatches(self, num_groups: int) -> Iterator[np.ndarray]:
        count = min(self._settings.num_minibatches, num_groups)
        order = self._random.permutation(num_groups) if count > 1 else np.arange(num_groups)
        return (np.sort(part) for part in np.array_split(order, count))

    def _step(self, data: Replies, weights: np.ndarray, groups: np.ndarray) -> _Step:
        """Takes one step on some groups. The mean is over their tokens, whichever rank and microbatch these are in."""
        numbers = data.numbers(groups)
        whole = float((weights[numbers] * data.sequences.lengths[numbers].numpy()).sum())
        loss = torch.zeros((), device=self._sizes.device)
        self._optimizer.zero_grad(set_to_none=True)
        for part in data.microbatches(groups[self._rank.share_by_size(data.sizes[groups])], self._sizes):
            counts = torch.from_numpy(weights[list(part.trees.replies)]).to(self._sizes.device)
            part_loss = -(part.sequences.spread(counts) * self._log_probs(part)).sum()
            (part_loss / whole).backward()
            loss += part_loss.detach()
        self._rank.add_up(loss)
        parameters = list(self._trained.values())
        self._rank.add_up_gradients(parameters)
        norm = torch.nn.utils.clip_grad_norm_(parameters, self._settings.max_grad_norm, foreach=True)
        self._optimizer.step()
        return _Step(loss, whole, norm)

    def _log_probs(self, part: Microbatch) -> Tensor:
        """Returns log p of the trained tokens of a microbatch, [n]."""
        with autocast(self._sizes.device):
            found, _ = chosen_log_probs(
                self._model.get_output_embeddings(),
                hidden_states(self._model, part.trees),
                part.trees.targets,
                transform=self._transform,
                chunk=self._settings.logit_chunk_tokens,
            )
        return found.float()


def episode_weights(records: Sequence[Episodes]) -> np.ndarray:
    """Returns how much each episode counts, [S] float32."""
    found = []
    for record in records:
        parts = dict(zip(record.part_names, record.parts, strict=True)) if record.part_names else {}
        found.append(parts.get(WEIGHT, np.ones(record.size, np.float32)))
    return np.concatenate(found).astype(np.float32)
