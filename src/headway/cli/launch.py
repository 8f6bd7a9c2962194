"""A run that a command starts or resumes: its sinks, what it prints, and what is left of it if it fails."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from headway.cli.options_output import print_table, say
from headway.coordinator.activities_waits import Stalled
from headway.coordinator.checkpoint import CheckpointStore
from headway.coordinator.role_calls import RunFailed
from headway.coordinator.roles import Stations
from headway.coordinator.run_result import RunResult
from headway.core.os_errors import refusal
from headway.core.protocols import RoleRaised
from headway.core.text_messages import to_stderr
from headway.core.text_statistics import statistics_block
from headway.llm.memory.planned_run_fit_report import table_rows
from headway.runs.config import RunConfig, read_values, understand
from headway.runs.files_recording import Recording
from headway.runs.files_run_summary import statistics_rows
from headway.runs.files_system_failures import FolderLost, SystemFailed
from headway.runs.fingerprint import fingerprint
from headway.runs.folder import RunFolder
from headway.runs.launch_session import launch
from headway.runs.launch_signals import answered_without_a_coordinator
from headway.runs.recipes_package import Recipe
from headway.runs.sinks import Sink
from headway.runs.sinks_metric_sinks import build_sinks, has_tensorboard
from headway.tools.report.report_page import leave_report


@answered_without_a_coordinator()
def start(recipe: Recipe, *layers: Mapping[str, object], root: Path, quiet: bool) -> tuple[RunFolder, RunResult]:
    """A new run in a folder of its own under `root`, with settings as `read_values` takes them."""
    config = read_values(recipe.config, *layers)
    for said in understand(recipe.config, *layers)[1]:
        if isinstance(said.meaning, str):
            say(f"{said.shown} has no effect: {said.meaning}")
    show_memory(recipe, config)
    stations = recipe.stations(config)  # before there is a folder: what cannot be leaves nothing behind
    folder = RunFolder.create(root, recipe.title, config.name)
    try:
        return folder, launch_recipe(recipe, stations, config, folder, resume=False, quiet=quiet)
    except FolderLost:
        raise
    except SystemFailed:
        if not folder.config.is_file():  # there was no room for that much
            shutil.rmtree(folder.path, ignore_errors=True)
        raise


def show_memory(recipe: Recipe, config: RunConfig) -> None:
    """Says what a run will need before anything of it is loaded: in a line or two where it fits, else as a table."""
    report = None if recipe.memory is None else recipe.memory(config)
    if report is None:
        return
    if report.fits_easily:
        for line in report.lines():
            say(line)
        return
    print_table(["place", "role", "what", "when", "bytes", ""], table_rows(report.places))


def launch_recipe(
    recipe: Recipe,
    stations: Stations,
    config: RunConfig,
    folder: RunFolder,
    *,
    resume: bool,
    quiet: bool,
    checkpoint: str | int | None = None,
) -> RunResult:
    """Run a recipe in its folder, and say what came of it."""
    runtime = config.build_runtime()
    sinks = _sinks(config, folder, is_new=not resume)
    say(f"{recipe.title}: {'resumed in' if resume else 'running in'} {folder.path}")
    say(_metrics_line(config, folder, sinks))
    try:
        result = launch(
            stations,
            config.settings(),
            runtime=runtime,
            folder=folder,
            resume=resume,
            checkpoint=checkpoint,
            show_status=not quiet,
            print_events=config.log_level == "debug",
            sinks=sinks,
            config=(recipe.name, config.model_dump(mode="json")),
            **asdict(config.part(Recording)),
        )
    except SystemFailed:  # its line says how to go on; a page or a file more may be just what there is no room for
        raise
    except (RunFailed, Stalled) as error:
        if config.report:
            say(leave_report(folder))
        if isinstance(error.__cause__, RoleRaised) and error.__cause__.details:
            _leave_error(folder, error.__cause__.details)
        if CheckpointStore(folder.checkpoints).all():
            print(f"to go on from the last checkpoint: headway resume {folder.path}", file=sys.stderr)
        raise
    _print_result(result, folder)
    if config.report:
        say(leave_report(folder))
    if not folder.summary.is_file():
        raise SystemExit(1)  # `launch` has said why
    return result


def _leave_error(folder: RunFolder, details: str) -> None:
    try:
        folder.write_error(details)
        print(f"the traceback is in {folder.error}", file=sys.stderr)
    except OSError as error:
        to_stderr(f"no traceback: {refusal(error)}")


def _sinks(config: RunConfig, folder: RunFolder, *, is_new: bool) -> list[Sink]:
    """What the settings ask for. A new run that cannot have them leaves nothing behind."""
    try:
        return config.part(build_sinks, folder=folder, config=config.model_dump(mode="json"))
    except (ValueError, OSError):
        if is_new:
            shutil.rmtree(folder.path, ignore_errors=True)
        raise


def _metrics_line(config: RunConfig, folder: RunFolder, sinks: Sequence[Sink]) -> str:
    places = [str(folder.metrics), *map(str, sinks)]
    if config.tensorboard is None and not has_tensorboard():
        places.append("not for TensorBoard, which is not installed (pip install 'headway[tensorboard]')")
    return f"metrics: {', '.join(places)}"


def _print_result(result: RunResult, folder: RunFolder) -> None:
    say(statistics_block(statistics_rows(result)))
    say(f"weights {fingerprint(result.weights)}, version {result.version}; in {folder.path}")
    if not result.is_complete:
        say(f"to go on: headway resume {folder.path}")
