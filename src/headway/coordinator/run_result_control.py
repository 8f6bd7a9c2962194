"""Whether a run goes on: why it stops, whether it pauses, whether its evaluations are abandoned."""

from __future__ import annotations

from headway.coordinator.activities_waits import Board

INTERRUPTED = "interrupted"


class RunControl:
    """What every loop looks at before it goes on. Only the coordinator's thread changes it."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self.stop_reason = ""
        """Empty while the run goes on."""
        self.is_paused = False
        """Nothing takes off and nothing is trained until a blocking evaluation is over."""
        self.abandons_evaluations = False

    @property
    def is_interrupted(self) -> bool:
        return self.stop_reason.startswith(INTERRUPTED)

    def stop(self, reason: str) -> None:
        """The run is over, for the first reason that was given. Nobody is woken: who asks for it is."""
        self.stop_reason = self.stop_reason or reason

    def stop_now(self, reason: str) -> None:
        """The same from outside the loops: whoever waits looks again."""
        if not self.stop_reason:
            self.stop_reason = reason
            self._board.wake_all()
