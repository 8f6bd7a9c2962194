"""Does a language model learn at every lead, and what does the overlap buy?

    python bench/llm_learning.py                       two tasks, leads 0, 1, 2, 4, three seeds
    python bench/llm_learning.py --tasks larger_than --leads 0 1 --seeds 1
    python bench/llm_learning.py --jobs 8              on 16 cores: eight runs at a time, two cores each
    python bench/llm_learning.py --plot-only           pictures and table from what is there

Every run is the recipe `grpo` on the runtime `threads` with the default pretrained model, in a process of its own that
may use two cores: engine and trainer compute with one thread each. All runs of a task have the same settings, prompts,
replies and updates; they differ in lead and seed. With lead 0 one core waits for the other, so a lead halves
the time at best: what it could give is (collecting + training) / max(collecting, training), by the seconds of lead 0.

Each finished run is appended to the results at once; a study that was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LEADS = (0, 1, 2, 4)
TASKS: dict[str, dict[str, Any]] = {
    "larger_than": {"task": "larger_than", "updates": 30, "max_tokens": 8, "evaluate_every": 5},
    "arithmetic": {
        "task": "arithmetic",
        "task_options": {"level": 1},
        "updates": 40,
        "max_tokens": 8,
        "evaluate_every": 10,
    },
}
SHARED = {
    "evaluate_first": True,
    "group_size": 8,
    "tickets_per_batch": 8,
    "eval_prompts": 100,
    "learning_rate": 1e-5,
    "correction": "token_is",
}


# -- one run: in a process of its own ----------------------------------------------------------------


def run_cell(task: str, lead: float, seed: int, options: dict[str, Any]) -> dict[str, Any]:
    """Train once; a line of the results."""
    from headway.coordinator.coordinator import Coordinator
    from headway.llm.grpo import GRPOConfig, stations
    from headway.runs.event_log import MemoryRecorder
    from headway.runtimes.threads import Threads

    config = GRPOConfig(**{**SHARED, **TASKS[task], **options}, max_lead=lead, seed=seed)
    runtime, recorder = Threads(), MemoryRecorder()
    runtime.run(Coordinator(stations(config), config.settings(), runtime, recorder=recorder).run())
    learned = [event for event in recorder.events if event["e"] == "learn"]
    scores = [(event["v"], event["value"]) for event in recorder.events if event["e"] == "score"]
    return {
        "task": task,
        "lead": lead,
        "seed": seed,
        "options": options,
        "scores": scores,
        "rewards": [round(event["m"]["reward"], 4) for event in learned],
        "staleness": [event["m"]["token_staleness"] for event in learned],
        "ess": statistics.fmean(event["m"]["ess"] for event in learned),
        "mismatch": max(event["m"].get("mismatch_mean", 0.0) for event in learned),
        "reply_tokens": statistics.fmean(event["m"]["reply_tokens"] for event in learned),
        **seconds_of(recorder.events),
    }


def seconds_of(events: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Where the time went, from the first ticket to the last update; blocking evaluations are taken out."""
    begin = min(event["t"] for event in events if event["e"] == "open")
    end = max(event["t"] for event in events if event["e"] == "learn")
    asked = {event["v"]: event["t"] for event in events if event["e"] == "evaluate"}
    scored = [(asked[event["v"]], event["t"]) for event in events if event["e"] == "score"]
    evaluating = sum(stop - start for start, stop in scored if begin <= start and stop <= end)
    started: dict[int, float] = {}
    flights = []
    for event in events:
        if event["e"] == "start":
            started[event["k"]] = event["t"]
        elif event["e"] == "land":
            flights.append((started[event["k"]], event["t"]))
    return {
        "wall_s": round(end - begin - evaluating, 2),
        "learn_s": round(sum(event["d"] for event in events if event["e"] == "learn"), 2),
        "collect_s": round(covered(flights), 2),
        "evaluate_s": round(evaluating, 2),
    }


