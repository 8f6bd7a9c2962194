"""Rewards that a rule can check, and the loader for a reward function of your own.

strict      the number after the last `####` of the response
flexible    the last number of the response
format      does the response end as it was asked to?
overlong    0 while a response is short enough, falling to -1 over the last tokens that are allowed
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any

from headway.core.loading import in_a_line, load_function, shortened

NUMBER = re.compile(r"(?:(?<![\w.)])-)?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)")
MARKED = re.compile(r"####\s*\$?\s*(" + NUMBER.pattern + ")")
MARKED_END = re.compile(MARKED.pattern + r"\s*\.?\s*\Z")


class RewardError(ValueError):
    """A response could not be scored. One line that names the sample; the run's `on_failure` says what follows."""


# -- numbers ----------------------------------------------------------------------------------------


def gsm8k_truth(answer: str) -> str:
    """The number after the last `####` of a worked solution, without commas."""
    found = _marked(answer)
    if found is None:
        raise ValueError(f"the answer has no number after '####': {shortened(answer)}")
    return found


def strict_score(response: str, truth: str) -> float:
    """1 if the number after the last `####` is the truth; 0 if it is not, or if there is none."""
    return float(_equal(_marked(response), truth))


def flexible_score(response: str, truth: str) -> float:
    """1 if the last number of the response is the truth."""
    return float(_equal(last_number(response), truth))


def format_score(response: str) -> float:
    """1 if the response ends with `#### number`, right or wrong."""
    return float(MARKED_END.search(response) is not None)


def last_number(text: str) -> str | None:
    """The last number in a text, without commas: `-3`, `1,234.50`, `.5`. A minus between numbers is not a sign."""
    found = NUMBER.findall(text)
    return _plain(found[-1]) if found else None


def overlong_penalty(num_tokens: int, *, max_tokens: int, interval: int) -> float:
    """0 up to max_tokens - interval, then a straight line down to -1 at max_tokens."""
    if not 1 <= interval <= max_tokens:
        raise ValueError(f"interval must be in [1, {max_tokens}], received {interval!r}")
    return -min(max((num_tokens - (max_tokens - interval)) / interval, 0.0), 1.0)


def _marked(text: str) -> str | None:
    found = MARKED.findall(text)
    return _plain(found[-1]) if found else None


def _plain(number: str) -> str:
    return number.replace(",", "")


def _equal(number: str | None, truth: str) -> bool:
    """As numbers: 72, 72.0 and 72.00 are equal, and digits beyond any float still count."""
    return number is not None and Decimal(number) == Decimal(_plain(truth))


# -- a function of your own -------------------------------------------------------------------------

ARGUMENTS = ("prompt", "response", "truth", "info")


class UserReward:
    """A reward function named as `package.module:function` or `folder/file.py:function`.

    It is called with `prompt` (the question as text), `response`, `truth` and `info` (uid, index, data_source and
    whatever else the sample has), by these names, and returns a float or a bool. What travels to another process is
    the name: each process loads the function for itself.
    """

    def __init__(self, spec: str) -> None:
        self.spec = spec
        self._function = load_function(spec, "reward", ARGUMENTS, by_name=True)

    def __reduce__(self) -> tuple[type[UserReward], tuple[str]]:
        return UserReward, (self.spec,)

    def __call__(self, *, prompt: str, response: str, truth: Any, info: Mapping[str, Any]) -> float:
        call = partial(self._function, prompt=prompt, response=response, truth=truth, info=info)
        return guarded(call, str(self), str(info.get("uid", "without uid")))

    def __str__(self) -> str:
        return f"reward function {self.spec}"


def guarded(call: Callable[[], Any], source: str, uid: str) -> float:
    """The reward that `call` returns. One line that names the sample if it raises, or if that is no finite number."""
    try:
        value = call()
    except RewardError:
        raise
    except Exception as error:
        raise RewardError(f"{source} failed on sample {uid}: {in_a_line(error)}") from error
    try:
        number = float(value)
    except (TypeError, ValueError):
        received = f"{shortened(repr(value))} ({type(value).__name__})"
        raise RewardError(f"{source} returned {received} for sample {uid}; allowed: a float or a bool") from None
    if not math.isfinite(number):
        raise RewardError(f"{source} returned {number} for sample {uid}; allowed: a finite number")
    return number
