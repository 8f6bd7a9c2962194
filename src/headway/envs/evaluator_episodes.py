"""Play whole episodes with one version and take the mean return, and how long they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from headway.core.types import CUT_EPISODES, Score, Snapshot
from headway.envs.evaluator_policies import BestActions, Remembers
from headway.envs.gymnasium_vector import Spec, as_features, describe, legal_actions, to_environment


class EpisodeEvaluator:
    """Plays `episodes` episodes, side by side, with the most likely actions.

    Each environment contributes its first episodes only, as many as the others: counting whoever finishes
    first would favour short ones. `see` is how the policy sees the observations of a space.

    An episode that has not ended after `max_steps` steps is cut: it counts with what it has returned so far, and its
    environment plays no more. So an evaluation ends, whatever the policy does.
    """

    def __init__(
        self,
        make_env: Callable[[int], Any],
        make_policy: Callable[[Spec], BestActions],
        *,
        episodes: int,
        max_envs: int = 32,
        max_steps: int = 100_000,
        see: Callable[[Any, Any], np.ndarray] = as_features,
    ) -> None:
        if episodes < 1:
            raise ValueError(f"an evaluation needs at least one episode, received {episodes!r}")
        if max_steps < 1:
            raise ValueError(f"an episode needs at least one step, received max_steps={max_steps!r}")
        self._per_env = -(-episodes // max_envs)
        self._num_envs = -(-episodes // self._per_env)  # 100 of at most 32 at once: 25, four times
        self._env = make_env(self._num_envs)
        self._spec = describe(self._env)
        self._policy = make_policy(self._spec)
        self._max_steps = max_steps
        self._see = see
        self._is_closed = False

    def close(self) -> None:
        """Nobody waits for an evaluation that may still be under way in another thread: it ends at its next step."""
        self._is_closed = True

    def evaluate(self, snapshot: Snapshot, seed: int) -> Score:
        self._policy.load(snapshot.payload)
        env, space = self._env, self._env.single_observation_space
        observations, info = env.reset(seed=seed % 2**31)
        returns: list[list[float]] = [[] for _ in range(self._num_envs)]
        steps: list[int] = []  # of the episodes that count
        running, ended = np.zeros(self._num_envs), np.zeros(self._num_envs, bool)
        lengths, is_cut = np.zeros(self._num_envs, np.int64), np.zeros(self._num_envs, bool)
        begins = np.ones(self._num_envs, bool)
        while True:
            if self._is_closed:
                raise RuntimeError("the evaluation was abandoned")
            obs, mask = self._see(observations, space), legal_actions(info, self._spec.action, ended)
            if isinstance(self._policy, Remembers):
                self._policy.forget(begins)
            actions = self._policy.best(obs, mask)
            observations, rewards, terminated, truncated, info = env.step(
                to_environment(actions, self._spec.action, env.single_action_space)
            )
            running += rewards
            lengths += ~ended
            begins, ended = ended, terminated | truncated  # the step after the last one only resets
            for index in np.flatnonzero(ended):
                if len(returns[index]) < self._per_env and not is_cut[index]:
                    returns[index].append(float(running[index]))
                    steps.append(int(lengths[index]))
                running[index], lengths[index] = 0.0, 0
            for index in np.flatnonzero(lengths >= self._max_steps):
                if len(returns[index]) < self._per_env and not is_cut[index]:
                    returns[index].append(float(running[index]))
                    steps.append(int(lengths[index]))
                    is_cut[index] = True
            if all(is_cut[index] or len(done) == self._per_env for index, done in enumerate(returns)):
                break
        flat = [value for done in returns for value in done]
        measures = {"std": float(np.std(flat)), "episodes": len(flat), CUT_EPISODES: int(is_cut.sum())}
        measures |= {"length": float(np.mean(steps)), "length_std": float(np.std(steps))}
        return Score(snapshot.version, float(np.mean(flat)), measures)
