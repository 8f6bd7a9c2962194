"""Small networks of texts, and rows of words that they can read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.text_games.textzero_network import Body, TextZeroArchitecture, TextZeroNetwork

SMALL = TextZeroArchitecture(
    text_words=9, slots=5, action_words=3, buckets=50, embedding=8, latent=16, hidden=12, table=12, heads=2
)
BODIES: tuple[Body, ...] = ("muzero", "unizero")


def a_text_network(body: Body = "muzero", *, shaken: bool = True, seed: int = 1, **changes: Any) -> TextZeroNetwork:
    """With heads that say something, too."""
    network = TextZeroNetwork(replace(SMALL, body=body, **changes), seed=seed)
    random = torch.Generator().manual_seed(seed)
    if shaken:
        with torch.no_grad():
            for parameter in network.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.2 * torch.randn(parameter.shape, generator=random))
    return network


def text_rows(num: int, *, seed: int = 0, filled: int = 4) -> np.ndarray:
    """Rows of SMALL, the first `filled` of their slots with one of eight actions each, all different."""
    rng = np.random.default_rng(seed)
    actions = np.zeros((8, 3), np.int32)
    actions[:, 0], actions[:, 1], actions[::2, 2] = rng.integers(1, 51, 8), np.arange(1, 9), 7
    rows = np.zeros((num, SMALL.row), np.int32)
    rows[:, : SMALL.text_words - 2] = rng.integers(1, 51, size=(num, SMALL.text_words - 2))
    for row in rows:
        slots = row[SMALL.text_words :].reshape(SMALL.slots, SMALL.action_words)
        slots[:filled] = actions[rng.permutation(8)[:filled]]
    return rows


def words_of(rows: np.ndarray) -> Tensor:
    """The words of the slots of rows of SMALL, [N, K, W]."""
    return torch.from_numpy(rows[:, SMALL.text_words :].reshape(len(rows), SMALL.slots, SMALL.action_words))
