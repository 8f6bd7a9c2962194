"""Segments from environments whose steps take different times: whoever is ready acts, nobody waits for the slowest.

    lock-step      | 0 1 2 3 | 0 1 2 3 |      every step takes as long as its slowest environment
    first ready      0 1 0 2 3 0 1 0 3 2      a segment takes as long as its slowest environment, all steps together

    an environment, within a ticket:   ready --(the policy acts)--> stepping --(arrives)--> ready, or over after T steps

A segment is what `segments.py` makes of the same environments in lock-step, bit for bit, whatever the order of arrival:
environment i takes the noise of its own step from its own place, noise[t, i]; and the policy always sees the whole
batch [N] in the same memory, each environment in its own row (the last thing seen where none is ready), so that a row
gets the same bits whoever stands beside it. This asks of a policy that its rows do not look at each other.

An environment that has made its steps waits for the end of the ticket. Running ahead into the next one would mix
versions within a rollout, and its stamp says one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike

from headway.core.types import Rollout, Snapshot, State, Ticket
from headway.envs.gymnasium_vector import Spec, legal_actions, to_environment
from headway.envs.gymnasium_workers import EnvWorkers
from headway.envs.gymnasium_workers_gymnasium_rows import EnvRows, EnvShape, MakeEnv
from headway.envs.resumable import can_be_carried, refuse_nan
from headway.ppo.segments import NUMBERS, ActingPolicy, RememberingPolicy, first_state
from headway.ppo.segments_reward_scale import RewardScale, RewardSigns
from headway.ppo.segments_segment import Segment


class SteppedApart(Protocol):
    """Environments that step on their own: `EnvWorkers`, or whatever else can say who has arrived."""

    @property
    def shape(self) -> EnvShape: ...

    @property
    def rows(self) -> EnvRows: ...

    def reset(self, seed: int) -> None: ...

    def step(self, indices: np.ndarray, actions: np.ndarray) -> None: ...

    def wait(self) -> Sequence[int]:
        """Who has arrived since the last call: at least one."""
        ...

    def states(self) -> list[bytes]: ...

    def load_states(self, states: Sequence[bytes]) -> None: ...

    def close(self) -> None: ...


class EnvTurns:
    """Whose turn it is within a ticket. Decides; somebody else waits.

    The policy acts once `min_ready` environments are ready, or all that are not over: then nobody is stepping, so
    there is always either somebody to act for or somebody to wait for.
    """

    def __init__(self, num_envs: int, steps: int, min_ready: int) -> None:
        self._steps = steps
        self._min_ready = min_ready
        self._num_left = num_envs
        self._is_ready = np.ones(num_envs, bool)
        self.made = np.zeros(num_envs, np.int64)  # [N] steps in this ticket

    @property
    def are_over(self) -> bool:
        return not self._num_left

    @property
    def may_act(self) -> bool:
        num_ready = int(np.count_nonzero(self._is_ready))
        return num_ready > 0 and num_ready >= min(self._min_ready, self._num_left)

    def act(self) -> np.ndarray:
        """Those that are ready, in order; from now on they are stepping."""
        ready = np.flatnonzero(self._is_ready)
        self._is_ready[ready] = False
        return ready

    def arrive(self, indices: np.ndarray) -> None:
        self.made[indices] += 1
        goes_on = self.made[indices] < self._steps
        self._is_ready[indices] = goes_on
        self._num_left -= int(np.count_nonzero(~goes_on))


class FirstReadyCollector:
    """Collects segments from environments that step on their own.

    `start` begins them, `make_policy` builds a policy for their spec. A call that fails ends them; the next one
    starts them anew.

    :param min_ready: environments the policy waits for before it acts. More make each policy call cheaper per step
        and wait longer for it; all of them is lock-step
    """

    def __init__(
        self,
        start: Callable[[], SteppedApart],
        make_policy: Callable[[Spec], ActingPolicy | RememberingPolicy],
        *,
        steps: int,
        seed: int,
        min_ready: int = 1,
        scale: RewardScale | RewardSigns | None = None,
    ) -> None:
        if steps < 1:
            raise ValueError(f"a segment needs at least one step, received {steps!r}")
        self._start = start
        self._scale = scale
        self._steps = steps
        self._seed = seed
        self._min_ready = min_ready
        self._version: int | None = None
        self._envs: SteppedApart | None = start()
        self._shape, self._spec = self._envs.shape, self._envs.shape.spec
        if not 1 <= min_ready <= self._shape.num_envs:
            self.close()
            raise ValueError(f"min_ready must be from 1 to {self._shape.num_envs} environments, received {min_ready!r}")
        self._policy: Any = make_policy(self._spec)
        self._places = np.arange(self._shape.num_envs)
        shape = (self._shape.num_envs, *self._spec.observation)
        self._obs = np.zeros(shape, self._spec.dtype)  # never moves: see above
        self._state = first_state(self._policy, self._shape.num_envs)  # neither does this
        self._begin_episodes(self._envs)

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        if self._version != snapshot.version:
            self._policy.load(snapshot.payload)
            self._version = snapshot.version
        if self._envs is None:
            self._envs = self._start()
            self._begin_episodes(self._envs)
        try:
            return self._collect(self._envs, ticket)
        except BaseException:  # some are in the middle of a step: nothing of this attempt can be used again
            self.close()
            raise

    def begin_anew(self, seed: int) -> None:
        """Leave the environments behind, whatever state they are in, and begin new episodes in new ones."""
        self.close()
        self._seed = seed % 2**31
        if self._scale is not None:
            self._scale.begin_episodes()
        self._envs = self._start()
        self._begin_episodes(self._envs)

    def close(self) -> None:
        """End the environments. They also end with this object, and with its process."""
        if self._envs is not None:
            self._envs.close()
            self._envs = None

    def _begin_episodes(self, envs: SteppedApart) -> None:
        num_envs = self._shape.num_envs
        self._done = np.zeros(num_envs, bool)
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, np.int64)
        if self._state is not None:
            self._state[:] = 0
        missing = num_envs
        try:
            envs.reset(self._seed)
            while missing:
                missing -= len(envs.wait())
            self._obs[:] = envs.rows.obs
            self._mask = self._legal(envs.rows.masks.copy()) if envs.rows.has_mask.any() else None
        except BaseException:
            self.close()
            raise

    def _collect(self, envs: SteppedApart, ticket: Ticket) -> Rollout:
        steps, num_envs = self._steps, self._shape.num_envs
        noise = self._policy.noise(ticket.seed, steps, num_envs)  # [T, N, ...]
        turns = EnvTurns(num_envs, steps, self._min_ready)
        segment = _Segment(steps, self._obs, self._state)
        while not turns.are_over:
            if turns.may_act:
                self._act(envs, turns, noise, segment)
            self._take_in(envs, turns, segment)
        made = segment.finished(self._obs)
        refuse_nan(made, ticket, **NUMBERS)
        if self._scale is not None:
            made = self._scale.scaled(made)
        return Rollout(made, steps=made.num_steps, info={"episodes": segment.episodes()})

    def _act(self, envs: SteppedApart, turns: EnvTurns, noise: np.ndarray, segment: _Segment) -> None:
        """One policy call for all that are ready."""
        mine = noise[np.minimum(turns.made, self._steps - 1), self._places]  # [N, ...]
        who = turns.act()
        if self._state is None:
            actions, log_probs = self._policy.act(self._obs, mine, self._mask)
        else:
            actions, log_probs, after = self._policy.act_from(self._state, self._obs, mine, self._mask)
            self._state[who] = np.where(self._done[who, None], np.float32(0), after[who])
        step = turns.made[who]
        segment.put("obs", step, who, self._obs)
        segment.put("actions", step, who, actions)
        segment.put("log_probs", step, who, log_probs)
        segment.put("valid", step, who, ~self._done)
        if self._mask is not None:
            segment.put("masks", step, who, self._mask)
        envs.step(who, to_environment(actions[who], self._spec.action, self._shape.action_space))

    def _take_in(self, envs: SteppedApart, turns: EnvTurns, segment: _Segment) -> None:
        """Wait for arrivals and copy what they saw: their rows are theirs again with the next step."""
        who, rows = np.array(envs.wait()), envs.rows
        step = turns.made[who]
        segment.put("rewards", step, who, rows.rewards)
        segment.put("terminated", step, who, rows.terminated)
        segment.put("truncated", step, who, rows.truncated)
        self._returns[who] += rows.rewards[who]
        self._lengths[who] += ~self._done[who]
        ended = rows.terminated[who] | rows.truncated[who]
        for index in who[ended]:
            segment.end_episode(int(turns.made[index]), int(index), self._returns[index], self._lengths[index])
            self._returns[index], self._lengths[index] = 0.0, 0
        self._obs[who] = rows.obs[who]
        self._done[who] = ended
        if self._mask is not None:
            self._mask[who] = rows.masks[who]
            self._mask = self._legal(self._mask)
        turns.arrive(who)

    def _legal(self, masks: np.ndarray) -> np.ndarray:
        legal = legal_actions({"action_mask": masks}, self._spec.action, self._done)
        assert legal is not None
        return legal


class _Segment:
    """A rollout in the making: [T, N] of everything, filled in whatever order the steps come."""

    def __init__(self, steps: int, obs: np.ndarray, state: np.ndarray | None) -> None:
        self._steps = steps
        self._episodes: list[tuple[int, int, float, int]] = []  # step, environment, return, length
        flags: dict[str, DTypeLike] = dict.fromkeys(("terminated", "truncated", "valid", "masks"), bool)
        self._kinds = flags | {"obs": obs.dtype, "rewards": np.float32}  # others are kept as they come
        self._fields: dict[str, np.ndarray] = {} if state is None else {"state": state[None].copy()}

    def put(self, name: str, step: np.ndarray, who: np.ndarray, rows: np.ndarray) -> None:
        """The rows [N, ...] of `who`, each at its own step."""
        if name not in self._fields:
            steps = self._steps + (name == "obs")  # one more, for bootstrapping
            self._fields[name] = np.empty((steps, *rows.shape), self._kinds.get(name, rows.dtype))
        self._fields[name][step, who] = rows[who]

    def end_episode(self, step: int, index: int, episode_return: float, length: int) -> None:
        self._episodes.append((step, index, float(episode_return), int(length)))

    def episodes(self) -> list[tuple[float, int]]:
        """Return and length, in the order in which lock-step would have seen them end."""
        return [episode[2:] for episode in sorted(self._episodes)]

    def finished(self, last_obs: np.ndarray) -> Segment:
        self._fields["obs"][self._steps] = last_obs
        return Segment(**self._fields)


CARRIED = ("_obs", "_mask", "_done", "_returns", "_lengths")


class ResumableFirstReadyCollector(FirstReadyCollector):
    """The same for environments that can be pickled: they go on bit for bit after a restart."""

    def state_dict(self) -> State:
        if self._envs is None:
            self._envs = self._start()
            self._begin_episodes(self._envs)
        scale = copy.deepcopy(self._scale)
        carried = {name: _copied(getattr(self, name)) for name in (*CARRIED, "_state")}
        return {"envs": self._envs.states(), "scale": scale, **carried}

    def load_state_dict(self, state: State) -> None:
        if self._envs is None:
            self._envs = self._start()
        self._envs.load_states(state["envs"])
        self._obs[:] = state["_obs"]
        if self._state is not None:
            self._state[:] = state["_state"]
        self._scale = copy.deepcopy(state.get("scale"))
        for name in CARRIED[1:]:
            setattr(self, name, _copied(state[name]))


def _copied(values: np.ndarray | None) -> np.ndarray | None:
    return None if values is None else np.array(values)


def first_ready_collector(
    make_env: MakeEnv,
    make_policy: Callable[[Spec], ActingPolicy | RememberingPolicy],
    *,
    num_envs: int,
    steps: int,
    seed: int,
    num_workers: int = 0,
    min_ready: int = 1,
    start_s: float = 120.0,
    step_s: float = 60.0,
    scale: RewardScale | RewardSigns | None = None,
) -> FirstReadyCollector:
    """Single environments in `num_workers` processes (0: one each), which act as they become ready.

    Resumable if the environment can be pickled; otherwise a restarted collector begins new episodes.
    """
    if not 0 <= num_workers <= num_envs:
        raise ValueError(f"num_workers must be from 0 to {num_envs} environments, received {num_workers!r}")
    one = make_env()
    shape = EnvShape(num_envs, one.observation_space, one.action_space)
    kind = ResumableFirstReadyCollector if can_be_carried(one) else FirstReadyCollector
    one.close()

    def start() -> EnvWorkers:
        return EnvWorkers(make_env, shape, num_workers or num_envs, start_s=start_s, step_s=step_s)

    return kind(start, make_policy, steps=steps, seed=seed, min_ready=min_ready, scale=scale)
