"""headway evaluate RUN [--checkpoint best|last|VERSION] [--seed N] [--repeat K] [--SETTING VALUE ...]

Scores a checkpoint again, without training: the newest one, unless another is named. Without other settings and
with the run's seed the score is the one the run found. --repeat evaluates with K seeds from there on. Settings of
the recipe that concern evaluation may be others: --eval_episodes 200, --eval_samples 16. Checkpoints are pickles:
evaluate only runs you trust.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headway.cli.options_output import print_table, say
from headway.cli.options_words import one_run, read_options, whole_numbers
from headway.coordinator.checkpoint_best_weights import LAST, Kept, kept_weights
from headway.coordinator.roles import EvaluatorRole
from headway.coordinator.run_result_evaluations import evaluation_seed
from headway.core.types import Score
from headway.runs.config import RunConfig, read_values, understand
from headway.runs.folder import RunFolder
from headway.runs.recipes_package import Recipe, load_recipe

SCORE = "score"


@dataclass(frozen=True, slots=True)
class ScoresBySeed:
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
class ScoreSpread:
    """Several measurements of one thing. `deviation` is that of the sample: 0 of a single one."""

    mean: float
    deviation: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> ScoreSpread:
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        return cls(statistics.fmean(values), deviation, min(values), max(values))


def evaluate(
    folder: RunFolder,
    *,
    checkpoint: str | int = LAST,
    seed: int | None = None,
    repeat: int = 1,
    changes: Mapping[str, object] | None = None,
) -> ScoresBySeed:
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
        scores = [role.evaluate(kept.snapshot, evaluation_seed(one, kept.version)) for one in seeds]
    finally:
        role.close()
    return ScoresBySeed(kept, seeds, scores)


def _config(recipe: Recipe, values: Mapping[str, object], changes: Mapping[str, object]) -> RunConfig:
    ours, _ = understand(recipe.config, changes)
    allowed = recipe.config.evaluation_settings()
    for name in ours:
        if name not in allowed:
            known = f"for evaluation: {', '.join(allowed)}" if allowed else f"{recipe.title} has none for evaluation"
            raise ValueError(f"{name} is a setting of the run and stays as it was; {known}")
    if not values.get("evaluate_every"):  # a run that never evaluated has no evaluator either
        values = {**values, "evaluate_every": 1}
    return read_values(recipe.config, values, changes)


def command(words: list[str]) -> int:
    """The command."""
    folder, options = RunFolder.existing(one_run("evaluate", words[:1])), read_options(words[1:])
    which = options.pop("checkpoint", LAST)
    numbers = {name: options.pop(name) for name in ("seed", "repeat") if name in options}
    numbers = {name: whole_numbers({name: value}, **{name: 0})[name] for name, value in numbers.items()}
    _print_measured(evaluate(folder, checkpoint=which, changes=options, **numbers), folder)
    return 0


def _print_measured(measured: ScoresBySeed, folder: RunFolder) -> None:
    kept, seeds = measured.kept, measured.seeds
    said = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    recorded = "" if kept.score is None else f"; the run's own score was {kept.score:.6g}"
    say(f"{kept.title()} of {folder.path}, {said}{recorded}")
    rows = [(name, ScoreSpread.of(values)) for name, values in measured.values().items()]
    if len(seeds) == 1:
        print_table(["what", "value"], [[name, f"{found.mean:.6g}"] for name, found in rows])
        return
    heads = ["what", "mean", "deviation", "lowest", "highest"]
    numbers = [[found.mean, found.deviation, found.low, found.high] for _, found in rows]
    lines = zip(rows, numbers, strict=True)
    print_table(heads, [[name, *(f"{number:.6g}" for number in line)] for (name, _), line in lines])
