"""Rows of words, prompts, and story games side by side."""

from __future__ import annotations

import functools
import pickle
import re
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.text_games import RowShape, Scene, StoryGames, StoryLost, encode_scene, hashed_words
from headway.text_games.mini_world import MiniWorld
from headway.text_games.prompts import situation_prompt
from headway.text_games.story_interface import BadStory
from headway.text_games.vector_story_episodes import StoryEpisodes
from headway.zero.self_play_search_segments import Games

SHAPE = RowShape(text_words=8, slots=3, action_words=2, buckets=100)
SCENE = Scene("A dark room. You see a key.", 0.0, ("take key", "go north", "wait", "shout loudly now"))


# -- rows -------------------------------------------------------------------------------------------


def test_a_row_has_the_words_of_the_text_and_then_of_each_slot() -> None:
    row = encode_scene(SCENE, SHAPE, ("go north", "take key"))
    assert row.dtype == np.int32
    assert row.shape == (SHAPE.length,) == (8 + 3 * 2,)
    np.testing.assert_array_equal(SHAPE.text_of(row), hashed_words(SCENE.text, 8, 100))
    slots = SHAPE.actions_of(row)
    np.testing.assert_array_equal(slots[0], hashed_words("go north", 2, 100))
    np.testing.assert_array_equal(slots[1], hashed_words("take key", 2, 100))
    assert not slots[2].any()


def test_a_word_is_the_same_number_in_every_process_and_case() -> None:
    np.testing.assert_array_equal(hashed_words("Take the KEY!", 5, 4096), [3708, 3559, 2986, 0, 0])
    np.testing.assert_array_equal(hashed_words("take the key, please do so", 3, 4096), [3708, 3559, 2986])


@settings(max_examples=40)
@given(st.text(max_size=200), st.integers(1, 20), st.integers(1, 500))
def test_words_are_numbers_from_one_and_padding_comes_last(text: str, num: int, buckets: int) -> None:
    row = hashed_words(text, num, buckets)
    assert row.shape == (num,)
    assert ((row >= 0) & (row <= buckets)).all()
    words = int((row > 0).sum())
    assert (row[:words] > 0).all()


@settings(max_examples=60)
@given(st.text("abz09 '-_?!\n—’…“”", max_size=60))
def test_english_keeps_the_words_it_always_had(text: str) -> None:
    words = re.findall(r"[a-z0-9]+(?:'[a-z]+)?", text)
    numbers = [zlib.crc32(word.encode()) % 4096 + 1 for word in words]
    if numbers:
        np.testing.assert_array_equal(hashed_words(text, len(numbers), 4096), numbers)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Открыть дверь №2", ["открыть", "дверь", "2"]),
        ("Ouvre l'été, vite", ["ouvre", "l'été", "vite"]),
        ("cafe\u0301", ["café"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("打开门。go", ["打", "开", "门", "go"]),
        ("문을 열다", ["문을", "열다"]),
        ("น้ำ", ["น้", "ำ"]),
        ("٣ أبواب", ["٣", "أبواب"]),
        ("? !!", ["?", "!!"]),
        ("a_b _ 👍", ["a", "b"]),
        ("👍 👎", ["👍", "👎"]),
    ],
)
def test_words_are_those_of_every_script(text: str, words: list[str]) -> None:
    numbers = [zlib.crc32(word.encode()) % 4096 + 1 for word in words]
    np.testing.assert_array_equal(hashed_words(text, 6, 4096), numbers + [0] * (6 - len(numbers)))


@given(st.text(min_size=1, max_size=20).filter(str.strip))
def test_no_candidate_looks_like_an_empty_slot(candidate: str) -> None:
    row = encode_scene(SCENE, SHAPE, (candidate,))
    assert SHAPE.actions_of(row)[0].any()
    assert not SHAPE.actions_of(row)[1].any()


def test_rows_refuse_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="a row has 3 slots, received 4 candidates"):
        encode_scene(SCENE, SHAPE, SCENE.candidates)
    with pytest.raises(ValueError, match="slots must be a whole number >= 1, received 0"):
        RowShape(slots=0)


# -- prompts ----------------------------------------------------------------------------------------


def test_a_prompt_has_the_objective_and_the_scene_and_ends_for_an_action() -> None:
    prompt = situation_prompt("Find the key.", SCENE, ())
    assert prompt.endswith("\n")
    assert "Find the key." in prompt
    assert SCENE.text in prompt
    assert "take key" not in prompt
    assert "goal" not in situation_prompt("", SCENE, ())


