"""Stations whose every bit can be checked.

The toy problem has no meaning, only memory: a rollout depends on the weights, the ticket's seed and what its
collector carried; the weights depend on every rollout and on their order. Whatever the coordinator gets
wrong (a stale snapshot, a swapped order, a lost state, a rollout trained twice) changes the fingerprint.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from headway.coordinator.roles import Stations
from headway.coordinator.settings import Settings
from headway.core.types import Batch, LearnReport, Rollout, Score, Snapshot, Span, Ticket, derive_seed
from headway.core.types_opaque import SavedState

SIZE = 16
PATIENCE_S = 20.0
Vector = np.ndarray


class ToyCollector:
    """Carries a running sum from one rollout to the next. `work` is called first: to wait, or to fail."""

    def __init__(self, number: int, work: Callable[[Ticket], None] | None = None) -> None:
        self._number = number
        self._work = work
        self._carried = np.full(SIZE, float(number))

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        if self._work is not None:
            self._work(ticket)
        noise = np.random.default_rng(ticket.seed).normal(size=SIZE)
        self._carried = 0.9 * self._carried + noise
        seen = np.sin(snapshot.payload["weights"]) + 0.1 * self._carried
        return Rollout({"seen": seen, "ticket": np.array([ticket.index])}, steps=1 + ticket.seed % 7)

    def state_dict(self) -> SavedState:
        return self._carried

    def load_state_dict(self, state: SavedState) -> None:
        self._carried = state


class ToyEngine:
    """Works on several tickets at once, with the weights it was given last; carries nothing else.

    A rollout is made half by the weights at its beginning and half by those at its end, and says which those were.
    """

    is_concurrent = True

    def __init__(self, number: int, work: Callable[[Ticket], None] | None = None) -> None:
        self._number = number
        self._work = work
        self._held = Snapshot(-1, None)

    def apply(self, snapshot: Snapshot) -> None:
        self._held = Snapshot(snapshot.version, copy.deepcopy(snapshot.payload))

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        first = self._held
        if self._work is not None:
            self._work(ticket)
        last = self._held
        noise = np.random.default_rng(ticket.seed).normal(size=SIZE) + self._number
        seen = np.sin(first.payload["weights"]) + np.sin(last.payload["weights"]) + 0.1 * noise
        payload = {"seen": seen, "ticket": np.array([ticket.index])}
        return Rollout(payload, steps=1 + ticket.seed % 7, span=Span(first.version, last.version))


class ToyLearner:
    """Folds rollouts into the weights one by one, in place."""

    def __init__(self, work: Callable[[Batch], None] | None = None) -> None:
        self._work = work
        self._weights = np.linspace(-1.0, 1.0, SIZE)
        self._momentum = np.zeros(SIZE)
        self._trained: list[int] = []

    def learn(self, batch: Batch) -> LearnReport:
        if self._work is not None:
            self._work(batch)
        for rollout in batch.rollouts:
            self._momentum *= 0.7
            self._momentum += rollout.payload["seen"]
            self._weights += 0.05 * np.cos(self._momentum)
            self._trained.append(int(rollout.payload["ticket"][0]))
        return LearnReport({"norm": float(np.linalg.norm(self._weights))})

    def snapshot(self) -> dict[str, Vector]:
        return {"weights": self._weights}

    def state_dict(self) -> SavedState:
        return {"weights": self._weights, "momentum": self._momentum, "trained": list(self._trained)}

    def load_state_dict(self, state: SavedState) -> None:
        self._weights, self._momentum = np.array(state["weights"]), np.array(state["momentum"])
        self._trained = list(state["trained"])


class ToyEvaluator:
    """The norm of the weights."""

    def evaluate(self, snapshot: Snapshot, seed: int) -> Score:
        return Score(snapshot.version, float(np.linalg.norm(snapshot.payload["weights"])))


class ToyReplayLearner(ToyLearner):
    """Keeps what it was given and trains on draws from it."""

    def __init__(self, draws: int = 4) -> None:
        super().__init__()
        self._draws = draws
        self._kept: list[Rollout] = []
        self._random = np.random.default_rng(3)

    def insert(self, batch: Batch) -> None:
        self._kept += batch.rollouts

    def learn(self, batch: Batch) -> LearnReport:
        drawn = self._random.integers(len(self._kept), size=self._draws)
        super().learn(Batch(batch.version, tuple(self._kept[i] for i in drawn)))
        return LearnReport(samples=self._draws)

    def state_dict(self) -> SavedState:
        return {**super().state_dict(), "kept": list(self._kept), "random": self._random.bit_generator.state}

    def load_state_dict(self, state: SavedState) -> None:
        super().load_state_dict(state)
        self._kept, self._random.bit_generator.state = list(state["kept"]), state["random"]


class Pause:
    """Waits a while that depends on the seed alone: uneven, so that collectors overtake each other."""

    def __init__(self, at_most_s: float) -> None:
        self._at_most_s = at_most_s

    def __call__(self, ticket: Ticket) -> None:
        time.sleep(self._at_most_s * (derive_seed(ticket.seed, "pause") % 1000) / 1000)


def _toy_collector(work: Callable[[Ticket], None] | None, number: int) -> ToyCollector:
    return ToyCollector(number, work)


def _toy_engine(work: Callable[[Ticket], None] | None, number: int) -> ToyEngine:
    return ToyEngine(number, work)


def engine_stations(work: Callable[[Ticket], None] | None = None, *, evaluates: bool = True) -> Stations:
    """The toy problem with engines for collectors, which can have lanes."""
    return Stations(partial(_toy_engine, work), ToyLearner, ToyEvaluator if evaluates else None)


def toy_stations(
    work: Callable[[Ticket], None] | None = None,
    learn_work: Callable[[Batch], None] | None = None,
    *,
    evaluates: bool = True,
) -> Stations:
    """The toy problem, picklable if `work` is."""
    return Stations(
        collector=partial(_toy_collector, work),
        learner=partial(ToyLearner, learn_work),
        evaluator=ToyEvaluator if evaluates else None,
    )


def plain_loop(settings: Settings) -> dict[str, Vector]:
    """The loop without us: collect, train, again. What `max_lead=0` must equal bit for bit."""
    learner = ToyLearner()
    crew = [ToyCollector(number) for number in range(settings.collectors)]
    snapshot = Snapshot(0, copy.deepcopy(learner.snapshot()))
    assert settings.plan.updates is not None
    for update in range(settings.plan.updates):
        rollouts = []
        for place in range(settings.tickets_per_batch):
            index = update * settings.tickets_per_batch + place
            ticket = Ticket(index, derive_seed(settings.seed, "ticket", index))
            rollouts.append(crew[index % len(crew)].collect(ticket, snapshot))
        learner.learn(Batch(snapshot.version, tuple(rollouts)))
        if (update + 1) % settings.publish_every == 0:
            snapshot = Snapshot(snapshot.version + 1, copy.deepcopy(learner.snapshot()))
    return learner.snapshot()


def pinned_loop(
    settings: Settings, collector: Callable[[int], ToyCollector | ToyEngine] = ToyCollector
) -> dict[str, Vector]:
    """A pinned run as one serial program: ticket k with version max(0, ceil((k + 1 - slots) / per version)).

    It does not know of lanes: with or without them ticket k is collected by collector k mod collectors.
    """
    learner = ToyLearner()
    crew = [collector(number) for number in range(settings.collectors)]
    weights = [copy.deepcopy(learner.snapshot())]
    per_version = settings.tickets_per_version
    assert settings.plan.updates is not None
    assert isinstance(settings.max_lead, int | float)
    slots = int((1 + settings.max_lead) * per_version)
    rollouts: list[Rollout] = []
    for update in range(settings.plan.updates):
        for index in range(update * settings.tickets_per_batch, (update + 1) * settings.tickets_per_batch):
            version = max(0, -((slots - index - 1) // per_version))
            ticket = Ticket(index, derive_seed(settings.seed, "ticket", index))
            snapshot, member = Snapshot(version, weights[version]), crew[index % len(crew)]
            if isinstance(member, ToyEngine):
                member.apply(snapshot)
            rollouts.append(member.collect(ticket, snapshot))
        learner.learn(Batch(len(weights) - 1, tuple(rollouts)))
        rollouts.clear()
        if (update + 1) % settings.publish_every == 0:
            weights.append(copy.deepcopy(learner.snapshot()))
    return learner.snapshot()


class Echo:
    """A role for testing runtimes: answers, keeps count, fails and hangs on demand."""

    def __init__(self) -> None:
        self._count = 0
        self._weights = np.zeros(1000)
        self._never = threading.Event()

    def echo(self, *values: object) -> object:
        return values if len(values) != 1 else values[0]

    def count(self) -> int:
        self._count += 1
        return self._count

    def fail(self, message: str) -> None:
        raise ValueError(message)

    def fail_without_words(self) -> None:
        raise Wordless

    def leave(self) -> None:
        raise SystemExit(3)

    def hang(self) -> None:
        self._never.wait()

    def snapshot(self, version: int) -> Snapshot:
        return Snapshot(version, self._weights)

    def change_weights(self, value: float) -> None:
        self._weights += value

    def rollout(self, size: int, value: float) -> Rollout:
        return Rollout({"values": np.full(size, value), "name": "rollout"})

    def report(self, size: int, value: float) -> tuple[LearnReport, None]:
        return LearnReport({"loss": value}, feedback={"values": np.full(size, value)}), None

    def total_of_feedback(self, report: LearnReport) -> float:
        return float(report.feedback["values"].sum())

    def total(self, batch: Batch) -> float:
        return float(sum(rollout.payload["values"].sum() for rollout in batch.rollouts))

    def weigh(self, snapshot: Snapshot) -> float:
        return float(snapshot.payload.sum())

    def unpicklable(self) -> object:
        return threading.Lock()


class Crossing:
    """A role with lanes for testing runtimes: its calls can tell whether they are alone."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._barriers: dict[int, threading.Barrier] = {}
        self._lock = threading.Lock()
        self._inside = self._most_inside = self._count = 0

    def collect(self, what: str, *args: object) -> object:
        with self._lock:
            self._inside += 1
            self._most_inside = max(self._most_inside, self._inside)
        try:
            return getattr(self, f"_{what}")(*args)
        finally:
            with self._lock:
                self._inside -= 1

    def apply(self, value: object) -> object:
        """Whoever waits may go on."""
        self._open.set()
        return value

    def count(self) -> int:
        self._count += 1
        return self._count

    def most_inside(self) -> int:
        return self._most_inside

    def _meet(self, others: int) -> int:
        """Waits until so many are here at once; returns which object they met in."""
        with self._lock:
            barrier = self._barriers.setdefault(others, threading.Barrier(others, timeout=PATIENCE_S))
        barrier.wait()
        return id(self)

    def _wait(self, value: object) -> object:
        if not self._open.wait(PATIENCE_S):
            raise TimeoutError("nobody said that I may go on")
        return value

    def _fail(self, message: str) -> None:
        raise ValueError(message)

    def _leave(self) -> None:
        raise SystemExit(3)

    def _hang(self) -> None:
        threading.Event().wait()

    def _rollout(self, size: int, value: float) -> Rollout:
        return Rollout({"values": np.full(size, value)})

    def _add(self, rollout: Rollout, snapshot: Snapshot) -> Rollout:
        return Rollout({"values": rollout.payload["values"] + snapshot.payload})


class Wordless(Exception):
    """An exception that cannot be turned into text."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Broken:
    """A role that cannot be built."""

    def __init__(self) -> None:
        raise RuntimeError("no such simulator")
