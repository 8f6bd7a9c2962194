"""Games that TextWorld makes: its candidates and its scores, in our scenes."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("textworld", reason="a library of games is not installed: textworld")

import jericho
import textworld

from headway.text_games.loading import load_story
from headway.text_games.story_interface import BadStory
from headway.text_games.textworld_games import OPTIONS, TextWorldGame, TextWorldStories, make_textworld

ASKED = textworld.EnvInfos(admissible_commands=True, score=True, won=True, lost=True)


@pytest.fixture(scope="module", params=["quest", pytest.param("coin", marks=pytest.mark.slow)])
def stories(request: pytest.FixtureRequest) -> TextWorldStories:
    return _made(request.param)


@pytest.fixture
def game(stories: TextWorldStories) -> Iterator[TextWorldGame]:
    with closing(stories()) as game:
        yield game


def _made(kind: str) -> TextWorldStories:
    stories = make_textworld(kind, {"world_seed": 3})
    stories().close()
    return stories


def _agrees_with_textworld(stories: TextWorldStories, folder: Path, num_steps: int) -> None:
    """Plays by chance and along the walkthrough, beside TextWorld's own environment."""
    made = stories._made
    assert made is not None
    (folder / "game.json").write_text(made.logic)
    (folder / "game.z8").write_bytes(made.story)
    with pytest.warns(jericho.UnsupportedGameWarning):
        theirs = textworld.start(str(folder / "game.z8"), ASKED)
    rng = random.Random(0)
    with closing(stories()) as game:
        for actions in (game.walkthrough(), None):
            scene, state = game.reset(0), theirs.reset()
            for step in range(len(actions) if actions else num_steps):
                assert scene.candidates == tuple(state["admissible_commands"])
                action = actions[step] if actions else rng.choice(scene.candidates)
                scene, (state, score, is_over) = game.step(action), theirs.step(action)
                assert (scene.score, scene.is_over, scene.is_won) == (score, is_over, state["won"])
                if scene.is_over:
                    break
            assert actions is None or scene.is_won
    theirs.close()


def test_candidates_scores_and_ends_are_textworlds_own(stories: TextWorldStories, tmp_path: Path) -> None:
    _agrees_with_textworld(stories, tmp_path, 60)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["treasure", "cooking"])
def test_candidates_scores_and_ends_are_textworlds_own_for_the_other_kinds(kind: str, tmp_path: Path) -> None:
    _agrees_with_textworld(_made(kind), tmp_path, 150)


def test_the_text_has_what_happened_what_is_carried_and_the_room(game: TextWorldGame) -> None:
    scene = game.reset(0)
    assert "You are carrying" in scene.text and "-= " in scene.text and "$$" not in scene.text
    action = next(action for action in scene.candidates if action.startswith("go "))
    text = game.step(action).text
    assert text.count("-= ") == 1 and text.count("You are carrying") == 1


def test_a_key_forgets_the_way_and_not_the_world(game: TextWorldGame) -> None:
    game.reset(0)
    first = game.key()
    for action in ("look", "inventory"):
        game.step(action)
        assert game.key() == first
    game.step(game.walkthrough()[0])
    assert game.key() != first


def test_what_is_no_candidate_changes_nothing(game: TextWorldGame) -> None:
    scene = game.reset(0)
    key = game.key()
    after = game.step("take everything and run")
    assert after.text.startswith("That is not something that can be done here.")
    assert (after.candidates, game.key()) == (scene.candidates, key)


def test_looks_can_be_left_out(stories: TextWorldStories) -> None:
    without = TextWorldStories(stories.kind, {**stories.options, "looks": False})
    without._made = stories._made
    with closing(stories()) as game, closing(without()) as other:
        some, fewer = game.reset(0).candidates, other.reset(0).candidates
    assert set(some) - set(fewer) == {action for action in some if action.startswith(("look", "inventory", "examine"))}
    assert fewer and set(fewer) < set(some)


def test_a_world_that_was_made_travels_with_its_factory(stories: TextWorldStories) -> None:
    copy = pickle.loads(pickle.dumps(stories))
    assert copy._made == stories._made
    with closing(stories()) as game, closing(copy()) as other:
        assert game.reset(0) == other.reset(0)
        game.step(game.walkthrough()[0])
        other.load(game.save())
        assert game.step(game.walkthrough()[1]) == other.step(game.walkthrough()[1])


def test_one_seed_is_one_world_and_nobodys_random_numbers_are_touched() -> None:
    np.random.seed(1)
    random.seed(1)
    before = (np.random.get_state()[1].tolist(), random.getstate())  # type: ignore[index,union-attr]
    worlds = [make_textworld("quest", {"world_seed": seed, "rooms": 2, "objects": 2}) for seed in (0, 0, 1)]
    texts = []
    for world in worlds:
        with closing(world()) as game:
            texts.append(game.reset(0).text)
    assert texts[0] == texts[1] != texts[2]
    assert worlds[0]._made == worlds[1]._made
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before  # type: ignore[index,union-attr]


def test_worlds_are_made_in_many_threads_at_once() -> None:
    """The parser of the package is one for the whole process."""
    levels = [2, 3, 4, 5]
    with ThreadPoolExecutor(len(levels)) as pool:
        worlds = list(pool.map(lambda level: make_textworld("coin", {"level": level})(), levels))
    for level, world in zip(levels, worlds, strict=True):
        with closing(world):
            assert len(world.walkthrough()) == level


def test_nothing_is_left_in_the_temporary_folder(
    stories: TextWorldStories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    game = stories()
    assert len(list(tmp_path.iterdir())) == 1
    game.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("textworld:coins", {}, "did you mean 'coin'"),
        ("textworld:coin", {"levels": 3}, "did you mean 'level'"),
        ("textworld:coin", {"level": "three"}, "level must be a whole number, received 'three'"),
        ("textworld:quest", {"looks": 1}, "looks must be true or false, received 1"),
    ],
)
def test_bad_options_are_refused_in_one_line(name: str, options: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        load_story(name, options)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "options"), [("coin", {"level": 301}), ("cooking", {"rooms": 2})])
def test_what_textworld_cannot_make_is_refused_in_one_line(kind: str, options: dict[str, int]) -> None:
    with pytest.raises(BadStory, match=f"textworld:{kind} cannot be made with") as refused:
        make_textworld(kind, {**OPTIONS[kind], **options})()
    assert "\n" not in str(refused.value)
