"""Games that tell a story in words: somebody chooses what is done next, and the score says how it went."""

from __future__ import annotations

from headway.text_games.story_interface import (
    BadStory,
    Scene,
    StoryEnded,
    StoryFactory,
    StoryGame,
    StoryLost,
    checked_scene,
    checked_story,
)
from headway.text_games.vector_rows import RowShape, encode_scene, hashed_words
from headway.text_games.vector_story_games import StoryGames

__all__ = [
    "BadStory",
    "RowShape",
    "Scene",
    "StoryEnded",
    "StoryFactory",
    "StoryGame",
    "StoryGames",
    "StoryLost",
    "checked_scene",
    "checked_story",
    "encode_scene",
    "hashed_words",
]
