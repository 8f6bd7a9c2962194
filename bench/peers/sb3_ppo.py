"""Stable-Baselines3's PPO on CartPole-v1 with the settings that its zoo publishes.

python bench/peers/sb3_ppo.py SEED LIMIT_S
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

TARGET, EPISODES, TOTAL = 475.0, 100, 100_000


class Watch(BaseCallback):
    """Stops when the last 100 episodes are long enough, or the time is up."""

    solved = False

    def __init__(self, until: float) -> None:
        super().__init__()
        self._until = until

    def _on_step(self) -> bool:
        buffer = self.model.ep_info_buffer
        enough = buffer is not None and len(buffer) == EPISODES
        self.solved = bool(enough and np.mean([episode["r"] for episode in buffer]) >= TARGET)
        return not self.solved and time.perf_counter() < self._until


def main(seed: int, limit_s: float) -> None:
    torch.set_num_threads(1)
    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=8, seed=seed),
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gamma=0.98,
        gae_lambda=0.8,
        ent_coef=0.0,
        learning_rate=lambda left: left * 1e-3,
        clip_range=lambda left: left * 0.2,
        seed=seed,
        device="cpu",
    )
    began, cpu = time.perf_counter(), time.process_time()
    watch = Watch(began + limit_s)
    model.learn(TOTAL, callback=watch)
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    found = {"solved": watch.solved, "wall": wall, "cpu": cpu, "steps": model.num_timesteps}
    print(json.dumps({**found, "version": version("stable_baselines3")}))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
