"""Rewards that a rule can check, and what a reward is: a finite number, perhaps with parts.

strict      the number after the last `####` of the response
flexible    the last number of the response
format      does the response end as it was asked to?
overlong    0 while a response is short enough, falling to -1 over the last tokens that are allowed
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from headway.core.text_one_line import in_a_line, shortened
from headway.core.types import MAX_REWARD

NUMBER = re.compile(r"(?:(?<![\w.)])-)?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)")
MARKED = re.compile(r"####\s*\$?\s*(" + NUMBER.pattern + ")")
MARKED_END = re.compile(MARKED.pattern + r"\s*\.?\s*\Z")


class RewardError(ValueError):
    """A response could not be scored. One line that names the sample; the run's `on_failure` says what follows."""


# -- numbers ----------------------------------------------------------------------------------------


def gsm8k_truth(answer: str) -> str:
    """Returns the number after the last `####` of a worked solution, without commas."""
    found = _marked(answer)
    if found is None:
        raise ValueError(f"the answer has no number after '####': {shortened(answer)}")
    return found


def strict_score(response: str, truth: str) -> float:
    """Returns 1 if the number after the last `####` is the truth; 0 if it is not, or if there is none."""
    return float(_equal(_marked(response), truth))


def flexible_score(response: str, truth: str) -> float:
    """Returns 1 if the last number of the response is the truth."""
    return float(_equal(last_number(response), truth))


def format_score(response: str) -> float:
    """Returns 1 if the response ends with `#### number`, right or wrong."""
    return float(MARKED_END.search(response) is not None)


def last_number(text: str) -> str | None:
    """Finds the last number in a text, without commas: `-3`, `1,234.50`, `.5`. A minus between numbers is no sign."""
    found = NUMBER.findall(text)
    return _plain(found[-1]) if found else None


def overlong_penalty(num_tokens: int, *, max_tokens: int, interval: int) -> float:
    """Returns 0 up to max_tokens - interval, then falls in a straight line to -1 at max_tokens."""
    if not 1 <= interval <= max_tokens:
        raise ValueError(f"interval must be in [1, {max_tokens}], received {interval!r}")
    return -min(max((num_tokens - (max_tokens - interval)) / interval, 0.0), 1.0)


def _marked(text: str) -> str | None:
    found = MARKED.findall(text)
    return _plain(found[-1]) if found else None


def _plain(number: str) -> str:
    return number.replace(",", "")


def _equal(number: str | None, truth: str) -> bool:
    """Compares as numbers: 72, 72.0 and 72.00 are equal, and digits beyond any float still count."""
    return number is not None and Decimal(number) == Decimal(_plain(truth))


# -- a reward and its parts -------------------------------------------------------------------------


class Scored(float):
    """Is a reward, and has the other numbers with it that its function has measured."""

    parts: Mapping[str, float]

    def __new__(cls, value: float, parts: Mapping[str, float]) -> Scored:
        made = super().__new__(cls, value)
        made.parts = parts
        return made

    def __getnewargs__(self) -> tuple[float, Mapping[str, float]]:  # type: ignore[override]
        return float(self), self.parts


def parts_of(reward: float) -> Mapping[str, float]:
    return reward.parts if isinstance(reward, Scored) else {}


Parts = tuple[tuple[str, ...], np.ndarray]
"""Names [K] and numbers [K, G] of the parts of G rewards; nan where a function did not say."""


def parts_of_all(rewards: Iterable[float]) -> Parts:
    parts = [parts_of(reward) for reward in rewards]
    names = tuple(sorted({name for part in parts for name in part}))
    return names, np.array([[part.get(name, np.nan) for part in parts] for name in names], np.float32)


def part_means(groups: Iterable[Parts]) -> dict[str, float]:
    """Takes the mean of each part over all rewards that have it, as `reward_<name>`."""
    found: dict[str, list[np.ndarray]] = {}
    for names, numbers in groups:
        for name, line in zip(names, numbers, strict=True):
            found.setdefault(f"reward_{name}", []).append(line)
    return {name: float(np.nanmean(np.concatenate(found[name]))) for name in sorted(found)}


def guarded(call: Callable[[], object], source: str, uid: str) -> float:
    """Returns the reward of `call`; raises one line that names the sample if it fails or is no finite number."""
    try:
        value = call()
    except RewardError:
        raise
    except Exception as error:
        raise RewardError(failed(source, uid, error)) from error
    return read_reward(value, source, uid)


def failed(source: str, uid: str, error: BaseException) -> str:
    return f"{source} failed on sample {uid}: {in_a_line(error)}"


def read_reward(value: object, source: str, uid: str) -> float:
    """Reads what a function returned for one reply; raises RewardError where that is no finite number.

    Of a mapping the `score` is the reward; its other numbers are the parts of what is `Scored`, and texts are left out.
    """
    if isinstance(value, Scored):
        return value
    if isinstance(value, Mapping):
        if "score" not in value:
            raise RewardError(f"{source} returned a mapping without 'score' for sample {uid}: {shortened(value)}")
        others = {str(name): part for name, part in value.items() if name != "score" and isinstance(part, int | float)}
        parts = {name: _finite(part, f"{source} ({name})", uid) for name, part in others.items()}
        return Scored(_finite(value["score"], source, uid), parts)
    return _finite(value, source, uid)


def _finite(value: Any, source: str, uid: str) -> float:
    try:
        if isinstance(value, str | bytes):
            raise TypeError("a text, whatever it says")
        number = float(value)
    except (TypeError, ValueError):
        received = f"{shortened(repr(value))} ({type(value).__name__})"
        raise RewardError(f"{source} returned {received} for sample {uid}; allowed: a float or a bool") from None
    except OverflowError:
        raise RewardError(f"{source} returned a number beyond all floats for sample {uid}") from None
    if not abs(number) <= MAX_REWARD:
        allowed = f"at most {MAX_REWARD:g}" if math.isfinite(number) else "a finite number"
        raise RewardError(f"{source} returned {number} for sample {uid}; allowed: {allowed}")
    return number
