"""Tools: functions that a policy calls, how it writes a call, and an environment around them."""

from __future__ import annotations

import pickle
import random
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from headway.agents.env import BadEnvironment, EnvironmentLost, Step, checked_env, checked_step
from headway.agents.included_tools_python_sandbox import SandboxLimits
from headway.agents.included_tools_tools_included import calculator, python_tool, search_tool
from headway.agents.stepping import build_stepping
from headway.agents.tools import BadCall, make_tool
from headway.agents.tools_tool_calls import FinalAnswer, ToolCall, read_reply
from headway.agents.tools_tool_env import MAX_CALLS, ToolEnv, ToolTask, is_the_answer


def add(a: int, b: float, unit: Literal["m", "km"] = "m", notes: list[str] | None = None) -> str:
    """Adds two numbers
    with a unit.

    :param a: the first one
    :param b: the second one,
        on two lines
    """
    return f"{a + b} {unit}{notes or ''}"


def weather(city: str) -> dict[str, Any]:
    """Says the weather.

    Args:
        city: where
    """
    return {"city": city, "degrees": 21}


def broken(text: str) -> str:
    """Cannot reach its server."""
    raise ConnectionResetError("gone")


def picky(text: str) -> str:
    """Wants a number in a text."""
    return str(int(text))


TOOLS = {tool.name: tool for tool in map(make_tool, (add, weather, calculator, picky))}


# -- functions become tools -------------------------------------------------------------------------


def test_a_function_becomes_a_schema_of_its_signature_and_docstring() -> None:
    assert make_tool(add).schema == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two numbers with a unit.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "description": "the first one"},
                    "b": {"type": "number", "description": "the second one, on two lines"},
                    "unit": {"type": "string", "enum": ["m", "km"]},
                    "notes": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["a", "b"],
            },
        },
    }
    assert make_tool(weather).arguments[0].description == "where"
    assert make_tool(add).signature == "add(a: integer, b: number, unit: m | km (optional), notes: array (optional))"


def test_functions_that_a_policy_could_not_understand_are_refused_by_name() -> None:
    def silent(x: int) -> int:
        return x

    def untyped(x) -> int:  # type: ignore[no-untyped-def]
        """Has no types."""
        return 0

    def strange(x: random.Random) -> int:
        """Wants what JSON cannot say."""
        return 0

    def starred(*x: int) -> int:
        """Wants any number."""
        return 0

    for function, line in (
        (silent, "tool silent has no docstring"),
        (untyped, "tool untyped: parameter x has no type"),
        (strange, "tool strange: parameter x has type .*Random.*; allowed: str, int"),
        (starred, r"tool starred: \*x: .* cannot be given by a policy"),
        (partial(add, 1), "a tool is a function with a name"),
    ):
        with pytest.raises(ValueError, match=line):
            make_tool(function)


def test_a_call_converts_what_is_meant_and_says_what_is_not() -> None:
    tool = make_tool(add)
    assert tool.call({"a": 1, "b": 2}) == "3.0 m"
    assert tool.call({"a": 2.0, "b": 2.5, "unit": "km", "notes": ["x"]}) == "4.5 km['x']"
    assert tool.call({}, ["1", " 2.5 "], is_text=True) == "3.5 m"
    assert make_tool(weather).call({"city": "Bern"}) == '{"city": "Bern", "degrees": 21}'
    for named, line in (
        ({"a": 1}, "needs b"),
        ({"a": 1, "b": 2, "c": 3}, "has no argument 'c'"),
        ({"a": "1", "b": 2}, "add: a must be integer, received '1'"),
        ({"a": True, "b": 2}, "add: a must be integer, received True"),
        ({"a": 1.5, "b": 2}, "add: a must be integer, received 1.5"),
        ({"a": 1, "b": 2, "unit": "mile"}, "add: unit must be m | km, received 'mile'"),
        ({"a": 1, "b": 2, "notes": [1]}, "add: notes must be array"),
    ):
        with pytest.raises(BadCall) as caught:
            tool.call(named)
        assert line in str(caught.value)
    with pytest.raises(BadCall, match="was given a twice"):
        tool.call({"a": 1}, [1, 2])
    with pytest.raises(BadCall, match="takes 4 arguments, received 5"):
        tool.call({}, [1, 2, 3, 4, 5])


def test_what_arguments_cause_is_for_the_policy_and_what_they_cannot_cause_is_raised() -> None:
    with pytest.raises(BadCall, match="picky failed: ValueError: invalid literal"):
        make_tool(picky).call({"text": "x"})
    with pytest.raises(ConnectionResetError):
        make_tool(broken).call({"text": "x"})


