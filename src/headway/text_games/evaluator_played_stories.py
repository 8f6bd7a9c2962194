"""Whole episodes of story games, played by one version for somebody who measures it: with the search, the prior, both.

Every game plays one episode. What is chosen is the most visited action, or what the prior finds likeliest; above a
temperature of 0 it is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headway.core.types import Snapshot
from headway.text_games.guidance import Guide, drawn_by_prior
from headway.text_games.vector_story_games import StoryGames
from headway.zero.planner_planning import Planner
from headway.zero.planner_prior_weight import Mode
from headway.zero.search_batched import choose_actions


@dataclass(frozen=True, slots=True)
class MeasuredStory:
    """How one episode went."""

    score: float
    max_score: float | None
    """The most there is to gain, where the game knows."""
    is_won: bool
    is_cut: bool
    """It did not end within the steps it was allowed."""
    steps: int
    revisits: int
    """Steps that led to a state in which the episode had been before."""
    actions: tuple[str, ...]


class PlayedStories:
    """Plays episodes side by side. `make_guide` makes one with a prior where there is one; its mode changes by game."""

    def __init__(
        self,
        make_games: Callable[[int], StoryGames],
        make_planner: Callable[[], Planner],
        make_guide: Callable[[], Guide],
        *,
        temperature: float = 0.0,
    ) -> None:
        self._make_games = make_games
        self._planner = make_planner()
        self._guide = make_guide()
        self._temperature = temperature
        self._is_closed = False

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The ways to play that there are."""
        return ("world_model",) if self._guide.prior is None else ("both", "world_model", "prior")

    def load(self, snapshot: Snapshot) -> None:
        self._planner.load(snapshot.payload)
        self._guide.load(snapshot)

    def play(self, mode: Mode, snapshot: Snapshot, seed: int) -> list[MeasuredStory]:
        """An episode of each game, whose beginnings `seed` decides."""
        self._guide.mode = mode
        self._guide.load(snapshot)
        rng = np.random.default_rng(seed)
        games = self._make_games(seed % 2**31)
        try:
            return self._play(games, rng)
        finally:
            games.close()

    def _play(self, games: StoryGames, rng: np.random.Generator) -> list[MeasuredStory]:
        num, planner, guide = games.num_envs, self._planner, self._guide
        history = planner.history(games.obs)
        seen = [{game.key()} for game in games.games]
        revisits, lengths, is_over = np.zeros(num, np.int64), np.zeros(num, np.int64), np.zeros(num, bool)
        won, cut, scores = np.zeros(num, bool), np.zeros(num, bool), np.zeros(num)
        told: list[list[str]] = [[] for _ in range(num)]
        while not is_over.all():
            if self._is_closed:
                raise RuntimeError("the evaluation was abandoned")
            advice = guide.advise(games)
            obs, legal, before = games.obs, games.legal, [scene.score for scene in games.scenes]
            if guide.mode == "prior":
                actions = drawn_by_prior(advice.priors, legal, self._temperature, rng)
            else:
                result = planner.plan(
                    obs,
                    rng,
                    legal=legal,
                    active=legal.any(axis=1) & ~is_over,
                    noise=False,
                    past=None if history is None else history.past,
                    prior=advice.priors if guide.is_searched_with else None,
                    prior_weight=guide.share,
                )
                actions = choose_actions(result, self._temperature, rng, legal)
            shown = games.shown
            rewards, terminated, truncated = games.step(actions)
            if history is not None:
                history.add(obs, actions)
            for index in np.flatnonzero(~is_over):
                told[index].append(shown[index][actions[index]])
                lengths[index] += 1
                scores[index] = before[index] + rewards[index]
                is_over[index], cut[index] = terminated[index] | truncated[index], truncated[index]
                won[index] = games.scenes[index].is_won and terminated[index]
                key = games.games[index].key() if not terminated[index] else b""
                revisits[index] += key in seen[index]
                seen[index].add(key)
        most = [game.max_score for game in games.games]
        return [
            MeasuredStory(
                float(scores[i]), most[i], bool(won[i]), bool(cut[i]), int(lengths[i]), int(revisits[i]), tuple(told[i])
            )
            for i in range(num)
        ]

    def close(self) -> None:
        """An evaluation that is under way in another thread ends at its next step."""
        self._is_closed = True
        self._guide.close()
