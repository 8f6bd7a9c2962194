"""Plays games that are never trained on, for whoever measures a version: all at once, each at its own pace."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from functools import partial

from headway.agents.collector_agent_episodes import is_held_out
from headway.agents.episodes_episode_loop import EpisodeLimits
from headway.agents.episodes_episode_player import GroupPlan, GroupPlayer
from headway.agents.episodes_episode_threads import EpisodeThreads
from headway.core.text_messages import to_stderr
from headway.core.types import derive_seed
from headway.core.types_opaque import Weights
from headway.llm.engine.protocol_engine import Sampling
from headway.llm.rollouts_transcript import Transcript


class HeldOutGames:
    """Plays a fixed set of game instances. What is drawn in them has another seed each time.

    They are divided from those to train on by their first messages, or with `share` 0 by their seeds; it then says
    once if games begin alike, because those are trained on too. `share` None: by seeds, and nothing is said.
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
        share: float | None = None,
    ) -> None:
        self._player = make_player()
        self._threads = EpisodeThreads("game")
        self._name = name
        self._instances = [derive_seed(seed, "held out", number) for number in range(games)]
        self._episodes = episodes
        self._sampling = sampling
        self._limits = limits
        self._accepts = partial(is_held_out, share) if share else None
        self._looks_for_repeats = share == 0

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
        if self._looks_for_repeats:
            self._looks_for_repeats = False
            self._say_if_they_repeat(len({games[0].first for games in found.values()}))
        return [found[number] for number in sorted(found)]

    def _say_if_they_repeat(self, num_ways: int) -> None:
        count = len(self._instances)
        if num_ways < count:
            ways = f"{num_ways} ways" if num_ways > 1 else "one way"
            remedy = " (held_out=texts keeps them apart)" if num_ways > 1 else ""
            to_stderr(
                f"the {count} held-out games of {self._name} begin in only {ways}, "
                f"and games that begin alike are trained on{remedy}"
            )

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
