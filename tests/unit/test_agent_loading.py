"""Environments by name: what is found, what travels to other processes, and one line for what cannot be found."""

from __future__ import annotations

import math
import os
import pickle
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from headway.agents import (
    BadEnvironment,
    EnvironmentLost,
    Step,
    checked_env,
    checked_step,
    checked_text,
    load_env,
)
from headway.agents.env import is_success
from headway.agents.games import GAMES
from headway.agents.loading import ADAPTERS, Adapter, adapted, env_options
from headway.agents.players import play_episode

MINE = """
import random
from headway.agents import Step

class Coin:
    max_turns = 1
    def __init__(self, sides: int = 2):
        if sides < 2:
            raise ValueError("a coin has\\ntwo sides")
        self.sides = sides
    def reset(self, seed: int) -> str:
        self.side = random.Random(seed).randrange(self.sides)
        return f"Which of {self.sides} sides?"
    def step(self, reply: str) -> Step:
        return Step("", reward=float(reply == str(self.side)), done=True)

class Needy:
    def __init__(self, place): ...
    def step(self, reply): ...

class Unreachable(Coin):
    def __init__(self):
        raise ConnectionRefusedError("nobody listens")

class NotInstalled(Coin):
    def __init__(self):
        import a_package_that_is_missing

NUMBER = 3
def make_coin(**options): return Coin(**options)
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    file = tmp_path / "my_games.py"
    file.write_text(MINE)
    return file


def line_of(spec: str, **options: Any) -> str:
    with pytest.raises(ValueError) as refused:
        load_env(spec, options)()
    text = str(refused.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("name", GAMES)
def test_a_game_of_our_own_is_found_by_its_name(name: str) -> None:
    assert type(load_env(name)()).__name__ == GAMES[name]


def test_every_file_of_a_game_is_listed() -> None:
    folder = Path(str(import_module("headway.agents.games").__file__)).parent
    parts = {"__init__", "text_game", "text_game_grid"}
    assert {path.stem for path in folder.glob("*.py")} - parts == set(GAMES)


def test_options_go_to_the_constructor_as_keywords() -> None:
    assert load_env("guess", {"high": 7})().reset(0).startswith("I think of a number from 1 to 7.")


@pytest.mark.parametrize("name", ["Coin", "make_coin"])
def test_a_class_or_a_function_in_a_file_is_found_and_travels_by_name(mine: Path, name: str) -> None:
    factory = pickle.loads(pickle.dumps(load_env(f"{mine}:{name}", {"sides": 3})))
    assert play_episode(factory(), lambda text: "1", 0).texts[0] == "Which of 3 sides?"


def test_a_file_is_found_from_another_folder_too(mine: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(mine.parent)
    factory = load_env("my_games.py:Coin")
    monkeypatch.chdir("/")
    assert factory().max_turns == 1


def test_a_file_that_has_changed_is_loaded_again(mine: Path) -> None:
    assert load_env(f"{mine}:Coin")().max_turns == 1
    mine.write_text(MINE.replace("max_turns = 1", "max_turns = 5"))
    os.utime(mine, ns=(1, 1))
    assert load_env(f"{mine}:Coin")().max_turns == 5


def test_a_module_that_can_be_imported_is_found() -> None:
    assert load_env("headway.agents.games.corridor:Corridor")().max_turns == 5


def test_a_game_nobody_knows_is_answered_with_the_nearest() -> None:
    line = line_of("ligths")
    assert line.startswith("unknown game 'ligths'; did you mean 'lights'? allowed: calculator, climb,")
    assert line.endswith("; or file.py:Class, module:Class, library:ID")


def test_what_is_wrong_with_a_file_is_said_in_a_line(mine: Path) -> None:
    assert line_of(f"{mine}") == f"'{mine}' names a file and no class in it; allowed: {mine}:Class"
    assert line_of("nowhere.py:Coin") == "environment file nowhere.py does not exist"
    known = "allowed: Coin, Needy, NotInstalled, Unreachable"
    assert line_of(f"{mine}:Con") == f"unknown environment of {mine} 'Con'; did you mean 'Coin'? {known}"
    assert line_of(f"{mine}:NUMBER").endswith(
        ":NUMBER is a int; an environment is a class, or a function that makes one"
    )
    assert line_of(f"{mine}:").startswith("an environment is a game's name, file.py:Class,")
    broken = mine.with_name("broken.py")
    broken.write_text("import math\nmath.nothing")
    what = "AttributeError: module 'math' has no attribute 'nothing'"
    assert line_of(f"{broken}:Coin") == f"environment file {broken} cannot be loaded: {what}"
    what = "ModuleNotFoundError: No module named 'no_such_module'"
    assert line_of("no_such_module:Coin") == f"environment module no_such_module cannot be loaded: {what}"


def test_what_is_wrong_with_options_is_said_in_a_line(mine: Path) -> None:
    spec = f"{mine}:Coin"
    known = "did you mean 'sides'? allowed: sides"
    assert line_of(spec, side=2) == f"unknown option of environment {spec} 'side'; {known}"
    assert (
        line_of(f"{mine}:Unreachable", sides=2) == f"environment {mine}:Unreachable takes no options, received 'sides'"
    )
    assert line_of(f"{mine}:Needy") == f"environment {mine}:Needy needs options that are not given: place"


def test_a_constructor_that_raises_is_named_in_a_line(mine: Path) -> None:
    with pytest.raises(BadEnvironment) as refused:
        load_env(f"{mine}:Coin", {"sides": 1})()
    assert str(refused.value) == f"environment {mine}:Coin cannot be made: ValueError: a coin has two sides"
    assert line_of(f"{mine}:Needy", place=1) == f"environment {mine}:Needy is a Needy without reset()"
    line = f"environment {mine}:NotInstalled needs a_package_that_is_missing: pip install a_package_that_is_missing"
    assert line_of(f"{mine}:NotInstalled") == line


def test_a_place_that_cannot_be_reached_may_be_reached_next_time(mine: Path) -> None:
    with pytest.raises(EnvironmentLost) as lost:
        load_env(f"{mine}:Unreachable")()
    line = f"environment {mine}:Unreachable cannot be made: ConnectionRefusedError: nobody listens"
    assert lost.value.what == str(lost.value) == line


def test_a_library_that_is_not_installed_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "adapter_of_gem.py").write_text("import gem_that_is_missing.envs\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError) as refused:
        adapted(Adapter("adapter_of_gem:make", "gem-llm"), "gem:game:Sokoban-v0")
    line = "environment gem:game:Sokoban-v0 needs gem_that_is_missing: pip install gem-llm"
    assert str(refused.value) == line


def test_a_library_needs_the_name_of_an_environment() -> None:
    for prefix in ADAPTERS:
        assert line_of(f"{prefix}:") == f"'{prefix}:' names no environment; allowed: {prefix}:ID"


def test_options_of_an_environment_are_a_json_object() -> None:
    assert env_options('{"size": 4}') == env_options({"size": 4}) == {"size": 4}
    assert env_options("") == env_options(None) == {}
    for text in ("[1]", "{'size': 4}", "4"):
        with pytest.raises(ValueError, match="env_options must be a JSON object"):
            env_options(text)


# -- what an environment returns -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (None, "step must return headway.Step(text, reward, done), received None"),
        (
            ("text", 0.0, False),
            "step must return headway.Step(text, reward, done), received ('text', 0.0, False) (tuple)",
        ),
        (Step("  "), "step returned an empty text; only the last one of an episode may be empty"),
        (Step(5), "the text of a step is 5 (int)"),  # type: ignore[arg-type]
        (Step("on", reward=math.nan), "the reward of a step is nan (float); allowed: a finite number"),
        (Step("on", reward=math.inf), "the reward of a step is inf (float); allowed: a finite number"),
        (Step("on", reward=-1e39), "the reward of a step is -1e+39 (float); allowed: at most 3.4e+38"),
        (Step("on", reward=None), "the reward of a step is None; allowed: a finite number"),  # type: ignore[arg-type]
        (Step("on", reward="1"), "the reward of a step is '1' (str); allowed: a finite number"),  # type: ignore[arg-type]
        (Step("on", done="False"), "done of a step is 'False' (str); allowed: True or False"),  # type: ignore[arg-type]
        (Step("on", success="no"), "success of a step is 'no' (str); allowed: True or False"),  # type: ignore[arg-type]
        (Step("on", info=["size"]), "the info of a step is ['size'] (list); allowed: a mapping of numbers"),  # type: ignore[arg-type]
        (Step("on", info={"size": math.nan}), "info['size'] is nan (float); allowed: a finite number"),
    ],
)
def test_a_step_that_cannot_be_learned_from_is_refused_in_a_line(value: object, line: str) -> None:
    with pytest.raises(BadEnvironment) as refused:
        checked_step(value, "maze")
    assert str(refused.value) == f"environment maze: {line}"


def test_a_step_is_returned_with_plain_numbers() -> None:
    import numpy as np

    given = Step("", reward=np.float32(0.5), done=np.bool_(True), success=np.bool_(False), info={"moves": np.int64(3)})  # type: ignore[arg-type]
    checked = checked_step(given, "maze")
    assert checked == Step("", 0.5, True, False, {"moves": 3.0})
    assert [type(one) for one in (checked.reward, checked.done, checked.success)] == [float, bool, bool]
    assert pickle.loads(pickle.dumps(checked)) == checked


def test_half_a_character_becomes_a_question_mark() -> None:
    """A lone surrogate: Python's texts may have it, UTF-8 has not, and so no tokenizer and no file takes it."""
    assert checked_text("a \ud800 b", "maze") == "a ? b"
    assert checked_step(Step("\udfff", done=True), "maze").text == "?"


@pytest.mark.parametrize(("value", "what"), [(None, "must return a text, received None"), ("\n", "an empty text")])
def test_a_reset_that_says_nothing_is_refused(value: object, what: str) -> None:
    with pytest.raises(BadEnvironment, match=f"environment maze: reset .*{what}"):
        checked_text(value, "maze")


def test_an_environment_without_a_limit_is_refused() -> None:
    class Endless:
        def reset(self, seed: int) -> str:
            return "go"

        def step(self, reply: str) -> Step:
            return Step("go")

    with pytest.raises(BadEnvironment, match="max_turns must be a whole number >= 1, received None"):
        checked_env(Endless(), "endless")


def test_the_word_of_the_environment_counts_before_the_rewards() -> None:
    assert [is_success(1.0, None), is_success(0.9, None), is_success(2.0, False), is_success(0.0, True)] == [
        True,
        False,
        False,
        True,
    ]
    assert is_success(1 / 3 + 1 / 3 + 1 / 3, None)
