"""Chat completions as OpenAI's API has them: what a request asks for, and how a reply is written to it.

    {"messages": [...], "tools": [...], ...}  --read_request-->  ChatRequest
    the model's reply                         --read_reply---->  ChatMessage  --completion, chunks-->  JSON

A model calls a function by writing `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. What is not written like
that stays text, which the agent can answer to.

Two messages are the same if they say the same: identifiers of calls do not matter, nor does the order of arguments, nor
white space around what the assistant says, which agents strip.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headway.core.text_naming import unknown
from headway.core.text_one_line import shortened
from headway.core.types_opaque import JsonObject

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Roles of messages, and what chat templates call them."""
NEUTRAL: dict[str, tuple[object, ...]] = {
    "n": (None, 1),
    "top_logprobs": (None, 0),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "logit_bias": (None, {}),
    "response_format": (None, {"type": "text"}),
    "functions": (None, []),
}
"""Settings that would change what is drawn or told in a way that cannot be done here, with the values that do not."""
_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*(?:</tool_call>|\Z)", re.DOTALL)
_PIECE = re.compile(r"\s*\S+(?:\s+\Z)?|\s+\Z")


class Refused(ValueError):
    """A request that cannot be served. One line, with the status and the code of the answer."""

    def __init__(self, line: str, *, status: int = 400, code: str = "invalid_request") -> None:
        super().__init__(line)
        self.status = status
        self.code = code

    def body(self) -> JsonObject:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": None, "code": self.code}}


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """Holds one call of a function by the model."""

    name: str
    arguments: str
    """JSON, with sorted keys if it is an object."""
    uid: str = field(default="", compare=False)

    def written(self) -> str:
        """As the model writes it."""
        return f'<tool_call>\n{{"name": {json.dumps(self.name)}, "arguments": {self.arguments}}}\n</tool_call>'

    def for_clients(self) -> JsonObject:
        return {"id": self.uid, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}

    def for_templates(self) -> JsonObject:
        try:
            arguments = json.loads(self.arguments)
        except (ValueError, RecursionError):
            arguments = self.arguments
        return {"id": self.uid, "type": "function", "function": {"name": self.name, "arguments": arguments}}


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """Holds one message of a conversation."""

    role: str
    text: str
    calls: tuple[FunctionCall, ...] = ()
    call_uid: str = field(default="", compare=False)
    """Of a tool's message: which call it answers."""

    def says(self) -> tuple[str, str, tuple[FunctionCall, ...]]:
        """What is compared of it."""
        return self.role, self.text.strip() if self.role == "assistant" else self.text, self.calls


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """Holds what an agent asks for. What it says nothing of is None."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[JsonObject, ...] = ()
    may_call: bool = True
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    wants_log_probs: bool = False
    is_streamed: bool = False
    wants_usage: bool = True
    is_again: bool = False
    """The client has asked the same before and has no answer."""

    @property
    def tools_key(self) -> str:
        return json.dumps(self.tools, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Completion:
    """Holds the answer to one request."""

    uid: str
    message: ChatMessage
    finish: str
    """stop, length or tool_calls."""
    num_prompt: int
    num_tokens: int
    token_texts: tuple[str, ...]
    log_probs: tuple[float, ...]


# -- reading ----------------------------------------------------------------------------------------


def read_request(body: object, *, is_again: bool = False) -> ChatRequest:
    """Reads the body of a request; raises Refused in a line that names what is wrong with it."""
    if not isinstance(body, dict):
        raise Refused(f"the body must be a JSON object, received {_kind(body)}")
    for name, allowed in NEUTRAL.items():
        if body.get(name) not in allowed:
            raise Refused(f"{name}={_short(body[name])} is not supported here; leave it out", code="unsupported")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refused(f"messages must be a list with at least one message, received {_short(messages)}")
    read = tuple(_message(one, f"messages[{number}]") for number, one in enumerate(messages))
    if read[-1].role == "assistant":
        raise Refused("the last message is the assistant's: there is nothing to reply to")
    longest = [_number(body, name, 1, whole=True) for name in ("max_tokens", "max_completion_tokens")]
    options = body.get("stream_options") or {}
    is_streamed = body.get("stream") is True
    return ChatRequest(
        read,
        _tools(body.get("tools")),
        body.get("tool_choice") != "none",
        min((int(one) for one in longest if one is not None), default=None),
        _number(body, "temperature", 0),
        _number(body, "top_p", 0, 1),
        _stops(body.get("stop")),
        body.get("logprobs") is True,
        is_streamed,
        not is_streamed or (isinstance(options, dict) and options.get("include_usage") is True),
        is_again,
    )


def read_reply(text: str, *, may_call: bool, number: int = 0) -> ChatMessage:
    """Reads what the model wrote: its text, and the calls in it. `number` makes their identifiers."""
    calls: list[FunctionCall] = []

    def taken(found: re.Match[str]) -> str:
        try:
            call = json.loads(found[1])
        except (ValueError, RecursionError):
            return found[0]
        name, arguments = call.get("name"), call.get("arguments", {})
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            return found[0]
        # nine letters and digits: there are templates that refuse any other identifier
        calls.append(FunctionCall(name, _sorted(arguments), f"call{(100 * number + len(calls)) % 100_000:05d}"))
        return ""

    rest = _CALL.sub(taken, text) if may_call else text
    return ChatMessage("assistant", rest.strip() if calls else rest, tuple(calls))


def _message(value: object, where: str) -> ChatMessage:
    if not isinstance(value, dict):
        raise Refused(f"{where} must be an object with role and content, received {_kind(value)}")
    role = value.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise Refused(f"{where}: {unknown('role', str(role), ROLES)}")
    calls = value.get("tool_calls") or ()
    if not isinstance(calls, list | tuple):
        raise Refused(f"{where}: tool_calls must be a list, received {_kind(calls)}")
    text = _text(value.get("content"), f"{where}: content")
    return ChatMessage(ROLES[role], text, tuple(_call(one, where) for one in calls), str(value.get("tool_call_id", "")))


def _text(value: object, where: str) -> str:
    """A text, or parts that are texts."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise Refused(f"{where} must be a text or a list of parts, received {_kind(value)}")
    texts = []
    for part in value:
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else _kind(part)
            raise Refused(f"{where} has a part of the type {kind!r}: only text is read here", code="unsupported")
        texts.append(part["text"])
    return "".join(texts)


