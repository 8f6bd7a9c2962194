"""Where a policy that was trained comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Facts:
    """Where a policy comes from."""

    recipe: str
    env: str
    version: int
    score: float | None
    """Of the evaluation that measured these weights; None: none did."""

    def __str__(self) -> str:
        score = "" if self.score is None else f", score {self.score:.6g}"
        return f"{self.recipe} on {self.env}, version {self.version}{score}"
