"""Plays one story to its end. Chance chooses, or an expert, a person who types, or any function of the scene."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TextIO

from headway.core.text_naming import unknown
from headway.core.types import derive_seed
from headway.core.types_opaque import UserFunction
from headway.text_games.story_interface import Scene, StoryGame, checked_scene

StoryPlayer = Callable[[Scene], str]
"""Says what is done in a scene."""
CHANCE, EXPERT = "random", "expert"


class StoryLeft(Exception):
    """Whoever plays has had enough, or knows no further: the story ends here."""


@dataclass(frozen=True, slots=True)
class PlayedStory:
    """Holds what was done in one episode, and what it was worth."""

    seed: int
    scenes: tuple[Scene, ...]
    """The first, and the one after each action."""
    actions: tuple[str, ...]

    @property
    def score(self) -> float:
        """Returns the points at the end."""
        return self.scenes[-1].score

    @property
    def total(self) -> float:
        """Returns the sum of the rewards: what the score has changed by."""
        return self.scenes[-1].score - self.scenes[0].score

    @property
    def is_won(self) -> bool:
        """Says whether it ended as the player wanted."""
        return self.scenes[-1].is_won


def play_story(
    game: StoryGame,
    player: StoryPlayer | str,
    seed: int,
    *,
    max_steps: int = 1000,
    on_scene: Callable[[Scene], object] = lambda scene: None,
    on_action: Callable[[str, Scene], object] = lambda action, scene: None,
) -> PlayedStory:
    """Plays the story of this seed to its end, or for `max_steps` actions.

    The player is a function of the scene, or `random` or `expert`. Whoever watches is called with every scene, and
    with every action and what came of it.
    """
    name = type(game).__name__
    scenes, actions = [checked_scene(game.reset(seed), name)], list[str]()
    choose = story_player(game, player, seed) if isinstance(player, str) else player
    on_scene(scenes[-1])
    while not scenes[-1].is_over and len(actions) < max_steps:
        try:
            action = choose(scenes[-1])
        except StoryLeft:
            break
        scenes.append(checked_scene(game.step(action), name))
        actions.append(action)
        on_action(action, scenes[-1])
        on_scene(scenes[-1])
    return PlayedStory(seed, tuple(scenes), tuple(actions))


def story_player(game: StoryGame, who: str, seed: int) -> StoryPlayer:
    """Returns the player `random`, whose chance depends on the seed alone, or `expert` of a game that has begun."""
    if who == CHANCE:
        rng = random.Random(derive_seed(seed, "random story player"))
        return lambda scene: rng.choice(scene.candidates)
    if who == EXPERT:
        return _expert(game)
    raise ValueError(unknown("player", who, (CHANCE, EXPERT)))


def typed_player(lines: TextIO, prompt: Callable[[], object] = lambda: None) -> StoryPlayer:
    """Returns a person who types the number of a candidate, or anything else in words; the end of the input leaves."""

    def choose(scene: Scene) -> str:
        while True:
            prompt()
            line = lines.readline()
            if not line:
                raise StoryLeft
            words = line.strip()
            if words.isdecimal() and 1 <= int(words) <= len(scene.candidates):
                return scene.candidates[int(words) - 1]
            if words:
                return words

    return choose


def _expert(game: StoryGame) -> StoryPlayer:
    """Returns who follows the game's own plan, made anew in each scene, or else its walkthrough."""
    plan: UserFunction | None = getattr(game, "plan", None)
    if plan is not None:
        return lambda scene: str(plan()[0])
    walkthrough: UserFunction | None = getattr(game, "walkthrough", None)
    steps = () if walkthrough is None else tuple(walkthrough())
    if not steps:
        hint = getattr(game, "walkthrough_seed", None)
        other = "" if hint is None else f"; its walkthrough is for seed {hint}"
        raise ValueError(f"{type(game).__name__} has no expert for this story: no plan and no walkthrough{other}")
    return _follow(iter(steps))


def _follow(steps: Iterator[str]) -> StoryPlayer:
    def choose(scene: Scene) -> str:
        action = next(steps, None)
        if action is None:
            raise StoryLeft
        return action

    return choose
