"""What a run came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headway.coordinator.activities_waits import TimeSpent
from headway.coordinator.run_result_control import INTERRUPTED
from headway.coordinator.settings import Settings
from headway.core.ledger_counts import LedgerStatistics
from headway.core.types import Score
from headway.core.types_opaque import Weights


@dataclass(frozen=True, slots=True)
class LineResult:
    """What one more line of a run came to."""

    version: int
    updates: int
    weights: Weights
    ledger: LedgerStatistics
    lead: float
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True, repr=False)
class RunResult:
    """What a run came to."""

    stop_reason: str
    version: int
    updates: int
    weights: Weights
    """The last published weights, or those that reached the target score, with their version."""
    scores: tuple[Score, ...]
    ledger: LedgerStatistics
    time_spent: TimeSpent
    wall_s: float
    """Seconds from the first ticket to the end, evaluations and checkpoints included."""
    settings: Settings
    restarts: int
    evaluations_skipped: int
    lead: float
    metrics: dict[str, float]
    """The metrics of the last update."""
    evaluations_abandoned: tuple[int, ...] = ()
    """Versions whose evaluation was due or under way when the run was interrupted; a resumed run makes up for them."""
    lines: Mapping[str, LineResult] = field(default_factory=dict)
    """The other lines, by their names."""

    @property
    def is_complete(self) -> bool:
        """False if the run was interrupted and waits to be resumed."""
        return not self.stop_reason.startswith(INTERRUPTED)

    def __repr__(self) -> str:
        """One line: a result is often the last thing in a cell of a notebook, and weights would fill the screen."""
        scored = [score for score in self.scores if score.value is not None]
        score = f", score {scored[-1].value:.6g} (version {scored[-1].version})" if scored else ""
        ages = f"staleness at most {self.ledger.max_staleness}"
        return f"<result of a run: {self.stop_reason}; version {self.version}{score}, {ages}, {self.wall_s:.1f} s>"
