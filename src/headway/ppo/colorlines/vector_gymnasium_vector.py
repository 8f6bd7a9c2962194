"""Many games for Gymnasium, in its "next step" mode: the last position is shown, the step after it starts anew."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from headway.ppo.colorlines.rules import COLOURS, COMING, COMPACT, MOVES, PLANES, SIDE
from headway.ppo.colorlines.vector import ColorLines


class ColorLinesVector(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """The vector entry point of `headway/ColorLines-v0`. Pickled, it goes on bit for bit.

    :param num_envs: games in the vector
    :param reward_scale: factor of the whole reward; a learner likes its returns around 1
    :param compact: observe [84] uint8 (board, coming colours) instead of planes [15, 9, 9]
    :param masks: say the legal moves in `info["action_mask"]` [N, 6561] bool; False for a policy that finds them itself
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012  (Gymnasium's own convention)

    def __init__(
        self,
        num_envs: int = 1,
        *,
        shaping: float = 0.0,
        gamma: float = 1.0,
        max_steps: int | None = None,
        reward_scale: float = 1.0,
        compact: bool = False,
        masks: bool = True,
    ) -> None:
        self.num_envs = num_envs
        self._games = ColorLines(
            num_envs, shaping=shaping, gamma=gamma, max_steps=max_steps, compact=compact, same_step=False
        )
        self._reward_scale, self._masks = np.float32(reward_scale), masks
        planes = spaces.Box(0, COMING, (PLANES, SIDE, SIDE), np.uint8)
        self.single_observation_space = spaces.Box(0, COLOURS, (COMPACT,), np.uint8) if compact else planes
        self.single_action_space = spaces.Discrete(MOVES)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, object] | None = None
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        if isinstance(seed, list):
            raise ValueError("one seed is enough: with the game's index it fixes every draw of that game")
        obs, _ = self._games.reset(seed=seed)
        return obs, self._seen({})

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        obs, reward, terminated, truncated, info = self._games.step(actions)
        seen = {"points": info["points"], "score": self._games.score.copy()}
        return obs, reward * self._reward_scale, terminated, truncated, self._seen(seen)

    def _seen(self, info: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if self._masks:
            info["action_mask"] = self._games.masks()
            info["action_mask"][self._games.ended, 0] = True  # any will do: it only starts the next game
        return info
