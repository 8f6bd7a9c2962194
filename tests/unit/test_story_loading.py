"""Story games by their names, who plays them, and `headway play`."""

from __future__ import annotations

import io
import pickle
from importlib.util import find_spec
from pathlib import Path

import pytest

from headway.cli import main
from headway.text_games.loading import is_story, load_story
from headway.text_games.mini_world import MiniWorld
from headway.text_games.story_interface import BadStory
from headway.text_games.story_players import play_story, typed_player

needs_adventure = pytest.mark.skipif(
    find_spec("adventure") is None, reason="a library of games is not installed: adventure"
)

ONE_ROOM = """
import json

from headway.text_games import Scene, StoryEnded


class Switch:
    objective = "Press the switch until the light is on."
    max_score = 1.0

    def __init__(self, presses: int = 2) -> None:
        self.presses, self.done = presses, None

    def scene(self) -> Scene:
        is_on = self.done >= self.presses
        text = f"The light is {'on' if is_on else 'off'} after {self.done} presses."
        return Scene(text, float(is_on), () if is_on else ("press", "wait"), is_over=is_on, is_won=is_on)

    def reset(self, seed: int) -> Scene:
        self.done = 0
        return self.scene()

    def step(self, action: str) -> Scene:
        if self.done is None or self.done >= self.presses:
            raise StoryEnded(action, has_begun=self.done is not None)
        self.done += action == "press"
        return self.scene()

    def save(self) -> bytes:
        return json.dumps(self.done).encode()

    def load(self, state: bytes) -> Scene:
        self.done = json.loads(state)
        return self.scene()

    def key(self) -> bytes:
        return self.save()

    def close(self) -> None:
        pass


class NoSave:
    objective = ""

    def reset(self, seed): ...
    def step(self, action): ...


class NoMaxScore(Switch):
    max_score = property()


class TextAsMaxScore(Switch):
    max_score = "ten"


def broken():
    raise RuntimeError("out of order")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_stories.py"
    path.write_text(ONE_ROOM)
    return path


# -- loading ----------------------------------------------------------------------------------------


def test_a_name_makes_games_with_options_and_can_be_pickled() -> None:
    make = pickle.loads(pickle.dumps(load_story("mini_world", {"rooms": 4})))
    game = make()
    assert isinstance(game, MiniWorld)
    assert not game.reset(0).is_over


def test_a_class_in_a_file_is_a_story_game(file: Path) -> None:
    make = pickle.loads(pickle.dumps(load_story(f"{file}:Switch", {"presses": 1})))
    game = make()
    game.reset(0)
    assert game.step("press").is_won
    assert is_story(f"{file}:Switch")
    assert not is_story(f"{file}:NoSave")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mini_wurld", {}, "unknown story game 'mini_wurld'; did you mean 'mini_world'?"),
        ("mini_world", {"room": 3}, "unknown option of story game mini_world 'room'; did you mean 'rooms'?"),
        ("mini_world", {"rooms": 99}, "a mini world has 1 to 16 rooms, received 99"),
        ("textworld:coins", {}, "unknown TextWorld game 'coins'; did you mean 'coin'?"),
        ("nowhere/zork1.z5", {}, "there is no story file nowhere/zork1.z5; Z-machine files are your own"),
        ("advent.ulx", {}, r"advent.ulx is no Z-machine file; allowed: .z3, .z5, .z8"),
        ("story.py", {}, "names a file and no class in it; allowed: story.py:Class"),
        ("no_such_module:Game", {}, "story game module no_such_module cannot be loaded"),
    ],
)
def test_a_name_that_means_nothing_is_one_line(name: str, options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        load_story(name, options)()
    assert len(str(refused.value).splitlines()) == 1


def test_what_is_wrong_in_a_users_file_is_one_line(file: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'Switch'"):
        load_story(f"{file}:Swich")
    with pytest.raises(BadStory, match="is a NoSave without save"):
        load_story(f"{file}:NoSave")()
    with pytest.raises(BadStory, match=r"NoMaxScore needs max_score, a number \(None: it does not know\)"):
        load_story(f"{file}:NoMaxScore")()
    with pytest.raises(BadStory, match="max_score is 'ten'; allowed: a finite number or None"):
        load_story(f"{file}:TextAsMaxScore")()
    with pytest.raises(BadStory, match="cannot be made: RuntimeError: out of order"):
        load_story(f"{file}:broken")()


def test_a_package_that_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.startswith(("adventure", "headway.text_games.colossal"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "headway.text_games.colossal_cave_adventure_state", raising=False)
    monkeypatch.setitem(sys.modules, "adventure", None)  # as if it were not installed
    with pytest.raises(ValueError, match=r"story game colossal_cave needs adventure: pip install 'headway\[text\]'"):
        load_story("adventure")


# -- players ----------------------------------------------------------------------------------------


def test_the_expert_wins_and_chance_depends_on_the_seed() -> None:
    world = MiniWorld()
    expert = play_story(world, "expert", 0)
    assert expert.is_won
    assert (expert.total, len(expert.actions)) == (1.0, 8)
    first, second, other = (play_story(world, "random", seed, max_steps=20) for seed in (1, 1, 2))
    assert first == second
    assert first.actions != other.actions
    assert len(first.actions) == 20


def test_a_person_types_numbers_or_words_and_leaves() -> None:
    world = MiniWorld()
    story = play_story(world, typed_player(io.StringIO("1\n\n  dance \n99\n")), 0)
    assert story.actions == (story.scenes[0].candidates[0], "dance", "99")
    assert not story.scenes[-1].is_over


def test_a_game_without_an_expert_says_so(file: Path) -> None:
    game = load_story(f"{file}:Switch")()
    with pytest.raises(ValueError, match="Switch has no expert for this story: no plan and no walkthrough"):
        play_story(game, "expert", 0)
    with pytest.raises(ValueError, match="unknown player 'exprt'; did you mean 'expert'"):
        play_story(game, "exprt", 0)


# -- headway play -----------------------------------------------------------------------------------


def test_play_shows_scenes_scores_and_numbered_candidates(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "mini_world", "--expert"]) == 0
    told = capsys.readouterr().out
    assert "Take the key in the workshop" in told
    assert "score 0 of 1" in told
    assert "1 go east" in told
    assert "> take lamp\n  reward 1\n" in told
    assert told.endswith("won: score 1 after 8 steps, seed 0\n")


def test_play_takes_what_a_person_types(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("1\npress\n"))
    assert main(["play", f"{file}:Switch", "--me"]) == 0
    assert capsys.readouterr().out.endswith("won: score 1 after 2 steps, seed 0\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mini_wurld"], "unknown story game 'mini_wurld'; did you mean 'mini_world'?"),
        (["mini_world", "--run", "runs/x"], "--run plays games for agents, received the story mini_world"),
        (["mini_world", "--sead", "1"], "unknown option 'sead'; did you mean 'seed'?"),
        (["zork.z5"], "there is no story file zork.z5"),
    ],
)
def test_play_refuses_in_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", *words]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert len(told.splitlines()) == 1


@needs_adventure
def test_the_cave_has_an_expert_for_one_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "colossal_cave", "--expert"]) == 2
    assert "its walkthrough is for seed 2" in capsys.readouterr().err
