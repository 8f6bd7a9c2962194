"""Durations to run the coordinator on in virtual time, and faults to inject.

A duration is drawn from the ticket's own seed, so the same ticket takes the same time under every lead
and order, and comparisons between them are paired.
"""

from __future__ import annotations

import bisect
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Protocol

from headway.core.types import Batch, LearnReport, Rollout, Score, Snapshot, Ticket, derive_seed
from headway.runtimes.virtual import Fault


class Duration(Protocol):
    """A distribution of seconds, by its quantile function."""

    @property
    def mean(self) -> float: ...

    def quantile(self, u: float) -> float: ...


@dataclass(frozen=True, slots=True)
class Constant:
    mean: float

    def quantile(self, u: float) -> float:
        return self.mean


@dataclass(frozen=True, slots=True)
class Exponential:
    mean: float

    def quantile(self, u: float) -> float:
        return -self.mean * math.log1p(-u)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """`cv` is the standard deviation over the mean: 0.3 is even, 1 uneven, 3 heavy-tailed."""

    mean: float
    cv: float

    def quantile(self, u: float) -> float:
        variance = math.log1p(self.cv**2)
        z = _STANDARD_NORMAL.inv_cdf(min(max(u, 1e-12), 1 - 1e-12))
        return self.mean * math.exp(math.sqrt(variance) * z - variance / 2)


@dataclass(frozen=True, slots=True)
class Pareto:
    """A power-law tail with index `alpha` > 1; below 2 the variance is infinite."""

    mean: float
    alpha: float

    def quantile(self, u: float) -> float:
        return float(self.mean * (self.alpha - 1) / self.alpha * (1 - u) ** (-1 / self.alpha))


class Empirical:
    """What was seen: values of a recorded run, drawn with equal chance."""

    def __init__(self, values: Sequence[float]) -> None:
        if not values:
            raise ValueError("an empirical distribution needs at least one value")
        self._values = sorted(values)
        self.mean = sum(values) / len(values)

    def quantile(self, u: float) -> float:
        return self._values[min(int(u * len(self._values)), len(self._values) - 1)]

    def share_below(self, seconds: float) -> float:
        return bisect.bisect_left(self._values, seconds) / len(self._values)


class Recorded(Empirical):
    """What was seen, in the order in which it was seen; past its end it begins again, without the first `warm_up`
    values: those were slow because something was compiled, loaded or filled."""

    def __init__(self, values: Sequence[float], *, warm_up: int = 0) -> None:
        super().__init__(values)
        self._in_order = tuple(values)
        self._again_from = warm_up if 2 * warm_up < len(values) else 0

    def place(self, index: int) -> int:
        size, again = len(self._in_order), self._again_from
        return index if index < size else again + (index - again) % (size - again)

    def nth(self, index: int) -> float:
        return self._in_order[self.place(index)]


class RecordedFlights(Recorded):
    """Recorded collections by ticket: how long each took, and what its rollout was like.

    `paces` are factors of the collectors, 1 on average, where a slow collector may get fewer tickets than it got.
    """

    def __init__(
        self,
        seconds: Sequence[float],
        *,
        steps: Sequence[int],
        lengths: Sequence[float],
        filtered: Sequence[bool],
        paces: Sequence[float] = (1.0,),
        warm_up: int = 0,
    ) -> None:
        super().__init__(seconds, warm_up=warm_up)
        self._steps, self._lengths, self._filtered = steps, lengths, filtered
        self._paces = paces

    def of(self, ticket: Ticket) -> float:
        return self.nth(ticket.index) * self._paces[(ticket.collector or 0) % len(self._paces)]

    def rollout(self, index: int) -> Rollout:
        place = self.place(index)
        return Rollout(None, self._steps[place], self._lengths[place], filtered=self._filtered[place])


_STANDARD_NORMAL = NormalDist()
SHAPES = {
    "constant": (Constant, 1),
    "exponential": (Exponential, 1),
    "lognormal": (Lognormal, 2),
    "pareto": (Pareto, 2),
}


