"""headway sweep RECIPE [--seeds N | A,B,C] [--workers N] [--name X] [--config FILE] [--names SYSTEM] [--runs FOLDER]
              [--quiet] [--FIELD VALUE | --FIELD VALUE,VALUE ...]
headway sweep --resume SWEEP [--workers N] [--retry] [--quiet]

Runs a recipe with every combination of the values that are listed, and every seed: a process each, a few at once, in
one folder with one report. --seeds 5 is 0 to 4, --seeds 3,7,9 is those. A setting that is a list itself has its values
in brackets: --hidden "[64],[64,64]". A file has the settings of a run, and seeds, workers, name and grid beside them:

    recipe: ppo
    env: CartPole-v1
    seeds: 5
    grid: {learning_rate: [1e-3, 3e-4], max_lead: [0, 1]}     several grids: a list of them

Ctrl-C has every run save and end. --resume goes on with what is not finished; with --retry also with what failed.
Checkpoints are pickles: resume only sweeps you trust.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from headway.cli.lightzero import read_file
from headway.cli.options_output import say
from headway.cli.options_words import UsageError, read_options
from headway.cli.sweep_table import SweepTable, print_results
from headway.core.text_naming import unknown
from headway.core.types_opaque import JsonObject, SettingValue
from headway.runs.recipes_package import RECIPES, Recipe, load_recipe
from headway.tools.sweep.grid import Grid, plan_runs, read_axis, read_seeds
from headway.tools.sweep.grid_folder import SweepFolder
from headway.tools.sweep.runner_session import SweepFailed, SweepInterrupted, begin, go_on

RESUMED = ("resume", "workers", "retry", "quiet")


def command(words: list[str]) -> int:
    """The command."""
    asked = list(words)
    recipe_name = words.pop(0) if words and not words[0].startswith("-") and "=" not in words[0] else ""
    options = read_options(words, as_written=True)
    if "resume" in options:
        if recipe_name:
            raise UsageError("--resume goes on with a sweep as it is: it takes no recipe")
        return resume(options)
    if "retry" in options:
        raise UsageError("--retry is for --resume: a new sweep has no run that failed")
    quiet = is_said(options, "quiet")
    recipe, values, axes = _of_file(options.pop("config", None), recipe_name)
    name, root = options.pop("name", values.pop("name", None)), Path(str(options.pop("runs", "runs")))
    workers = whole_number("workers", options.pop("workers", values.pop("workers", None)))
    seeds = _seeds(options, values)
    fixed, listed = _of_words(recipe, options, str(values.get("names") or options.get("names") or "") or None)
    said = {**fixed, **listed}
    axes = [{own: several for own, several in grid.items() if own not in said} | listed for grid in axes]
    fixed = {own: value for own, value in values.items() if own not in listed} | fixed
    runs = plan_runs(recipe.config, Grid(fixed, axes, seeds))
    line = shlex.join(["headway", "sweep", *asked])
    folder = begin(recipe, runs, fixed, name=None if name is None else str(name), root=root, command=line)
    say(f"{recipe.title}: {len(runs)} runs in {folder.path}")
    return _run(folder, workers=workers, retry=False, quiet=quiet)


def resume(options: dict[str, SettingValue]) -> int:
    """Go on with a sweep: `headway sweep --resume SWEEP`, `headway resume SWEEP`."""
    for name in options:
        if name not in RESUMED:
            raise UsageError(
                f"{unknown('option of --resume', name, RESUMED)}; the settings of a sweep stay as they are"
            )
    if options["resume"] is True:
        raise UsageError("--resume needs the folder of a sweep: headway sweep --resume SWEEP")
    folder = SweepFolder.existing(Path(str(options["resume"])))
    workers, retry = whole_number("workers", options.get("workers")), is_said(options, "retry")
    quiet = is_said(options, "quiet")
    sweep = folder.read_plan()
    states = folder.read_states(sweep)
    for run in sweep.runs:
        if states[run.folder].state == "failed" and not retry:
            say(f"failed before, left as it is (--retry): {run.folder}: {states[run.folder].error}")
    return _run(folder, workers=workers, retry=retry, quiet=quiet)


def _run(folder: SweepFolder, *, workers: int | None, retry: bool, quiet: bool) -> int:
    with SweepTable(folder, is_shown=not quiet) as table:
        try:
            results = go_on(folder, workers=workers, retry=retry, say=table.say, look=table.look)
        except SweepFailed as error:
            table.close()
            say(f"report: {folder.report}")
            print(f"headway: {error}", file=sys.stderr)
            return 130 if isinstance(error, SweepInterrupted) else 1
    print_results(results)
    say(f"results: {folder.results}, {folder.table}\nreport: {folder.report}")
    return 0


# -- what is said -----------------------------------------------------------------------------------


def _of_file(
    path: SettingValue, recipe_name: str
) -> tuple[Recipe, JsonObject, list[dict[str, Sequence[SettingValue]]]]:
    """The recipe, what a file says besides, and its grids."""
    values: JsonObject = {}
    if path is not None:
        named, values = read_file(Path(str(path)))
        recipe_name = recipe_name or named
    if not recipe_name:
        raise UsageError(f"sweep needs a recipe: {', '.join(RECIPES)}")
    grid = values.pop("grid", None) or {}
    grids = grid if isinstance(grid, list) else [grid]
    for one in grids:
        if not isinstance(one, dict) or any(not isinstance(several, list) or not several for several in one.values()):
            raise UsageError(f"grid in {path} must give a list of values for each name, received {one!r}")
    return load_recipe(recipe_name), values, grids


def _seeds(options: dict[str, SettingValue], values: JsonObject) -> tuple[int, ...] | None:
    """Those of the command line, or else of the file."""
    for said in (options, values):
        if "seed" in said and "seeds" in said:
            raise UsageError("--seed and --seeds both say which seeds: use one of them")
    if "seed" in options:
        values.pop("seeds", None)
        return read_seeds(f"{options.pop('seed')},".strip(",").join("[]"))
    if "seeds" in options:
        values.pop("seeds", None)
        values.pop("seed", None)
        return read_seeds(options.pop("seeds"))
    return read_seeds(values.pop("seeds")) if "seeds" in values else None


def _of_words(
    recipe: Recipe, options: dict[str, SettingValue], names: str | None
) -> tuple[JsonObject, dict[str, Sequence[SettingValue]]]:
    """Settings with one value, and those with several; every one that is ambiguous is told."""
    fixed: JsonObject = {}
    listed: dict[str, Sequence[SettingValue]] = {}
    problems: list[str] = []
    for name, text in options.items():
        if not isinstance(text, str):
            fixed[name] = text
            continue
        try:
            several = read_axis(recipe.config, name, text, names)
        except ValueError as error:
            problems.append(str(error))
            continue
        if len(several) == 1:
            fixed[name] = several[0]
        else:
            listed[name] = several
    if problems:
        raise UsageError("\n  ".join(problems))
    return fixed, listed


def whole_number(name: str, said: SettingValue) -> int | None:
    """An option that is a whole number from 1 on, or is not there."""
    if said is None:
        return None
    text = str(said)
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"--{name} must be a whole number from 1 on, received {said!r}")
    return int(text)


def is_said(options: dict[str, SettingValue], name: str) -> bool:
    """A flag; it may be said as true or false."""
    said = options.pop(name, False)
    if said not in (True, False, "true", "false"):
        raise UsageError(f"--{name} takes no value, received {said!r}")
    return said in (True, "true")
