"""What came before an observation: the last steps of games, for models that look back.

    obs      | . . o_3 o_4 o_5 |  o_6 is searched from        lengths = 3: the newest are last, what there is not is
    actions  | . . a_3 a_4 a_5 |                              zero and comes first

Raw observations and actions, never latents: whatever weights search next can make their own of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Past(NamedTuple):
    """The last steps before each root. B roots, C steps at most."""

    obs: np.ndarray  # [B, C, ...] of the type of the observations
    actions: np.ndarray  # [B, C] int64
    lengths: np.ndarray  # [B] int64, in 0..C


class History:
    """Keeps the past of N games while they are played."""

    def __init__(self, steps: int, like: np.ndarray) -> None:
        """:param like: observations [N, ...] of these games"""
        if steps < 1:
            raise ValueError(f"a history needs at least one step, received {steps!r}")
        self.past = Past(
            np.zeros((len(like), steps, *like.shape[1:]), like.dtype),
            np.zeros((len(like), steps), np.int64),
            np.zeros(len(like), np.int64),
        )

    def add(self, obs: np.ndarray, actions: np.ndarray) -> None:
        """A step of every game: what was seen [N, ...] and done [N]."""
        kept = self.past
        for rows, newest in ((kept.obs, obs), (kept.actions, actions)):
            rows[:, :-1] = rows[:, 1:].copy()
            rows[:, -1] = newest
        np.minimum(kept.lengths + 1, kept.actions.shape[1], out=kept.lengths)

    def forget(self, begins: np.ndarray) -> None:
        """What is seen next belongs to another episode, where `begins` [N]."""
        for rows in self.past:
            rows[begins] = 0


def pasts(obs: np.ndarray, actions: np.ndarray, begins: np.ndarray, steps: int) -> Past:
    """Of every row of segments [G, T, ...], as far as the segment and the episode reach: [G * T] roots."""
    groups, length = actions.shape
    history = History(steps, obs[:, 0])
    found = []
    for step in range(length):
        history.forget(begins[:, step])
        found.append([part.copy() for part in history.past])
        history.add(obs[:, step], actions[:, step])
    return Past(*(np.stack(part, 1).reshape(groups * length, *part[0].shape[1:]) for part in zip(*found, strict=True)))
