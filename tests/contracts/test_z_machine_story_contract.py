"""Games that TextWorld makes, and Z-machine files that Jericho does not know, keep the story games' contract."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("jericho", reason="a library of games is not installed: jericho")
pytest.importorskip("textworld", reason="a library of games is not installed: textworld")

from story_files import small_story

from headway.testing.story_game_contract import StoryGameContract
from headway.text_games.jericho_game import StoryFile
from headway.text_games.loading import load_story
from headway.text_games.story_interface import StoryGame
from headway.text_games.textworld_games import OPTIONS, made_world

VERBS = ("take", "drop", "open", "close")
"""None of them makes a story hang."""


class TestCoin(StoryGameContract):
    make_game = staticmethod(load_story("textworld:coin", {"level": 3}))


@pytest.mark.slow
class TestTreasure(StoryGameContract):
    make_game = staticmethod(load_story("textworld:treasure", {"level": 2}))


class TestQuest(StoryGameContract):
    make_game = staticmethod(load_story("textworld:quest", {"world_seed": 5}))


@pytest.mark.slow
class TestCookingWithoutLooks(StoryGameContract):
    make_game = staticmethod(load_story("textworld:cooking", {"looks": False, "cook": False}))
    last_actions = ("take knife from table",)  # the walkthrough looks

    def test_after_the_end_a_step_is_refused_in_one_line(self) -> None:
        """Is shown for the other kinds: what ends this story depends on the recipe."""


class _OfAFile(StoryGameContract):
    file: StoryFile

    def make_game(self) -> StoryGame:
        return self.file()

    @classmethod
    def _path(cls, folder: Path) -> Path:
        raise NotImplementedError

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _one_child_for_all_tests(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        cls.file = StoryFile(cls._path(tmp_path_factory.mktemp("story")), limit_s=60.0, verbs=VERBS, pairs=())
        with closing(cls.file()):
            yield


class TestVersion3(_OfAFile):
    last_actions = ("down", "open box", "take coin")

    @classmethod
    def _path(cls, folder: Path) -> Path:
        return small_story(folder, 3)


class TestVersion5(_OfAFile):
    last_actions = TestVersion3.last_actions

    @classmethod
    def _path(cls, folder: Path) -> Path:
        return small_story(folder, 5)


class TestVersion8MadeByInform7(_OfAFile):
    num_actions = 6
    seeds = (0, 1)

    @classmethod
    def _path(cls, folder: Path) -> Path:
        made = made_world("quest", {**OPTIONS["quest"], "world_seed": 1})
        cls.last_actions = tuple(json.loads(made.logic)["metadata"]["walkthrough"])
        path = folder / "house.z8"
        path.write_bytes(made.story)
        return path


del _OfAFile
