"""CartPole behind a simulator that answers late, for seeing what overlap buys where environments cost something.

Importing this registers `headway/WaitingCartPole-v1`: CartPole-v1, whose copies take STEP_S longer for a step together.
While a step is waited for, others compute.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

STEP_S = 0.0002
ID = "headway/WaitingCartPole-v1"


class WaitingCartPole(CartPoleVectorEnv):
    """The same rewards and states, later."""

    def step(self, action: Any) -> Any:
        time.sleep(STEP_S)
        return super().step(action)


if ID not in gym.registry:
    gym.register(ID, vector_entry_point=f"{__name__}:WaitingCartPole", max_episode_steps=500, reward_threshold=475.0)
