"""Groups a second when every reward takes half a second: one after another in the lane, in the pool, and the floor.

    python bench/reward_pool.py [--latency 0.5] [--generate 0.5] [--groups 4] [--size 8] [--repeats 3]

Real collectors, pool, coordinator and threads; the engine is a wait: `groups` groups at once, `generate` seconds each.
So the floor is exact: groups / generate, the engine always full. Rewards are a service that answers after `latency`
seconds. All ways run in turns. Waits need no processor, so a busy machine adds little; the load is printed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from figures import spread

from headway.coordinator.coordinator import Coordinator
from headway.coordinator.roles import Stations
from headway.coordinator.settings import Plan, Settings
from headway.core.types import Batch, LearnReport
from headway.llm.collector import GroupCollector, GroupSettings
from headway.llm.engine.protocol_engine import EngineHealth, Request, Sample
from headway.llm.tasks.reward_functions import RewardFunctions, load_rewards
from headway.llm.tasks.reward_pool import PoolSettings
from headway.llm.tasks.tasks import Prompt, PromptTask, user_says
from headway.runs.event_log import MemoryRecorder
from headway.runtimes.threads import Threads

SERVICE = """
import asyncio, time

def blocking(prompt, response, truth, info):
    time.sleep({latency})
    return float(len(response))

async def later(prompt, response, truth, info):
    await asyncio.sleep({latency})
    return float(len(response))

def batched(completions, **columns):
    time.sleep({latency})
    return [float(len(text)) for text in completions]
"""


class WaitingEngine:
    """Generates so many groups at once, each in the same time."""

    def __init__(self, groups: int, seconds: float) -> None:
        self.version = 0
        self._places = threading.Semaphore(groups)
        self._seconds = seconds

    def generate(self, request: Request) -> list[Sample]:
        with self._places:
            time.sleep(self._seconds)
        tokens = np.zeros(1, np.int32)
        of_version = np.full(1, self.version, np.int32)
        return [
            Sample(tokens, tokens.astype(np.float32), of_version, "stop", "x" * (1 + k))
            for k in range(request.num_samples)
        ]

    def apply(self, version: int, weights: object) -> None:
        self.version = version

    def health(self) -> EngineHealth:
        return EngineHealth(self.version, 0, 0, False, 0, 0, 0.0)

    def close(self) -> None:
        pass


class Learner:
    """Learns nothing, at once."""

    def learn(self, batch: Batch) -> LearnReport:
        return LearnReport({})

    def snapshot(self) -> dict[str, np.ndarray]:
        return {"weight": np.zeros(1)}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class InLane(GroupCollector):
    """Scores in its lane, one reply after another."""

    def reward(self, prompt: Prompt, sample: Sample) -> float:
        return self._task.reward(prompt, sample.text)


def run(given: argparse.Namespace, rewards: RewardFunctions, way: dict[str, Any]) -> float:
    """Groups a second, from the first landing on."""
    prompts = [Prompt(f"p/{k}", k, "train", "p", (user_says(str(k)),)) for k in range(64)]
    task = PromptTask("service", prompts, [], rewards=rewards)
    runs_in = way.get("runs_in", "threads")
    pool = PoolSettings(runs_in=runs_in, calls=given.calls if runs_in == "threads" else 2 * given.groups)
    groups = GroupSettings(size=given.size, pool=pool)
    engine = partial(WaitingEngine, given.groups, given.generate)
    kind = way.get("kind", GroupCollector)
    stations = Stations(lambda number: kind(engine, task, lambda prompt: (1,), groups), Learner)
    settings = Settings(
        plan=Plan(updates=given.updates),
        max_lead=way.get("lead", 1),
        tickets_per_batch=2 * given.groups,
        lanes=way["lanes"],
        on_publish=way.get("on_publish", "partial"),
    )
    runtime, recorder = Threads(), MemoryRecorder()
    runtime.run(Coordinator(stations, settings, runtime, recorder=recorder).run())
    landed = [event["t"] for event in recorder.events if event["e"] == "land"]
    skipped = 2 * given.groups  # the first batch fills the pipe, and the start of a process is in it
    return (len(landed) - skipped) / (landed[-1] - landed[skipped - 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=0.5)
    parser.add_argument("--generate", type=float, default=0.5)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--calls", type=int, default=64)
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    few, many = given.groups, 4 * given.groups
    ways: dict[str, tuple[str, dict[str, Any]]] = {
        "in the lane": ("blocking", {"kind": InLane, "lanes": few}),
        "in the lane, four times the lanes": ("blocking", {"kind": InLane, "lanes": many}),
        "pool, threads": ("blocking", {"lanes": few}),
        "pool, threads, four times the lanes": ("blocking", {"lanes": many}),
        "pool, async def, four times the lanes": ("later", {"lanes": many}),
        "pool, a call a group (TRL), four times": ("batched", {"lanes": many}),
        "the same in processes": ("batched", {"lanes": many, "runs_in": "processes"}),
        "pool, threads, four times, drain": ("blocking", {"lanes": many, "on_publish": "drain"}),
        "pool, threads, four times, lead 0": ("blocking", {"lanes": many, "on_publish": "drain", "lead": 0}),
    }
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "service.py"
        file.write_text(SERVICE.format(latency=given.latency))
        for _ in range(given.repeats):
            for name, (function, way) in ways.items():
                rewards = load_rewards([f"{file}:{function}"])
                speeds[name].append(run(given, rewards, way))
                print(f"{name}: {speeds[name][-1]:.2f} groups/s (load {os.getloadavg()[0]:.1f})", flush=True)
    floor = given.groups / given.generate
    alone = statistics.median(speeds["in the lane"])
    print(f"\nfloor: {floor:.2f} groups/s\n{'':<40} {'groups/s':>22} {'of the floor':>13} {'times':>6}")
    for name, found in speeds.items():
        middle = statistics.median(found)
        print(f"{name:<40} {spread(found, 2):>22} {middle / floor:>13.0%} {middle / alone:>6.1f}")


if __name__ == "__main__":
    main()
