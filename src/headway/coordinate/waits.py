"""Who is doing what, since when, and what they wait for.

Each role is in exactly one activity at a time: *busy* (a call is under way) or *waiting* (for a cause, with
a deadline). The board integrates the time spent in each, so per role they add up to the wall clock, and
it can say in words what everybody is doing: that is `why()`.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass


class Stalled(RuntimeError):
    """A wait outlived its deadline. The message says who waited for what, and what all others did."""


class Activity:
    """What one role is doing now."""

    __slots__ = ("deadline_s", "explain", "future", "name", "role", "since")

    def __init__(
        self,
        role: str,
        name: str,
        since: float,
        deadline_s: float,
        explain: object,
        future: asyncio.Future[None] | None = None,
    ) -> None:
        self.role = role
        self.name = name
        self.since = since
        self.deadline_s = deadline_s
        self.explain = explain
        self.future = future

    def describe(self, now: float) -> str:
        what = self.explain() if callable(self.explain) else self.explain
        verb = "waits for" if self.future is not None else f"is busy: {self.name},"
        limit = f", at most {self.deadline_s:g} s" if self.deadline_s < float("inf") else ""
        return f"{self.role} {verb} {what} (since {now - self.since:.1f} s{limit})"


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Seconds per role and activity; what is missing to the wall clock is the coordinator's own time."""

    seconds: dict[str, dict[str, float]]
    counts: dict[str, dict[str, int]]

    def total(self, prefix: str, activity: str) -> float:
        return sum(by.get(activity, 0.0) for role, by in self.seconds.items() if role.startswith(prefix))

    def count(self, prefix: str, activity: str) -> int:
        return sum(by.get(activity, 0) for role, by in self.counts.items() if role.startswith(prefix))

    def mean(self, prefix: str, activity: str) -> float:
        count = self.count(prefix, activity)
        return self.total(prefix, activity) / count if count else 0.0


class Board:
    """Every wait and every call of a run passes here."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._activities: dict[str, Activity] = {}
        self._seconds: dict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._counts: dict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))

    async def wait(
        self, role: str, cause: str, explain: object, deadline_s: float
    ) -> None:
        """Wait until someone calls `wake(role)`. Past the deadline: `Stalled`, with everybody's state.

        Only a role that has nothing to do (an evaluator between evaluations) may wait without a deadline.
        """
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        timer = None if math.isinf(deadline_s) else loop.call_later(deadline_s, self._expire, future, role)
        self._activities[role] = Activity(role, cause, self._now(), deadline_s, explain, future)
        try:
            await future
        finally:
            if timer is not None:
                timer.cancel()
            self._finish(role)

    def wake(self, role: str) -> None:
        """End the role's wait, if it is waiting."""
        activity = self._activities.get(role)
        if activity is not None and activity.future is not None and not activity.future.done():
            activity.future.set_result(None)

    def wake_all(self) -> None:
        for role in list(self._activities):
            self.wake(role)

    def begin(self, role: str, name: str, explain: object, deadline_s: float) -> None:
        """The role starts a piece of work; `end` must follow."""
        self._activities[role] = Activity(role, name, self._now(), deadline_s, explain)

    def end(self, role: str) -> None:
        self._finish(role)

    def why(self) -> str:
        """One line per role: what it does or waits for, since when, until when at most."""
        now = self._now()
        lines = [self._activities[role].describe(now) for role in sorted(self._activities)]
        return "\n".join(lines) or "nothing is under way"

    def time_spent(self) -> TimeSpent:
        """Seconds so far, unfinished activities included."""
        seconds = {role: dict(by) for role, by in self._seconds.items()}
        counts = {role: dict(by) for role, by in self._counts.items()}
        now = self._now()
        for role, activity in self._activities.items():
            by = seconds.setdefault(role, {})
            by[activity.name] = by.get(activity.name, 0.0) + now - activity.since
        return TimeSpent(seconds, counts)

    def _finish(self, role: str) -> None:
        activity = self._activities.pop(role)
        self._seconds[role][activity.name] += self._now() - activity.since
        self._counts[role][activity.name] += 1

    def _expire(self, future: asyncio.Future[None], role: str) -> None:
        if not future.done():
            activity = self._activities[role]
            future.set_exception(
                Stalled(f"{activity.describe(self._now())}: deadline passed; the others:\n{self.why()}")
            )
