"""Any causal language model token by token, without a cache: every step reads everything again.

    rows      tokens [R, T], filled from the left; what stands behind a row's end is never looked at

For models whose memory is more than keys and values, like state spaces and recurrent layers: their state cannot be cut
and put together row by row. A reply of n tokens costs n passes over prompt and reply, so this is the last resort of an
engine in this process; vLLM keeps such states.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headway.llm.engine.decoder import Drawn, Prompts, Reads, TreeLimits, copy_weights
from headway.llm.engine.decoder_sampling import draw, uniform
from headway.llm.engine.general_decoders_model_scores import ModelScores
from headway.llm.engine.protocol_engine import Sampling
from headway.llm.model.types import CausalModel, NamedWeights
from headway.llm.train.heads import logit_transform_of, model_logits
from headway.llm.train.trees import ReplyTree, body_of

PASS_TOKENS = 8192
"""Rows go through the model together up to so many tokens."""


class RereadingDecoder:
    """Holds a model and the tokens of `rows` samples."""

    burst = 1

    def __init__(self, model: CausalModel, rows: int, context: int) -> None:
        self.rows, self.context = rows, context
        self.device = next(model.parameters()).device
        self._model = model.eval()
        self._body, self._transform = body_of(model), logit_transform_of(model)
        self._parameters = dict(model.named_parameters())
        self._scores = ModelScores(self._model)
        self._tokens = torch.zeros(rows, context, dtype=torch.int64, device=self.device)

    def load(self, weights: NamedWeights) -> None:
        copy_weights(self._parameters, weights)

    @torch.no_grad()
    def prefill(self, prompts: Prompts) -> Tensor:
        logits = []
        for tokens, rows in prompts:
            self._tokens[rows, : len(tokens)] = tokens.to(self.device)
            logits.append(self._logits(tokens[None].to(self.device), torch.tensor([len(tokens) - 1])))
        return torch.cat(logits)

    @torch.no_grad()
    def extend(self, reads: Reads) -> Tensor:
        logits = []
        for tokens, row, start in reads:
            end = start + len(tokens)
            self._tokens[row, start:end] = tokens.to(self.device)
            logits.append(self._logits(self._tokens[row : row + 1, :end], torch.tensor([end - 1])))
        return torch.cat(logits)

    @torch.no_grad()
    def advance(self, tokens: Tensor, places: Tensor, seeds: Tensor, counts: Tensor, sampling: Sampling) -> Drawn:
        count, length = len(tokens), int(places.max()) + 1
        self._tokens[torch.arange(count), places] = tokens.to(self.device)
        at_once = max(1, PASS_TOKENS // length)
        parts = zip(self._tokens[:count, :length].split(at_once), places.split(at_once), strict=True)
        logits = torch.cat([self._logits(some, here) for some, here in parts])
        drawn, log_probs = draw(logits, uniform(seeds, counts).to(self.device), sampling)
        return drawn[None].cpu(), log_probs[None].cpu()

    def tree_limits(self) -> TreeLimits:
        return self._scores.limits

    def score(self, trees: Sequence[ReplyTree]) -> Tensor:
        return self._scores.read(trees)

    def move(self, source: int, target: int, length: int) -> None:
        self._tokens[target] = self._tokens[source]

    def swap(self, one: int, other: int, length: int) -> None:
        self._tokens[[one, other]] = self._tokens[[other, one]]

    def _logits(self, tokens: Tensor, places: Tensor) -> Tensor:
        """Returns the logits of what comes after each row's place, [R, V]."""
        hidden = self._body(input_ids=tokens, use_cache=False).last_hidden_state
        return model_logits(
            self._model.get_output_embeddings(), hidden[torch.arange(len(tokens)), places], self._transform
        )
