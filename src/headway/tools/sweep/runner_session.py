"""A sweep from its beginning to its end, begun or gone on with: everything around a scheduler."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from headway.core.types_opaque import JsonObject, SettingValue
from headway.runs.config import RunConfig, read_values
from headway.runs.folder import check_name
from headway.runs.recipes_package import Recipe, load_recipe
from headway.tools.sweep.grid import Grid, SweepRun, plan_runs, read_seeds
from headway.tools.sweep.grid_folder import Sweep, SweepFolder
from headway.tools.sweep.results_page import write_results
from headway.tools.sweep.runner_scheduler import Scheduler

Look = Callable[[Scheduler], None]


class SweepFailed(RuntimeError):
    """Runs of a sweep failed, or the sweep was interrupted; one line, with the way to go on."""


def sweep(
    recipe: str,
    *,
    grid: Mapping[str, Sequence[SettingValue]] | Sequence[Mapping[str, Sequence[SettingValue]]] | None = None,
    seeds: int | Sequence[int] = 1,
    workers: int | None = None,
    name: str | None = None,
    runs: str | Path = "runs",
    say: Callable[[str], None] = print,
    **settings: SettingValue,
) -> JsonObject:
    """Runs a recipe with every combination of the values in `grid` and every seed, a process each, and returns what
    `results.json` holds.

        headway.sweep("ppo", grid={"learning_rate": [1e-3, 3e-4]}, seeds=5, env="CartPole-v1", updates=100)

    `grid` may be a list of grids: the runs are those of all. `seeds=5` is 0 to 4, a list is those. `settings` are the
    same in every run. `workers` run at once; by default as many as there are cores for. SweepFailed: some run failed.
    """
    axes = [grid] if isinstance(grid, Mapping) else list(grid or [{}])
    chosen = read_seeds(seeds if isinstance(seeds, int) else list(seeds))
    found = load_recipe(recipe)
    planned = plan_runs(found.config, Grid(settings, axes, chosen))
    folder = begin(found, planned, settings, name=name, root=Path(runs))
    return go_on(folder, workers=workers, say=say)


def begin(
    recipe: Recipe, runs: Sequence[SweepRun], fixed: JsonObject, *, name: str | None, root: Path, command: str = ""
) -> SweepFolder:
    """The folder of a new sweep, with its plan."""
    check_ports(recipe, runs)
    folder = SweepFolder.create(root, recipe.title, None if name is None else check_name(name))
    group = folder.path.name
    grouped = [replace(run, settings={**_group(group, run), **run.settings}) for run in runs]
    folder.write_plan(Sweep(recipe.name, grouped, name or "", dict(fixed), command))
    return folder


def _group(name: str, run: SweepRun) -> JsonObject:
    """What runs are called on Weights & Biases, unless somebody says otherwise."""
    return {"wandb_group": name[:128], "wandb_job_type": re.sub(r"\s+", "", run.label)[:64]}


def check_ports(recipe: Recipe, runs: Sequence[SweepRun]) -> None:
    """Refuses settings that several runs cannot have at once."""
    if len(runs) > 1:
        config: RunConfig = read_values(recipe.config, runs[0].settings)
        if config.prometheus_port:
            raise ValueError(
                f"prometheus_port={config.prometheus_port} is one port for {len(runs)} runs; 0 is any free"
            )
        if config.name is not None:
            raise ValueError(
                f"name={config.name!r} cannot be that of {len(runs)} runs: --name is what the sweep is called"
            )


@contextmanager
def scheduled(
    folder: SweepFolder, *, workers: int | None, retry: bool, say: Callable[[str], None]
) -> Iterator[Scheduler]:
    """A scheduler that holds the folder until the block ends; the results are written as runs end, and at the end."""
    sweep = folder.read_plan()
    threads = threads_of(sweep)
    with folder.hold():
        scheduler = Scheduler(
            folder,
            sweep,
            workers=workers or default_workers(threads),
            threads=threads,
            retry=retry,
            say=say,
            when_changed=lambda: note_results(folder, sweep, scheduler, say),
        )
        yield scheduler


def note_results(folder: SweepFolder, sweep: Sweep, scheduler: Scheduler, say: Callable[[str], None]) -> None:
    """Results so far. A disk without room costs the page, not the runs."""
    try:
        write_results(folder, sweep, scheduler.states)
    except OSError as error:
        say(f"no results yet: {error.strerror}: {error.filename}")


def go_on(
    folder: SweepFolder,
    *,
    workers: int | None = None,
    retry: bool = False,
    say: Callable[[str], None] = print,
    look: Look = lambda scheduler: None,
) -> JsonObject:
    """Run what is not finished yet. SweepFailed: not all of it is finished now."""
    with scheduled(folder, workers=workers, retry=retry, say=say) as scheduler:
        scheduler.run(lambda: look(scheduler))
        results = write_results(folder, scheduler.sweep, scheduler.states)
    failed, count = scheduler.count("failed"), len(scheduler.states)
    if scheduler.is_interrupted:
        done = scheduler.count("finished")
        raise SweepInterrupted(f"{done} of {count} runs are finished; to go on: headway sweep --resume {folder.path}")
    if failed:
        again = f"to try again: headway sweep --resume {folder.path} --retry"
        raise SweepFailed(f"{failed} of {count} runs failed; {again}")
    return results


class SweepInterrupted(SweepFailed):
    """Somebody asked it to end."""


def threads_of(sweep: Sweep) -> int:
    """How many threads a run computes with, at most."""
    kind = load_recipe(sweep.recipe).config
    first = {run.label: run for run in sweep.runs}.values()
    configs: list[RunConfig] = [read_values(kind, run.settings) for run in first]
    return max(int(getattr(config, "torch_threads", 1) or 1) for config in configs)


def default_workers(threads: int) -> int:
    """So many runs have cores for their threads."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // max(1, threads))
