"""What a role can be doing: the words of the board, of the event log and of everything made from it.

A role is busy (a call is under way, or a file is written for it) or blocked, for one cause. `CAUSES` puts what somebody
waits for under the few headings under which time is accounted; all other words are kinds of work.
"""

from __future__ import annotations

from typing import Final

BETWEEN = "between"
"""Neither: the coordinator's own moments between two activities."""

CAUSES: Final[dict[str, str]] = {
    "slot": "slot",
    "data": "data",
    "draw": "data",
    "drain": "weights",
    "applying": "weights",
    "weights": "weights",
    "version": "weights",
    "landing": "evaluation",
    "evaluation": "evaluation",
    "paused": "evaluation",
    "parked": "evaluation",
    "reanalysis": "reanalysis",
    "lines": "other lines",
    "pacing": "pause",
    "warm-up": "pause",
    "retry": "pause",
    "starting": "starting",
    "ending": "ending",
    "due": "nothing to do",
    "asked": "nothing to do",
}
"""What is waited for -> the heading in the accounts."""

WAITS = frozenset(CAUSES)

WAITS_FOR: Final[dict[str, str]] = {
    "slot": "a free slot",
    "data": "rollouts",
    "draw": "a draw from the replay",
    "drain": "its other lanes to land before new weights",
    "applying": "weights that are being applied",
    "weights": "weights that are staged again",
    "version": "a newer version",
    "landing": "what is in flight to land before an evaluation",
    "evaluation": "an evaluation",
    "paused": "the evaluation to finish",
    "parked": "the evaluation to finish, in the middle of a ticket",
    "reanalysis": "targets that are reanalyzed in turn",
    "lines": "another line, between two updates",
    "pacing": "its next start (pacing_s)",
    "warm-up": "the end of the warm-up",
    "retry": "its next attempt",
    "starting": "the others to start",
    "ending": "the end of the run",
    "due": "an evaluation that is due",
    "asked": "the next call",
}
"""The same in words."""


def in_words(activity: str) -> str:
    """`waits for rollouts`, `is busy: learn`."""
    if activity == BETWEEN:
        return "is idle"
    waits_for = WAITS_FOR.get(activity)
    return f"is busy: {activity}" if waits_for is None else f"waits for {waits_for}"


def were_in_words(activity: str) -> str:
    """The same of a role that is no more: `waited for rollouts`, `was busy: learn`."""
    return in_words(activity).replace("waits", "waited", 1).replace("is ", "was ", 1)
