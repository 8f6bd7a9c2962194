"""What it buys PriorZero to let both learners and collection run at once, beside what it could buy.

    python bench/priorzero_overlap.py                          the mini world, a small model made on the spot
    python bench/priorzero_overlap.py textworld:coin           another game
    python bench/priorzero_overlap.py --runtimes processes --updates 400 --repeats 5 --set prior_every=2

    one by one     leads (0, 0): collect, let the prior learn, let the world model learn, and again
    at once        leads (2, 1): of the world model, of the prior

Both ways run on the same runtime and take turns, so that they meet the same noise; median (min..max) of the repeats.
The first three columns are what each part was busy with, one by one. `possible` is what the second way could gain at
best: the first one's wall clock over the longest part, or over all parts shared by the cores where that is more.
`simulated` is what the simulator says beforehand, which knows nothing of cores. One thread of torch a role. Nothing is
asserted.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before anything imports torch; processes inherit it

import argparse
import statistics
from dataclasses import dataclass, replace
from typing import Any

import yaml
from figures import spread
from runs import recorded

from headway.coordinator.roles import LEARNER
from headway.coordinator.run_result import RunResult
from headway.tools.report.recorded_run_run_history import tell
from headway.tools.report.what_if_fitting import fit
from headway.tools.simulate.simulation import simulate

PARTS = {"collect": ("collector", "collect"), "learn": (LEARNER, "learn"), "prior": (f"prior/{LEARNER}", "learn")}
ONE_BY_ONE = {"max_lead": 0, "prior_max_lead": 0}
AT_ONCE = {"max_lead": 2, "prior_max_lead": 1}
ALIKE = {"evaluate_every": 0, "seed": 1, "device": "cpu", "prior_every": 1, "prior_max_states": 16}
"""Every ticket is for both learners, so that neither has next to nothing to do."""


@dataclass(frozen=True)
class Pair:
    """One run each way, one after the other."""

    serial: RunResult
    parallel: RunResult
    simulated: float

    @property
    def parts(self) -> dict[str, float]:
        return {name: self.serial.time_spent.total(*which) for name, which in PARTS.items()}

    @property
    def gain(self) -> float:
        return self.serial.wall_s / self.parallel.wall_s

    @property
    def possible(self) -> float:
        parts = self.parts.values()
        return self.serial.wall_s / max(*parts, sum(parts) / (os.cpu_count() or 1))


def measured(settings: dict[str, Any]) -> Pair:
    serial, events = recorded("priorzero", settings | ONE_BY_ONE)
    parallel, _ = recorded("priorzero", settings | AT_ONCE)
    workshop = fit(tell(events))
    lines = {
        name: replace(line, settings=replace(line.settings, max_lead=AT_ONCE["prior_max_lead"]))
        for name, line in workshop.lines.items()
    }
    outcome = simulate(replace(workshop, lines=lines), AT_ONCE["max_lead"])
    return Pair(serial, parallel, outcome.updates_per_s * serial.wall_s / serial.updates)


def row(runtime: str, pairs: list[Pair]) -> str:
    parts = [f"{statistics.median(pair.parts[name] for pair in pairs):8.1f}" for name in PARTS]
    cells = [
        spread([pair.serial.wall_s for pair in pairs], 1),
        spread([pair.parallel.wall_s for pair in pairs], 1),
        spread([pair.gain for pair in pairs], 2),
        spread([pair.possible for pair in pairs], 2),
    ]
    simulated = statistics.median(pair.simulated for pair in pairs)
    return f"{runtime:10}" + "".join(parts) + "".join(f"{cell:>20}" for cell in cells) + f"{simulated:11.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("game", nargs="?", default="mini_world")
    parser.add_argument("--model", default="made")
    parser.add_argument("--runtimes", default="threads,processes")
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--set", nargs="*", default=[])
    options = parser.parse_args()
    changes = {name: yaml.safe_load(value) for name, value in (one.split("=", 1) for one in options.set)}
    settings = {**ALIKE, "env": options.game, "model": options.model, "updates": options.updates, **changes}
    print(f"{options.game}, model {options.model}, {options.updates} updates a run, {options.repeats} repeats, "
          f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; seconds")  # fmt: skip
    ways = ("one by one", "at once", "gain", "possible")
    print(f"{'runtime':10}" + "".join(f"{name:>8}" for name in PARTS) + "".join(f"{way:>20}" for way in ways)
          + f"{'simulated':>11}")  # fmt: skip
    for runtime in options.runtimes.split(","):
        there = {**settings, "runtime": runtime}
        recorded("priorzero", {**there, **AT_ONCE, "updates": 2})  # compile, and warm the caches
        print(row(runtime, [measured(there) for _ in range(options.repeats)]), flush=True)


if __name__ == "__main__":
    main()
