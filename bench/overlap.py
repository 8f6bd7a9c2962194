"""How much of the possible overlap a run gets, and whether the simulator knew it beforehand.

    python bench/overlap.py            both tables
    python bench/overlap.py --quick    fewer leads and repeats

Collecting and training are waits of known length, so the floor is exact: max(C, T) per update. Table 1 runs
C = T = 50 ms on threads and processes. Table 2 varies C/T and the lead on threads; the prediction is made
by `headway simulate` on durations fitted to the lead-0 run of the same row.
"""

from __future__ import annotations

import statistics
import sys
import time
from functools import partial
from itertools import product

from figures import spread

from headway.coordinator.coordinator import Coordinator
from headway.coordinator.roles import Stations
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Plan, Settings
from headway.core.types import Batch, LearnReport, Rollout, Snapshot, Ticket
from headway.runs.event_log import MemoryRecorder
from headway.runtimes.build import build_runtime
from headway.tools.report.recorded_run_run_history import tell
from headway.tools.report.what_if_fitting import fit
from headway.tools.simulate.simulation import simulate


class SlowCollector:
    def __init__(self, seconds: float, number: int) -> None:
        self._seconds = seconds

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        time.sleep(self._seconds)
        return Rollout(None)


class SlowLearner:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def learn(self, batch: Batch) -> LearnReport:
        time.sleep(self._seconds)
        return LearnReport()

    def snapshot(self) -> None:
        return None

    def state_dict(self) -> None:
        return None

    def load_state_dict(self, state: None) -> None:
        pass


def measure(runtime: str, collect_s: float, learn_s: float, lead: float, updates: int) -> tuple[RunResult, list]:
    place, recorder = build_runtime(runtime), MemoryRecorder()
    stations = Stations(partial(SlowCollector, collect_s), partial(SlowLearner, learn_s))
    settings = Settings(plan=Plan(updates=updates), max_lead=lead)
    return place.run(Coordinator(stations, settings, place, recorder=recorder).run()), recorder.events


def efficiency_table(repeats: int, updates: int) -> None:
    seconds = 0.05
    print(f"overlap efficiency, C = T = 50 ms, {updates} updates, {repeats} repeats: floor / measured")
    print(f"{'runtime':10} {'lead':>4} {'efficiency (min..max)':>26} {'speed-up over lead 0':>22}")
    for runtime in ("threads", "processes"):
        serial = measure(runtime, seconds, seconds, 0, updates)[0].wall_s
        for lead in (1, 2, 4):
            walls = [measure(runtime, seconds, seconds, lead, updates)[0].wall_s for _ in range(repeats)]
            efficiency = [updates * seconds / wall for wall in walls]
            print(f"{runtime:10} {lead:4} {spread(efficiency, 3):>26} {serial / statistics.median(walls):22.2f}")


def curve_table(leads: list[int], repeats: int, updates: int) -> None:
    learn_s = 0.02
    print(f"\nmeasured against simulated, T = 20 ms, threads, {updates} updates, {repeats} repeats: updates/s")
    print(f"{'C/T':>5} {'lead':>4} {'measured (min..max)':>26} {'simulated':>10} {'difference':>10} {'floor':>8}")
    worst = 0.0
    for ratio, lead in product((0.25, 0.5, 1, 2, 4), leads):
        collect_s = ratio * learn_s
        if lead == leads[0]:
            workshop = fit(tell(measure("threads", collect_s, learn_s, 0, updates)[1]))
        rates = [updates / measure("threads", collect_s, learn_s, lead, updates)[0].wall_s for _ in range(repeats)]
        predicted = simulate(workshop, lead).updates_per_s
        difference = predicted / statistics.median(rates) - 1
        worst = max(worst, abs(difference))
        floor = 1 / (collect_s + learn_s if lead == 0 else max(collect_s, learn_s))
        print(f"{ratio:5} {lead:4} {spread(rates, 3):>26} {predicted:10.3f} {100 * difference:+9.1f}% {floor:8.2f}")
    print(f"largest difference: {100 * worst:.1f}%")


def main() -> None:
    if "--quick" in sys.argv:
        efficiency_table(repeats=2, updates=60)
        curve_table([0, 1, 4], repeats=1, updates=100)
    else:
        efficiency_table(repeats=5, updates=100)
        curve_table([0, 1, 2, 3, 4, 6, 8], repeats=3, updates=150)


if __name__ == "__main__":
    main()