def parse_duration(text: str) -> Duration:
    """`0.5`, `exponential:0.5`, `lognormal:0.5,1.0` (mean, cv) or `pareto:0.5,1.5` (mean, alpha)."""
    shape, _, rest = text.partition(":") if ":" in text else ("constant", "", text)
    allowed = "SECONDS, exponential:MEAN, lognormal:MEAN,CV or pareto:MEAN,ALPHA"
    if shape not in SHAPES:
        raise ValueError(f"unknown duration {text!r}; allowed: {allowed}")
    kind, count = SHAPES[shape]
    try:
        numbers = [float(part) for part in rest.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != count or not all(math.isfinite(n) and n >= 0 for n in numbers):
        raise ValueError(f"duration {text!r} is not understood; allowed: {allowed}")
    if shape == "pareto" and numbers[1] <= 1:
        raise ValueError(f"pareto needs alpha > 1 to have a mean, received {numbers[1]:g}")
    return kind(*numbers)


def unit(seed: int) -> float:
    """A 63-bit seed as a number in [0, 1): its upper 53 bits, all that a float can tell apart."""
    return (seed >> 10) / 2**53


class SteadyWorkload:
    """Collecting, learning, evaluating, inserting into a replay and saving take drawn times (or recorded ones, in their
    order); everything else takes none; nothing fails."""

    def __init__(
        self,
        collect: Duration,
        learn: Duration,
        evaluate: Duration | None = None,
        seed: int = 0,
        *,
        insert: Duration | None = None,
        save: Duration | None = None,
        learners: Mapping[str, Duration] | None = None,
    ) -> None:
        """`learners` are those of other lines than the first: role -> how long it takes for an update."""
        self.collect = collect
        self._others = {"learn": learn, "evaluate": evaluate or Constant(0.0), "insert": insert, "state": save}
        self._learners = learners or {}
        self._counts: Counter[str] = Counter()
        self._random = random.Random(seed)

    def duration_s(self, role: str, method: str, args: tuple[Any, ...]) -> float:
        if method == "collect_several":
            return sum(self.duration_s(role, "collect", (ticket,)) for _, tickets in args[0] for ticket in tickets)
        if method == "collect":
            if isinstance(self.collect, RecordedFlights):
                return self.collect.of(args[0])
            return self.collect.quantile(unit(args[0].seed))
        counted, duration = method, self._others.get(method)
        if role in self._learners:
            counted, duration = role, self._learners[role] if method == "learn" else None
        if duration is None:
            return 0.0
        if isinstance(duration, Recorded):
            self._counts[counted] += 1
            return duration.nth(self._counts[counted] - 1)
        return duration.quantile(self._random.random())

    def fault(self, role: str, method: str, args: tuple[object, ...]) -> Fault | None:
        return None


COLLECTING = ("collect", "collect_several")
NEEDS_PAYLOADS = (*COLLECTING, "learn", "insert", "apply", "evaluate", "reanalyze", "reanalyze_work", "refresh")


class FaultyWorkload(SteadyWorkload):
    """The same, but any call may crash, hang, raise, take a hundred times as long or find what it needs to be lost,
    with the given chances."""

    def __init__(
        self,
        collect: Duration,
        learn: Duration,
        evaluate: Duration | None = None,
        *,
        seed: int = 0,
        crash: float = 0.0,
        hang: float = 0.0,
        error: float = 0.0,
        slow: float = 0.0,
        lose: float = 0.0,
    ) -> None:
        super().__init__(collect, learn, evaluate, seed)
        self._chances = ((Fault.CRASH, crash), (Fault.HANG, hang), (Fault.RAISE, error))
        self._slow = slow
        self._lose = lose
        self._faults = random.Random(seed + 1)

    def duration_s(self, role: str, method: str, args: tuple[object, ...]) -> float:
        duration = super().duration_s(role, method, args)
        return duration * 100 if method == "collect" and self._faults.random() < self._slow else duration

    def fault(self, role: str, method: str, args: tuple[object, ...]) -> Fault | None:
        if self._lose and method in NEEDS_PAYLOADS and self._faults.random() < self._lose:
            return Fault.LOSE
        if method not in (*COLLECTING, "evaluate", "apply"):
            return None
        draw = self._faults.random()
        for fault, chance in self._chances:
            if draw < chance:
                return fault
            draw -= chance
        return None


class SimulatedCollector:
    """Collects nothing; its rollout is as long as it takes."""

    is_concurrent = True

    def __init__(self, duration: Duration) -> None:
        self._duration = duration

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        return Rollout(None, length=self._duration.quantile(unit(ticket.seed)))


class RecordedCollector:
    """Collects nothing; its rollouts are like the recorded ones."""

    is_concurrent = True

    def __init__(self, flights: RecordedFlights) -> None:
        self._flights = flights

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        return self._flights.rollout(ticket.index)


class HoldingCollector(RecordedCollector):
    """The same with weights of its own: its lanes drain before it takes new ones."""

    def apply(self, snapshot: Snapshot) -> None:
        pass


class SimulatedLearner:
    """Learns nothing. `decay` makes the effective sample size fall with the mean age of the batch."""

    def __init__(self, decay: float = 0.0) -> None:
        self._decay = decay

    def learn(self, batch: Batch) -> LearnReport:
        if not self._decay or not batch.rollouts:
            return LearnReport()
        ages = [batch.version - r.span.oldest for r in batch.rollouts if r.span is not None]
        return LearnReport({"ess": math.exp(-self._decay * sum(ages) / len(ages))} if ages else {})

    def snapshot(self) -> None:
        return None

    def state_dict(self) -> None:
        return None

    def load_state_dict(self, state: None) -> None:
        pass


class SimulatedReplayLearner(SimulatedLearner):
    """Learns nothing from a replay, `samples` at a time."""

    def __init__(self, samples: float, decay: float = 0.0) -> None:
        super().__init__(decay)
        self._samples = samples

    def insert(self, batch: Batch) -> None:
        pass

    def learn(self, batch: Batch) -> LearnReport:
        return LearnReport(samples=self._samples)


class SimulatedEvaluator:
    """Scores a version with its own number."""

    def evaluate(self, snapshot: Snapshot, seed: int) -> Score:
        return Score(snapshot.version, float(snapshot.version))


def seeds(run_seed: int, count: int) -> list[int]:
    """Seeds of the first tickets of a run, for looking at a workload without running it."""
    return [derive_seed(run_seed, "ticket", index) for index in range(count)]
