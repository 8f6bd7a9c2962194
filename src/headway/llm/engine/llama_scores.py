"""Scores by the Llama-shaped decoder for a CPU, which reads trees token by token into one row of its cache.

    cache [place]   p0 p1 p2 p3 p4 | a0 a1         then b0 in a0's place, then the next prompt from where it differs
    line [T]        p3 p4 a0 a1 b0 q2 q3 q4 d0     places 3 4 5 6 5 2 3 4 5

No mask is needed, and what a prompt begins with is not read again where the last prompt began with it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headway.llm.engine.llama_weights import LlamaShape
from headway.llm.train.trees import SLOWNESS, ReplyTree


@dataclass(frozen=True, slots=True)
class BranchesInLine:
    """Holds T tokens, in the order in which one row of a cache reads them, and which of their outputs are scores."""

    tokens: Tensor  # [T]
    places: Tensor  # [T]
    wanted: Tensor  # [W], rising: tokens whose output predicts something
    sources: Tensor  # [N]: for each scored token, which of the wanted ones predicts it
    targets: Tensor  # [N]


def line_up(trees: Sequence[ReplyTree], known: np.ndarray) -> BranchesInLine:
    """Writes down what is to be read where the row holds the tokens `known`; afterwards it holds the last prompt."""
    tokens: list[np.ndarray] = []
    places: list[np.ndarray] = []
    predicting: list[np.ndarray] = []
    at = 0
    for tree in trees:
        length = len(tree.prompt)
        shared = min(_common(known, tree.prompt), length - 1)  # the last token's output is wanted
        tokens.append(tree.prompt[shared:])
        places.append(np.arange(shared, length))
        at += length - shared
        last = at - 1
        for reply in tree.replies:
            inner = len(reply) - 1
            tokens.append(reply[:-1])
            places.append(np.arange(length, length + inner))
            predicting.append(np.concatenate([[last], np.arange(at, at + inner)]))
            at += inner
        known = tree.prompt
    wanted, sources = np.unique(np.concatenate(predicting), return_inverse=True)
    targets = np.concatenate([reply for tree in trees for reply in tree.replies])
    arrays = (np.concatenate(tokens), np.concatenate(places), wanted, sources, targets)
    return BranchesInLine(*(torch.from_numpy(array.astype(np.int64)) for array in arrays))


def _common(known: np.ndarray, prompt: np.ndarray) -> int:
    """Counts the tokens that both begin with."""
    size = min(len(known), len(prompt))
    differs = np.flatnonzero(known[:size] != prompt[:size])
    return int(differs[0]) if len(differs) else size


def branch_price(shape: LlamaShape) -> float:
    """Says what a pair of tokens costs attention, in tokens that go through the layers."""
    layer = shape.hidden * (2 * (shape.heads + shape.kv_heads) * shape.dim + 3 * shape.inner)
    return SLOWNESS * 2 * shape.dim * shape.heads / layer


def log_probs_of(logits: Tensor, targets: Tensor) -> Tensor:
    logits = logits.float()
    return logits.gather(1, targets[:, None])[:, 0] - logits.logsumexp(-1)
