"""Plays games that are never trained on, for whoever measures a version: all at once, each at its own pace."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from functools import partial

from headway.collect.agent_episodes import is_held_out
from headway.collect.episode_loop import EpisodeLimits
from headway.collect.episode_player import GroupPlan, GroupPlayer
from headway.collect.episode_threads import EpisodeThreads
from headway.core.opaque import Weights
from headway.core.types import derive_seed
from headway.llm.engine import Sampling
from headway.llm.transcript import Transcript


class HeldOutGames:
    """Plays a fixed set of game instances. What is drawn in them has another seed each time.

    They are divided from those to train on by their seeds, or with `share` by their first messages.
    """

    def __init__(
        self,
        make_player: Callable[[], GroupPlayer],
        *,
        name: str,
        seed: int,
        games: int,
        episodes: int,
        sampling: Sampling,
        limits: EpisodeLimits,
        share: float = 0.0,
    ) -> None:
        self._player = make_player()
        self._threads = EpisodeThreads("game")
        self._name = name
        self._instances = [derive_seed(seed, "held out", number) for number in range(games)]
        self._episodes = episodes
        self._sampling = sampling
        self._limits = limits
        self._accepts = partial(is_held_out, share) if share else None

    def apply(self, version: int, weights: Weights) -> None:
        """The version that plays from now on."""
        if self._player.engine.version != version:
            self._player.engine.apply(version, weights)

    def play(self, seed: int) -> list[list[Transcript]]:
        """The episodes of every game, in order."""
        over: queue.SimpleQueue[tuple[int, Sequence[Transcript] | Exception]] = queue.SimpleQueue()
        for number in range(len(self._instances)):
            self._threads.start(partial(self._run, number, seed, over))
        found: dict[int, list[Transcript]] = {}
        failed: Exception | None = None
        for _ in self._instances:  # all of them, so that none is under way when this returns
            number, result = over.get()
            if isinstance(result, Exception):
                failed = failed or result
            else:
                found[number] = list(result)
        if failed is not None:
            raise failed
        return [found[number] for number in sorted(found)]

    def close(self) -> None:
        self._player.close()
        self._threads.close()

    def _run(
        self, number: int, seed: int, over: queue.SimpleQueue[tuple[int, Sequence[Transcript] | Exception]]
    ) -> None:
        count = self._episodes
        plan = GroupPlan(
            uid=f"{self._name}, held out {number}",
            seed=derive_seed(seed, "held out", number),
            attempt=0,
            begun=count,
            needed=count,
            least=count,
            sampling=self._sampling,
            limits=self._limits,
            instance=self._instances[number],
            accepts=self._accepts,
        )
        try:
            over.put((number, list(self._player.play(plan).episodes.values())))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised where somebody waits for the games
            over.put((number, error))