def test_a_history_is_told_in_order_and_the_scene_once() -> None:
    history = [("wait", "Nothing happens."), ("go south", SCENE.text)]
    prompt = situation_prompt("Find the key.", SCENE, history)
    assert prompt.count(SCENE.text) == 1
    places = [prompt.index(part) for part in ("> wait", "Nothing happens.", "> go south", SCENE.text)]
    assert places == sorted(places)


def test_listed_candidates_stand_in_one_order_however_they_are_shown() -> None:
    other = Scene(SCENE.text, 0.0, SCENE.candidates[::-1])
    prompt = situation_prompt("", SCENE, with_candidates=True)
    assert prompt == situation_prompt("", other, with_candidates=True)
    assert "go north; shout loudly now; take key; wait" in prompt


# -- games side by side -----------------------------------------------------------------------------


def played(games: StoryGames, num_steps: int, seed: int = 0) -> list[tuple[np.ndarray, ...]]:
    rng = np.random.default_rng(seed)
    told = []
    for _ in range(num_steps):
        slots = np.array([rng.integers(max(1, len(shown))) for shown in games.shown])
        told.append((games.obs, games.legal, slots, *games.step(slots)))
    return told


def test_they_are_what_a_collector_of_segments_plays() -> None:
    games: Games = StoryGames(MiniWorld, 3)
    assert games.obs.shape == (3, RowShape().length)
    assert games.legal is not None
    assert games.legal.shape == (3, 16)
    assert not games.ended.any()


def test_an_episode_that_is_won_is_terminated_and_the_next_step_only_begins_anew() -> None:
    games = StoryGames(MiniWorld, 1, history_steps=2)
    begin = games.obs.copy()
    for action in games.games[0].plan():  # type: ignore[attr-defined]
        rewards, terminated, truncated = games.step(np.array([games.shown[0].index(action)]))
    assert (rewards[0], terminated[0], truncated[0]) == (1.0, True, False)
    assert games.scenes[0].is_won
    assert games.ended[0]
    assert not games.legal[0].any()
    assert len(games.histories[0]) == 2
    rewards, terminated, truncated = games.step(np.array([0]))
    assert (rewards[0], terminated[0], truncated[0], games.ended[0]) == (0.0, False, False, False)
    np.testing.assert_array_equal(games.obs, begin)
    assert games.histories[0] == []


def test_an_episode_that_is_cut_is_truncated_and_still_says_what_could_be_done() -> None:
    games = StoryGames(MiniWorld, 1, max_steps=2)
    wait = games.shown[0].index("wait")
    assert not games.step(np.array([wait]))[2][0]
    _, terminated, truncated = games.step(np.array([wait]))
    assert truncated[0]
    assert not terminated[0]
    assert games.legal[0].any()
    games.step(np.array([wait]))
    assert not games.ended[0]


def test_one_seed_is_one_course_of_games_and_beginning_anew_is_another() -> None:
    make = functools.partial(MiniWorld, random_start=True)
    first, second, other = (StoryGames(make, 4, seed=seed, max_steps=5) for seed in (1, 1, 2))
    assert not np.array_equal(first.obs, other.obs)
    for one, two in zip(played(first, 20), played(second, 20), strict=True):
        for left, right in zip(one, two, strict=True):
            np.testing.assert_array_equal(left, right)
    other.begin_anew(1)
    np.testing.assert_array_equal(other.obs, StoryGames(make, 4, seed=1).obs)


def test_a_pickle_goes_on_where_the_games_are() -> None:
    games = StoryGames(functools.partial(MiniWorld, random_start=True), 3, seed=5, max_steps=6, history_steps=1)
    played(games, 8)
    copy = pickle.loads(pickle.dumps(games))
    assert copy.histories == games.histories
    for one, two in zip(played(games, 20, 1), played(copy, 20, 1), strict=True):
        for left, right in zip(one, two, strict=True):
            np.testing.assert_array_equal(left, right)


def test_show_puts_candidates_in_any_order_into_the_slots() -> None:
    games = StoryGames(MiniWorld, 1, shape=SHAPE)
    all_of_them = games.scenes[0].candidates
    assert games.shown[0] == all_of_them[:3]
    assert games.cut == len(all_of_them) - 3
    games.show([[4, 0]])
    assert games.shown[0] == (all_of_them[4], all_of_them[0])
    assert games.cut == len(all_of_them) - 2, "a scene is counted once, as it was shown last"
    np.testing.assert_array_equal(games.legal[0], [True, True, False])
    np.testing.assert_array_equal(SHAPE.actions_of(games.obs[0])[0], hashed_words(all_of_them[4], 2, 100))
    games.step(np.array([1]))
    assert games.scenes[0].text.startswith("You are in the study.")


