"""PPO for CartPole-v1 in one file, the way such scripts are usually written, with the usual settings.

    python bench/peers/single_file_ppo.py SEED LIMIT_S

4 copies of 128 steps, 4 minibatches, 4 passes, learning rate 2.5e-4 falling to 0 over half a million steps, clipped
values, entropy bonus 0.01: what CleanRL's script of this kind documents. Our own lines, on plain torch and gymnasium.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn
from torch.distributions import Categorical

TARGET, EPISODES = 475.0, 100
TOTAL, ENVS, STEPS, MINIBATCHES, PASSES = 500_000, 4, 128, 4, 4
RATE, GAMMA, LAM, CLIP, ENTROPY, VALUE, MAX_NORM = 2.5e-4, 0.99, 0.95, 0.2, 0.01, 0.5, 0.5


def layer(num_in: int, num_out: int, scale: float = 2**0.5) -> nn.Linear:
    made = nn.Linear(num_in, num_out)
    nn.init.orthogonal_(made.weight, scale)
    nn.init.zeros_(made.bias)
    return made


def tower(num_out: int, scale: float) -> nn.Sequential:
    return nn.Sequential(layer(4, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, num_out, scale))


def main(seed: int, limit_s: float) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    envs = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * ENVS, autoreset_mode=AutoresetMode.SAME_STEP)
    actor, critic = tower(2, 0.01), tower(1, 1.0)
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, RATE, eps=1e-5)
    shape = (STEPS, ENVS)
    obs, actions = torch.zeros(*shape, 4), torch.zeros(shape, dtype=torch.long)
    log_probs, rewards, dones, values = (torch.zeros(shape) for _ in range(4))

    began, cpu = time.perf_counter(), time.process_time()
    returns: deque[float] = deque(maxlen=EPISODES)
    running = np.zeros(ENVS)
    seen, done = torch.from_numpy(envs.reset(seed=seed)[0]), torch.zeros(ENVS)
    updates, steps = TOTAL // (ENVS * STEPS), 0
    for update in range(updates):
        optimizer.param_groups[0]["lr"] = (1 - update / updates) * RATE
        for t in range(STEPS):
            obs[t], dones[t] = seen, done
            with torch.no_grad():
                law = Categorical(logits=actor(seen))
                actions[t] = law.sample()
                log_probs[t], values[t] = law.log_prob(actions[t]), critic(seen).squeeze(1)
            after, reward, terminated, truncated, _ = envs.step(actions[t].numpy())
            rewards[t] = torch.from_numpy(reward)
            ended = terminated | truncated
            running += reward
            returns.extend(running[ended])
            running[ended] = 0
            seen, done = torch.from_numpy(after), torch.from_numpy(ended).float()
        steps += ENVS * STEPS
        if (len(returns) == EPISODES and np.mean(returns) >= TARGET) or time.perf_counter() - began > limit_s:
            break

        with torch.no_grad():
            following, next_value, next_done = torch.zeros(ENVS), critic(seen).squeeze(1), done
            advantages = torch.zeros(shape)
            for t in reversed(range(STEPS)):
                delta = rewards[t] + GAMMA * next_value * (1 - next_done) - values[t]
                following = delta + GAMMA * LAM * (1 - next_done) * following
                advantages[t], next_value, next_done = following, values[t], dones[t]
        flat = [x.reshape(STEPS * ENVS, *x.shape[2:]) for x in (obs, actions, log_probs, advantages, values)]
        flat.append(flat[3] + flat[4])
        for _ in range(PASSES):
            for part in np.array_split(rng.permutation(STEPS * ENVS), MINIBATCHES):
                x, a, old_log_prob, advantage, old_value, target = (column[part] for column in flat)
                law = Categorical(logits=actor(x))
                ratio = (law.log_prob(a) - old_log_prob).exp()
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                policy_loss = -torch.min(advantage * ratio, advantage * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
                value = critic(x).squeeze(1)
                near = old_value + (value - old_value).clamp(-CLIP, CLIP)
                value_loss = 0.5 * torch.max((value - target) ** 2, (near - target) ** 2).mean()
                loss = policy_loss - ENTROPY * law.entropy().mean() + VALUE * value_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, MAX_NORM)
                optimizer.step()
    solved = bool(len(returns) == EPISODES and np.mean(returns) >= TARGET)
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    print(json.dumps({"solved": solved, "wall": wall, "cpu": cpu, "steps": steps, "version": torch.__version__}))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
