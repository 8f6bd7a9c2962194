"""What recording costs: the same run without a folder and with one, in turns, in one process.

    python bench/recording.py [REPEATS]

Threads; collecting and learning sleep, so that about 2,000 tickets a second are learned, one or eight at a time, and
whatever the coordinator does between two updates makes the run slower. With a folder it writes the event log, the
metrics and the log file, and watches the alarms; the trace at the end is left out. The cost is one minus the ratio of
the throughputs within a pair. Processor time a ticket, with a folder less without: of the thread that runs the
coordinator, and of the whole process of the run with the threads that record.
"""

from __future__ import annotations

import io
import statistics
import sys
import tempfile
import time
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path

from headway.coordinator.roles import Stations
from headway.coordinator.settings import Plan, Settings
from headway.core.types import Batch, LearnReport, Rollout, Snapshot, Ticket
from headway.runs import files_run_files as run_files
from headway.runs import launch_session as launching
from headway.runs.folder import RunFolder

COLLECT_S = 0.0006
LEARN_S = {1: 0.00025, 8: 0.0036}
"""Tickets per update -> seconds of one."""
TICKETS = 8000
run_files.TRACE_UP_TO_BYTES = 0


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


@dataclass(frozen=True)
class Measured:
    """Tickets per second, and microseconds of processor time a ticket."""

    rate: float
    coordinator: float
    process: float


def measured(batch: int, *, records: bool) -> Measured:
    settings = Settings(plan=Plan(updates=TICKETS // batch), collectors=4, max_lead=8, tickets_per_batch=batch)
    with tempfile.TemporaryDirectory() as path, redirect_stderr(io.StringIO()):
        folder = RunFolder(Path(path)) if records else None
        before = spent()
        result = launching.launch(
            Stations(SleepingCollector, SleepingLearner),
            settings,
            runtime="threads",
            folder=folder,
            alarms={"stale_samples_ratio": 1.0, "effective_sample_size": 0.5} if records else None,
        )
        times = [1e6 * (now - then) / TICKETS for now, then in zip(spent(), before, strict=True)]
    return Measured(result.ledger.learned / result.wall_s, *times)


def spent() -> tuple[float, float]:
    """Seconds of this thread and of this process."""
    return time.thread_time(), time.process_time()


def compare(batch: int, repeats: int) -> None:
    pairs = []
    for repeat in range(repeats):
        turns = (False, True) if repeat % 2 else (True, False)
        seen = {records: measured(batch, records=records) for records in turns}
        pairs.append((seen[False], seen[True]))
    costs = sorted(100 * (1 - recorded.rate / plain.rate) for plain, recorded in pairs)
    low, _, high = statistics.quantiles(costs, n=4)
    median = statistics.median
    print(
        f"{batch} tickets an update, {median(plain.rate for plain, _ in pairs):.0f} tickets/s: recording costs "
        f"{median(costs):.2f} % of the throughput (quartiles {low:.2f} and {high:.2f}, "
        f"mean {statistics.mean(costs):.2f} +- {statistics.stdev(costs) / len(costs) ** 0.5:.2f}); "
        f"us of processor time a ticket: "
        f"coordinator {median(r.coordinator - p.coordinator for p, r in pairs):.1f} "
        f"of {median(p.coordinator for p, _ in pairs):.0f}, "
        f"process {median(r.process - p.process for p, r in pairs):.1f} of {median(p.process for p, _ in pairs):.0f}",
        flush=True,
    )


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    measured(8, records=True)  # imports, first files
    for batch in LEARN_S:
        compare(batch, repeats)


if __name__ == "__main__":
    main()
