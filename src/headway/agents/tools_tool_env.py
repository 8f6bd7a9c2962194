"""A question, tools to find the answer with, and a check of the answer, as an environment for agents.

    reset(seed): a task of this seed is asked --> calls of tools, answered with what they return --> an answer: the end

What a policy gets wrong about its tools is told to it and counted (`info`); only what it cannot cause is raised.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headway.agents.env import BadEnvironment, Step
from headway.agents.tools import BadCall, Tool, make_tool
from headway.agents.tools_tool_calls import ANSWER, FORMATS, FinalAnswer, ToolCall, instructions, read_reply
from headway.core.text_naming import unknown
from headway.core.types_opaque import UserFunction

MAX_CALLS = 4
"""So many calls of one reply are done; a policy that writes more of them is told so."""


@dataclass(frozen=True, slots=True)
class ToolTask:
    """Something to find out, and what is right."""

    question: str
    answer: str = ""


Check = Callable[[str, ToolTask], float]
"""What an answer to a task is worth; 1 is a success."""


def is_the_answer(given: str, task: ToolTask) -> float:
    """1 if the answer is the task's, as a number or as a text without case and final point; 0 otherwise."""
    ours, theirs = (" ".join(text.casefold().split()).rstrip(".") for text in (task.answer, given))
    try:
        return float(float(ours.replace(",", "")) == float(theirs.replace(",", "")))
    except ValueError:
        return float(ours == theirs)


class ToolEnv:
    """Asks a task, does the calls that the policy writes, and checks its answer.

    :param tasks: the tasks, one of which the seed chooses; or a function that makes one from a random generator
    :param tools: documented functions with types
    :param format: `text`, `json` or `template`; see tool_calls.py
    :param check: what an answer is worth
    :param max_result_chars: what a tool returns is cut to this, so that it cannot fill the context
    """

    def __init__(
        self,
        tasks: Sequence[ToolTask] | Callable[[random.Random], ToolTask],
        tools: Sequence[UserFunction | Tool],
        *,
        format: str = "text",
        check: Check = is_the_answer,
        max_turns: int = 8,
        max_result_chars: int = 2000,
        system_prompt: str = "",
    ) -> None:
        if format not in FORMATS:
            raise ValueError(unknown("format of tool calls", format, FORMATS))
        self._tools = _by_name(tools)
        if not callable(tasks) and not tasks:
            raise ValueError("ToolEnv needs at least one task")
        self._tasks = tasks
        self._format = format
        self._check = check
        self._max_result_chars = max_result_chars
        self.max_turns = max_turns
        self.system_prompt = "\n\n".join(part for part in (system_prompt, instructions(self._tools, format)) if part)
        self.tools = [tool.schema for tool in self._tools.values()] if format == "template" else []
        self._task: ToolTask | None = None
        self._counts = _no_counts()

    def reset(self, seed: int) -> str:
        rng = random.Random(seed)
        self._task = self._tasks(rng) if callable(self._tasks) else rng.choice(self._tasks)
        self._counts = _no_counts()
        return self._task.question

    def step(self, reply: str) -> Step:
        if self._task is None:
            raise BadEnvironment("a ToolEnv is stepped before its reset, or after its end")
        try:
            read = read_reply(reply, self._tools, self._format)
        except BadCall as error:
            self._counts["bad_calls"] += 1
            return Step(f"Error: {error}.", info=dict(self._counts))
        if isinstance(read, FinalAnswer):
            reward = float(self._check(read.text, self._task))
            self._task = None
            return Step("", reward, True, reward >= 1, dict(self._counts))
        results = [self._result(call) for call in read[:MAX_CALLS]]
        if len(read) > MAX_CALLS:
            results.append(f"Error: only {MAX_CALLS} calls are done at a time; {len(read) - MAX_CALLS} were left out.")
        text = results[0] if len(read) == 1 else "\n".join(results)
        return Step(text, info=dict(self._counts))

    def _result(self, call: ToolCall) -> str:
        try:
            if call.name not in self._tools:
                raise BadCall(unknown("tool", call.name, self._tools))
            result = self._tools[call.name].call(call.named, call.positional, is_text=self._format == "text")
        except BadCall as error:
            self._counts["bad_calls"] += 1
            return f"Error: {error}."
        self._counts["tool_calls"] += 1
        return self._cut(result) or "(no output)"

    def _cut(self, text: str) -> str:
        text = text.strip()
        if len(text) <= self._max_result_chars:
            return text
        return f"{text[: self._max_result_chars]}... (cut: {len(text)} characters)"


def _by_name(tools: Sequence[UserFunction | Tool]) -> Mapping[str, Tool]:
    found: dict[str, Tool] = {}
    for tool in map(make_tool, tools):
        if tool.name in found or tool.name == ANSWER:
            raise ValueError(f"there are two tools named {tool.name}; {ANSWER} is what ends an episode")
        found[tool.name] = tool
    if not found:
        raise ValueError("ToolEnv needs at least one tool")
    return found


def _no_counts() -> dict[str, float]:
    return {"tool_calls": 0.0, "bad_calls": 0.0}
