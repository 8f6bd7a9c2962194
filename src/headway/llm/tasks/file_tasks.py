"""Tasks from data: JSON lines, parquet files, Hugging Face datasets. A row is one prompt.

    jsonl:FILE                your file, one JSON object a line
    parquet:FILE              the rows of a parquet file, or of all in a folder
    datasets:FOLDER_OR_ID     what save_to_disk wrote, or an id of the hub

A model here reads text: parts of a message that are text are joined, as chat templates do; pictures, sound and films
are refused with the file and the line, in a message or in a column of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headway.core.text_naming import unknown
from headway.llm.tasks.file_tasks_data_rows import Row, files_at, place_of, read_rows
from headway.llm.tasks.reward_functions import load_rewards, named_rewards
from headway.llm.tasks.rewards import flexible_score, format_score, gsm8k_truth, strict_score
from headway.llm.tasks.tasks import HELD_OUT, TRAIN, Message, Prompt, PromptTask, Task, drawn_texts, user_says

GSM8K_REQUEST = "Think step by step. Write the result on the last line, as a number after ####."
THEIR_TRUTH = "reward_model.ground_truth"
ABSENT = object()
TEXTS = ("text", "input_text", "output_text")
MEDIA = ("image", "images", "video", "videos", "audio", "audios")
"""Columns that hold what is not text, by the names that data sets have for them."""
SCORES = {"strict": strict_score, "flexible": flexible_score}
SUFFIXES = (".jsonl", ".parquet")


def gsm8k(folder: str, *, seed: int, scoring: str = "strict", format_bonus: float = 0.0) -> Task:
    """Reads GSM8K from a folder: train and test, as .jsonl or .parquet. `format_bonus` is added for a response that
    ends as asked, right or wrong. A row has question and answer; or, as verl writes it, messages and their truth."""
    if scoring not in SCORES:
        raise ValueError(unknown("scoring", scoring, SCORES))
    rule = SCORES[scoring]

    def read(split: str, name: str) -> list[Prompt]:
        files = [Path(folder) / f"{name}{suffix}" for suffix in SUFFIXES]
        path = next((file for file in files if file.is_file()), files[0])
        if not path.is_file():
            raise ValueError(
                f"{path} does not exist: a folder with train and test of GSM8K is needed, as .jsonl or .parquet"
            )
        prompts: list[Prompt] = []
        for number, row in read_rows(path):
            messages, truth = _gsm8k_row(row, place_of(path, number))
            index = len(prompts)
            prompts.append(Prompt(f"gsm8k/{split}/{index}", index, split, "gsm8k", messages, truth))
        return prompts

    def score(prompt: Prompt, response: str) -> float:
        return rule(response, prompt.truth) + format_bonus * format_score(response)

    return PromptTask("gsm8k", read(TRAIN, "train"), read(HELD_OUT, "test"), score, seed=seed)


def _gsm8k_row(row: Row, here: str) -> tuple[tuple[Message, ...], str]:
    if "question" not in row and "prompt" in row:
        return messages_of(row, "prompt", here), str(_truth(row, "truth", here))
    question, answer = (_text(row, name, here) for name in ("question", "answer"))
    try:
        return (user_says(f"{question}\n{GSM8K_REQUEST}"),), gsm8k_truth(answer)
    except ValueError as error:
        raise ValueError(f"{here}: {error}") from None


def rows_of_files(
    file: str,
    *,
    seed: int,
    reward: str | Sequence[str] = (),
    reward_weights: Sequence[float] = (),
    held_out: str | None = None,
    held_out_fraction: float = 0.1,
    more_files: Sequence[str] = (),
    prompt_field: str = "prompt",
    truth_field: str | None = "truth",
    media_fields: Sequence[str] = (),
) -> Task:
    """Reads rows of files: a prompt (text, or messages), the truth, and whatever `reward` wants to know.

    A field may be inside of others: `reward_model.ground_truth`. Where a row has that and no `truth`, it is the truth.
    `tools` of a row are told to the chat template. `media_fields` are columns which, besides those called `images` and
    the like, hold what is not text: such a row is refused. Evaluation takes the file `held_out`, or this fraction of
    the different prompts with all of their rows, drawn once for all seeds. A sample without a `uid` is named after its
    file and line.
    """
    fields = _Fields.of(prompt_field, truth_field, media_fields)
    paths = [path for place in (file, *more_files) for path in files_at(place)]
    kind = "parquet" if paths[0].suffix == ".parquet" else "jsonl"
    rules = _Rules(f"{kind}:{file}", reward, reward_weights, held_out_fraction, seed)
    train = fields.prompts(_placed(paths), TRAIN)
    return rules.task(train, None if held_out is None else fields.prompts(_placed(files_at(held_out)), HELD_OUT))


def rows_of_datasets(
    place: str,
    *,
    seed: int,
    split: str = "train",
    config: str | None = None,
    reward: str | Sequence[str] = (),
    reward_weights: Sequence[float] = (),
    held_out_split: str | None = None,
    held_out_fraction: float = 0.1,
    prompt_field: str = "prompt",
    truth_field: str | None = "truth",
    media_fields: Sequence[str] = (),
) -> Task:
    """Reads a Hugging Face dataset by the same rules: its `split` to train on, and `held_out_split` to evaluate on, or
    a fraction of the first. `config` is the name of the dataset's own configuration."""
    try:
        from headway.llm.tasks.datasets_rows import read_dataset
    except ModuleNotFoundError as error:
        if error.name != "datasets":
            raise
        raise ValueError("task datasets needs the package datasets: pip install 'headway[data]'") from None
    fields = _Fields.of(prompt_field, truth_field, media_fields)
    rules = _Rules(f"datasets:{place}", reward, reward_weights, held_out_fraction, seed)
    stem = Path(place).name

    def read(which: str, ours: str) -> list[Prompt]:
        rows = read_dataset(place, which, config)
        named = (_Placed(f"{stem}/{which}", n, row, f"{place}, split {which!r}, row {n}") for n, row in rows)
        return fields.prompts(named, ours)

    return rules.task(read(split, TRAIN), None if held_out_split is None else read(held_out_split, HELD_OUT))


