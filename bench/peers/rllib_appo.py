"""RLlib's APPO on CartPole-v1, with the settings that its own example gives for this task.

    python bench/peers/rllib_appo.py SEED LIMIT_S

Two environment runners, its default, of eight copies each. Time starts when they and the learner are there. RLlib's own
mean is taken over the episodes since the last report, so the environments write their returns to a file instead.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import ray
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME
from ray.tune.registry import register_env

TARGET, EPISODES = 475.0, 100


class Watched(gym.Wrapper):
    """Appends the return of every episode to a file; appending a short line is atomic."""

    def __init__(self, env: Any, file: str) -> None:
        super().__init__(env)
        self._file, self._return = file, 0.0

    def reset(self, **options: Any) -> Any:
        self._return = 0.0
        return self.env.reset(**options)

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self._return += float(result[1])
        if result[2] or result[3]:
            with open(self._file, "a") as file:
                file.write(f"{self._return}\n")
        return result


def cpu_seconds() -> float:
    """Of this process and everything below it: ray starts its own from here."""
    import psutil  # ray brings one along and makes it importable

    everybody = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in everybody)


def run(seed: int, limit_s: float, file: Path) -> dict[str, Any]:
    file.touch()
    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    register_env("watched", lambda config: Watched(gym.make("CartPole-v1"), config["file"]))
    config = (
        APPOConfig()
        .environment("watched", env_config={"file": str(file)})
        .env_runners(num_env_runners=2, num_envs_per_env_runner=8)
        .training(vf_loss_coeff=0.05, entropy_coeff=0.0)
        .rl_module(model_config=DefaultModelConfig(vf_share_layers=True))
        .reporting(min_time_s_per_iteration=0.25)
        .debugging(seed=seed, log_level="ERROR")
    )
    algorithm = config.build_algo()
    began, cpu = time.perf_counter(), cpu_seconds()
    solved, steps = False, 0
    while not solved and time.perf_counter() - began < limit_s:
        found = algorithm.train().get(ENV_RUNNER_RESULTS, {})
        steps = int(found.get(NUM_ENV_STEPS_SAMPLED_LIFETIME, steps))
        last = [float(line) for line in file.read_text().split()[-EPISODES:]]
        solved = bool(len(last) == EPISODES and np.mean(last) >= TARGET)
    wall, cpu = time.perf_counter() - began, cpu_seconds() - cpu
    algorithm.stop()
    ray.shutdown()
    return {"solved": solved, "wall": wall, "cpu": cpu, "steps": steps, "version": version("ray")}


def main(seed: int, limit_s: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(run(seed, limit_s, Path(folder) / "returns")))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
