"""CartPole-v1 to a mean return of 475 over the last 100 training episodes: wall-clock time, CPU time, steps.

    make bench-peers                              once: environments for the peers
    python bench/cartpole.py [--seeds 5]          what is missing in the results file, then the table
    python bench/cartpole.py --only headway       ways whose name contains a word
    python bench/cartpole.py --table              the table of what is there

Every way in turn for every seed, each in a process of its own, so that all see the same machine. Time starts when
training does, imports excluded. Each result is appended to a file at once: an interrupted run goes on where it was.
A run that does not get there within its limit counts as unsolved.

What this shows is how fast learning is, not what overlap buys. With these settings one core keeps up with collecting,
the learner is the bottleneck or level with it, and a lead can hide collection only as far as a second core is free:
compare lead 1 with lead 0 in the table. bench/overlap.py shows overlap where there is some to have.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
TARGET, EPISODES = 475.0, 100
STARTUP_S = 120.0  # beside the limit of the training itself
ZOO = {  # what the RL zoo gives Stable-Baselines3 for CartPole-v1
    "num_envs": 8,
    "segment_steps": 32,
    "hidden": (64, 64),
    "minibatch_size": 256,
    "num_epochs": 20,
    "gamma": 0.98,
    "lam": 0.8,
    "entropy_weight": 0.0,
    "learning_rate": 1e-3,
    "final_learning_rate": 0.0,
    "clip": 0.2,
    "final_clip": 0.0,
    "updates": 391,  # of 256 steps: 100,000
    "correction": "clip",
}


class Way(NamedTuple):
    """One row of the table: a script of a peer with its environment, or ours with a lead and settings."""

    limit_s: float
    script: str = ""
    place: str = ""
    lead: float = 0
    settings: dict[str, Any] | None = None


WAYS = {
    "headway cartpole, lead 1": Way(60, lead=1, settings={}),
    "headway cartpole, lead 0": Way(60, lead=0, settings={}),
    "headway, zoo settings, lead 0": Way(120, lead=0, settings=ZOO),
    "Stable-Baselines3, zoo settings": Way(180, "sb3_ppo.py", ".bench-venv"),
    "single-file PPO, CleanRL's settings": Way(240, "single_file_ppo.py", ".bench-venv"),
    "TorchRL PPO, zoo settings": Way(240, "torchrl_ppo.py", ".bench-venv"),
    "Sample Factory APPO, its example": Way(180, "sample_factory_appo.py", ".bench-venv-sample-factory"),
    "RLlib APPO, its example": Way(180, "rllib_appo.py", ".bench-venv-rllib"),
}


def run_headway(seed: int, limit_s: float, lead: float, settings: dict[str, Any]) -> dict[str, Any]:
    """Ours, in this process, on the runtime that `headway run` uses."""
    import numpy as np
    import torch

    from headway.coordinator.coordinator import Coordinator
    from headway.ppo.cartpole import CartPoleConfig
    from headway.ppo.mlp_kernels import advantage_moments
    from headway.ppo.recipe_ppo import stations
    from headway.runs.event_log import MemoryRecorder
    from headway.runtimes.build import build_runtime

    class Watch(MemoryRecorder):
        """Ends the run at the first update whose rolling return is high enough."""

        coordinator: Coordinator
        steps = 0
        solved = 0.0

        def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
            if kind == "land":
                self.steps += fields["n"]
            # The learner's mean is over the last 100 episodes; the first 100 are far too short for the target.
            if kind == "learn" and fields["m"].get("return", 0.0) >= TARGET and not self.solved:
                self.solved = time.perf_counter()
                self.coordinator.request_stop("solved")

    torch.set_num_threads(1)
    advantage_moments(np.zeros((1, 5), np.float32), np.arange(1))  # numba imports most of itself at the first call
    config = CartPoleConfig(seed=seed, max_lead=lead, target_score=None, evaluate_every=0, wall_s=limit_s, **settings)
    runtime, watch = build_runtime("threads"), Watch()
    watch.coordinator = Coordinator(stations(config), config.settings(), runtime, recorder=watch)
    began, cpu = time.perf_counter(), time.process_time()
    runtime.run(watch.coordinator.run())
    wall = (watch.solved or time.perf_counter()) - began
    return {"solved": bool(watch.solved), "wall": wall, "cpu": time.process_time() - cpu, "steps": watch.steps}


def measure(name: str, seed: int) -> dict[str, Any]:
    """One run in a process of its own. Raises what the process said, if it failed."""
    way = WAYS[name]
    words = [sys.executable, __file__, "--one", name, str(seed)]
    if way.script:
        words = [str(_python_of(way)), str(ROOT / "bench" / "peers" / way.script), str(seed), str(way.limit_s)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=way.limit_s + STARTUP_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}, seed {seed}: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return {"way": name, "seed": seed, "limit": way.limit_s, **found}


def _python_of(way: Way) -> Path:
    return ROOT / way.place / "bin" / "python"


def is_there(way: Way) -> bool:
    """Whether `make bench-peers` got it installed."""
    return not way.script or (ROOT / way.place / ".installed").exists()


def run_missing(names: Sequence[str], seeds: int, file: Path) -> None:
    have = {(row["way"], row["seed"]) for row in read(file)}
    todo = [(name, seed) for seed in range(seeds) for name in names if (name, seed) not in have]
    if any(not WAYS[name].script for name, _ in todo):
        _compile()
    for name, seed in todo:
        if not is_there(WAYS[name]):
            continue
        try:
            row = measure(name, seed)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"FAILED: {error}", flush=True)  # not recorded: the same command tries again
            continue
        with file.open("a") as out:
            out.write(json.dumps(row) + "\n")
        print(f"{name}, seed {seed}: {row['wall']:.2f} s{'' if row['solved'] else ', unsolved'}", flush=True)


def _compile() -> None:
    """The gradient step is compiled once per machine and kept on disk: not part of any run that is measured."""
    subprocess.run([sys.executable, __file__, "--compile"], check=True)


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def table(names: Sequence[str], rows: list[dict[str, Any]]) -> str:
    lines = [
        f"CartPole-v1 to {TARGET:g} over {EPISODES} training episodes: median (min..max) of the runs that got there",
        f"{'':36} {'solved':>7} {'wall s':>24} {'CPU s':>8} {'steps':>9}",
    ]
    for name in names:
        mine = [row for row in rows if row["way"] == name]
        if not mine:
            lines.append(f"{name:36} {'not run' if is_there(WAYS[name]) else 'absent: make bench-peers says why'}")
            continue
        solved = [row for row in mine if row["solved"]]
        walls, text = [row["wall"] for row in solved], f"none in {mine[0]['limit']:g}"
        if walls:
            text = f"{statistics.median(walls):.2f} ({min(walls):.2f}..{max(walls):.2f})"
        cpu, steps = (statistics.median(row[key] for row in solved or mine) for key in ("cpu", "steps"))
        version = f"  {mine[0]['version']}" if "version" in mine[0] else ""
        lines.append(f"{name:36} {len(solved):3}/{len(mine):<3} {text:>24} {cpu:8.1f} {steps:9,.0f}{version}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", metavar="WORD", help="ways whose name contains this, in any case")
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "bench-cartpole.jsonl")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--one", nargs=2, metavar=("WAY", "SEED"), help="run one of ours here and print it as JSON")
    parser.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compile:
        run_headway(0, 60.0, 0, {"updates": 2})
        return
    if options.one:
        way = WAYS[options.one[0]]
        print(json.dumps(run_headway(int(options.one[1]), way.limit_s, way.lead, way.settings or {})))
        return
    names = [name for name in WAYS if (options.only or "").lower() in name.lower()]
    if not names:
        parser.error(f"no way contains {options.only!r}; there are {', '.join(WAYS)}")
    options.results.parent.mkdir(parents=True, exist_ok=True)
    if not options.table:
        run_missing(names, options.seeds, options.results)
    print(table(names, read(options.results)))


if __name__ == "__main__":
    main()
