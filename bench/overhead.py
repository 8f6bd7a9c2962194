"""What the coordinator itself costs: stations that do nothing, so that all time is ours.

python bench/overhead.py
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from headway.coordinate.coordinator import Coordinator
from headway.coordinate.roles import Stations
from headway.coordinate.settings import Plan, Settings
from headway.core.protocols import Runtime
from headway.core.types import Batch, LearnReport, Rollout, Snapshot, Ticket
from headway.launching import build_runtime
from headway.observe.recorder import EventLog
from headway.runtime.virtual import Virtual
from headway.testing.workloads import Constant, Lognormal, SteadyWorkload

REPEATS = 5


class NoCollector:
    def __init__(self, number: int) -> None:
        pass

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        return Rollout(None)


class NoLearner:
    def learn(self, batch: Batch) -> LearnReport:
        return LearnReport()

    def snapshot(self) -> None:
        return None

    def state_dict(self) -> None:
        return None

    def load_state_dict(self, state: None) -> None:
        pass


def per_ticket_s(make: Callable[[], Runtime], tickets: int, batch: int, collectors: int, *, log: bool) -> float:
    settings = Settings(plan=Plan(updates=tickets // batch), max_lead=2, collectors=collectors, tickets_per_batch=batch)
    runtime = make()
    with tempfile.TemporaryDirectory() as folder:
        recorder = EventLog(Path(folder) / "events.jsonl") if log else None
        coordinator = Coordinator(Stations(NoCollector, NoLearner), settings, runtime, recorder=recorder)
        began = time.perf_counter()
        result = runtime.run(coordinator.run())
        elapsed = time.perf_counter() - began if runtime.name == "virtual" else result.wall_s
    assert result.ledger.learned == tickets
    return elapsed / tickets


def virtual() -> Runtime:
    return Virtual(SteadyWorkload(Lognormal(1.0, 0.5), Constant(0.2)))


def main() -> None:
    cases: list[tuple[str, Callable[[], Runtime], int, int, int, bool]] = [
        ("threads, 1 ticket an update", lambda: build_runtime("threads"), 4000, 1, 1, False),
        ("threads, 1 ticket an update, event log", lambda: build_runtime("threads"), 4000, 1, 1, True),
        ("threads, 8 tickets an update", lambda: build_runtime("threads"), 4000, 8, 2, False),
        ("processes, 1 ticket an update", lambda: build_runtime("processes"), 4000, 1, 1, False),
        ("inline, 1 ticket an update", lambda: build_runtime("inline"), 4000, 1, 1, False),
        ("virtual, 1 ticket an update", virtual, 10000, 1, 4, False),
        ("virtual, 8 tickets an update", virtual, 16000, 8, 16, False),
        ("virtual, 64 tickets an update", virtual, 32000, 64, 128, False),
    ]
    print(f"{'coordinator overhead':42} {'us/ticket':>10} {'min .. max':>18} {'tickets/s':>10}")
    for name, make, tickets, batch, collectors, log in cases:
        times = [1e6 * per_ticket_s(make, tickets, batch, collectors, log=log) for _ in range(REPEATS)]
        middle = statistics.median(times)
        print(f"{name:42} {middle:10.1f} {min(times):8.1f} ..{max(times):8.1f} {1e6 / middle:10.0f}")


if __name__ == "__main__":
    main()
