"""Stations whose weights are a chain of hashes: fast, and nothing goes unnoticed.

    collect   hash(ticket's seed, weights, what was carried)   --> rollout
    learn     hash(weights, the rollouts in their order)       --> weights = (number of updates, hash)
    replay    draws by the hash of its content; a refresh leaves its mark on it

A stale snapshot, a swapped order, a lost state or a rollout trained on twice changes every hash after it. What a
station can see to be wrong by itself it writes down in `Notes`, because a retry would hide an exception.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from headway.coordinator.roles import LineStations, Stations
from headway.core.protocols import CannotGoOn
from headway.core.types import Batch, LearnReport, Rollout, Score, Snapshot, Span, Ticket

Weights = tuple[int, bytes]
"""The number of updates behind it, and their hash."""
FIRST: Weights = (0, b"first")
SECOND = "second"
SAMPLES = 3
"""Drawn from a replay for one update."""


def mixed(*parts: Any) -> bytes:
    """A hash of all parts."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()


@dataclass
class Notes:
    """What the stations of one run have seen to be wrong."""

    wrong: list[str] = field(default_factory=list)

    def check(self, is_right: bool, what: str) -> None:
        if not is_right:
            self.wrong.append(what)


@dataclass(frozen=True, kw_only=True)
class Nature:
    """What the stations of a run are like."""

    publish_every: int = 1
    collector: str = "plain"
    """plain, stateful (it carries a hash), concurrent (for lanes) or engine (for lanes, and it holds the weights)."""
    mixes: bool = False
    """Do the weights of an engine change in the middle of its work?"""
    filters: bool = False
    """Does every fifth rollout carry no signal?"""
    uneven: bool = False
    """Do rollouts differ in steps?"""
    replay: str = ""
    """No replay, or one: inside the learner or shared."""
    reanalyzer: str = ""
    """None, or one that is given its work by the replay (targets)."""
    evaluates: bool = True
    decay: float = 0.0
    """By how much the effective sample size falls with each version of age."""
    publish_fails: float = 0.0
    final: float = 0.0
    """The chance that a collector says that it cannot go on."""
    second_publish_every: int = 0
    """Updates per version of a second line; 0: there is none."""
    second_replays: bool = False
    """Does the learner of the second line keep a replay?"""
    loses: bool = False
    """May weights be lost, so that they are staged again with updates of the next version in them?"""

    def made(self, snapshot: Snapshot) -> bool:
        """Are these the weights of that version? The last one may be short of updates."""
        return self._made(snapshot, self.publish_every) and all(
            self._made(other, self.second_publish_every) for other in snapshot.others.values()
        )

    def _made(self, snapshot: Snapshot, every: int) -> bool:
        first, last = (snapshot.version - 1) * every + 1, snapshot.version * every
        return bool(first <= snapshot.payload[0] <= last + every * self.loses)

    def stations(self, notes: Notes, rng: random.Random, count: Callable[[str], None]) -> Stations:
        """Of one session. `count` is told of what fails here."""
        offers = self.reanalyzer == "targets"
        inside: type[ChainLearner] = OfferingLearner if offers else KeepingLearner
        kinds: dict[str, type[ChainLearner]] = {"": ChainLearner, "inside": inside, "shared": DrawLearner}
        learner = kinds[self.replay]
        second = KeepingLearner if self.second_replays else ChainLearner
        shared: Callable[[], Any] = OfferingReplay if offers else ChainReplay
        return Stations(
            collector=lambda number: COLLECTORS[self.collector](self, notes, rng, count),
            learner=lambda: learner(self, notes, rng, count),
            evaluator=(lambda: ChainEvaluator(self, notes)) if self.evaluates else None,
            reanalyzer=ChainReanalyzer if offers else None,
            replay=shared if self.replay == "shared" else None,
            lines={SECOND: LineStations(lambda: second(self, notes, rng, count))} if self.has_second else {},
        )

    @property
    def has_second(self) -> bool:
        return self.second_publish_every > 0


