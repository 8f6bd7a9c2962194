"""The metrics of one line: what its tickets, updates and versions came to since the last look, and in all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from headway.core.history_line_history import LineHistory, LineListener
from headway.core.history_records import READY, FinishedUpdate, TicketLife, Version
from headway.core.types_opaque import SettingValue
from headway.runs.metrics_metric_names import MEANINGS

COUNTED = ("opened", "landed", "taken", "learned", "reissued", "requeued", "lost")
DROPS = [name.removeprefix("drops/") for name in MEANINGS if name.startswith("drops/")]
VERSIONS_KEPT = 4096
"""So far a score may come behind the newest version and still stand at its environment steps."""
QUEUE = ("queue/open", "queue/in_flight", "queue/ready", "queue/taken")


def as_number(value: Any) -> float | None:
    """A float, or None for what is no number: text is left to the event log."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # a tensor of several elements raises the last
        return None


class _Flights:
    """What came in since the last look."""

    def __init__(self) -> None:
        self.landed = self.failed = 0
        self.steps = self.collect_s = 0.0
        self.lags: list[float] = []  # from the end of an update to the first use of its version

    def values(self, elapsed_s: float) -> dict[str, float]:
        values: dict[str, float] = {}
        if elapsed_s > 0:
            values["throughput/rollouts_per_s"] = self.landed / elapsed_s
            values["throughput/steps_per_s"] = self.steps / elapsed_s
        if self.landed:
            values["time/collect_s"] = self.collect_s / self.landed
        if self.landed + self.failed:
            values["run/error_rate"] = self.failed / (self.landed + self.failed)
        if self.lags:
            values["time/publish_lag_s"] = sum(self.lags) / len(self.lags)
        return values


class _Taken:
    """What was taken since the last look, and how old it was."""

    def __init__(self) -> None:
        self.staleness: Counter[int] = Counter()
        self.stale_in_queue = 0
        self.ages_s = self.max_age_s = 0.0
        self.expired = self.kept_expired = 0

    def values(self) -> dict[str, float]:
        values: dict[str, float] = {}
        taken = self.staleness.total()
        if taken:
            values["staleness/mean"] = sum(age * count for age, count in self.staleness.items()) / taken
            values["staleness/max"] = float(max(self.staleness))
            values["staleness/nonzero"] = 1 - self.staleness[0] / taken
            values["staleness/in_queue"] = self.stale_in_queue / taken
            values["staleness/in_flight"] = values["staleness/mean"] - values["staleness/in_queue"]
            values["age/mean_s"] = self.ages_s / taken
            values["age/max_s"] = self.max_age_s
        if taken + self.expired:
            values["age/expired"] = (self.expired + self.kept_expired) / (taken + self.expired)
        return values


class _Updates:
    """The updates since the last look, and what the learner reported."""

    def __init__(self) -> None:
        self._count = 0
        self._seconds = 0.0
        self._reported: dict[str, list[float]] = {}  # metric -> [sum, count]

    def add(self, seconds: float, metrics: Mapping[str, object]) -> None:
        self._count += 1
        self._seconds += seconds
        for name, value in metrics.items():
            number = as_number(value)
            if number is not None:
                total = self._reported.setdefault(name, [0.0, 0])
                total[0] += number
                total[1] += 1

    def values(self, elapsed_s: float) -> dict[str, float]:
        values = {f"learn/{name}": total / count for name, (total, count) in self._reported.items()}
        if elapsed_s > 0:
            values["throughput/updates_per_s"] = self._count / elapsed_s
        if self._count:
            values["time/update_s"] = self._seconds / self._count
        return values