# -- how calls are written --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "read"),
    [
        ("calculator: 3 * 4", [ToolCall("calculator", positional=("3 * 4",))]),
        ("I think.\n  calculator(3 * (4 + 1))\nthen", [ToolCall("calculator", positional=("3 * (4 + 1)",))]),
        ('weather("Bern")', [ToolCall("weather", positional=("Bern",))]),
        ("weather: Bern, the old town", [ToolCall("weather", positional=("Bern, the old town",))]),
        ("add(1, 2.5, unit='km')", [ToolCall("add", {"unit": "km"}, [1, 2.5])]),
        ("add: 1, 2", [ToolCall("add", {}, [1, 2])]),
        ("add: one, two", [ToolCall("add", {}, ["one", "two"])]),
        ("weather(city='Bern')", [ToolCall("weather", {"city": "Bern"}, [])]),
        ("picky:\n```text\na\nb\n```", [ToolCall("picky", positional=("a\nb",))]),
        ("Note: this\nanswer: 42", FinalAnswer("42")),
        ("Answer:\nforty\ntwo", FinalAnswer("forty\ntwo")),
    ],
)
def test_calls_and_answers_are_read_from_lines(reply: str, read: object) -> None:
    assert read_reply(reply, TOOLS, "text") == read


@pytest.mark.parametrize(
    ("reply", "line"),
    [
        ("calculater: 3", "unknown tool 'calculater'; did you mean 'calculator'?"),
        ("hm", "neither a tool nor an answer was found; reply with one line: add, weather"),
        ("", "neither a tool nor an answer"),
        ("calculator(3", "calculator( has no closing bracket"),
    ],
)
def test_lines_that_cannot_be_read_are_told_why(reply: str, line: str) -> None:
    with pytest.raises(BadCall) as caught:
        read_reply(reply, TOOLS, "text")
    assert line in str(caught.value)


def test_calls_and_answers_are_read_from_json() -> None:
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    add_call = ToolCall("add", {"a": 1, "b": 2})
    assert read_reply(f"Let me see.{call}", TOOLS, "json") == [add_call]
    assert read_reply(call + call, TOOLS, "template") == [add_call, add_call]
    assert read_reply(call.removesuffix("</tool_call>"), TOOLS, "json") == [add_call], "cut at the end token"
    text = '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>'
    assert read_reply(text, TOOLS, "json") == [ToolCall("add", {"a": 1})]
    assert read_reply(" It is 3. ", TOOLS, "json") == FinalAnswer("It is 3.")
    assert read_reply("So <answer> 3 </answer>.", TOOLS, "json") == FinalAnswer("3")
    for bad, line in (
        ("{", "the tool call is no JSON"),
        ("[1]", "a tool call is a JSON object"),
        ('{"name": 1}', "a tool call is a JSON object"),
        ('{"name": "add", "arguments": [1]}', "the arguments of add must be a JSON object"),
        ('{"name": "add", "arguments": "{"}', "the arguments of add are no JSON"),
    ):
        with pytest.raises(BadCall, match=line):
            read_reply(f"<tool_call>{bad}</tool_call>", TOOLS, "json")


# -- the environment --------------------------------------------------------------------------------

TASKS = [ToolTask("What is 3 * 4?", "12"), ToolTask("What is 5 * 5?", "25")]


def sums() -> ToolEnv:
    return ToolEnv(TASKS, [calculator, add])


def test_an_episode_calls_a_tool_reads_its_result_and_answers() -> None:
    env = checked_env(ToolEnv(TASKS[:1], [calculator, add]), "sums")
    assert env.reset(1) == "What is 3 * 4?"
    assert env.step("calculator: 3 * 4") == Step("12", info={"tool_calls": 1, "bad_calls": 0})
    end = checked_step(env.step("answer: 12."), "sums")
    assert (end.reward, end.done, end.success) == (1.0, True, True)
    with pytest.raises(BadEnvironment, match="after its end"):
        env.step("answer: 12")
    env.reset(1)
    wrong = env.step("answer: 13")
    assert (wrong.reward, wrong.done, wrong.success) == (0.0, True, False)


def test_what_the_policy_gets_wrong_is_text_and_counted() -> None:
    env = sums()
    env.reset(1)
    replies = ["hm", "calc: 1", "add: 1", "add: x, y", "calculator: 1 / 0", "calculator: __import__('os')"]
    for number, reply in enumerate(replies, 1):
        step = checked_step(env.step(reply), "sums")
        assert step.text.startswith("Error: ") and not step.done and step.reward == 0
        assert step.info == {"tool_calls": 0, "bad_calls": number}
    assert "ZeroDivisionError" in env.step("calculator: 1 / 0").text
    env.reset(1)
    assert env.step("calculator: 1").info == {"tool_calls": 1, "bad_calls": 0}


def test_one_seed_is_one_task() -> None:
    asked = {seed: sums().reset(seed) for seed in range(20)}
    assert asked == {seed: sums().reset(seed) for seed in range(20)} and len(set(asked.values())) == 2
    drawn = ToolEnv(lambda rng: ToolTask(f"{rng.randrange(10**6)}?"), [calculator])
    assert drawn.reset(3) == drawn.reset(3) != drawn.reset(4)


def test_formats_tell_the_policy_of_its_tools() -> None:
    text = ToolEnv(TASKS, [calculator], system_prompt="Be brief.")
    assert text.system_prompt.startswith(
        "Be brief.\n\nYou can use these tools:\n- calculator(expression: string): Compu"
    )
    assert "calculator: expression" in text.system_prompt and text.tools == []
    json = ToolEnv(TASKS, [calculator], format="json")
    assert "<tool_call>" in json.system_prompt and json.tools == []
    template = ToolEnv(TASKS, [calculator], format="template")
    assert template.system_prompt == "" and template.tools == [make_tool(calculator).schema]


