"""Tasks: the same ticket asks the same question, files say where they are wrong, nothing held out is trained on."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.llm.tasks.rewards import RewardError
from headway.llm.tasks.tasks import Generated, Prompt, PromptTask, load_task, user_says

# Data sets are not ours to ship: they are looked for in this folder, or in shared/data beside the repository.
DATA = Path(os.environ.get("HEADWAY_DATA") or Path(__file__).parents[3] / "shared" / "data")
GSM8K_REAL = DATA / "gsm8k"
needs_reasoning_gym = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed"
)


def listed(size: int, seed: int = 0) -> PromptTask:
    prompts = [Prompt(f"p/{k}", k, "train", "p", (user_says(f"{k}?"),), str(k)) for k in range(size)]
    return PromptTask("p", prompts, [], lambda prompt, response: response == prompt.truth, seed=seed)


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# -- the order --------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 12), st.integers(0, 5), st.integers(0, 4))
def test_every_epoch_has_each_prompt_once_and_a_ticket_always_asks_the_same(size: int, seed: int, epoch: int) -> None:
    task, again = listed(size, seed), listed(size, seed)
    tickets = range(epoch * size, (epoch + 1) * size)
    asked = [task.prompt(ticket).index for ticket in tickets]
    assert sorted(asked) == list(range(size))
    assert [again.prompt(ticket).index for ticket in reversed(tickets)] == asked[::-1]


def test_epochs_and_seeds_shuffle_differently() -> None:
    task, other = listed(50), listed(50, seed=1)
    first, second = ([task.prompt(k + shift).index for k in range(50)] for shift in (0, 50))
    assert first != second
    assert first != [other.prompt(k).index for k in range(50)]
    assert first != list(range(50))


def test_a_score_becomes_a_float_and_a_failing_scorer_names_its_sample() -> None:
    task = listed(3)
    assert (task.reward(task.prompt(0), task.prompt(0).truth), task.reward(task.prompt(0), "x")) == (1.0, 0.0)
    broken = PromptTask("broken", [task.prompt(0)], [], lambda prompt, response: 1 / 0)
    with pytest.raises(RewardError, match=r"the scorer of broken failed on sample p/\d: ZeroDivisionError"):
        broken.reward(task.prompt(0), "x")


def test_generated_prompts_behave_as_a_list() -> None:
    made = Generated(3, lambda k: Prompt(str(k), k, "train", "g", ()))
    assert [prompt.index for prompt in made] == [0, 1, 2]
    assert (made[-1].index, [prompt.index for prompt in made[1:]], len(made)) == (2, [1, 2], 3)
    with pytest.raises(IndexError, match="prompt 3 of 3"):
        made[3]
    with pytest.raises(ValueError, match="a number of prompts must be >= 0, received -1"):
        Generated(-1, lambda k: Prompt("", 0, "", "", ()))


# -- made up ----------------------------------------------------------------------------------------

MADE_UP: list[tuple[str, dict[str, Any]]] = [("larger_than", {}), *(("arithmetic", {"level": k}) for k in range(1, 6))]


@pytest.mark.parametrize(("name", "options"), MADE_UP)
def test_made_up_problems_have_unique_uids_and_share_nothing_with_the_held_out_ones(
    name: str, options: dict[str, Any]
) -> None:
    task = load_task(name, seed=3, size=200, held_out=20, **options)
    train = [task.prompt(ticket) for ticket in range(200)]
    few = 11 if options == {"level": 1} else 20  # of a hundred sums
    assert (len(task), len(task.held_out)) == (200, few)
    uids = [prompt.uid for prompt in [*train, *task.held_out]]
    assert len(set(uids)) == 200 + len(task.held_out)
    assert not {prompt.question for prompt in train} & {prompt.question for prompt in task.held_out}
    again = load_task(name, seed=4, size=200, held_out=20, **options)
    assert list(again.held_out) == list(task.held_out)
    by_uid = {prompt.uid: prompt for prompt in train}
    assert all(by_uid[again.prompt(ticket).uid] == again.prompt(ticket) for ticket in range(200))


@pytest.mark.parametrize(("name", "options"), MADE_UP)
def test_a_made_up_problem_is_held_out_once(name: str, options: dict[str, Any]) -> None:
    task = load_task(name, **options)
    asked = [prompt.question for prompt in task.held_out]
    assert len(set(asked)) == len(asked) == len(task.held_out)
    expected = {"larger_than": 97, 1: 11, 2: 24}  # all there are
    assert len(asked) == expected.get(options.get("level", name), 100)


def test_all_of_a_small_splits_problems_are_found_and_too_many_of_a_large_one_refused() -> None:
    task = load_task("larger_than", size=5000, held_out=5000, max_number=999)
    numbers = {int(prompt.truth) for prompt in task.held_out} | {int(task.prompt(k).truth) for k in range(20_000)}
    assert len(task.held_out) == 97 and len(numbers) > 990
    with pytest.raises(ValueError, match=r"^task arithmetic-3: held_out must be at most 1000, received 1001$"):
        load_task("arithmetic", level=3, held_out=1001)
    with pytest.raises(ValueError, match=r"held_out must be >= 0, received -1"):
        load_task("arithmetic", held_out=-1)
    assert len({prompt.question for prompt in load_task("arithmetic", level=3, held_out=1000).held_out}) == 1000


def test_larger_than_wants_a_larger_number() -> None:
    task = load_task("larger_than")
    prompt = task.prompt(0)
    bound = int(prompt.truth)
    assert f"larger than {bound}" in prompt.question
    rewards = [task.reward(prompt, text) for text in (f"{bound + 1}", f"{bound}", "a lot", f"{bound}, so {bound}.5")]
    assert rewards == [1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("level", range(1, 6))
def test_arithmetic_is_scored_by_its_result(level: int) -> None:
    task = load_task("arithmetic", level=level)
    for ticket in range(30):
        prompt = task.prompt(ticket)
        sum_ = prompt.question.removeprefix("What is ").split("?")[0]
        assert prompt.truth == str(eval(sum_))
        assert (task.reward(prompt, f"It is {prompt.truth}."), task.reward(prompt, "no")) == (1.0, 0.0)
        assert task.reward(prompt, str(int(prompt.truth) + 1)) == 0.0


# -- files ------------------------------------------------------------------------------------------


@pytest.fixture
def gsm8k_folder(tmp_path: Path) -> Path:
    rows = [{"question": f"What is {k} + 1,000?", "answer": f"Easy.\n#### {k + 1000:,}"} for k in range(5)]
    write(tmp_path / "train.jsonl", rows)
    write(tmp_path / "test.jsonl", rows[:2])
    return tmp_path


def test_gsm8k_reads_its_folder_and_scores_strictly_or_not(gsm8k_folder: Path) -> None:
    strict = load_task(f"gsm8k:{gsm8k_folder}")
    flexible = load_task(f"gsm8k:{gsm8k_folder}", scoring="flexible", format_bonus=0.25)
    prompt = strict.held_out[1]
    assert (prompt.uid, prompt.truth, prompt.split, prompt.data_source) == (
        "gsm8k/held_out/1",
        "1001",
        "held_out",
        "gsm8k",
    )
    assert prompt.messages[0]["role"] == "user"
    assert prompt.question.startswith("What is 1 + 1,000?\n")
    texts = ("#### 1,001", "1001", "#### 5")
    assert [strict.reward(prompt, text) for text in texts] == [1.0, 0.0, 0.0]
    assert [flexible.reward(prompt, text) for text in texts] == [1.25, 1.0, 0.25]


@pytest.mark.skipif(not GSM8K_REAL.is_dir(), reason="the data set is not on this machine")
def test_every_worked_solution_of_the_real_data_earns_its_reward() -> None:
    task = load_task(f"gsm8k:{GSM8K_REAL}")
    assert (len(task), len(task.held_out)) == (7473, 1319)
    answers = [json.loads(line)["answer"] for line in (GSM8K_REAL / "test.jsonl").read_text().splitlines()]
    assert all(task.reward(p, answer) == 1.0 for p, answer in zip(task.held_out, answers, strict=True))


REWARD = "def score(prompt, response, truth, info):\n    return float(response == truth) + info['level']\n"


@pytest.fixture
def reward(tmp_path: Path) -> str:
    (tmp_path / "reward.py").write_text(REWARD)
    return f"{tmp_path / 'reward.py'}:score"


def test_prompts_of_a_file_are_scored_by_the_users_function(tmp_path: Path, reward: str) -> None:
    rows = [{"prompt": f"say {k}", "truth": str(k), "level": k} for k in range(20)]
    task = load_task(f"jsonl:{write(tmp_path / 'mine.jsonl', rows)}", reward=reward)
    assert (len(task), len(task.held_out)) == (18, 2)
    train = [task.prompt(ticket) for ticket in range(18)]
    everything = [*train, *task.held_out]
    assert sorted(prompt.uid for prompt in everything) == sorted(f"mine/{k + 1}" for k in range(20))
    assert {prompt.split for prompt in train} == {"train"}
    assert {prompt.split for prompt in task.held_out} == {"held_out"}
    for prompt in everything:
        assert task.reward(prompt, prompt.truth) == 1.0 + prompt.info["level"]
    other = load_task(f"jsonl:{tmp_path / 'mine.jsonl'}", reward=reward, seed=9)
    assert [prompt.uid for prompt in other.held_out] == [prompt.uid for prompt in task.held_out]


def test_a_prompt_that_several_rows_ask_is_held_out_with_all_of_them(tmp_path: Path, reward: str) -> None:
    rows = [{"prompt": f"say {k % 40}", "truth": str(k)} for k in range(200)]
    task = load_task(f"jsonl:{write(tmp_path / 'mine.jsonl', rows)}", reward=reward)
    assert (len(task), len(task.held_out)) == (180, 20)  # a tenth of the 40 prompts: 4, each in 5 rows
    assert len({prompt.text for prompt in task.held_out}) == 4
    trained = {task.prompt(ticket).text for ticket in range(len(task))}
    assert not trained & {prompt.text for prompt in task.held_out}


def test_the_only_prompt_of_all_rows_is_trained_on(tmp_path: Path, reward: str) -> None:
    task = load_task(f"jsonl:{write(tmp_path / 'a.jsonl', [{'prompt': 'a', 'truth': 'b'}] * 5)}", reward=reward)
    assert (len(task), len(task.held_out)) == (5, 0)


def test_rows_whose_prompts_all_differ_are_held_out_by_their_places(tmp_path: Path, reward: str) -> None:
    rows = [{"prompt": f"Count to {k}.", "truth": str(k)} for k in range(40)]
    task = load_task(f"jsonl:{write(tmp_path / 'a.jsonl', rows)}", reward=reward)
    drawn = sorted(np.random.default_rng(0).permutation(40)[:4].tolist())
    assert [prompt.index for prompt in task.held_out] == drawn


def test_messages_other_fields_and_a_file_of_its_own_for_evaluation(tmp_path: Path, reward: str) -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}]
    row = {"ask": chat, "gold": "hi", "level": 2, "uid": "a", "data_source": "talk"}
    train = write(tmp_path / "a.jsonl", [row])
    test = write(tmp_path / "b.jsonl", [row])
    task = load_task(f"jsonl:{train}", reward=reward, held_out=str(test), prompt_field="ask", truth_field="gold")
    (prompt,) = task.held_out
    assert (prompt.uid, prompt.data_source, prompt.truth, prompt.info) == (
        "a",
        "talk",
        "hi",
        {"gold": "hi", "level": 2},
    )
    assert [message["role"] for message in prompt.messages] == ["system", "user"]
    assert prompt.question == "Hello?"
    assert task.reward(task.prompt(0), "hi") == 3.0
    blind = load_task(f"jsonl:{train}", reward=reward, prompt_field="ask", truth_field=None, held_out_fraction=0)
    assert (blind.prompt(0).truth, len(blind.held_out)) == (None, 0)


def test_rows_of_data_need_a_reward_function(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", [{"prompt": "a", "truth": "b"}])
    with pytest.raises(ValueError, match=r"^task jsonl needs a reward function: reward=file.py:function or reward=mod"):
        load_task(f"jsonl:{file}")


def test_the_truth_may_be_inside_of_another_field(tmp_path: Path, reward: str) -> None:
    row = {"prompt": [{"role": "user", "content": "1 + 1?"}], "reward_model": {"style": "rule", "ground_truth": "2"}}
    train = write(tmp_path / "a.jsonl", [row, {"prompt": "b", "truth": "c"}])
    task = load_task(f"jsonl:{train}", reward=reward, held_out_fraction=0)
    assert {task.prompt(k).truth for k in range(2)} == {"2", "c"}
    named = load_task(f"jsonl:{write(tmp_path / 'b.jsonl', [row])}", reward=reward, truth_field="reward_model.style")
    assert named.prompt(0).truth == "rule"
    with pytest.raises(ValueError, match=r"line 1: unknown field 'reward_model.gold'"):
        load_task(f"jsonl:{train}", reward=reward, truth_field="reward_model.gold")


def test_a_task_without_some_prompts_counts_them(tmp_path: Path, reward: str) -> None:
    file = write(tmp_path / "a.jsonl", [{"prompt": "x" * n, "truth": "t"} for n in range(1, 21)])
    task = load_task(f"jsonl:{file}", reward=reward, held_out=str(file))
    assert isinstance(task, PromptTask)
    shorter, left_out = task.without(lambda prompt: len(prompt.question) > 15)
    assert (left_out, len(shorter), len(shorter.held_out)) == ({"train": 5, "held_out": 5}, 15, 15)
    assert max(len(shorter.prompt(k).question) for k in range(15)) == 15
    assert len(task) == 20
    with pytest.raises(ValueError, match="every prompt to train on is too long"):
        task.without(lambda prompt: True)
    made = load_task("arithmetic")
    assert isinstance(made, PromptTask)
    assert made.without(lambda prompt: True)[1] == {"train": 0, "held_out": 0}  # they come when they are asked for


def test_parts_of_a_message_that_are_text_are_joined(tmp_path: Path, reward: str) -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "2 + 2?"}, " Say it."]
    rows = [
        {"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}], "truth": "4"},
        {"prompt": [{"role": "user", "content": "2?", "name": "me", "weight": None}], "truth": "2", "images": []},
    ]
    task = load_task(f"jsonl:{write(tmp_path / 'a.jsonl', rows)}", reward=reward, held_out_fraction=0)
    first, second = sorted((task.prompt(k) for k in range(2)), key=lambda prompt: prompt.index)
    assert first.question == "What is 2 + 2? Say it."
    assert first.text == "system: Be brief.\nuser: What is 2 + 2? Say it."
    assert second.messages == ({"role": "user", "content": "2?", "name": "me"},)


def test_tools_and_calls_are_kept(tmp_path: Path, reward: str) -> None:
    tools = [{"type": "function", "function": {"name": "add"}}]
    calls = [{"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}]
    said = [{"role": "user", "content": "2?"}, {"role": "assistant", "content": None, "tool_calls": calls}]
    rows = [{"prompt": said, "truth": "4", "tools": tools}, {"prompt": "3?", "truth": "3", "tools": None}]
    task = load_task(f"jsonl:{write(tmp_path / 'a.jsonl', rows)}", reward=reward, held_out_fraction=0)
    first, second = sorted((task.prompt(k) for k in range(2)), key=lambda prompt: prompt.index)
    assert first.tools == tuple(tools) and second.tools == ()
    assert first.messages[1] == {"role": "assistant", "content": "", "tool_calls": calls}
    assert first.text.startswith("tools: [{") and first.text.count('"name": "add"') == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"prompt": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a.png"}}]}]},
            r"a\.jsonl, line 2: message 1 of 'prompt', part 1 is not text \(image_url\): prompts are text here$",
        ),
        (
            {"prompt": [{"role": "user", "content": ["What?", {"type": "audio", "audio": "a.wav"}]}]},
            r"line 2: message 1 of 'prompt', part 2 is not text \(audio\)",
        ),
        ({"prompt": [{"role": "user", "content": [{"image": "a"}]}]}, r"part 1 is not text \(an object with image\)"),
        ({"prompt": [{"role": "user", "content": [7]}]}, r"part 1 is not text \(a int\)"),
        ({"prompt": [{"role": "user", "content": "?", "images": ["a"]}]}, r"message 1 of 'prompt' has 'images'"),
        ({"prompt": [{"role": "user", "content": None}]}, r"content must be a text or a list of parts"),
        (
            {"prompt": "What?", "images": ["a.png"]},
            r"a\.jsonl, line 2: 'images' holds what is not text \(a list",
        ),
        ({"prompt": "What?", "videos": [{"path": "b"}]}, r"line 2: 'videos' holds what is not text"),
        (
            {"prompt": "What?", "pics": {"bytes": "0x"}},
            r"line 2: 'pics' holds what is not text \(an object with by",
        ),
        ({"prompt": "What?", "tools": "[{"}, r"line 2: 'tools' is not JSON"),
        ({"prompt": "What?", "tools": {"name": "add"}}, r"line 2: 'tools' must be a list of objects"),
        ({"prompt": [{"role": "assistant", "tool_calls": "add"}]}, r"tool_calls must be a list, received a str"),
    ],
)
def test_what_is_not_text_is_refused_with_its_file_and_line(
    tmp_path: Path, reward: str, row: dict[str, Any], message: str
) -> None:
    file = write(tmp_path / "a.jsonl", [{"prompt": "1?", "truth": "1"}, {**row, "truth": "1"}])
    with pytest.raises(ValueError, match=message) as refused:
        load_task(f"jsonl:{file}", reward=reward, media_fields=["pics"])
    assert "\n" not in str(refused.value) and str(file) in str(refused.value)


def test_one_sample_is_trained_on_and_not_held_out(tmp_path: Path, reward: str) -> None:
    task = load_task(f"jsonl:{write(tmp_path / 'one.jsonl', [{'prompt': 'a', 'truth': 'b'}])}", reward=reward)
    assert (len(task), len(task.held_out)) == (1, 0)


def test_a_line_that_is_wrong_is_named_by_its_number(tmp_path: Path, reward: str) -> None:
    good = '{"prompt": "a", "truth": "b", "uid": "x"}\n'
    for text, message in {
        good + "\n{oops}\n": r"mine.jsonl, line 3: not JSON: ",
        good + "[1]\n": r"mine.jsonl, line 2: a JSON object is allowed, received a list",
        good + '{"prmpt": "a", "truth": "b"}\n': r"mine.jsonl, line 2: unknown field 'prompt'; did you mean 'prmpt'\?",
        good
        + '{"prompt": "a", "answer": "b"}\n': r"mine.jsonl, line 2: unknown field 'truth'; .*\(or truth_field=None\)",
        good + '{"prompt": 5, "truth": "b"}\n': r"mine.jsonl, line 2: field 'prompt' must be a text, received 5",
        good
        + '{"prompt": [{"role": "user"}], "truth": "b"}\n': r"line 2: 'prompt' must be a text or a list of messages",
        good + good: r"mine.jsonl, line 2: uid 'x' is already that of line 1",
        "": r"mine.jsonl holds no samples",
        "\n\n": r"mine.jsonl holds no samples",
    }.items():
        (tmp_path / "mine.jsonl").write_text(text)
        with pytest.raises(ValueError, match=message) as caught:
            load_task(f"jsonl:{tmp_path / 'mine.jsonl'}", reward=reward)
        assert "\n" not in str(caught.value)
    (tmp_path / "mine.jsonl").write_bytes(good.encode() + b'{"prompt": "\xff"}\n')
    with pytest.raises(ValueError, match=r"mine.jsonl, line 2: not JSON: 'utf-8' codec"):
        load_task(f"jsonl:{tmp_path / 'mine.jsonl'}", reward=reward)


def test_a_gsm8k_answer_without_a_result_is_named_by_its_line(gsm8k_folder: Path) -> None:
    write(gsm8k_folder / "train.jsonl", [{"question": "a", "answer": "#### 1"}, {"question": "b", "answer": "two"}])
    with pytest.raises(ValueError, match=r"train.jsonl, line 2: the answer has no number after '####': two"):
        load_task(f"gsm8k:{gsm8k_folder}")


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("gsm8", {}, r"unknown task 'gsm8'; did you mean 'gsm8k'\? allowed: arithmetic, datasets, gsm8k"),
        ("gsm8k", {}, r"task gsm8k is written gsm8k:FOLDER, received 'gsm8k'"),
        ("larger_than:9", {}, r"task larger_than is written larger_than, received 'larger_than:9'"),
        ("gsm8k:/no/such", {}, r"/no/such/train.jsonl does not exist: a folder with train and test of GSM8K is"),
        ("gsm8k:/no/such", {"scoring": "strikt"}, r"unknown scoring 'strikt'; did you mean 'strict'\?"),
        ("jsonl:/no/such.jsonl", {}, r"/no/such.jsonl does not exist"),
        (f"jsonl:{__file__}", {"reward_weights": [1]}, r"reward_weights=\[1\] needs as many names in reward"),
        ("arithmetic", {"level": 6}, r"level must be 1 to 5, received 6"),
        ("arithmetic", {"levl": 1}, r"unknown option of task 'arithmetic' 'levl'; did you mean 'level'\?"),
        ("arithmetic", {"size": 0}, r"task arithmetic-1 has no prompts to train on"),
        ("larger_than", {"max_number": 5}, r"max_number must be >= 99, .* received 5"),
        (
            "larger_than",
            {"size": "many"},
            r"^option 'size' of task 'larger_than': .* integer, received 'many'$",
        ),
        ("larger_than", {"size": True}, r"valid integer, received True$"),
        (
            f"jsonl:{__file__}",
            {"held_out_fraction": "x"},
            r"^option 'held_out_fraction' .* number, received 'x'$",
        ),
        (f"jsonl:{__file__}", {"prompt_field": 3}, r"^option 'prompt_field' of task 'jsonl': .* string, received 3$"),
        (f"jsonl:{__file__}", {"more_files": 3}, r"^option 'more_files' of task 'jsonl': .* received 3$"),
        (f"jsonl:{__file__}", {"media_fields": "pics"}, r"^option 'media_fields' of task 'jsonl': .* received 'pics'$"),
    ],
)
def test_a_task_that_cannot_be_loaded_says_why_in_one_line(spec: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        load_task(spec, **options)
    assert "\n" not in str(caught.value)


def test_a_fraction_that_leaves_nothing_is_refused(tmp_path: Path, reward: str) -> None:
    with pytest.raises(ValueError, match=r"held_out_fraction must be in \[0, 1\), received 1"):
        load_task(f"jsonl:{tmp_path / 'mine.jsonl'}", reward=reward, held_out_fraction=1)


# -- reasoning-gym ----------------------------------------------------------------------------------


@needs_reasoning_gym
@pytest.mark.parametrize("dataset", ["chain_sum", "leg_counting", "spell_backward"])
def test_a_dataset_of_reasoning_gym_is_scored_by_its_own_scorer(dataset: str) -> None:
    task, again = (load_task(f"reasoning_gym:{dataset}", size=50, held_out=5) for _ in range(2))
    assert (len(task), len(task.held_out)) == (50, 5)
    for ticket in range(10):
        prompt = task.prompt(ticket)
        assert prompt == again.prompt(ticket)
        assert task.reward(prompt, f"<answer>no</answer> I mean <answer> {prompt.truth} </answer>") == 1.0
        assert task.reward(prompt, prompt.truth) == 0.0  # the tags were asked for
    assert task.held_out[0].question != task.prompt(0).question


ONE_DIGIT = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
SMALL_GYMS: list[tuple[str, dict[str, Any]]] = [
    ("chain_sum", ONE_DIGIT),
    ("spell_backward", {}),
    ("lcm", {}),
    ("tower_of_hanoi", {}),
    ("gsm_symbolic", {}),
    ("string_splitting", {}),
    ("list_functions", {}),
]


@needs_reasoning_gym
@pytest.mark.parametrize(("dataset", "config"), SMALL_GYMS)
@settings(max_examples=3, deadline=None, derandomize=True)
@given(size=st.integers(100, 400), seed=st.integers(0, 3))
def test_no_prompt_of_reasoning_gym_is_both_trained_on_and_held_out(
    dataset: str, config: dict[str, Any], size: int, seed: int
) -> None:
    task = load_task(f"reasoning_gym:{dataset}", seed=seed, size=size, held_out=60, config=config)
    train = [task.prompt(ticket) for ticket in range(size)]
    held_out = list(task.held_out)
    assert not {prompt.question for prompt in train} & {prompt.question for prompt in held_out}
    assert 0 < len({prompt.question for prompt in held_out}) == len(held_out) <= 60
    assert len({prompt.uid for prompt in [*train, *held_out]}) == size + len(held_out)
    for prompt in [train[0], train[-1], held_out[0], held_out[-1]]:
        assert task.reward(prompt, f"<answer>{prompt.truth}</answer>") > 0.9
    assert [prompt.uid for prompt in load_task(task.name, size=9, held_out=60, config=config).held_out] == [
        prompt.uid for prompt in held_out
    ]


@needs_reasoning_gym
def test_training_prompts_of_reasoning_gym_are_its_own_unless_they_are_held_out() -> None:
    import reasoning_gym

    own = reasoning_gym.create_dataset("spell_backward", seed=0, size=300)
    task = load_task("reasoning_gym:spell_backward", size=300, tags=False)
    same = sum(prompt.question == own[prompt.index]["question"] for prompt in map(task.prompt, range(300)))
    assert 0.7 < same / 300 < 0.9


@needs_reasoning_gym
def test_a_dataset_with_one_prompt_is_refused_in_one_line() -> None:
    few = load_task("reasoning_gym:chain_sum", config=ONE_DIGIT)
    assert 10 < len(list(few.held_out)) < 60
    with pytest.raises(ValueError, match=r"^task reasoning_gym:count_primes makes too few different") as refused:
        load_task("reasoning_gym:count_primes", config={"min_n": 7, "max_n": 7})
    assert "\n" not in str(refused.value)


@needs_reasoning_gym
def test_a_reasoning_gym_dataset_takes_its_own_config_and_may_do_without_tags() -> None:
    task = load_task("reasoning_gym:chain_sum", size=5, held_out=2, tags=False, config={"min_terms": 2, "max_terms": 2})
    prompt = task.prompt(0)
    assert prompt.question.count("+") + prompt.question.count(" - ") == 1
    assert task.reward(prompt, prompt.truth) == 1.0


@needs_reasoning_gym
def test_an_answer_the_scorer_cannot_read_is_wrong_and_no_failure() -> None:
    task = load_task("reasoning_gym:prime_factorization", size=5, held_out=1)
    assert task.reward(task.prompt(0), "<answer>zzz</answer>") == 0.0


@needs_reasoning_gym
def test_reasoning_gym_settings_that_cannot_work_are_refused_in_one_line() -> None:
    for spec, options, message in [
        ("chain_sums", {}, r"unknown reasoning-gym dataset 'chain_sums'; did you mean 'chain_sum'\?"),
        ("chain_sum", {"config": {"min_term": 2}}, r"unknown config of .* 'min_term'; did you mean 'min_terms'\?"),
        ("chain_sum", {"config": {"min_terms": 9}}, r"reasoning-gym refuses {'min_terms': 9} for dataset 'chain_sum'"),
        ("chain_sum", {"held_out": 0}, r"needs size and held_out >= 1, received 10000 and 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            load_task(f"reasoning_gym:{spec}", **options)


@pytest.fixture
def without_reasoning_gym(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.delitem(sys.modules, "headway.llm.tasks.reasoning_gym_tasks", raising=False)


@pytest.mark.usefixtures("without_reasoning_gym")
def test_a_missing_package_is_named_with_the_command_that_brings_it() -> None:
    with pytest.raises(ValueError, match="this task needs reasoning-gym: pip install reasoning-gym"):
        load_task("reasoning_gym:chain_sum")
