"""What a person sees while a run goes on: one live block on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

REFRESH_S = 0.25
LINE_EVERY_S = 10.0


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
    roles: str

    def line(self) -> str:
        goal = f"{self.done:g}" if self.total is None else f"{self.done:g}/{self.total:g}"
        score = "" if self.score is None else f", score {self.score:g}"
        return (
            f"{self.unit} {goal}, version {self.version}, lead {self.lead:g}, "
            f"mean staleness {self.staleness:.2f}, {self.updates_per_s:.1f} updates/s{score}"
        )


class StatusDisplay:
    """Shows `status()` from a thread of its own until the `with` block ends."""

    def __init__(
        self, status: Callable[[], Status], console: Console | None = None, *, line_every_s: float = LINE_EVERY_S
    ) -> None:
        self._status = status
        self._console = console or Console(file=sys.stderr)
        self._line_every_s = line_every_s
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
        if self._console.is_terminal:
            self._show_live()
        else:
            while not self._over.wait(self._line_every_s):
                self._console.print(self._status().line(), highlight=False, soft_wrap=True)

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
        with Live(console=self._console, refresh_per_second=1 / REFRESH_S, transient=True) as live:
            while not self._over.wait(REFRESH_S):
                status = self._status()
                progress.update(task, completed=status.done, total=status.total)
                live.update(Group(progress, Text(status.line()), Text(status.roles, style="dim")))
