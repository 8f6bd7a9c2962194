"""PPO for a MinAtar game in one file, the way such scripts are usually written, on plain torch and gymnasium.

    python bench/peers/single_file_minatar.py GAME SEED TARGET LIMIT_S SETTINGS

SETTINGS is JSON with the names that bench/minatar_speed.py has. The network is that of
`headway run ppo --network small`: 16 filters 3x3, a layer of 128, two heads.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from minatar.gym import register_envs
from torch import Tensor, nn
from torch.distributions import Categorical

EPISODES = 100


def begun(layer: nn.Linear | nn.Conv2d, scale: float = 2**0.5) -> nn.Linear | nn.Conv2d:
    nn.init.orthogonal_(layer.weight, scale)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    def __init__(self, planes: int, actions: int) -> None:
        super().__init__()
        trunk = [begun(nn.Conv2d(planes, 16, 3)), nn.ReLU(), nn.Flatten(), begun(nn.Linear(16 * 8 * 8, 128)), nn.ReLU()]
        self.trunk = nn.Sequential(*trunk)
        self.actor, self.critic = begun(nn.Linear(128, actions), 0.01), begun(nn.Linear(128, 1), 1.0)

    def forward(self, seen: Tensor) -> tuple[Categorical, Tensor]:
        features = self.trunk(seen.permute(0, 3, 1, 2))
        return Categorical(logits=self.actor(features)), self.critic(features).squeeze(1)


def main(game: str, seed: int, target: float, limit_s: float, s: SimpleNamespace) -> None:
    torch.set_num_threads(s.threads)
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    register_envs()
    envs = SyncVectorEnv([lambda: gym.make(f"MinAtar/{game}-v1")] * s.envs, autoreset_mode=AutoresetMode.SAME_STEP)
    seen_shape = envs.single_observation_space.shape
    agent = Agent(seen_shape[2], int(envs.single_action_space.n))
    optimizer = torch.optim.Adam(agent.parameters(), s.rate, eps=1e-5)
    shape = (s.steps, s.envs)
    obs, actions = torch.zeros(*shape, *seen_shape), torch.zeros(shape, dtype=torch.long)
    log_probs, rewards, dones, values = (torch.zeros(shape) for _ in range(4))

    began, cpu = time.perf_counter(), time.process_time()
    returns: deque[float] = deque(maxlen=EPISODES)
    running = np.zeros(s.envs)
    seen, done = torch.from_numpy(envs.reset(seed=seed)[0]).float(), torch.zeros(s.envs)
    steps, curve = 0, []
    while True:
        for t in range(s.steps):
            obs[t], dones[t] = seen, done
            with torch.no_grad():
                law, values[t] = agent(seen)
                actions[t] = law.sample()
                log_probs[t] = law.log_prob(actions[t])
            after, reward, terminated, truncated, _ = envs.step(actions[t].numpy())
            rewards[t] = torch.from_numpy(reward)
            ended = terminated | truncated
            running += reward
            returns.extend(running[ended])
            running[ended] = 0
            seen, done = torch.from_numpy(after).float(), torch.from_numpy(ended).float()
        steps += s.envs * s.steps
        curve.append((steps, float(np.mean(returns)) if returns else 0.0))
        reached = len(returns) == EPISODES and np.mean(returns) >= target
        if reached or time.process_time() - cpu > limit_s:
            break

        with torch.no_grad():
            following, next_value, next_done = torch.zeros(s.envs), agent(seen)[1], done
            advantages = torch.zeros(shape)
            for t in reversed(range(s.steps)):
                delta = rewards[t] + s.gamma * next_value * (1 - next_done) - values[t]
                following = delta + s.gamma * s.lam * (1 - next_done) * following
                advantages[t], next_value, next_done = following, values[t], dones[t]
        flat = [x.reshape(s.steps * s.envs, *x.shape[2:]) for x in (obs, actions, log_probs, advantages, values)]
        flat[4] = flat[3] + flat[4]
        for _ in range(s.passes):
            order = rng.permutation(s.steps * s.envs)
            for part in np.split(order, range(s.minibatch, len(order), s.minibatch)):
                x, a, old_log_prob, advantage, goal = (column[part] for column in flat)
                law, value = agent(x)
                ratio = (law.log_prob(a) - old_log_prob).exp()
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                policy_loss = -torch.min(advantage * ratio, advantage * ratio.clamp(1 - s.clip, 1 + s.clip)).mean()
                value_loss = ((value - goal) ** 2).mean()
                loss = policy_loss - s.entropy * law.entropy().mean() + s.value * value_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), s.max_norm)
                optimizer.step()
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    print(json.dumps({"solved": bool(reached), "wall": wall, "cpu": cpu, "steps": steps, "last": curve[-1][1]}))


if __name__ == "__main__":
    words = sys.argv[1:]
    main(words[0], int(words[1]), float(words[2]), float(words[3]), SimpleNamespace(**json.loads(words[4])))
