"""Tasks that need no data: each problem is made from its index.

What a problem says decides which split it is in, so no problem is in both, and they are the same for every seed. A
problem is held out once: where there are fewer than asked for, all of them are.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Hashable, Iterable
from decimal import Decimal
from typing import Generic, TypeVar

from headway.core.types import derive_seed
from headway.llm.tasks.rewards import flexible_score, last_number
from headway.llm.tasks.tasks import HELD_OUT, TRAIN, Generated, Prompt, PromptTask, Task, user_says

Problem = TypeVar("Problem", bound=Hashable)
MAX_DRAWS = 1000
FEW = 4000
"""So many problems can be looked at one by one."""


def larger_than(*, seed: int, size: int = 1000, held_out: int = 100, max_number: int = 999) -> Task:
    """Asks for a number larger than X, for X up to `max_number`."""
    if max_number < 99:
        raise ValueError(f"max_number must be >= 99, or the splits have too few numbers, received {max_number!r}")

    def draw(rng: random.Random) -> int:
        return rng.randint(0, max_number)

    def make(split: str, index: int, number: int) -> Prompt:
        uid = f"larger_than/{split}/{index}"
        messages = (user_says(f"Answer with a number larger than {number}."),)
        return Prompt(uid, index, split, "larger_than", messages, str(number))

    def score(prompt: Prompt, response: str) -> bool:
        found = last_number(response)
        return found is not None and Decimal(found) > Decimal(prompt.truth)

    problems = _Problems("larger_than", draw, max_number + 1, range(max_number + 1))
    return _generated("larger_than", problems, make, score, seed, size, held_out)


LEVELS = {1: (1, 2, "+"), 2: (1, 2, "+-"), 3: (2, 2, "+-"), 4: (3, 2, "+-"), 5: (2, 3, "+-")}  # digits, terms, signs


def arithmetic(*, seed: int, level: int = 1, size: int = 1000, held_out: int = 100) -> Task:
    """Asks for sums of two numbers (three at level 5) with one to three digits; from level 2 on with differences."""
    if level not in LEVELS:
        raise ValueError(f"level must be 1 to {max(LEVELS)}, received {level!r}")
    digits, terms, signs = LEVELS[level]

    def draw(rng: random.Random) -> tuple[str, int]:
        first = rng.randint(0, 10**digits - 1)
        return _sum(first, [(rng.choice(signs), rng.randint(0, 10**digits - 1)) for _ in range(terms - 1)])

    def make(split: str, index: int, problem: tuple[str, int]) -> Prompt:
        text, total = problem
        uid = f"arithmetic-{level}/{split}/{index}"
        messages = (user_says(f"What is {text}? Answer with the number only."),)
        return Prompt(uid, index, split, f"arithmetic-{level}", messages, str(total), {"level": level})

    def score(prompt: Prompt, response: str) -> float:
        return flexible_score(response, prompt.truth)

    numbers = range(10**digits)
    steps = itertools.product(*[itertools.product(signs, numbers)] * (terms - 1))
    every = (_sum(first, rest) for rest in steps for first in numbers)
    problems = _Problems(f"arithmetic-{level}", draw, len(numbers) ** terms * len(signs) ** (terms - 1), every)
    return _generated(f"arithmetic-{level}", problems, make, score, seed, size, held_out)


def _sum(total: int, steps: Iterable[tuple[str, int]]) -> tuple[str, int]:
    text = str(total)
    for sign, number in steps:
        text, total = f"{text} {sign} {number}", total + (number if sign == "+" else -number)
    return text, total


class _Problems(Generic[Problem]):
    """Divides the problems of a task into two splits: one in ten is held out. `every` lists them, each once."""

    def __init__(
        self, name: str, draw: Callable[[random.Random], Problem], count: int, every: Iterable[Problem]
    ) -> None:
        self._name = name
        self._draw = draw
        self._count = count
        self._every = every

    def drawn(self, split: str, index: int) -> Problem:
        """Draws until a problem of this split comes up; now and then it is the same for another index."""
        for attempt in range(MAX_DRAWS):
            problem = self._draw(random.Random(derive_seed(0, self._name, split, index, attempt)))
            if self._is_held_out(problem) == (split == HELD_OUT):
                return problem
        raise RuntimeError(f"{MAX_DRAWS} draws of {self._name} gave no problem of the split {split}")

    def held_out(self, number: int) -> list[Problem]:
        """Finds so many different ones, or all there are: of many problems they are drawn, of few all are looked at."""
        if number < 0:
            raise ValueError(f"task {self._name}: held_out must be >= 0, received {number!r}")
        if self._count <= FEW:
            found = [problem for problem in self._every if self._is_held_out(problem)]
            return sorted(found, key=self._key)[:number]
        most = self._count // 20  # half of them: drawing goes on for ever if it is to find the last one too
        if number > most:
            raise ValueError(f"task {self._name}: held_out must be at most {most}, received {number!r}")
        chosen: dict[Problem, None] = {}
        for index in itertools.count():
            if len(chosen) >= number:
                break
            chosen.setdefault(self.drawn(HELD_OUT, index))
        return list(chosen)

    def _is_held_out(self, problem: Problem) -> bool:
        return self._key(problem) % 10 == 0

    def _key(self, problem: Problem) -> int:
        return derive_seed(0, self._name, repr(problem))


def _generated(
    name: str,
    problems: _Problems[Problem],
    make: Callable[[str, int, Problem], Prompt],
    score: Callable[[Prompt, str], float | bool],
    seed: int,
    size: int,
    held_out: int,
) -> Task:
    def train(index: int) -> Prompt:
        return make(TRAIN, index, problems.drawn(TRAIN, index))

    chosen = problems.held_out(held_out)
    test = Generated(len(chosen), lambda index: make(HELD_OUT, index, chosen[index]))
    return PromptTask(name, Generated(size, train), test, score, seed=seed)
