"""What several runs come to: means, interquartile means, intervals, and how likely one setting beats another.

Everything here is a function of arrays. Scores are [runs], curves [runs, points]; a *stratum* is what is resampled
within itself, the runs of one setting on one environment. Intervals are percentiles of the statistic over runs that are
drawn anew, with replacement, in each stratum: the stratified bootstrap that Agarwal et al. recommend for a handful of
runs ("Deep reinforcement learning at the edge of the statistical precipice", 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Statistic = Callable[[Floats], Floats]
"""Of [..., runs, points], over the runs: [..., points]."""

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its interval; None where a single run says nothing about others."""

    value: float
    low: float | None = None
    high: float | None = None


def mean(runs: Floats) -> Floats:
    """Over the runs of [..., runs, points]."""
    return np.asarray(runs.mean(axis=-2))


def interquartile_mean(runs: Floats) -> Floats:
    """The mean of the middle half: a quarter of the runs, rounded down, is left out at each end."""
    count = runs.shape[-2]
    cut = count // 4
    return np.asarray(np.sort(runs, axis=-2)[..., cut : count - cut, :].mean(axis=-2))


STATISTICS: dict[str, Statistic] = {"mean": mean, "iqm": interquartile_mean}


def drawn_anew(strata: Sequence[Floats], resamples: int, rng: np.random.Generator) -> Floats:
    """Runs drawn with replacement within each stratum, one beside the other: [resamples, all runs, points]."""
    drawn = [stratum[rng.integers(len(stratum), size=(resamples, len(stratum)))] for stratum in strata]
    return np.concatenate(drawn, axis=1)


def bootstrap(
    strata: Sequence[Floats], statistic: Statistic, *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[Floats, Floats, Floats]:
    """The statistic of all runs at each point, [points], and the ends of its 95 % interval.

    `strata` are [runs, points] each. Where no stratum has more than one run the interval is not a number.
    """
    together = statistic(np.concatenate(strata, axis=0))
    if all(len(stratum) < 2 for stratum in strata):
        return together, np.full_like(together, np.nan), np.full_like(together, np.nan)
    found = statistic(drawn_anew(strata, resamples, np.random.default_rng(seed)))  # [resamples, points]
    low, high = np.quantile(found, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    return together, low, high


def estimate(strata: Sequence[Floats], statistic: Statistic, **options: int) -> Estimate:
    """The same for scores, [runs] each."""
    value, low, high = (float(part[0]) for part in bootstrap([one[:, None] for one in strata], statistic, **options))
    return Estimate(value) if np.isnan(low) else Estimate(value, low, high)


def probability_of_improvement(ours: Floats, theirs: Floats) -> Floats:
    """How often a run of ours, [..., runs], scores higher than one of theirs, of all pairs; a tie counts half."""
    higher = ours[..., :, None] > theirs[..., None, :]
    same = ours[..., :, None] == theirs[..., None, :]
    return np.asarray((higher + 0.5 * same).mean(axis=(-2, -1)))


def improvement(
    ours: Sequence[Floats], theirs: Sequence[Floats], *, resamples: int = RESAMPLES, seed: int = 0
) -> Estimate:
    """The probability that one setting beats another, averaged over the strata, and its interval."""
    value = float(np.mean([probability_of_improvement(a, b) for a, b in zip(ours, theirs, strict=True)]))
    if all(len(one) < 2 for one in (*ours, *theirs)):
        return Estimate(value)
    rng = np.random.default_rng(seed)
    drawn = [
        probability_of_improvement(*(drawn_anew([one[:, None]], resamples, rng)[..., 0] for one in pair))
        for pair in zip(ours, theirs, strict=True)
    ]
    low, high = np.quantile(np.mean(drawn, axis=0), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(value, float(low), float(high))


def normalised(scores: Sequence[Floats]) -> list[Floats]:
    """Scores of several settings on one environment, brought to 0 (the lowest of all) up to 1 (the highest)."""
    every = np.concatenate(scores)
    low, high = every.min(), every.max()
    return [(one - low) / (high - low) if high > low else np.zeros_like(one) for one in scores]


@dataclass(frozen=True, slots=True)
class Curve:
    """One run's numbers along an axis that rises."""

    x: Floats
    y: Floats
    is_held: bool = False
    """It ended because it had reached its target: it stays where it was."""


def common_points(curves: Sequence[Curve], *, most: int = 200) -> Floats:
    """Where all curves have a value: every x of any of them, from the last first to the first last, at most so many.

    A curve that is held has one up to where the longest ends.
    """
    begin = max(curve.x[0] for curve in curves)
    ends = [curve.x[-1] for curve in curves if not curve.is_held]
    end = min(ends) if ends else max(curve.x[-1] for curve in curves)
    every = np.unique(np.concatenate([curve.x for curve in curves]))
    inside = every[(every >= begin) & (every <= end)]
    if len(inside) <= most:
        return inside
    return inside[np.unique(np.linspace(0, len(inside) - 1, most).round().astype(int))]


def at_points(curves: Sequence[Curve], points: Floats) -> Floats:
    """The curves there, [runs, points], on straight lines between their own points."""
    return np.stack([np.interp(points, curve.x, curve.y) for curve in curves])
