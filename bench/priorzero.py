"""PriorZero on the mini world's quest: steps and seconds until an evaluation is won, with and without help.

    python bench/priorzero.py [--seeds 5] [--limit_s 300] [--priors none,frozen,learned,oracle] [--model smollm2]
    python bench/priorzero.py --judge both              who plays the evaluation that counts: world_model, prior, both
    python bench/priorzero.py --set prior_weight=0.3 num_simulations=24
    python bench/priorzero.py --priors none --set env=textworld:coin 'env_options={"level": 6}'
    python bench/priorzero.py --results FILE            a line for each run, added to that file

none: the world model alone. frozen, learned: a language model's opinion at the root, as it is or learning in a line of
its own. oracle: the next action of the shortest plan, the best help there can be. Each run is a process of its own, one
after another. Time starts with the first ticket, scoring included, imports and compilation excluded: a run of a few
updates comes first and fills the cache. A run that does not get there within the limit counts as unsolved.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from runs import keep, last_line

RESULTS = Path(__file__).parent / "results" / "priorzero.jsonl"
PRIORS = ("none", "frozen", "learned", "oracle")
SOLVED = 1.0
EVALUATION = {"evaluate_every": 10, "evaluate_in_background": False, "eval_episodes": 1, "eval_all_modes": False}


def oracle(config: Any) -> Any:
    """Knows the plan from every place."""
    from headway.testing.oracle_prior import OraclePrior
    from headway.text_games.loading import load_story
    from headway.text_games.recipe_priorzero import written_prompt

    return OraclePrior(load_story(config.env, config.env_options), written_prompt)


def run_one(prior: str, settings: dict[str, Any]) -> dict[str, Any]:
    """One training, in this process."""
    import torch

    from headway.coordinator.coordinator import Coordinator
    from headway.runs.config import read_values
    from headway.runs.event_log import MemoryRecorder
    from headway.runtimes.build import build_runtime
    from headway.text_games import recipe_priorzero as priorzero

    torch.set_num_threads(1)
    cpu = time.process_time()
    config = read_values(priorzero.CONFIG, settings)
    assert isinstance(config, priorzero.PriorZeroConfig)
    stations = priorzero.stations(config, make_prior=partial(oracle) if prior == "oracle" else None)
    runtime, recorder = build_runtime(config.runtime), MemoryRecorder()
    result = runtime.run(Coordinator(stations, config.settings(), runtime, recorder=recorder).run())
    events = recorder.events
    first = next(event["t"] for event in events if event["e"] == "open")
    reached = [event for event in events if event["e"] == "score" and (event["value"] or 0.0) >= SOLVED]
    until = reached[0]["t"] if reached else events[-1]["t"]
    return {
        "solved": bool(reached),
        "wall": until - first,
        "cpu": time.process_time() - cpu,
        "steps": sum(event["n"] for event in events if event["e"] == "land" and event["t"] <= until),
        "updates": sum(event["e"] == "learn" and not event.get("line") and event["t"] <= until for event in events),
        "prior_version": max((line.version for line in result.lines.values()), default=0),
        "asked": result.metrics.get("prior_asked", 0.0),
        "scored_actions": result.metrics.get("prior_scored_actions", 0.0),
        "last": dict(result.scores[-1].metrics) if result.scores else {},
    }


def settings_for(prior: str, arguments: argparse.Namespace, seed: int) -> dict[str, Any]:
    settings: dict[str, Any] = {"seed": seed, "wall_s": arguments.limit_s, "updates": 10_000, "target_score": SOLVED}
    settings |= {**EVALUATION, "eval_mode": arguments.judge if prior != "none" else "both"}
    settings |= {"prior": "frozen" if prior == "oracle" else prior}
    if prior in ("frozen", "learned"):
        settings |= {"model": arguments.model, "device": "cpu"}
    changes = dict(one.split("=", 1) for one in arguments.set)
    return settings | {name: yaml.safe_load(value) for name, value in changes.items()}


def row(prior: str, runs: list[dict[str, Any]]) -> str:
    solved = [one for one in runs if one["solved"]]
    if not solved:
        return f"{prior:<10}{0:>3} of {len(runs)}"
    steps, walls, cpus = ([one[name] for one in solved] for name in ("steps", "wall", "cpu"))
    spread = f"{min(steps):,}-{max(steps):,}"
    return (
        f"{prior:<10}{len(solved):>3} of {len(runs)}{statistics.median(steps):>10,.0f}{spread:>16}"
        f"{statistics.median(walls):>9.1f}{max(walls):>9.1f}{statistics.median(cpus):>9.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first_seed", type=int, default=0)
    parser.add_argument("--limit_s", type=float, default=300.0)
    parser.add_argument("--priors", default=",".join(PRIORS))
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--judge", default="world_model", choices=("world_model", "prior", "both"))
    parser.add_argument("--set", nargs="*", default=[])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--one", help="a prior and its settings as JSON: one run, in this process")
    arguments = parser.parse_args()
    if arguments.one:
        prior, settings = json.loads(arguments.one)
        print(json.dumps(run_one(prior, settings)))
        return
    found: dict[str, list[dict[str, Any]]] = {}
    for prior in arguments.priors.split(","):
        warm = {**settings_for(prior, arguments, 0), "updates": 2, "evaluate_every": 2, "wall_s": 60.0}
        for number in range(-1, arguments.seeds):
            seed = arguments.first_seed + max(0, number)
            settings = warm if number < 0 else settings_for(prior, arguments, seed)
            one = last_line([sys.executable, __file__, "--one", json.dumps([prior, settings])])
            if number < 0:
                continue
            found.setdefault(prior, []).append(one)
            told = {"judge": arguments.judge, "model": settings.get("model"), "set": arguments.set}
            keep(arguments.results, prior=prior, seed=seed, **told, **one)
            print(f"{prior} seed {seed}: {'solved' if one['solved'] else 'not solved'}, {one['steps']:,} steps, "
                  f"{one['wall']:.1f} s", file=sys.stderr)  # fmt: skip
    print(f"{'prior':<10}{'solved':>8}{'steps':>10}{'':>16}{'seconds':>9}{'most':>9}{'cpu s':>9}")
    for prior, runs in found.items():
        print(row(prior, runs))


if __name__ == "__main__":
    main()
