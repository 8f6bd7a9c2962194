"""Environments of other libraries, played as ours. Tests of a library run where it is installed."""

from __future__ import annotations

import importlib.util
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from waiting import patient

from headway.agents.env import AgentEnv, BadEnvironment, EnvFactory, Step, checked_step, checked_text
from headway.agents.loading import load_env
from headway.agents.stepping import StepDeadlines, build_stepping

pytestmark = pytest.mark.timeout(120)


def needs(module: str, package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(missing, reason=f"a library of games is not installed: pip install {package}")


def lenient(function: Callable[..., None]) -> Callable[..., None]:
    """What those libraries warn of is not our matter."""
    marked: Callable[..., None] = pytest.mark.filterwarnings("ignore")(function)
    return marked


def random_game(env: AgentEnv, seed: int, replies: Callable[[AgentEnv, random.Random], str]) -> list[Any]:
    """All that is said in one episode of a player without a plan: a text, then replies and steps."""
    rng = random.Random(seed)
    said: list[Any] = [checked_text(env.reset(seed), "game")]
    for _ in range(env.max_turns):
        reply = replies(env, rng)
        step = checked_step(env.step(reply), "game")
        said += [reply, step]
        if step.done:
            break
    return said


def own_random_reply(env: AgentEnv, rng: random.Random) -> str:
    reply: str = env.random_reply(rng)  # type: ignore[attr-defined]
    return reply


def assert_one_seed_is_one_game(
    factory: EnvFactory, replies: Callable[[AgentEnv, random.Random], str] = own_random_reply, seeds: int = 3
) -> None:
    expected = [random_game(factory(), seed, replies) for seed in range(seeds)]
    assert [random_game(factory(), seed, replies) for seed in range(seeds)] == expected
    env = factory()
    random_game(env, 9, replies)
    assert random_game(env, 0, replies) == expected[0], "whatever was played before"
    stepping = build_stepping("processes(1)", factory, deadlines=StepDeadlines(begin_s=patient(90)))
    try:
        games = [stepping.begin() for _ in expected]
        played: list[list[Any]] = [[game.reset(seed)] for seed, game in enumerate(games)]
        for turn in range(1, max(map(len, expected)), 2):  # a step of each in turn, all in one process
            for game, said, told in zip(games, expected, played, strict=True):
                told += [said[turn], game.step(said[turn])] if turn < len(said) else []
        assert played == expected
    finally:
        stepping.close()


# -- Gymnasium --------------------------------------------------------------------------------------


def test_frozen_lake_is_shown_as_its_map_and_played_in_words() -> None:
    env = load_env("gymnasium:FrozenLake-v1", {"is_slippery": False})()
    assert env.max_turns == 100
    assert env.reset(1) == "[S]FFF\nFHFH\nFFFH\nHFFG\nReply with one of: left, down, right, up."
    assert env.step("I go Down.").text == "  (Down)\nSFFF\n[F]HFH\nFFFH\nHFFG"
    bad = env.step("hm 9")
    assert bad.text == "This is no action. Reply with one of: left, down, right, up." and bad.info["bad_replies"] == 1
    assert env.step("1").text.endswith("SFFF\nFHFH\n[F]FFH\nHFFG")
    for reply in ("right", "down", "right"):
        env.step(reply)
    end = env.step("right")
    assert (end.reward, end.done, end.info["truncated"]) == (1.0, True, 0.0)
    with pytest.raises(BadEnvironment, match="FrozenLake-v1 is over, or was never begun"):
        env.step("right")


def test_frozen_lake_that_is_slippery_is_one_game_for_one_seed() -> None:
    assert_one_seed_is_one_game(load_env("gymnasium:FrozenLake-v1"))


def test_a_limit_of_time_is_an_end_that_was_cut() -> None:
    env = load_env("gymnasium:FrozenLake-v1", {"is_slippery": False, "max_episode_steps": 2})()
    assert env.max_turns == 2
    env.reset(1)
    env.step("left")
    end = env.step("left")
    assert (end.reward, end.done, end.info["truncated"]) == (0.0, True, 1.0)


def test_observations_without_a_picture_are_printed() -> None:
    env = load_env("gymnasium:Blackjack-v1")()
    assert env.reset(1).endswith("Reply with one of: stick, hit.")
    assert env.step("stick").done
    numbers = load_env("gymnasium:CartPole-v1")()
    assert numbers.reset(1).endswith("]\nReply with a whole number from 0 to 1.")


class Parrot(gymnasium.Env[str, str]):
    """Wants to hear the word that it says."""

    observation_space = gymnasium.spaces.Text(20)
    action_space = gymnasium.spaces.Text(max_length=5, charset="abcde")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.word = "".join(self.np_random.choice(list("abcde"), 3))
        return self.word, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "said", float(action == self.word), action == self.word, False, {"length": len(action), "other": "x"}


@pytest.fixture
def parrot() -> str:
    if "ParrotOfTest-v0" not in gymnasium.registry:
        gymnasium.register("ParrotOfTest-v0", entry_point=Parrot, disable_env_checker=True)
    return "gymnasium:ParrotOfTest-v0"


def test_text_spaces_are_texts(parrot: str) -> None:
    env = load_env(parrot, {"instructions": "Say it."})()
    word = env.reset(3).removesuffix("\nSay it.")
    assert set(word) <= set("abcde") and env.max_turns == 50
    assert env.step("xyz").text == "This is no action. Say it."
    assert env.step("ab") == Step("said", 0.0, info={"length": 2, "bad_replies": 1})
    end = env.step(f" {word} ")
    assert (end.reward, end.done) == (1.0, True)
    assert load_env(parrot)().reset(1).endswith("Reply with a text of 1 to 5 characters.")


def test_what_cannot_be_played_in_words_is_one_line(parrot: str) -> None:
    for spec, options, line in (
        ("gymnasium:FrozenLak-v1", {}, r"gymnasium:FrozenLak-v1: Environment `FrozenLak` doesn't exist"),
        ("gymnasium:Pendulum-v1", {}, r"gymnasium:Pendulum-v1 has actions of Box\(.*; allowed: Text and Discrete"),
        ("gymnasium:FrozenLake-v1", {"action_names": ["a"]}, r"has actions of Discrete\(4\), and 1 names are given"),
        (parrot, {"action_names": ["a"]}, r"has actions of Text\(.*, and 1 names are given"),
    ):
        with pytest.raises(BadEnvironment, match=line):
            load_env(spec, options)()


# -- GEM --------------------------------------------------------------------------------------------


@needs("gem", "gem-llm")
@lenient
def test_gem_games_are_played_and_seeded_globally_so_not_in_threads() -> None:
    env = load_env("gem:game:GuessTheNumber-v0-easy")()
    first = env.reset(3)
    assert "Guess The Number" in first and first.endswith("Enter your next guess.")
    low, high, reward = 1, 10, 0.0
    for _ in range(env.max_turns):
        guess = (low + high) // 2
        step = checked_step(env.step(f"\\boxed{{{guess}}}"), "gem")
        if step.done:
            reward = step.reward
            break
        assert "Enter your next guess." in step.text
        low, high = (guess + 1, high) if "higher" in step.text else (low, guess - 1)
    assert reward == 1.0 and step.text.startswith("Congratulations")
    with pytest.raises(BadEnvironment, match="is over"):
        env.step("x")
    with pytest.raises(BadEnvironment, match="cannot be stepped in threads"):
        build_stepping("threads(2)", load_env("gem:game:GuessTheNumber-v0-easy")).begin()


@needs("gem", "gem-llm")
@lenient
@pytest.mark.parametrize(
    "name",
    ["GuessTheNumber-v0-random", "Mastermind-v0-easy", "Minesweeper-v0-easy", "Sokoban-v0-easy", "Game2048-v0-easy"],
)
def test_one_seed_is_one_game_of_gem(name: str) -> None:
    assert_one_seed_is_one_game(load_env(f"gem:game:{name}"))


@needs("gem", "gem-llm")
@lenient
def test_gem_tasks_of_one_turn_end_without_a_mark() -> None:
    env = load_env("gem:rg:base_conversion")()
    assert env.max_turns == 1 and env.reset(1) == env.reset(1)
    end = checked_step(env.step("\\boxed{0}"), "gem")
    assert end.done and end.text == ""


@needs("gem", "gem-llm")
@lenient
def test_an_unknown_game_of_gem_is_one_line() -> None:
    with pytest.raises(BadEnvironment, match=r"unknown environment of GEM 'game:Sokobann-v0-easy'; did you mean"):
        load_env("gem:game:Sokobann-v0-easy")()


@needs("gem", "gem-llm")
@lenient
def test_a_game_of_gem_without_its_word_list_is_one_line_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nltk.data.path", [])
    with pytest.raises(
        BadEnvironment, match=r"^gem:game:Hangman-v0-easy needs data of NLTK .*: python -m nltk.downloader \w+$"
    ):
        load_env("gem:game:Hangman-v0-easy")()


@needs("gem", "gem-llm")
@lenient
def test_only_games_of_gem_that_know_their_actions_have_a_random_player() -> None:
    assert hasattr(load_env("gem:game:Sokoban-v0-easy")(), "random_reply")
    assert not hasattr(load_env("gem:game:Sudoku-v0-easy")(), "random_reply")


# -- TextArena --------------------------------------------------------------------------------------


@needs("textarena", "textarena")
@lenient
def test_textarena_says_only_what_is_new_and_rewards_at_the_end() -> None:
    env = load_env("textarena:FrozenLake-v0")()
    first = env.reset(5)
    assert first.startswith("Welcome to Frozen Lake!") and "Current Board" in first
    step = checked_step(env.step("hm"), "textarena")
    assert "invalid move" in step.text and "Welcome" not in step.text and "hm" not in step.text.split()
    end = checked_step(env.step("hm"), "textarena")
    assert end.done and end.info["invalid_move"] == 1 and "Invalid Move" in end.text
    with pytest.raises(BadEnvironment, match="is over"):
        env.step("[up]")


@needs("textarena", "textarena")
@lenient
def test_a_game_of_textarena_can_be_won() -> None:
    env = load_env("textarena:TowerOfHanoi-v0")()
    env.reset(1)
    moves = ["A C", "A B", "C B", "A C", "B A", "B C", "A C"]
    steps = [checked_step(env.step(move), "textarena") for move in moves]
    assert steps[-1].done and steps[-1].reward == 1.0 and not any(step.done for step in steps[:-1])


@needs("textarena", "textarena")
@lenient
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("FrozenLake-v0", ["up", "down", "left", "right"]),
        ("Sokoban-v0", ["up", "down", "left", "right"]),
        ("GuessTheNumber-v0", ["3", "9", "14"]),
        ("Blackjack-v0", ["hit", "stand"]),
        ("Mastermind-v0", ["1 2 3 4", "4 5 6 1"]),
        ("ThreeCardMonte-v0", ["x"]),  # gives its reward and its reason in the wrong order
        ("Countdown-v0", ["x"]),  # says a number where a text belongs
    ],
)
def test_one_seed_is_one_game_of_textarena(name: str, words: list[str]) -> None:
    assert_one_seed_is_one_game(load_env(f"textarena:{name}"), lambda env, rng: rng.choice(words))


