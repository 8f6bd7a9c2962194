"""Atari games of the Arcade Learning Environment with what is usually done to them, under one switch.

    emulator, a frame a step --> up to 30 no-ops --> every action 4 times, the brighter of the last two frames
      --> [a lost life ends the episode: only what is learned from] --> FIRE where a game waits for it
      --> grey, 84 x 84 --> the last 4 pictures                                    [4, 84, 84] bytes

Three programs do the same: wrappers around one copy (watching, first_ready, wrappers of one's own), the vector of
copies that ale-py brings, in C++, and EnvPool. Rewards are clipped by the collector, so that returns are reported in
points.
How likely an action sticks is what the name says: 0.25 of ALE/Pong-v5, 0 of PongNoFrameskip-v4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from headway.envs.atari_observation_wrappers import AnyEnv, AnyWrapper, Info

MAX_NO_OPS = 30
NAMES = "ALE/"
ENTRY = "ale_py.env:AtariEnv"


def register() -> None:
    """Makes the names of ale-py known to Gymnasium."""
    import ale_py

    gym.register_envs(ale_py)


def is_atari(spec: object) -> bool:
    """Whether this entry of Gymnasium is a game of the Arcade Learning Environment."""
    return isinstance(spec, EnvSpec) and spec.entry_point == ENTRY


@dataclass(frozen=True, slots=True)
class AtariOptions:
    """What the three programs have in common. Those of the name come from its entry in Gymnasium."""

    spec: EnvSpec
    kwargs: dict[str, Any]
    frame_skip: int
    frame_stack: int
    size: tuple[int, int]
    grey: bool
    is_per_life: bool
    max_steps: int | None

    @property
    def game(self) -> str:
        """As EnvPool and ale-py's vector call it: `space_invaders`."""
        return str(self.spec.kwargs["game"])

    @property
    def envpool_id(self) -> str:
        return "".join(word.capitalize() for word in self.game.split("_")) + "-v5"

    @property
    def stickiness(self) -> float:
        return float({**self.spec.kwargs, **self.kwargs}.get("repeat_action_probability", 0.0))

    def emulator(self, render_mode: str | None) -> AnyEnv:
        """One copy, up to where pictures are made smaller."""
        shown: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
        seen: dict[str, Any] = {"obs_type": "grayscale"} if self.grey else {}
        if self.max_steps is not None:
            seen["max_num_frames_per_episode"] = self.max_steps * self.frame_skip
        env: AnyEnv = gym.make(self.spec, **{**self.kwargs, "frameskip": 1}, **seen, **shown)
        return NoOpStarts(env, MAX_NO_OPS)

    def learned_from(self, env: AnyEnv) -> AnyEnv:
        """The same, with frames skipped already, as its episodes are played."""
        if self.is_per_life:
            env = EpisodePerLife(env)
        return FireFirst(env) if _waits_for_fire(env) else env

    @property
    def vector_spec(self) -> EnvSpec:
        """Its entry with ale-py's vector of copies, which only names that begin with ALE/ have in theirs."""
        return replace(self.spec, vector_entry_point=gym.spec(f"{NAMES}Pong-v5").vector_entry_point)

    def for_ale(self) -> dict[str, Any]:
        """What the vector of ale-py is made with."""
        known = {name: value for name, value in {**self.spec.kwargs, **self.kwargs}.items() if name in OF_BOTH}
        if self.max_steps is not None:
            known["max_num_frames_per_episode"] = self.max_steps * self.frame_skip
        return known | {
            "game": self.game,
            "frameskip": self.frame_skip,
            "stack_num": self.frame_stack,
            "img_height": self.size[0],
            "img_width": self.size[1],
            "grayscale": self.grey,
            "noop_max": MAX_NO_OPS,
            "episodic_life": self.is_per_life,
            "reward_clipping": False,
        }

    def for_envpool(self) -> dict[str, Any]:
        """What EnvPool's game is made with."""
        more = {} if self.max_steps is None else {"max_episode_steps": self.max_steps}
        return more | {
            "frame_skip": self.frame_skip,
            "stack_num": self.frame_stack,
            "img_height": self.size[0],
            "img_width": self.size[1],
            "gray_scale": self.grey,
            "noop_max": MAX_NO_OPS,
            "episodic_life": self.is_per_life,
            "repeat_action_probability": self.stickiness,
            "reward_clip": False,
        }


OF_BOTH = ("repeat_action_probability", "full_action_space", "max_num_frames_per_episode")


class NoOpStarts(AnyWrapper):
    """Begins episodes with 1 to `most` actions that do nothing, so that no two are alike."""

    def __init__(self, env: AnyEnv, most: int) -> None:
        super().__init__(env)
        self._most = most

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        observation, info = self.env.reset(seed=seed, options=options)
        for _ in range(int(self.np_random.integers(1, self._most + 1))):
            observation, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                observation, info = self.env.reset(options=options)
        return observation, info


class EpisodePerLife(AnyWrapper):
    """Says that an episode has ended when a life is lost. The game goes on with the next one, and is begun anew only
    when it is over."""

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        self._lives = 0
        self._is_over = True

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._is_over = bool(terminated or truncated)
        lives = int(info.get("lives", 0))
        is_lost, self._lives = 0 < lives < self._lives, lives
        return observation, float(reward), bool(terminated or is_lost), bool(truncated), info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        if self._is_over or seed is not None:
            observation, info = self.env.reset(seed=seed, options=options)
        else:
            observation, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                observation, info = self.env.reset(options=options)
        self._lives, self._is_over = int(info.get("lives", 0)), False
        return observation, info


class FireFirst(AnyWrapper):
    """Presses FIRE when an episode begins: some games wait for it, and a policy that never does learns nothing."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        self.env.reset(seed=seed, options=options)
        observation, _, terminated, truncated, info = self.env.step(1)
        if terminated or truncated:
            observation, info = self.env.reset(options=options)
        return observation, info


def _waits_for_fire(env: AnyEnv) -> bool:
    meanings: list[str] = env.unwrapped.get_action_meanings()  # type: ignore[attr-defined]
    return len(meanings) >= 3 and meanings[1] == "FIRE"
