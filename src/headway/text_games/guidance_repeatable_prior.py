"""A prior whose opinion of a situation has the same bits whatever else was asked, and whenever.

Scores that are computed together are rounded together: one more situation in the batch, or one action fewer because
it is remembered, can change a last bit, and with it what a search visits. So each situation is asked about by itself,
with all its actions in one order, and the whole answer is remembered. After a restart nothing is, and the answers
come out the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np

from headway.core.types_opaque import Weights
from headway.text_games.action_prior import Opinion, Situation
from headway.text_games.guidance import PriorOfActions


class RepeatablePrior:
    """Asks another prior, which remembers nothing itself, and keeps the last `size` answers of one version."""

    def __init__(self, prior: PriorOfActions, *, size: int) -> None:
        if size < 0:
            raise ValueError(f"size must be >= 0, received {size!r}")
        self._prior = prior
        self._size = size
        self._kept: OrderedDict[Situation, Opinion] = OrderedDict()
        self._asked = self._cached = 0

    @property
    def version(self) -> int:
        return self._prior.version

    def apply(self, version: int, weights: Weights) -> None:
        self._prior.apply(version, weights)
        self._kept.clear()

    def opinions(self, situations: Sequence[Situation]) -> list[Opinion]:
        self._asked += len(situations)
        return [self._opinion(one) for one in situations]

    def _opinion(self, situation: Situation) -> Opinion:
        order = sorted(range(len(situation.actions)), key=lambda place: situation.actions[place])
        question = Situation(situation.prompt, tuple(situation.actions[place] for place in order))
        found = self._kept.pop(question, None)
        if found is None:
            (found,) = self._prior.opinions([question])
        else:
            self._cached += len(order)
        if self._size and not found.is_late:
            self._kept[question] = found  # the last that was used is the last to go
            if len(self._kept) > self._size:
                self._kept.popitem(last=False)
        back = np.argsort(order)
        return Opinion(
            found.probabilities[back], tuple(found.log_probs[place] for place in back), found.version, found.is_late
        )

    def tokens(self, situation: Situation) -> tuple[Sequence[int], Sequence[Sequence[int]]]:
        return self._prior.tokens(situation)

    def statistics(self) -> Mapping[str, float]:
        return {**self._prior.statistics(), "asked": self._asked, "cached": self._cached}

    def close(self) -> None:
        self._prior.close()