@needs("textarena", "textarena")
@lenient
def test_what_textarena_has_not_for_one_player_is_one_line() -> None:
    with pytest.raises(BadEnvironment, match=r"unknown environment of TextArena 'FrozenLak-v0'; did you mean"):
        load_env("textarena:FrozenLak-v0")()
    with pytest.raises(BadEnvironment, match=r"textarena:TicTacToe-v0 is not for one player"):
        load_env("textarena:TicTacToe-v0")()


# -- OpenEnv ----------------------------------------------------------------------------------------


@needs("openenv", "openenv-core")
@lenient
def test_openenv_is_played_in_process_with_its_text_field() -> None:
    env = load_env("openenv:openenv_echo:EchoEnvironment", {"turns": 3, "max_turns": 4})()
    word = env.reset(7).removeprefix("Say ").removesuffix(".")
    assert env.max_turns == 4
    assert env.step("hello") == Step("hello", 0.0, info={"count": 1, "bad_replies": 0})
    wrong = env.step('{"massage": "x"}')
    assert wrong.text.startswith("This reply is no action: ") and wrong.info == {"bad_replies": 1}
    end = env.step(f'{{"message": "{word}"}}')
    assert (end.text, end.reward, end.done) == (word, 1.0, True)
    with pytest.raises(BadEnvironment, match="is over"):
        env.step("x")


