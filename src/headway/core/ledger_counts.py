"""What a ledger has counted: statistics of the tickets that came in, were taken, were sent back and were dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from headway.core.rules import Tally
from headway.core.types import DropReason, State


@dataclass(frozen=True, slots=True)
class LedgerStatistics:
    """An immutable copy of the counts. `closes` is the promise that nothing was lost."""

    opened: int
    landed: int
    """Rollouts that came in; a ticket that was requeued or whose rollout was lost counts each time."""
    learned: int
    dropped: dict[str, int]
    returned: int
    live: int
    reissued: int
    requeued: int
    lost: int
    """Rollouts that were here and are gone, with the node that held them; their tickets were collected again."""
    kept_stale: int
    kept_expired: int
    """Taken in spite of `max_age_s`."""
    staleness: dict[int, int]
    """Histogram of the age, in versions, of everything taken."""
    mean_age_s: float
    """Mean seconds from landing to being taken."""
    max_age_s: float
    offered_length: float
    """Mean length of the rollouts that came in."""
    trained_length: float
    """Mean length of the rollouts that were taken."""
    steps: float

    @property
    def closes(self) -> bool:
        return self.opened == self.learned + sum(self.dropped.values()) + self.returned + self.live

    @property
    def waiting(self) -> int:
        """Rollouts that came in and were neither taken by the learner nor dropped."""
        taken, dropped = sum(self.staleness.values()), sum(self.dropped.values())
        came_in = self.landed - self.requeued - self.lost + self.dropped.get(DropReason.FAILED.value, 0)
        return max(0, min(came_in, self.opened) - taken - dropped)

    @property
    def mean_staleness(self) -> float:
        total = sum(self.staleness.values())
        return sum(age * n for age, n in self.staleness.items()) / total if total else 0.0

    @property
    def max_staleness(self) -> int:
        return max(self.staleness, default=0)

    def staleness_quantile(self, q: float) -> int:
        """The age below which a share `q` of the taken rollouts lies."""
        left = q * sum(self.staleness.values())
        for age in sorted(self.staleness):
            left -= self.staleness[age]
            if left <= 1e-9:
                return age
        return self.max_staleness

    @property
    def length_bias(self) -> float:
        """How much shorter the trained rollouts are than the offered ones: 0 is none, -0.2 a fifth."""
        return self.trained_length / self.offered_length - 1 if self.offered_length else 0.0


@dataclass(slots=True)
class LedgerCounts:
    """The running counts behind `LedgerStatistics`, beside the tally that the rules read."""

    drops: Counter[DropReason] = field(default_factory=Counter)
    staleness: Counter[int] = field(default_factory=Counter)
    reissued: int = 0
    requeued: int = 0
    lost: int = 0
    kept_stale: int = 0
    kept_expired: int = 0
    returned: int = 0
    offered: int = 0
    offered_length: float = 0.0
    trained_length: float = 0.0
    ages_s: float = 0.0
    """Summed over what was taken and can no longer be put back."""
    max_age_s: float = 0.0

    def untake(self, staleness: int, length: float) -> None:
        """A rollout that was taken is put back: it counts as if it never had been."""
        self.staleness[staleness] -= 1
        if not self.staleness[staleness]:
            del self.staleness[staleness]
        self.trained_length -= length

    def note_age(self, age_s: float) -> None:
        """A rollout can no longer be put back: how long it had waited when it was taken is final."""
        self.ages_s += age_s
        if age_s > self.max_age_s:
            self.max_age_s = age_s

    def statistics(self, tally: Tally, ages_under_way: Iterable[float]) -> LedgerStatistics:
        """`ages_under_way` are those of the rollouts that the learner has now."""
        taken = sum(self.staleness.values())
        ages = list(ages_under_way)
        return LedgerStatistics(
            opened=tally.opened,
            landed=tally.landed,
            learned=tally.learned,
            dropped={reason.value: n for reason, n in self.drops.items()},
            returned=self.returned,
            live=tally.live,
            reissued=self.reissued,
            requeued=self.requeued,
            lost=self.lost,
            kept_stale=self.kept_stale,
            kept_expired=self.kept_expired,
            mean_age_s=(self.ages_s + sum(ages)) / taken if taken else 0.0,
            max_age_s=max([self.max_age_s, *ages]),
            staleness=dict(sorted(self.staleness.items())),
            offered_length=self.offered_length / self.offered if self.offered else 0.0,
            trained_length=self.trained_length / taken if taken else 0.0,
            steps=tally.inserted,
        )

    def state_dict(self) -> State:
        return {
            "drops": {reason.value: n for reason, n in self.drops.items()},
            "staleness": dict(self.staleness),
            "counts": [self.reissued, self.requeued, self.lost, self.offered],
            "kept": [self.kept_stale, self.kept_expired],
            "lengths": [self.offered_length, self.trained_length],
            "ages": [self.ages_s, self.max_age_s],
        }

    def load_state_dict(self, state: State) -> None:
        self.drops = Counter({DropReason(name): n for name, n in state["drops"].items()})
        self.staleness = Counter({int(age): n for age, n in state["staleness"].items()})
        self.reissued, self.requeued, self.lost, self.offered = state["counts"]
        self.kept_stale, self.kept_expired = state["kept"]
        self.offered_length, self.trained_length = state["lengths"]
        self.ages_s, self.max_age_s = state["ages"]
