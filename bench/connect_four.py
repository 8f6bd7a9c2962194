"""MuZero on connect-four: games won against a random player and one that looks two moves ahead, minute by minute.

    python bench/connect_four.py [--seeds 1] [--limit_s 900] [--runtime threads] [--lead 1]
    python bench/connect_four.py --plot-only          the picture from what is there (needs matplotlib)

Defaults of the recipe; each seed in a process of its own, 100 games an evaluation against each, 200 simulations a move.
Evaluations run beside the training and count with the time at which they were done. Results: one line a run in
bench/results/connect-four.jsonl, or in the file that --results names.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from runs import keep, last_line, recorded

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "connect-four.jsonl"
PICTURE = ROOT / "docs" / "pictures" / "connect-four.svg"


def run_one(settings: dict[str, Any]) -> dict[str, Any]:
    """One training, in this process."""
    result, events = recorded("muzero", {"env": "connect_four", **settings})
    first = next(event["t"] for event in events if event["e"] == "open")
    scores = [
        {"s": event["t"] - first, "version": event["v"], **event["m"]}
        for event in events
        if event["e"] == "score" and event["value"] is not None
    ]
    steps = sum(event["n"] for event in events if event["e"] == "land")
    return {**settings, "scores": scores, "updates": result.updates, "steps": steps}


def show(runs: list[dict[str, Any]]) -> None:
    print("| seed | minutes | updates | won against random | against depth 2 | lost to depth 2 |")
    print("|---|---|---|---|---|---|")
    for run in runs:
        for score in run["scores"]:
            shares = [f"{score[name]:.0%}" for name in ("won_random", "won_depth_2", "lost_depth_2")]
            print(f"| {run['seed']} | {score['s'] / 60:.1f} | {score['version']:,} | {' | '.join(shares)} |")


def draw(runs: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    for number, run in enumerate(runs):
        minutes = [score["s"] / 60 for score in run["scores"]]
        for name, colour, label in (("won_random", "#0072b2", "random"), ("won_depth_2", "#d55e00", "two moves ahead")):
            shares = [100 * score[name] for score in run["scores"]]
            axes.plot([0, *minutes], [None, *shares], "o-", color=colour, ms=3, label=None if number else label)
    axes.axhline(60, color="#888888", lw=0.8, ls=":")
    axes.set(xlabel="minutes on two cores", ylabel="games won, %", ylim=(0, 103), xlim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right", title="against")
    figure.savefig(PICTURE, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first_seed", type=int, default=0)
    parser.add_argument("--limit_s", type=float, default=900.0)
    parser.add_argument("--runtime", default="threads")
    parser.add_argument("--lead", type=int, default=1)
    parser.add_argument("--plot-only", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS, help="add the runs to this file, a line each")
    parser.add_argument("--one", default="")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(run_one(json.loads(given.one))))
        return
    if not given.plot_only:
        for seed in range(given.first_seed, given.first_seed + given.seeds):
            settings = {"wall_s": given.limit_s, "runtime": given.runtime, "max_lead": given.lead, "seed": seed}
            words = [sys.executable, __file__, "--one", json.dumps(settings)]
            found = last_line(words)
            keep(given.results, **found)
    runs = [json.loads(line) for line in given.results.read_text().splitlines()]
    show(runs)
    if given.plot_only:
        draw(runs)


if __name__ == "__main__":
    main()
