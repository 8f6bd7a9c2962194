"""What Ray costs: stations that do nothing, and rollouts of one megabyte, on threads, processes and Ray in one run.

python bench/ray_overhead.py
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import ray

from headway.coordinate.coordinator import Coordinator
from headway.coordinate.roles import Stations
from headway.coordinate.settings import Plan, Settings
from headway.core.protocols import Runtime
from headway.core.types import Batch, LearnReport, Rollout, Snapshot, Ticket
from headway.launching import build_runtime

REPEATS = 5
MEGABYTE = 1 << 20


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
            if rollout.payload is not None:
                assert rollout.payload[::4096].all()
        return LearnReport()

    def snapshot(self) -> np.ndarray | None:
        return self._weights

    def state_dict(self) -> None:
        return None

    def load_state_dict(self, state: None) -> None:
        pass


@dataclass(frozen=True)
class Case:
    runtime: str
    num_bytes: int
    tickets: int
    tickets_per_batch: int
    collectors: int


def measure(case: Case) -> tuple[float, float | None]:
    """Seconds a ticket, and the share of the payload bytes that passed through the driver (where it is counted)."""
    updates = case.tickets // case.tickets_per_batch
    settings = Settings(
        plan=Plan(updates=updates),
        max_lead=2,
        collectors=case.collectors,
        tickets_per_batch=case.tickets_per_batch,
    )
    runtime = build_runtime(case.runtime)
    stations = Stations(partial(Collector, case.num_bytes), partial(Learner, case.num_bytes))
    result = runtime.run(Coordinator(stations, settings, runtime).run())
    assert result.ledger.learned == case.tickets
    return result.wall_s / case.tickets, share_through_driver(runtime, case)


def share_through_driver(runtime: Runtime, case: Case) -> float | None:
    passed: int | None = getattr(runtime, "driver_payload_bytes", None)
    if passed is None or not case.num_bytes:
        return None
    return passed / (case.num_bytes * case.tickets)


def main() -> None:
    num_tickets = {"threads": 2000, "processes": 2000, "ray": 300}
    shapes: list[tuple[str, Callable[[str], Case]]] = [
        ("no payload, 1 ticket an update", lambda name: Case(name, 0, num_tickets[name], 1, 1)),
        ("no payload, 8 tickets an update", lambda name: Case(name, 0, 8 * (num_tickets[name] // 8), 8, 2)),
        ("1 MB rollouts, 1 ticket an update", lambda name: Case(name, MEGABYTE, min(300, num_tickets[name]), 1, 1)),
    ]
    ray.init("local", include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        print(f"{'':45} {'us/ticket':>10} {'min .. max':>20} {'tickets/s':>10} {'through driver':>15}")
        for title, make in shapes:
            for name in num_tickets:
                measured = [measure(make(name)) for _ in range(REPEATS)]
                times = [1e6 * seconds for seconds, _ in measured]
                middle = statistics.median(times)
                shares = [share for _, share in measured if share is not None]
                share = f"{100 * max(shares):.3f}%" if shares else "-"
                spread = f"{min(times):9.0f} ..{max(times):9.0f}"
                print(
                    f"{name + ', ' + title:45} {middle:10.0f} {spread:>20} {1e6 / middle:10.0f} {share:>15}", flush=True
                )
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
