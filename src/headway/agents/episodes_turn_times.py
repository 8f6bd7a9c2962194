"""When the turns of a group were played: what is drawn of a group, and what is measured of it.

    episode 0   |--reply--|step|--reply--|-----step-----|            each at its own pace, on one clock
    episode 1   |---reply---|step|
    episode 2   |--reply--|--------------- step ---------------|     the group waits for the last one

An engine is kept waiting while episodes are under way and none of them asks for a reply: `EngineUse` counts that, over
all groups of a collector.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Literal, TypedDict

import numpy as np

from headway.llm.engine.protocol_engine import Reply, Sampling, Session

Turn = tuple[float, float, float]
"""Seconds: the reply begins, it ends and the step begins, the step ends."""
MAX_TURNS = 256


class EpisodeTrack(TypedDict):
    """Is one episode as it is drawn: its number, how it ended (or abandoned, or lost), and when its turns were."""

    episode: int
    end: str
    times: list[Turn]
    """In seconds since the group began; of a very long episode the first ones."""


def track(number: int, end: str, turns: Sequence[Sequence[float]], began_s: float) -> EpisodeTrack:
    """Turns on a group's own clock, to a tenth of a millisecond."""
    times = [(_since(begin, began_s), _since(said, began_s), _since(over, began_s)) for begin, said, over in turns]
    return {"episode": number, "end": end, "times": times[:MAX_TURNS]}


def _since(moment_s: float, began_s: float) -> float:
    return round(moment_s - began_s, 4)


def timing(tracks: Sequence[EpisodeTrack]) -> dict[str, float]:
    """What the turns of a group say of its environment: seconds of a step, its share of the episodes' time, and the
    share of the group's time in which all but one episode were over."""
    turns = [turn for one in tracks for turn in one["times"]]
    if not turns:
        return {}
    steps = np.array([over - said for _, said, over in turns])
    replies = sum(said - begin for begin, said, _ in turns)
    spent = float(steps.sum()) + replies
    ends = sorted(one["times"][-1][2] for one in tracks if one["times"])
    return {
        "step_s": float(steps.mean()),
        "step_p95_s": float(np.quantile(steps, 0.95)),
        "step_max_s": float(steps.max()),
        "env_share": float(steps.sum()) / spent if spent > 0 else 0.0,
        "last_episode_share": (ends[-1] - ends[-2]) / ends[-1] if len(ends) > 1 and ends[-1] > 0 else 0.0,
    }


class EngineUse:
    """Counts the seconds in which episodes were under way, and those of them in which none asked for a reply."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._episodes = 0
        self._replies = 0
        self._seen_s = now()
        self._open_s = 0.0
        self._idle_s = 0.0

    def episodes(self, change: int) -> None:
        """So many more episodes are under way, or fewer."""
        with self._lock:
            self._count()
            self._episodes += change

    def replies(self, change: int) -> None:
        with self._lock:
            self._count()
            self._replies += change

    def seconds(self) -> tuple[float, float]:
        """Seconds with episodes under way so far, and those in which the engine had nothing to do."""
        with self._lock:
            self._count()
            return self._open_s, self._idle_s

    def _count(self) -> None:
        now = self._now()
        passed, self._seen_s = now - self._seen_s, now
        if self._episodes:
            self._open_s += passed
            self._idle_s += 0.0 if self._replies else passed


def idle_share(before: tuple[float, float], after: tuple[float, float]) -> float:
    """The share of the time between two looks in which environments kept the engine waiting."""
    open_s = after[0] - before[0]
    return (after[1] - before[1]) / open_s if open_s > 0 else 0.0


class CountedSession:
    """A session whose replies are counted while they are under way."""

    def __init__(self, session: Session, use: EngineUse) -> None:
        self._session = session
        self._use = use

    def say(self, tokens: Sequence[int]) -> None:
        self._session.say(tokens)

    def reply(
        self,
        sampling: Sampling,
        *,
        seed: int,
        deadline_s: float | None = None,
        on_deadline: Literal["fail", "cut"] = "fail",
    ) -> Reply:
        self._use.replies(1)
        try:
            return self._session.reply(sampling, seed=seed, deadline_s=deadline_s, on_deadline=on_deadline)
        finally:
            self._use.replies(-1)

    def close(self) -> None:
        self._session.close()
