"""MuZero on CartPole-v1 to an evaluation mean of 475: environment steps, updates and wall-clock time, seed by seed.

    python bench/muzero.py [--seeds 5] [--limit_s 300] [--lead 1] [--reanalyze 0]
    python bench/muzero.py --recipe unizero             UniZero instead
    python bench/muzero.py --peer 2                     LightZero beside, its own configuration, so many seeds
    python bench/muzero.py --leads 0,1,4,auto           the same recipe at several leads, with the overlap efficiency
    python bench/muzero.py --search                     what one simulation of the network costs, kernels and torch

Each run in a process of its own. Time starts with the first ticket, imports and compilation excluded: a run of a few
updates comes first and fills the cache. A run that does not get there within the limit counts as unsolved.

Overlap efficiency: how much of the shorter of the two sides (collecting, learning) was hidden behind the longer one.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PEER = ROOT / ".bench-venv-lightzero" / "bin" / "python"
TARGET = 475.0
WARM = {"updates": 3, "evaluate_every": 3, "eval_episodes": 2, "eval_simulations": 2, "replay_min_size": 300}


def run_one(settings: dict[str, Any]) -> dict[str, Any]:
    """One training, in this process."""
    import torch

    from headway.coordinate.coordinator import Coordinator
    from headway.launching import build_runtime
    from headway.observe.recorder import MemoryRecorder
    from headway.recipes.config import read_values

    torch.set_num_threads(1)
    recipe = importlib.import_module(f"headway.recipes.{settings.pop('recipe')}")
    config = read_values(recipe.CONFIG, settings)
    runtime, recorder = build_runtime(config.runtime), MemoryRecorder()
    cpu = time.process_time()
    result = runtime.run(Coordinator(recipe.stations(config), config.settings(), runtime, recorder=recorder).run())
    first = next(event["t"] for event in recorder.events if event["e"] == "open")
    reached = [event for event in recorder.events if event["e"] == "score" and (event["value"] or 0.0) >= TARGET]
    until = reached[0]["t"] if reached else recorder.events[-1]["t"]
    spent = result.time_spent
    collecting, learning = spent.total("collector", "collect"), spent.total("learner", "learn")
    hidden = (collecting + learning - (recorder.events[-1]["t"] - first)) / max(min(collecting, learning), 1e-9)
    return {
        "solved": bool(reached),
        "wall": until - first,
        "cpu": time.process_time() - cpu,
        "steps": sum(event["n"] for event in recorder.events if event["e"] == "land" and event["t"] <= until),
        "updates": sum(event["e"] == "learn" and event["t"] <= until for event in recorder.events),
        "best": max((score.value or 0.0 for score in result.scores), default=0.0),
        "overlap": max(0.0, min(1.0, hidden)),
    }


def in_a_process(settings: dict[str, Any]) -> dict[str, Any]:
    words = [sys.executable, __file__, "--one", json.dumps(settings)]
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise SystemExit(answer.stderr[-2000:])
    result: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return result


def peer(limit_s: float, seed: int) -> dict[str, Any]:
    """LightZero for as long."""
    words = [str(PEER), str(ROOT / "bench" / "peers" / "lightzero_muzero.py"), str(limit_s), str(seed)]
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise SystemExit(answer.stderr[-2000:])
    found = json.loads(answer.stdout.splitlines()[-1])
    reached = [one for one in found["scores"] if one["score"] >= TARGET]
    until = reached[0] if reached else found
    best = max((one["score"] for one in found["scores"]), default=0.0)
    counts = {"wall": until["seconds"], "steps": until["steps"], "updates": until["updates"]}
    return {"solved": bool(reached), "best": best, "overlap": 0.0, **counts}


def table(title: str, rows: list[dict[str, Any]]) -> None:
    solved = [row for row in rows if row["solved"]]
    line = f"| {title} | {len(solved)} of {len(rows)} |"
    if solved:
        walls = sorted(row["wall"] for row in solved)
        line += f" {statistics.median(walls):.1f} ({walls[0]:.1f}..{walls[-1]:.1f}) |"
        line += f" {statistics.median(row['steps'] for row in solved):,.0f} |"
        line += f" {statistics.median(row['updates'] for row in solved):,.0f} |"
        line += f" {statistics.median(row['overlap'] for row in solved):.2f} |"
    else:
        line += f" best {max(row['best'] for row in rows):.0f} in {max(row['wall'] for row in rows):.0f} |"
        line += f" {statistics.median(row['steps'] for row in rows):,.0f} |"
        line += f" {statistics.median(row['updates'] for row in rows):,.0f} | |"
    print(line, flush=True)


def search_cost() -> None:
    """Microseconds for a simulation's network call, at several numbers of roots."""
    import numpy as np
    import torch

    from headway.learn.muzero.inference import TorchModel, VectorModel
    from headway.learn.muzero.network import Architecture, VectorNetwork

    torch.set_num_threads(1)
    network = VectorNetwork(Architecture(observation=(4,), num_actions=2), seed=0)
    print("| roots | kernels, us | torch, us |\n|---|---|---|")
    for roots in (8, 64, 256):
        obs = np.zeros((roots, 4), np.float32)
        parents, actions = np.zeros(roots, np.int32), np.zeros(roots, np.int32)
        cells = []
        for model in (VectorModel(network), TorchModel(network)):
            model.begin(obs, 26)
            model.expand(0, parents, actions)
            times = []
            for _ in range(15):
                began = time.perf_counter()
                for _ in range(20):
                    model.expand(0, parents, actions)
                times.append((time.perf_counter() - began) / 20 * 1e6)
            times.sort()
            cells.append(f"{statistics.median(times):.0f} ({times[0]:.0f}..{times[-1]:.0f})")
        print(f"| {roots} | {cells[0]} | {cells[1]} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--limit_s", type=float, default=300.0)
    parser.add_argument("--lead", default="1")
    parser.add_argument("--leads", default="")
    parser.add_argument("--reanalyze", type=float, default=0.0)
    parser.add_argument("--runtime", default="threads")
    parser.add_argument("--recipe", default="muzero", choices=["muzero", "unizero"])
    parser.add_argument("--peer", type=int, default=0, help="seeds of LightZero (make bench-peers)")
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--one", default="")
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(run_one(json.loads(chosen.one))))
        return
    if chosen.search:
        search_cost()
        return
    if chosen.peer and not PEER.exists():
        raise SystemExit("LightZero is not there: make bench-peers")
    in_a_process({**WARM, "recipe": chosen.recipe})
    print("| | solved | seconds, median (least..most) | steps | updates | overlap |\n|---|---|---|---|---|---|")
    for lead in chosen.leads.split(",") if chosen.leads else [chosen.lead]:
        settings: dict[str, Any] = {"target_score": TARGET, "wall_s": chosen.limit_s, "runtime": chosen.runtime}
        settings["max_lead"] = lead if lead == "auto" else float(lead)
        if chosen.reanalyze:
            settings |= {"reanalyze_ratio": chosen.reanalyze, "replay_mode": "shared", "dispatch": "free"}
        rows = []
        for seed in range(chosen.seeds):
            rows.append(in_a_process({**settings, "recipe": chosen.recipe, "seed": seed}))
            print(f"{chosen.recipe}, lead {lead}, seed {seed}: {rows[-1]}", file=sys.stderr, flush=True)
        reanalyzed = f", reanalyze {chosen.reanalyze:g}" if chosen.reanalyze else ""
        table(f"{chosen.recipe}, lead {lead}{reanalyzed}", rows)
    if chosen.peer:
        table("LightZero, MuZero", [peer(chosen.limit_s, seed) for seed in range(chosen.peer)])


if __name__ == "__main__":
    main()
