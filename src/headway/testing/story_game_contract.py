"""What every story game must do to be played by search. A new one is accepted when it passes this suite.

Derive a test class, say how one is made, and let pytest find it:

    class TestMyCave(StoryGameContract):
        make_game = staticmethod(load_story("my_games.py:Cave"))
"""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Iterator
from contextlib import closing, contextmanager

import cloudpickle
import numpy as np
import pytest

from headway.text_games.story_interface import Scene, StoryGame, checked_scene, checked_story
from headway.text_games.story_players import play_story
from headway.text_games.vector_story_games import StoryGames

NONSENSE = "frobnicate the gromphle"


class StoryGameContract:
    """The checks as tests. A class derived from it says `make_game`, which can be pickled."""

    seeds = (0, 1, 2)
    num_actions = 20
    """How many steps by chance each check plays."""
    last_actions: tuple[str, ...] = ()
    """What ends the story of the first seed; empty: the game's own plan or walkthrough, if it has one."""

    def make_game(self) -> StoryGame:
        raise NotImplementedError("say how the game is made: make_game = staticmethod(load_story(...))")

    def test_it_has_what_a_story_game_needs(self) -> None:
        with self._made() as game:
            checked_story(game, type(self).__name__)
            assert game.max_score is None or math.isfinite(game.max_score)
            checked_scene(game.reset(self.seeds[0]), type(self).__name__)

    def test_one_seed_is_one_story(self) -> None:
        with self._made() as first, self._made() as second:
            for seed in self.seeds:
                actions, scenes = self._walk(first, seed)
                assert self._told(second, seed, actions) == scenes, "another game told another story"
                assert self._told(first, seed, actions) == scenes, "the same game told another story the next time"

    def test_scenes_can_be_played_and_learned_from(self) -> None:
        with self._made() as game:
            for seed in self.seeds:
                _, scenes = self._walk(game, seed)
                for scene in scenes:
                    checked_scene(scene, type(self).__name__)

    def test_a_saved_state_comes_back_with_text_score_candidates_and_key(self) -> None:
        with self._made() as game, self._made() as other:
            for seed in self.seeds:
                actions, scenes = self._walk(game, seed, self.num_actions // 2)
                if scenes[-1].is_over:
                    continue
                state, key = game.save(), game.key()
                after = self._drift(game, scenes[-1])
                assert game.load(state) == scenes[-1]
                assert game.key() == key, "the key is another one after load"
                other.reset(seed + 1)
                assert other.load(pickle.loads(pickle.dumps(state))) == scenes[-1], "another game cannot go on"
                assert other.key() == key
                assert self._drift(game, scenes[-1]) == after, "a loaded state goes on otherwise"
                assert self._drift(other, scenes[-1]) == after, "a state loaded by another game goes on otherwise"
                assert self._told(game, seed, actions) == scenes

    def test_saving_changes_nothing(self) -> None:
        with self._made() as game:
            actions, scenes = self._walk(game, self.seeds[0])
            told = [game.reset(self.seeds[0])]
            for action in actions:
                game.save()
                game.key()
                told.append(game.step(action))
            assert told == scenes

    def test_a_key_is_equal_for_equal_states_and_tells_others_apart(self) -> None:
        with self._made() as game:
            for seed in self.seeds:
                scene = game.reset(seed)
                first = game.key()
                game.reset(seed)
                assert game.key() == first, "the beginning has two keys"
                rng = random.Random(seed)
                for _ in range(self.num_actions):
                    if scene.is_over:
                        break
                    before, key = scene, game.key()
                    scene = game.step(rng.choice(scene.candidates))
                    if (scene.score, scene.candidates) != (before.score, before.candidates):
                        assert game.key() != key, f"score or candidates changed and the key did not: {scene.text!r}"

    def test_after_the_end_a_step_is_refused_in_one_line(self) -> None:
        with self._made() as game:
            scene = self._end(game)
            if scene is None:
                return  # nobody here knows how this story ends
            assert scene.is_over
            self._refused(game, "look")
            assert not game.reset(self.seeds[0]).is_over, "a story cannot begin again after its end"

    def test_before_the_beginning_a_step_is_refused_in_one_line(self) -> None:
        with self._made() as game:
            self._refused(game, "look")

    def test_what_is_no_candidate_is_answered_or_refused_in_one_line(self) -> None:
        with self._made() as game:
            for action in (NONSENSE, "", "  ", "x" * 500):
                scene = game.reset(self.seeds[0])
                lines = 1
                try:
                    scene = checked_scene(game.step(action), type(self).__name__)
                except ValueError as error:
                    lines = len(str(error).splitlines())
                assert lines == 1, f"{action!r} is refused in {lines} lines"
                if not scene.is_over:
                    checked_scene(game.step(scene.candidates[0]), type(self).__name__)

    def test_two_games_share_nothing(self) -> None:
        with self._made() as one, self._made() as two:
            first, second = self.seeds[0], self.seeds[-1]
            one_actions, one_scenes = self._walk(one, first)
            two_actions, two_scenes = self._walk(two, second)
            told: tuple[list[Scene], list[Scene]] = ([one.reset(first)], [two.reset(second)])
            for index in range(self.num_actions):
                if index < len(one_actions):
                    told[0].append(one.step(one_actions[index]))
                if index < len(two_actions):
                    told[1].append(two.step(two_actions[index]))
            assert told == (one_scenes, two_scenes)

    def test_games_side_by_side_go_on_from_a_pickle(self) -> None:
        make = cloudpickle.loads(cloudpickle.dumps(self.make_game))
        with closing(StoryGames(make, 2, seed=3, max_steps=7)) as games:
            rng = np.random.default_rng(0)
            for _ in range(5):
                games.step(_any_slots(games, rng))
            with closing(cloudpickle.loads(cloudpickle.dumps(games))) as copy:
                for _ in range(10):
                    slots = _any_slots(games, rng)
                    for mine, theirs in zip(games.step(slots), copy.step(slots), strict=True):
                        np.testing.assert_array_equal(mine, theirs)
                    np.testing.assert_array_equal(games.obs, copy.obs)
                    assert games.shown == copy.shown

    @contextmanager
    def _made(self) -> Iterator[StoryGame]:
        with closing(self.make_game()) as game:
            yield game

    def _walk(self, game: StoryGame, seed: int, num_actions: int | None = None) -> tuple[list[str], list[Scene]]:
        """Plays by chance."""
        rng = random.Random(seed)
        actions, scenes = list[str](), [game.reset(seed)]
        for _ in range(num_actions or self.num_actions):
            if scenes[-1].is_over:
                break
            actions.append(rng.choice(scenes[-1].candidates))
            scenes.append(game.step(actions[-1]))
        return actions, scenes

    def _told(self, game: StoryGame, seed: int, actions: list[str]) -> list[Scene]:
        return [game.reset(seed), *[game.step(action) for action in actions]]

    def _drift(self, game: StoryGame, scene: Scene) -> list[Scene]:
        """Goes on with the last candidate of each scene, for a few steps."""
        scenes = [scene]
        while not scenes[-1].is_over and len(scenes) < 4:
            scenes.append(game.step(scenes[-1].candidates[-1]))
        return scenes[1:]

    def _end(self, game: StoryGame) -> Scene | None:
        if self.last_actions:
            return self._told(game, self.seeds[0], list(self.last_actions))[-1]
        seed = getattr(game, "walkthrough_seed", self.seeds[0])
        game.reset(seed)
        if not any(getattr(game, name, tuple)() for name in ("plan", "walkthrough")):
            return None
        last = play_story(game, "expert", seed).scenes[-1]
        return last if last.is_over else None

    def _refused(self, game: StoryGame, action: str) -> None:
        with pytest.raises(ValueError, match=r"\S") as refused:
            game.step(action)
        assert len(str(refused.value).splitlines()) == 1, refused.value


def _any_slots(games: StoryGames, rng: np.random.Generator) -> np.ndarray:
    return np.array([rng.integers(max(1, len(shown))) for shown in games.shown])
