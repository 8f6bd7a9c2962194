"""Tasks from files: one JSON object a line.

A model here reads text: parts of a message that are text are joined, as chat templates do; pictures, sound and films
are refused with the file and the line, in a message or in a column of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headway.core.naming import unknown
from headway.llm.rewards import UserReward, flexible_score, format_score, gsm8k_truth, strict_score
from headway.llm.tasks import HELD_OUT, TRAIN, Message, Prompt, PromptTask, Task, user_says

GSM8K_REQUEST = "Think step by step. Write the result on the last line, as a number after ####."
THEIR_TRUTH = "reward_model.ground_truth"
ABSENT = object()
Row = Mapping[str, Any]
"""What one line of a file says."""
TEXTS = ("text", "input_text", "output_text")
MEDIA = ("image", "images", "video", "videos", "audio", "audios")
"""Columns that hold what is not text, by the names that data sets have for them."""
SCORES = {"strict": strict_score, "flexible": flexible_score}


def gsm8k(folder: str, *, seed: int, scoring: str = "strict", format_bonus: float = 0.0) -> Task:
    """Reads GSM8K from a folder. `format_bonus` is added for a response that ends as asked, right or wrong."""
    if scoring not in SCORES:
        raise ValueError(unknown("scoring", scoring, SCORES))
    rule = SCORES[scoring]

    def read(split: str, file: str) -> list[Prompt]:
        prompts: list[Prompt] = []
        for number, row in read_rows(Path(folder) / file):
            here = f"{Path(folder) / file}, line {number}"
            question, answer = (_text(row, name, here) for name in ("question", "answer"))
            try:
                truth = gsm8k_truth(answer)
            except ValueError as error:
                raise ValueError(f"{here}: {error}") from None
            messages = (user_says(f"{question}\n{GSM8K_REQUEST}"),)
            index = len(prompts)
            prompts.append(Prompt(f"gsm8k/{split}/{index}", index, split, "gsm8k", messages, truth))
        return prompts

    def score(prompt: Prompt, response: str) -> float:
        return rule(response, prompt.truth) + format_bonus * format_score(response)

    return PromptTask("gsm8k", read(TRAIN, "train.jsonl"), read(HELD_OUT, "test.jsonl"), score, seed=seed)


def jsonl(
    file: str,
    *,
    seed: int,
    reward: str = "",
    held_out: str | None = None,
    held_out_fraction: float = 0.1,
    prompt_field: str = "prompt",
    truth_field: str | None = "truth",
    media_fields: Sequence[str] = (),
) -> Task:
    """Reads one JSON object a line: a prompt (text, or messages), the truth, and whatever `reward` wants to know.

    A field may be inside of others: `reward_model.ground_truth`. Where a line has that and no `truth`, it is the truth.
    `tools` of a line are told to the chat template. `media_fields` are columns which, besides those called `images` and
    the like, hold what is not text: such a line is refused. Evaluation takes the file `held_out`, or this fraction of
    the lines, drawn once for all seeds. A sample without a `uid` is named after its file and line.
    """
    if not reward:
        raise ValueError("task jsonl needs a reward function: reward=file.py:function or reward=module:function")
    if not 0 <= held_out_fraction < 1:
        raise ValueError(f"held_out_fraction must be in [0, 1), received {held_out_fraction!r}")
    function = UserReward(reward)
    if isinstance(media_fields, str):
        raise ValueError(f"media_fields must be a list of names, received {media_fields!r}")
    fields = _Fields(prompt_field, truth_field, (*MEDIA, *media_fields))
    rows = _prompts(Path(file), TRAIN, fields)
    if held_out is not None:
        train, test = rows, _prompts(Path(held_out), HELD_OUT, fields)
    else:
        count = min(max(1, round(len(rows) * held_out_fraction)) if held_out_fraction else 0, len(rows) - 1)
        chosen = set(np.random.default_rng(0).permutation(len(rows))[:count].tolist())
        train = [row for k, row in enumerate(rows) if k not in chosen]
        test = [replace(row, split=HELD_OUT) for k, row in enumerate(rows) if k in chosen]

    def score(prompt: Prompt, response: str) -> float:
        about = {**prompt.info, "uid": prompt.uid, "index": prompt.index, "data_source": prompt.data_source}
        return function(prompt=prompt.question, response=response, truth=prompt.truth, info=about)

    return PromptTask(f"jsonl:{file}", train, test, score, seed=seed)


def read_rows(path: Path) -> Iterator[tuple[int, Row]]:
    """Yields the objects of a JSON-lines file with their line numbers; blank lines are skipped, none is an error."""
    if not path.is_file():
        raise ValueError(f"{path} does not exist")
    is_empty = True
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            is_empty = False
            try:
                row = json.loads(line)
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                raise ValueError(f"{path}, line {number}: not JSON: {error}") from None
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {number}: a JSON object is allowed, received a {type(row).__name__}")
            yield number, row
    if is_empty:
        raise ValueError(f"{path} holds no samples")


class _Fields(NamedTuple):
    """Says where things are in a row."""

    prompt: str
    truth: str | None
    media: tuple[str, ...]


def _prompts(path: Path, split: str, fields: _Fields) -> list[Prompt]:
    prompts: list[Prompt] = []
    seen: dict[str, int] = {}
    for number, row in read_rows(path):
        here = f"{path}, line {number}"
        truth = None if fields.truth is None else _truth(row, fields.truth, here)
        messages = messages_of(row, fields.prompt, here)
        for name in fields.media:
            if row.get(name) and name not in fields[:2]:
                raise ValueError(f"{here}: {name!r} holds what is not text ({_kind(row[name])}): prompts are text here")
        tools = tools_of(row, here)
        uid = str(row.get("uid", f"{path.stem}/{number}"))
        if uid in seen:
            raise ValueError(f"{here}: uid {uid!r} is already that of line {seen[uid]}")
        seen[uid] = number
        info = {k: v for k, v in row.items() if k not in (fields.prompt, fields.truth, "uid", "data_source")}
        source = str(row.get("data_source", path.stem))
        prompts.append(Prompt(uid, len(prompts), split, source, messages, truth, info, tools))
    return prompts


def _truth(row: Row, name: str, here: str) -> Any:
    for path in (name, THEIR_TRUTH) if name == "truth" else (name,):
        if path in row:
            return row[path]
        found: Any = row
        for part in path.split("."):
            found = found.get(part, ABSENT) if isinstance(found, Mapping) else ABSENT
        if found is not ABSENT:
            return found
    raise ValueError(f"{here}: {unknown('field', name, row)} (or truth_field=None)")


def messages_of(row: Row, name: str, here: str) -> tuple[Message, ...]:
    """Reads a conversation, or a text as one message of the user; `here` says where it stands."""
    value = row.get(name)
    if not isinstance(value, list):
        return (user_says(_text(row, name, here)),)
    if not value or not all(isinstance(m, dict) and "role" in m and ("content" in m or _calls(m)) for m in value):
        raise ValueError(f"{here}: {name!r} must be a text or a list of messages with role and content")
    return tuple(_message(m, f"{here}: message {number} of {name!r}") for number, m in enumerate(value, 1))


def _calls(message: Row) -> bool:
    return bool(message.get("tool_calls"))


def _message(message: Row, here: str) -> Message:
    """Returns a message with everything that it says, its content as one text."""
    more = {k: v for k, v in message.items() if v is not None and k not in ("role", "content")}
    for name in MEDIA:
        if more.get(name):
            raise ValueError(f"{here} has {name!r}, which is not text: prompts are text here")
    if _calls(message) and not isinstance(message["tool_calls"], list):
        raise ValueError(f"{here}: tool_calls must be a list, received a {type(message['tool_calls']).__name__}")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part(part, f"{here}, part {number}") for number, part in enumerate(content, 1))
    if content is None and _calls(message):
        content = ""
    if isinstance(content, Mapping) or content is None:
        raise ValueError(f"{here}: content must be a text or a list of parts, received {_kind(content)}")
    return {"role": str(message["role"]), "content": str(content), **more}


def _part(part: object, here: str) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and part.get("type", "text") in TEXTS and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type", _kind(part)) if isinstance(part, Mapping) else _kind(part)
    raise ValueError(f"{here} is not text ({kind}): prompts are text here")


def tools_of(row: Row, here: str) -> tuple[Row, ...]:
    """Reads the `tools` of a line, as chat templates take them; none where there are none."""
    found = row.get("tools")
    if isinstance(found, str) and found.strip():
        try:
            found = json.loads(found)
        except json.JSONDecodeError as error:
            raise ValueError(f"{here}: 'tools' is not JSON: {error}") from None
    if not found:
        return ()
    if not isinstance(found, list) or not all(isinstance(tool, Mapping) for tool in found):
        raise ValueError(f"{here}: 'tools' must be a list of objects, as chat templates take them")
    return tuple(found)


def _kind(value: object) -> str:
    if isinstance(value, Mapping):
        return "an object with " + ", ".join(map(str, value)) if value else "an empty object"
    return f"a list of {len(value)}" if isinstance(value, list) else f"a {type(value).__name__}"


def _text(row: Row, name: str, here: str) -> str:
    if name not in row:
        raise ValueError(f"{here}: {unknown('field', name, row)}")
    if not isinstance(row[name], str) or not row[name].strip():
        raise ValueError(f"{here}: field {name!r} must be a text, received {row[name]!r}")
    return str(row[name])
