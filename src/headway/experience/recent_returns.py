"""The returns of the episodes that ended lately."""

from __future__ import annotations

from collections import deque

import numpy as np

from headway.core.types import Rollout

EPISODES_AVERAGED = 100


class RecentReturns:
    """Takes the finished episodes out of rollouts; `mean` is over the last hundred of them."""

    def __init__(self) -> None:
        self._returns: deque[float] = deque(maxlen=EPISODES_AVERAGED)

    def see(self, rollout: Rollout) -> None:
        """Collectors list the finished episodes as (return, length) under `episodes` in the info of a rollout."""
        self._returns.extend(episode[0] for episode in rollout.info.get("episodes", ()))

    def as_metric(self) -> dict[str, float]:
        """The mean under the name `return`; nothing before the first episode has ended."""
        return {"return": float(np.mean(self._returns))} if self._returns else {}

    def state(self) -> list[float]:
        return list(self._returns)

    def restore(self, state: list[float]) -> None:
        self._returns = deque(state, maxlen=EPISODES_AVERAGED)
