"""What coordination costs the language model recipe on a CPU: coordinator, queue and publication, as shares of the run.

    python bench/control_plane.py [--updates 8] [--repeats 3]

The default pretrained model, eight prompts of eight replies an update, a lead of 1, threads. `coordinator` is all the
processor time of the thread that decides, hands over and keeps accounts, the queue among them. `publication` is the
time of making a snapshot of the trainer's weights and of the engine taking it. Shares of the wall clock, loading left
out. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from headway.coordinator.coordinator import Coordinator
from headway.llm.grpo import GRPOConfig, stations
from headway.llm.train.grpo_learner_learner import GRPOLearner
from headway.runs.event_log import MemoryRecorder
from headway.runtimes.threads import Threads

SNAPSHOTS: list[float] = []


class TimedLearner(GRPOLearner):
    def snapshot(self) -> Any:
        began = time.perf_counter()
        weights = super().snapshot()
        SNAPSHOTS.append(time.perf_counter() - began)
        return weights


def measured(updates: int, seed: int) -> tuple[float, float, float]:
    """Wall seconds, and the shares of coordinator and publication."""
    config = GRPOConfig(max_lead=1, updates=updates, evaluate_every=0, device="cpu", seed=seed)
    runtime, recorder = Threads(), MemoryRecorder()
    coordinator = Coordinator(stations(config, learner=TimedLearner), config.settings(), runtime, recorder=recorder)
    SNAPSHOTS.clear()
    began = time.thread_time()
    result = runtime.run(coordinator.run())
    deciding = time.thread_time() - began
    first = next(event["t"] for event in recorder.events if event["e"] == "open")
    wall = recorder.events[-1]["t"] - first
    applying = result.time_spent.total("collector", "apply")
    return wall, deciding / wall, (sum(SNAPSHOTS[1:]) + applying) / wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    rows = [measured(given.updates, seed) for seed in range(given.repeats)]
    walls, deciding, publishing = zip(*rows, strict=True)
    print(f"{given.updates} updates, {statistics.median(walls):.0f} s (median of {given.repeats})")
    both = [one + other for one, other in zip(deciding, publishing, strict=True)]
    for name, shares in (("coordinator", deciding), ("publication", publishing), ("together", both)):
        low, high = 100 * min(shares), 100 * max(shares)
        print(f"{name:<12} {100 * statistics.median(shares):.2f} % ({low:.2f}..{high:.2f})")


if __name__ == "__main__":
    main()
