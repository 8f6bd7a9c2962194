"""A story file in its child: what hangs costs its limit, what is killed costs nothing."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("jericho", reason="a library of games is not installed: jericho")
pytest.importorskip("textworld", reason="a library of games is not installed: textworld")

from story_files import small_story
from waiting import patient, wait_until

from headway.text_games.jericho_game import JerichoGame, StoryFile
from headway.text_games.loading import load_story
from headway.text_games.story_interface import BadStory, StoryEnded, StoryLost

SAFE = ("take", "drop", "open", "close")


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_story(tmp_path_factory.mktemp("story"), 3)


@pytest.fixture
def game(story: Path) -> Iterator[JerichoGame]:
    game = StoryFile(story, verbs=SAFE, limit_s=patient(10))()
    yield game
    game.close()


def test_a_story_is_played_to_its_end(game: JerichoGame) -> None:
    scene = game.reset(0)
    assert scene.text == "You are carrying nothing.\nHall\nThere is a brass lamp here.\nStairs lead down."
    scores = [game.step(action).score for action in ("take lamp", "down", "open box", "take coin")]
    assert scores == [5, 5, 5, 15]
    with pytest.raises(StoryEnded, match="the story is over"):
        game.step("look")
    assert game.max_score == 15


def test_a_child_that_is_killed_costs_nothing(game: JerichoGame) -> None:
    game.reset(0)
    before = game.step("take lamp")
    key = game.key()
    pid = game._file.process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    scene = game.step("down")
    assert (scene.score, scene.candidates) == (before.score, ("drop lamp", "open box", "up"))
    assert game.step("up").score == before.score and game.key() == key
    assert game._file.process.num_starts == 2 and game._file.process.num_hung == 0


def test_a_child_that_dies_of_a_command_is_replaced_once_and_then_the_step_is_lost(story: Path) -> None:
    file = StoryFile(story, limit_s=patient(20))
    game = file()
    moment = file.begin(0)
    errors: list[str] = []

    def hang() -> None:
        try:
            file.act(moment.state, "hang")
        except StoryLost as error:
            errors.append(str(error))

    asking = threading.Thread(target=hang)
    asking.start()
    killed: set[int] = set()

    def kills() -> bool:
        pid = file.process.pid
        if pid is not None and pid not in killed:
            killed.add(pid)
            os.kill(pid, signal.SIGKILL)
        return not asking.is_alive()

    wait_until(kills, 60)
    assert errors == ["lamp.z3: its process was killed by SIGKILL at 'hang'"]
    assert file.process.num_starts == len(killed) == 2
    game.close()


def test_a_command_that_hangs_costs_its_limit_and_the_story_goes_on_from_before(story: Path) -> None:
    file = StoryFile(story, verbs=SAFE, limit_s=0.5)
    game = file()
    try:
        _until_quick(lambda: game.reset(0))
        scene = _until_quick(lambda: game.step("take lamp"))
        state = game.save()
        with pytest.raises(StoryLost, match=r"lamp\.z3: 'hang' took more than 0\.5 s"):
            game.step("hang")
        assert file.process.num_hung >= 1 and file.process.pid is None
        assert game.save() == state
        assert _until_quick(lambda: game.step("down")).score == scene.score
    finally:
        game.close()


def _until_quick(call):  # type: ignore[no-untyped-def]
    """On a busy machine half a second may be too short for what takes a millisecond."""
    for _ in range(20):
        try:
            return call()
        except StoryLost:
            continue
    return call()


def test_where_trying_hangs_a_short_list_stands_in_and_is_not_cached(story: Path) -> None:
    file = StoryFile(story, verbs=(*SAFE, "push"), limit_s=1.0)  # the lever in the cellar
    game = file()
    try:
        _until_quick(lambda: game.reset(0))
        scenes = []
        for _ in range(2):
            file.counts.too_slow = 0
            scenes.append(_until_quick(lambda: game.step("down")))
            assert file.counts.too_slow == 1
            _until_quick(lambda: game.step("up"))
        assert [scene.candidates for scene in scenes] == 2 * [("down", "north", "south", "up", "wait")]
        assert all(scene.are_guesses for scene in scenes)
        tried = file.counts.tried
        found = _until_quick(lambda: game.step("take lamp"))
        assert (set(found.candidates), found.are_guesses) == ({"down", "drop lamp"}, False)
        assert file.counts.tried == tried + 1
    finally:
        game.close()


def test_what_was_found_is_cached_by_key_and_shared_by_the_games_of_a_file(story: Path) -> None:
    file = StoryFile(story, verbs=SAFE, limit_s=patient(10))
    one, two = file(), file()
    assert one.reset(0) == two.reset(1)
    assert (file.counts.tried, file.counts.cached) == (1, 1)
    pid = file.process.pid
    one.close()
    assert file.process.pid == pid
    two.close()
    two.close()
    assert file.process.pid is None


def test_the_cache_keeps_what_was_used_last(story: Path) -> None:
    file = StoryFile(story, verbs=SAFE, limit_s=patient(10), cache_size=1)
    game = file()
    game.reset(0)
    for action in ("down", "up", "down"):
        game.step(action)
    assert file.counts.tried == 4 and file.counts.cached == 0
    game.close()


def test_a_state_is_loaded_without_a_child(game: JerichoGame, story: Path) -> None:
    game.reset(0)
    scene = game.step("take lamp")
    other = pickle.loads(pickle.dumps(StoryFile(story, verbs=SAFE)))()
    assert other.load(game.save()) == scene
    assert other.key() == game.key() and other._file.process.pid is None
    other.close()


def test_commands_of_any_kind_are_answered(game: JerichoGame) -> None:
    game.reset(0)
    for command in ("", "x" * 1000, "look\nhang", "schön 雪", "\0"):
        assert game.step(command).candidates


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"limit_s": 0}, "limit_s must be more than 0 seconds, received 0"),
        ({"pairs": ["throw {held}"]}, "a pair needs {held} and {other}"),
        ({"verb": ["take"]}, "verb"),
    ],
)
def test_options_that_cannot_work_are_refused_in_one_line(story: Path, options: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        load_story(str(story), options)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)


def test_a_file_that_is_no_story_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "notes.z5"
    path.write_text("Dear diary, " * 20)
    with pytest.raises(BadStory, match=r"notes\.z5 begins with b'Dear'; allowed: a Z-machine file"):
        load_story(str(path))()
    with pytest.raises(ValueError, match="there is no story file"):
        load_story(str(tmp_path / "none.z5"))


ROM = "zork1.z5"


def _rom() -> Path | None:
    path = Path(os.environ.get("HEADWAY_ROMS", "/nowhere")) / ROM
    return path if path.is_file() else None


@pytest.mark.skipif(
    _rom() is None, reason=f"a story file of the user is not on this machine: {ROM} (HEADWAY_ROMS names its folder)"
)
def test_a_known_file_has_jerichos_score_and_walkthrough() -> None:
    path = _rom()
    assert path is not None
    game = load_story(str(path))()
    scene = game.reset(0)
    assert game.max_score == 350 and "open mailbox" in scene.candidates
    assert len(game.walkthrough()) > 300  # type: ignore[attr-defined]
    game.close()
