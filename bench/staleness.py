"""What staleness costs in return, and what each correction gives back.

    python bench/staleness.py                          everything: 2 games, 6 leads, 4 corrections, 5 seeds
    python bench/staleness.py --jobs 4 --games cartpole
    python bench/staleness.py --budget 0.1             a tenth of the updates: does it run?
    python bench/staleness.py --plot-only              pictures and table from what is there

    (game, lead, correction, seed) --a worker process--> one line of the results --> pictures and table

Every run has the `inline` runtime, one ticket per version and pinned dispatch: from update L + 1 on every rollout is
exactly L versions old under a lead of L (checked in each run), and the seed determines every bit. All runs of a game
have the same environment steps, updates and evaluations; they differ in lead, correction and seed only. The first L + 1
rollouts under a lead of L all come from version 0, which is part of what a lead costs.

Two numbers a run: the mean return over its last evaluations, and the mean over all of them, which is the area under the
learning curve and tells how fast it learned. A run that failed (weights that are not finite) counts as return 0 from
there on. The recipes refuse `none` with a lead, rightly, so the stations are wired here.

Each finished run is appended to the results at once. A study that was interrupted goes on where it was; a run under
other settings has another `study` digest and is neither skipped nor plotted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

LEADS = (0, 1, 2, 4, 8, 16)
CORRECTIONS = ("none", "clip", "vtrace", "decoupled")
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Game:
    """What is played, and the budget every run of it gets."""

    name: str
    title: str
    unit: str
    updates: int
    evaluate_every: int
    last: int  # evaluations that make the return at the end
    num_envs: int
    segment_steps: int
    eval_episodes: int
    ppo: dict[str, float]
    network: dict[str, Any]
    mark: float  # drawn as a line
    mark_name: str

    def scaled(self, factor: float) -> Game:
        """The same with a share of the updates, whole evaluations."""
        evaluations = max(1, round(factor * self.updates / self.evaluate_every))
        return replace(self, updates=evaluations * self.evaluate_every)

    @property
    def num_evaluations(self) -> int:
        return self.updates // self.evaluate_every

    @property
    def num_steps(self) -> int:
        """Of the environments, in one run."""
        return self.updates * self.num_envs * self.segment_steps

    @property
    def digest(self) -> str:
        """Of everything that decides a run besides its cell."""
        return hashlib.blake2b(json.dumps(asdict(self), sort_keys=True).encode(), digest_size=4).hexdigest()


GAMES = {  # the long runs first, so that no core is left with one at the end
    game.name: game
    for game in (
        Game(
            name="colorlines",
            title="Colour Lines",
            unit="points a game",
            updates=160,
            evaluate_every=16,
            last=3,
            num_envs=32,
            segment_steps=8,
            eval_episodes=32,
            ppo={
                "learning_rate": 3e-3,
                "gamma": 0.95,
                "lam": 0.7,
                "num_epochs": 2,
                "minibatch_size": 128,
                "entropy_weight": 0.005,
                "max_grad_norm": 1.0,
            },
            network={"width": 16},
            mark=57.0,
            mark_name="greedy one-ply player: 57",
        ),
        Game(
            name="cartpole",
            title="CartPole-v1",
            unit="return",
            updates=150,
            evaluate_every=10,
            last=3,
            num_envs=32,
            segment_steps=32,
            eval_episodes=32,
            ppo={
                "learning_rate": 1e-3,
                "final_learning_rate": 0.0,
                "gamma": 0.98,
                "lam": 0.8,
                "num_epochs": 4,
                "minibatch_size": 256,
                "entropy_weight": 0.0,
                "max_grad_norm": 0.5,
            },
            network={"hidden": (64, 64)},
            mark=475.0,
            mark_name="solved: 475",
        ),
    )
}


@dataclass(frozen=True)
class Cell:
    """One run of the study."""

    game: Game
    lead: int
    correction: str
    seed: int

    @property
    def key(self) -> tuple[str, str, int, str, int]:
        return self.game.name, self.game.digest, self.lead, self.correction, self.seed

    def __str__(self) -> str:
        return f"{self.game.name}, lead {self.lead}, {self.correction}, seed {self.seed}"


# -- one run: in a worker, which imports what its game needs and nothing else ------------------------


def run_cell(cell: Cell) -> dict[str, Any]:
    """Train once; a line of the results."""
    import torch

    from headway.coordinator.coordinator import Coordinator
    from headway.coordinator.role_calls import RunFailed
    from headway.coordinator.settings import Plan, Settings
    from headway.runs.event_log import MemoryRecorder
    from headway.runs.fingerprint import fingerprint
    from headway.runtimes.inline import Inline

    torch.set_num_threads(1)
    game = cell.game
    settings = Settings(
        plan=Plan(updates=game.updates, evaluate_every=game.evaluate_every),
        max_lead=cell.lead,
        dispatch="pinned",
        seed=cell.seed,
    )
    stations = STATIONS[game.name](cell)
    runtime, recorder = Inline(), MemoryRecorder()
    began, cpu, failed, weights = time.perf_counter(), time.process_time(), "", ""
    try:
        result = runtime.run(Coordinator(stations, settings, runtime, recorder=recorder).run())
        weights = fingerprint(result.weights)
    except RunFailed as error:
        failed = str(error)
    learned = [event["m"] for event in recorder.events if event["e"] == "learn"]
    ages = [measures["staleness"] for measures in learned]
    if ages != [min(update, cell.lead) for update in range(len(ages))]:
        raise RuntimeError(f"{cell}: rollouts were not as old as the lead says: {ages}")
    curve = [event["value"] for event in recorder.events if event["e"] == "score"]
    curve += [0.0] * (game.num_evaluations - len(curve))
    return {
        "game": game.name,
        "study": game.digest,
        "lead": cell.lead,
        "correction": cell.correction,
        "seed": cell.seed,
        "last": statistics.fmean(curve[-game.last :]),
        "area": statistics.fmean(curve),
        "ess": statistics.fmean(measures["ess"] for measures in learned) if learned else 0.0,
        "curve": [round(value, 3) for value in curve],
        "failed": failed,
        "weights": weights,
        "wall_s": round(time.perf_counter() - began, 2),
        "cpu_s": round(time.process_time() - cpu, 2),
    }


def _cartpole(cell: Cell) -> Any:
    from headway.envs.gymnasium_vector import Spec, describe, make_vector
    from headway.ppo.policy import Actor, ActorCritic

    env = make_vector("CartPole-v1", 1)
    spec = describe(env)
    env.close()

    def network() -> ActorCritic:
        return ActorCritic(spec, seed=_network_seed(cell), **cell.game.network)

    def policy(_: Spec) -> Actor:
        return Actor(network())

    make_env = partial(make_vector, "CartPole-v1")
    return _stations(cell, make_env, make_env, network, policy)


def _colorlines(cell: Cell) -> Any:
    from headway.ppo.colorlines.network_cells import CellsActor, CellsActorCritic
    from headway.ppo.colorlines.vector_gymnasium_vector import ColorLinesVector

    def network() -> CellsActorCritic:
        return CellsActorCritic(seed=_network_seed(cell), **cell.game.network)

    def policy(_: Any) -> CellsActor:
        return CellsActor(network())

    games = partial(ColorLinesVector, compact=True, masks=False)
    shaped = partial(games, shaping=3.0, gamma=cell.game.ppo["gamma"], reward_scale=0.1)
    return _stations(cell, shaped, games, network, policy)


STATIONS = {"cartpole": _cartpole, "colorlines": _colorlines}


def _stations(
    cell: Cell,
    make_env: Callable[[int], Any],
    make_eval_env: Callable[[int], Any],
    network: Callable[[], Any],
    policy: Callable[[Any], Any],
) -> Any:
    """The recipes' stations without their configuration, which would refuse what is studied here."""
    from headway.coordinator.roles import Stations
    from headway.core.types import derive_seed
    from headway.envs.evaluator_episodes import EpisodeEvaluator
    from headway.ppo.learner import PPOLearner, PPOSettings
    from headway.ppo.segments import SegmentCollector

    game = cell.game
    knobs: dict[str, Any] = {**game.ppo, "correction": cell.correction, "updates": game.updates}

    def collector(number: int) -> SegmentCollector:
        seed = derive_seed(cell.seed, "environment", number) % 2**31
        return SegmentCollector(partial(make_env, game.num_envs), policy, steps=game.segment_steps, seed=seed)

    return Stations(
        collector=collector,
        learner=lambda: PPOLearner(network, PPOSettings(**knobs), seed=cell.seed),
        evaluator=lambda: EpisodeEvaluator(make_eval_env, policy, episodes=game.eval_episodes),
    )


