"""What a person sees while a run goes on: a live block on a terminal, a bar in a notebook, lines elsewhere.

update ━━━━━━━━━━━━╺━━━━━━━━━━━━━━━━━  412/1000 0:00:31 0:00:44
version 412, lead 2, staleness 1.03 mean / 2 max, 13.3 updates/s, 53.2 rollouts/s, 3405 steps/s, score 181 (version 400)
learner      is busy: learn, 4 rollouts at version 412      0.1 s   answered 0.1 s ago
collector-0  waits for a ticket: 12 of 12 slots occupied    0.4 s   answered 0.4 s ago   restarted 1x
ALARM: stale_samples_ratio is 0.93, above 0.5 (share of the trained rollouts that were not of the newest version)

The run is looked at from its own thread, four times a second (`Status`); drawing happens in another one.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from headway.coordinator.activities import WAITS, in_words, were_in_words
from headway.core.text_messages import to_stderr
from headway.core.text_one_line import shortened, visible
from headway.runs.console_notebook_cells import replaceable_text
from headway.runs.log_file import TextLog
from headway.tools.report.recorded_run_story_records import role_order

REFRESH_S = 0.25
CELL_REFRESH_S = 1.0
LINE_EVERY_S = 10.0
MAX_ROWS = 12  # more collectors are counted instead of listed
MOST_IN_CELL = 200


class Terminal(Console):
    """A console whose reader may go away, which ends nobody's work, and whose text may be a stranger's, which only a
    terminal would obey."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Print nothing more, also not what is still in Python's own buffer."""
        self.quiet = True
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())
        if self.file is sys.stdout:
            to_stderr("standard output is closed: nothing more is printed there")

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except OSError as error:
            if error.errno != errno.EIO:  # a terminal that was closed, to which rich does not attend
                raise
            self.on_broken_pipe()


@dataclass(frozen=True, slots=True)
class RoleStatus:
    """A role at one moment."""

    role: str
    activity: str
    words: str
    """`is busy: collect, ticket 7 at version 3`"""
    since_s: float
    answered_s: float | None = None
    """Seconds since its last call came back."""
    restarts: int = 0
    is_gone: bool = False
    """Its process is no more: this is what it did last."""

    @property
    def is_waiting(self) -> bool:
        return self.activity in WAITS

    def health(self) -> str:
        answered = "" if self.answered_s is None else f"answered {duration(self.answered_s)} ago"
        if not self.restarts:
            return answered
        return ", ".join(part for part in (answered, f"restarted {self.restarts}x") if part)


@dataclass(frozen=True, slots=True)
class LineStatus:
    """Another line than the first at one moment."""

    name: str
    updates: int
    version: int
    lead: float
    staleness: float
    max_staleness: int
    drops: dict[str, int] = field(default_factory=dict)

    def line(self) -> str:
        dropped = ", ".join(f"{count} {reason}" for reason, count in self.drops.items() if count)
        return (
            f"line {self.name}: update {self.updates}, version {self.version}, lead {self.lead:g}, "
            f"staleness {self.staleness:.2f} mean / {self.max_staleness} max"
        ) + (f", dropped {dropped}" if dropped else "")


@dataclass(frozen=True, slots=True)
class Status:
    """A run at one moment."""

    done: float
    total: float | None
    unit: str
    version: int
    lead: float
    staleness: float
    updates_per_s: float
    score: float | None
    roles: tuple[RoleStatus, ...]
    max_staleness: int = 0
    rollouts_per_s: float = 0.0
    steps_per_s: float = 0.0
    score_version: int | None = None
    drops: dict[str, int] = field(default_factory=dict)
    restarts: int = 0
    alarms: tuple[str, ...] = ()
    """A line for each that is raised."""
    lines: tuple[LineStatus, ...] = ()
    """Those besides the first."""
    episodes: str = ""
    """Of a run that learns from episodes: how those of the last updates went."""

    def line(self) -> str:
        """One for the run, and one for each line besides the first."""
        goal = f"{self.done:g}" if self.total is None else f"{self.done:g}/{self.total:g}"
        episodes = f"; episodes: {self.episodes}" if self.episodes else ""
        first = f"{self.unit} {goal}, {self._numbers(f'mean staleness {self.staleness:.2f}')}{episodes}"
        return "\n".join([first, *(line.line() for line in self.lines)])

    def _numbers(self, staleness: str) -> str:
        paused_s = next(
            (one.since_s for one in self.roles if (one.role, one.activity) == ("learner", "evaluation")), None
        )
        parts = [] if paused_s is None else [f"evaluating for {duration(paused_s)}"]
        parts += [f"version {self.version}", f"lead {self.lead:g}", staleness, f"{_rate(self.updates_per_s)} updates/s"]
        if self.rollouts_per_s:
            parts.append(f"{_rate(self.rollouts_per_s)} rollouts/s")
        if self.steps_per_s:
            parts.append(f"{self.steps_per_s:.0f} steps/s")
        if self.score is not None:
            at = "" if self.score_version is None else f" (version {self.score_version})"
            parts.append(f"score {self.score:g}{at}")
        if any(self.drops.values()):
            dropped = ", ".join(f"{count} {reason}" for reason, count in self.drops.items() if count)
            parts.append(f"dropped {dropped}")
        if self.restarts:
            parts.append(f"{self.restarts} restarts")
        return ", ".join(parts)

    def block(self) -> RenderableType:
        """Everything below the progress bar."""
        staleness = f"staleness {self.staleness:.2f} mean / {self.max_staleness} max"
        numbers = [self._numbers(staleness), *([f"episodes: {self.episodes}"] if self.episodes else [])]
        return Group(*map(Text, (*numbers, *(line.line() for line in self.lines))), self.block_of_roles())

    def block_of_roles(self) -> RenderableType:
        return Group(roles_table(self.roles), *(Text(line, style="bold red") for line in self.alarms))


