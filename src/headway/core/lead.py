"""How large the lead is: fixed, or steered while the run goes on.

The auto lead answers two questions in turn.

1. *Which side is the bottleneck?* If the learner waits while collectors stand before occupied slots, the
   lead is what binds: raise it. If the learner waits and collectors do not, collection is simply slower:
   no lead helps (more collectors would). If the learner hardly waits, the smallest lead that keeps it so
   is wanted: probe downwards, and remember the lead at which waiting began.
2. *Does staleness hurt?* If the effective sample size of the importance weights falls under its target,
   halve the lead at once. Increase is additive, decrease multiplicative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Interval:
    """What happened between two looks at the lead, as shares of that time."""

    learner_idle: float
    """Share of the time in which the learner waited for rollouts."""
    collectors_blocked: float
    """Share of the collectors' time spent before occupied slots."""
    effective_sample_size: float | None = None
    """Mean over the updates of the interval, if the learner reports it."""


class Lead(Protocol):
    """The current lead, and a controller that may move it."""

    @property
    def current(self) -> float: ...

    @property
    def limit(self) -> float: ...

    def observe(self, interval: Interval) -> float: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class FixedLead:
    """The lead the user chose."""

    def __init__(self, lead: float) -> None:
        if not (math.isfinite(lead) and lead >= 0):
            raise ValueError(f"max_lead must be a finite number >= 0 or 'auto', received {lead!r}")
        self.current = self.limit = lead

    def observe(self, interval: Interval) -> float:
        return self.current

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def starting_lead(buffer_size: int, batch_size: int) -> int:
    """Ten percent of the buffer, in batches, and at least one."""
    return max(1, (buffer_size // batch_size) // 10)


class AutoLead:
    """Steers the lead by idle time and effective sample size (the module docstring says how)."""

    def __init__(
        self,
        start: int = 1,
        limit: int = 64,
        *,
        target_effective_sample_size: float = 0.7,
        negligible_idle: float = 0.02,
        patience: int = 8,
    ) -> None:
        if not 1 <= start <= limit:
            raise ValueError(f"auto lead needs 1 <= start <= limit, received start={start}, limit={limit}")
        if not 0 < target_effective_sample_size <= 1:
            raise ValueError(
                f"target_effective_sample_size must be in (0, 1], received {target_effective_sample_size!r}"
            )
        if not 0 < negligible_idle < 1:
            raise ValueError(f"negligible_idle must be in (0, 1), received {negligible_idle!r}")
        self.current: float = start
        self.limit: float = limit
        self.target_effective_sample_size = target_effective_sample_size
        self.negligible_idle = negligible_idle
        self.patience = patience
        self._too_small = 0.0  # the largest lead at which the learner was seen waiting
        self._calm = 0  # intervals since that was last confirmed

    def observe(self, interval: Interval) -> float:
        ess = interval.effective_sample_size
        idle = interval.learner_idle > self.negligible_idle
        blocked = interval.collectors_blocked > self.negligible_idle
        if ess is not None and ess < self.target_effective_sample_size:
            self.current = max(1.0, math.floor(self.current / 2))
            self._calm = 0
        elif idle and blocked:
            self._too_small = self.current
            self._calm = 0
            self.current = min(self.limit, self.current + 1)
        elif not idle:
            self._calm += 1
            if self._calm >= self.patience:  # durations drift: ask again what was answered long ago
                self._too_small = max(0.0, self._too_small - 1)
                self._calm = 0
            if self.current - 1 > self._too_small:
                self.current -= 1
        return self.current

    def state_dict(self) -> dict[str, Any]:
        return {"current": self.current, "too_small": self._too_small, "calm": self._calm}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.current, self._too_small = state["current"], state["too_small"]
        self._calm = state["calm"]