def _call(value: object, where: str) -> FunctionCall:
    call: JsonObject = value if isinstance(value, dict) else {}
    function, uid = call.get("function"), str(call.get("id", ""))
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Refused(f"{where}: a tool call must have a function with a name, received {_short(value)}")
    arguments = function.get("arguments", "{}")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return FunctionCall(function["name"], arguments, uid)
    return FunctionCall(function["name"], _sorted(arguments), uid)


def _tools(value: object) -> tuple[JsonObject, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise Refused(f"tools must be a list, received {_kind(value)}")
    for number, tool in enumerate(value):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Refused(f"tools[{number}] must be a function with a name, received {_short(tool)}")
    return tuple(value)


def _stops(value: object) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or any(not isinstance(one, str) or not one for one in stops):
        raise Refused(f"stop must be a text or a list of texts that are not empty, received {_short(value)}")
    return tuple(stops)


def _number(body: JsonObject, name: str, least: float, most: float = math.inf, *, whole: bool = False) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    is_number = isinstance(value, int) if whole else isinstance(value, int | float)
    if isinstance(value, bool) or not is_number or not least <= value <= min(most, sys.float_info.max):
        bounds = f">= {least:g}" if most == math.inf else f"in [{least:g}, {most:g}]"
        raise Refused(f"{name} must be a {'whole ' * whole}number {bounds}, received {_short(value)}")
    return float(value)


def _sorted(arguments: object) -> str:
    return json.dumps(arguments, sort_keys=True, ensure_ascii=False)


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"


def _short(value: object) -> str:
    return shortened(repr(value), 60)


# -- writing ----------------------------------------------------------------------------------------


def completion(found: Completion, model: str, created: int, *, with_log_probs: bool) -> JsonObject:
    """Writes an answer as one object."""
    message: JsonObject = {"role": "assistant", "content": found.message.text or None, "refusal": None}
    if found.message.calls:
        message["tool_calls"] = [call.for_clients() for call in found.message.calls]
    elif message["content"] is None:
        message["content"] = ""
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": found.finish}
    if with_log_probs:
        choice["logprobs"] = _log_probs(found)
    return {**_head(found, model, created, "chat.completion"), "choices": [choice], "usage": _usage(found)}


def chunks(
    found: Completion, model: str, created: int, *, with_log_probs: bool, with_usage: bool
) -> Iterator[JsonObject]:
    """Writes an answer as the pieces of a stream."""
    head = _head(found, model, created, "chat.completion.chunk")

    def chunk(
        delta: Mapping[str, object], finish: str | None = None, log_probs: JsonObject | None = None
    ) -> JsonObject:
        choice = {"index": 0, "delta": delta, "logprobs": log_probs, "finish_reason": finish}
        return {**head, "choices": [choice]}

    yield chunk({"role": "assistant", "content": ""}, log_probs=_log_probs(found) if with_log_probs else None)
    for piece in _PIECE.findall(found.message.text):
        yield chunk({"content": piece})
    for index, call in enumerate(found.message.calls):
        yield chunk({"tool_calls": [{"index": index, **call.for_clients()}]})
    yield chunk({}, found.finish)
    if with_usage:
        yield {**head, "choices": [], "usage": _usage(found)}


def model_list(model: str, created: int) -> JsonObject:
    return {"object": "list", "data": [{"id": model, "object": "model", "created": created, "owned_by": "headway"}]}


def _head(found: Completion, model: str, created: int, kind: str) -> JsonObject:
    return {"id": found.uid, "object": kind, "created": created, "model": model}


def _usage(found: Completion) -> JsonObject:
    total = found.num_prompt + found.num_tokens
    return {"prompt_tokens": found.num_prompt, "completion_tokens": found.num_tokens, "total_tokens": total}


def _log_probs(found: Completion) -> JsonObject:
    pairs: Sequence[tuple[str, float]] = list(zip(found.token_texts, found.log_probs, strict=True))
    content = [
        {"token": text, "logprob": value, "bytes": list(text.encode()), "top_logprobs": []} for text, value in pairs
    ]
    return {"content": content, "refusal": None}
