"""Games of our own: one seed is one game, experts win, chance rarely does, and nothing a policy says breaks them."""

from __future__ import annotations

import math
import random
from importlib import import_module

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.agents.env import BadEnvironment
from headway.agents.games import GAMES
from headway.agents.games.calculator import Calculator
from headway.agents.games.climb import Climb
from headway.agents.games.corridor import Corridor
from headway.agents.games.frozen_lake import FrozenLake
from headway.agents.games.guess import Guess
from headway.agents.games.lights import Lights
from headway.agents.games.shop import Shop
from headway.agents.games.sokoban import Sokoban
from headway.agents.games.text_game import TextGame, words_of
from headway.agents.players import LEFT, PlayerLeft, play_episode, player_of, scripted_player

EPISODES = 300
CHANCE = {  # success of the random player in percent: at least, at most (measured over 2,000 seeds, see the guide)
    "calculator": (0, 4),
    "climb": (1, 9),
    "corridor": (7, 19),
    "frozen_lake": (1, 11),
    "guess": (15, 31),
    "lights": (1, 8),
    "shop": (3, 14),
    "sokoban": (6, 18),
}
OTHER_OPTIONS = {
    "calculator": {"steps": 4, "largest": 300},
    "climb": {"turns": 5, "bound": 50, "first": 20},
    "corridor": {"length": 30, "turns": 8},
    "frozen_lake": {"size": 6, "holes": 8, "turns": 30},
    "guess": {"low": 0, "high": 100, "turns": 7},
    "lights": {"lights": 8, "turns": 4},
    "shop": {"items": 15, "alike": 4, "turns": 9},
    "sokoban": {"size": 5, "boxes": 2, "walls": 3, "turns": 30},
}


def game(name: str, **options: object) -> TextGame:
    found: TextGame = getattr(import_module(f"headway.agents.games.{name}"), GAMES[name])(**options)
    return found


def unknown_words(env: TextGame, texts: tuple[str, ...], **options: object) -> set[str]:
    known = set(env.vocabulary(**options))
    return {word for text in texts for word in words_of(text)} - known


# -- every game -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GAMES)
def test_the_expert_always_wins_in_time(name: str) -> None:
    for env in (game(name), game(name, **OTHER_OPTIONS[name])):
        for seed in range(60):
            episode = play_episode(env, "expert", seed)
            assert episode.success, f"{name}, seed {seed}: {episode}"
            assert episode.total >= 1 - 1e-9


@pytest.mark.parametrize("name", GAMES)
def test_chance_wins_as_seldom_as_the_guide_says(name: str) -> None:
    env = game(name)
    percent = 100 * sum(play_episode(env, "random", seed).success for seed in range(EPISODES)) / EPISODES
    least, most = CHANCE[name]
    assert least <= percent <= most


@pytest.mark.parametrize("name", GAMES)
def test_one_seed_is_one_game_and_another_is_another(name: str) -> None:
    used, fresh = game(name), game(name)
    games = [play_episode(used, "random", seed) for seed in range(20)]
    assert [play_episode(fresh, scripted_player(iter(one.replies)), one.seed) for one in games] == games
    assert len({one.texts[0] for one in games}) > 5 or name == "guess"  # which begins with its rules alone


@pytest.mark.parametrize("name", GAMES)
def test_the_shared_random_generator_is_neither_used_nor_seeded(name: str) -> None:
    before = random.getstate()
    play_episode(game(name), "random", 3)
    assert random.getstate() == before


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("player", ["random", "expert"])
def test_texts_and_replies_are_written_with_the_vocabulary_alone(name: str, player: str) -> None:
    for options in ({}, OTHER_OPTIONS[name]):
        env = game(name, **options)
        for seed in range(60):
            episode = play_episode(env, player, seed)
            assert not unknown_words(env, (*episode.texts, *episode.replies), **options)


@pytest.mark.parametrize("name", GAMES)
def test_a_vocabulary_holds_each_word_once_and_is_small(name: str) -> None:
    words = game(name).vocabulary()
    assert words == sorted(set(words))
    assert len(words) < 200


