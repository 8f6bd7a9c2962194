"""Any dataset of reasoning-gym as a task, scored by its own scorer.

    index --seed of the split--> problem --what it says is hashed--> of this split: taken
                                                                     of the other: another one is made, up to MAX_DRAWS

What a problem says decides which split it is in, so no problem is in both: one in five is held out. Some datasets make
the same problem for several indices; held-out ones are asked once each.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any

import reasoning_gym
from reasoning_gym.factory import DATASETS

from headway.core.text_naming import unknown
from headway.core.types import derive_seed
from headway.llm.tasks.tasks import HELD_OUT, TRAIN, Distinct, Generated, Prompt, PromptTask, Task, user_says

SEEDS = {TRAIN: 0, HELD_OUT: 2**30}  # a dataset makes problem i from seed + i
FURTHER = 2**22
"""How far the seeds of another try are away."""
MAX_DRAWS = 100
BLOCK = 256
ONE_IN = 5
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What some scorers raise for an answer they cannot parse. That is a wrong answer, and no reason to stop a run."""
REQUEST = "Write the answer between <answer> and </answer>."


def reasoning_gym_task(
    dataset: str,
    *,
    seed: int,
    size: int = 10_000,
    held_out: int = 200,
    config: Mapping[str, Any] | None = None,
    tags: bool = True,
) -> Task:
    """Makes a task of a dataset, which gets `config`. With `tags` the answer stands between <answer> tags."""
    settings = dict(config or {})
    if dataset not in DATASETS:
        raise ValueError(unknown("reasoning-gym dataset", dataset, DATASETS))
    allowed = {field.name for field in dataclasses.fields(DATASETS[dataset][1])} - {"seed", "size"}
    for name in settings:
        if name not in allowed:
            raise ValueError(unknown(f"config of reasoning-gym dataset {dataset!r}", name, allowed))
    name = f"reasoning_gym:{dataset}"
    sizes = {TRAIN: size, HELD_OUT: held_out}
    if min(sizes.values()) < 1:
        raise ValueError(f"task {name} needs size and held_out >= 1, received {size!r} and {held_out!r}")
    create = functools.partial(reasoning_gym.create_dataset, dataset, **settings)
    try:
        sets = {split: create(seed=SEEDS[split], size=sizes[split]) for split in sizes}
    except (AssertionError, TypeError, ValueError) as error:
        raise ValueError(f"reasoning-gym refuses {settings} for dataset {dataset!r}: {error}") from error

    @functools.lru_cache(maxsize=64)
    def more(split: str, draw: int, block: int) -> Any:
        return create(seed=SEEDS[split] + draw * FURTHER + block * BLOCK, size=BLOCK)

    @functools.lru_cache(maxsize=256)
    def entry(split: str, index: int) -> Any:
        block, place = divmod(index, BLOCK)
        for draw in range(MAX_DRAWS):
            found = more(split, draw, block)[place] if draw else sets[split][index]
            if (derive_seed(0, name, found["question"]) % ONE_IN == 0) == (split == HELD_OUT):
                return found
        verb = "hold out" if split == HELD_OUT else "train on"
        raise ValueError(
            f"task {name} makes too few different prompts: none of {MAX_DRAWS} was one to {verb}; "
            "another config of the dataset may make more"
        )

    def make(split: str, index: int) -> Prompt:
        found = entry(split, index)
        question = f"{found['question']}\n{REQUEST}" if tags else found["question"]
        return Prompt(f"{name}/{split}/{index}", index, split, name, (user_says(question),), found["answer"])

    def score(prompt: Prompt, response: str) -> float:
        answers = ANSWER.findall(response) if tags else [response]
        answer = answers[-1].strip() if answers else None
        try:
            return float(sets[prompt.split].score_answer(answer, entry(prompt.split, prompt.index)))
        except UNREADABLE:
            return 0.0

    for split in sizes:
        entry(split, 0)  # what has no prompts at all is said now
    train = Generated(size, functools.partial(make, TRAIN))
    return PromptTask(name, train, Distinct(held_out, functools.partial(make, HELD_OUT)), score, seed=seed)
