"""Stable-Baselines3's PPO on any environment, with settings handed over in its own names.

    python bench/peers/sb3_zoo.py ENV SEED TARGET EPISODES SETTINGS.json

Prints one JSON line: seconds and processor seconds of the training, when the mean return of the last 100 training
episodes first reached TARGET, and the mean return of EPISODES episodes that the last policy plays without chance.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize


class Watch(BaseCallback):
    """Says when the last 100 episodes were good enough, looked at where an update begins."""

    def __init__(self, target: float) -> None:
        super().__init__()
        self._target = target
        self._began = (time.perf_counter(), time.process_time())
        self.reached: dict[str, float] | None = None

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        returns = [episode["r"] for episode in self.model.ep_info_buffer or ()]
        if self.reached is None and len(returns) == 100 and np.mean(returns) >= self._target:
            wall, cpu = time.perf_counter() - self._began[0], time.process_time() - self._began[1]
            self.reached = {"wall": wall, "cpu": cpu, "steps": self.num_timesteps}


def main(env_id: str, seed: int, target: float, episodes: int, settings: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    envs = make_vec_env(env_id, n_envs=settings.pop("n_envs"), seed=seed)
    is_normalised, steps = settings.pop("normalize", False), settings.pop("n_timesteps")
    if is_normalised:
        envs = VecNormalize(envs, gamma=settings["gamma"])
    model = PPO("MlpPolicy", envs, seed=seed, device="cpu", **settings)
    watch = Watch(target)
    began, cpu = time.perf_counter(), time.process_time()
    model.learn(steps, callback=watch)
    found = {"wall": time.perf_counter() - began, "cpu": time.process_time() - cpu, "steps": model.num_timesteps}
    played = make_vec_env(env_id, n_envs=1, seed=10_000)
    if is_normalised:
        played = VecNormalize(played, training=False, norm_reward=False)
        played.obs_rms = envs.obs_rms
    score, _ = evaluate_policy(model, played, n_eval_episodes=episodes, deterministic=True)
    found |= {"score": float(score), "reached": watch.reached, "version": version("stable_baselines3")}
    print(json.dumps(found))


if __name__ == "__main__":
    name, seed, target, episodes, file = sys.argv[1:]
    main(name, int(seed), float(target), int(episodes), json.loads(Path(file).read_text()))
