"""The language model of a story game where none is named: a small one, made on the spot, that knows its words.

    the game, played at random for a while --> the words that it said --> a tokenizer and weights by chance

It knows nothing at first, so its opinion of actions is close to none; it learns from the search. It is made where it is
needed, the same everywhere, and kept in the cache.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator

from headway.llm.model.tiny_llama import WordModel, kept_word_model
from headway.runs.config import ConfigError
from headway.text_games.config import MADE, PriorZeroConfig
from headway.text_games.loading import load_story
from headway.text_games.prompts import situation_prompt
from headway.text_games.story_interface import Scene, StoryGame, StoryLost

STEPS = 200
"""Of the game that words are looked for in."""
QUIET_STEPS = 60
"""Without a new word; then it has said what it has to say."""
_WORD = re.compile(r"\w+|[^\w\s]")


def with_model(config: PriorZeroConfig) -> PriorZeroConfig:
    """The same settings with the folder of a made model in the place of `made`."""
    if not config.has_prior or config.model != MADE:
        return config
    game = load_story(config.env, config.env_options)()
    try:
        words = words_of(game)
    finally:
        game.close()
    made = WordModel(words, hidden=64, layers=2, context=max(512, config.context_tokens))
    return config.model_copy(update={"model": str(kept_word_model(made))})


def check_story(config: PriorZeroConfig) -> None:
    """A game that cannot be made is refused before there is a run, and not by a role that starts."""
    try:
        load_story(config.env, config.env_options)().close()
    except StoryLost as error:
        raise ConfigError(str(error)) from None


def words_of(game: StoryGame) -> tuple[str, ...]:
    """The words of what a game says and lets one do, played at random for a while; the same each time."""
    found: set[str] = set()
    quiet = 0
    for scene in _wandering(game):
        texts = (situation_prompt(game.objective, scene, [("", "")]), "Action:", *scene.candidates)
        before = len(found)
        found.update(_words(texts))
        quiet = 0 if len(found) > before else quiet + 1
        if quiet >= QUIET_STEPS:
            break
    return tuple(sorted(found))


def _wandering(game: StoryGame) -> Iterator[Scene]:
    chance = random.Random("words of a story")
    scene = game.reset(0)
    for _ in range(STEPS):
        yield scene
        scene = game.reset(0) if scene.is_over else game.step(chance.choice(scene.candidates))


def _words(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from _WORD.findall(text)
