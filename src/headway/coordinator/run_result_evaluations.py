"""Which versions are to be evaluated, and which one is.

An evaluation that has begun is given up only if the run is interrupted; a resumed run makes up for it. While one runs
in the background, at most one more waits; if a later version becomes due meanwhile it takes that place, and the one it
replaces is counted as skipped.
"""

from __future__ import annotations

from headway.core.types import Score, derive_seed


def evaluation_seed(seed: int, version: int) -> int:
    """Of the evaluation of a version in a run with this seed, whenever and wherever it takes place."""
    return derive_seed(seed, "evaluate", version)


class Evaluations:
    """The state of evaluation: what runs, what waits, what was found."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.running: int | None = None
        self.waiting: list[int] = []
        self.scores: list[Score] = []
        self.skipped = 0

    def is_due(self, version: int) -> bool:
        return self.every > 0 and version > 0 and version % self.every == 0

    def ask(self, version: int) -> int | None:
        """`version` is due; returns the version that will not be evaluated because of it."""
        replaced = self.waiting.pop() if self.waiting else None
        self.waiting.append(version)
        if replaced is not None:
            self.skipped += 1
        return replaced

    def begin(self) -> int:
        """The version to evaluate now."""
        self.running = self.waiting.pop(0)
        return self.running

    def end(self, score: Score) -> None:
        self.running = None
        self.scores.append(score)

    @property
    def unfinished(self) -> tuple[int, ...]:
        """Begun or waiting, oldest first: what a checkpoint must remember."""
        return (*(() if self.running is None else (self.running,)), *self.waiting)

    def first_to_reach(self, target: float) -> Score | None:
        return next((score for score in self.scores if score.value is not None and score.value >= target), None)

    def has_seen(self, version: int) -> bool:
        return any(score.version == version for score in self.scores)