@pytest.mark.parametrize("name", GAMES)
def test_what_is_not_understood_is_answered_and_costs_a_turn(name: str) -> None:
    env = game(name)
    episode = play_episode(env, lambda text: "hm", 5)
    assert len(episode.replies) == env.max_turns
    assert episode.end == "done"
    assert not episode.success
    assert set(episode.rewards) == {0.0}
    assert "I read n" in episode.texts[1]
    assert episode.texts[-1] == "There are no turns left."


@pytest.mark.parametrize("name", GAMES)
def test_a_step_after_the_end_is_refused_until_the_next_reset(name: str) -> None:
    env = game(name)
    with pytest.raises(BadEnvironment, match="was never begun"):
        env.step("left")
    play_episode(env, "expert", 0)
    with pytest.raises(BadEnvironment, match="is over, or was never begun: call reset before the next step"):
        env.step("left")
    assert play_episode(env, "expert", 0).success


@pytest.mark.parametrize("name", GAMES)
def test_equal_states_have_equal_keys(name: str) -> None:
    one, other = game(name), game(name)
    one.reset(7)
    other.reset(7)
    begun = one.state_key()
    assert begun == other.state_key()
    one.step("hm")
    assert one.state_key() == begun, "nothing has happened"
    other.step(other.expert_reply())
    assert other.state_key() != begun


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(sorted(GAMES)),
    seed=st.integers(0, 2**63 - 1),
    replies=st.lists(
        st.one_of(
            st.text(max_size=40),
            st.sampled_from(
                ["left", "UP!", "50", "-3", "search", "search red", "look 2", "buy", "buy 0", "red", "answer"]
            ),
            st.from_regex(r"(calculate|answer|look|buy|search)[ -]?[0-9]{0,30} ?[-+*]? ?[0-9]{0,12}", fullmatch=True),
        ),
        min_size=16,
        max_size=16,
    ),
)
def test_whatever_is_said_nothing_raises_and_every_text_is_in_the_vocabulary(
    name: str, seed: int, replies: list[str]
) -> None:
    env = game(name)
    episode = play_episode(env, scripted_player(iter(replies)), seed)
    assert all(math.isfinite(reward) for reward in episode.rewards)
    assert episode.end == "done"
    assert not unknown_words(env, episode.texts)
    env.reset(seed)
    assert isinstance(env.state_key(), str)


# -- by hand --------------------------------------------------------------------------------------------------------


def played(env: TextGame, seed: int, *replies: str) -> list[tuple[str, float]]:
    """What came of each reply."""
    episode = play_episode(env, scripted_player(iter(replies)), seed)
    return list(zip(episode.texts[1:], episode.rewards, strict=True))


def test_guess_says_higher_and_lower() -> None:
    env = Guess(low=1, high=7, turns=5)
    assert env.reset(1) == "I think of a number from 1 to 7. You have 5 guesses. Reply with only a number."
    assert played(env, 1, "My guess is 5.", "1", "8 or 9", "none", "3") == [
        ("My number is lower than 5.", 0.0),
        ("My number is higher than 1.", 0.0),
        ("That number is not from 1 to 7.", 0.0),
        ("I read no number. Reply with only a number from 1 to 7.", 0.0),
        ("There are no turns left.", 0.0),
    ]
    assert played(env, 1, "2") == [("Right, my number is 2.", 1.0)]


def test_climb_asks_for_more_than_the_last_answer() -> None:
    env = Climb()
    assert env.reset(0) == "Reply with only a number that is larger than 50 and smaller than 100."
    ask = "Reply with only a number that is larger than {} and smaller than 100."
    assert played(env, 0, "57", "58 is larger", "99") == [
        (ask.format(57), 0.3),
        (ask.format(58), 0.3),
        ("All right.", 1.0),
    ]
    assert played(env, 0, "99", "100", "99") == [
        (ask.format(99), 0.3),
        (f"That was wrong. {ask.format(99)}", 0.0),
        ("There are no turns left.", 0.0),
    ]
    assert not play_episode(env, scripted_player(iter(["5", "60", "70"])), 0).success


