"""Which ready rollout the learner takes next, and what happens to one that is too old.

    oldest      strictly in ticket order: nothing is ever overtaken
    window(w)   a ticket may be overtaken by those fewer than w indices behind it
    ready       first come, first served: fast rollouts go first, slow ones age

The three differ in how many younger tickets may go before a slow one, which is what bounds its age:
`MaxLead.staleness_bound(order.overtakers)`.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from headway.core.text_naming import unknown
from headway.core.types import DropReason


@dataclass(frozen=True, slots=True)
class Order:
    """`window` is how far, in ticket indices, the learner may look past the oldest missing rollout."""

    window: float

    def __post_init__(self) -> None:
        if not (self.window >= 1 and (math.isinf(self.window) or self.window == int(self.window))):
            raise ValueError(f"an order's window must be a whole number >= 1, received {self.window!r}")

    @property
    def is_strict(self) -> bool:
        return self.window == 1

    @property
    def is_first_come(self) -> bool:
        return math.isinf(self.window)

    @property
    def overtakers(self) -> int | None:
        """How many younger tickets may be learned before a given one; None if there is no bound."""
        return None if self.is_first_come else int(self.window) - 1

    def __str__(self) -> str:
        if self.is_strict:
            return "oldest"
        return "ready" if self.is_first_come else f"window({self.window:g})"


OLDEST = Order(1)
READY = Order(math.inf)


def window(width: int) -> Order:
    """The learner may take any ready rollout fewer than `width` indices behind the oldest missing one."""
    return Order(width)


def parse_order(text: str) -> Order:
    """`oldest`, `ready` or `window(8)`."""
    if text == "oldest":
        return OLDEST
    if text == "ready":
        return READY
    head, _, rest = text.partition("(")
    if head == "window" and rest.endswith(")") and rest[:-1].strip().isdigit():
        return window(int(rest[:-1]))
    raise ValueError(f"unknown order {text!r}; allowed: oldest, window(N), ready")


class OnStale(enum.Enum):
    """What the learner does about a rollout older than `max_staleness` or `max_age_s`."""

    WAIT = "wait"
    """Never let it happen: hold the learner back until the rollout that would become too old is here."""
    DROP = "drop"
    """Throw the rollout away and free its slot."""
    REQUEUE = "requeue"
    """Throw the rollout away and collect the same ticket again with the newest snapshot."""
    KEEP = "keep"
    """Train on it all the same, and count it."""


def parse_on_stale(text: str) -> OnStale:
    """`wait`, `drop`, `requeue` or `keep`."""
    try:
        return OnStale(text)
    except ValueError:
        raise ValueError(unknown("on_stale", text, [policy.value for policy in OnStale])) from None


@dataclass(frozen=True, slots=True)
class Expiry:
    """The limits on the age of one rollout (None: no limit), and what happens beyond them.

    `max_staleness` counts versions since the rollout was begun; `max_age_s` counts seconds since it landed. A rollout
    that took long to make has age 0 when it lands, so the limit by itself prefers no short ones, and one that is
    collected again always has a chance.
    """

    max_staleness: int | None = None
    on_stale: OnStale = OnStale.WAIT
    max_age_s: float | None = None

    def __post_init__(self) -> None:
        if self.max_staleness is not None and self.max_staleness < 0:
            raise ValueError(f"max_staleness must be >= 0 or None, received {self.max_staleness!r}")
        if self.max_age_s is None:
            return
        if not (math.isfinite(self.max_age_s) and self.max_age_s > 0):
            raise ValueError(f"max_age_s must be a finite number > 0 or None, received {self.max_age_s!r}")
        if self.on_stale is OnStale.WAIT:
            raise ValueError(
                f"max_age_s={self.max_age_s:g} with on_stale='wait' cannot hold: a rollout that waits does not grow "
                "younger; choose on_stale=drop, requeue or keep"
            )

    @property
    def waits(self) -> bool:
        return self.max_staleness is not None and self.on_stale is OnStale.WAIT

    @property
    def discards(self) -> bool:
        """Are rollouts thrown away for their age?"""
        has_limit = self.max_staleness is not None or self.max_age_s is not None
        return has_limit and self.on_stale in (OnStale.DROP, OnStale.REQUEUE)

    def is_stale(self, staleness: int) -> bool:
        return self.max_staleness is not None and staleness > self.max_staleness

    def is_expired(self, age_s: float) -> bool:
        return self.max_age_s is not None and age_s > self.max_age_s

    def reason(self, staleness: int, age_s: float) -> DropReason | None:
        """Which limit such a rollout is beyond, the one on versions first."""
        if self.is_stale(staleness):
            return DropReason.STALE
        return DropReason.EXPIRED if self.is_expired(age_s) else None


def required_by_age(
    untaken_by_birth: dict[int, int],
    *,
    version: int,
    max_staleness: int,
    updates_left: int,
    updates_per_version: int,
    tickets_per_batch: int,
) -> list[tuple[int, int]]:
    """What the next batch must contain so that no rollout need ever exceed `max_staleness`.

    Returns pairs (birth, count): at least `count` tickets born at version `birth` or before. This is
    earliest-deadline-first: a ticket born at b must be taken while version <= b + max_staleness is trained,
    and after this batch only (updates_left - 1) + (b + max_staleness - version) * updates_per_version
    batches remain until then.
    """
    required = []
    due = 0
    for birth in sorted(untaken_by_birth):
        due += untaken_by_birth[birth]
        versions_left = birth + max_staleness - version
        batches_left = updates_left - 1 + versions_left * updates_per_version
        missing = due - batches_left * tickets_per_batch
        if missing > 0:
            required.append((birth, min(missing, due)))
    return required
