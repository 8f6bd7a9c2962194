"""Measures how well one version says what others have said: on episodes it is never trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from headway.core.protocols import Evaluator
from headway.core.types import Score, Snapshot
from headway.core.types_lent import taken
from headway.llm.model.types import CausalModel, NamedWeights
from headway.llm.rollouts_episode import Episodes
from headway.llm.train.heads import CHUNK, logit_transform_of, model_logits
from headway.llm.train.kernels_layouts import choose_layout
from headway.llm.train.trees import TreeBatch, hidden_states, lay_out, pack_trees


class LikelihoodEvaluator:
    """Reads held-out episodes with a model of its own, which `load` builds. The score is minus the mean of -log p over
    trained tokens: 0 is perfect, and higher is better."""

    def __init__(
        self,
        load: Callable[[], CausalModel],
        episodes: Sequence[Episodes],
        *,
        microbatch_tokens: int = 2048,
        logit_chunk_tokens: int = CHUNK,
        layout: str = "auto",
    ) -> None:
        self._model = load().eval().requires_grad_(False)
        self._transform = logit_transform_of(self._model)
        self._chunk = logit_chunk_tokens
        self._num_episodes = sum(record.size for record in episodes)
        self._batches = _batches(episodes, microbatch_tokens, choose_layout(self._model, layout) == "rows")

    def evaluate(self, snapshot: Snapshot, seed: int) -> Score:
        take_weights(self._model, taken(snapshot.payload))
        device = next(self._model.parameters()).device
        sums = torch.zeros(3, dtype=torch.float64)  # -log p, right guesses, tokens
        with torch.no_grad():
            for batch in self._batches:
                sums += self._read(batch.to(device))
        nll, right, tokens = sums.tolist()
        nll /= tokens
        return Score(
            snapshot.version,
            -nll,
            {
                "nll": nll,
                "perplexity": float(np.exp(min(nll, 80.0))),
                "token_accuracy": right / tokens,
                "records": float(self._num_episodes),
            },
        )

    def _read(self, batch: TreeBatch) -> Tensor:
        """Returns the sums of one microbatch, [3]."""
        head, found = self._model.get_output_embeddings(), torch.zeros(3, dtype=torch.float64)
        hidden = hidden_states(self._model, batch)
        for rows, targets in zip(hidden.split(self._chunk), batch.targets.split(self._chunk), strict=True):
            logits = model_logits(head, rows, self._transform).float()
            loss = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
            found += torch.tensor([float(loss), float((logits.argmax(-1) == targets).sum()), float(len(targets))])
        return found


class LikelihoodAndGames:
    """Measures the likelihood of what others said, which is the score, and beside it the games that a version plays."""

    def __init__(self, likelihood: LikelihoodEvaluator, games: Evaluator) -> None:
        self._likelihood = likelihood
        self._games = games

    def evaluate(self, snapshot: Snapshot, seed: int) -> Score:
        read, played = self._likelihood.evaluate(snapshot, seed), self._games.evaluate(snapshot, seed)
        own = {} if played.value is None else {"return": played.value}
        return replace(read, metrics={**played.metrics, **own, **read.metrics}, samples=played.samples)

    def close(self) -> None:
        close = getattr(self._games, "close", None)
        if close is not None:
            close()


def take_weights(model: CausalModel, weights: NamedWeights) -> None:
    """Puts published weights, under the model's own names, in place of its own."""
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in weights.items():
            own[name].copy_(torch.as_tensor(tensor))


def _batches(episodes: Sequence[Episodes], budget: int, apart: bool) -> list[TreeBatch]:
    if not episodes:
        raise ValueError("there are no episodes to evaluate on")
    prompts, branches, masks = [], [], []
    for record in episodes:
        ends = np.cumsum(record.lengths)[:-1]
        prompts.append(record.prompt.astype(np.int64))
        branches.append([tokens.astype(np.int64) for tokens in np.split(record.tokens, ends)])
        masks.append(np.split(record.trained, ends))
    packed = pack_trees(prompts, branches, budget, apart=apart, trained=masks)
    return [lay_out(trees, apart=apart) for trees in packed]
