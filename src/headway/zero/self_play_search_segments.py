"""Segments of games played by search.

    ticket ---> T steps of N games, a search for each, with one snapshot ---> rollout of [T, N]

Games go on where the last ticket left them, whatever version it had: weights change at the boundary of a segment and
never in it, so a search never meets a latent of other weights. What a rollout holds
is said by `experience.game_segment.GameSegment`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from headway.core.types import Rollout, Snapshot, Ticket
from headway.core.types_opaque import SettingValue
from headway.envs.resumable import Carried, can_be_carried, refuse_nan
from headway.zero.planner_planning import Planner
from headway.zero.search_batched import choose_actions
from headway.zero.search_interface import SearchResult
from headway.zero.segments import GameSegment


class Games(Protocol):
    """N games side by side, as a collector sees them. `load`able by pickling, if the environment is."""

    num_envs: int
    obs: np.ndarray  # [N, ...]

    @property
    def legal(self) -> np.ndarray | None:
        """[N, A]; a game that has ended may have none."""
        ...

    to_play: np.ndarray  # [N] int8
    ended: np.ndarray  # [N]: the next step only starts it again

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rewards [N] of who acted, terminated [N], truncated [N]."""
        ...

    def begin_anew(self, seed: int) -> None:
        """Leave all games behind, whatever state they are in, and begin new ones."""
        ...


class VectorGames:
    """A Gymnasium vector environment with a discrete action: one player."""

    def __init__(self, make_env: Callable[[], Any], *, seed: int) -> None:
        from headway.envs.gymnasium_vector import Discrete, describe

        self._make_env = make_env
        self._env = make_env()
        self._spec = describe(self._env)
        if not isinstance(self._spec.action, Discrete):
            raise ValueError(f"search needs one of a number of actions, received {self._env.single_action_space}")
        self.num_envs = self._env.num_envs
        self._begin(seed)

    def begin_anew(self, seed: int) -> None:
        with suppress(Exception):  # it has failed already: what it says about being closed helps nobody
            self._env.close()
        self._env = self._make_env()
        self._begin(seed % 2**31)

    def _begin(self, seed: int) -> None:
        from headway.envs.gymnasium_vector import legal_actions
        from headway.zero.self_play_planes import as_seen

        observations, info = self._env.reset(seed=seed)
        self.obs = as_seen(observations, self._env.single_observation_space)
        self.ended = np.zeros(self.num_envs, bool)
        self.legal = legal_actions(info, self._spec.action, self.ended)
        self.to_play = np.zeros(self.num_envs, np.int8)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        from headway.envs.gymnasium_vector import legal_actions, to_environment
        from headway.zero.self_play_planes import as_seen

        env, action = self._env, self._spec.action
        taken = to_environment(actions.astype(np.int64), action, env.single_action_space)
        observations, rewards, terminated, truncated, info = env.step(taken)
        self.obs = as_seen(observations, env.single_observation_space)
        self.ended = terminated | truncated
        self.legal = legal_actions(info, action, self.ended)
        return np.asarray(rewards, np.float32), terminated, truncated


class SelfPlay:
    """Board games, both sides played by the same policy."""

    def __init__(self, game: str, num_envs: int) -> None:
        from headway.zero.board_games_package import BoardGames

        self._games = BoardGames(game, num_envs)
        self.num_envs = num_envs
        self._look(self._games.reset())

    def begin_anew(self, seed: int) -> None:
        self._look(self._games.reset())  # no game depends on a seed

    def _look(self, obs: np.ndarray) -> None:
        self.obs, self.legal = obs, self._games.masks()
        self.to_play, self.ended = self._games.to_play.copy(), self._games.ended.copy()

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        obs, rewards, ended = self._games.step(actions)
        self._look(obs)
        return rewards, ended, np.zeros_like(ended)