def test_the_corridor_has_a_door_and_two_ends() -> None:
    env = Corridor()
    assert env.reset(2) == "You stand at 0. The door is at 3. Reply with only left or right."
    assert played(env, 2, "left", "right", "right", "RIGHT.") == [
        ("There is a wall. You stand at 0. The door is at 3. Reply with only left or right.", 0.0),
        ("You stand at 1. The door is at 3. Reply with only left or right.", 0.0),
        ("You stand at 2. The door is at 3. Reply with only left or right.", 0.0),
        ("You are at the door.", 1.0),
    ]


def test_a_light_that_is_on_goes_off_again() -> None:
    env = Lights()
    ask = "Off: {}. Press one that is off."
    assert env.reset(0) == ask.format("red, white, yellow")
    assert played(env, 0, "green", "green", "red") == [
        (ask.format("red, green, white, yellow"), 0.0),
        (ask.format("red, white, yellow"), 1 / 3),
        ("There are no turns left.", 1 / 3),
    ]
    won = play_episode(env, scripted_player(iter(["white", "yellow", "red"])), 0)
    assert (won.rewards, won.texts[-1], won.success) == ((1 / 3, 1 / 3, 1 / 3), "All lights are on.", True)


def test_pressing_a_light_again_is_no_way_to_success() -> None:
    lost = play_episode(Lights(), scripted_player(iter(["green", "green", "green"])), 0)
    assert not lost.success


def test_the_calculator_does_one_operation_at_a_time() -> None:
    env = Calculator()
    asked = 'Reply with "calculate a + b" (or - or *) for one operation, or with "answer x".'
    assert env.reset(3) == f"What is (5 * 4) - 9? {asked}"
    assert played(env, 3, "calculate 5*4", "Calculate 90 + 10", "I calculate 3 - 9", "answer: 11") == [
        ("The result is 20.", 0.0),
        ("The result is more than 99.", 0.0),
        ("The result is less than 0.", 0.0),
        ("Right, it is 11.", 1.0),
    ]
    assert played(env, 3, "answer 12") == [("Wrong, it is 11.", 0.0)]
    assert played(env, 3, "calculate 7", "answer", "7") == [
        ('I read no operation of two numbers. Reply with "calculate a + b".', 0.0),
        ('I read no number. Reply with "answer x".', 0.0),
        ('I read neither. Reply with "calculate a + b" or with "answer x".', 0.0),
    ]


def test_the_lake_has_edges_holes_and_a_goal() -> None:
    env = FrozenLake()
    rules, *rows, ask = env.reset(3).split("\n")
    assert rules == "Walk over the ice to the goal. P is you, I is ice, H is a hole, G is the goal."
    assert rows == ["I I H I", "I H I P", "H G I I", "I I H I"]
    assert ask == "Reply with only left, right, up or down."
    assert played(env, 3, "right")[0][0].split("\n")[:3] == ["You are at the edge.", "I I H I", "I H I P"]
    assert played(env, 3, "left", "left") == [
        ("You went left.\nI I H I\nI H P I\nH G I I\nI I H I\n" + ask, 0.0),
        ("You fell into a hole.", 0.0),
    ]
    assert played(env, 3, "left", "down", "left")[-1] == ("You are at the goal.", 1.0)


def test_slippery_ice_goes_sideways_as_the_seed_says() -> None:
    env = FrozenLake(slippery=1.0, holes=0)
    episodes = [play_episode(env, "expert", seed) for seed in range(20)]
    assert episodes == [play_episode(FrozenLake(slippery=1.0, holes=0), "expert", seed) for seed in range(20)]
    for episode in episodes:
        for reply, text in zip(episode.replies, episode.texts[1:], strict=True):
            assert not text.startswith(f"You went {reply}.")


def test_a_box_is_pushed_onto_its_target_and_off_again() -> None:
    env = Sokoban()
    first = env.reset(3).split("\n")[1:5]
    assert sum(row.count("B") for row in first) == sum(row.count("T") for row in first) == 1
    won = play_episode(env, "expert", 3)
    assert won.rewards[-1] == 1.1
    assert won.texts[-1] == "Every box is on a target."
    assert set(won.rewards[:-1]) <= {0.0}


