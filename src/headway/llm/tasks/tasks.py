"""Questions with answers that a rule can check.

    gsm8k:FOLDER             grade-school maths; FOLDER holds train.jsonl and test.jsonl
    reasoning_gym:DATASET    any dataset of reasoning-gym, scored by its own scorer
    jsonl:FILE               your prompts, scored by your reward function; so are the next two
    parquet:FILE             rows of a parquet file, or of those in a folder
    datasets:PLACE           a Hugging Face dataset: a folder that save_to_disk wrote, or an id of the hub
    larger_than              "a number larger than 57": trivial, for trying things out
    arithmetic               short sums, in five levels

    ticket 0 1 2 | 3 4 5 | 6 ...        three prompts: every epoch has each of them once, shuffled anew
    row    2 0 1 | 0 2 1 | 1 ...        by the seed; a ticket that is issued again asks the same question

The prompts themselves, and which of them are held out for evaluation, do not depend on the seed.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError

from headway.core.text_naming import unknown
from headway.core.types import derive_seed
from headway.llm.tasks.rewards import guarded

if TYPE_CHECKING:
    from headway.llm.tasks.reward_functions import RewardFunctions

TRAIN, HELD_OUT = "train", "held_out"
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    """Holds one question, and what is known of its answer."""

    uid: str
    index: int
    """Its place in its split."""
    split: str
    data_source: str
    messages: tuple[Message, ...]
    """As chat templates take them: `{"role": ..., "content": ...}`, the content a text; perhaps with `tool_calls`."""
    truth: Any = None
    info: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[Mapping[str, Any], ...] = ()
    """What the model is told that it may call, as chat templates take it."""
    is_chat: bool = False
    """The data has it as messages, not as a text: so have it reward functions that are called as TRL calls them."""

    @property
    def text(self) -> str:
        """Returns all that is said, for people to read."""
        return said_by(self.messages, self.tools)

    @property
    def question(self) -> str:
        """Returns what the user says last."""
        return next((m["content"] for m in reversed(self.messages) if m["role"] == "user"), "")


def said_by(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> str:
    """Writes a conversation in lines that name who speaks; a single message alone as it is."""
    if len(messages) == 1 and not tools:
        return str(messages[0]["content"])
    lines = [f"tools: {json.dumps(tools, ensure_ascii=False)}"] if tools else []
    for message in messages:
        calls = f" {json.dumps(message['tool_calls'], ensure_ascii=False)}" if message.get("tool_calls") else ""
        lines.append(f"{message['role']}: {message['content']}{calls}")
    return "\n".join(lines)


def with_system_prompt(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    """Returns the messages as the model gets them: after this text, if there is any."""
    return ({"role": "system", "content": text}, *messages) if text else tuple(messages)


def drawn_texts(texts: Iterable[str], wanted: Callable[[int], int]) -> set[str]:
    """Draws the texts to hold out, the same for every seed: as many of the different ones as are `wanted` of that
    number, but not all. By text and not by row, because a row that is trained on may ask what another row asks."""
    different = list(dict.fromkeys(texts))
    count = min(wanted(len(different)), len(different) - 1)
    return {different[k] for k in np.random.default_rng(0).permutation(len(different))[:count].tolist()}


def user_says(text: str) -> Message:
    return {"role": "user", "content": text}


class Task(Protocol):
    """Says which prompt a ticket asks, and what a response is worth."""

    @property
    def name(self) -> str: ...

    @property
    def held_out(self) -> Sequence[Prompt]:
        """Prompts that are only evaluated on."""
        ...

    def __len__(self) -> int:
        """Counts the prompts of an epoch."""
        ...

    def prompt(self, ticket: int) -> Prompt:
        """Returns the prompt of the ticket with this index, always the same."""
        ...

    def reward(self, prompt: Prompt, response: str) -> float:
        """Says what the response is worth, or raises RewardError. A `Scored` has other numbers with it."""
        ...


class LongPrompt(ValueError):
    """A prompt has more tokens than there is room for. One line that names it."""


class PromptTask:
    """Takes prompts from lists, shuffled anew every epoch, and scores by a rule of its own, or by `rewards`.

    What `rewards` are is for whoever collects or evaluates to call beside generation (`reward_pool.py`).
    """

    def __init__(
        self,
        name: str,
        train: Sequence[Prompt],
        held_out: Sequence[Prompt],
        score: Callable[[Prompt, str], float | bool] | None = None,
        *,
        rewards: RewardFunctions | None = None,
        seed: int = 0,
    ) -> None:
        if not len(train):
            raise ValueError(f"task {name} has no prompts to train on")
        if rewards is not None:
            rewards.check(train[0])
        self.name = name
        self.held_out = held_out
        self._train = train
        self.rewards = rewards
        self._score = score
        self._seed = seed
        self._order = functools.lru_cache(maxsize=2)(self._shuffled)

    def __len__(self) -> int:
        return len(self._train)

    def prompt(self, ticket: int) -> Prompt:
        epoch, place = divmod(ticket, len(self._train))
        return self._train[int(self._order(epoch)[place])]

    def listed(self, split: str) -> Sequence[Prompt]:
        """Lists the prompts of a split that are there already; none where they are made on demand."""
        prompts = self._train if split == TRAIN else self.held_out
        return () if isinstance(prompts, Generated) else prompts

    def without(self, is_too_long: Callable[[Prompt], bool]) -> tuple[PromptTask, dict[str, int]]:
        """Returns this task without some of its listed prompts, and how many those are, by split."""
        kept: dict[str, Sequence[Prompt]] = {}
        left_out = {}
        for split, prompts in ((TRAIN, self._train), (HELD_OUT, self.held_out)):
            listed = self.listed(split)
            kept[split] = [prompt for prompt in listed if not is_too_long(prompt)] if listed else prompts
            left_out[split] = len(prompts) - len(kept[split])
        if not kept[TRAIN]:
            raise ValueError(f"task {self.name}: every prompt to train on is too long")
        return self._with(kept[TRAIN], kept[HELD_OUT], self.rewards), left_out

    def scored_by(self, rewards: RewardFunctions) -> PromptTask:
        """Returns this task with other reward functions."""
        return self._with(self._train, self.held_out, rewards)

    def _with(self, train: Sequence[Prompt], held_out: Sequence[Prompt], rewards: RewardFunctions | None) -> PromptTask:
        return PromptTask(self.name, train, held_out, self._score, rewards=rewards, seed=self._seed)

    def reward(self, prompt: Prompt, response: str) -> float:
        if self.rewards is not None:
            return self.rewards.score(prompt, [response])[0]
        return self.by_rule(prompt, response)

    def by_rule(self, prompt: Prompt, response: str) -> float:
        """Says what a response is worth by the task's own rule."""
        rule = self._score
        if rule is None:
            raise ValueError(f"task {self.name} has neither a rule of its own nor reward functions")
        return guarded(lambda: rule(prompt, response), f"the scorer of {self.name}", prompt.uid)

    @property
    def has_rule(self) -> bool:
        return self._score is not None

    def _shuffled(self, epoch: int) -> np.ndarray:
        return np.random.default_rng(derive_seed(self._seed, "epoch", epoch)).permutation(len(self._train))


