"""Conversations from a file, to be imitated: one JSON object a line.

    {"messages": [{"role": "system", "content": "Be brief."},
                  {"role": "user", "content": "Guess"}, {"role": "assistant", "content": "4"},
                  {"role": "user", "content": "Lower"}, {"role": "assistant", "content": "2"}],
     "weight": 2.0}

What the assistant says is trained on, but for messages with `"weight": 0`: those are only read. The weight of a line
says how much it counts in the mean; without it 1. `tools` are told to the chat template.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headway.core.text_naming import unknown
from headway.core.types_opaque import SettingValue
from headway.llm.model.loading_models import SPOKEN
from headway.llm.tasks.file_tasks import messages_of, tools_of
from headway.llm.tasks.file_tasks_data_rows import place_of, read_rows
from headway.llm.tasks.tasks import Message, drawn_texts

ROLES = ("system", "user", "assistant", "tool")
WEIGHT = "weight"
"""The part of an episode (llm/rollouts_episode.py) that says how much it counts; without it: 1."""


@dataclass(frozen=True, slots=True)
class Remark:
    """Holds what somebody says to the model, and the model's reply to it."""

    role: str
    text: str
    reply: str
    is_trained: bool = True


@dataclass(frozen=True, slots=True)
class WrittenChat:
    """Holds one conversation of a file."""

    uid: str
    """Its file and line."""
    remarks: tuple[Remark, ...]
    system_prompt: str = ""
    weight: float = 1.0
    tools: tuple[Mapping[str, SettingValue], ...] = ()


def read_chats(path: Path) -> list[WrittenChat]:
    """Reads every line of a file; one that cannot be imitated is refused with its number."""
    return [_chat(row, f"{path.stem}/{number}", place_of(path, number)) for number, row in read_rows(path)]


def parted(chats: list[WrittenChat], held_out: int) -> tuple[list[WrittenChat], list[WrittenChat]]:
    """Parts conversations into those to train on and at most so many, and a tenth, to evaluate on: the same for every
    seed. Those in which the model hears the same are on one side."""
    heard = [json.dumps([chat.system_prompt, *(remark.text for remark in chat.remarks)]) for chat in chats]
    chosen = drawn_texts(heard, lambda count: min(held_out, max(1, count // 10)))
    kept = [chat for chat, text in zip(chats, heard, strict=True) if text not in chosen]
    return kept, [chat for chat, text in zip(chats, heard, strict=True) if text in chosen][:held_out]


def _chat(row: Mapping[str, SettingValue], uid: str, here: str) -> WrittenChat:
    if "messages" not in row:
        raise ValueError(f"{here}: {unknown('field', 'messages', row)}")
    if not isinstance(row["messages"], list):
        raise ValueError(f"{here}: 'messages' must be a list of messages with role and content")
    messages = list(messages_of(row, "messages", here))
    system = messages.pop(0)["content"] if messages[0]["role"] == "system" else ""
    remarks: list[Remark] = []
    for number in range(0, len(messages), 2):
        place = number + 1 + bool(system)
        said, reply = _pair(messages[number : number + 2], here, place, is_first=not number)
        weight = reply.get("weight", 1)
        if weight not in (0, 1):
            raise ValueError(f"{here}: the weight of a message is 0 or 1, received {weight!r}; that of a line is free")
        remarks.append(Remark(said["role"], said["content"], reply["content"], weight == 1))
    if not any(remark.is_trained for remark in remarks):
        raise ValueError(f"{here}: the assistant says nothing that could be imitated")
    return WrittenChat(uid, tuple(remarks), system, _weight(row, here), tools_of(row, here))


def _pair(messages: list[Message], here: str, number: int, *, is_first: bool) -> tuple[Message, Message]:
    """What is said to the assistant, and its reply; `number` is the place of the first of them in its line."""
    for place, message in enumerate(messages, number):
        if message["role"] not in ROLES:
            raise ValueError(f"{here}, message {place}: {unknown('role', message['role'], ROLES)}")
        for name in SPOKEN:
            if message.get(name):
                raise ValueError(f"{here}, message {place} has {name!r}: only the content of messages is imitated")
        wanted = ("assistant",) if place > number else ("user",) if is_first else ("user", "tool")
        if message["role"] not in wanted:
            raise ValueError(
                f"{here}, message {place} is of the role {message['role']!r}; after an optional system message "
                "the user begins, then assistant and user (or tool) take turns"
            )
    if len(messages) < 2:
        raise ValueError(f"{here}: the last message is of the role {messages[0]['role']!r}; the assistant's comes last")
    if not messages[1]["content"].strip():
        raise ValueError(f"{here}, message {number + 1}: the assistant says nothing")
    return messages[0], messages[1]


def _weight(row: Mapping[str, SettingValue], here: str) -> float:
    value = row.get("weight", 1.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{here}: the weight of a line must be a number above 0, received {value!r}")
    return float(value)
