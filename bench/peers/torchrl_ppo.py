"""PPO for CartPole-v1 on TorchRL's parts: its environments, collector, advantage and loss.

    python bench/peers/torchrl_ppo.py SEED LIMIT_S

TorchRL publishes no settings for this task, so these are the ones that the zoo of Stable-Baselines3 found for it.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from importlib.metadata import version

import numpy as np
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.envs import GymEnv, RewardSum, SerialEnv, TransformedEnv
from torchrl.modules import MLP, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

TARGET, EPISODES, TOTAL = 475.0, 100, 100_000
ENVS, STEPS, MINIBATCH, PASSES = 8, 32, 256, 20
RATE, GAMMA, LAM, CLIP, VALUE, MAX_NORM = 1e-3, 0.98, 0.8, 0.2, 0.5, 0.5


def network(num_out: int, scale: float) -> MLP:
    made = MLP(in_features=4, out_features=num_out, num_cells=[64, 64], activation_class=nn.Tanh)
    linear = [module for module in made.modules() if isinstance(module, nn.Linear)]
    for module in linear:
        nn.init.orthogonal_(module.weight, scale if module is linear[-1] else 2**0.5)
        nn.init.zeros_(module.bias)
    return made


def make_env() -> GymEnv:
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def main(seed: int, limit_s: float) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    env = TransformedEnv(SerialEnv(ENVS, make_env), RewardSum())
    env.set_seed(seed)
    actor = ProbabilisticActor(
        TensorDictModule(network(2, 0.01), in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        distribution_class=Categorical,
        return_log_prob=True,
    )
    critic = ValueOperator(network(1, 1.0), in_keys=["observation"])
    advantage = GAE(gamma=GAMMA, lmbda=LAM, value_network=critic)
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=CLIP,
        entropy_bonus=False,
        critic_coeff=VALUE,
        loss_critic_type="l2",
        normalize_advantage=True,
    )
    optimizer = torch.optim.Adam(loss.parameters(), RATE, eps=1e-5)
    collector = Collector(env, actor, frames_per_batch=ENVS * STEPS, total_frames=TOTAL, device="cpu")
    collector.set_seed(seed)

    began, cpu = time.perf_counter(), time.process_time()
    returns: deque[float] = deque(maxlen=EPISODES)
    steps, solved = 0, False
    for data in collector:
        steps += data.numel()
        ended = data["next", "done"].squeeze(-1)
        returns.extend(data["next", "episode_reward"].squeeze(-1)[ended].tolist())
        solved = bool(len(returns) == EPISODES and np.mean(returns) >= TARGET)
        if solved or time.perf_counter() - began > limit_s:
            break
        left = 1 - steps / TOTAL
        optimizer.param_groups[0]["lr"] = left * RATE
        loss.clip_epsilon.fill_(left * CLIP)
        with torch.no_grad():
            advantage(data)
        rows = data.reshape(-1)
        for _ in range(PASSES):
            for part in torch.randperm(len(rows)).split(MINIBATCH):
                found = loss(rows[part])
                optimizer.zero_grad()
                (found["loss_objective"] + found["loss_critic"]).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), MAX_NORM)
                optimizer.step()
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    collector.shutdown()
    found = {"solved": solved, "wall": wall, "cpu": cpu, "steps": steps, "version": version("torchrl")}
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
