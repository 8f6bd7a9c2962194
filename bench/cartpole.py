"""CartPole-v1 to a rolling mean return of 475 over 100 episodes: wall-clock time, CPU time and environment steps.

    python bench/cartpole.py [--seeds 5] [--peer-python .bench-venv/bin/python]

Ours with its own settings (`headway run cartpole`) at lead 0 and 1, ours with the settings that the RL zoo gives
Stable-Baselines3, and Stable-Baselines3 with those, one after another for every seed, in processes of their own. Time
starts when training does, imports excluded. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TARGET, EPISODES, LIMIT_S = 475.0, 100, 240.0
ZOO = {
    "num_envs": 8,
    "segment_steps": 32,
    "minibatch_size": 256,
    "num_epochs": 20,
    "gamma": 0.98,
    "lam": 0.8,
    "entropy_weight": 0.0,
    "learning_rate": 1e-3,
    "final_learning_rate": 0.0,
    "clip": 0.2,
    "updates": 390,
    "correction": "clip",
}


def run_headway(seed: int, lead: float, zoo: bool) -> dict[str, float]:
    import torch

    from headway.coordinate.coordinator import Coordinator
    from headway.launching import build_runtime
    from headway.observe.recorder import MemoryRecorder
    from headway.recipes.cartpole import CartPoleConfig
    from headway.recipes.ppo import stations

    class Watch(MemoryRecorder):
        """Ends the run at the first update whose rolling return is high enough."""

        coordinator: Coordinator
        steps = 0
        solved = 0.0

        def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
            if kind == "land":
                self.steps += fields["n"]
            if kind == "learn" and fields["m"].get("return", 0.0) >= TARGET and not self.solved:
                self.solved = time.perf_counter()
                self.coordinator.request_stop("solved")

    torch.set_num_threads(1)
    more: dict[str, Any] = dict(ZOO) if zoo else {}
    config = CartPoleConfig(seed=seed, max_lead=lead, target_score=None, evaluate_every=0, **more)
    runtime, watch = build_runtime("threads"), Watch()
    coordinator = Coordinator(stations(config), config.settings(), runtime, recorder=watch)
    watch.coordinator = coordinator
    began, cpu = time.perf_counter(), time.process_time()
    runtime.run(coordinator.run())
    return {
        "wall": watch.solved - began if watch.solved else float("nan"),
        "cpu": time.process_time() - cpu,
        "steps": watch.steps,
    }


def run_sb3(seed: int) -> dict[str, float]:
    import numpy as np
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            buffer = self.model.ep_info_buffer
            enough = buffer is not None and len(buffer) == EPISODES
            return not (enough and np.mean([episode["r"] for episode in buffer]) >= TARGET)

    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=ZOO["num_envs"], seed=seed),
        n_steps=ZOO["segment_steps"],
        batch_size=ZOO["minibatch_size"],
        n_epochs=ZOO["num_epochs"],
        gamma=ZOO["gamma"],
        gae_lambda=ZOO["lam"],
        ent_coef=0.0,
        learning_rate=lambda left: left * ZOO["learning_rate"],
        clip_range=lambda left: left * 0.2,
        seed=seed,
        device="cpu",
    )
    began, cpu = time.perf_counter(), time.process_time()
    model.learn(100_000, callback=Watch())
    wall = time.perf_counter() - began
    solved = model.num_timesteps < 100_000
    return {"wall": wall if solved else float("nan"), "cpu": time.process_time() - cpu, "steps": model.num_timesteps}


WAYS = {
    "headway cartpole, lead 1": lambda seed: run_headway(seed, 1, False),
    "headway cartpole, lead 0": lambda seed: run_headway(seed, 0, False),
    "headway, zoo settings, lead 0": lambda seed: run_headway(seed, 0, True),
    "Stable-Baselines3, zoo settings": run_sb3,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--peer-python", default=".bench-venv/bin/python")
    parser.add_argument("--one", nargs=2, metavar=("WAY", "SEED"), help="run one and print it as JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(WAYS[options.one[0]](int(options.one[1]))))
        return
    results: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    for seed in range(options.seeds):
        for name in WAYS:
            python = options.peer_python if name.startswith("Stable") else sys.executable
            if not Path(python).exists():
                continue
            words = [python, __file__, "--one", name, str(seed)]
            done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=True)
            results[name].append(json.loads(done.stdout.splitlines()[-1]))
    print(f"CartPole-v1 to {TARGET:g} over {EPISODES} episodes, {options.seeds} seeds: median (min..max)")
    print(f"{'':34} {'solved':>7} {'wall s':>22} {'cpu s':>8} {'steps':>9}")
    for name, rows in results.items():
        if not rows:
            print(f"{name:34} not installed: make bench-peers")
            continue
        solved = [row for row in rows if row["wall"] == row["wall"]]
        walls = [row["wall"] for row in solved] or [float("nan")]
        middle = f"{statistics.median(walls):.1f} ({min(walls):.1f}..{max(walls):.1f})"
        cpu = statistics.median(row["cpu"] for row in rows)
        steps = statistics.median(row["steps"] for row in rows)
        print(f"{name:34} {len(solved):3}/{len(rows):<3} {middle:>22} {cpu:8.1f} {steps:9.0f}")


if __name__ == "__main__":
    main()