def _network_seed(cell: Cell) -> int:
    from headway.core.types import derive_seed

    return derive_seed(cell.seed, "network")


# -- all runs ---------------------------------------------------------------------------------------


def run_all(cells: Sequence[Cell], results: Path, jobs: int, limit_s: float) -> None:
    """Run what is not there yet, `jobs` at a time, and append each line when it is done."""
    _drop_half_line(results)
    there = {key_of(line) for line in read_lines(results)}
    left = [cell for cell in cells if cell.key not in there]
    print(f"{len(cells) - len(left)} of {len(cells)} runs are in {results}; {len(left)} to do, {jobs} at a time")
    results.parent.mkdir(parents=True, exist_ok=True)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = "1"  # workers are spawned: they read it before they import anything
    began, total, done = time.monotonic(), len(left), 0
    under_way: dict[Future[dict[str, Any]], Cell] = {}
    with open(results, "a") as file, ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        while left or under_way:
            while left and len(under_way) < jobs and time.monotonic() - began < limit_s:
                cell = left.pop(0)
                under_way[pool.submit(run_cell, cell)] = cell
            if not under_way:
                print(f"stopped after {limit_s:g} s with {len(left)} runs to do; the same command goes on")
                return
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                cell, line = under_way.pop(future), future.result()
                file.write(json.dumps(line) + "\n")
                file.flush()
                done += 1
                rest_s = (time.monotonic() - began) / done * (total - done)
                print(
                    f"[{done}/{total}] {cell}: {line['last']:.1f} at the end, {line['area']:.1f} on the way, "
                    f"{line['wall_s']:.1f} s{', FAILED: ' + line['failed'] if line['failed'] else ''}; "
                    f"about {rest_s / 60:.1f} minutes left",
                    flush=True,
                )


