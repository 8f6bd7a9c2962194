"""Segments of story games, played by search with the help of a language model, or by either of them alone.

    snapshots of both lines --> T steps of N games: ask the prior, fill the slots, search, act --> TextSegment

As in `search_segments.py`, games go on where the last ticket left them, and weights change at its boundary. Who acts is
the `mode`; whoever acts, every step is searched, so that the world model has its targets. The tokens that the language
model read, and what it thought of the action taken, go along for the learner of the prior.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from headway.core.types import MEASURES, Rollout, Snapshot, Ticket
from headway.envs.resumable import Carried
from headway.text_games.guidance import Guide, SlotOpinions, drawn_by_prior
from headway.text_games.segment import RaggedFloats, RaggedTokens, TextSegment
from headway.text_games.vector_story_games import StoryGames
from headway.zero.planner_planning import Planner
from headway.zero.search_interface import SearchResult
from headway.zero.self_play_search_segments import SearchSegmentCollector, Temperature

COUNTED = ("asked", "cached", "late", "scored_actions")
"""Of a prior's statistics: counts that a rollout reports the growth of."""


@dataclass(slots=True)
class _Record:
    """What a segment has besides that of a search, step by step; of the tokens, game by game too."""

    advice: list[SlotOpinions] = field(default_factory=list)
    spreads: list[np.ndarray] = field(default_factory=list)  # [N] each
    prompts: list[Sequence[int]] = field(default_factory=list)
    actions: list[Sequence[int]] = field(default_factory=list)
    log_probs: list[Sequence[float] | np.ndarray] = field(default_factory=list)


class TextSegmentCollector(Carried, SearchSegmentCollector):
    """Collects segments from story games. `keeps_tokens`: somebody learns from what the language model read."""

    CARRIED = ("_games", "_serial", "_returns", "_lengths", "_history")
    _games: StoryGames

    def __init__(
        self,
        make_games: Callable[[], StoryGames],
        make_planner: Callable[[], Planner],
        make_guide: Callable[[], Guide],
        *,
        steps: int,
        stream: int = 0,
        temperature: Temperature | None = None,
        keeps_tokens: bool = False,
    ) -> None:
        self._guide = make_guide()
        self._keeps_tokens = keeps_tokens and self._guide.prior is not None
        self._record = _Record()
        super().__init__(make_games, make_planner, steps=steps, stream=stream, temperature=temperature)

    def close(self) -> None:
        self._guide.close()
        self._games.close()

    def _load(self, snapshot: Snapshot) -> None:
        super()._load(snapshot)
        self._guide.load(snapshot)

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        self._record = _Record()
        before = self._counts()
        rollout = super().collect(ticket, snapshot)
        grown = {name: count - before[name] for name, count in self._counts().items()}
        return replace(rollout, info={**rollout.info, MEASURES: grown})

    def _counts(self) -> dict[str, float]:
        told = {} if self._guide.prior is None else self._guide.prior.statistics()
        counts = {f"prior_{name}": float(told[name]) for name in COUNTED if name in told}
        games = self._games
        own = {"candidates_cut": games.cut, "candidates_guessed": games.guessed, "games_lost": games.lost}
        return counts | {name: float(count) for name, count in own.items()}

    def _step(
        self,
        rng: np.random.Generator,
        version: int,
        rows: dict[str, list[np.ndarray]],
        finished: list[tuple[float, int]],
    ) -> None:
        self._record.advice.append(self._guide.advise(self._games))  # first: it decides what stands in the slots
        super()._step(rng, version, rows, finished)

    def _plan(self, rng: np.random.Generator, active: np.ndarray | None) -> SearchResult:
        games, past = self._games, None if self._history is None else self._history.past
        return self._planner.plan(
            games.obs,
            rng,
            legal=games.legal,
            to_play=games.to_play,
            active=active,
            past=past,
            prior=self._record.advice[-1].priors if self._guide.is_searched_with else None,
            prior_weight=self._guide.share,
        )

    def _choose(self, result: SearchResult, version: int, rng: np.random.Generator) -> np.ndarray:
        advice = self._record.advice[-1]
        if self._guide.mode == "prior":
            actions = drawn_by_prior(advice.priors, self._games.legal, 1.0, rng)
        else:
            actions = super()._choose(result, version, rng)
        self._record.spreads.append(spread_of_values(result))
        self._keep_tokens(advice, actions)
        return actions

    def _keep_tokens(self, advice: SlotOpinions, actions: np.ndarray) -> None:
        """What the language model read of this step, and what it thought of the action taken."""
        record, slots, prior = self._record, self._games.shape.slots, self._guide.prior
        for situation, log_probs, action in zip(advice.situations, advice.log_probs, actions.tolist(), strict=True):
            prompt: Sequence[int] = ()
            texts: Sequence[Sequence[int]] = ()
            if self._keeps_tokens and situation is not None:
                assert prior is not None
                prompt, texts = prior.tokens(situation)
            record.prompts.append(prompt)
            record.actions.extend((*texts, *[()] * (slots - len(texts))))
            record.log_probs.append(log_probs[action] if log_probs and self._keeps_tokens else ())

    def _segment(self, arrays: dict[str, np.ndarray]) -> TextSegment:
        record = self._record
        return TextSegment(
            stream=self._stream,
            serial=self._serial,
            priors=np.stack([one.priors for one in record.advice]),
            prior_versions=np.stack([one.versions for one in record.advice]),
            prompt_tokens=RaggedTokens.of(record.prompts),
            action_tokens=RaggedTokens.of(record.actions),
            action_log_probs=RaggedFloats.of(record.log_probs),
            spreads=np.stack(record.spreads),
            **arrays,
        )


def spread_of_values(result: SearchResult) -> np.ndarray:
    """[N] float32: the largest less the smallest value of the actions that a search tried; 0 where it tried one."""
    tried = result.visits > 0
    high = np.where(tried, result.q, -np.inf).max(axis=1)
    low = np.where(tried, result.q, np.inf).min(axis=1)
    return np.where(tried.any(axis=1), high - low, 0.0).astype(np.float32)