@dataclass(frozen=True, slots=True)
class Temperature:
    """How much chance there is in acting, by version: `first`, then linearly to `last` over `versions` versions.

    With `moves` that is for the first moves of an episode; after them the most visited action is taken.
    """

    first: float = 1.0
    last: float = 1.0
    versions: int = 1
    moves: int | None = None

    def __post_init__(self) -> None:
        for name in ("first", "last"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ValueError(f"a temperature must be >= 0, received {getattr(self, name)!r}")
        if self.versions < 1:
            raise ValueError(f"a temperature must change over at least 1 version, received {self.versions!r}")
        if self.moves is not None and self.moves < 0:
            raise ValueError(f"a temperature must be for 0 moves or more, received {self.moves!r}")

    def at(self, version: int, made: np.ndarray) -> np.ndarray:
        """[N], of games in which `made` [N] moves were made."""
        warm = self.first + (self.last - self.first) * min(1.0, version / self.versions)
        return np.where(made < (np.inf if self.moves is None else self.moves), warm, 0.0)


class SearchSegmentCollector:
    """Collects segments from games by searching in each of them at every step.

    `stream` is the number of its first game among those of all collectors.
    """

    def __init__(
        self,
        make_games: Callable[[], Games],
        make_planner: Callable[[], Planner],
        *,
        steps: int,
        stream: int = 0,
        temperature: Temperature | None = None,
    ) -> None:
        if steps < 1:
            raise ValueError(f"a segment needs at least one step, received {steps!r}")
        self._steps = steps
        self._stream = stream
        self._temperature = temperature or Temperature()
        self._planner = make_planner()
        self._games = make_games()
        self._version: int | None = None
        self._serial = 0
        self._begin_episodes()

    def begin_anew(self, seed: int) -> None:
        """Leave all games behind and begin new ones. A serial is left out: the next segment continues none."""
        self._games.begin_anew(seed)
        self._serial += 1
        self._begin_episodes()

    def _begin_episodes(self) -> None:
        self._returns = np.zeros(self._games.num_envs)
        self._lengths = np.zeros(self._games.num_envs, np.int64)
        self._history = self._planner.history(self._games.obs)

    def _load(self, snapshot: Snapshot) -> None:
        if self._version != snapshot.version:
            self._planner.load(snapshot.payload)
            self._version = snapshot.version

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        self._load(snapshot)
        rng = np.random.default_rng(ticket.seed)
        rows: dict[str, list[np.ndarray]] = {name: [] for name in FIELDS}
        finished: list[tuple[float, int]] = []
        for _ in range(self._steps):
            self._step(rng, snapshot.version, rows, finished)
        segment = self._segment({name: np.stack(values) for name, values in rows.items() if values})
        refuse_nan(segment, ticket, obs="observation", rewards="reward", values="root value")
        self._serial += 1
        return Rollout(segment, steps=segment.num_steps, info={"episodes": finished})

    def _segment(self, arrays: dict[str, np.ndarray]) -> GameSegment:
        return GameSegment(stream=self._stream, serial=self._serial, **arrays)

    def _plan(self, rng: np.random.Generator, active: np.ndarray | None) -> SearchResult:
        """A search in each game."""
        games, past = self._games, None if self._history is None else self._history.past
        return self._planner.plan(games.obs, rng, legal=games.legal, to_play=games.to_play, active=active, past=past)

    def _choose(self, result: SearchResult, version: int, rng: np.random.Generator) -> np.ndarray:
        """What is done in each game [N]."""
        return choose_actions(result, self._temperature.at(version, self._lengths), rng, self._games.legal)

    def _step(
        self,
        rng: np.random.Generator,
        version: int,
        rows: dict[str, list[np.ndarray]],
        finished: list[tuple[float, int]],
    ) -> None:
        games = self._games
        obs, legal, to_play, was_over = games.obs, games.legal, games.to_play, games.ended
        active = None if legal is None else np.logical_or.reduce(legal, axis=1)  # an ended game has none
        result = self._plan(rng, active)
        actions = self._choose(result, version, rng)
        rewards, terminated, truncated = games.step(actions)
        if self._history is not None:
            self._history.add(obs, actions)
            self._history.forget(was_over)
        rows["obs"].append(obs)
        rows["actions"].append(actions)
        rows["rewards"].append(rewards)
        rows["terminated"].append(terminated & ~was_over)
        rows["truncated"].append(truncated & ~was_over)
        rows["valid"].append(~was_over)
        rows["to_play"].append(to_play)
        rows["policies"].append(result.policies)
        rows["values"].append(result.values)
        if legal is not None:
            rows["legal"].append(legal)
        self._returns += np.where(to_play == 0, rewards, -rewards)
        self._lengths += ~was_over
        ended = (terminated | truncated) & ~was_over
        for index in np.flatnonzero(ended):
            finished.append((float(self._returns[index]), int(self._lengths[index])))
        self._returns[ended] = 0.0
        self._lengths[ended] = 0


FIELDS = (
    *("obs", "actions", "rewards", "terminated", "truncated", "valid"),
    *("to_play", "policies", "values", "legal"),
)


class ResumableSearchSegmentCollector(Carried, SearchSegmentCollector):
    """The same for games that can be pickled: they go on bit for bit after a restart."""

    CARRIED = ("_games", "_serial", "_returns", "_lengths", "_history")


def search_segment_collector(
    make_games: Callable[[], Games], make_planner: Callable[[], Planner], **settings: SettingValue
) -> SearchSegmentCollector:
    """Resumable if the games can be pickled; otherwise a restarted collector begins new ones."""
    kind = ResumableSearchSegmentCollector if can_be_carried(make_games()) else SearchSegmentCollector
    return kind(make_games, make_planner, **settings)
