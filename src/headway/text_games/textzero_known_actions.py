"""The actions a model knows by their words, wherever they were possible: what the inside of a search chooses from.

    candidates of a draw --see--> | words [M, W] | usage [M] | --> inner nodes of a search, targets of legality

At a root the game says what can be done. Below it nobody does, so the model takes the likeliest of this table. Nothing
but words is in it: what an action means is read from them by the same weights everywhere, so an entry may be
overwritten at any time. The table is a part of the weights: it is published, saved and averaged with them.

Which actions are kept: those that were possible most often of late. `usage` is the share of the observations in which
an action could be done, as a running mean.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

MEMORY = 0.99
"""Share of the old in the running mean of the usage."""
_ODD = np.random.default_rng(16).integers(2**63, size=4096, dtype=np.int64) | 1


def keys_of(words: Tensor) -> Tensor:
    """One number [...] for each row of words [..., W]: equal for equal rows, 0 for an empty one."""
    return (words.long() * torch.from_numpy(_ODD[: words.shape[-1]]).to(words.device)).sum(-1)


class KnownActions(nn.Module):
    """A table of `size` actions of up to `num_words` hashed words each. Rows of zeros are free."""

    def __init__(self, size: int, num_words: int) -> None:
        super().__init__()
        self.words = nn.Parameter(torch.zeros(size, num_words, dtype=torch.int32), requires_grad=False)
        self.usage = nn.Parameter(torch.zeros(size), requires_grad=False)

    @property
    def is_used(self) -> Tensor:
        """[M]: where there is an action."""
        return (self.words != 0).any(-1)

    @torch.no_grad()
    def see(self, words: Tensor) -> None:
        """What could be done in N observations, words [N, K, W]: count it, and keep what is new if there is room.

        Room is a free row, or one whose action is seen more rarely than the new one.
        """
        num = len(words)
        keys, counts = np.unique(keys_of(words).cpu().numpy(), return_counts=True)
        shares = torch.from_numpy((1 - MEMORY) * counts / num).to(self.usage)
        known = keys_of(self.words).cpu().numpy()
        at = np.searchsorted(keys, known).clip(max=len(keys) - 1)
        seen = torch.from_numpy((keys[at] == known) & (known != 0)).to(self.usage.device)
        self.usage.mul_(MEMORY).add_(torch.where(seen, shares[torch.from_numpy(at).to(self.usage.device)], 0.0))
        new = (keys != 0) & ~np.isin(keys, known)
        if new.any():
            self._insert(words.flatten(0, 1), keys[new], shares.cpu().numpy()[new])

    def _insert(self, words: Tensor, keys: np.ndarray, shares: np.ndarray) -> None:
        """The most frequent first, each at the place that is used least; of equals the first."""
        every = keys_of(words).cpu().numpy()
        usage = np.where(self.is_used.cpu().numpy(), self.usage.cpu().numpy(), -1.0)
        places = np.argsort(usage, kind="stable")[: len(keys)]
        order = np.lexsort((keys, -shares))[: len(places)]
        for place, one in zip(places, order, strict=True):
            if usage[place] >= shares[one]:
                break
            self.words[place] = words[int(np.argmax(every == keys[one]))].int()
            self.usage[place] = float(shares[one])

    @torch.no_grad()
    def among(self, keys: Tensor) -> Tensor:
        """[..., M] float32: 1 where an action of the table is among those with keys [..., K]."""
        table = keys_of(self.words)
        ordered, order = table.sort()
        at = torch.searchsorted(ordered, keys).clamp(max=len(table) - 1)
        found = (ordered[at] == keys) & (keys != 0)
        hits = torch.zeros(*keys.shape[:-1], len(table) + 1, device=keys.device)
        hits.scatter_(-1, torch.where(found, order[at], len(table)), 1.0)  # what is not there goes to a column too many
        return hits[..., :-1]
