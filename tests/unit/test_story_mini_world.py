"""The mini world: its quest, its plan, its words, and what it refuses."""

from __future__ import annotations

from collections import deque

import pytest

from headway.text_games.mini_world import MiniWorld
from headway.text_games.story_interface import Scene


def all_scenes(world: MiniWorld) -> dict[bytes, tuple[bytes, Scene]]:
    """Every state that can be reached, by its key: how it is saved, and its scene."""
    scene = world.reset(0)
    found = {world.key(): (world.save(), scene)}
    waiting = deque(found)
    while waiting:
        state, scene = found[waiting.popleft()]
        for action in scene.candidates:
            world.load(state)
            after = world.step(action)
            if world.key() not in found:
                found[world.key()] = (world.save(), after)
                waiting.append(world.key())
    return found


@pytest.mark.parametrize("world_seed", range(20))
def test_the_plan_has_eight_steps_and_wins(world_seed: int) -> None:
    world = MiniWorld(world_seed=world_seed)
    world.reset(0)
    plan = world.plan()
    scenes = [world.step(action) for action in plan]
    assert len(plan) == 8
    assert [scene.score for scene in scenes] == [0.0] * 7 + [1.0]
    assert scenes[-1].is_won
    assert plan[-1].startswith("take ")


@pytest.mark.parametrize(("rooms", "steps"), [(1, 4), (2, 5), (4, 10), (6, 14), (8, 14), (16, 20)])
def test_a_quest_of_any_length_that_fits_can_be_made(rooms: int, steps: int) -> None:
    world = MiniWorld(rooms=rooms, plan_steps=steps)
    world.reset(0)
    assert len(world.plan()) == steps


def test_every_state_can_be_won_from_and_a_step_of_the_plan_shortens_it() -> None:
    world = MiniWorld()
    scenes = all_scenes(world)
    assert len(scenes) == 100
    for state, scene in scenes.values():
        if not scene.is_over:
            world.load(state)
            plan = world.plan()
            assert plan[0] in scene.candidates
            world.step(plan[0])
            assert len(world.plan()) == len(plan) - 1


def test_there_are_about_six_candidates_and_most_of_them_are_of_no_use() -> None:
    world = MiniWorld()
    open_scenes = [scene for _, scene in all_scenes(world).values() if not scene.is_over]
    mean = sum(len(scene.candidates) for scene in open_scenes) / len(open_scenes)
    assert 6.0 <= mean <= 7.5
    assert max(len(scene.candidates) for scene in open_scenes) <= 16
    assert max(len(scene.text.split()) for scene in open_scenes) <= 64


def test_the_score_comes_at_the_end_or_in_four_parts() -> None:
    world = MiniWorld(subgoals=True)
    world.reset(0)
    scores = [world.step(action).score for action in world.plan()]
    assert scores == [0, 0, 0, 0.25, 0.25, 0.5, 0.75, 1.0]


def test_what_is_shut_stays_shut_without_the_key() -> None:
    world = MiniWorld(rooms=1, plan_steps=4)
    scene = world.reset(0)
    assert "unlock chest with key" not in scene.candidates
    key = world.key()
    assert "locked" in world.step("open chest").text
    assert world.key() == key


def test_words_may_have_articles_and_capitals_and_nonsense_changes_nothing() -> None:
    world = MiniWorld(rooms=1, plan_steps=4)
    world.reset(0)
    key = world.key()
    assert world.step("sing a song").text.startswith("You cannot do that.")
    assert world.key() == key
    assert world.step("Take the KEY").text.startswith("You take the key.")


def test_a_random_start_depends_on_the_seed_alone() -> None:
    world = MiniWorld(random_start=True)
    texts = [world.reset(seed).text for seed in range(12)]
    assert texts == [MiniWorld(random_start=True).reset(seed).text for seed in range(12)]
    assert len(set(texts)) > 2
    assert len({MiniWorld().reset(seed).text for seed in range(12)}) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rooms": 0}, "a mini world has 1 to 16 rooms, received 0"),
        ({"rooms": 17}, "a mini world has 1 to 16 rooms, received 17"),
        ({"rooms": 3, "plan_steps": 9}, "a quest in 3 rooms has 4 to 8 steps, received plan_steps 9"),
        ({"plan_steps": 3}, "a quest in 6 rooms has 4 to 14 steps, received plan_steps 3"),
        ({"trinkets": 9}, "a mini world has 0 to 8 trinkets, received 9"),
    ],
)
def test_a_world_that_cannot_be_is_refused_in_one_line(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MiniWorld(**options)
