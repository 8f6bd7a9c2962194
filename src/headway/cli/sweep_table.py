"""What a person sees of a sweep: a live table on a terminal, lines elsewhere, and what it came to.

learning_rate=0.001,seed=0   running    update 120   122880 steps   score 301   0:00:12
learning_rate=0.001,seed=1   finished   update 200   204800 steps   score 498   0:00:21
"""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType

from rich.live import Live
from rich.table import Table
from rich.text import Text

from headway.cli.options_output import OUT, print_table, say
from headway.core.types_opaque import JsonObject
from headway.runs.console import duration
from headway.runs.parsed_json import parsed
from headway.tools.sweep.grid import SweepRun
from headway.tools.sweep.grid_folder import Sweep, SweepFolder, SweepRunState
from headway.tools.sweep.runner_scheduler import Scheduler

LOOK_EVERY_S = 1.0
TAIL_BYTES = 1 << 14
MAX_ROWS = 24
STYLES = {"running": "bold", "finished": "green", "failed": "red", "interrupted": "yellow", "waiting": "dim"}
FIRST = ("running", "failed", "interrupted", "waiting", "finished")


class SweepTable:
    """Shows a sweep while it goes on. On no terminal, a line says what happens."""

    def __init__(self, folder: SweepFolder, *, is_shown: bool) -> None:
        self._folder = folder
        self._is_shown = is_shown
        self._live = Live(console=OUT, auto_refresh=False, transient=False) if is_shown and OUT.is_terminal else None
        self._looked_s = 0.0

    def __enter__(self) -> SweepTable:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the last table as it is."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, line: str) -> None:
        """Above the table."""
        if self._is_shown:
            say(line)

    def look(self, scheduler: Scheduler) -> None:
        """Draw it anew, about once a second and at the end."""
        now = time.monotonic()
        if self._live is None or (scheduler.workers and now < self._looked_s + LOOK_EVERY_S):
            return
        self._looked_s = now
        self._live.update(table_of(self._folder, scheduler.sweep, scheduler.states), refresh=True)


def table_of(folder: SweepFolder, sweep: Sweep, states: dict[str, SweepRunState]) -> Table:
    """A row a run; of many, those that go on first, and the others are counted."""
    table = Table(box=None, pad_edge=False)
    for head in ("run", "state", "update", "steps", "score", "return", "time"):
        table.add_column(head, justify="left" if head in ("run", "state") else "right", no_wrap=head != "run")
    runs = sorted(sweep.runs, key=lambda run: FIRST.index(states[run.folder].state))
    shown = runs if len(runs) <= MAX_ROWS else runs[: MAX_ROWS - 1]
    for run in sorted(shown, key=sweep.runs.index):
        table.add_row(*_row(folder, run, states[run.folder]))
    if len(shown) < len(runs):
        left = [states[run.folder].state for run in runs[len(shown) :]]
        counts = ", ".join(f"{left.count(state)} {state}" for state in FIRST if state in left)
        table.add_row(Text(f"and {len(left)} more", style="dim"), Text(counts, style="dim"))
    return table


def _row(folder: SweepFolder, run: SweepRun, state: SweepRunState) -> list[Text]:
    seen = last_numbers(folder.run_folder(run).metrics)

    def shown(name: str, form: str) -> str:
        value = seen.get(name)
        return "" if value is None else format(value, form)

    word = Text(state.state, style=STYLES[state.state])
    spent = duration(seen["time_s"]) if "time_s" in seen else ""
    numbers = (
        shown("update", "d"),
        shown("env_steps", ","),
        shown("evaluate/score", ".4g"),
        shown("learn/return", ".4g"),
    )
    return [Text(run.folder), word, *map(Text, numbers), Text(spent)]


def last_numbers(metrics: Path) -> JsonObject:
    """The newest value of each number, from the end of metrics.jsonl."""
    seen: JsonObject = {}
    try:
        with open(metrics, "rb") as file:
            file.seek(max(0, metrics.stat().st_size - TAIL_BYTES))
            for line in file.read().splitlines():
                try:
                    told = parsed(line)
                except ValueError:
                    continue  # cut at its beginning, or not whole yet
                where = {"update", "env_steps", "time_s"} if told.get("update", 0) < seen.get("update", 0) else set()
                seen |= {name: value for name, value in told.items() if name not in where}
    except OSError:
        pass
    return seen


def print_results(results: JsonObject) -> None:
    """The settings with what they came to."""
    rows = []
    for setting in results["settings"]:
        final = setting["final"]
        numbers = [between(final[name]) for name in ("mean", "iqm")] if final else ["-", "-"]
        spent = "-" if setting["seconds"] is None else duration(setting["seconds"])
        steps = "-" if setting["env_steps"] is None else f"{setting['env_steps']:,.0f}"
        rows.append([setting["label"], *numbers, steps, spent, f"{setting['finished']} of {setting['runs']}"])
    what = results["compared_by"] or "score"
    print_table(["setting", f"{what}: mean [95 %]", "interquartile mean", "steps", "time", "finished"], rows)


def between(estimate: list[float | None]) -> str:
    """A value and its interval."""
    value, low, high = estimate
    if value is None:
        return "-"
    return f"{value:.4g}" if low is None else f"{value:.4g} [{low:.4g}, {high:.4g}]"