def covered(intervals: list[tuple[float, float]]) -> float:
    """Seconds in which at least one of them runs."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


# -- all runs ---------------------------------------------------------------------------------------


def run_all(
    cells: Sequence[tuple[str, float, int]], results: Path, jobs: int, cores: int, options: dict[str, Any]
) -> None:
    """Run what is not there yet, each in its own process on its own cores."""
    there = {(line["task"], line["lead"], line["seed"], json.dumps(line["options"])) for line in read_lines(results)}
    left = [cell for cell in cells if (*cell, json.dumps(options)) not in there]
    print(f"{len(cells) - len(left)} of {len(cells)} runs are in {results}; {len(left)} to do, {jobs} at a time")
    results.parent.mkdir(parents=True, exist_ok=True)
    every = sorted(os.sched_getaffinity(0))
    places = [every[i * cores : (i + 1) * cores] for i in range(jobs)]
    if any(len(place) < cores for place in places):
        raise SystemExit(f"{jobs} runs of {cores} cores need {jobs * cores} cores, there are {len(every)}")
    under_way: dict[int, tuple[subprocess.Popen[str], tuple[str, float, int], float]] = {}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    while left or under_way:
        for number, place in enumerate(places):
            if number not in under_way and left:
                cell = left.pop(0)
                command = [sys.executable, __file__, "--one", json.dumps([*cell, options])]
                command = ["taskset", "-c", ",".join(map(str, place)), *command]
                process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
                under_way[number] = process, cell, time.monotonic()
        for number, (process, cell, began) in list(under_way.items()):
            if process.poll() is None:
                continue
            assert process.stdout is not None
            output = process.stdout.read()
            del under_way[number]
            if process.returncode:
                print(f"{cell}: FAILED with {process.returncode}", flush=True)
                continue
            line = output.strip().splitlines()[-1]
            with open(results, "a") as file:
                file.write(line + "\n")
            last = json.loads(line)
            print(
                f"{cell}: {last['scores'][0][1]:.2f} -> {last['scores'][-1][1]:.2f}, {last['wall_s']:.0f} s of training"
                f", {time.monotonic() - began:.0f} s in all",
                flush=True,
            )
        time.sleep(0.2)


def read_lines(results: Path) -> list[dict[str, Any]]:
    if not results.exists():
        return []
    text = results.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


# -- what is shown ------------------------------------------------------------------------------------


def print_table(lines: Sequence[dict[str, Any]]) -> None:
    header = (
        f"{'task':<12} {'lead':>4} {'seeds':>5}  {'before':>6} {'after (worst..best)':>20} {'staleness':>9} {'ESS':>6}"
    )
    print(header + f" {'seconds':>16} {'speed-up':>8} {'possible':>8}")
    for task in TASKS:
        here = [line for line in lines if line["task"] == task]
        base = {line["seed"]: line for line in here if line["lead"] == 0}
        for lead in sorted({line["lead"] for line in here}):
            some = [line for line in here if line["lead"] == lead]
            after = [line["scores"][-1][1] for line in some]
            walls = [line["wall_s"] for line in some]
            pairs = [(base[line["seed"]], line) for line in some if line["seed"] in base]
            gained = [zero["wall_s"] / line["wall_s"] for zero, line in pairs]
            possible = [
                (zero["collect_s"] + zero["learn_s"]) / max(zero["collect_s"], zero["learn_s"]) for zero, _ in pairs
            ]
            before = statistics.fmean(line["scores"][0][1] for line in some)
            ages = statistics.fmean(statistics.fmean(line["staleness"]) for line in some)
            print(
                f"{task:<12} {lead:>4g} {len(some):>5}  {before:>6.2f} "
                f"{f'{statistics.fmean(after):.2f} ({min(after):.2f}..{max(after):.2f})':>20} {ages:>9.2f} "
                f"{statistics.fmean(line['ess'] for line in some):>6.3f} "
                f"{f'{statistics.fmean(walls):.0f} ({min(walls):.0f}..{max(walls):.0f})':>16} "
                f"{statistics.fmean(gained) if gained else float('nan'):>8.2f} "
                f"{statistics.fmean(possible) if possible else float('nan'):>8.2f}"
            )


COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7")


def draw(lines: Sequence[dict[str, Any]], folder: Path) -> None:
    """Held-out score by updates and by seconds, one picture a task: line, mean of the seeds; band, worst to best."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    for task in TASKS:
        here = [line for line in lines if line["task"] == task]
        if not here:
            continue
        figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
        for lead, color in zip(sorted({line["lead"] for line in here}), COLORS, strict=False):
            some = [line for line in here if line["lead"] == lead]
            versions = [version for version, _ in some[0]["scores"]]
            curves = [[value for _, value in line["scores"]] for line in some]
            means = [statistics.fmean(values) for values in zip(*curves, strict=True)]
            low, high = ([limit(values) for values in zip(*curves, strict=True)] for limit in (min, max))
            wall = statistics.fmean(line["wall_s"] for line in some)
            for axis, unit in zip(axes, (1.0, wall / versions[-1]), strict=True):
                places = [version * unit for version in versions]
                axis.plot(places, means, color=color, marker="o", markersize=3, label=f"lead {lead:g}")
                axis.fill_between(places, low, high, color=color, alpha=0.15, linewidth=0)
        axes[0].set_xlabel("updates")
        axes[1].set_xlabel("seconds of training on two cores")
        axes[0].set_ylabel("held-out prompts answered right")
        axes[0].set_ylim(0, 1)
        for axis in axes:
            axis.grid(axis="y", color="#dddddd", linewidth=0.6)
            axis.spines[["top", "right"]].set_visible(False)
        axes[1].legend(frameon=False, loc="lower right")
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / f"llm-{task.replace('_', '-')}.svg", metadata={"Date": None})
        plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--leads", nargs="+", type=float, default=list(LEADS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--cores", type=int, default=2, help="of each run")
    parser.add_argument("--options", type=json.loads, default={}, help="other settings of the recipe, as JSON")
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "llm-learning.jsonl")
    parser.add_argument("--pictures", type=Path, default=ROOT / "docs" / "pictures")
    parser.add_argument("--plot-only", action="store_true")
    parser.add_argument("--run-only", action="store_true", help="no pictures: they need matplotlib")
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        print(json.dumps(run_cell(*given.one)))
        return
    if not given.plot_only:
        cells = [(task, lead, seed) for task in given.tasks for seed in range(given.seeds) for lead in given.leads]
        run_all(cells, given.results, given.jobs, given.cores, given.options)
    lines = [line for line in read_lines(given.results) if line["options"] == given.options]
    print_table(lines)
    if not given.run_only:
        draw(lines, given.pictures)


if __name__ == "__main__":
    main()
