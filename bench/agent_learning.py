"""Do agents learn? A small model made on the spot: a short warm start by imitation, then GRPO, with and without a lead.

    python bench/agent_learning.py                          lights at leads 0, 1 and 2, five seeds each
    python bench/agent_learning.py --games frozen_lake shop --leads 1 --seeds 3
    python bench/agent_learning.py --jobs 8 --results FILE  eight runs at a time; figures are added to FILE

Every run is two commands, `headway run sft` and `headway run agent --model THAT_RUN`, one thread of torch each. Success
is measured on held-out games, sampled at temperature 1. Seconds are processor seconds of the second command, everything
included, up to its end: it stops at the first evaluation that reaches the goal. Words that are not known here go to
`headway run agent`. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import median

QUIET = ["--quiet", "--report", "false", "--tensorboard", "false"]
GAMES: dict[str, dict[str, object]] = {
    "frozen_lake": {"env_options": json.dumps({"size": 3, "holes": 2, "turns": 6})},
    "climb": {"env_options": json.dumps({"bound": 20, "first": 12})},
    "guess": {"env_options": json.dumps({"high": 7, "turns": 3})},
}
"""What a game is played with."""
WARM: dict[str, dict[str, object]] = {
    "lights": {"updates": 40},
    "frozen_lake": {"updates": 200, "expert_share": 0.7},
    "shop": {"updates": 300, "expert_share": 0.7},
    "corridor": {"updates": 250},
    "climb": {"updates": 40},
    "guess": {"updates": 200},
}
"""How it is imitated."""
WORD = {"tickets_per_batch": 8, "max_turn_tokens": 3}
"""Half a batch, and replies of one word: with room for more a policy may forget to end them."""
LEARN: dict[str, dict[str, object]] = {
    "lights": {
        "updates": 150,
        "target_score": 0.985,
        "learning_rate": 1e-3,
        "credit": "turn",
        "turn_gamma": 0.5,
        **WORD,
    },
    "frozen_lake": {"updates": 300, "target_score": 0.92},
    "shop": {"updates": 300, "target_score": 0.92},
    "corridor": {"updates": 150, "target_score": 0.985, "learning_rate": 3e-4, "credit": "gigpo", **WORD},
    "climb": {"updates": 200, "target_score": 1.58, "learning_rate": 1e-3, "credit": "turn", "turn_gamma": 0.3, **WORD},
    "guess": {"updates": 150, "target_score": 0.985, "learning_rate": 3e-4, **WORD},
}
"""How it is learned, and the mean return at which a run is over."""
GOALS = {"lights": 0.95, "frozen_lake": 0.9, "shop": 0.8, "corridor": 0.95, "climb": 0.8, "guess": 0.9}
"""Success that counts as learned."""


@dataclass(frozen=True)
class Learned:
    """One run: success before and after, and what it took."""

    game: str
    lead: float
    seed: int
    before: float
    after: float
    updates: int
    cpu_s: float
    wall_s: float
    curve: list[float]


def command(words: list[str], folder: Path) -> tuple[Path, float]:
    """Runs `headway` with these words in a process of its own; returns the run's folder and its processor seconds."""
    folder.mkdir(parents=True)
    watch = "import resource, subprocess, sys; r = subprocess.run(sys.argv[1:]); u = resource.getrusage("
    watch += "resource.RUSAGE_CHILDREN); print(u.ru_utime + u.ru_stime); sys.exit(r.returncode)"
    done = subprocess.run(
        [sys.executable, "-c", watch, sys.executable, "-m", "headway", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"headway {' '.join(words)} ended with {done.returncode}")
    return next((folder / "runs").iterdir()), float(done.stdout.split()[-1])


def options(settings: dict[str, object]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def learned(game: str, lead: float, seed: int, folder: Path, warm_up: dict[str, object], more: list[str]) -> Learned:
    folder = folder / f"{game}-{lead:g}-{seed}"
    common = {"env": game, **GAMES.get(game, {}), "seed": seed, "device": "cpu"}
    imitate = {**common, **WARM[game], **warm_up, "evaluate_every": 0}
    warm, _ = command(["run", "sft", *options(imitate), *QUIET], folder / "sft")
    settings = {**common, "model": warm, "max_lead": lead, **LEARN[game], "log_samples": 0, "log_eval_samples": 0}
    settings |= {"evaluate_every": 10, "evaluate_first": "true", "eval_games": 64, "eval_temperature": 1.0}
    began = time.perf_counter()
    run, cpu_s = command(["run", "agent", *options(settings), *more, *QUIET], folder / "agent")
    wall_s = time.perf_counter() - began
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    scores = [(event["v"], event["m"]["success"]) for event in events if event["e"] == "score"]
    curve = [round(success, 3) for _, success in scores]
    return Learned(game, lead, seed, curve[0], curve[-1], scores[-1][0], cpu_s, wall_s, curve)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="+", default=["lights"], choices=sorted(GOALS))
    parser.add_argument("--leads", type=float, nargs="+", default=[0.0, 1.0, 2.0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--warm", type=json.loads, default={}, help="other settings of the warm start, as JSON")
    parser.add_argument("--results", type=Path)
    given, more = parser.parse_known_args()
    cases = list(product(given.games, given.leads, range(given.seeds)))
    found: list[Learned] = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as pool:
        for one in pool.map(lambda c: learned(c[0], c[1], c[2], Path(folder), given.warm, more), cases):
            found.append(one)
            print(f"{one.game} lead {one.lead:g} seed {one.seed}: {one.curve} in {one.cpu_s:.0f} CPU s", flush=True)
            if given.results is not None:
                with open(given.results, "a") as file:
                    file.write(json.dumps(asdict(one)) + "\n")
    print(f"\n{'game':12} lead seeds reached {'before':>16} {'after':>16} {'CPU s':>18} {'updates':>18}")
    for game, lead in product(given.games, given.leads):
        runs = [one for one in found if (one.game, one.lead) == (game, lead)]

        def of(name: str, digits: int = 2, runs: list[Learned] = runs) -> str:
            values = [getattr(one, name) for one in runs]
            return f"{median(values):.{digits}f} ({min(values):.{digits}f}..{max(values):.{digits}f})"

        reached = sum(one.after >= GOALS[game] for one in runs)
        print(
            f"{game:12} {lead:>4g} {len(runs):>5} {reached:>7} {of('before'):>16} {of('after'):>16} "
            f"{of('cpu_s', 0):>18} {of('updates', 0):>18}"
        )


if __name__ == "__main__":
    main()