class LineMetrics(LineListener):
    """Adds up what a history tells of one line. Totals only grow; the rest begins anew with every look."""

    def __init__(self) -> None:
        self._since_s = 0.0
        self._max_age_s: float | None = None
        self._session_began_s = 0.0
        self._first_version: int | None = None  # that this session has published
        self._steps = 0.0  # trained on
        self._steps_behind = {0: 0}  # version -> environment steps; of the newest ones
        self._bytes = 0  # of the rollouts that wait for the learner
        self._drops: Counter[str] = Counter(dict.fromkeys(DROPS, 0))
        self._offered = [0.0, 0.0]  # rollouts, the sum of their lengths
        self._trained = [0.0, 0.0]
        self._empty_s = 0.0
        self._empty_since: float | None = None  # no rollout waits for the learner
        self._begin()

    def _begin(self) -> None:
        self._flights, self._taken, self._updates = _Flights(), _Taken(), _Updates()

    def begin_session(self, time_s: float, settings: Mapping[str, SettingValue], sizes: Sequence[int]) -> None:
        self._max_age_s = settings.get("max_age_s")
        self._session_began_s = time_s
        self._first_version = None
        self.begin_interval(time_s, sizes)

    def begin_interval(self, time_s: float, sizes: Sequence[int]) -> None:
        """A look is over: what follows is counted anew."""
        self._since_s = time_s
        self._empty_s = 0.0
        self._empty_since = None if sizes[READY] else time_s
        self._begin()

    # -- what the history tells -----------------------------------------------------------------------

    def tickets_moved(self, time_s: float, sizes: Sequence[int]) -> None:
        since = self._empty_since
        if sizes[READY]:
            if since is not None:
                self._empty_s += time_s - since
                self._empty_since = None
        elif since is None:
            self._empty_since = time_s

    def rollout_landed(self, ticket: TicketLife) -> None:
        flights = self._flights
        flights.landed += 1
        flights.steps += ticket.steps
        if ticket.began is not None and ticket.ended is not None:
            flights.collect_s += ticket.ended - ticket.began
        self._bytes += ticket.num_bytes
        self._offered[0] += 1
        self._offered[1] += ticket.length

    def rollout_withdrawn(self, ticket: TicketLife, reason: str) -> None:
        self._flights.failed += reason == "lost"
        self._taken.expired += reason == "expired"
        if ticket.waits_since is not None:  # it will be offered again: the same ticket, counted once
            self._offered[0] -= 1
            self._offered[1] -= ticket.length
            self._bytes -= ticket.num_bytes

    def flight_failed(self, ticket: TicketLife) -> None:
        self._flights.failed += 1

    def rollout_taken(self, ticket: TicketLife, age_s: float) -> None:
        taken = self._taken
        taken.staleness[ticket.staleness or 0] += 1
        taken.stale_in_queue += ticket.stale_in_queue or 0
        taken.ages_s += age_s
        taken.max_age_s = max(taken.max_age_s, age_s)
        taken.kept_expired += self._max_age_s is not None and age_s > self._max_age_s
        self._trained[0] += 1
        self._trained[1] += ticket.length
        self._steps += ticket.steps
        if ticket.waits_since is not None:
            self._bytes -= ticket.num_bytes

    def ticket_settled(self, ticket: TicketLife) -> None:
        if ticket.reason is not None:
            self._drops[ticket.reason] += 1
            if ticket.reason == "filtered" and ticket.why:
                self._drops[f"filtered_{ticket.why}"] += 1
            self._taken.expired += ticket.reason == "expired"
            self._flights.failed += ticket.reason == "failed"
        if ticket.waits_since is not None:
            self._bytes -= ticket.num_bytes

    def update_ended(self, update: FinishedUpdate) -> None:
        self._updates.add(update.seconds, update.metrics)

    def version_published(self, version: Version) -> None:
        self._steps_behind[version.number] = version.steps
        if len(self._steps_behind) > VERSIONS_KEPT:
            del self._steps_behind[min(self._steps_behind)]
        if self._first_version is None:
            self._first_version = version.number

    def version_first_used(self, version: Version) -> None:
        is_own = self._first_version is not None and version.number >= self._first_version
        if is_own and version.update is not None and version.lag_s is not None:
            self._flights.lags.append(version.lag_s)

    # -- numbers --------------------------------------------------------------------------------------

    def steps_behind(self, version: int) -> int:
        """The environment steps that went into a version; of one that is long gone, into the oldest that is known."""
        behind = self._steps_behind
        return behind[version if version in behind else min(behind)]

    def values(self, time_s: float, line: LineHistory) -> dict[str, float]:
        """Totals of the line, and what happened since the look before."""
        elapsed_s = time_s - self._since_s
        values = place(line) | {f"tickets/{name}": float(line.counts[name]) for name in COUNTED}
        values |= {f"drops/{reason}": float(count) for reason, count in self._drops.items()}
        values["run/steps"] = self._steps
        values["run/env_steps"] = float(line.steps)
        values["run/lead"] = line.lead or 0.0
        values["run/since_update_s"] = max(0.0, time_s - max(line.learned_s or 0.0, self._session_began_s))
        values |= dict(zip(QUEUE, map(float, line.sizes), strict=True))
        values["queue/bytes"] = float(self._bytes)
        values |= self._updates.values(elapsed_s) | self._flights.values(elapsed_s) | self._taken.values()
        if elapsed_s > 0:
            empty_s = self._empty_s + (0.0 if self._empty_since is None else time_s - self._empty_since)
            values["queue/empty"] = min(1.0, empty_s / elapsed_s)
        if self._trained[0] and self._offered[1]:
            trained, offered = self._trained[1] / self._trained[0], self._offered[1] / self._offered[0]
            values["length/bias"] = trained / offered - 1
        return values


def place(line: LineHistory) -> dict[str, float]:
    """Where a line is."""
    return {"run/updates": float(line.updates), "run/version": float(line.version)}
