"""Priors that need no language model, for tests and benchmarks."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headway.text_games.action_prior import Opinion, Situation, SituationTokens


class UniformPrior:
    """Finds every action equally likely. Its tokens are hashed words, and each has the log-probability -1."""

    def __init__(self, version: int = 0) -> None:
        self.version = version
        self.applied: list[int] = []
        """Versions that were applied, in this order."""
        self.is_closed = False
        self._asked = 0

    def apply(self, version: int, weights: Any) -> None:
        self.version = version
        self.applied.append(version)

    def opinions(self, situations: Sequence[Situation]) -> list[Opinion]:
        self._asked += len(situations)
        return [self._opinion(situation) for situation in situations]

    def tokens(self, situation: Situation) -> SituationTokens:
        return hashed_tokens(situation.prompt), tuple(map(hashed_tokens, situation.actions))

    def statistics(self) -> Mapping[str, float]:
        return {"asked": self._asked, "late": 0, "cached": 0, "scored_actions": 0, "seconds": 0.0}

    def close(self) -> None:
        self.is_closed = True

    def _opinion(self, situation: Situation) -> Opinion:
        num = len(situation.actions)
        log_probs = tuple(np.full(len(hashed_tokens(action)), -1.0, np.float32) for action in situation.actions)
        return Opinion(np.full(num, 1 / max(1, num), np.float32), log_probs, self.version)


def hashed_tokens(text: str, vocabulary: int = 256) -> tuple[int, ...]:
    """Makes a token of each word, the same in every process; at least one."""
    return tuple(3 + zlib.crc32(word.encode()) % (vocabulary - 3) for word in text.lower().split() or [""])
