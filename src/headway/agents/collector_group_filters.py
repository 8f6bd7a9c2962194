"""Which groups of episodes are worth learning from: those that are not silent, and those a user's function keeps.

def too_easy(group):                      # file.py, named as --filter file.py:too_easy
    if min(group.returns) >= 1:
        return "solved"                   # the word under which it is counted: drops/filtered_solved
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from headway.core.text_one_line import in_a_line
from headway.llm.rollouts_episode import Episodes
from headway.runs.user_code_user_functions import load_function

SILENT = "silent"
REASON = re.compile(r"[A-Za-z0-9_-]{1,40}")


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """Holds what a filter sees of a group: a number or a word per episode, or per run where conversations fork."""

    uid: str
    returns: tuple[float, ...]
    turns: tuple[int, ...]
    tokens: tuple[int, ...]
    """That the policy drew."""
    success: tuple[bool, ...]
    ends: tuple[str, ...]
    """done, turns, tokens or deadline."""

    @classmethod
    def of(cls, group: Episodes) -> GroupSummary:
        first = np.flatnonzero(~group.forks)
        return cls(
            group.uid,
            tuple(group.returns[first].tolist()),
            tuple(group.sums_of_runs(group.turns).tolist()),
            tuple(group.sums_of_runs(group.num_trained).tolist()),
            tuple(bool(won) for won in group.succeeded[first]),
            tuple(group.end[place] for place in first),
        )


GroupFilter = Callable[[GroupSummary], str | None]


def load_filter(spec: str) -> GroupFilter:
    """Loads a filter of the user's own, after checking that it can be called with a group."""
    return load_function(spec, "filter", ["group"], by_name=False)


def reason_of(function: GroupFilter, group: Episodes) -> str:
    """Asks a filter why the group is not to be learned from; nothing: it is."""
    try:
        reason = function(GroupSummary.of(group))
    except Exception as error:
        raise ValueError(f"the filter raised on {group}: {in_a_line(error)}") from error
    if reason is None:
        return ""
    if not isinstance(reason, str) or not REASON.fullmatch(reason):
        raise ValueError(
            f"the filter returned {reason!r} for {group}; allowed: None, or a reason of letters, digits, - and _"
        )
    return reason


Compared = Literal["episodes", "turns", "states"]
"""What else is compared besides the returns of episodes: nothing, equal turns, or turns that began in equal states."""


def is_silent(group: Episodes, compared: Compared) -> bool:
    """Are all returns equal, and all rewards from a compared turn on, so that a comparison has nothing to say?"""
    if len(set(group.returns.tolist())) > 1:
        return False
    if compared == "episodes":
        return True
    episodes = [rewards.tolist() for rewards in np.split(group.rewards, np.cumsum(group.turns)[:-1])]
    if compared == "turns":
        return all(rewards == episodes[0] for rewards in episodes)
    earned: dict[int, list[float]] = {}
    rest = (rewards[turn:] for rewards in episodes for turn in range(len(rewards)))
    return all(earned.setdefault(state, rewards) == rewards for state, rewards in zip(group.states, rest, strict=True))