class ChainCollector:
    """Makes a hash of the ticket's seed and the weights."""

    def __init__(self, nature: Nature, notes: Notes, rng: random.Random, count: Callable[[str], None]) -> None:
        self._nature = nature
        self._notes = notes
        self._random = rng
        self._count = count

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        nature = self._nature
        self._notes.check(ticket.version == snapshot.version, f"{ticket} was given version {snapshot.version}")
        self._notes.check(nature.made(snapshot), f"{ticket} was given {snapshot}")
        if nature.final and self._random.random() < nature.final:
            self._count("final")
            raise CannotGoOn("this environment is closed for good")
        return Rollout(
            (ticket.index, self._made_of(ticket, _all_weights(snapshot))),
            steps=1 + ticket.seed % 3 if nature.uneven else 1,
            length=0.5 + ticket.seed % 7,
            filtered=nature.filters and ticket.seed % 5 == 0,
            size=8 * (1 + ticket.seed % 4),
        )

    def _made_of(self, ticket: Ticket, weights: Any) -> bytes:
        return mixed(ticket.seed, weights)


def _all_weights(snapshot: Snapshot) -> Any:
    """Those of the only line, or of each."""
    others = tuple(other.payload for other in snapshot.others.values())
    return (snapshot.payload, *others) if others else snapshot.payload


def _versions(snapshot: Snapshot) -> tuple[int, ...]:
    """That of each line."""
    return (snapshot.version, *(other.version for other in snapshot.others.values()))


class StatefulCollector(ChainCollector):
    """Carries a hash from one ticket to the next."""

    _carried = b""

    def _made_of(self, ticket: Ticket, weights: Any) -> bytes:
        self._carried = mixed(self._carried, ticket.seed, weights)
        return self._carried

    def state_dict(self) -> bytes:
        return self._carried

    def load_state_dict(self, state: bytes) -> None:
        self._carried = state


class ConcurrentCollector(ChainCollector):
    """May have lanes."""

    is_concurrent = True


class Engine(ConcurrentCollector):
    """Holds the weights itself, and must have been given the right ones."""

    _held: Snapshot | None = None

    def apply(self, snapshot: Snapshot) -> None:
        self._notes.check(self._nature.made(snapshot), f"{snapshot} was applied")
        if self._nature.mixes and self._held is not None:
            before, after = _versions(self._held), _versions(snapshot)
            newer = before != after and all(one <= other for one, other in zip(before, after, strict=True))
            self._notes.check(newer, f"version {after} was applied over {before}")
        self._held = snapshot

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        rollout = super().collect(ticket, snapshot)
        version = -1 if self._held is None else self._held.version
        assert ticket.version is not None
        is_right = version >= ticket.version if self._nature.mixes else version == ticket.version
        self._notes.check(is_right, f"{ticket} ended with the weights of version {version}")
        return replace(rollout, span=Span(ticket.version, version)) if self._nature.mixes and is_right else rollout


COLLECTORS: dict[str, type[ChainCollector]] = {
    "plain": ChainCollector,
    "stateful": StatefulCollector,
    "concurrent": ConcurrentCollector,
    "engine": Engine,
}


class ChainLearner:
    """Its weights are the number of its updates and a hash of all that it was given, in order."""

    def __init__(self, nature: Nature, notes: Notes, rng: random.Random, count: Callable[[str], None]) -> None:
        self._nature = nature
        self._notes = notes
        self._random = rng
        self._count = count
        self._weights = FIRST
        self._seen = 0  # a bit for each ticket

    def learn(self, batch: Batch) -> LearnReport:
        self._look_at(batch)
        self._weights = (self._weights[0] + 1, mixed(self._weights, [rollout.payload for rollout in batch.rollouts]))
        ages = [batch.version - rollout.span.oldest for rollout in batch.rollouts if rollout.span is not None]
        if not self._nature.decay or not ages:
            return LearnReport()
        return LearnReport({"ess": max(0.0, 1 - self._nature.decay * sum(ages) / len(ages))})

    def _look_at(self, batch: Batch) -> None:
        for rollout in batch.rollouts:
            self._notes.check(rollout.payload[0] == rollout.ticket, f"{rollout} has another's payload")
            self._notes.check(not self._seen >> rollout.ticket & 1, f"ticket {rollout.ticket} was trained on twice")
            self._notes.check(not rollout.filtered, f"ticket {rollout.ticket} carries no signal")
            self._seen |= 1 << rollout.ticket

    def snapshot(self) -> Weights:
        if self._nature.publish_fails and self._random.random() < self._nature.publish_fails:
            self._count("publish fails")
            raise ConnectionError("the link is down")
        return self._weights

    def state_dict(self) -> Any:
        return self._weights, self._seen

    def load_state_dict(self, state: Any) -> None:
        self._weights, self._seen = state


