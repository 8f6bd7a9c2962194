"""Reward functions: each kind is called as its users know it, and several are added up."""

from __future__ import annotations

import importlib.util
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.llm.tasks.reward_functions import (
    RewardFunctions,
    RewardQuestion,
    answered,
    load_rewards,
    named_rewards,
)
from headway.llm.tasks.reward_functions_user_rewards import UserReward
from headway.llm.tasks.rewards import RewardError, Scored, parts_of
from headway.llm.tasks.tasks import Prompt, load_task, user_says

SOURCE = """
import asyncio


def lengths(completions, **kwargs):
    return [float(len(text)) for text in completions]


def of_columns(prompts, completions, answer, level=0, **kwargs):
    assert "prompts" not in kwargs and "completions" not in kwargs
    return [None if text == "skip" else float(text == right) for text, right in zip(completions, answer)]


def of_messages(prompts, completions):
    assert [message["role"] for message in prompts[0]] == ["system", "user"]
    return [len(reply[0]["content"]) + (reply[0]["role"] == "assistant") for reply in completions]


def of_tokens(completions, completion_ids):
    return [sum(ids) for ids in completion_ids]


def too_few(completions, **kwargs):
    return [1.0]


def a_number(completions, **kwargs):
    return 1.0


def an_array(completions, **kwargs):
    import numpy

    return numpy.array([0.5] * len(completions))


def wants_more(completions, anser, **kwargs):
    return [0.0] * len(completions)


def wants_the_trainer(completions, trainer_state):
    return [0.0] * len(completions)


async def later(prompt, response, truth, info):
    await asyncio.sleep(0)
    return {"score": response == truth, "length": len(response)}


class Judge:
    async def __call__(self, completions, **kwargs):
        return [2.0 for _ in completions]


judge = Judge()


def half(prompt, response, truth, info):
    return 0.5


def score(prompt, response, truth, info):
    return {"score": 0.25, "length": len(response)}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def prompt_of(**info: Any) -> Prompt:
    return Prompt("set/7", 7, "train", "set", (user_says("3 + 4?"),), "7", info)


def ask(spec: str, *replies: str, tokens: tuple[tuple[int, ...], ...] = (), prompt: Prompt | None = None) -> list[Any]:
    return answered(UserReward(spec), RewardQuestion(prompt or prompt_of(), replies, tokens))


# -- as TRL calls them ------------------------------------------------------------------------------


def test_a_batched_function_gets_lists_and_the_columns_of_the_data(file: Path) -> None:
    assert ask(f"{file}:lengths", "a", "bcd") == [1.0, 3.0]
    found = ask(f"{file}:of_columns", "7", "8", "skip", prompt=prompt_of(answer="7", level=3))
    assert found == [1.0, 0.0, None]
    assert ask(f"{file}:of_tokens", "a", "b", tokens=((1, 2), (4,))) == [3.0, 4.0]
    assert ask(f"{file}:an_array", "a", "b") == [0.5, 0.5]


def test_conversations_come_as_messages(file: Path) -> None:
    said = ({"role": "system", "content": "Be brief."}, user_says("Hello?"))
    prompt = Prompt("c/1", 0, "train", "c", said, is_chat=True)
    assert ask(f"{file}:of_messages", "hi", "well", prompt=prompt) == [3.0, 5.0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("too_few", r"too_few returned 1 numbers for 2 replies to sample set/7; allowed: one for each"),
        ("a_number", r"a_number returned a float for 2 replies to sample set/7"),
    ],
)
def test_a_batched_function_answers_for_every_reply(file: Path, name: str, message: str) -> None:
    with pytest.raises(RewardError, match=message):
        ask(f"{file}:{name}", "a", "b")


def test_a_column_that_the_data_lack_is_named_before_the_run(file: Path) -> None:
    prompt = prompt_of(answer="7")
    with pytest.raises(
        ValueError, match=r"needs a column of the data: unknown column 'anser'; did you mean 'answer'\?"
    ):
        UserReward(f"{file}:wants_more").check(prompt)
    with pytest.raises(ValueError, match="needs 'trainer_state', which is TRL's trainer's own"):
        UserReward(f"{file}:wants_the_trainer").check(prompt)
    UserReward(f"{file}:of_columns").check(prompt)
    (file.parent / "rows.jsonl").write_text('{"prompt": "a", "truth": "b"}\n')
    with pytest.raises(ValueError, match="unknown column 'answer'"):
        load_task(f"jsonl:{file.parent}/rows.jsonl", reward=f"{file}:of_columns")


def test_a_function_may_be_a_coroutine(file: Path) -> None:
    assert UserReward(f"{file}:later").is_async and UserReward(f"{file}:judge").is_async
    assert not UserReward(f"{file}:half").is_async
    (found,) = ask(f"{file}:later", "7")
    assert (found, parts_of(found)) == (1.0, {"length": 1.0})
    assert ask(f"{file}:judge", "a", "b") == [2.0, 2.0]


# -- several ----------------------------------------------------------------------------------------


def test_several_are_added_up_by_their_weights_and_each_is_a_part(file: Path) -> None:
    rewards = load_rewards([f"{file}:half", f"{file}:lengths", f"{file}:score"], (2.0, 0.1, 1.0))
    first, second = rewards.score(prompt_of(), ["ab", "abcd"])
    assert (first, second) == (pytest.approx(1.0 + 0.2 + 0.25), pytest.approx(1.0 + 0.4 + 0.25))
    assert parts_of(first) == {"half": 0.5, "lengths": 2.0, "score": 0.25, "score_length": 2.0}


def test_what_does_not_apply_is_left_out_of_the_sum(file: Path) -> None:
    rewards = load_rewards([f"{file}:of_columns", f"{file}:half"], ())
    right, skipped = rewards.score(prompt_of(answer="7"), ["7", "skip"])
    assert (right, skipped) == (1.5, 0.5)
    assert parts_of(skipped) == {"half": 0.5}
    alone = load_rewards([f"{file}:of_columns"])
    with pytest.raises(RewardError, match=r"^no reward applies to sample set/7: of_columns say None$"):
        alone.score(prompt_of(answer="7"), ["skip"])


def test_one_function_alone_is_the_reward_as_it_is(file: Path) -> None:
    (found,) = load_rewards([f"{file}:score"]).score(prompt_of(), ["abc"])
    assert (found, parts_of(found)) == (0.25, {"length": 3.0})
    (half,) = load_rewards([f"{file}:score"], [2.0]).score(prompt_of(), ["abc"])
    assert (half, parts_of(half)) == (0.5, {"score": 0.25, "length": 3.0})


def test_functions_of_one_name_are_told_apart(file: Path) -> None:
    other = file.with_name("other.py")
    other.write_text(SOURCE)
    rewards = load_rewards([f"{file}:half", f"{other}:half"])
    assert rewards.names == ("half", "half_2")
    assert parts_of(rewards.score(prompt_of(), ["a"])[0]) == {"half": 0.5, "half_2": 0.5}


def test_weights_and_names_that_cannot_be_are_refused_in_one_line(file: Path) -> None:
    with pytest.raises(
        ValueError, match=r"reward_weights must be one for each of 1 rewards \(half\), received \[1.0, 2"
    ):
        load_rewards([f"{file}:half"], [1, 2])
    with pytest.raises(ValueError, match="at least one reward function is needed"):
        RewardFunctions(())
    with pytest.raises(ValueError, match=r"unknown reward 'maths'; did you mean 'math'\?"):
        load_rewards(["maths"])
    with pytest.raises(ValueError, match="reward 'task' is the rule of a task that has one"):
        load_rewards(["task"])
    with pytest.raises(ValueError, match="a reward is named by a text, or by a list of them; received"):
        named_rewards([3])  # type: ignore[list-item]


def test_a_tasks_own_rule_can_be_one_of_them(file: Path) -> None:
    task = load_task(
        "larger_than", rewards=lambda own: load_rewards(["task", f"{file}:half"], (1.0, 0.1), rule=own.by_rule)
    )
    prompt = task.prompt(0)
    assert task.reward(prompt, str(int(prompt.truth) + 1)) == pytest.approx(1.05)
    assert parts_of(task.reward(prompt, "no")) == {"task": 0.0, "half": 0.5}


def test_rewards_with_parts_and_functions_travel(file: Path) -> None:
    scored = pickle.loads(pickle.dumps(Scored(0.5, {"a": 1.0})))
    assert (scored, parts_of(scored)) == (0.5, {"a": 1.0})
    again = pickle.loads(pickle.dumps(UserReward(f"{file}:lengths")))
    assert answered(again, RewardQuestion(prompt_of(), ("ab",))) == [2.0]


# -- math-verify ------------------------------------------------------------------------------------


@pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="math-verify is not installed")
def test_mathematics_is_compared_by_what_it_means() -> None:
    rewards = load_rewards(["math"])
    prompt = Prompt("m/1", 0, "train", "m", (user_says("1/4 + 1/4?"),), r"\frac{1}{2}")
    texts = ["It is 0.5", r"So \boxed{\frac{2}{4}}", "It is $1/3$", "no idea"]
    assert rewards.score(prompt, texts) == [1.0, 1.0, 0.0, 0.0]
    rewards.check(prompt)
    with pytest.raises(ValueError, match=r"reward math compares with the truth, and sample m/2 has none"):
        rewards.check(Prompt("m/2", 0, "train", "m", (user_says("?"),)))


def test_math_without_the_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    monkeypatch.delitem(sys.modules, "headway.llm.tasks.math_verify_rewards", raising=False)
    with pytest.raises(ValueError, match=r"^reward 'math' needs math-verify: pip install 'headway\[math\]'$"):
        load_rewards(["math"])


# -- more arguments ---------------------------------------------------------------------------------


def test_options_go_to_the_functions_that_take_them(tmp_path: Path) -> None:
    (tmp_path / "more.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info, threshold):\n"
        "    return float(len(solution_str) > threshold)\n"
        "async def any_of_them(completions, **more):\n"
        "    return [more['threshold'] for _ in completions]\n"
        "def none(prompt, response, truth, info):\n"
        "    return 0.0\n"
    )
    options = {"threshold": 2}
    rewards = load_rewards([f"{tmp_path}/more.py:compute_score"], options=options)
    assert rewards.score(prompt_of(), ["ab", "abc"]) == [0.0, 1.0]
    (again,) = pickle.loads(pickle.dumps(rewards.functions))
    assert answered(again, RewardQuestion(prompt_of(), ("abc",))) == [1.0]
    batched = load_rewards([f"{tmp_path}/more.py:any_of_them"], options=options)
    assert batched.functions[0].is_async and batched.score(prompt_of(), ["a", "b"]) == [2.0, 2.0]
    with pytest.raises(ValueError, match=r"more.py:none takes no 'threshold' \(reward_options\)"):
        load_rewards([f"{tmp_path}/more.py:none"], options=options)
    with pytest.raises(ValueError, match=r"compute_score must take .* by name; it takes"):
        load_rewards([f"{tmp_path}/more.py:compute_score"])
    with pytest.raises(ValueError, match="is for functions of your own, and there is none"):
        load_rewards(["task"], options=options, rule=lambda prompt, text: 0.0)
