"""Scores by a model of any family, read as the trainer reads it: in trees where it can (layouts.py), else in rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from headway.llm.engine.decoder import TreeLimits
from headway.llm.model.types import CausalModel
from headway.llm.train.heads import chosen_log_probs, logit_transform_of
from headway.llm.train.kernels_layouts import fits_trees
from headway.llm.train.trees import ReplyTree, hidden_states, lay_out, pair_price

PASS_TOKENS = 8192
"""Trees go through the model together up to so many padded tokens."""


class ModelScores:
    """Reads trees with a model; which kind it can read is found out when it is first asked."""

    def __init__(self, model: CausalModel) -> None:
        self._model = model
        self._transform = logit_transform_of(model)

    @cached_property
    def limits(self) -> TreeLimits:
        if fits_trees(self._model):
            return TreeLimits(PASS_TOKENS, pair_price(self._model))
        return TreeLimits(PASS_TOKENS, apart=True)

    @torch.no_grad()
    def read(self, trees: Sequence[ReplyTree]) -> Tensor:
        """Returns the log-probabilities of the branches' tokens, [N]."""
        device = next(self._model.parameters()).device
        batch = lay_out(trees, apart=self.limits.apart).to(device)
        hidden = hidden_states(self._model, batch)
        found, _ = chosen_log_probs(
            self._model.get_output_embeddings(), hidden, batch.targets, transform=self._transform
        )
        return found.float()
