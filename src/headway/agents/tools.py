"""Tools: documented, typed Python functions that a policy may call.

    def add(a: int, b: int) -> int:
        "Adds two numbers."                     make_tool(add).schema  -> what a chat template is told
        return a + b                            make_tool(add).call({"a": 1, "b": 2}) -> "3"

What a policy can get wrong (a missing argument, a text instead of a number, a division by zero) is `BadCall`, whose
text is for the policy. What it cannot cause (a server that does not answer) is raised as it is.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Union

from headway.agents.env import BadEnvironment, EnvironmentLost
from headway.core.text_one_line import in_a_line, shortened
from headway.core.types_opaque import JsonObject, UserFunction

NAMES: dict[type, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
}
"""Python's types, as JSON schemas name them."""
_NOT_ITS_FAULT = (ConnectionError, TimeoutError, MemoryError, EnvironmentLost, BadEnvironment)
_MISSING = inspect.Parameter.empty


class BadCall(Exception):
    """A call that cannot be done, through no fault of the tool. Its text is for the policy."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One parameter of a tool."""

    name: str
    type: object
    description: str = ""
    default: object = _MISSING

    @property
    def is_required(self) -> bool:
        return self.default is _MISSING

    @property
    def schema(self) -> JsonObject:
        described = {"description": self.description} if self.description else {}
        return {**_schema(self.type), **described}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function, and what a policy must know of it."""

    name: str
    description: str
    arguments: tuple[Argument, ...]
    function: UserFunction = field(repr=False)

    @property
    def schema(self) -> JsonObject:
        """As chat templates and OpenAI's interface have it."""
        parameters = {
            "type": "object",
            "properties": {one.name: one.schema for one in self.arguments},
            "required": [one.name for one in self.arguments if one.is_required],
        }
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": parameters},
        }

    @property
    def signature(self) -> str:
        """`add(a: integer, b: integer)`"""
        listed = [
            f"{one.name}: {_type_name(one.type)}{'' if one.is_required else ' (optional)'}" for one in self.arguments
        ]
        return f"{self.name}({', '.join(listed)})"

    def call(self, named: Mapping[str, object], positional: Sequence[object] = (), *, is_text: bool = False) -> str:
        """What the function returns, as text. With `is_text`, numbers may be given as texts. Raises BadCall."""
        values = self._values(named, positional, is_text)
        try:
            return _as_text(self.function(**values))
        except _NOT_ITS_FAULT:
            raise
        except Exception as error:
            raise BadCall(f"{self.name} failed: {in_a_line(error, 300)}") from error

    def _values(self, named: Mapping[str, object], positional: Sequence[object], is_text: bool) -> dict[str, object]:
        if len(positional) > len(self.arguments):
            raise BadCall(f"{self.signature} takes {len(self.arguments)} arguments, received {len(positional)}")
        given = {one.name: value for one, value in zip(self.arguments, positional, strict=False)}
        for name, value in named.items():
            if name in given:
                raise BadCall(f"{self.signature} was given {name} twice")
            given[name] = value
        known = {one.name for one in self.arguments}
        for name in given:
            if name not in known:
                raise BadCall(f"{self.signature} has no argument {name!r}")
        values = {}
        for one in self.arguments:
            if one.name in given:
                values[one.name] = _converted(given[one.name], one.type, f"{self.name}: {one.name}", is_text)
            elif one.is_required:
                raise BadCall(f"{self.signature} needs {one.name}")
        return values


def make_tool(function: UserFunction | Tool) -> Tool:
    """Returns a tool of a function with a docstring and a type for each parameter; ValueError by its name otherwise.

    Descriptions of parameters are read from `:param name: ...` or from an `Args:` section of the docstring.
    """
    if isinstance(function, Tool):
        return function
    name = getattr(function, "__name__", "")
    if not callable(function) or not name.isidentifier():
        raise ValueError(f"a tool is a function with a name, received {shortened(repr(function))}")
    text = inspect.getdoc(function) or ""
    if not text.strip():
        raise ValueError(f"tool {name} has no docstring: a policy learns from it what the tool does")
    hints = typing.get_type_hints(function)
    described = _described_parameters(text)
    arguments = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ValueError(f"tool {name}: {parameter} cannot be given by a policy; allowed: parameters with names")
        if parameter.name not in hints:
            raise ValueError(f"tool {name}: parameter {parameter.name} has no type; write {parameter.name}: str, say")
        try:
            _schema(hints[parameter.name])
        except TypeError as error:
            raise ValueError(f"tool {name}: parameter {parameter.name} has {error}") from None
        description = described.get(parameter.name, "")
        arguments.append(Argument(parameter.name, hints[parameter.name], description, parameter.default))
    return Tool(name, _what_it_does(text), tuple(arguments), function)


