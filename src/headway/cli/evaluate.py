"""A run's weights measured again, without training.

run folder ──config──> recipe ──> its evaluator ──seed, seed + 1, ...──> scores
     └─────newest, best or named checkpoint──> weights ──^

With the run's own seed and settings the first score is the one the run itself found for this version.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.coordinate.best_weights import LAST, Kept, kept_weights
from headway.coordinate.evaluations import evaluation_seed
from headway.coordinate.roles import EvaluatorRole
from headway.core.types import Score, Snapshot
from headway.observe.folder import RunFolder
from headway.recipes import Recipe, load_recipe
from headway.recipes.config import RunConfig, read_values, understand

SCORE = "score"


@dataclass(frozen=True, slots=True)
class Measured:
    """What evaluations of one version with several seeds found."""

    kept: Kept
    seeds: Sequence[int]
    scores: Sequence[Score]

    def values(self) -> dict[str, list[float]]:
        """The score and every metric, by seed."""
        found: dict[str, list[float]] = {SCORE: [score.value for score in self.scores if score.value is not None]}
        for name in self.scores[0].metrics:
            found[name] = [float(score.metrics[name]) for score in self.scores]
        return found


@dataclass(frozen=True, slots=True)
class Spread:
    """Several measurements of one thing. `deviation` is that of the sample: 0 of a single one."""

    mean: float
    deviation: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        return cls(statistics.fmean(values), deviation, min(values), max(values))


def evaluate(
    folder: RunFolder,
    *,
    checkpoint: str | int = LAST,
    seed: int | None = None,
    repeat: int = 1,
    changes: Mapping[str, Any] | None = None,
) -> Measured:
    """Score a checkpoint (`last`, `best` or a version) with `repeat` seeds from `seed` on (default: the run's).

    `changes` are settings of the run's recipe that concern evaluation; others are refused.
    """
    if repeat < 1:
        raise ValueError(f"repeat must be >= 1, received {repeat!r}")
    name, values = folder.read_config()
    recipe = load_recipe(name)
    config = _config(recipe, values, changes or {})
    make = recipe.stations(config).evaluator
    if make is None:
        raise ValueError(f"recipe {recipe.title} has no evaluator")
    kept = kept_weights(folder.checkpoints, checkpoint)
    first = config.seed if seed is None else seed
    seeds = range(first, first + repeat)
    role = EvaluatorRole(make)
    try:
        snapshot = Snapshot(kept.version, kept.weights)
        scores = [role.evaluate(snapshot, evaluation_seed(one, kept.version)) for one in seeds]
    finally:
        role.close()
    return Measured(kept, seeds, scores)


def _config(recipe: Recipe, values: Mapping[str, Any], changes: Mapping[str, Any]) -> RunConfig:
    ours, _ = understand(recipe.config, changes)
    allowed = recipe.config.evaluation_settings()
    for name in ours:
        if name not in allowed:
            known = f"for evaluation: {', '.join(allowed)}" if allowed else f"{recipe.title} has none for evaluation"
            raise ValueError(f"{name} is a setting of the run and stays as it was; {known}")
    if not values.get("evaluate_every"):  # a run that never evaluated has no evaluator either
        values = {**values, "evaluate_every": 1}
    return read_values(recipe.config, values, changes)
