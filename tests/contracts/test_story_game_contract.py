"""Every story game keeps the contract; games that break it in one way each are found out."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest

from headway.testing.story_game_contract import StoryGameContract
from headway.text_games.loading import load_story
from headway.text_games.mini_world import MiniWorld
from headway.text_games.story_interface import Scene


class TestMiniWorld(StoryGameContract):
    make_game = staticmethod(load_story("mini_world"))


class TestMiniWorldWithSubgoalsAndManyStarts(StoryGameContract):
    make_game = staticmethod(load_story("mini_world", {"subgoals": True, "random_start": True, "world_seed": 7}))


@pytest.mark.skipif(find_spec("adventure") is None, reason="a library of games is not installed: adventure")
class TestColossalCave(StoryGameContract):
    num_actions = 30

    def make_game(self):  # type: ignore[no-untyped-def]
        return load_story("colossal_cave")()


class _ForgetsText(MiniWorld):
    def load(self, state: bytes) -> Scene:
        return replace(super().load(state), text="You are back.")


class _OneKey(MiniWorld):
    def key(self) -> bytes:
        return b"the world hash"


class _CountsTurns(MiniWorld):
    turns = 0

    def key(self) -> bytes:
        self.turns += 1
        return str(self.turns).encode()


class _GoesOnAfterTheEnd(MiniWorld):
    def step(self, action: str) -> Scene:
        return self.reset(0) if self._state is not None and self._state.has_treasure else super().step(action)


class _HasNothingToDo(MiniWorld):
    def step(self, action: str) -> Scene:
        return replace(super().step(action), candidates=())


class _RemembersTheLastStory(MiniWorld):
    told = 0

    def reset(self, seed: int) -> Scene:
        self.told += 1
        return replace(super().reset(seed), text=f"Story {self.told}.")


class _LosesItsScore(MiniWorld):
    def reset(self, seed: int) -> Scene:
        return replace(super().reset(seed), score=float("nan"))


BROKEN = [
    (_ForgetsText, "test_a_saved_state_comes_back_with_text_score_candidates_and_key"),
    (_OneKey, "test_a_key_is_equal_for_equal_states_and_tells_others_apart"),
    (_CountsTurns, "test_a_key_is_equal_for_equal_states_and_tells_others_apart"),
    (_GoesOnAfterTheEnd, "test_after_the_end_a_step_is_refused_in_one_line"),
    (_HasNothingToDo, "test_scenes_can_be_played_and_learned_from"),
    (_RemembersTheLastStory, "test_one_seed_is_one_story"),
    (_LosesItsScore, "test_it_has_what_a_story_game_needs"),
]


@pytest.mark.parametrize(("game", "check"), BROKEN, ids=[game.__name__ for game, _ in BROKEN])
def test_a_game_that_breaks_the_contract_is_found_out(game: type[MiniWorld], check: str) -> None:
    suite = StoryGameContract()
    suite.make_game = game  # type: ignore[method-assign]
    with pytest.raises((AssertionError, ValueError, IndexError, pytest.fail.Exception)):
        getattr(suite, check)()