def _what_it_does(text: str) -> str:
    """The docstring up to where it speaks of parameters, in one paragraph."""
    before = re.split(
        r"^\s*(?::param|:return|Args:|Arguments:|Parameters\b|Returns:|Raises:)", text, flags=re.MULTILINE
    )
    return " ".join(before[0].split())


def _described_parameters(text: str) -> dict[str, str]:
    found = re.findall(r"^\s*:param\s+(?:[^:]*\s)?(\w+):\s*(.*(?:\n(?!\s*:|\s*$).*)*)", text, flags=re.MULTILINE)
    section = re.search(r"^(?:Args|Arguments|Parameters):\s*\n((?:\s+.*\n?)*)", text, flags=re.MULTILINE)
    if section:
        found += re.findall(r"^\s+(\w+)(?:\s*\([^)]*\))?:\s*(.*)", section[1], flags=re.MULTILINE)
    return {name: " ".join(description.split()) for name, description in found}


def _schema(kind: object) -> JsonObject:
    """The JSON schema of a type; TypeError for one that JSON cannot say."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return {}
    if isinstance(kind, type) and kind in NAMES:
        return {"type": NAMES[kind]}
    if origin in (list, Sequence):
        return {"type": "array", "items": _schema(inside[0])}
    if origin in (dict, Mapping) and inside[0] is str:
        return {"type": "object", "additionalProperties": _schema(inside[1])}
    if origin is Literal:
        return {"type": NAMES.get(type(inside[0]), "string"), "enum": list(inside)}
    if origin in (Union, types.UnionType):
        kinds = [_schema(one) for one in inside if one is not type(None)]
        return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    raise TypeError(f"type {kind}; allowed: {', '.join(one.__name__ for one in NAMES)}, Literal, X | None")


def _type_name(kind: object) -> str:
    schema = _schema(kind)
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " | ".join(str(one.get("type", "anything")) for one in schema["anyOf"])
    return str(schema.get("type", "anything"))


def _converted(value: object, kind: object, what: str, is_text: bool) -> object:
    """The value as the type wants it; BadCall where it is another."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        for one in inside:
            try:
                return _converted(value, one, what, is_text)
            except BadCall:
                continue
        raise BadCall(f"{what} must be {_type_name(kind)}, received {shortened(repr(value), 60)}")
    if kind is type(None):
        if value is None or (is_text and value in ("", "None", "null")):
            return None
        raise BadCall(f"{what} must be null")
    if is_text and isinstance(value, str) and kind is not str:
        value = _literal(value)
    if origin is Literal and (value in inside or str(value) in inside):
        return value if value in inside else str(value)
    if is_text and kind is str and isinstance(value, (int, float)):
        return str(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return _as_float(value, what)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    concrete: dict[object, type] = {Sequence: list, Mapping: dict}
    bare = concrete.get(origin, origin or kind)
    if not isinstance(bare, type) or not isinstance(value, bare) or (isinstance(value, bool) and bare is not bool):
        raise BadCall(f"{what} must be {_type_name(kind)}, received {shortened(repr(value), 60)}")
    if isinstance(value, list) and inside:
        return [_converted(one, inside[0], what, is_text) for one in value]
    if isinstance(value, dict) and inside:
        return {name: _converted(one, inside[1], what, is_text) for name, one in value.items()}
    return value


def _as_float(value: int, what: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise BadCall(f"{what} is too large") from None


def _literal(text: str) -> object:
    """A number, list or truth value that was written; the text itself otherwise."""
    stripped = text.strip()
    try:
        return json.loads(stripped)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(stripped)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return stripped


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (dict, list, tuple)):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)
