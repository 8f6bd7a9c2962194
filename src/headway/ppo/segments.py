"""Fixed slices of many environments at once.

    ticket ---> T steps of N environments with one snapshot ---> rollout of [T, N]

Environments go on where the last ticket left them, whatever version it had. `experience.segment.Segment` says what a
rollout holds.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from typing import Any, Protocol

import numpy as np

from headway.core.types import Rollout, Snapshot, Ticket
from headway.core.types_opaque import Weights
from headway.envs.gymnasium_vector import Spec, as_features, describe, legal_actions, refuse_misfits, to_environment
from headway.envs.resumable import Carried, can_be_carried, refuse_nan
from headway.ppo.segments_reward_scale import RewardScale, RewardSigns
from headway.ppo.segments_segment import Segment


class ActingPolicy(Protocol):
    """What a collector needs of a policy. `noise` comes from the ticket's seed, so acting has no state."""

    def load(self, weights: Weights) -> None: ...

    def noise(self, seed: int, steps: int, num_envs: int) -> np.ndarray:
        """Everything random about `steps` steps, [steps, ...]."""
        ...

    def act(self, obs: np.ndarray, noise: np.ndarray, mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Actions [N, ...] and their log-probabilities [N]."""
        ...


class RememberingPolicy(Protocol):
    """A policy with a memory. Whoever acts keeps its state, [N, state_size]: zeros where an episode begins."""

    state_size: int

    def load(self, weights: Weights) -> None: ...

    def noise(self, seed: int, steps: int, num_envs: int) -> np.ndarray: ...

    def act_from(
        self, state: np.ndarray, obs: np.ndarray, noise: np.ndarray, mask: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Actions [N, ...], their log-probabilities [N] and the state afterwards."""
        ...


def first_state(policy: ActingPolicy | RememberingPolicy, num_envs: int) -> np.ndarray | None:
    """The state [N, S] of episodes that begin; None for a policy that remembers nothing."""
    size: int | None = getattr(policy, "state_size", None)
    return None if size is None else np.zeros((num_envs, size), np.float32)


class SegmentCollector:
    """Collects segments from a vector environment.

    `make_env` builds the vector environment, `make_policy` a policy for its spec. `seed` is where the first
    reset starts from: it must differ between collectors.
    """

    def __init__(
        self,
        make_env: Callable[[], Any],
        make_policy: Callable[[Spec], ActingPolicy | RememberingPolicy],
        *,
        steps: int,
        seed: int,
        scale: RewardScale | RewardSigns | None = None,
    ) -> None:
        if steps < 1:
            raise ValueError(f"a segment needs at least one step, received {steps!r}")
        self._steps = steps
        self._scale = scale
        self._make_env = make_env
        self._env = make_env()
        self._spec = describe(self._env)
        self._policy: Any = make_policy(self._spec)
        self._version: int | None = None
        self._begin_episodes(seed)

    def begin_anew(self, seed: int) -> None:
        """Leave the environments behind, whatever state they are in, and begin new episodes in new ones."""
        with suppress(Exception):  # it has failed already: what it says about being closed helps nobody
            self._env.close()
        self._env = self._make_env()
        if self._scale is not None:
            self._scale.begin_episodes()
        self._begin_episodes(seed % 2**31)

    def _begin_episodes(self, seed: int) -> None:
        observations, info = self._env.reset(seed=seed)
        self._obs = as_features(observations, self._env.single_observation_space)
        self._done = np.zeros(self._env.num_envs, bool)
        self._mask = legal_actions(info, self._spec.action, self._done)
        self._returns = np.zeros(self._env.num_envs)
        self._lengths = np.zeros(self._env.num_envs, np.int64)
        self._state = first_state(self._policy, self._env.num_envs)

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        if self._version != snapshot.version:
            self._policy.load(snapshot.payload)
            self._version = snapshot.version
        noise = self._policy.noise(ticket.seed, self._steps, self._env.num_envs)
        rows: dict[str, list[np.ndarray]] = {name: [] for name in FIELDS}
        if self._state is not None:
            rows["state"].append(self._state)
        finished: list[tuple[float, int]] = []
        for step in range(self._steps):
            self._step(noise[step], rows, finished)
        rows["obs"].append(self._obs)
        segment = Segment(**{name: np.stack(values) for name, values in rows.items() if values})
        refuse_nan(segment, ticket, **NUMBERS)
        if self._scale is not None:
            segment = self._scale.scaled(segment)
        return Rollout(segment, steps=segment.num_steps, info={"episodes": finished})

    def _step(self, noise: np.ndarray, rows: dict[str, list[np.ndarray]], finished: list[tuple[float, int]]) -> None:
        env, done = self._env, self._done
        if self._state is None:
            actions, log_probs = self._policy.act(self._obs, noise, self._mask)
        else:
            actions, log_probs, after = self._policy.act_from(self._state, self._obs, noise, self._mask)
            self._state = np.where(done[:, None], np.float32(0), after)  # this step only resets: an episode begins
        taken = to_environment(actions, self._spec.action, env.single_action_space)
        try:
            observations, rewards, terminated, truncated, info = env.step(taken)
        except ValueError:
            refuse_misfits(env)
            raise
        rows["obs"].append(self._obs)
        rows["actions"].append(actions)
        rows["log_probs"].append(log_probs)
        rows["rewards"].append(np.asarray(rewards, np.float32))
        rows["terminated"].append(terminated)
        rows["truncated"].append(truncated)
        rows["valid"].append(~done)
        if self._mask is not None:
            rows["masks"].append(self._mask)
        self._returns += rewards
        self._lengths += ~done
        ended = terminated | truncated
        for index in np.flatnonzero(ended):
            finished.append((float(self._returns[index]), int(self._lengths[index])))
        self._returns[ended] = 0.0
        self._lengths[ended] = 0
        self._obs = as_features(observations, env.single_observation_space)
        self._mask = legal_actions(info, self._spec.action, ended)
        self._done = ended


NUMBERS = {"obs": "observation", "rewards": "reward", "log_probs": "log-probability"}
FIELDS = tuple(field.name for field in fields(Segment))


class ResumableSegmentCollector(Carried, SegmentCollector):
    """The same for environments that can be pickled: they go on bit for bit after a restart."""

    CARRIED = ("_env", "_obs", "_mask", "_done", "_returns", "_lengths", "_scale", "_state")


def segment_collector(
    make_env: Callable[[], Any],
    make_policy: Callable[[Spec], ActingPolicy | RememberingPolicy],
    *,
    steps: int,
    seed: int,
    scale: RewardScale | RewardSigns | None = None,
) -> SegmentCollector:
    """Resumable if the environment can be pickled; otherwise a restarted collector begins new episodes. With a `scale`
    rewards are brought to it."""
    kind = ResumableSegmentCollector if can_be_carried(make_env()) else SegmentCollector
    return kind(make_env, make_policy, steps=steps, seed=seed, scale=scale)
