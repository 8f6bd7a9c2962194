"""One run of a sweep in a process of its own, seen from the sweep.

    SweepWorker(job) --> it runs --> over: finished, interrupted (asked to, or killed), failed (with its last words)
        ask(): save and end after this update     again: at once     kill()

It is in a process group of its own: Ctrl-C on the terminal reaches the sweep alone, which decides. It dies with the
sweep, whatever ends that.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from headway.core.types_opaque import JsonObject
from headway.runtimes.child_process_channel import Channel
from headway.runtimes.child_process_child import THREAD_VARIABLES, Child, python_command, thread_limits
from headway.tools.sweep.grid import SweepRun

PROGRAM = "headway.cli.sweep_run"
ENDS_IN_S = 10.0


class SweepWorker:
    """A child that runs one run."""

    def __init__(
        self, recipe: str, run: SweepRun, path: Path, console: Path, settings: JsonObject, threads: int
    ) -> None:
        self.run = run
        limits = {} if any(name in os.environ for name in THREAD_VARIABLES) else thread_limits(threads)
        self._child = Child(python_command(PROGRAM, f"headway sweep: {run.folder}"), limits, own_group=True)
        job = {"recipe": recipe, "folder": str(path), "console": str(console), "settings": settings}
        Channel(self._child.socket).send(json.dumps(job).encode())

    @property
    def pid(self) -> int:
        return self._child.pid

    def fileno(self) -> int:
        """Readable when it is over."""
        return self._child.socket.fileno()

    @property
    def is_over(self) -> bool:
        return self._child.is_over

    def ask(self) -> None:
        """To save and to end; the second time: at once."""
        if not self._child.is_over:
            try:
                os.kill(self._child.pid, signal.SIGTERM)
            except ProcessLookupError:
                pass

    def kill(self) -> None:
        self._child.kill()

    def how_it_ended(self) -> str:
        """`exited with code 0`, `was killed by SIGKILL`."""
        return self._child.how_it_ended(ENDS_IN_S)

    def close(self) -> None:
        """Leave nothing of it."""
        self._child.end()
