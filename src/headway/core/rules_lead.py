"""How large the lead is: fixed, or steered while the run goes on.

The auto lead answers two questions in turn.

1. *Which side is the bottleneck?* If the learner waits while collectors stand before occupied slots, the
   lead is what binds: raise it. If the learner waits and collectors do not, collection is simply slower:
   no lead helps (more collectors would). If the learner hardly waits, the smallest lead that keeps it so
   is wanted. In both cases probe downwards, and remember the lead at which waiting for slots began.
2. *Does staleness hurt?* If the effective sample size of the importance weights is under its target in two
   looks in a row, halve the lead, and remember where that was. One such look alone, which any odd batch can
   bring about, only keeps the lead where it is.

At first nobody knows how much is needed, and the lead grows as the queue's arithmetic says: a learner that waits for a
share w of the time gets through 1 - w of what it could, so it wants 1 / (1 - w) times the slots; three times as many at
most, twice where the effective sample size is known, half as many more where that is near its target. This search ends
when the learner has not waited for several looks in a row. From then on the lead rises by the share of the time the
learner waited, by half at most, and at least by one.

What is too much is given back step by step, an eighth at a time, and at least one; but only where the learner has
hardly waited for long. Where durations have a heavy tail it waits seldom, and then for a long time: the quiet between
two such times says nothing about the lead. So the waiting that a larger lead would have spared is averaged over many
looks. A raise takes its part of that average away: the waiting it answers is expected to shrink by as much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from headway.core.types import State

LOW_LOOKS = 2  # in a row, that say that staleness hurts
MOST = 0.5  # of the lead, that it is raised by when one time of waiting is all that is known


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

    @property
    def is_searching(self) -> bool:
        """Not even roughly known yet: look more often."""
        ...

    def observe(self, interval: Interval) -> float: ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


class FixedLead:
    """The lead the user chose."""

    def __init__(self, lead: float) -> None:
        if not (math.isfinite(lead) and lead >= 0):
            raise ValueError(f"max_lead must be a finite number >= 0 or 'auto', received {lead!r}")
        self.current = self.limit = lead
        self.is_searching = False

    def observe(self, interval: Interval) -> float:
        return self.current

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        pass


def starting_lead(buffer_size: int, batch_size: int) -> int:
    """Ten percent of the buffer, in batches, and at least one."""
    return max(1, (buffer_size // batch_size) // 10)


class LeadBounds:
    """Between which leads it is known to be worth while: below, the learner waits; above, staleness hurts.

    Durations drift, and so does the policy: what was answered long ago is asked again.
    """

    def __init__(self) -> None:
        self.too_small = 0.0  # the largest lead at which the learner was seen waiting for slots
        self.too_large = math.inf  # the smallest lead at which staleness was seen to hurt, above the smallest there is
        self.calm = 0  # looks since the first was last seen
        self.unhurt = 0  # looks since the second was

    def forget(self, patience: int) -> None:
        self.calm += 1
        if self.calm > patience:
            self.too_small = max(0.0, self.too_small - 1)
            self.calm = 1
        self.unhurt += 1
        if self.unhurt > 4 * patience:
            self.too_large += 1
            self.unhurt = 1


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
        self._bounds = LeadBounds()
        self._low_looks = 0  # in a row, with an effective sample size under its target
        self._quiet = 0  # intervals since the lead was moved, or should have been
        self._caution = patience // 2  # as many of them before it is lowered
        self._lowered_from = 0.0  # the lead before that was last done
        self._waited = 0.0  # share of the time, mean over many looks, of what a larger lead would have spared
        self._calm_looks = 0  # in a row
        self.is_searching = True

    def observe(self, interval: Interval) -> float:
        ess = interval.effective_sample_size
        idle = interval.learner_idle > self.negligible_idle
        blocked = interval.collectors_blocked > 2 * self.negligible_idle  # what a larger lead could win at most
        bounds = self._bounds
        bounds.forget(self.patience)
        spared = min(MOST, interval.learner_idle) if blocked else 0.0
        self._waited += (spared - self._waited) / (4 * self.patience)
        is_low = ess is not None and ess < self.target_effective_sample_size
        self._low_looks = self._low_looks + 1 if is_low else 0
        if self._low_looks == LOW_LOOKS:
            bounds.too_large = max(2.0, self.current)
            self.current = max(1.0, math.floor(self.current / 2))
            bounds.calm = bounds.unhurt = self._quiet = self._low_looks = 0
            self.is_searching = False
        elif is_low:  # perhaps: neither up nor down until the next look
            self._quiet = 0
        elif idle and blocked:
            bounds.too_small = self.current
            bounds.calm = self._quiet = self._calm_looks = 0
            if self.current < self._lowered_from:  # that was a mistake
                self._caution, self._lowered_from = min(4 * self.patience, 2 * self._caution), 0.0
            wanted = self.current + max(1.0, math.floor(self._growth(interval) * self.current))
            before, self.current = self.current, max(self.current, min(self.limit, wanted, bounds.too_large - 1))
            self._waited *= before / self.current
        else:  # enough, or collection is the bottleneck and no lead helps
            self._calm_looks += 1
            if self.is_searching and (self._calm_looks >= self.patience // 2 or self._is_near_hurting(ess)):
                self.is_searching, self._waited = False, 0.0  # what was waited was at smaller leads
            self._lower()
        return self.current

    def _growth(self, interval: Interval) -> float:
        """By which share of itself the lead is raised."""
        if not self.is_searching:
            return min(MOST, interval.learner_idle)
        if self._is_near_hurting(interval.effective_sample_size):
            return MOST
        most = 2.0 if interval.effective_sample_size is None else 1.0
        return min(most, interval.learner_idle / max(1e-9, 1 - interval.learner_idle))

    def _is_near_hurting(self, ess: float | None) -> bool:
        """Half of what may be lost is."""
        return ess is not None and ess < (1 + self.target_effective_sample_size) / 2

    def _lower(self) -> None:
        """Not at once: where durations are uneven, waiting comes in bursts, and one interval without it says little.

        Each mistake makes it twice as careful, each time that went well half as careful again.
        """
        self._quiet += 1
        if self._waited > self.negligible_idle / 4:
            return
        if self._quiet >= self._caution and self.current - 1 > self._bounds.too_small:
            if self._lowered_from:
                self._caution = max(self.patience // 2, self._caution // 2)
            self._lowered_from = self.current
            self.current = max(self._bounds.too_small + 1, self.current - max(1.0, self.current // 8))
            self._quiet = 0

    def state_dict(self) -> State:
        return {
            "current": self.current,
            "too_small": self._bounds.too_small,
            "calm": self._bounds.calm,
            "too_large": self._bounds.too_large,
            "unhurt": self._bounds.unhurt,
            "low_looks": self._low_looks,
            "quiet": self._quiet,
            "caution": self._caution,
            "lowered_from": self._lowered_from,
            "waited": self._waited,
            "calm_looks": self._calm_looks,
            "is_searching": self.is_searching,
        }

    def load_state_dict(self, state: State) -> None:
        if not state:  # the lead was fixed until now
            return
        self.current = state["current"]
        self._bounds.too_small, self._bounds.calm = state["too_small"], state["calm"]
        self._bounds.too_large, self._bounds.unhurt = state["too_large"], state["unhurt"]
        self._low_looks = state.get("low_looks", 0)
        self._quiet, self._caution, self._lowered_from = state["quiet"], state["caution"], state["lowered_from"]
        self._waited, self._calm_looks = state["waited"], state["calm_looks"]
        self.is_searching = state["is_searching"]