def test_what_cannot_be_shown_or_done_is_refused() -> None:
    games = StoryGames(MiniWorld, 1)
    with pytest.raises(ValueError, match="put into two slots"):
        games.show([[1, 1]])
    with pytest.raises(ValueError, match="there are 1 games, received places for 2"):
        games.show([[0], [0]])
    with pytest.raises(ValueError, match="game 0 has 5 actions in its slots, received slot 15"):
        games.step(np.array([15]))
    with pytest.raises(ValueError, match="max_steps must be a whole number >= 1, received 0"):
        StoryGames(MiniWorld, 1, max_steps=0)


class _Crashes(MiniWorld):
    """Is lost at the third step it makes, whatever episode that is in."""

    made = 0
    steps = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1

    def step(self, action: str) -> Scene:
        self.steps += 1
        if self.steps == 3:
            raise StoryLost("the story's process was killed")
        return super().step(action)


def test_a_game_that_is_lost_cuts_its_episode_and_is_made_anew() -> None:
    _Crashes.made = 0
    games = StoryGames(_Crashes, 2)
    wait = np.array([shown.index("wait") for shown in games.shown])
    games.step(wait)
    games.step(wait)
    before = games.obs.copy()
    rewards, terminated, truncated = games.step(wait)
    assert truncated.all()
    assert not terminated.any()
    assert not rewards.any()
    np.testing.assert_array_equal(games.obs, before)
    assert games.lost == 2
    assert _Crashes.made == 4
    copy = pickle.loads(pickle.dumps(games))
    assert copy.lost == 2
    games.step(wait)
    assert not games.ended.any()


class _Guesses(MiniWorld):
    """Knows what can be done at the beginning, and not where somebody shouts."""

    def step(self, action: str) -> Scene:
        return replace(super().step(action), are_guesses=action == "shout")


def test_scenes_whose_candidates_are_guesses_are_counted() -> None:
    games = StoryGames(_Guesses, 2)
    assert games.guessed == 0
    for action, count in (("shout", 2), ("wait", 2), ("shout", 4)):
        games.step(np.array([shown.index(action) for shown in games.shown]))
        games.show([range(len(scene.candidates)) for scene in games.scenes])
        assert games.guessed == count, "and showing a scene again is not another one"
    assert pickle.loads(pickle.dumps(games)).guessed == 4


def test_games_that_were_saved_before_guesses_were_counted_go_on() -> None:
    scene = Scene("a hall", 1.0, ("wait",), is_won=True)
    old = Scene.__new__(Scene)
    old.__setstate__(["a hall", 1.0, ("wait",), False, True])
    assert old == scene == pickle.loads(pickle.dumps(scene))
    assert pickle.loads(pickle.dumps(replace(scene, are_guesses=True))).are_guesses
    state = StoryEpisodes(_Guesses, seed=1, max_steps=5).__getstate__()
    del state["guessed"]
    episodes = StoryEpisodes.__new__(StoryEpisodes)
    episodes.__setstate__(state)
    episodes.step("shout")
    assert episodes.guessed == 1


class _NeverBegins(MiniWorld):
    def reset(self, seed: int) -> Scene:
        raise StoryLost("there is no memory left")


def test_a_game_that_never_begins_is_an_error() -> None:
    with pytest.raises(StoryLost, match="there is no memory left"):
        StoryGames(_NeverBegins, 1)


class _NothingCanBeDone(MiniWorld):
    """Has no candidate from its second scene on, and is not over."""

    def step(self, action: str) -> Scene:
        return replace(super().step(action), candidates=())


class _SaysWhatCanBeDoneAfterTheEnd(MiniWorld):
    def step(self, action: str) -> Scene:
        return replace(super().step(action), is_over=True)


class _AnEmptyCandidate(MiniWorld):
    def step(self, action: str) -> Scene:
        return replace(super().step(action), candidates=("wait", " "))


class _HalfACharacter(MiniWorld):
    def step(self, action: str) -> Scene:
        return replace(super().step(action), text="a \ud800")


@pytest.mark.parametrize(
    ("game", "what"),
    [
        (_AnEmptyCandidate, "_AnEmptyCandidate: a candidate is empty; it must say what is done"),
        (_HalfACharacter, r"_HalfACharacter: the text 'a .ud800' is not valid Unicode \(a lone surrogate\)"),
        (_NothingCanBeDone, "_NothingCanBeDone goes on and has no candidate: 'You are in the"),
        (_SaysWhatCanBeDoneAfterTheEnd, "_SaysWhatCanBeDoneAfterTheEnd is over and has candidates: 'You are in the"),
    ],
)
def test_an_empty_list_is_the_end_and_anything_else_is_one_line(game: type[MiniWorld], what: str) -> None:
    games = StoryGames(game, 1)
    with pytest.raises(BadStory, match=what) as refused:
        games.step(np.array([0]))
    assert "\n" not in str(refused.value)
