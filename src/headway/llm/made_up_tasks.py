"""Tasks that need no data: each problem is made from its index.

What a problem says decides which split it is in, so no problem is in both, and they are the same for every seed.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from decimal import Decimal
from typing import TypeVar

from headway.core.types import derive_seed
from headway.llm.rewards import flexible_score, last_number
from headway.llm.tasks import HELD_OUT, TRAIN, Generated, Prompt, PromptTask, Task, user_says

Problem = TypeVar("Problem")
MAX_DRAWS = 1000


def larger_than(*, seed: int, size: int = 1000, held_out: int = 100, max_number: int = 999) -> Task:
    """A number larger than X, for X up to `max_number`."""
    if max_number < 99:
        raise ValueError(f"max_number must be >= 99, or the splits have too few numbers, received {max_number!r}")

    def make(split: str, index: int) -> Prompt:
        number = _draw("larger_than", split, index, lambda rng: rng.randint(0, max_number))
        uid = f"larger_than/{split}/{index}"
        messages = (user_says(f"Answer with a number larger than {number}."),)
        return Prompt(uid, index, split, "larger_than", messages, str(number))

    def score(prompt: Prompt, response: str) -> bool:
        found = last_number(response)
        return found is not None and Decimal(found) > Decimal(prompt.truth)

    return _generated("larger_than", make, score, seed, size, held_out)


LEVELS = {1: (1, 2, "+"), 2: (1, 2, "+-"), 3: (2, 2, "+-"), 4: (3, 2, "+-"), 5: (2, 3, "+-")}  # digits, terms, signs


def arithmetic(*, seed: int, level: int = 1, size: int = 1000, held_out: int = 100) -> Task:
    """Sums of two numbers (three at level 5) with one to three digits; from level 2 on with differences."""
    if level not in LEVELS:
        raise ValueError(f"level must be 1 to {max(LEVELS)}, received {level!r}")
    digits, terms, signs = LEVELS[level]

    def draw(rng: random.Random) -> tuple[str, int]:
        text = str(total := rng.randint(0, 10**digits - 1))
        for _ in range(terms - 1):
            sign, number = rng.choice(signs), rng.randint(0, 10**digits - 1)
            text, total = f"{text} {sign} {number}", total + (number if sign == "+" else -number)
        return text, total

    def make(split: str, index: int) -> Prompt:
        text, total = _draw(f"arithmetic-{level}", split, index, draw)
        uid = f"arithmetic-{level}/{split}/{index}"
        messages = (user_says(f"What is {text}? Answer with the number only."),)
        return Prompt(uid, index, split, f"arithmetic-{level}", messages, str(total), {"level": level})

    def score(prompt: Prompt, response: str) -> float:
        return flexible_score(response, prompt.truth)

    return _generated(f"arithmetic-{level}", make, score, seed, size, held_out)


def _generated(
    name: str,
    make: Callable[[str, int], Prompt],
    score: Callable[[Prompt, str], float | bool],
    seed: int,
    size: int,
    held_out: int,
) -> Task:
    train = Generated(size, functools.partial(make, TRAIN))
    return PromptTask(name, train, Generated(held_out, functools.partial(make, HELD_OUT)), score, seed=seed)


def _draw(name: str, split: str, index: int, draw: Callable[[random.Random], Problem]) -> Problem:
    """Draw until a problem of this split comes up: one in ten is held out."""
    for attempt in range(MAX_DRAWS):
        problem = draw(random.Random(derive_seed(0, name, split, index, attempt)))
        is_held_out = derive_seed(0, name, repr(problem)) % 10 == 0
        if is_held_out == (split == HELD_OUT):
            return problem
    raise RuntimeError(f"{MAX_DRAWS} draws of {name} gave no problem of the split {split}")