class Generated(Sequence[Prompt]):
    """Makes prompts when they are asked for, each from its index alone."""

    def __init__(self, size: int, make: Callable[[int], Prompt]) -> None:
        if size < 0:
            raise ValueError(f"a number of prompts must be >= 0, received {size!r}")
        self._size = size
        self._make = make

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._make(i) for i in range(*index.indices(self._size))]
        if not -self._size <= index < self._size:
            raise IndexError(f"prompt {index} of {self._size}")
        return self._make(index % self._size)


class Distinct(Generated):
    """Makes prompts in turn and passes over those that say the same as an earlier one, so there may be fewer."""

    def __init__(self, size: int, make: Callable[[int], Prompt]) -> None:
        super().__init__(size, make)
        self._found: dict[tuple[str, str], Prompt] = {}
        self._next = 0

    def __getitem__(self, index: Any) -> Any:
        last = index if isinstance(index, int) and index >= 0 else self._size
        while len(self._found) <= last and self._next < self._size:
            prompt = self._make(self._next)
            self._found.setdefault((prompt.text, repr(prompt.truth)), prompt)
            self._next += 1
        return list(self._found.values())[index]


def load_task(
    spec: str, *, seed: int = 0, rewards: Callable[[PromptTask], RewardFunctions] | None = None, **options: Any
) -> Task:
    """Makes the task that `spec` names (see the top of this file); unknown names and options are refused.

    `rewards` makes the reward functions that score it in place of its own rule or of the option `reward`.
    """
    kind, _, argument = spec.partition(":")
    if kind not in TASKS:
        raise ValueError(unknown("task", kind, TASKS))
    source = TASKS[kind]
    if bool(source.argument) != bool(argument):
        raise ValueError(f"task {kind} is written {kind}{source.argument and ':'}{source.argument}, received {spec!r}")
    make = source.maker()
    allowed = [k for k, p in inspect.signature(make).parameters.items() if p.kind is p.KEYWORD_ONLY and k != "seed"]
    for option in options:
        if option not in allowed:
            raise ValueError(unknown(f"option of task {kind!r}", option, allowed))
    _check_kinds(kind, make, options)
    made: Task = make(*([argument] if argument else []), seed=seed, **options)
    if not isinstance(made, PromptTask):
        return made
    if rewards is not None:
        if made.rewards is not None:
            raise ValueError(f"rewards are named twice: beside task {kind} and in its option 'reward'")
        return made.scored_by(rewards(made))
    if made.rewards is None and not made.has_rule:
        raise ValueError(f"task {kind} needs a reward function: reward=file.py:function or reward=module:function")
    return made


