"""Measures one version in story games: score, success, steps and loops, in every way to play that there is.

    world_model   the search alone            world_model_score, world_model_success, ...
    prior         the language model alone    prior_score, ...
    both          the search with its help    both_score, ...

The score of the version is that of one of them; a run without a prior has only the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from headway.core.types import CUT_EPISODES, Score, Snapshot
from headway.zero.planner_prior_weight import Mode


class Episode(Protocol):
    """How one episode went."""

    @property
    def score(self) -> float: ...

    @property
    def max_score(self) -> float | None: ...

    @property
    def is_won(self) -> bool: ...

    @property
    def is_cut(self) -> bool: ...

    @property
    def steps(self) -> int: ...

    @property
    def revisits(self) -> int: ...

    @property
    def actions(self) -> tuple[str, ...]: ...


class PlaysStories(Protocol):
    """Plays episodes of story games with the versions it has loaded."""

    @property
    def modes(self) -> Sequence[Mode]: ...

    def load(self, snapshot: Snapshot) -> None: ...

    def play(self, mode: Mode, snapshot: Snapshot, seed: int) -> Sequence[Episode]: ...

    def close(self) -> None: ...


class StoryEvaluator:
    """Plays in every way there is, or in `modes`; `mode` is the one whose mean score is the score of a version."""

    def __init__(
        self, make_player: Callable[[], PlaysStories], *, mode: Mode = "both", modes: Sequence[Mode] | None = None
    ) -> None:
        self._player = make_player()
        there = tuple(self._player.modes)
        self._mode = mode if mode in there else there[0]
        wanted = there if modes is None else tuple(one for one in there if one in modes)
        self._modes = (self._mode, *(one for one in wanted if one != self._mode))

    def evaluate(self, snapshot: Snapshot, seed: int) -> Score:
        self._player.load(snapshot)
        played = {mode: self._player.play(mode, snapshot, seed) for mode in self._modes}
        measures = {
            f"{mode}_{name}": value for mode, episodes in played.items() for name, value in measured(episodes).items()
        }
        chosen = played[self._mode]
        measures |= {"episodes": float(len(chosen)), CUT_EPISODES: float(sum(one.is_cut for one in chosen))}
        measures |= {f"{name}_version": float(other.version) for name, other in snapshot.others.items()}
        shown = tuple(_for_people(mode, episodes[0], snapshot) for mode, episodes in played.items())
        return Score(snapshot.version, measures[f"{self._mode}_score"], measures, samples=shown)

    def close(self) -> None:
        self._player.close()


def measured(episodes: Sequence[Episode]) -> dict[str, float]:
    """The means over episodes; `normalised` is the share of the most that there is, where the game knows it."""
    means = {
        "score": float(np.mean([one.score for one in episodes])),
        "success": float(np.mean([one.is_won for one in episodes])),
        "steps": float(np.mean([one.steps for one in episodes])),
        "loops": float(np.mean([one.revisits / one.steps for one in episodes])),
    }
    shares = [one.score / one.max_score for one in episodes if one.max_score]
    return means | ({"normalised": float(np.mean(shares))} if shares else {})


def _for_people(mode: Mode, episode: Episode, snapshot: Snapshot) -> dict[str, object]:
    """The first episode as a line of what was done."""
    return {
        "uid": mode,
        "reply": " > ".join(episode.actions),
        "reward": episode.score,
        "steps": episode.steps,
        "versions": [snapshot.version],
    }
