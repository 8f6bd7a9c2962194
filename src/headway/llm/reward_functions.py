"""Reward functions: how each kind is called, what it may return, and what becomes of several.

    kind    called with                                              for          returns
    ours    prompt, response, truth, info                            one reply    a number, or a mapping with `score`
    verl    data_source, solution_str, ground_truth, extra_info      one reply    the same
    TRL     prompts, completions, completion_ids, the data's columns a group      a list: numbers, None: not applicable
    math    the checker math-verify                                  one reply    (`math_verify_rewards.py`)
    task    the task's own rule                                      one reply
    model   a scalar-head reward model, by its folder                a group      (`reward_models.py`)

Functions of the first three kinds are named as `package.module:function` or `folder/file.py:function` and may be
`async def`. Several are added up by their weights, in the order they are named; each is a part of the sum.

A question is asked (`ask`, which may take long, fail, or return a coroutine) and what comes back is read (`read`, which
cannot be helped by asking again). Who asks is somebody else: `RewardFunctions.score` here and now, or a `RewardPool`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from headway.core.naming import unknown
from headway.core.one_line import shortened
from headway.core.opaque import UserFunction
from headway.llm.rewards import RewardError, Scored, failed, parts_of, read_reward
from headway.llm.tasks import Message, Prompt
from headway.observe.user_functions import find_function

ARGUMENTS = ("prompt", "response", "truth", "info")
VERL_ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")
TRL_ARGUMENTS = ("prompts", "completions")
TOKENS = "completion_ids"
TRAINERS_OWN = ("trainer_state", "log_extra", "log_metric", "environments")
"""What TRL's trainer passes along of itself."""
MATH, TASK, MODEL = "math", "task", "model:"


@dataclass(frozen=True, slots=True)
class RewardQuestion:
    """Asks what some replies to one prompt are worth."""

    prompt: Prompt
    replies: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...] = ()
    """Of each reply; none where they are not known."""

    def of_each(self) -> list[RewardQuestion]:
        """Returns a question for every reply."""
        tokens: Sequence[tuple[tuple[int, ...], ...]] = [(t,) for t in self.tokens] or [()] * len(self.replies)
        return [RewardQuestion(self.prompt, (r,), t) for r, t in zip(self.replies, tokens, strict=True)]


Rewards = list[float | None]
"""What the replies of a question are worth; None: the function does not apply."""


class RewardFunction(Protocol):
    """Says what replies are worth. It can be pickled, unless it `stays_here`."""

    @property
    def name(self) -> str:
        """What its part is called in metrics and samples."""
        ...

    @property
    def is_batched(self) -> bool:
        """Is a whole group one question, or each reply?"""
        ...

    @property
    def is_async(self) -> bool:
        """Does `ask` return a coroutine?"""
        ...

    @property
    def stays_here(self) -> bool:
        """Is it asked in this process even where others are asked in processes of their own?"""
        ...

    @property
    def max_calls(self) -> int | None:
        """How many questions it can answer at once; None: any number."""
        ...

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError if prompts like this one lack what it needs."""
        ...

    def ask(self, question: RewardQuestion) -> object:
        """Asks the question. It may raise anything."""
        ...

    def read(self, value: object, question: RewardQuestion) -> Rewards:
        """Reads what came of it; raises RewardError."""
        ...


@dataclass(frozen=True)
class UserReward:
    """Calls a reward function of the user's own in the way that it wants to be called.

    What travels to another process is its name: each process loads the function for itself.
    """

    spec: str
    stays_here: bool = field(default=False, init=False)
    max_calls: int | None = field(default=None, init=False)
    _function: UserFunction = field(init=False, repr=False, compare=False)
    _wants: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        function = find_function(self.spec, "reward")
        kinds = (ARGUMENTS, VERL_ARGUMENTS)
        wants = next((names for names in kinds if _takes(function, names)), None)
        if wants is None and not _is_batched(function):
            choices = " or ".join(", ".join(names) for names in (*kinds, TRL_ARGUMENTS))
            takes = inspect.signature(function)
            raise ValueError(f"reward function {self.spec} must take {choices} by name; it takes {takes}")
        object.__setattr__(self, "_function", function)
        object.__setattr__(self, "_wants", wants or TRL_ARGUMENTS)

    def __reduce__(self) -> tuple[type[UserReward], tuple[str]]:
        return UserReward, (self.spec,)

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
        call = getattr(self._function, "__call__", None)  # noqa: B004 - an object with an async __call__
        return inspect.iscoroutinefunction(self._function) or inspect.iscoroutinefunction(call)

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


@dataclass(frozen=True)
class RuleReward:
    """Asks a rule that is here: that of a task."""

    name: str
    rule: Callable[[Prompt, str], float]
    is_batched: bool = field(default=False, init=False)
    is_async: bool = field(default=False, init=False)
    stays_here: bool = field(default=True, init=False)
    max_calls: int | None = field(default=None, init=False)

    def __str__(self) -> str:
        return f"reward {self.name}"

    def check(self, prompt: Prompt) -> None:
        pass

    def ask(self, question: RewardQuestion) -> object:
        return self.rule(question.prompt, question.replies[0])

    def read(self, value: object, question: RewardQuestion) -> Rewards:
        return [read_reward(value, str(self), question.prompt.uid)]


@dataclass(frozen=True)
class RewardFunctions:
    """Holds several reward functions and their weights: a reply is worth the weighted sum of what they say."""

    functions: tuple[RewardFunction, ...]
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.functions:
            raise ValueError("at least one reward function is needed, received none")
        if not self.weights:
            object.__setattr__(self, "weights", (1.0,) * len(self.functions))
        if len(self.weights) != len(self.functions):
            raise ValueError(
                f"reward_weights must be one for each of {len(self.functions)} rewards "
                f"({', '.join(self.names)}), received {list(self.weights)}"
            )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What the parts are called: by their functions; a second `score` is `score_2`."""
        names: list[str] = []
        for function in self.functions:
            same = sum(name == function.name for name in names)
            names.append(f"{function.name}_{same + 1}" if same else function.name)
        return tuple(names)

    def check(self, prompt: Prompt) -> None:
        for function in self.functions:
            function.check(prompt)

    def score(self, prompt: Prompt, replies: Sequence[str]) -> list[float]:
        """Asks everything here and now, one question after another."""
        question = RewardQuestion(prompt, tuple(replies))
        return self.combined(
            question,
            [
                [reward for one in questions_for(function, question) for reward in answered(function, one)]
                for function in self.functions
            ],
        )

    def combined(self, question: RewardQuestion, said: Sequence[Rewards]) -> list[float]:
        """Adds up what each function said of each reply, [functions][replies]. What does not apply is left out."""
        return [self._sum(question, one) for one in zip(*said, strict=True)]

    def _sum(self, question: RewardQuestion, said: Sequence[float | None]) -> float:
        if all(value is None for value in said):
            raise RewardError(f"no reward applies to sample {question.prompt.uid}: {', '.join(self.names)} say None")
        if len(said) == 1 and said[0] is not None and self.weights == (1.0,):
            return said[0]
        total, parts = 0.0, {}
        for name, weight, value in zip(self.names, self.weights, said, strict=True):
            if value is not None:
                total += weight * value
                parts[name] = float(value)
                parts |= {part if len(said) == 1 else f"{name}_{part}": more for part, more in parts_of(value).items()}
        return Scored(total, parts)


