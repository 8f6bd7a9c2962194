"""What recording costs: the same run without a folder and with one, in turns, in one process.

    python bench/recording.py [REPEATS]

Threads; collecting and learning sleep, so that about 2,000 tickets a second are learned, one or eight at a time, and
whatever the coordinator does between two updates makes the run slower. With a folder it writes the event log, the
metrics and the log file, and watches the alarms; the trace at the end is left out. The ratio is that of the throughputs
within a pair; `cpu` is the difference of processor time per ticket.
"""

from __future__ import annotations

import io
import statistics
import sys
import tempfile
import time
from contextlib import redirect_stderr
from pathlib import Path

from headway import launching
from headway.coordinate.roles import Stations
from headway.coordinate.settings import Plan, Settings
from headway.core.types import Batch, LearnReport, Rollout, Snapshot, Ticket
from headway.observe.folder import RunFolder

COLLECT_S = 0.0006
LEARN_S = {1: 0.00025, 8: 0.0036}
"""Tickets per update -> seconds of one."""
TICKETS = 6000
launching.TRACE_UP_TO_BYTES = 0


class SleepingCollector:
    def __init__(self, number: int) -> None:
        pass

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        time.sleep(COLLECT_S)
        return Rollout(None, steps=64)


class SleepingLearner:
    def learn(self, batch: Batch) -> LearnReport:
        time.sleep(LEARN_S[len(batch.rollouts)])
        return LearnReport({"loss": 0.123456789, "ess": 0.987654321, "kl": 0.0123})

    def snapshot(self) -> None:
        return None

    def state_dict(self) -> None:
        return None

    def load_state_dict(self, state: None) -> None:
        pass


def measured(batch: int, *, records: bool) -> tuple[float, float]:
    """Tickets per second, and seconds of processor time per ticket."""
    settings = Settings(plan=Plan(updates=TICKETS // batch), collectors=4, max_lead=8, tickets_per_batch=batch)
    with tempfile.TemporaryDirectory() as path, redirect_stderr(io.StringIO()):
        folder = RunFolder(Path(path)) if records else None
        cpu = time.process_time()
        result = launching.launch(
            Stations(SleepingCollector, SleepingLearner),
            settings,
            runtime="threads",
            folder=folder,
            alarms={"stale_samples_ratio": 1.0, "effective_sample_size": 0.5} if records else None,
        )
        cpu = time.process_time() - cpu
    return result.ledger.learned / result.wall_s, cpu / TICKETS


def compare(batch: int, repeats: int) -> None:
    ratios, cpus, rates = [], [], []
    for repeat in range(repeats):
        turns = (False, True) if repeat % 2 else (True, False)
        seen = {records: measured(batch, records=records) for records in turns}
        (plain, plain_cpu), (recorded, recorded_cpu) = seen[False], seen[True]
        ratios.append(recorded / plain)
        cpus.append(1e6 * (recorded_cpu - plain_cpu))
        rates.append(plain)
    costs = sorted(100 * (1 - ratio) for ratio in ratios)
    print(
        f"{batch} tickets an update: recording costs {statistics.median(costs):.2f} % of the throughput "
        f"(min {costs[0]:.2f}, max {costs[-1]:.2f}) at {statistics.median(rates):.0f} tickets/s, "
        f"{statistics.median(cpus):.1f} us of processor time a ticket",
        flush=True,
    )


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    measured(8, records=True)  # imports, first files
    for batch in LEARN_S:
        compare(batch, repeats)


if __name__ == "__main__":
    main()
