"""Colossal Cave: its candidates are enough to win, questions can be saved, and caves share nothing."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import pytest

pytest.importorskip("adventure", reason="a library of games is not installed: adventure")

from headway.text_games.colossal_cave import ColossalCave
from headway.text_games.colossal_cave_adventure_state import NOWHERE, FixedChance, opened_cave
from headway.text_games.story_interface import Scene


def followed(cave: ColossalCave, *actions: str) -> Scene:
    for action in actions:
        scene = cave.step(action)
    return scene


@pytest.fixture
def cave() -> ColossalCave:
    cave = ColossalCave()
    cave.reset(2)
    return cave


def test_the_walkthrough_scores_all_points_and_candidates_would_have_done() -> None:
    cave = ColossalCave(same_seed=2)
    scene = cave.reset(77)
    assert scene.score == 36
    missed, changed = [], 0
    for action in cave.walkthrough():
        candidates, before, key = scene.candidates, cave.save(), cave.key()
        scene = cave.step(action)
        after, state = cave.key(), cave.save()
        if after != key:
            changed += 1
            likely = sorted(candidates, key=lambda one: one.split()[-1][0] != action.split()[-1][0])
            if not any(cave.load(before) and cave.step(one) and cave.key() == after for one in likely):
                missed.append(action)
            assert cave.load(state) == scene
    assert (scene.score, scene.is_won, missed) == (350, True, [])
    assert changed > 250


def test_a_candidate_changes_something_a_player_can_see(cave: ColossalCave) -> None:
    scene = cave.reset(2)
    assert scene.candidates == ("go west", "enter building", "go south", "go north", "go to depression")
    scene = cave.step("enter building")
    assert {"take lamp", "take keys", "say xyzzy", "go west"} <= set(scene.candidates)
    assert "light lamp" in scene.candidates
    assert "extinguish lamp" not in scene.candidates
    state, key = cave.save(), cave.key()
    for action in scene.candidates:
        cave.load(state)
        cave.step(action)
        assert cave.key() != key, action


def test_looking_for_candidates_takes_no_time_and_no_chance(cave: ColossalCave) -> None:
    other = ColossalCave(known_states=1)
    other.reset(2)
    rng = random.Random(5)
    scene = cave.reset(2)
    for _ in range(150):
        if scene.is_over:
            break
        action = rng.choice(scene.candidates)
        scene = cave.step(action)
        assert other.step(action) == scene


def test_texts_are_sentences_that_say_the_room_and_what_is_carried(cave: ColossalCave) -> None:
    scene = followed(cave, "enter building", "take lamp")
    assert scene.text.startswith("Ok. You carry: brass lantern. You are inside a building, a well house for a large")
    assert "There are some keys on the ground here." in scene.text
    assert cave.step("say xyzzy").text.startswith("You carry: brass lantern. It is now pitch dark.")
    assert "pitch dark" in cave.step("drop lamp").text


def test_a_question_is_answered_with_yes_or_no_and_can_be_saved(cave: ColossalCave) -> None:
    scene = cave.step("quit")
    assert scene.candidates == ("yes", "no")
    state, key = cave.save(), cave.key()
    assert cave.step("perhaps").candidates == ("yes", "no")
    other = pickle.loads(pickle.dumps(cave))
    assert other.load(state) == scene
    assert other.key() == key
    assert not other.step("no").is_over
    other.load(state)
    end = other.step("yes")
    assert end.is_over
    assert not end.is_won
    assert cave.load(state) == scene


def test_death_asks_and_the_third_one_ends_the_story() -> None:
    cave = ColossalCave()
    ends = []
    for seed in range(4):
        rng, scene = random.Random(seed), cave.reset(seed)
        questions = 0
        for _ in range(3000):
            if scene.is_over:
                break
            questions += scene.candidates == ("yes", "no")
            scene = cave.step("yes" if scene.candidates == ("yes", "no") else rng.choice(scene.candidates))
        assert questions >= 1
        ends.append(scene)
    assert any(scene.is_over and "You scored" in scene.text for scene in ends)
    assert not any(scene.is_won for scene in ends)


def test_a_state_has_few_bytes_and_a_player_can_write_no_file(
    cave: ColossalCave, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(cave.save()) < 8000
    assert cave.step("save here").text.startswith("That is not for a player to do.")
    assert list(tmp_path.iterdir()) == []


def test_every_word_of_the_game_can_be_said(cave: ColossalCave) -> None:
    state = cave.save()
    rng = random.Random(3)
    assert cave._game is not None
    words = [word for word in cave._game.vocabulary if isinstance(word, str)]
    for _ in range(400):
        cave.load(state)
        scene = cave.step(" ".join(rng.choices(words, k=rng.randint(1, 3))))
        assert scene.is_over or scene.candidates


def test_a_deadly_way_kills_once_even_in_the_dark() -> None:
    game = opened_cave(0)
    game.loc, game.could_fall_in_pit = game.rooms[NOWHERE], True
    game.random_generator = FixedChance(0.1)  # one would fall into a pit
    assert game.is_dark
    game.describe_location()
    assert game.deaths == 1


def test_a_place_is_described_alike_whatever_is_carried_and_however_one_came(cave: ColossalCave) -> None:
    followed(cave, "enter building", "take lamp", "take food", "drop food")
    here = cave.described()
    assert "building" in here
    assert "Ok" not in here
    assert "carry" not in here
    followed(cave, "go west", "enter building")
    assert cave.described() == here
    followed(cave, "take keys")
    assert cave.described() != here
    assert "pitch dark" in (followed(cave, "say xyzzy") and cave.described())


def test_a_question_is_described_by_its_words() -> None:
    cave = ColossalCave(same_seed=3)
    scene, chance = cave.reset(0), random.Random(3)
    while scene.candidates != ("yes", "no"):
        scene = cave.step(chance.choice(scene.candidates))
    assert cave.described() == scene.text
