"""How far a run has come, and how much of the bias of drawing by priority the weights undo by then."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BetaSchedule:
    """The exponent of the importance weights goes linearly from `start` to `end` over the run.

    `total_draws` and `total_steps` say how long the run is; whichever is further along counts. Without both it stays at
    `start`.
    """

    start: float = 0.4
    end: float = 1.0
    total_draws: int | None = None
    total_steps: int | None = None

    def progress(self, draws: int, steps: int) -> float:
        """The share of the run that is done, as far as anybody said how long it is."""
        by_draws = draws / self.total_draws if self.total_draws else 0.0
        by_steps = steps / self.total_steps if self.total_steps else 0.0
        return min(1.0, max(by_draws, by_steps))

    def beta(self, draws: int, steps: int) -> float:
        return self.start + (self.end - self.start) * self.progress(draws, steps)