def _drop_half_line(results: Path) -> None:
    """What a kill cut off would spoil the line appended to it."""
    if results.exists():
        content = results.read_bytes()
        os.truncate(results, content.rfind(b"\n") + 1)


def read_lines(results: Path) -> list[dict[str, Any]]:
    """The runs so far. A last line cut off by a kill is left out."""
    if not results.exists():
        return []
    text = results.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def key_of(line: dict[str, Any]) -> tuple[str, str, int, str, int]:
    return line["game"], line["study"], line["lead"], line["correction"], line["seed"]


# -- what came of it --------------------------------------------------------------------------------

Values = dict[tuple[int, str], list[float]]  # (lead, correction) -> one per seed


def values_of(lines: Iterable[dict[str, Any]], game: Game, measure: str) -> Values:
    values: Values = {}
    for line in sorted(lines, key=lambda line: line["seed"]):
        if (line["game"], line["study"]) == (game.name, game.digest):
            values.setdefault((line["lead"], line["correction"]), []).append(line[measure])
    return values


def table(lines: Sequence[dict[str, Any]], game: Game) -> str:
    """Mean and standard error of each cell."""
    parts = []
    for measure, title in (
        ("last", f"{game.unit}, last {game.last} evaluations"),
        ("area", f"{game.unit}, all {game.num_evaluations} evaluations (area under the curve)"),
        ("ess", "effective sample size before the update"),
    ):
        values = values_of(lines, game, measure)
        corrections = [name for name in CORRECTIONS if any(correction == name for _, correction in values)]
        rows = [f"{title}\n{'lead':>6}" + "".join(f"{name:>18}" for name in corrections)]
        for lead in sorted({lead for lead, _ in values}):
            rows.append(f"{lead:>6}" + "".join(f"{_cell(values.get((lead, name), [])):>18}" for name in corrections))
        parts.append("\n".join(rows))
    seeds = sorted({len(some) for some in values_of(lines, game, "last").values()})
    runs = f"{'..'.join(str(n) for n in dict.fromkeys((seeds[0], seeds[-1])))} seeds" if seeds else "no runs"
    head = f"{game.title}: {runs}, {game.updates} updates, {game.num_steps:,} steps a run; mean +- standard error"
    return "\n\n".join([head, *parts])


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    digits = 2 if max(map(abs, values)) <= 1 else 1
    mean = f"{statistics.fmean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} +- {statistics.stdev(values) / math.sqrt(len(values)):.{digits}f}"


