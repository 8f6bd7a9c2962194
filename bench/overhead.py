"""What the coordinator itself costs: stations that do nothing.

    python bench/overhead.py

On threads, every ticket takes one call to a collector's thread and its share of one to the learner's. What two bare
threads need for that many hand-overs is measured in the same repeat and shown as `hand-over`; the rest is ours.
"""

from __future__ import annotations

import queue
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from operator import sub
from pathlib import Path

from headway.coordinator.coordinator import Coordinator
from headway.coordinator.roles import Stations
from headway.coordinator.settings import Plan, Settings
from headway.core.protocols import Runtime
from headway.core.types import Batch, LearnReport, Rollout, Snapshot, Ticket
from headway.runs.event_log import EventLog
from headway.runtimes.build import build_runtime
from headway.runtimes.virtual import Virtual
from headway.tools.simulate.workloads import Constant, Lognormal, SteadyWorkload

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


def hand_over_s(rounds: int = 5000) -> float:
    """What it costs two bare threads to hand something over and back: the floor under any call to a thread."""
    there: queue.SimpleQueue[int] = queue.SimpleQueue()
    back: queue.SimpleQueue[int] = queue.SimpleQueue()

    def answer() -> None:
        while (number := there.get()) >= 0:
            back.put(number)

    thread = threading.Thread(target=answer)
    thread.start()
    began = time.perf_counter()
    for number in range(rounds):
        there.put(number)
        back.get()
    elapsed = time.perf_counter() - began
    there.put(-1)
    thread.join()
    return elapsed / rounds


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
    head = "per ticket, stations that do nothing"
    print(f"{head:42} {'us':>8} {'min .. max':>18} {'hand-over':>10} {'ours':>8} {'tickets/s':>10}")
    for name, make, tickets, batch, collectors, log in cases:
        floors, times = [], []
        for _ in range(REPEATS):
            floors.append(1e6 * hand_over_s() * (1 + 1 / batch) if name.startswith("threads") else 0.0)
            times.append(1e6 * per_ticket_s(make, tickets, batch, collectors, log=log))
        middle, floor = statistics.median(times), statistics.median(floors)
        ours = "" if name.startswith("processes") else f"{statistics.median(map(sub, times, floors)):.1f}"
        spread = f"{min(times):8.1f} ..{max(times):8.1f}"
        print(f"{name:42} {middle:8.1f} {spread} {floor:10.1f} {ours:>8} {1e6 / middle:10.0f}")


if __name__ == "__main__":
    main()
