"""Measures one version in games that it is never trained on: mean return, success, turns, tokens, how episodes end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from headway.core.types import Score, Snapshot
from headway.core.types_opaque import Weights
from headway.llm.rollouts_episode import ENDS
from headway.llm.rollouts_transcript import Transcript


class GamePlayer(Protocol):
    """Plays a fixed set of games with an engine of its own."""

    def apply(self, version: int, weights: Weights) -> None: ...

    def play(self, seed: int) -> list[list[Transcript]]:
        """The episodes of every game; `seed` decides what is drawn in them."""
        ...

    def close(self) -> None: ...


class AgentEvaluator:
    """Plays held-out games with the version that is measured. `make_player` is called where the evaluator runs.

    The score is the mean return over all episodes. The text of `num_shown` episodes goes along for people to read: the
    first ones of the first games, the same at every evaluation.
    """

    def __init__(self, make_player: Callable[[], GamePlayer], *, num_shown: int = 0) -> None:
        self._player = make_player()
        self._num_shown = num_shown

    def evaluate(self, snapshot: Snapshot, seed: int) -> Score:
        self._player.apply(snapshot.version, snapshot.payload)
        games = self._player.play(seed)
        episodes = [one for game in games for one in game]
        shown = [game[number] for number in range(len(games[0])) for game in games][: self._num_shown]
        returns = [float(one.record.returns[0]) for one in episodes]
        texts = tuple(one.for_people() for one in shown)
        return Score(snapshot.version, float(np.mean(returns)), _measures(games, episodes), samples=texts)

    def close(self) -> None:
        self._player.close()


def _measures(games: list[list[Transcript]], episodes: list[Transcript]) -> dict[str, float]:
    records = [one.record for one in episodes]
    measures = {
        "success": float(np.mean([record.succeeded[0] for record in records])),
        "turns": float(np.mean([record.turns.sum() for record in records])),
        "tokens": float(np.mean([record.num_trained.sum() for record in records])),
        "games": float(len({game[0].first for game in games})),
        **{f"end_{end}": float(np.mean([one.end == end for one in episodes])) for end in ENDS},
    }
    parts: dict[str, list[float]] = {}
    for record in records:
        for name, values in zip(record.part_names, record.parts, strict=False):
            parts.setdefault(name, []).append(float(values[0]))
    return measures | {name: float(np.nanmean(values)) for name, values in parts.items() if name not in measures}