def questions_for(function: RewardFunction, question: RewardQuestion) -> list[RewardQuestion]:
    """Returns what is asked of a function: all at once, or one reply after another."""
    return [question] if function.is_batched else question.of_each()


def answered(function: RewardFunction, question: RewardQuestion) -> Rewards:
    """Asks a function and reads what it says; raises RewardError in one line that names the sample."""
    try:
        value = settled(function.ask(question))
    except RewardError:
        raise
    except Exception as error:
        raise RewardError(failed(str(function), question.prompt.uid, error)) from error
    return function.read(value, question)


def settled(value: object) -> object:
    """Returns what a function returned; of a coroutine, what it comes to."""
    if not inspect.isawaitable(value):
        return value

    async def wait() -> object:
        found: object = await value
        return found

    return asyncio.run(wait())


# -- by name ----------------------------------------------------------------------------------------


def named_rewards(spec: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the names of reward functions that a setting says: one, or a list."""
    names = (spec,) if isinstance(spec, str) else tuple(spec)
    for name in names:
        if not isinstance(name, str) or not name:
            raise ValueError(f"a reward is named by a text, or by a list of them; received {shortened(repr(spec))}")
    return names


def load_rewards(
    names: Sequence[str],
    weights: Sequence[float] = (),
    *,
    rule: Callable[[Prompt, str], float] | None = None,
    model: Callable[[str], RewardFunction] | None = None,
) -> RewardFunctions:
    """Loads reward functions by their names. `rule` is the task's own; `model` makes one of a reward model's folder."""
    return RewardFunctions(tuple(_load(name, rule, model) for name in names), tuple(map(float, weights)))


def _load(
    name: str,
    rule: Callable[[Prompt, str], float] | None,
    model: Callable[[str], RewardFunction] | None,
) -> RewardFunction:
    if name == TASK:
        if rule is None:
            raise ValueError("reward 'task' is the rule of a task that has one; rows of data have none of their own")
        return RuleReward(TASK, rule)
    if name == MATH:
        from headway.llm.math_verify_rewards import MathReward

        return MathReward()
    if name.startswith(MODEL):
        if model is None:
            raise ValueError(f"reward {name!r}: a reward model is named by reward_model, beside the task")
        return model(name.removeprefix(MODEL))
    if ":" not in name:
        raise ValueError(unknown("reward", name, (MATH, TASK, "file.py:function", "module:function")))
    return UserReward(name)


# -- what a function takes --------------------------------------------------------------------------


def _columns(prompt: Prompt) -> dict[str, Any]:
    about = {"truth": prompt.truth, "uid": prompt.uid, "data_source": prompt.data_source}
    return {**about, **prompt.info}


def _assistant_says(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _takes(function: Callable[..., Any], arguments: Sequence[str]) -> bool:
    """Can it be called with these? One that takes anything is asked for what it names."""
    if _is_batched(function):
        return False
    try:
        inspect.signature(function).bind(**dict.fromkeys(arguments))
    except TypeError:
        return False
    return True


def _is_batched(function: Callable[..., Any]) -> bool:
    return not {"completions", TOKENS}.isdisjoint(_named(function))


def _named(function: Callable[..., Any]) -> set[str]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {one.name for one in inspect.signature(function).parameters.values() if one.kind in kinds}


def _takes_any(function: Callable[..., Any]) -> bool:
    return any(one.kind is one.VAR_KEYWORD for one in inspect.signature(function).parameters.values())
