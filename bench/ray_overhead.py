"""What Ray costs, and what we add to it: stations that do nothing, and rollouts of 64 KB and 1 MB.

    bare Ray, one call      an empty call of one actor, awaited before the next: the shortest anything can take
    bare Ray, the same loop two actors, collect and learn chained by references, the driver awaits each update only:
                            what a loop written by hand without accounts, deadlines or a log could reach
    ray                     a ticket's whole life through the coordinator: a collect call and a learn call, each awaited

threads and processes are in the table for scale. All rows of a shape are measured in turns.

python bench/ray_overhead.py
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import ray

from headway.coordinator.coordinator import Coordinator
from headway.coordinator.roles import Stations
from headway.coordinator.settings import Plan, Settings
from headway.core.types import Batch, LearnReport, Rollout, Snapshot, Ticket
from headway.runtimes.build import build_runtime

REPEATS = 5
LEAD = 2
KILOBYTE = 1 << 10


class Collector:
    def __init__(self, num_bytes: int, number: int) -> None:
        self._payload = np.ones(num_bytes, np.uint8) if num_bytes else None

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        return Rollout(self._payload)


class Learner:
    """Looks at one byte a page, so that what it was given really is there. Its weights are a small network's."""

    def __init__(self, num_bytes: int) -> None:
        self._weights = np.ones(num_bytes // 16, np.uint8) if num_bytes else None

    def learn(self, batch: Batch) -> LearnReport:
        for rollout in batch.rollouts:
            look_at(rollout.payload)
        return LearnReport()

    def snapshot(self) -> np.ndarray | None:
        return self._weights

    def state_dict(self) -> None:
        return None

    def load_state_dict(self, state: None) -> None:
        pass


def look_at(payload: np.ndarray | None) -> None:
    if payload is not None:
        assert payload[::4096].all()


@dataclass(frozen=True)
class Shape:
    name: str
    num_bytes: int
    tickets_per_batch: int = 1
    collectors: int = 1


SHAPES = [
    Shape("no payload", 0),
    Shape("no payload, 8 tickets an update", 0, 8, 2),
    Shape("64 KB rollouts", 64 * KILOBYTE),
    Shape("1 MB rollouts", 1024 * KILOBYTE),
]
TICKETS = {"threads": 2000, "processes": 2000, "ray": 304}


def through_coordinator(runtime_name: str, shape: Shape) -> tuple[float, float | None]:
    """Seconds a ticket, and the share of the payload bytes that passed through the driver (where it is counted)."""
    tickets = TICKETS[runtime_name] if shape.num_bytes < 1024 * KILOBYTE else 304
    settings = Settings(
        plan=Plan(updates=tickets // shape.tickets_per_batch),
        max_lead=LEAD,
        collectors=shape.collectors,
        tickets_per_batch=shape.tickets_per_batch,
    )
    runtime = build_runtime(runtime_name)
    stations = Stations(partial(Collector, shape.num_bytes), partial(Learner, shape.num_bytes))
    result = runtime.run(Coordinator(stations, settings, runtime).run())
    assert result.ledger.learned == tickets
    passed: int | None = getattr(runtime, "driver_payload_bytes", None)
    share = None if passed is None or not shape.num_bytes else passed / (shape.num_bytes * tickets)
    return result.wall_s / tickets, share


# -- without us ---------------------------------------------------------------------------------------------------


class BareCollector:
    def __init__(self, num_bytes: int) -> None:
        self._payload = np.ones(num_bytes, np.uint8) if num_bytes else None

    def collect(self, weights: np.ndarray | None) -> np.ndarray | None:
        return self._payload

    def nothing(self) -> None:
        pass


class BareLearner:
    def __init__(self, num_bytes: int) -> None:
        self._weights = np.ones(num_bytes // 16, np.uint8) if num_bytes else None

    def learn(self, *rollouts: np.ndarray | None) -> tuple[np.ndarray | None, int]:
        for rollout in rollouts:
            look_at(rollout)
        return self._weights, len(rollouts)


def actors(shape: Shape) -> tuple[list[Any], Any]:
    """Placed and answering."""
    options = {"num_cpus": 0}
    collectors: list[Any] = [
        ray.remote(BareCollector).options(**options).remote(shape.num_bytes)  # type: ignore[attr-defined]
        for _ in range(shape.collectors)
    ]
    learner: Any = ray.remote(BareLearner).options(**options).remote(shape.num_bytes)  # type: ignore[attr-defined]
    ray.get([actor.nothing.remote() for actor in collectors])
    ray.get(learner.learn.options(num_returns=2).remote())
    return collectors, learner


def bare_loop(shape: Shape) -> tuple[float, None]:
    collectors, learner = actors(shape)
    tickets, per_batch = TICKETS["ray"], shape.tickets_per_batch
    weights, _ = learner.learn.options(num_returns=2).remote()
    began = time.perf_counter()
    flying: deque[Any] = deque()
    for ticket in range((1 + LEAD) * per_batch):
        flying.append(collectors[ticket % shape.collectors].collect.remote(weights))
    for update in range(tickets // per_batch):
        batch = [flying.popleft() for _ in range(per_batch)]
        weights, report = learner.learn.options(num_returns=2).remote(*batch)
        assert ray.get(report) == per_batch
        for ticket in range(per_batch):
            flying.append(collectors[(update + ticket) % shape.collectors].collect.remote(weights))
    seconds = time.perf_counter() - began
    for actor in (*collectors, learner):
        ray.kill(actor)
    return seconds / tickets, None


def bare_call(shape: Shape) -> tuple[float, None]:
    collectors, learner = actors(shape)
    calls = 500
    began = time.perf_counter()
    for _ in range(calls):
        ray.get(collectors[0].nothing.remote())
    seconds = time.perf_counter() - began
    for actor in (*collectors, learner):
        ray.kill(actor)
    return seconds / calls, None


def main() -> None:
    ray.init("local", include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        print(f"{'':58} {'us/ticket':>10} {'min .. max':>20} {'per second':>10} {'through driver':>15}")
        for shape in SHAPES:
            rows: dict[str, Callable[[], tuple[float, float | None]]] = {
                name: partial(through_coordinator, name, shape) for name in TICKETS
            }
            rows["bare Ray, the same loop"] = partial(bare_loop, shape)
            if not shape.num_bytes and shape.collectors == 1:
                rows["bare Ray, one call"] = partial(bare_call, shape)
            measured: dict[str, list[tuple[float, float | None]]] = {name: [] for name in rows}
            for _ in range(REPEATS):
                for name, measure in rows.items():
                    measured[name].append(measure())
            for name, values in measured.items():
                report(f"{shape.name}: {name}", values)
    finally:
        ray.shutdown()


def report(title: str, values: list[tuple[float, float | None]]) -> None:
    times = [1e6 * seconds for seconds, _ in values]
    middle = statistics.median(times)
    shares = [share for _, share in values if share is not None]
    share = f"{100 * max(shares):.3f}%" if shares else "-"
    spread = f"{min(times):9.0f} ..{max(times):9.0f}"
    print(f"{title:58} {middle:10.0f} {spread:>20} {1e6 / middle:10.0f} {share:>15}", flush=True)


if __name__ == "__main__":
    main()