def test_several_calls_of_one_reply_are_done_in_order_up_to_a_limit() -> None:
    env = ToolEnv(TASKS, [calculator], format="json")
    env.reset(1)
    call = '<tool_call>{"name": "calculator", "arguments": {"expression": "N"}}</tool_call>'
    assert env.step(call.replace("N", "1") + call.replace("N", "2")).text == "1\n2"
    assert env.step(call.replace("N", "1") * (MAX_CALLS + 2)).text.endswith(
        "only 4 calls are done at a time; 2 were left out."
    )
    assert "unknown tool 'x'" in env.step('<tool_call>{"name": "x"}</tool_call>').text


def test_long_and_empty_results_are_made_readable() -> None:
    def repeat(number: int) -> str:
        """Repeats a letter."""
        return "x" * number

    env = ToolEnv(TASKS, [repeat], max_result_chars=10)
    env.reset(1)
    assert env.step("repeat: 12").text == "xxxxxxxxxx... (cut: 12 characters)"
    assert env.step("repeat: 0").text == "(no output)"


def test_a_tool_whose_server_is_gone_loses_the_game_and_not_the_reward() -> None:
    stepping = build_stepping("here", partial(ToolEnv, TASKS, [broken]))
    game = stepping.begin()
    game.reset(1)
    with pytest.raises(EnvironmentLost, match="ConnectionResetError: gone"):
        game.step("broken: x")


def test_it_is_played_in_worker_processes() -> None:
    stepping = build_stepping("processes(1)", sums)
    game = stepping.begin()
    assert game.reset(1) == sums().reset(1)
    assert game.step("calculator: 3 * 4").text == "12"
    stepping.close()
    assert pickle.dumps(sums)


def test_settings_that_cannot_work_are_refused() -> None:
    for build, line in (
        (lambda: ToolEnv(TASKS, [calculator], format="xml"), "unknown format of tool calls 'xml'"),
        (lambda: ToolEnv([], [calculator]), "needs at least one task"),
        (lambda: ToolEnv(TASKS, []), "needs at least one tool"),
        (lambda: ToolEnv(TASKS, [calculator, calculator]), "two tools named calculator"),
    ):
        with pytest.raises(ValueError, match=line):
            build()


def test_answers_are_compared_as_numbers_or_texts() -> None:
    task = ToolTask("?", "1,234")
    assert is_the_answer("1234.0", task) == is_the_answer(" 1,234. ", task) == 1
    assert is_the_answer("1235", task) == is_the_answer("", task) == 0
    assert is_the_answer("the Moon.", ToolTask("?", "The  moon")) == 1


# -- tools that are included ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", "7"),
        ("(1 + 2) * 3 =", "9"),
        ("7 / 2", "3.5"),
        ("6 / 2", "3"),
        ("2 ^ 10", "1024"),
        ("-3 ** 2", "-9"),
        ("17 % 5 + 17 // 5", "5"),
        ("sqrt(16) + max(1, 2)", "6"),
        ("factorial(5)", "120"),
        ("0.1 + 0.2", "0.3"),
        ("round(pi, 2)", "3.14"),
        ("2 ** 0.5", "1.41421356237"),
        ("-" * 400 + "1", "1"),
    ],
)
def test_the_calculator_computes(expression: str, value: str) -> None:
    assert calculator(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "1 +",
        "x",
        "__import__('os')",
        "(1).__class__",
        "[1] * 9",
        "'a' * 9",
        "True + 1",
        "9 ** 9 ** 9",
        "2 ** 5000",
        "2 ** -5000",
        "10 ** 400 * 1.0",
        "1e308 * 10",
        "(-1) ** 0.5",
        "factorial(100000)",
        "factorial(0.5)",
        "round(1, 10 ** 9)",
        "sqrt(-1)",
        "exp(1e9)",
        "1 / 0",
        "(" * 300 + "1" + ")" * 300,
        "1" * 501,
        "max()",
        "exec(1)",
        "gcd(1.5, 2)",
    ],
)
def test_the_calculator_refuses_what_is_no_small_computation(expression: str) -> None:
    with pytest.raises(BadCall, match="calculator failed"):
        make_tool(calculator).call({"expression": expression})


def test_python_and_search_are_tools(tmp_path: Path) -> None:
    (tmp_path / "moon.txt").write_text("The Moon orbits the Earth.\n\nThe Sun is a star.\n")
    env = ToolEnv(TASKS, [python_tool(SandboxLimits(wall_s=60.0)), search_tool(tmp_path, top=1)])
    env.reset(1)
    assert env.step("python:\n```python\nx = 6\nprint(x * 7)\n```").text == "42"
    assert env.step("python: 1 / 0").text == "line 1: ZeroDivisionError: division by zero"
    assert env.step("search: what orbits the Earth?").text == "[moon.txt:1] The Moon orbits the Earth."
    assert env.step("search: zebra").text == "nothing found"
