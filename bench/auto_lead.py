"""The auto lead against the best fixed lead: eight simulated workloads, eight others, two real ones.

    python bench/auto_lead.py [simulated | others | real] [UPDATES]

The best fixed lead is the smallest within one percent of the best throughput, among those from 0 to 64, the largest
that auto may choose (where staleness hurts: among those that keep the effective sample size on target). Auto starts
from 1 each time, so searching is part of its figures. All runs are free, as auto is. It should be within 5 % of the
best, with data no older (a twentieth of a version is allowed for). `as fresh` compares it with the fastest fixed lead
whose data are no older than its own. The `others` are simulated with two seeds that nobody looked at when the rule was
made; of the last two not even the shapes.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import headway
from headway.core.types import Ticket
from headway.tools.simulate.simulation import Outcome, Workshop, compare, simulate
from headway.tools.simulate.workloads import Constant, Exponential, Lognormal, Pareto

LEADS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
REAL_LEADS = (0, 1, 2, 3, 4, "auto")
TIE = 0.01
WORKLOADS: dict[str, Workshop] = {
    "steady, learner slower": Workshop(collect=Constant(0.5), learn=Constant(1.0)),
    "uneven, even match": Workshop(collect=Lognormal(0.9, 0.5), learn=Constant(1.0)),
    "collection slower": Workshop(collect=Lognormal(2.0, 0.5), learn=Constant(1.0)),
    "8 collectors, heavy tail": Workshop(
        collect=Pareto(6.0, 2.5), learn=Constant(1.0), collectors=8, tickets_per_batch=1
    ),
    "32 collectors, batches of 16": Workshop(
        collect=Lognormal(1.0, 1.0), learn=Constant(0.6), collectors=32, tickets_per_batch=16
    ),
    "first come, heavy tail": Workshop(
        collect=Pareto(3.0, 1.8), learn=Constant(1.0), collectors=16, tickets_per_batch=4, order="ready"
    ),
    "uneven updates, pauses to evaluate": Workshop(
        collect=Exponential(1.6), learn=Exponential(1.0), evaluate=Constant(5.0), evaluate_every=20, collectors=2
    ),
    "staleness hurts": Workshop(
        collect=Lognormal(3.6, 0.8), learn=Constant(1.0), collectors=4, decay=0.1, target_effective_sample_size=0.7
    ),
}


OTHERS: dict[str, Workshop] = {
    "even match, 2 collectors": Workshop(collect=Lognormal(1.9, 0.8), learn=Constant(1.0), collectors=2),
    "both sides uneven": Workshop(collect=Lognormal(3.5, 1.2), learn=Lognormal(1.0, 0.6), collectors=4),
    "16 collectors, heavier tail": Workshop(collect=Pareto(10.0, 2.2), learn=Constant(1.0), collectors=16),
    "24 collectors, batches of 8": Workshop(
        collect=Exponential(4.0), learn=Constant(2.0), collectors=24, tickets_per_batch=8
    ),
    "window of 8, very uneven": Workshop(
        collect=Lognormal(6.0, 1.5), learn=Constant(1.0), collectors=8, order="window(8)"
    ),
    "collection slower, 4 collectors": Workshop(collect=Lognormal(6.0, 1.0), learn=Constant(1.0), collectors=4),
    "6 collectors, a version every 2 updates": Workshop(
        collect=Exponential(5.0), learn=Lognormal(1.0, 0.3), collectors=6, publish_every=2
    ),
    "first come, 12 collectors, pairs": Workshop(
        collect=Lognormal(5.0, 2.0), learn=Constant(1.0), collectors=12, tickets_per_batch=2, order="ready"
    ),
}


def is_fresh_enough(workshop: Workshop, outcome: Outcome) -> bool:
    """Does the effective sample size stay on target at this mean age?"""
    return math.exp(-workshop.decay * outcome.staleness_mean) >= workshop.target_effective_sample_size


def others(updates: int) -> Iterator[list[str]]:
    for seed in (21, 22):
        yield from simulated(updates, {f"{n}, seed {seed}": replace(w, seed=seed) for n, w in OTHERS.items()})


def simulated(updates: int, workloads: Mapping[str, Workshop] = WORKLOADS) -> Iterator[list[str]]:
    for name, workshop in workloads.items():
        workshop = replace(workshop, dispatch="free", updates=updates)
        fixed = [outcome for outcome in compare(workshop, LEADS) if is_fresh_enough(workshop, outcome)]
        top = max(outcome.updates_per_s for outcome in fixed)
        best = min((o for o in fixed if o.updates_per_s >= (1 - TIE) * top), key=lambda outcome: outcome.lead)
        auto = simulate(replace(workshop, dispatch=None), "auto")
        seen = {outcome.lead: (outcome.updates_per_s, outcome.staleness_mean) for outcome in fixed}
        yield row(name, best.lead, seen, auto.updates_per_s, auto.staleness_mean)


def row(name: str, lead: float, fixed: Mapping[float, Sequence[float]], auto: float, auto_age: float) -> list[str]:
    best, best_age = fixed[lead]
    as_fresh = max(speed for speed, age in fixed.values() if age <= auto_age + 0.05)
    is_good = auto >= 0.95 * best and auto_age <= best_age + 0.05
    verdict = "ok" if is_good else "MISSED"
    return [
        name,
        f"{lead:g}",
        f"{best:.4g}",
        f"{auto:.4g}",
        f"{auto / best:.3f}",
        f"{best_age:.2f}",
        f"{auto_age:.2f}",
        f"{auto / as_fresh:.3f}",
        verdict,
    ]


# -- real runs --------------------------------------------------------------------------------------


def collect(weights: float, ticket: Ticket) -> float:
    time.sleep(0.004 * (1 + (ticket.seed % 5) / 2))  # 4 to 12 ms
    return 1.0


def train(weights: float, rollouts: list[float]) -> float:
    time.sleep(0.010)
    return weights + 1


def run_functions(max_lead: float | Literal["auto"], updates: int) -> tuple[float, float]:
    result = headway.run(
        collect,
        train,
        weights=0.0,
        updates=updates,
        max_lead=max_lead,
        collectors=1,
        dispatch="free",
        runtime="threads",
    )
    return result.updates / result.wall_s, result.ledger.mean_staleness


def run_cartpole(max_lead: float | Literal["auto"], updates: int) -> tuple[float, float]:
    from headway.runs.config import read_values
    from headway.runs.folder import RunFolder
    from headway.runs.launch_session import launch
    from headway.runs.recipes_package import load_recipe

    recipe = load_recipe("cartpole")
    values: dict[str, Any] = {"max_lead": max_lead, "updates": updates, "steps": None, "target_score": None}
    values |= {"evaluate_every": 0, "dispatch": None if max_lead == "auto" else "free"}
    config = read_values(recipe.config, values)
    with tempfile.TemporaryDirectory() as path:
        result = launch(recipe.stations(config), config.settings(), runtime="processes", folder=RunFolder(Path(path)))
    return result.updates / result.wall_s, result.ledger.mean_staleness


def real(updates: int, repeats: int = 7) -> Iterator[list[str]]:
    cases: Sequence[tuple[str, Callable[[Any, int], tuple[float, float]]]] = (
        ("functions with sleeps, threads", run_functions),
        ("CartPole, processes", run_cartpole),
    )
    for name, run in cases:
        runs: dict[Any, list[tuple[float, float]]] = {}
        for repeat in range(repeats):  # in turns, each time another one first: the machine may change meanwhile
            first = repeat % len(REAL_LEADS)
            for lead in REAL_LEADS[first:] + REAL_LEADS[:first]:
                runs.setdefault(lead, []).append(run(lead, updates))
        seen = {lead: [statistics.median(values) for values in zip(*of, strict=True)] for lead, of in runs.items()}
        auto, auto_age = seen.pop("auto")
        top = max(speed for speed, _ in seen.values())
        lead = min(lead for lead, (speed, _) in seen.items() if speed >= (1 - TIE) * top)
        yield row(name, lead, seen, auto, auto_age)


def main() -> None:
    words = sys.argv[1:]
    parts = [word for word in words if word in ("simulated", "others", "real")] or ["simulated", "others", "real"]
    counts = [int(word) for word in words if word.isdigit()]
    line = "{:40} {:>5} {:>10} {:>8} {:>10} {:>10} {:>6} {:>9} {}"
    print(line.format("workload", "best", "updates/s", "auto", "auto/best", "staleness", "auto", "as fresh", ""))
    for part in parts:
        made = {"simulated": simulated, "others": others, "real": real}[part]
        for cells in made(counts[0] if counts else 300 if part == "real" else 1500):
            print(line.format(*cells), flush=True)


if __name__ == "__main__":
    main()