def _check_kinds(task: str, make: Callable[..., Task], options: Mapping[str, Any]) -> None:
    """Refuses an option whose value is of another kind than the task says: a word for a number, a number for a list."""
    hints = get_type_hints(make)
    for option, value in options.items():
        try:
            TypeAdapter(hints[option]).validate_python(value, strict=True)
        except ValidationError as error:
            why = error.errors(include_url=False)[0]["msg"]
            raise ValueError(f"option {option!r} of task {task!r}: {why}, received {value!r}") from None


@dataclass(frozen=True, slots=True)
class _TaskSource:
    """Says where the function that makes a task is found, and what it wants after the colon."""

    module: str
    function: str
    argument: str = ""
    package: str = ""
    """What has to be installed for it."""

    def maker(self) -> Callable[..., Task]:
        try:
            module = importlib.import_module(f"headway.llm.tasks.{self.module}")
        except ModuleNotFoundError as error:
            if not self.package or error.name != self.package.replace("-", "_"):
                raise
            raise ValueError(f"this task needs {self.package}: pip install {self.package}") from None
        found: Callable[..., Task] = getattr(module, self.function)
        return found


TASKS: dict[str, _TaskSource] = {
    "gsm8k": _TaskSource("file_tasks", "gsm8k", "FOLDER"),
    "jsonl": _TaskSource("file_tasks", "rows_of_files", "FILE"),
    "parquet": _TaskSource("file_tasks", "rows_of_files", "FILE"),
    "datasets": _TaskSource("file_tasks", "rows_of_datasets", "FOLDER_OR_ID"),
    "reasoning_gym": _TaskSource("reasoning_gym_tasks", "reasoning_gym_task", "DATASET", "reasoning-gym"),
    "larger_than": _TaskSource("synthetic_tasks", "larger_than"),
    "arithmetic": _TaskSource("synthetic_tasks", "arithmetic"),
}
