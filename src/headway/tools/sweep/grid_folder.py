"""What a sweep leaves behind.

runs/sweep-ppo-20260401-101500/     with --name lr: sweep-ppo-20260401-101500-lr
    sweep.yaml                      what it is: the recipe and every run with its settings; `--resume` goes by it
    status.json                     how far each run is, since when, and why one failed
    learning_rate=0.001,seed=0/     a run folder, as `headway run` makes it
    learning_rate=0.001,seed=1/
    console/                        what each run printed
    results.json, results.csv       every run and every setting in numbers
    curves.csv                      the curves of the report
    report.html                     all of it as one page
    run.lock                        held for as long as the sweep goes on

A run is over when its own summary.json says so: nothing that this folder says of it has to be believed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

import yaml

from headway.coordinator.state_files_whole_files import write_whole
from headway.core.types_opaque import JsonObject
from headway.runs.folder import FolderInUse, RunFolder, load_yaml, whole_yaml
from headway.runs.parsed_json import parsed
from headway.tools.sweep.grid import SweepRun

State = Literal["waiting", "running", "finished", "interrupted", "failed"]


@dataclass(frozen=True, slots=True)
class SweepRunState:
    """How far one run of a sweep is."""

    state: State = "waiting"
    attempts: int = 0
    """How often it was started or resumed."""
    error: str = ""
    """Why it failed, in a line."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweep is."""

    recipe: str
    runs: Sequence[SweepRun]
    name: str = ""
    fixed: JsonObject = field(default_factory=dict)
    """What is said of all runs."""
    command: str = ""
    """With which it was started."""

    @property
    def labels(self) -> list[str]:
        """The settings, in order."""
        return list(dict.fromkeys(run.label for run in self.runs))

    @property
    def seeds(self) -> list[int]:
        return sorted({run.seed for run in self.runs})


class SweepFolder:
    """The paths of a sweep, and files that appear whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.plan = path / "sweep.yaml"
        self.status = path / "status.json"
        self.results = path / "results.json"
        self.table = path / "results.csv"
        self.curves = path / "curves.csv"
        self.report = path / "report.html"

    @classmethod
    def create(cls, root: Path, recipe: str, name: str | None) -> SweepFolder:
        return cls(RunFolder.create(root, f"sweep-{recipe}", name).path)

    @classmethod
    def existing(cls, path: Path) -> SweepFolder:
        folder = cls(path)
        if not path.is_dir():
            raise ValueError(f"no sweep at {path}")
        if not folder.plan.is_file():
            is_run = (path / "config.yaml").is_file()
            raise ValueError(f"{path} is {'a run, not a sweep' if is_run else 'no sweep'}: it has no sweep.yaml")
        return folder

    @staticmethod
    def is_one(path: Path) -> bool:
        """Whether a folder holds a sweep."""
        return (path / "sweep.yaml").is_file()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Nobody else may go on with this sweep until the block ends, or this process does."""
        with RunFolder(self.path).hold():
            yield

    def console(self, run: SweepRun) -> Path:
        """What a run prints."""
        return self.path / "console" / f"{run.folder}.log"

    def run_folder(self, run: SweepRun) -> RunFolder:
        return RunFolder(self.path / run.folder)

    def write_plan(self, sweep: Sweep) -> None:
        content = {"recipe": sweep.recipe, "name": sweep.name, "command": sweep.command, "fixed": dict(sweep.fixed)}
        runs = [asdict(run) for run in sweep.runs]
        write_whole(self.plan, whole_yaml({**content, "runs": runs}))

    def read_plan(self) -> Sweep:
        try:
            told = load_yaml(self.plan)
            runs = [SweepRun(**run) for run in told.pop("runs")]
            return Sweep(runs=runs, **told)
        except (OSError, ValueError, RecursionError, yaml.YAMLError, TypeError, AttributeError, KeyError) as error:
            raise ValueError(f"{self.plan} is not what a sweep wrote: {' '.join(str(error).split())}") from None

    def write_status(self, states: dict[str, SweepRunState], *, pid: int, workers: int) -> None:
        content = {"pid": pid, "workers": workers, "runs": {name: asdict(state) for name, state in states.items()}}
        write_whole(self.status, json.dumps(content, indent=1) + "\n")

    def live_states(self, sweep: Sweep) -> dict[str, SweepRunState]:
        """The same for somebody who looks at a sweep that may go on: its runs are running while it holds the folder."""
        states = self.read_states(sweep)
        try:
            with self.hold():
                return states
        except FolderInUse:
            told = parsed(self.status.read_text())["runs"]
            return {
                name: replace(state, state="running") if told.get(name, {}).get("state") == "running" else state
                for name, state in states.items()
            }

    def read_states(self, sweep: Sweep) -> dict[str, SweepRunState]:
        """How far each run is: as status.json has it, where the run's own folder does not say otherwise."""
        try:
            told = parsed(self.status.read_text())["runs"]
        except (OSError, ValueError, KeyError):
            told = {}
        return {run.folder: self._state(run, SweepRunState(**told.get(run.folder, {}))) for run in sweep.runs}

    def _state(self, run: SweepRun, told: SweepRunState) -> SweepRunState:
        if self.is_complete(run):
            return replace(told, state="finished", error="")
        if told.state == "failed":
            return told
        has_begun = self.run_folder(run).events.is_file()
        return replace(told, state="interrupted" if has_begun else "waiting")

    def is_complete(self, run: SweepRun) -> bool:
        """Whether the run has got to its end."""
        try:
            return bool(parsed(self.run_folder(run).summary.read_text())["complete"])
        except (OSError, ValueError, KeyError):
            return False

    def last_words(self, run: SweepRun) -> str:
        """The last line that a run printed, which says why it failed if it did."""
        try:
            lines = self.console(run).read_text(errors="replace").splitlines()
        except OSError:
            return ""
        said = [line.removeprefix("headway: ") for line in lines if line.startswith("headway: ")]
        return (said or [line for line in lines if line.strip()] or [""])[-1].strip()