@dataclass(frozen=True, slots=True)
class _Rules:
    """Says how the prompts of some data are scored, and which of them are held out."""

    name: str
    reward: str | Sequence[str]
    weights: Sequence[float]
    held_out_fraction: float
    seed: int

    def __post_init__(self) -> None:
        if self.weights and not self.reward:
            raise ValueError(f"reward_weights={list(self.weights)} needs as many names in reward")
        if not 0 <= self.held_out_fraction < 1:
            raise ValueError(f"held_out_fraction must be in [0, 1), received {self.held_out_fraction!r}")

    def task(self, rows: list[Prompt], held_out: list[Prompt] | None) -> Task:
        rewards = load_rewards(named_rewards(self.reward), self.weights) if self.reward else None
        if held_out is None:
            fraction = self.held_out_fraction
            texts = [row.text for row in rows]
            chosen = drawn_texts(texts, lambda count: max(1, round(count * fraction)) if fraction else 0)
            held_out = [replace(row, split=HELD_OUT) for row, text in zip(rows, texts, strict=True) if text in chosen]
            rows = [row for row, text in zip(rows, texts, strict=True) if text not in chosen]
        return PromptTask(self.name, rows, held_out, rewards=rewards, seed=self.seed)


@dataclass(frozen=True, slots=True)
class _Placed:
    """Holds a row, and where it stands."""

    stem: str
    number: int
    row: Row
    here: str


def _placed(paths: Sequence[Path]) -> Iterable[_Placed]:
    for path in paths:
        for number, row in read_rows(path):
            yield _Placed(path.stem, number, row, place_of(path, number))


@dataclass(frozen=True, slots=True)
class _Fields:
    """Says where things are in a row."""

    prompt: str
    truth: str | None
    media: tuple[str, ...]

    @classmethod
    def of(cls, prompt: str, truth: str | None, media: Sequence[str]) -> _Fields:
        return cls(prompt, truth, (*MEDIA, *media))

    def prompts(self, rows: Iterable[_Placed], split: str) -> list[Prompt]:
        prompts: list[Prompt] = []
        seen: dict[str, str] = {}
        for one in rows:
            prompt = self._prompt(one, split, len(prompts))
            if prompt.uid in seen:
                raise ValueError(f"{one.here}: uid {prompt.uid!r} is already that of {seen[prompt.uid]}")
            seen[prompt.uid] = f"line {one.number}"
            prompts.append(prompt)
        return prompts

    def _prompt(self, one: _Placed, split: str, index: int) -> Prompt:
        row, here = one.row, one.here
        truth = None if self.truth is None else _truth(row, self.truth, here)
        messages = messages_of(row, self.prompt, here)
        for name in self.media:
            if row.get(name) and name not in (self.prompt, self.truth):
                raise ValueError(f"{here}: {name!r} holds what is not text ({_kind(row[name])}): prompts are text here")
        uid, source = row.get("uid"), row.get("data_source")
        told = {self.prompt, "uid", "data_source"} | ({"truth"} if self.truth == "truth" else set())
        return Prompt(
            f"{one.stem}/{one.number}" if uid is None else str(uid),
            index,
            split,
            one.stem if source is None else str(source),
            messages,
            truth,
            {name: value for name, value in row.items() if name not in told},
            tools_of(row, here),
            is_chat=isinstance(row[self.prompt], list),
        )


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
