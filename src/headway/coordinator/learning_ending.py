"""When a run is over: its plan of updates, steps, seconds or a score."""

from __future__ import annotations

from collections.abc import Callable

from headway.coordinator.line import Line
from headway.coordinator.run_result_control import RunControl
from headway.coordinator.run_result_evaluations import Evaluations
from headway.coordinator.settings import Settings
from headway.core.types import Score


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

    def look_at_score(self) -> bool:
        """Stop the run if a score reaches the target. Returns whether that is why it stops."""
        reached = self.target_reached()
        self._control.stop(reached)
        return bool(reached) and self._control.stop_reason == reached

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

    @property
    def winner(self) -> Score | None:
        """The first score that reaches the target; the weights it was given to are kept to the end."""
        target = self._settings.plan.target_score
        return None if target is None else self._evaluations.first_to_reach(target)

    def target_reached(self) -> str:
        winner = self.winner
        if winner is None:
            return ""
        return f"reached a score of {winner.value:g} (target {self._settings.plan.target_score:g})"
