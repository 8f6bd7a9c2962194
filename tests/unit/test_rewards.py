"""Rewards by rule, and the reward function of a user."""

from __future__ import annotations

import math
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.llm.tasks.reward_functions import RewardQuestion, answered
from headway.llm.tasks.reward_functions_user_rewards import UserReward
from headway.llm.tasks.rewards import (
    RewardError,
    flexible_score,
    format_score,
    gsm8k_truth,
    last_number,
    overlong_penalty,
    part_means,
    parts_of,
    parts_of_all,
    strict_score,
)
from headway.llm.tasks.tasks import Prompt, user_says

# -- numbers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("6 * 7 = <<6*7=42>>42\n#### 42", "42"),
        ("#### 1\nno, wait\n#### 1,234,567", "1234567"),
        ("#### -5", "-5"),
        ("####3.50", "3.50"),
        ("#### $18", "18"),
    ],
)
def test_the_truth_is_the_number_after_the_last_mark_without_commas(answer: str, truth: str) -> None:
    assert gsm8k_truth(answer) == truth


@pytest.mark.parametrize("answer", ["42", "#### none", ""])
def test_an_answer_without_a_marked_number_is_refused_in_one_line(answer: str) -> None:
    with pytest.raises(ValueError, match="the answer has no number after '####'") as caught:
        gsm8k_truth(answer)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("response", "strict", "flexible"),
    [
        ("so it is\n#### 1,234", 1, 1),
        ("so it is 1234", 0, 1),
        ("#### 1234.00", 1, 1),
        ("#### 1234. Next question: 5", 1, 0),
        ("#### 1234\n#### 7", 0, 0),
        ("#### 12345", 0, 0),
        ("#### $1,234", 1, 1),
        ("####", 0, 0),
        ("", 0, 0),
        ("1,234 is right", 0, 1),
        ("-1234", 0, 0),
    ],
)
def test_strict_wants_the_mark_and_flexible_the_last_number(response: str, strict: float, flexible: float) -> None:
    assert strict_score(response, "1234") == strict
    assert flexible_score(response, "1234") == flexible


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("10-5", "5"),
        ("10 - 5", "5"),
        ("it is -5.", "-5"),
        ("x=-7", "-7"),
        ("(4)-3", "3"),
        ("1, 2", "2"),
        ("12,34", "34"),
        ("1,2345", "2345"),
        ("costs $1,000.50!", "1000.50"),
        ("about .5", ".5"),
        ("10%", "10"),
        ("٣", None),
        ("none", None),
    ],
)
def test_the_last_number_of_a_text(text: str, number: str | None) -> None:
    assert last_number(text) == number


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(-(10**12), 10**12), st.booleans())
def test_any_number_is_found_again_with_or_without_commas(number: int, commas: bool) -> None:
    text = f"{number:,}" if commas else str(number)
    assert strict_score(f"I think\n#### {text}", str(number)) == 1
    assert flexible_score(f"I think {text}.", str(number)) == 1
    assert strict_score(f"#### {text}", str(number + 1)) == 0


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(alphabet="0123456789,.-#$ \nx"))
def test_no_text_breaks_the_rules(text: str) -> None:
    assert strict_score(text, "7") in (0.0, 1.0)
    assert flexible_score(text, "7") in (0.0, 1.0)
    assert format_score(text) in (0.0, 1.0)


def test_digits_without_end_are_scored_exactly() -> None:
    assert flexible_score("9" * 5000, "9" * 5000) == 1
    assert flexible_score("9" * 5000, "9" * 4999 + "8") == 0


@pytest.mark.parametrize(
    ("response", "score"), [("#### 7", 1), ("so\n#### 7.\n", 1), ("#### 7 apples", 0), ("7", 0), ("#### x", 0)]
)
def test_the_format_is_right_when_the_response_ends_as_asked(response: str, score: float) -> None:
    assert format_score(response) == score


@pytest.mark.parametrize(("tokens", "penalty"), [(0, 0), (80, 0), (85, -0.25), (90, -0.5), (100, -1), (140, -1)])
def test_the_overlong_penalty_falls_over_its_interval(tokens: int, penalty: float) -> None:
    assert overlong_penalty(tokens, max_tokens=100, interval=20) == pytest.approx(penalty)


@pytest.mark.parametrize("interval", [0, 101])
def test_an_interval_that_does_not_fit_is_refused(interval: int) -> None:
    with pytest.raises(ValueError, match=rf"interval must be in \[1, 100\], received {interval}"):
        overlong_penalty(5, max_tokens=100, interval=interval)


# -- a function of your own -------------------------------------------------------------------------

