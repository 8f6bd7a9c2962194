"""The simulator against reality: real runs, recorded, fitted and simulated.

    python bench/what_if.py            every run, three times
    python bench/what_if.py --quick    once

Each run is recorded at two leads. `again` fits the simulator to a run and simulates it with its own lead: is the model
right about what it has seen? `the other lead` takes the durations of the first run and predicts the second: is the
what-if table right? Where the work sleeps, durations do not depend on the lead, and both must hold. Where it computes
on a machine with few cores, overlapping work takes longer, which the model leaves out: the last columns show how much.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headway.coordinator.functions import stations_from_functions
from headway.coordinator.roles import Stations
from headway.coordinator.settings import Settings
from headway.core.types import Ticket
from headway.runs.bandit import FunctionsConfig
from headway.runs.bandit import stations as toy_stations
from headway.runs.folder import RunFolder
from headway.runs.launch_session import launch
from headway.tools.report.recorded_run_run_history import Story, read_story
from headway.tools.report.what_if import MeasuredRun, measure, repeat
from headway.tools.report.what_if_fitting import fit
from headway.tools.simulate.simulation import Outcome, simulate

RATE_WITHIN, STALENESS_WITHIN = 0.05, 0.10


@dataclass(frozen=True)
class Case:
    """A run that can be made at any lead."""

    name: str
    leads: tuple[float, float]
    build: Callable[[float], tuple[Stations, Settings]]
    runtime: str = "threads"
    is_asleep: bool = True
    """Its work waits and does not compute, so that the lead changes no duration."""


def toy(lead: float, **values: Any) -> tuple[Stations, Settings]:
    config = FunctionsConfig(max_lead=lead, updates=150, evaluate_every=30, **values)
    return toy_stations(config), config.settings()


def uneven_collect(weights: float, ticket: Ticket) -> float:
    """As long as its seed says: lognormal, 100 ms on average, one in a hundred over 600 ms."""
    time.sleep(0.1 * float(np.random.default_rng(ticket.seed).lognormal(-0.5, 1.0)))
    return 1.0


def steady_train(weights: float, rollouts: list[float]) -> float:
    time.sleep(0.04)
    return weights


def uneven(lead: float) -> tuple[Stations, Settings]:
    config = FunctionsConfig(max_lead=lead, updates=120, evaluate_every=0, collectors=4, order="ready")
    return stations_from_functions(uneven_collect, steady_train, None, weights=0.0), config.settings()


def cartpole(lead: float) -> tuple[Stations, Settings]:
    from headway.ppo.cartpole import CartPoleConfig, stations

    config = CartPoleConfig(max_lead=lead, updates=120, target_score=None, evaluate_in_background=True)
    return stations(config), config.settings()


def colorlines(mode: str, lead: float) -> tuple[Stations, Settings]:
    from headway.ppo.colorlines.recipe import ColorLinesConfig, stations

    config = ColorLinesConfig(
        max_lead=lead, updates=80, evaluate_every=0, num_envs=16, replay_mode=mode, samples_per_insert=4.0
    )
    return stations(config), config.settings()


CASES = [
    Case("functions, 2 collectors", (2, 0), partial(toy, collectors=2)),
    Case("functions, collectors paced", (1, 4), partial(toy, collectors=2, collect_ms=30.0, pacing_s=0.045)),
    Case("functions, 4 collectors", (4, 1), partial(toy, collectors=4, collect_ms=60.0), runtime="processes"),
    Case("uneven, order=ready", (4, 12), uneven),
    Case("CartPole", (1, 0), cartpole, is_asleep=False),
    Case("Colour Lines, replay in the learner", (2, 0), partial(colorlines, "learner"), is_asleep=False),
    Case("Colour Lines, shared replay", (1, 4), partial(colorlines, "shared"), runtime="processes", is_asleep=False),
]


def made(case: Case, lead: float, folder: Path) -> Story:
    stations, settings = case.build(lead)
    run = RunFolder(folder)
    launch(stations, settings, runtime=case.runtime, folder=run)
    return read_story(run)


def errors(outcome: Outcome, seen: MeasuredRun) -> tuple[float, float]:
    rate = outcome.updates_per_s / seen.updates_per_s - 1
    return rate, (outcome.staleness_mean - seen.staleness_mean) / max(seen.staleness_mean, 0.1)


def shown(pairs: list[tuple[float, float]]) -> str:
    """The median of each, with its range where there are several."""
    texts = []
    for values in zip(*pairs, strict=True):
        text = f"{100 * statistics.median(values):+.1f}%"
        if len(values) > 1:
            text += f" ({100 * min(values):+.1f}..{100 * max(values):+.1f})"
        texts.append(f"{text:>22}")
    return " ".join(texts)


def main() -> int:
    torch.set_num_threads(1)
    repeats = 1 if "--quick" in sys.argv else 3
    widths = f"{'run':36} {'runtime':9} {'leads':>6} {'updates/s':>9} {'age':>6}"
    print(f"{widths} {'again: updates/s':>22} {'age':>22} {'other lead: updates/s':>22} {'age':>22}")
    is_good = True
    with tempfile.TemporaryDirectory() as place:
        for number, case in enumerate(CASES):
            own: list[tuple[float, float]] = []
            other: list[tuple[float, float]] = []
            for attempt in range(repeats):
                first, second = (made(case, lead, Path(place, f"{number}-{attempt}-{lead}")) for lead in case.leads)
                again = repeat(first)
                own.append((again.rate_error, again.staleness_error))
                own.append((repeat(second).rate_error, repeat(second).staleness_error))
                other.append(errors(simulate(fit(first), case.leads[1]), measure(second)))
            seen, leads = measure(first), f"{case.leads[0]:g} {case.leads[1]:g}"
            print(
                f"{case.name:36} {case.runtime:9} {leads:>6} {seen.updates_per_s:9.2f} {seen.staleness_mean:6.2f} "
                f"{shown(own)} {shown(other)}"
            )
            checked = own + (other if case.is_asleep else [])
            is_good &= all(abs(r) <= RATE_WITHIN and abs(s) <= STALENESS_WITHIN for r, s in checked)
    verdict = "yes" if is_good else "NO"
    print(f"within {RATE_WITHIN:.0%} of the throughput and {STALENESS_WITHIN:.0%} of the age: {verdict}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
