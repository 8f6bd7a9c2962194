"""What is left of a sweep for people and for other programs: report.html, results.json, results.csv, curves.csv."""

from __future__ import annotations

import csv
import io
import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from headway.coordinator.state_files_whole_files import write_whole
from headway.core.types_opaque import JsonObject
from headway.runs.folder import RunFolder
from headway.tools.report.recorded_run_story_records import Story
from headway.tools.report.report import filled
from headway.tools.report.report_texts import env_name
from headway.tools.report.series import step_word
from headway.tools.sweep.grid_folder import Sweep, SweepFolder, SweepRunState
from headway.tools.sweep.results import AXES, document


def write_results(folder: SweepFolder, sweep: Sweep, states: Mapping[str, SweepRunState]) -> JsonObject:
    """All four files, each whole; returns what results.json holds."""
    told = document(folder, sweep, states)
    write_whole(folder.results, json.dumps(told, indent=1, allow_nan=False) + "\n")
    write_whole(folder.table, _table(told))
    write_whole(folder.curves, _curves(told))
    write_whole(folder.report, page(folder, sweep, told))
    return told


def page(folder: SweepFolder, sweep: Sweep, told: JsonObject) -> str:
    """The page as text; links lead to the reports of the runs beside it."""
    config = _config(folder, sweep)
    story = Story(None, sweep.recipe, config, {}, None, None)
    played = env_name(story)
    varied = {name for run in sweep.runs for name in run.varied}
    title = f"Headway sweep: {told['sweep'].removeprefix('sweep-')}" + (
        f" on {played}" if played and "env" not in varied else ""
    )
    shown = {
        **told,
        "title": title,
        "state": state_line(told),
        "step_word": step_word(story) if config else "environment steps",
        "made": f"Made by Headway, {time.strftime('%Y-%m-%d %H:%M')}.",
        "reports": {
            run.folder: f"{run.folder}/report.html"
            for run in sweep.runs
            if (folder.path / run.folder / "report.html").is_file()
        },
    }
    return filled("sweep.html", "sweep.js", shown)


def state_line(told: JsonObject) -> str:
    """How many settings, seeds and runs there are, and how far they are."""
    counts = Counter(run["state"] for run in told["runs"])
    settings, seeds = len(told["settings"]), len(told["seeds"])
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    return (
        f"{settings} setting{'s' * (settings > 1)} x {seeds} seed{'s' * (seeds > 1)}, {told['recipe']}: "
        f"{len(told['runs'])} runs, {states}."
    )


def _config(folder: SweepFolder, sweep: Sweep) -> JsonObject:
    """The settings of one of the runs, which all share what is not varied."""
    for run in sweep.runs:
        place = RunFolder(folder.path / run.folder)
        if place.config.is_file():
            return place.read_config()[1]
    return {}


# -- for spreadsheets -------------------------------------------------------------------------------


def _table(told: JsonObject) -> str:
    """A row a run."""
    varied = list(dict.fromkeys(name for run in told["runs"] for name in run["varied"]))
    measures = list(told["measures"])
    heads = ["folder", *varied, "seed", "state", *measures, "best", "env_steps", "updates", "seconds", "error"]
    rows = [
        [
            run["folder"],
            *(run["varied"].get(name) for name in varied),
            *(run["seed"], run["state"]),
            *(run["last"][measure] for measure in measures),
            *(run[name] for name in heads[-5:]),
        ]
        for run in told["runs"]
    ]
    return _csv(heads, rows)


def _curves(told: JsonObject) -> str:
    """A row a point of each curve."""
    heads = ["setting", "measure", "axis", "x", "mean", "mean_low", "mean_high", "iqm", "iqm_low", "iqm_high"]
    rows = []
    for setting in told["settings"]:
        for measure, by_axis in setting["curves"].items():
            for axis in AXES:
                curve = by_axis[axis]
                for place, x in enumerate(curve["x"] if curve else ()):
                    numbers = [curve[of][part][place] for of in ("mean", "iqm") for part in ("y", "low", "high")]
                    rows.append([setting["label"], measure, axis, x, *numbers])
    return _csv(heads, rows)


def _csv(heads: list[str], rows: list[list[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows([["" if cell is None else cell for cell in row] for row in rows])
    return text.getvalue()


def results_of(path: Path) -> JsonObject:
    """The results of a sweep as they are now: reads the folders of its runs, and writes the files anew."""
    folder = SweepFolder.existing(path)
    sweep = folder.read_plan()
    return write_results(folder, sweep, folder.read_states(sweep))
