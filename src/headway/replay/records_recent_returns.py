"""The returns and lengths of the episodes that ended lately."""

from __future__ import annotations

from collections import deque

import numpy as np

from headway.core.types import Rollout

EPISODES_AVERAGED = 100


class RecentReturns:
    """Takes the finished episodes out of rollouts, and averages over the last hundred of them."""

    def __init__(self) -> None:
        self._returns: deque[float] = deque(maxlen=EPISODES_AVERAGED)
        self._lengths: deque[float] = deque(maxlen=EPISODES_AVERAGED)

    def see(self, rollout: Rollout) -> None:
        """Collectors list the finished episodes as (return, length) under `episodes` in the info of a rollout."""
        for total, length in rollout.info.get("episodes", ()):
            self._returns.append(total)
            self._lengths.append(length)

    def as_metric(self) -> dict[str, float]:
        """The means under the names `return` and `length`; nothing before the first episode has ended."""
        means: dict[str, deque[float]] = {"return": self._returns, "length": self._lengths}
        return {name: float(np.mean(values)) for name, values in means.items() if values}

    def state(self) -> dict[str, list[float]]:
        return {"returns": list(self._returns), "lengths": list(self._lengths)}

    def restore(self, state: dict[str, list[float]] | list[float]) -> None:
        """A list has the returns alone: checkpoints of earlier releases hold no lengths."""
        known = {"returns": state, "lengths": []} if isinstance(state, list) else state
        self._returns = deque(known["returns"], maxlen=EPISODES_AVERAGED)
        self._lengths = deque(known["lengths"], maxlen=EPISODES_AVERAGED)