LOOKS = {  # Okabe and Ito's colours, told apart with any kind of colour vision; line and marker differ too
    "none": ("#000000", "o", ":"),
    "clip": ("#d55e00", "s", "-."),
    "vtrace": ("#0072b2", "^", "--"),
    "decoupled": ("#009e73", "D", "-"),
}


def draw(lines: Sequence[dict[str, Any]], game: Game, path: Path) -> None:
    """The mean over seeds as a line, the worst and the best seed as a band."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    style = {
        "svg.hashsalt": game.name,  # the same bytes for the same runs
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    panels = {"last": f"at the end (last {game.last} evaluations)", "area": "on the way (all evaluations)"}
    with pyplot.rc_context(style):
        figure, axes = pyplot.subplots(1, 2, figsize=(9.2, 4.0), sharey=True, layout="constrained", facecolor="white")
        for axis, (measure, title) in zip(axes, panels.items(), strict=True):
            values = values_of(lines, game, measure)
            leads = sorted({lead for lead, _ in values})
            axis.axhline(game.mark, color="#767676", linewidth=1)
            for name, (colour, marker, line) in LOOKS.items():
                places = [place for place, lead in enumerate(leads) if (lead, name) in values]
                if not places:
                    continue
                seeds = [values[leads[place], name] for place in places]
                means = [statistics.fmean(some) for some in seeds]
                low, high = [min(some) for some in seeds], [max(some) for some in seeds]
                axis.fill_between(places, low, high, color=colour, alpha=0.13, linewidth=0)
                axis.plot(places, means, line, color=colour, marker=marker, markersize=5, label=name)
            axis.set_xticks(range(len(leads)), [str(lead) for lead in leads])
            axis.set_xlabel("lead = staleness, in versions")
            axis.set_title(title, fontsize=10)
            axis.set_ylim(bottom=0)
            axis.grid(axis="y", color="#dddddd", linewidth=0.6)
            axis.set_axisbelow(True)
        axes[0].set_ylabel(game.unit)
        corner, above = (0.0, game.mark), (4, 3)
        axes[1].annotate(
            game.mark_name, corner, above, ("axes fraction", "data"), "offset points", fontsize=8, color="#4d4d4d"
        )
        handles, labels = axes[0].get_legend_handles_labels()
        num_seeds = max((len(some) for some in values_of(lines, game, "last").values()), default=0)
        title = f"{game.title}: line, mean of {num_seeds} seeds; band, worst to best seed"
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        figure.suptitle(title, fontsize=11)
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"Date": None, "Title": title} if path.suffix == ".svg" else None
        figure.savefig(path, metadata=metadata, facecolor="white")
        pyplot.close(figure)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="return against lead, by correction")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time (default: one a core)")
    parser.add_argument("--games", nargs="+", default=list(GAMES), choices=list(GAMES))
    parser.add_argument("--leads", nargs="+", type=int, default=list(LEADS))
    parser.add_argument("--corrections", nargs="+", default=list(CORRECTIONS), choices=CORRECTIONS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=1.0, help="share of each game's updates (default: 1, all)")
    parser.add_argument("--limit-s", type=float, default=math.inf, help="begin no run after this many seconds")
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "staleness.jsonl")
    parser.add_argument("--pictures", type=Path, default=ROOT / "docs" / "pictures")
    parser.add_argument("--format", default="svg", choices=["svg", "png"])
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--plot-only", action="store_true", help="no runs: pictures and table from the results")
    only.add_argument("--run-only", action="store_true", help="no pictures: they need matplotlib")
    options = parser.parse_args(words)
    games = [GAMES[name].scaled(options.budget) for name in options.games]
    if not options.plot_only:
        cells = [  # seed by seed, so that a study that was cut short has all cells
            Cell(game, lead, correction, seed)
            for game, seed in product(games, range(options.seeds))
            for lead, correction in product(options.leads, options.corrections)
        ]
        run_all(cells, options.results, options.jobs, options.limit_s)
    lines = read_lines(options.results)
    for game in games:
        print(f"\n{table(lines, game)}")
        if not options.run_only and values_of(lines, game, "last"):
            path = options.pictures / f"staleness-{game.name}.{options.format}"
            draw(lines, game, path)
            print(f"\n{path}")


if __name__ == "__main__":
    sys.exit(main())
