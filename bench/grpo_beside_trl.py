"""GRPO on two cores beside TRL's trainer: same model, prompts, group size, tokens, learning rate and updates.

    make bench-peers                                   once: TRL in an environment of its own
    python bench/grpo_beside_trl.py [--updates 12] [--repeats 2] [--threads 2]

The default pretrained model answers "a number larger than X" with replies of up to eight tokens, eight prompts of eight
replies an update. In turns, each in a process of its own: TRL (both cores, transformers' generate, no gradient
checkpointing, which is faster), ours without a lead (both cores), ours with a lead of 1 (one core for the engine, one
for the trainer). Samples per second, and processor seconds a sample, are those of all updates but the first, loading
and compiling left out. On a machine with other work the processor seconds say more, with `--threads 1`: threads that
wait for each other spin. Rewards are those of the samples trained on: the mean of the first and of the last three
updates.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from figures import spread
from runs import last_line

ROOT = Path(__file__).parents[1]
PEER = ROOT / ".bench-venv-trl" / "bin" / "python"
GROUP, PROMPTS, TOKENS, RATE = 8, 8, 8, 1e-5
WAYS = {"TRL": None, "headway, lead 0": 0, "headway, lead 1": 1}


def run_ours(lead: float, threads: int, updates: int, seed: int) -> dict[str, Any]:
    from headway.coordinator.coordinator import Coordinator
    from headway.llm.grpo import GRPOConfig, stations
    from headway.runs.event_log import MemoryRecorder
    from headway.runtimes.threads import Threads

    config = GRPOConfig(
        task="larger_than",
        group_size=GROUP,
        tickets_per_batch=PROMPTS,
        max_tokens=TOKENS,
        learning_rate=RATE,
        updates=updates,
        max_lead=lead,
        torch_threads=threads,
        evaluate_every=0,
        device="cpu",
        seed=seed,
    )

    class Watched(MemoryRecorder):
        """Notes the processor time at the end of every update."""

        def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
            super().record(time_s, kind, fields)
            if kind == "learn":
                processor.append(time.process_time())

    runtime, recorder = Threads(), Watched()
    processor = [time.process_time()]
    runtime.run(Coordinator(stations(config), config.settings(), runtime, recorder=recorder).run())
    learned = [event for event in recorder.events if event["e"] == "learn"]
    begin = next(event["t"] for event in recorder.events if event["e"] == "open")
    marks = [begin, *(event["t"] for event in learned)]
    return {
        "seconds": [later - earlier for earlier, later in pairwise(marks)],
        "processor": [later - earlier for earlier, later in pairwise(processor)],
        "rewards": [event["m"]["reward"] for event in learned],
    }


def run_peer(threads: int, updates: int, seed: int) -> dict[str, Any]:
    from headway.llm.model.loading_models import locate
    from headway.llm.tasks.tasks import load_task

    task = load_task("larger_than", seed=seed)
    prompts = [task.prompt(index) for index in range(PROMPTS * updates)]
    job = {
        "prompts": [(prompt.messages[-1]["content"], float(prompt.truth)) for prompt in prompts],
        "group_size": GROUP,
        "prompts_per_update": PROMPTS,
        "max_tokens": TOKENS,
        "learning_rate": RATE,
        "updates": updates,
        "threads": threads,
        "seed": seed,
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(job, file)
        file.flush()
        words = [str(PEER), str(ROOT / "bench" / "peers" / "trl_grpo.py"), locate("smollm2"), file.name]
        return last_line(words)


def speed(found: dict[str, Any]) -> float:
    later = found["seconds"][1:]
    return GROUP * PROMPTS * len(later) / sum(later)


def price(found: dict[str, Any]) -> float:
    """Processor seconds a sample, of the same updates."""
    later = found["processor"][1:]
    return sum(later) / (GROUP * PROMPTS * len(later))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2, help="of torch; with a lead each role has half of them")
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        print(json.dumps(run_ours(*given.one)))
        return
    if not PEER.exists():
        raise SystemExit("TRL is not there: make bench-peers")
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in WAYS}
    for repeat in range(given.repeats):
        for name, lead in WAYS.items():
            if lead is None:
                found[name].append(run_peer(given.threads, given.updates, repeat))
            else:
                ours = [lead, max(1, given.threads // (2 if lead else 1)), given.updates, repeat]
                found[name].append(last_line([sys.executable, __file__, "--one", json.dumps(ours)]))
            last = found[name][-1]
            costs = f"{speed(last):.2f} samples/s, {price(last):.3f} processor s each"
            print(f"{name}, seed {repeat}: {costs}, rewards {last['rewards']}", flush=True)
    titles = f"{'samples/s':>22} {'times TRL':>20} {'processor s/sample':>22} {'times TRL':>20}"
    print(f"\n{'':<16} {titles} {'reward, first 3':>16} {'last 3':>7}")
    for name, runs in found.items():
        speeds = [speed(run) for run in runs]
        ratios = [mine / speed(peer) for mine, peer in zip(speeds, found["TRL"], strict=True)]
        prices = [price(run) for run in runs]
        cheaper = [theirs / mine for mine, theirs in zip(prices, map(price, found["TRL"]), strict=True)]
        first, last = (
            statistics.fmean(statistics.fmean(run["rewards"][part]) for run in runs)
            for part in (slice(0, 3), slice(-3, None))
        )
        figures = f"{spread(speeds, 2):>22} {spread(ratios, 2):>20} {spread(prices, 3):>22} {spread(cheaper, 2):>20}"
        print(f"{name:<16} {figures} {first:>16.2f} {last:>7.2f}")


if __name__ == "__main__":
    main()