class ChainReplay:
    """Keeps a hash of each rollout, and draws by the hash of its own content and history."""

    def __init__(self) -> None:
        self._kept: tuple[tuple[int, bytes], ...] = ()  # version of the target, hash
        self._state = b""
        self._due = 0

    def insert(self, batch: Batch) -> None:
        new = tuple((batch.version, mixed(rollout.payload)) for rollout in batch.rollouts)
        self._kept = (self._kept + new)[-12:]
        self._state = mixed(self._state, new)

    def sample(self, version: int) -> Rollout:
        self._state = mixed(self._state, version)
        first = self._state[0] % len(self._kept)
        drawn = [self._kept[(first + place) % len(self._kept)] for place in range(SAMPLES)]
        self._due += 1
        return Rollout((self._state, drawn), steps=SAMPLES)

    def update(self, feedback: Any) -> None:
        self._state = mixed(self._state, feedback)

    def statistics(self) -> dict[str, float]:
        return {"kept": len(self._kept)}

    def state_dict(self) -> Any:
        return self._kept, self._state, self._due

    def load_state_dict(self, state: Any) -> None:
        self._kept, self._state, self._due = state


class DrawLearner(ChainLearner):
    """Trains on what a replay with its own role has drawn, and says something about it."""

    def learn(self, batch: Batch) -> LearnReport:
        (draw,) = batch.rollouts
        self._weights = (self._weights[0] + 1, mixed(self._weights, draw.payload))
        return LearnReport(feedback=self._weights)


class OfferingReplay(ChainReplay):
    """Gives the oldest of what it keeps to be made again, once for each update."""

    def oldest(self, version: int) -> Rollout | None:
        oldest = min(self._kept, default=(version, b""))
        if not self._due or oldest[0] >= version:
            return None
        self._due -= 1
        return Rollout(oldest)

    def refresh(self, targets: Rollout) -> None:
        before, after = targets.payload
        self._kept = tuple(after if kept == before else kept for kept in self._kept)
        self._state = mixed(self._state, before, after)


class KeepingLearner(ChainLearner):
    """A learner with a replay inside."""

    keeper: type[ChainReplay] = ChainReplay

    def __init__(self, nature: Nature, notes: Notes, rng: random.Random, count: Callable[[str], None]) -> None:
        super().__init__(nature, notes, rng, count)
        self._replay = self.keeper()

    def insert(self, batch: Batch) -> None:
        self._look_at(batch)
        self._replay.insert(batch)

    def learn(self, batch: Batch) -> LearnReport:
        self._notes.check(not batch.rollouts, "a learner with a replay was given rollouts to train on")
        self._weights = (self._weights[0] + 1, mixed(self._weights, self._replay.sample(batch.version).payload))
        return LearnReport(samples=SAMPLES)

    def state_dict(self) -> Any:
        return super().state_dict(), self._replay.state_dict()

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state[0])
        self._replay.load_state_dict(state[1])


class OfferingLearner(KeepingLearner):
    """The same, whose targets can be made again."""

    keeper = OfferingReplay

    def oldest(self, version: int) -> Rollout | None:
        assert isinstance(self._replay, OfferingReplay)
        return self._replay.oldest(version)

    def refresh(self, targets: Rollout) -> None:
        assert isinstance(self._replay, OfferingReplay)
        self._replay.refresh(targets)


class ChainReanalyzer:
    """Makes a newer hash of an older one."""

    def reanalyze(self, snapshot: Snapshot, work: Rollout) -> Rollout:
        return Rollout((work.payload, (snapshot.version, mixed(snapshot.payload, work.payload))))


class ChainEvaluator:
    """Scores a version with its number."""

    def __init__(self, nature: Nature, notes: Notes) -> None:
        self._nature = nature
        self._notes = notes

    def evaluate(self, snapshot: Snapshot, seed: int) -> Score:
        self._notes.check(self._nature.made(snapshot), f"{snapshot} was evaluated")
        return Score(snapshot.version, float(snapshot.version))