@needs("openenv", "openenv-core")
@lenient
def test_openenv_without_a_text_is_shown_as_json_and_numbers_are_read() -> None:
    env = load_env("openenv:openenv_echo:GuessEnvironment")()
    assert env.reset(1) == '{"low":1,"high":9}'
    assert env.step("I say 4!").text == '{"low":4,"high":9}'
    assert "there is no number in it" in env.step("four").text


@needs("openenv", "openenv-core")
@lenient
def test_one_seed_is_one_game_of_openenv() -> None:
    factory = load_env("openenv:openenv_echo:EchoEnvironment")
    assert_one_seed_is_one_game(factory, lambda env, rng: f"word {rng.randrange(9)}")


@needs("openenv", "openenv-core")
@lenient
def test_what_is_no_environment_of_openenv_is_one_line() -> None:
    for spec, line in (
        ("openenv:openenv_echo:EchoEnvironmnt", "did you mean 'EchoEnvironment'"),
        ("openenv:openenv_echo:EchoAction", "is no class derived from openenv's Environment"),
        ("openenv:EchoEnvironment", "is module:Class, received 'EchoEnvironment'"),
    ):
        with pytest.raises(BadEnvironment, match=line):
            load_env(spec)()


# -- SkyRL-Gym --------------------------------------------------------------------------------------