def test_a_box_that_leaves_its_target_takes_its_reward_back() -> None:
    env = Sokoban(size=5, boxes=2, walls=0, turns=40)
    rng = random.Random(0)
    for seed in range(40):
        episode = play_episode(env, lambda text: env.random_reply(rng), seed)
        on_target = ["".join(text.split("\n")[1:6]).count("D") for text in episode.texts]
        for turn, reward in enumerate(episode.rewards):
            if turn + 1 < len(episode.rewards):
                assert reward == pytest.approx(0.1 * (on_target[turn + 1] - on_target[turn]))


def test_the_shop_pays_a_quarter_for_each_wish() -> None:
    env = Shop()
    assert env.reset(3).startswith("Buy a blue hat of size medium for at most 40. Reply with search")
    assert played(env, 3, "search blue hat", "look 4", "look 9", "buy 9") == [
        ("Found 4, 5, 9.", 0.0),
        ("4 is a blue hat, size large, price 15.", 0.0),
        ("9 is a blue hat, size medium, price 40.", 0.0),
        ("You bought 9: 4 of 4 wishes are met.", 1.0),
    ]
    assert played(env, 3, "search", "search green hat blue", "look 11", "buy it", "buy 4") == [
        ("I know these words: shirt, hat, coat, bag, red, blue, green, black, small, medium, large.", 0.0),
        ("Found nothing.", 0.0),
        ("I read no number of 1 to 10.", 0.0),
        ("I read no number of 1 to 10.", 0.0),
        ("You bought 4: 3 of 4 wishes are met.", 0.75),
    ]


# -- options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("guess", {"high": 1}, "high must be a whole number >= 2, received 1"),
        ("guess", {"turns": True}, "turns must be a whole number >= 1, received True"),
        ("lights", {"lights": 9}, "lights must be at most 8, received 9"),
        ("lights", {"lights": 2}, "lights must be a whole number >= 3, received 2"),
        ("corridor", {"length": 5}, "length must be a whole number >= 6, received 5"),
        ("climb", {"bound": 83}, "bound must be a whole number >= 84, received 83"),
        ("frozen_lake", {"holes": 8}, "holes must be at most 7 on a lake of size 4, received 8"),
        ("frozen_lake", {"slippery": 1.5}, "slippery must be a probability, received 1.5"),
        ("sokoban", {"boxes": 4}, "4 boxes and 2 walls need 11 cells: too many for a grid of size 4"),
        ("shop", {"turns": 4}, "3 alike things need at least 5 turns, received 4"),
        ("calculator", {"largest": 5}, "largest must be a whole number >= 18, received 5"),
    ],
)
def test_options_that_cannot_work_are_refused_in_a_line(name: str, options: dict[str, object], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        game(name, **options)


# -- players --------------------------------------------------------------------------------------------------------


def test_an_episode_holds_one_text_more_than_replies() -> None:
    episode = play_episode(Corridor(), "random", 4)
    assert len(episode.texts) == len(episode.replies) + 1 == len(episode.rewards) + 1


def test_a_player_may_leave() -> None:
    def leaves(text: str) -> str:
        raise PlayerLeft

    episode = play_episode(Corridor(), leaves, 4)
    assert (episode.end, episode.replies, episode.success) == (LEFT, (), False)


def test_a_game_without_its_own_count_is_cut_after_max_turns() -> None:
    class Endless:
        max_turns = 3

        def reset(self, seed: int) -> str:
            return "go on"

        def step(self, reply: str) -> object:
            from headway.agents import Step

            return Step("go on", reward=0.5)

    episode = play_episode(Endless(), lambda text: "yes", 0)  # type: ignore[arg-type]
    assert (episode.end, len(episode.replies), episode.success) == ("turns", 3, True)


def test_a_player_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="unknown player 'expart'; did you mean 'expert'"):
        player_of(Corridor(), "expart", 0)

    class Plain:
        max_turns = 1

    with pytest.raises(ValueError, match="Plain has no expert player: it has no method expert_reply"):
        player_of(Plain(), "expert", 0)  # type: ignore[arg-type]