def _rate(per_s: float) -> str:
    """`12.3`; what is slow keeps two digits: `0.0042`."""
    return f"{per_s:.1f}" if per_s >= 0.1 or not per_s else f"{per_s:.2g}"


def roles_table(roles: Sequence[RoleStatus]) -> Table:
    """A line a role; if there are too many collectors, a line for each thing they do."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for justify in ("left", "left", "right", "left"):
        table.add_column(justify=justify, overflow="fold")
    ordered = sorted(roles, key=lambda status: role_order(status.role))
    collectors = [status for status in ordered if status.role.startswith("collector-")]
    if len(collectors) > MAX_ROWS:
        ordered = [status for status in ordered if status not in collectors]
        restarts = sum(status.restarts for status in collectors)
        for (activity, is_gone), count in Counter((one.activity, one.is_gone) for one in collectors).most_common():
            health = f"restarted {restarts}x in all" if restarts else ""
            words = were_in_words(activity) if is_gone else in_words(activity)
            table.add_row(f"{count} collectors", words, "", health)
    for status in ordered:
        row = (status.role, status.words, duration(status.since_s), status.health())
        table.add_row(*(Text(shortened(cell, MOST_IN_CELL)) for cell in row), style="dim" if status.is_waiting else "")
    return table


def duration(seconds: float) -> str:
    """`0.3 s`, `42 s`, `3 min`, `2.5 h`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def progress_bar(status: Status, width: int = 30) -> str:
    """`[######........................]`; nothing where the end is not known."""
    if not status.total:
        return ""
    done = round(width * min(status.done / status.total, 1.0))
    return f"[{'#' * done}{'.' * (width - done)}]"


class StatusDisplay:
    """Shows `status()` from a thread of its own until the `with` block ends. Where there is a log, every
    `line_every_s` a line goes there, and one for each role below it."""

    def __init__(
        self,
        status: Callable[[], Status],
        console: Console | None = None,
        *,
        line_every_s: float | None = None,
        log: TextLog | None = None,
        is_shown: bool = True,
    ) -> None:
        self._status = status
        self._console = console or Terminal(file=sys.stderr, emoji=False)
        self._line_every_s = LINE_EVERY_S if line_every_s is None else line_every_s
        self._log = log
        self._is_shown = is_shown
        self._cell = replaceable_text() if is_shown and console is None else None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, name="status", daemon=True)

    def __enter__(self) -> StatusDisplay:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _show(self) -> None:
        if self._cell is not None:
            self._show_in_cell(self._cell)
            return
        if self._is_shown and self._console.is_terminal:
            self._show_live()
            return
        while not self._over.wait(self._line_every_s):
            status = self._status()
            if self._is_shown:
                self._console.print(status.line(), highlight=False, soft_wrap=True, markup=False)
            self._write_log(status)

    def _show_in_cell(self, show: Callable[[str], None]) -> None:
        rounds, every = 0, max(1, round(self._line_every_s / CELL_REFRESH_S))
        is_over = False
        while not is_over:
            is_over = self._over.wait(CELL_REFRESH_S)
            status = self._status()
            show("\n".join([f"{progress_bar(status)} {status.line()}", *status.alarms]))
            rounds += 1
            if rounds % every == 0:
                self._write_log(status)

    def _show_live(self) -> None:
        progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        first = self._status()
        task = progress.add_task(first.unit, total=first.total)
        rounds, every = 0, max(1, round(self._line_every_s / REFRESH_S))
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while not self._over.wait(REFRESH_S):
                status = self._status()
                progress.update(task, completed=status.done, total=status.total)
                live.update(Group(progress, status.block()), refresh=True)
                rounds += 1
                if rounds % every == 0:
                    self._write_log(status)

    def _write_log(self, status: Status) -> None:
        if self._log is not None:
            roles = sorted(status.roles, key=lambda role: role_order(role.role))
            lines = [status.line(), *(f"  {role.role} {role.words} ({duration(role.since_s)})" for role in roles)]
            self._log.write("\n".join([*lines, *status.alarms]) + "\n")
