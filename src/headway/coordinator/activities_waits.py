"""Who is doing what, since when, and what they wait for.

Each role is in exactly one activity at a time: *busy* (a call is under way), *waiting* (for a cause, with a
deadline) or *between* (the coordinator is thinking). Entering one leaves the other, so per role the times
add up to the wall clock exactly; and the board can say in words what everybody does: that is `why()`.

A role that nobody speaks to for long (before the loops begin, after they have ended, an evaluator that only works when
it is asked) *rests*: instead of between, it is in the activity it was given for that.

The board tells whoever records what each role enters. `collect` and `learn` are left out: the events of tickets and
updates say the same. An activity lasts until the role enters another, so one event is enough for it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headway.coordinator.activities import BETWEEN, WAITS

SAID_BY_OTHERS = frozenset(("collect", "learn"))
IN_A_FLIGHT = frozenset(
    ("apply", "applying", "weights", "retry", "parked")
)  # may come between the start of a ticket and its collection
Tell = Callable[[str, str], None]


class Stalled(RuntimeError):
    """A wait outlived its deadline. The message says who waited for what, and what all others did."""


class _Activity:
    """What one role is doing now, and what it has done."""

    __slots__ = ("answered", "deadline_s", "explain", "future", "name", "rest", "role", "since", "spent", "told")

    def __init__(self, role: str, now: float) -> None:
        self.role = role
        self.name = BETWEEN
        self.since = now
        self.deadline_s = math.inf
        self.explain: object = ""
        self.future: asyncio.Future[None] | None = None
        self.rest = (BETWEEN, "")
        self.answered: float | None = None  # when its last call came back
        self.told = ""  # the last activity that whoever records knows of
        self.spent: dict[str, list[float]] = {}  # activity -> [seconds, times it was left]

    def words(self) -> str:
        if self.name == BETWEEN:
            return "is idle"
        what = self.explain() if callable(self.explain) else self.explain
        verb = "waits for" if self.name in WAITS or self.future is not None else f"is busy: {self.name},"
        return f"{verb} {what}"

    def describe(self, now: float) -> str:
        if self.name == BETWEEN:
            return f"{self.role} is idle"
        limit = "" if math.isinf(self.deadline_s) else f", at most {self.deadline_s:g} s"
        return f"{self.role} {self.words()} (since {now - self.since:.1f} s{limit})"


@dataclass(frozen=True, slots=True)
class Doing:
    """A role at one moment."""

    role: str
    activity: str
    words: str
    since_s: float
    answered_s: float | None
    """Seconds since its last call came back; None if none has."""


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Seconds per role and activity, and how often each was entered."""

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

    def __init__(self, now: Callable[[], float], tell: Tell | None = None) -> None:
        self._now = now
        self._tell = tell
        self._activities: dict[str, _Activity] = {}
        self._gone: dict[str, dict[str, list[float]]] = {}
        """What roles did that are no more, as in `spent`; one of that name may come back."""
        self._checked_at = math.inf  # when the waits will next be checked against their deadlines
        self._check: asyncio.TimerHandle | None = None

    def begin(self, role: str, name: str, explain: object, deadline_s: float) -> None:
        """The role starts a piece of work; `end` must follow."""
        activity = self._activities.get(role)
        if activity is None:
            activity = self._join(role)
        elif activity.future is not None and not activity.future.done():
            raise RuntimeError(f"{role} cannot begin with {name}: it waits for {activity.name}")
        self._enter(activity, name, explain, deadline_s, None)

    def end(self, role: str, *, times: int = 1) -> None:
        """The work is done; it was `times` pieces at once."""
        activity = self._activities[role]
        if times > 1:
            activity.spent.setdefault(activity.name, [0.0, 0])[1] += times - 1
        activity.answered = self._enter(activity, *activity.rest, math.inf, None)

    def rest(self, roles: Iterable[str], name: str = BETWEEN, explain: str = "") -> None:
        """Whenever nobody speaks to these roles, that is what they do; now too, if nobody does."""
        for role in roles:
            activity = self._activities.get(role)
            if activity is None:
                activity = self._join(role)
            is_at_rest = activity.name == activity.rest[0] and activity.future is None
            activity.rest = (name, explain)
            if is_at_rest:
                self._enter(activity, name, explain, math.inf, None)

    def leave(self, roles: Iterable[str]) -> None:
        """These roles are no more: what they did is remembered. None of them waits."""
        for role in roles:
            activity = self._activities.pop(role, None)
            if activity is not None:
                self._enter(activity, BETWEEN, "", math.inf, None)
                self._gone[role] = activity.spent

    def _join(self, role: str) -> _Activity:
        activity = self._activities[role] = _Activity(role, self._now())
        activity.spent = self._gone.pop(role, {})
        return activity

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(self._activities)

    def doing(self) -> list[Doing]:
        """What everybody does now."""
        now = self._now()
        return [
            Doing(a.role, a.name, a.words(), now - a.since, None if a.answered is None else now - a.answered)
            for a in self._activities.values()
        ]

    async def wait(self, role: str, cause: str, explain: object, deadline_s: float) -> None:
        """Wait until someone calls `wake(role)`. Past the deadline: `Stalled`, with everybody's state.

        Only a role that has nothing to do (an evaluator between evaluations) may wait without a deadline.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        activity = self._activities.get(role)
        if activity is None:
            activity = self._join(role)
        now = self._enter(activity, cause, explain, deadline_s, future)
        if now + deadline_s < self._checked_at:
            self._check_at(now + deadline_s, loop)
        try:
            await future
        finally:
            self._enter(activity, *activity.rest, math.inf, None)

    def wake(self, role: str) -> None:
        """End the role's wait, if it is waiting."""
        activity = self._activities.get(role)
        if activity is not None and activity.future is not None and not activity.future.done():
            activity.future.set_result(None)

    def wake_all(self) -> None:
        for role in self._activities:
            self.wake(role)

    def why(self) -> str:
        """One line per role: what it does or waits for, since when, until when at most."""
        now = self._now()
        return "\n".join(self._activities[role].describe(now) for role in sorted(self._activities))

    def time_spent(self) -> TimeSpent:
        """Seconds so far, unfinished activities included."""
        now = self._now()
        seconds: dict[str, dict[str, float]] = {}
        counts: dict[str, dict[str, int]] = {}
        for role, activities in [*self._gone.items(), *((role, one.spent) for role, one in self._activities.items())]:
            seconds[role] = {name: spent[0] for name, spent in activities.items()}
            counts[role] = {name: int(spent[1]) for name, spent in activities.items()}
        for role, activity in self._activities.items():
            by = seconds[role]
            by[activity.name] = by.get(activity.name, 0.0) + now - activity.since
        return TimeSpent(seconds, counts)

    def stop_checking(self) -> None:
        """No more deadlines: the run is over."""
        if self._check is not None:
            self._check.cancel()
        self._checked_at, self._check = math.inf, None

    def _enter(
        self, activity: _Activity, name: str, explain: object, deadline_s: float, future: asyncio.Future[None] | None
    ) -> float:
        now = self._now()
        spent = activity.spent.get(activity.name)
        if spent is None:
            spent = activity.spent[activity.name] = [0.0, 0]
        spent[0] += now - activity.since
        spent[1] += 1
        activity.name = name
        activity.since = now
        activity.explain = explain
        activity.deadline_s = deadline_s
        activity.future = future
        if self._tell is not None and name != activity.told and name != BETWEEN:
            if name not in SAID_BY_OTHERS or activity.told in IN_A_FLIGHT:
                self._tell(activity.role, name)
            activity.told = name
        return now

    def _check_at(self, when: float, loop: asyncio.AbstractEventLoop) -> None:
        """One timer serves all waits: setting and cancelling one for each would cost more than waiting."""
        self.stop_checking()
        self._checked_at = when
        self._check = loop.call_later(max(0.0, when - self._now()), self._check_deadlines, loop)

    def _check_deadlines(self, loop: asyncio.AbstractEventLoop) -> None:
        now = self._now()
        next_end = math.inf
        for activity in self._activities.values():
            if activity.future is None or activity.future.done():
                continue
            ends_at = activity.since + activity.deadline_s
            if ends_at <= now:
                line = f"{activity.describe(now)}: deadline passed; everybody:\n{self.why()}"
                activity.future.set_exception(Stalled(line))
            else:
                next_end = min(next_end, ends_at)
        self._checked_at, self._check = math.inf, None
        if next_end < math.inf:
            self._check_at(next_end, loop)
