"""Sample Factory's APPO on CartPole-v1, with the settings that its own example gives for this task.

    python bench/peers/sample_factory_appo.py SEED LIMIT_S

Time starts when its processes have been started. An episode's length is its return here; Sample Factory's own return
is scaled.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from importlib.metadata import version
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

TARGET, EPISODES = 475.0, 100
WORKERS = 2  # cores here
SETTINGS = {
    "algo": "APPO",
    "env": "CartPole-v1",
    "use_rnn": False,
    "recurrence": 1,
    "num_workers": WORKERS,
    "num_envs_per_worker": 20,
    "policy_workers_per_policy": 2,
    "with_vtrace": False,
    "batch_size": 512,
    "reward_scale": 0.1,
    "device": "cpu",
    "stats_avg": EPISODES,
}


def cpu_seconds() -> float:
    """Of this process and everything below it."""
    everybody = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in everybody)


def make_env(full_env_name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> Any:
    return gym.make(full_env_name, render_mode=render_mode)


class Watch(AlgoObserver):
    """Ends the training when the last 100 episodes are long enough, or the time is up."""

    solved, wall, cpu, steps = False, 0.0, 0.0, 0

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s

    def on_start(self, runner: Runner) -> None:
        self._began, self._cpu = time.perf_counter(), cpu_seconds()

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        lengths = runner.policy_avg_stats.get("len", [()])[0]
        self.wall = time.perf_counter() - self._began
        self.solved = bool(len(lengths) >= EPISODES and np.mean(list(lengths)[-EPISODES:]) >= TARGET)
        if self.solved or self.wall > self._limit_s:
            self.cpu = cpu_seconds() - self._cpu
            self.steps = int(sum(runner.env_steps.values()))
            runner.cfg.train_for_seconds = -1  # its own condition for ending


def main(seed: int, limit_s: float) -> None:
    register_env("CartPole-v1", make_env)
    with tempfile.TemporaryDirectory() as folder:
        words = [f"--{name}={value}" for name, value in SETTINGS.items()]
        words += [f"--seed={seed}", f"--train_dir={folder}", f"--experiment=seed{seed}", "--restart_behavior=overwrite"]
        parser, _ = parse_sf_args(argv=words)
        _, runner = make_runner(parse_full_cfg(parser, words))
        watch = Watch(limit_s)
        runner.register_observer(watch)
        runner.init()
        runner.run()
    found = {"solved": watch.solved, "wall": watch.wall, "cpu": watch.cpu, "steps": watch.steps}
    print(json.dumps({**found, "version": version("sample-factory")}))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
