"""Any dataset of reasoning-gym as a task, scored by its own scorer.

Problems are made from an index, those held out from indices far away. A dataset with few different problems may
still make the same one twice.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any

import reasoning_gym
from reasoning_gym.factory import DATASETS

from headway.core.naming import unknown
from headway.llm.tasks import HELD_OUT, TRAIN, Generated, Prompt, PromptTask, Task, user_says

SEEDS = {TRAIN: 0, HELD_OUT: 2**30}  # a dataset makes problem i from seed + i
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
    """`config` goes to the dataset. With `tags` the answer is asked for, and read, between <answer> tags."""
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
    try:
        sets = {k: reasoning_gym.create_dataset(dataset, seed=SEEDS[k], size=sizes[k], **settings) for k in sizes}
    except (AssertionError, TypeError, ValueError) as error:
        raise ValueError(f"reasoning-gym refuses {settings} for dataset {dataset!r}: {error}") from error

    @functools.lru_cache(maxsize=256)
    def entry(split: str, index: int) -> Any:
        return sets[split][index]

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

    train, test = (Generated(sizes[split], functools.partial(make, split)) for split in (TRAIN, HELD_OUT))
    return PromptTask(name, train, test, score, seed=seed)
