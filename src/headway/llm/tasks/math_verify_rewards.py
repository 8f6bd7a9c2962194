"""Checks mathematics with math-verify: 1/2, 0.5 and \\frac{1}{2} are equal, sets and intervals too.

Its own time limits are signals, which only a main thread may set. They are off here: whoever asks has a deadline
(`reward_pool.py`), after which a thread is left behind and a process is killed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from headway.llm.tasks.reward_functions import MATH, RewardQuestion, Rewards
from headway.llm.tasks.rewards import read_reward
from headway.llm.tasks.tasks import Prompt

try:
    from math_verify import parse, verify
except ModuleNotFoundError as error:
    if error.name != "math_verify":
        raise
    raise ValueError("reward 'math' needs math-verify: pip install 'headway[math]'") from None

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it says at every start that there are no time limits


@dataclass(frozen=True)
class MathReward:
    """Gives 1 to a reply whose last formula or number equals the truth, 0 to others; nothing if the truth is none."""

    name: str = field(default=MATH, init=False)
    is_batched: bool = field(default=False, init=False)
    is_async: bool = field(default=False, init=False)
    stays_here: bool = field(default=False, init=False)
    max_calls: int | None = field(default=1, init=False)  # in threads: it computes, and sympy keeps caches

    def __str__(self) -> str:
        return "reward math"

    def check(self, prompt: Prompt) -> None:
        if prompt.truth is None:
            raise ValueError(f"reward math compares with the truth, and sample {prompt.uid} has none (truth_field)")

    def ask(self, question: RewardQuestion) -> object:
        truth = str(question.prompt.truth)
        gold = _parsed(truth) or _parsed(f"${truth}$")
        return verify(gold, _parsed(question.replies[0]), timeout_seconds=None) if gold else None

    def read(self, value: object, question: RewardQuestion) -> Rewards:
        return [None if value is None else read_reward(value, str(self), question.prompt.uid)]


def _parsed(text: str) -> list[object]:
    found: list[object] = parse(text, parsing_timeout=None)
    return found