ROWS = [
    {"prompt": [{"role": "user", "content": f"What is {n} + {n}?"}], "reward_spec": {"ground_truth": str(2 * n)}}
    for n in range(1, 6)
]


@needs("skyrl_gym", "skyrl-gym")
@lenient
def test_skyrl_gym_asks_a_row_and_scores_the_reply(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    env = load_env("skyrl:gsm8k", {"rows": str(path)})()
    number = int(env.reset(4).split()[2])
    end = checked_step(env.step(f"#### {2 * number}"), "skyrl")
    assert (end.reward, end.done, env.max_turns) == (1.0, True, 1)
    with pytest.raises(BadEnvironment, match="is over"):
        env.step("x")
    env.reset(4)
    assert env.step("#### 0").reward == 0.0
    assert len({env.reset(seed) for seed in range(30)}) == 5


@needs("skyrl_gym", "skyrl-gym")
@lenient
def test_skyrl_gym_has_several_turns_where_its_environment_does() -> None:
    factory = load_env("skyrl:gsm8k_multi_turn", {"rows": ROWS, "max_turns": 3})
    env = factory()
    env.reset(1)
    first = checked_step(env.step("I think"), "skyrl")
    assert not first.done and first.text and env.max_turns == 3
    assert_one_seed_is_one_game(factory, lambda env, rng: f"#### {rng.randrange(12)}")


@needs("skyrl_gym", "skyrl-gym")
@lenient
def test_rows_that_skyrl_gym_cannot_ask_are_one_line(tmp_path: Path) -> None:
    for options, line in (
        ({"rows": str(tmp_path / "none")}, "rows must be a file of JSON lines"),
        ({"rows": []}, "needs at least one row"),
        ({"rows": [{"prompt": []}]}, "row 0 has no prompt"),
    ):
        with pytest.raises(BadEnvironment, match=line):
            load_env("skyrl:gsm8k", options)()
    with pytest.raises(BadEnvironment, match="unknown environment of SkyRL-Gym 'gsm8'"):
        load_env("skyrl:gsm8", {"rows": ROWS})()


# -- what is not installed --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "module", "line"),
    [
        ("gem:game:X", "gem", "needs gem: pip install gem-llm"),
        ("textarena:X", "textarena", "needs textarena: pip install textarena"),
        ("openenv:a:B", "openenv", "needs openenv: pip install openenv-core"),
        ("skyrl:x", "skyrl_gym", "needs skyrl_gym: pip install skyrl-gym"),
    ],
)
def test_a_library_that_is_not_installed_is_one_line_with_its_command(spec: str, module: str, line: str) -> None:
    if importlib.util.find_spec(module) is None:
        with pytest.raises(ValueError, match=line):
            load_env(spec)
