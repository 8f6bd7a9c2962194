"""A reward function of the user's own, called as it wants to be called: as ours, as verl's, or as TRL's.

def score(prompt, response, truth, info): ...                                     # of one reply
def compute_score(data_source, solution_str, ground_truth, extra_info): ...       # the same
def reward(prompts, completions, **columns): ...                                  # of a group: lists of equal length

Which it is, its arguments say: what takes `completions` (or `completion_ids`) is called as TRL calls it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from headway.core.text_naming import unknown
from headway.core.types_opaque import SettingValue, UserFunction
from headway.llm.tasks.reward_functions import RewardQuestion, Rewards
from headway.llm.tasks.rewards import RewardError, read_reward
from headway.llm.tasks.tasks import Message, Prompt
from headway.runs.user_code_user_functions import find_function

ARGUMENTS = ("prompt", "response", "truth", "info")
VERL_ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")
TRL_ARGUMENTS = ("prompts", "completions")
TOKENS = "completion_ids"
TRAINERS_OWN = ("trainer_state", "log_extra", "log_metric", "environments")
"""What TRL's trainer passes along of itself."""


@dataclass(frozen=True)
class UserReward:
    """Calls a reward function of the user's own in the way that it wants to be called.

    What travels to another process is its name: each process loads the function for itself.
    """

    spec: str
    options: Mapping[str, SettingValue] = field(default_factory=dict)
    """More arguments, by name."""
    stays_here: bool = field(default=False, init=False)
    max_calls: int | None = field(default=None, init=False)
    _function: UserFunction = field(init=False, repr=False, compare=False)
    _wants: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        function = find_function(self.spec, "reward")
        for name in self.options:
            if name not in _named(function) and not _takes_any(function):
                raise ValueError(f"reward function {self.spec} takes no {name!r} (reward_options)")
        function = partial(function, **self.options) if self.options else function
        kinds = (ARGUMENTS, VERL_ARGUMENTS)
        wants = next((names for names in kinds if _takes(function, names)), None)
        if wants is None and not _is_batched(function):
            choices = " or ".join(", ".join(names) for names in (*kinds, TRL_ARGUMENTS))
            takes = inspect.signature(function)
            raise ValueError(f"reward function {self.spec} must take {choices} by name; it takes {takes}")
        object.__setattr__(self, "_function", function)
        object.__setattr__(self, "_wants", wants or TRL_ARGUMENTS)

    def __reduce__(self) -> tuple[type[UserReward], tuple[str, Mapping[str, SettingValue]]]:
        return UserReward, (self.spec, dict(self.options))

    def __str__(self) -> str:
        return f"reward function {self.spec}"

    @property
    def name(self) -> str:
        return self.spec.rpartition(":")[2]

    @property
    def is_batched(self) -> bool:
        return self._wants == TRL_ARGUMENTS

    @property
    def is_async(self) -> bool:
        function = self._function.func if isinstance(self._function, partial) else self._function
        call = getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
        return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)

    def check(self, prompt: Prompt) -> None:
        if not self.is_batched:
            return
        known = {*TRL_ARGUMENTS, TOKENS, *_columns(prompt)}
        for name in self._needed:
            if name in TRAINERS_OWN:
                raise ValueError(f"{self} needs {name!r}, which is TRL's trainer's own: give it a default")
            if name not in known:
                raise ValueError(f"{self} needs a column of the data: {unknown('column', name, known)}")

    @cached_property
    def _needed(self) -> list[str]:
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        found = inspect.signature(self._function).parameters.values()
        return [one.name for one in found if one.kind in kinds and one.default is one.empty]

    def ask(self, question: RewardQuestion) -> object:
        if self.is_batched:
            return self._function(**self._batch(question))
        prompt, (response,) = question.prompt, question.replies
        info = {**prompt.info, "uid": prompt.uid, "index": prompt.index, "data_source": prompt.data_source}
        if self._wants == ARGUMENTS:
            return self._function(prompt=prompt.question, response=response, truth=prompt.truth, info=info)
        extra = info.get("extra_info")
        about = {**info, **extra} if isinstance(extra, Mapping) else info
        return self._function(
            data_source=prompt.data_source, solution_str=response, ground_truth=prompt.truth, extra_info=about
        )

    def _batch(self, question: RewardQuestion) -> dict[str, Any]:
        """A list for every argument, an entry for every reply: of those that it names, or all if it takes any."""
        prompt, size = question.prompt, len(question.replies)
        asked: Any = [dict(message) for message in prompt.messages] if prompt.is_chat else prompt.question
        replies: list[Any] = list(question.replies)
        if prompt.is_chat:
            replies = [[_assistant_says(text)] for text in replies]
        columns = {name: [value] * size for name, value in _columns(prompt).items()}
        given = {**columns, "prompts": [asked] * size, "completions": replies}
        if question.tokens:
            given[TOKENS] = [list(tokens) for tokens in question.tokens]
        named = _named(self._function)
        return given if _takes_any(self._function) else {name: v for name, v in given.items() if name in named}

    def read(self, value: object, question: RewardQuestion) -> Rewards:
        uid, size = question.prompt.uid, len(question.replies)
        if not self.is_batched:
            return [read_reward(value, str(self), uid)]
        values = value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(values, list | tuple) or len(values) != size:
            many = f"{len(values)} numbers" if isinstance(values, list | tuple) else f"a {type(value).__name__}"
            raise RewardError(f"{self} returned {many} for {size} replies to sample {uid}; allowed: one for each")
        return [None if one is None else read_reward(one, str(self), uid) for one in values]


def _columns(prompt: Prompt) -> dict[str, Any]:
    about = {"truth": prompt.truth, "uid": prompt.uid, "data_source": prompt.data_source}
    return {**about, **prompt.info}


def _assistant_says(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _takes(function: UserFunction, arguments: Sequence[str]) -> bool:
    """Can it be called with these? One that takes anything is asked for what it names."""
    if _is_batched(function):
        return False
    try:
        inspect.signature(function).bind(**dict.fromkeys(arguments))
    except TypeError:
        return False
    return True


def _is_batched(function: UserFunction) -> bool:
    return not {"completions", TOKENS}.isdisjoint(_named(function))


def _named(function: UserFunction) -> set[str]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {one.name for one in inspect.signature(function).parameters.values() if one.kind in kinds}


def _takes_any(function: UserFunction) -> bool:
    return any(one.kind is one.VAR_KEYWORD for one in inspect.signature(function).parameters.values())
