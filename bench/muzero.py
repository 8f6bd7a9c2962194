"""MuZero on CartPole-v1 to an evaluation mean of 475: environment steps, updates and wall-clock time, seed by seed.

    python bench/muzero.py [--seeds 5] [--limit_s 300] [--lead 1] [--reanalyze 0]
    python bench/muzero.py --recipe unizero             UniZero instead
    python bench/muzero.py --peer 2                     LightZero beside, its own configuration, so many seeds
    python bench/muzero.py --leads 0,1,4,auto           the same recipe at several leads, with the overlap efficiency
    python bench/muzero.py --updates 1000               so many updates instead of a target, and the return after them
    python bench/muzero.py --jobs 8                     so many runs at once, two cores for each
    python bench/muzero.py --results FILE               a line for each run, added to that file
    python bench/muzero.py --search                     what one simulation of the network costs, kernels and torch

Each run in a process of its own. Time starts with the first ticket, imports and compilation excluded: a run of a few
updates comes first and fills the cache. A run that does not get there within the limit counts as unsolved.

Overlap efficiency: how much of the shorter of the two sides (collecting, learning) was hidden behind the longer one.
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from figures import spread
from runs import keep, last_line, recorded

ROOT = Path(__file__).parents[1]
PEER = ROOT / ".bench-venv-lightzero" / "bin" / "python"
TARGET = 475.0
WARM = {"updates": 3, "evaluate_every": 3, "eval_episodes": 2, "eval_simulations": 2, "replay_min_size": 300}


def run_one(settings: dict[str, Any]) -> dict[str, Any]:
    """One training, in this process."""
    cpu = time.process_time()
    result, events = recorded(settings.pop("recipe"), settings)
    first = next(event["t"] for event in events if event["e"] == "open")
    reached = [event for event in events if event["e"] == "score" and (event["value"] or 0.0) >= TARGET]
    until = reached[0]["t"] if reached else events[-1]["t"]
    spent = result.time_spent
    collecting, learning = spent.total("collector", "collect"), spent.total("learner", "learn")
    hidden = (collecting + learning - (events[-1]["t"] - first)) / max(min(collecting, learning), 1e-9)
    return {
        "solved": bool(reached),
        "wall": until - first,
        "run_s": events[-1]["t"] - first,
        "cpu": time.process_time() - cpu,
        "steps": sum(event["n"] for event in events if event["e"] == "land" and event["t"] <= until),
        "updates": sum(event["e"] == "learn" and event["t"] <= until for event in events),
        "best": max((score.value or 0.0 for score in result.scores), default=0.0),
        "last": result.scores[-1].value if result.scores else 0.0,
        "staleness": result.ledger.mean_staleness,
        "overlap": max(0.0, min(1.0, hidden)),
    }


def in_a_process(settings: dict[str, Any], place: int | None = None) -> dict[str, Any]:
    """One training in a process of its own; with a place, on two cores of its own."""
    words = [sys.executable, __file__, "--one", json.dumps(settings)]
    if place is not None:
        words = ["taskset", "-c", f"{2 * place},{2 * place + 1}", *words]
    return last_line(words)


def in_processes(runs: list[dict[str, Any]], jobs: int) -> list[dict[str, Any]]:
    """All of them, so many at once."""
    if jobs == 1:
        return [in_a_process(settings) for settings in runs]
    places: queue.SimpleQueue[int] = queue.SimpleQueue()
    for place in range(jobs):
        places.put(place)

    def one(settings: dict[str, Any]) -> dict[str, Any]:
        place = places.get()
        try:
            return in_a_process(settings, place)
        finally:
            places.put(place)

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, runs))


def peer(limit_s: float, seed: int) -> dict[str, Any]:
    """LightZero for as long."""
    words = [str(PEER), str(ROOT / "bench" / "peers" / "lightzero_muzero.py"), str(limit_s), str(seed)]
    found = last_line(words)
    reached = [one for one in found["scores"] if one["score"] >= TARGET]
    until = reached[0] if reached else found
    best = max((one["score"] for one in found["scores"]), default=0.0)
    counts = {"wall": until["seconds"], "steps": until["steps"], "updates": until["updates"]}
    last = found["scores"][-1]["score"] if found["scores"] else 0.0
    nothing = {"overlap": 0.0, "staleness": 0.0, "run_s": found["seconds"], "last": last}
    return {"solved": bool(reached), "best": best, **nothing, **counts}


TITLES = """\
| | solved | seconds to it | last return | seconds in all | steps | updates | age | overlap |
|---|---|---|---|---|---|---|---|---|"""


def table(title: str, rows: list[dict[str, Any]]) -> None:
    """Medians with the least and the most; of the runs that got there if any did."""
    solved = [row for row in rows if row["solved"]]
    shown = solved or rows
    cells = [title, f"{len(solved)} of {len(rows)}", spread([row["wall"] for row in solved], 1)]
    cells += [spread([row["last"] for row in rows], 0), spread([row["run_s"] for row in rows], 1)]
    cells += [f"{statistics.median(row[name] for row in shown):,.0f}" for name in ("steps", "updates")]
    cells += [f"{statistics.median(row[name] for row in shown):.2f}" for name in ("staleness", "overlap")]
    print(f"| {' | '.join(cells)} |", flush=True)


def search_cost() -> None:
    """Microseconds for a simulation's network call, at several numbers of roots."""
    import numpy as np
    import torch

    from headway.zero.muzero_inference import TorchModel, VectorModel
    from headway.zero.muzero_network import MuZeroArchitecture, VectorNetwork

    torch.set_num_threads(1)
    network = VectorNetwork(MuZeroArchitecture(observation=(4,), num_actions=2), seed=0)
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
    parser.add_argument("--shared", action="store_true", help="replay in a role of its own, as reanalysis has it")
    parser.add_argument("--updates", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--runtime", default="threads")
    parser.add_argument("--recipe", default="muzero", choices=["muzero", "unizero"])
    parser.add_argument("--peer", type=int, default=0, help="seeds of LightZero (make bench-peers)")
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--results", type=Path, help="add the figures to this file, a line each")
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
    leads = chosen.leads.split(",") if chosen.leads else [chosen.lead]
    settings: dict[str, Any] = {"recipe": chosen.recipe, "wall_s": chosen.limit_s, "runtime": chosen.runtime}
    settings |= {"updates": chosen.updates} if chosen.updates else {"target_score": TARGET}
    if chosen.shared or chosen.reanalyze:
        settings |= {"reanalyze_ratio": chosen.reanalyze, "replay_mode": "shared", "dispatch": "free"}
    runs = [
        settings | {"max_lead": lead if lead == "auto" else float(lead), "seed": seed}
        for seed in range(chosen.seeds)  # in turns, so that whatever else goes on meets all leads
        for lead in leads
    ]
    rows = in_processes(runs, chosen.jobs)
    for run, row in zip(runs, rows, strict=True):
        print(f"{chosen.recipe}, lead {run['max_lead']}, seed {run['seed']}: {row}", file=sys.stderr, flush=True)
        keep(chosen.results, **(run | row))
    print(TITLES)
    named = f", reanalyze {chosen.reanalyze:g}" if chosen.shared or chosen.reanalyze else ""
    for number, lead in enumerate(leads):
        table(f"{chosen.recipe}, lead {lead}{named}", rows[number :: len(leads)])
    if chosen.peer:
        theirs = [peer(chosen.limit_s, seed) for seed in range(chosen.peer)]
        for seed, row in enumerate(theirs):
            keep(chosen.results, recipe="LightZero, MuZero", wall_s=chosen.limit_s, seed=seed, **row)
        table("LightZero, MuZero", theirs)


if __name__ == "__main__":
    main()
