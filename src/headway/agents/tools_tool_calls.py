"""How a policy writes the call of a tool, and how that is read.

| format | a call | the answer |
|---|---|---|
| `text` | a line `name: arguments` or `name(argument, ...)` | a line `answer: ...` |
| `json` | `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, one or several | a reply without a call |
| `template` | the same; the model's chat template tells it of the tools | the same |

In `text` a name alone on its line (`python:`) takes all that follows, without the marks of a code block.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headway.agents.tools import BadCall, Tool
from headway.core.text_naming import unknown
from headway.core.text_one_line import shortened

FORMATS = ("json", "template", "text")
ANSWER = "answer"
_LINE = re.compile(r"^\s*(\w+)\s*(:|\()(.*)$")
_TAG = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)
_ANSWER_TAG = re.compile(r"<answer>\s*(.*?)\s*(?:</answer>|\Z)", re.DOTALL)
_FENCE = re.compile(r"^\s*```[^\n]*\n?|\n?\s*```\s*$")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What a policy wants to be called."""

    name: str
    named: Mapping[str, object] = field(default_factory=dict)
    positional: Sequence[object] = ()


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """What a policy says when it is done."""

    text: str


Reading = list[ToolCall] | FinalAnswer


def read_reply(reply: str, tools: Mapping[str, Tool], how: str) -> Reading:
    """What a reply asks for; BadCall, with a text for the policy, where that cannot be told."""
    return _read_text(reply, tools) if how == "text" else _read_json(reply)


def instructions(tools: Mapping[str, Tool], how: str) -> str:
    """What a policy must be told. With `template` its chat template says it."""
    if how == "template":
        return ""
    listed = "\n".join(f"- {tool.signature}: {tool.description}" for tool in tools.values())
    if how == "text":
        first = next(iter(tools.values()))
        arguments = ", ".join(one.name for one in first.arguments)
        call = f"To use a tool, reply with one line: {first.name}: {arguments}"
        return f"You can use these tools:\n{listed}\n{call}\nTo finish, reply with one line: {ANSWER}: your answer"
    call = 'To use a tool, reply with <tool_call>{"name": "...", "arguments": {...}}</tool_call>.'
    return f"You can use these tools:\n{listed}\n{call}\nTo finish, reply with your answer and no tool call."


# -- text -------------------------------------------------------------------------------------------


def _read_text(reply: str, tools: Mapping[str, Tool]) -> Reading:
    lines = reply.splitlines()
    others = []
    for number, line in enumerate(lines):
        match = _LINE.match(line)
        if match is None:
            continue
        name, sign, rest = match[1], match[2], match[3].strip()
        if name.lower() == ANSWER and sign == ":":
            return FinalAnswer(rest or _without_fence("\n".join(lines[number + 1 :])))
        if name not in tools:
            others.append(name)
            continue
        if sign == "(":
            if not rest.endswith(")"):
                raise BadCall(f"{name}( has no closing bracket on its line")
            return [_call(tools[name], rest[:-1].strip())]
        return [_call(tools[name], rest or _without_fence("\n".join(lines[number + 1 :])))]
    if others:
        raise BadCall(unknown("tool", others[0], [*tools, ANSWER]))
    raise BadCall(f"neither a tool nor an answer was found; reply with one line: {', '.join(tools)} or {ANSWER}")


def _without_fence(text: str) -> str:
    return _FENCE.sub("", text.strip())


def _call(tool: Tool, text: str) -> ToolCall:
    """The arguments as they are written: one is the whole text, several stand between commas."""
    if not text:
        return ToolCall(tool.name)
    parsed = _parsed(text)
    if parsed is not None and (parsed[1] or len(tool.arguments) != 1):
        return ToolCall(tool.name, parsed[1], parsed[0])
    if len(tool.arguments) == 1:
        return ToolCall(tool.name, positional=(_unquoted(text),))
    parts = [_unquoted(part.strip()) for part in text.split(",")]
    return ToolCall(tool.name, positional=parts)


def _parsed(text: str) -> tuple[list[object], dict[str, object]] | None:
    """`1, "two", c=[3]` as Python reads it; None for what is no list of values."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(call, ast.Call):
            return None
        named = {one.arg: ast.literal_eval(one.value) for one in call.keywords if one.arg is not None}
        return [ast.literal_eval(one) for one in call.args], named
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None


def _unquoted(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        parsed = _parsed(text)
        if parsed is not None and len(parsed[0]) == 1 and isinstance(parsed[0][0], str):
            return parsed[0][0]
    return text


# -- JSON -------------------------------------------------------------------------------------------


def _read_json(reply: str) -> Reading:
    bodies = _TAG.findall(reply)
    if not bodies:
        tagged = _ANSWER_TAG.search(reply)
        return FinalAnswer(tagged[1] if tagged else reply.strip())
    return [_json_call(body) for body in bodies]


def _json_call(body: str) -> ToolCall:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadCall(f"the tool call is no JSON: {shortened(error)}") from None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise BadCall('a tool call is a JSON object like {"name": "...", "arguments": {...}}')
    arguments = value.get("arguments", {})
    if isinstance(arguments, str):  # some models write them as a JSON text
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise BadCall(f"the arguments of {value['name']} are no JSON: {shortened(error)}") from None
    if not isinstance(arguments, dict):
        raise BadCall(f"the arguments of {value['name']} must be a JSON object")
    return ToolCall(value["name"], arguments)
