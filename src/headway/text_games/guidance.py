"""What a language model thinks of the actions of story games, where a search can use it.

    scenes --prompt--> prior.opinions --> the likeliest candidates into the slots --> rows [N, K] for the roots

Whoever plays asks before every search. A game whose episode has ended is not asked about: what is chosen there only
begins the next one. Where nobody is asked, or the answer comes too late, a row is zero and the first candidates stand
in the slots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from headway.core.types import Snapshot
from headway.core.types_opaque import Weights
from headway.text_games.action_prior import Opinion, Situation
from headway.text_games.story_interface import Scene, StoryGame
from headway.text_games.vector_story_games import StoryGames
from headway.zero.planner_prior_weight import Mode, PriorWeight, RootWeight

LINE = "prior"
"""The line of a run that learns the prior."""
NOBODY = -1
"""As the version of an opinion: there is none."""

WritePrompt = Callable[[Scene, str, Sequence[tuple[str, str]]], str]
"""From a scene, the objective, and the last actions with what came of each, to what the language model is asked."""


class PriorOfActions(Protocol):
    """A language model, or somebody in its place, that says how likely it would be to do each of several things."""

    @property
    def version(self) -> int: ...

    def apply(self, version: int, weights: Weights) -> None: ...

    def opinions(self, situations: Sequence[Situation]) -> list[Opinion]: ...

    def tokens(self, situation: Situation) -> tuple[Sequence[int], Sequence[Sequence[int]]]:
        """Of the prompt, and of each of its actions: what a learner trains on."""
        ...

    def statistics(self) -> Mapping[str, float]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SlotOpinions:
    """What the prior thinks of the actions in the slots of N games with K slots each."""

    priors: npt.NDArray[np.float32]  # [N, K]; a row of zeros: nothing
    versions: npt.NDArray[np.int32]  # [N]: whose opinion it is; NOBODY
    situations: tuple[Situation | None, ...]  # of each game, with the actions in its slots; None: it has ended
    log_probs: tuple[Sequence[np.ndarray], ...]  # of each game, of each slot, of its tokens; empty: nobody said


class Guide:
    """Asks a prior about games, and puts what it finds likeliest into their slots."""

    def __init__(
        self,
        make_prior: Callable[[], PriorOfActions] | None,
        write_prompt: WritePrompt,
        *,
        weight: PriorWeight,
        mode: Mode = "both",
    ) -> None:
        if mode == "prior" and make_prior is None:
            raise ValueError("mode 'prior' needs a prior: whose opinion?")
        self.prior = None if make_prior is None else make_prior()
        self.mode = mode
        self.share: float | RootWeight = 0.0
        """Of the prior at the roots of this version's searches."""
        self._rule = weight
        self._write_prompt = write_prompt

    def load(self, snapshot: Snapshot) -> None:
        """Takes the weights of the prior's line, where there is one, and the share of this version."""
        newest = snapshot.others.get(LINE)
        if self.prior is not None and newest is not None and newest.version != self.prior.version:
            self.prior.apply(newest.version, newest.payload)
        self.share = 0.0 if self.prior is None or self.mode == "world_model" else self._rule.at(snapshot.version)

    @property
    def is_searched_with(self) -> bool:
        """Whether the prior's opinion has a share in the roots of a search."""
        return self.prior is not None and (callable(self.share) or self.share > 0)

    @property
    def is_asking(self) -> bool:
        """Whether its opinion counts for anything. It is not asked otherwise."""
        return self.prior is not None and (self.mode == "prior" or self.is_searched_with)

    def advise(self, games: StoryGames) -> SlotOpinions:
        """Asks about all games that go on; afterwards the slots hold what is to be chosen from."""
        num, slots = games.num_envs, games.shape.slots
        priors, versions = np.zeros((num, slots), np.float32), np.full(num, NOBODY, np.int32)
        log_probs: list[Sequence[np.ndarray]] = [()] * num
        situations = self._situations(games)
        going = [index for index, one in enumerate(situations) if one is not None]
        if self.prior is not None and self.is_asking and going:
            asked = [situation for situation in situations if situation is not None]
            opinions = dict(zip(going, self.prior.opinions(asked), strict=True))
            places = _likeliest(games, opinions)
            games.show(places)
            for index, opinion in opinions.items():
                if opinion.is_late:
                    continue
                priors[index, : len(places[index])] = opinion.probabilities[places[index]]
                versions[index] = opinion.version
                log_probs[index] = [opinion.log_probs[place] for place in places[index]]
        shown = [
            None if one is None else Situation(one.prompt, texts)
            for one, texts in zip(situations, games.shown, strict=True)
        ]
        return SlotOpinions(priors, versions, tuple(shown), tuple(log_probs))

    def _situations(self, games: StoryGames) -> list[Situation | None]:
        """What is asked about each game, with all its candidates; nothing where there is nobody to ask."""
        if self.prior is None:
            return [None] * games.num_envs
        told = zip(games.games, games.scenes, games.histories, games.ended, strict=True)
        return [
            None
            if ended
            else Situation(
                self._write_prompt(asked_about(game, scene, history), game.objective, history), scene.candidates
            )
            for game, scene, history, ended in told
        ]

    def close(self) -> None:
        if self.prior is not None:
            self.prior.close()


def asked_about(game: StoryGame, scene: Scene, history: Sequence[tuple[str, str]]) -> Scene:
    """The scene as the prior is told of it: without a history, no more than the state, where the game can say that.

    What an action led to is then no part of it. So a state is asked about once, however it was come to.
    """
    described: Callable[[], str] | None = getattr(game, "described", None)
    return scene if described is None or history else replace(scene, text=described())


def _likeliest(games: StoryGames, opinions: Mapping[int, Opinion]) -> list[list[int]]:
    """The places of the candidates that get a slot, in the order in which the game lists them."""
    slots, places = games.shape.slots, []
    for index, scene in enumerate(games.scenes):
        num = len(scene.candidates)
        chosen = np.arange(min(num, slots))
        if num > slots and index in opinions and not opinions[index].is_late:
            chosen = np.sort(np.argsort(-opinions[index].probabilities, kind="stable")[:slots])
        places.append(chosen.tolist())
    return places


def drawn_by_prior(
    priors: np.ndarray, legal: np.ndarray, temperature: float | np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """One slot per game [N] from the prior's own opinion [N, K]; where there is none, from all that is legal.

    In proportion to p^(1 / temperature); 0 takes the likeliest, of equal ones by lot. One draw per game.
    """
    known = priors * legal
    weights = np.where(known.sum(axis=1, keepdims=True) > 0, known, legal).astype(np.float64)
    most = weights.max(axis=1, keepdims=True)
    warm = np.broadcast_to(np.asarray(temperature, np.float64), (len(weights),))[:, None]
    with np.errstate(divide="ignore"):  # 0 ** inf and 1 ** inf are what is wanted of temperature 0
        powers = (weights / np.where(most > 0, most, 1.0)) ** (1 / warm)
    reached = powers.cumsum(axis=1)
    mass = rng.random(len(weights))[:, None] * reached[:, -1:]
    return ((reached <= mass).sum(axis=1) * (most[:, 0] > 0)).astype(np.int32)
