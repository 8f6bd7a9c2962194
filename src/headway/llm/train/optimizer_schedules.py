"""Learning rates over a run, as shares of their full height.

share
  1 |   /------------      constant
    |  / `-.               linear, cosine: down to the floor at the end of the run
    | /     `-.
  0 +-----------`---> updates
      warmup
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from headway.core.text_naming import unknown

FALLS: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
}


@dataclass(frozen=True, slots=True)
class Schedule:
    """Rises over `warmup` updates, then stays or falls until `total` is reached."""

    kind: str = "constant"
    warmup: int = 0
    total: int | None = None
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in FALLS:
            raise ValueError(unknown("learning-rate schedule", self.kind, FALLS))
        if self.warmup < 0:
            raise ValueError(f"the updates of a warmup must be >= 0, received {self.warmup!r}")
        if not 0 <= self.floor <= 1 or (self.floor and self.kind == "constant"):
            raise ValueError(f"a floor is a share in [0, 1] of a rate that falls, received {self.floor!r}")
        if self.kind != "constant" and self.total is None:
            raise ValueError(f"a {self.kind} schedule needs the number of updates: over which run shall it fall?")

    def share(self, updates: int) -> float:
        """For the update after so many. The last of a run that falls is small, not 0: it is not for nothing."""
        if updates < self.warmup:
            return (updates + 1) / self.warmup
        if self.total is None:
            return 1.0
        share = FALLS[self.kind](min(1.0, (updates - self.warmup) / max(1, self.total - self.warmup)))
        return self.floor + (1.0 - self.floor) * share
