"""Groups of episodes of a language model in an environment.

    ticket --> one game instance --> group_size + redundancy episodes at once --> the first group_size --> rollout

A ticket is one game instance: its seed decides the game and what is drawn in it, so a ticket that is collected again
asks the same. Each episode runs in a thread of its own at its own pace (`episode_player.py`); the engine generates for
all of them together. Weights are pushed to the engine (`apply`), also in the middle of an episode, and each token is
stamped with the version that drew it.

A rollout holds `Episodes`. What infrastructure has broken is replayed on a fresh environment and never becomes a
reward; a group of which too little is left fails, and the coordinator's retries say what follows. A group that has
nothing to say (`filter_silent`), or that a user's `filter` does not want, is dropped under a reason.

    running <--> paused (generation stands still, episodes stay open) --> closed
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

from headway.agents.collector_group_filters import SILENT, Compared, GroupFilter, is_silent, reason_of
from headway.agents.episodes_episode_loop import EpisodeLimits
from headway.agents.episodes_episode_player import GroupPlan, GroupPlayer, PlayedGroup
from headway.core.types import HEALTH, MEASURES, SAMPLES, Rollout, Snapshot, Ticket
from headway.llm.engine.protocol_engine import Sampling
from headway.llm.rollouts_episode import Episodes
from headway.llm.rollouts_transcript import GROUP


@dataclass(frozen=True, slots=True)
class EpisodeSettings:
    """Says how groups of episodes are made."""

    name: str
    """Of the game, for people."""
    limits: EpisodeLimits
    sampling: Sampling
    """`max_tokens` follows from the limits."""
    group_size: int = 8
    """Episodes of one game instance that are learned from together."""
    redundancy: int = 0
    """Episodes that begin besides; the last ones to end are abandoned."""
    min_group: int | None = None
    """A group that lost episodes to infrastructure goes on with so many; default: all, else it fails."""
    held_out: float = 0.0
    """The share of game instances, divided by their first message, that is never played: evaluations play them."""
    filter_silent: bool = False
    compared: Compared = "episodes"
    """With turns or states a group whose returns are equal may have something to say."""
    filter: GroupFilter | None = None
    shown: Fraction = Fraction(0)
    """Episodes of a group whose text goes along for people to read, on average."""

    def __post_init__(self) -> None:
        if self.group_size < 1 or self.redundancy < 0:
            raise ValueError(
                f"group_size must be >= 1 and redundancy >= 0, received {self.group_size!r} and {self.redundancy!r}"
            )
        if not 1 <= self.least <= self.group_size:
            raise ValueError(f"min_group must be in [1, group_size={self.group_size}], received {self.min_group!r}")
        if not 0 <= self.held_out < 1:
            raise ValueError(f"the held-out share must be in [0, 1), received {self.held_out!r}")

    @property
    def least(self) -> int:
        return self.group_size if self.min_group is None else self.min_group

    def num_shown(self, index: int) -> int:
        """Returns how many episodes of this ticket's group go along as text."""
        return min(self.group_size, int(self.shown * (index + 1)) - int(self.shown * index))


class EpisodeCollector:
    """Collects groups of episodes with a player of its own. `make_player` is called where the collector runs."""

    is_concurrent = True

    def __init__(self, make_player: Callable[[], GroupPlayer], settings: EpisodeSettings) -> None:
        self._settings = settings
        self._player = make_player()
        self._accepts = partial(is_trained_on, settings.held_out) if settings.held_out else None

    def apply(self, snapshot: Snapshot) -> None:
        engine = self._player.engine
        if snapshot.version != engine.version:
            engine.apply(snapshot.version, snapshot.payload)

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        settings = self._settings
        plan = GroupPlan(
            uid=f"{settings.name}#{ticket.index}",
            attempt=ticket.attempt,
            seed=ticket.seed,
            begun=settings.group_size + settings.redundancy,
            needed=settings.group_size,
            least=settings.least,
            sampling=settings.sampling,
            limits=settings.limits,
            accepts=self._accepts,
        )
        return self._rollout(self._player.play(plan), settings.num_shown(ticket.index))

    def pause(self) -> None:
        self._player.pause()

    def resume(self) -> None:
        self._player.resume()

    def doing(self) -> list[str]:
        """Says which steps of environments, or runs of agents, are under way, since when."""
        return self._player.doing()

    def health(self) -> dict[str, float]:
        return self._player.health()

    def close(self) -> None:
        self._player.close()

    def _rollout(self, played: PlayedGroup, num_shown: int) -> Rollout:
        episodes = list(played.episodes.values())
        group = Episodes.join([one.record for one in episodes])
        rollout = Rollout(
            group,
            steps=int(group.num_trained.sum()),
            length=group.length,
            span=group.span,
            info={"uid": group.uid, HEALTH: self.health(), MEASURES: played.measures()},
            filtered=self._reason(group),
        )
        if not num_shown:
            return rollout
        shown = [dict(one.for_people()) for one in episodes[:num_shown]]
        shown[0][GROUP] = list(played.tracks)  # the whole group, to be drawn
        return replace(rollout, info={**rollout.info, SAMPLES: shown})

    def _reason(self, group: Episodes) -> str | bool:
        """Why the group is not learned from, in a word; False: it is."""
        settings = self._settings
        if settings.filter_silent and is_silent(group, settings.compared):
            return SILENT
        return (settings.filter is not None and reason_of(settings.filter, group)) or False


def is_held_out(share: float, first: str) -> bool:
    """Does the game instance that begins with this message belong to the share that is never trained on?"""
    number = int.from_bytes(hashlib.blake2b(first.encode(), digest_size=8, person=b"held out").digest(), "big")
    return number < share * 2**64


def is_trained_on(share: float, first: str) -> bool:
    return not is_held_out(share, first)