SOURCE = """
import math
from dataclasses import dataclass

@dataclass
class Verdict:
    right: bool

limit = 3

def score(prompt, response, truth, info):
    return Verdict(response == truth).right

def share(response, truth, **rest):
    return len(response) / len(truth)

def broken(prompt, response, truth, info):
    return {"nan": math.nan, "huge": 1e39, "none": None, "text": "good", "1": "1"}[response]

def narrow(prompt, response):
    return 1.0
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_rewards.py"
    path.write_text(SOURCE)
    return path


def prompt_of(truth: Any = "7", **info: Any) -> Prompt:
    return Prompt("set/7", 7, "train", "set", (user_says("3 + 4?"),), truth, info)


def call(reward: UserReward, response: str, **info: Any) -> float:
    (found,) = answered(reward, RewardQuestion(prompt_of(**info), (response,)))
    assert found is not None
    return found


def test_a_function_in_a_file_scores(file: Path) -> None:
    reward = UserReward(f"{file}:score")
    assert (call(reward, "7"), call(reward, "8")) == (1.0, 0.0)
    assert call(UserReward(f"{file}:share"), "77") == 2.0


def test_a_function_in_a_module_scores(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(file.parent))
    assert call(UserReward("my_rewards:score"), "7") == 1.0
    monkeypatch.delitem(sys.modules, "my_rewards")


def test_a_reward_function_can_travel_to_another_process(file: Path) -> None:
    assert call(pickle.loads(pickle.dumps(UserReward(f"{file}:score"))), "7") == 1.0


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ("boom", r"reward function .*my_rewards.py:broken failed on sample set/7: KeyError: 'boom'"),
        ("nan", r"reward function .*:broken returned nan for sample set/7; allowed: a finite number"),
        ("huge", r"reward function .*:broken returned 1e\+39 for sample set/7; allowed: at most 3\.4e\+38"),
        ("none", r"reward function .*:broken returned None \(NoneType\) for sample set/7; allowed: a float or a bool"),
        ("text", r"reward function .*:broken returned 'good' \(str\) for sample set/7"),
        ("1", r"reward function .*:broken returned '1' \(str\) for sample set/7; allowed: a float or a bool"),
    ],
)
def test_a_reward_that_cannot_be_used_names_the_sample(file: Path, response: str, message: str) -> None:
    with pytest.raises(RewardError, match=message) as caught:
        call(UserReward(f"{file}:broken"), response)
    assert "\n" not in str(caught.value)


def test_a_function_that_cannot_be_called_is_refused_before_the_run(file: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("def f(:\n")
    for spec, message in {
        "score": r"named module:function or file.py:function, received 'score'",
        f"{file}:": r"named module:function or file.py:function",
        f"{tmp_path}/absent.py:score": r"reward file .*absent.py does not exist",
        f"{tmp_path}/wrong.py:f": r"reward file .*wrong.py cannot be loaded: SyntaxError",
        "no_such_module:score": r"reward module no_such_module cannot be loaded: ModuleNotFoundError",
        f"{file}:scores": r"unknown function of .*my_rewards.py 'scores'; did you mean 'score'\?",
        f"{file}:limit": r"my_rewards.py:limit is a int, not a function",
        f"{file}:narrow": r"must take prompt, response, truth, info or data_source, solution_str, .* by name; it takes",
    }.items():
        with pytest.raises(ValueError, match=message):
            UserReward(spec)


THEIRS = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **rest):
    right = solution_str == ground_truth and (data_source, extra_info["split"]) == ("set", "train")
    return {"score": right, "length": len(solution_str), "acc": float(right), "pred": solution_str}

def without(data_source, solution_str, ground_truth, extra_info):
    return {"acc": 1.0}

def endless(data_source, solution_str, ground_truth, extra_info):
    return {"score": 1.0, "acc": float("inf")}
"""


def test_a_reward_function_of_verl_is_called_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text(THEIRS)
    about = {"extra_info": {"split": "train"}}
    reward = UserReward(f"{tmp_path}/theirs.py:compute_score")
    right, wrong = (call(reward, text, **about) for text in ("7", "eight"))
    assert (right, wrong) == (1.0, 0.0)
    assert parts_of(right) == {"length": 1, "acc": 1} and parts_of(wrong) == {"length": 5, "acc": 0}
    found = part_means([parts_of_all([right, 0.5]), parts_of_all([wrong]), parts_of_all([1.0])])
    assert found == {"reward_acc": 0.5, "reward_length": 3}
    for name, message in (
        ("without", "a mapping without 'score' for sample set/7"),
        ("endless", r"\(acc\) returned inf"),
    ):
        with pytest.raises(RewardError, match=message):
            call(UserReward(f"{tmp_path}/theirs.py:{name}"), "7", **about)


def test_a_reward_may_be_anything_that_is_a_number(tmp_path: Path) -> None:
    (tmp_path / "numbers.py").write_text("import numpy\ndef f(response, **rest): return numpy.float32(response)\n")
    found = call(UserReward(f"{tmp_path}/numbers.py:f"), "0.25")
    assert (found, type(found)) == (0.25, float)
    assert not math.isnan(found)
