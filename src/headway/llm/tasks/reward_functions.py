"""Reward functions: how each kind is called, what it may return, and what becomes of several.

    kind    called with                                              for          returns
    ours    prompt, response, truth, info                            one reply    a number, or a mapping with `score`
    verl    data_source, solution_str, ground_truth, extra_info      one reply    the same
    TRL     prompts, completions, completion_ids, the data's columns a group      a list: numbers, None: not applicable
    math    the checker math-verify                                  one reply    (`math_verify_rewards.py`)
    task    the task's own rule                                      one reply
    model   a scalar-head reward model, by its folder                a group      (`reward_models.py`)

Functions of the first three kinds (`user_rewards.py`) are named as `package.module:function` or
`folder/file.py:function` and may be `async def`. Several are added up by their weights, in the order they are named;
each is a part of the sum.

A question is asked (`ask`, which may take long, fail, or return a coroutine) and what comes back is read (`read`, which
cannot be helped by asking again). Who asks is somebody else: `RewardFunctions.score` here and now, or a `RewardPool`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from headway.core.text_naming import unknown
from headway.core.text_one_line import in_a_line, shortened
from headway.core.types_opaque import SettingValue
from headway.llm.tasks.rewards import RewardError, Scored, failed, parts_of, read_reward
from headway.llm.tasks.tasks import Prompt

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

    return asyncio.run(awaited(value))


async def awaited(value: Awaitable[object]) -> object:
    """Waits for it. A cancellation that nobody has asked for, as clients of services raise it, is a failure like any:
    passed on, it would look as if whoever waits here was to stop."""
    try:
        return await value
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RuntimeError(in_a_line(error)) from None


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
    options: Mapping[str, SettingValue] | None = None,
    rule: Callable[[Prompt, str], float] | None = None,
    model: Callable[[str], RewardFunction] | None = None,
) -> RewardFunctions:
    """Loads reward functions by their names. Those of the user get `options` besides; `rule` is the task's own, and
    `model` makes one of a reward model's folder."""
    found = tuple(_load(name, options or {}, rule, model) for name in names)
    if options and all(name in (MATH, TASK) or name.startswith(MODEL) for name in names):
        raise ValueError(f"reward_options={dict(options)} is for functions of your own, and there is none")
    return RewardFunctions(found, tuple(map(float, weights)))


def _load(
    name: str,
    options: Mapping[str, SettingValue],
    rule: Callable[[Prompt, str], float] | None,
    model: Callable[[str], RewardFunction] | None,
) -> RewardFunction:
    if name == TASK:
        if rule is None:
            raise ValueError("reward 'task' is the rule of a task that has one; rows of data have none of their own")
        return RuleReward(TASK, rule)
    if name == MATH:
        from headway.llm.tasks.math_verify_rewards import MathReward

        return MathReward()
    if name.startswith(MODEL):
        if model is None:
            raise ValueError(f"reward {name!r}: a reward model is named by reward_model, beside the task")
        return model(name.removeprefix(MODEL))
    if ":" not in name:
        raise ValueError(unknown("reward", name, (MATH, TASK, "file.py:function", "module:function")))
    from headway.llm.tasks.reward_functions_user_rewards import UserReward

    return UserReward(name, options)
