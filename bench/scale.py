"""Where one coordinator saturates, and what branches under a root would bring: simulated, and drawn.

    python bench/scale.py                    both panels of docs/pictures/scale.svg, some minutes of one core
    python bench/scale.py --plot-only        from bench/results/scale.jsonl
    python bench/scale.py --only ray         one part: threads, processes, ray or branches

One coordinator: collectors that take a second a ticket, a batch of one ticket a collector, a lead of 2, what a ticket
costs as it is shipped (`headway.tools.simulate.cluster_ticket_costs`). Branches: as in bench/branches.py. Nothing is
asserted.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from branches import SEATS, per_s

from headway.tools.simulate.cluster import Cluster
from headway.tools.simulate.cluster_ticket_costs import TICKET_COSTS
from headway.tools.simulate.simulation import Workshop, simulate
from headway.tools.simulate.workloads import Constant, Lognormal

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "scale.jsonl"
PICTURE = ROOT / "docs" / "pictures" / "scale.svg"
SIZES = (100, 300, 1000, 3000, 10_000)
BRANCHES = (1, 2, 4, 8, 16)
UPDATES = 16
COLOURS = {"threads": "#0072b2", "processes": "#009e73", "ray": "#d55e00"}


def one_coordinator(cost: str, collectors: int) -> dict[str, Any]:
    shop = Workshop(
        collect=Lognormal(1.0, 0.5),
        learn=Constant(0.1),
        collectors=collectors,
        tickets_per_batch=collectors,
        updates=UPDATES,
        dispatch="free",
        cluster=Cluster(ticket_s=TICKET_COSTS[cost].seconds),
    )
    outcome = simulate(shop, 2)
    assert outcome.cluster is not None
    busy = outcome.cluster.coordinator_busy
    return {"of": cost, "collectors": collectors, "per_s": outcome.updates_per_s * collectors, "busy": busy}


def with_branches(branches: int) -> dict[str, Any]:
    rate, root, busy, age = per_s(branches, 1.0)
    return {"of": "branches", "branches": branches, "per_s": rate, "root": root, "busy": busy, "staleness": age}


def show(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        print(
            " ".join(
                f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in row.items()
            )
        )


def draw(rows: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "scale", "svg.fonttype": "none"})
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9.2, 3.4), layout="constrained")
    for cost, colour in COLOURS.items():
        points = sorted((row["collectors"], row["per_s"]) for row in rows if row["of"] == cost)
        left.plot(*zip(*points, strict=True), "o-", color=colour, ms=3, label=cost)
        left.axhline(1 / TICKET_COSTS[cost].seconds, color=colour, lw=0.7, ls=":")
    left.plot(SIZES, SIZES, color="#888888", lw=0.8, label="never held up")
    left.set(xscale="log", yscale="log", xlabel="collectors, a second a ticket each", ylabel="tickets a second")
    left.set_title("one coordinator", fontsize=10)
    left.legend(frameon=False)
    branched = sorted((row["branches"], row["per_s"], row["root"]) for row in rows if row["of"] == "branches")
    counts = [count for count, _, _ in branched]
    right.plot(counts, [rate for _, rate, _ in branched], "o-", color="#0072b2", ms=3, label="tickets a second")
    right.set(xscale="log", ylim=(0, 45_000), xlabel=f"branches, {SEATS:,} collectors each", ylabel="tickets a second")
    right.set_xticks(counts, [str(count) for count in counts])
    right.minorticks_off()
    right.set_title("branches under one root: a design, simulated", fontsize=10)
    for count, rate, share in branched:
        right.annotate(f"root {share:.0%}", (count, rate), textcoords="offset points", xytext=(5, -11), fontsize=7)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    title = "Tickets a second against collectors, by what a ticket costs; and against branches"
    figure.savefig(PICTURE, metadata={"Date": None, "Title": title})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="threads, processes, ray or branches")
    parser.add_argument("--plot-only", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    parts = [] if given.plot_only else [given.only] if given.only else [*COLOURS, "branches"]
    known = [json.loads(line) for line in given.results.read_text().splitlines()] if given.results.exists() else []
    rows = [row for row in known if row["of"] not in parts]
    for part in parts:
        rows += (
            [with_branches(n) for n in BRANCHES] if part == "branches" else [one_coordinator(part, n) for n in SIZES]
        )
    given.results.write_text("".join(json.dumps(row) + "\n" for row in rows))
    show(rows)
    if {row["of"] for row in rows} == {*COLOURS, "branches"}:
        draw(rows)


if __name__ == "__main__":
    main()
