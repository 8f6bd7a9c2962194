"""When a run is over: its plan of updates, steps, seconds or a score."""

from __future__ import annotations

from collections.abc import Callable

from headway.coordinate.control import RunControl
from headway.coordinate.evaluations import Evaluations
from headway.coordinate.line import Line
from headway.coordinate.settings import Settings


class Ending:
    """Looks between two updates of the first line whether its plan is reached."""

    def __init__(
        self,
        settings: Settings,
        control: RunControl,
        first: Line,
        evaluations: Evaluations,
        wall_s: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._control = control
        self._first = first
        self._evaluations = evaluations
        self._wall_s = wall_s
        self.defers_target = settings.is_pinned and settings.evaluate_in_background
        """A pinned run looks at a background score when the next evaluation is due, not when it arrives."""

    def look(self) -> bool:
        """Stop the run if its plan is reached. Returns whether it is stopped."""
        self._control.stop(self.plan_reached(self._first.ledger.tally.trained))
        return bool(self._control.stop_reason)

    def look_without_update(self) -> bool:
        """The same where no further update can come: its last steps may not have been enough for one."""
        self._control.stop(self.plan_reached(self._first.ledger.tally.inserted))
        return bool(self._control.stop_reason)

    def look_at_score(self) -> None:
        """Stop the run if the best score reaches the target."""
        self._control.stop(self.target_reached())

    def plan_reached(self, steps: float) -> str:
        """Why the run is over after so many steps, or nothing."""
        plan = self._settings.plan
        if plan.updates is not None and self._first.updates >= plan.updates:
            return f"reached {plan.updates} updates"
        if plan.steps is not None and steps >= plan.steps:
            return f"reached {plan.steps} steps"
        if not self.defers_target and self.target_reached():
            return self.target_reached()
        if plan.wall_s is not None and self._wall_s() >= plan.wall_s:
            return f"reached {plan.wall_s:g} seconds"
        return ""

    def target_reached(self) -> str:
        target = self._settings.plan.target_score
        if target is None:
            return ""
        best = self._evaluations.best
        if best is None or best < target:
            return ""
        return f"reached a score of {best:g} (target {target:g})"
