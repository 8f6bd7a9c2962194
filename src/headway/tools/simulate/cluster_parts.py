"""Parts of a cluster that fail and are repaired.

    up --(exponential, mean mtbf_s)--> down --(repair_s)--> up ...

When a part fails depends on the seed, its name and how often it has failed before, on nothing else: the same cluster
fails in the same way under every lead and size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headway.core.types import derive_seed
from headway.tools.simulate.workloads import unit

KINDS = ("collector", "engine", "node", "learner")


@dataclass(frozen=True, slots=True)
class Failing:
    """How often one part of a kind fails, and how long it is away."""

    mtbf_s: float
    """From a repair to the next failure, on average."""
    repair_s: float = 60.0

    def __post_init__(self) -> None:
        if not self.mtbf_s > 0:
            raise ValueError(f"mtbf_s must be above 0 seconds, received {self.mtbf_s!r}")
        if not (self.repair_s >= 0 and math.isfinite(self.repair_s)):
            raise ValueError(f"repair_s must be >= 0 seconds, received {self.repair_s!r}")


class Part:
    """One part, as it is at a moment that never goes back."""

    __slots__ = ("_failing", "_name", "_seed", "failed_at", "failures", "next_at", "up_at")

    def __init__(self, failing: Failing, seed: int, kind: str, number: int) -> None:
        self._failing = failing
        self._seed = seed
        self._name = f"{kind}-{number}"
        self.failures = 0
        """So far."""
        self.failed_at = -math.inf
        """The last failure."""
        self.up_at = 0.0
        """Since when it has been up, or when it will be up again."""
        self.next_at = self._draw(0.0)
        """The next failure."""

    def look(self, now: float) -> None:
        """Let happen what has happened by now."""
        while self.next_at <= now:
            self.failures += 1
            self.failed_at = self.next_at
            self.up_at = self.next_at + self._failing.repair_s
            self.next_at = self._draw(self.up_at)

    def _draw(self, since: float) -> float:
        drawn = unit(derive_seed(self._seed, "failure", self._name, self.failures))
        return since - self._failing.mtbf_s * math.log1p(-drawn)
