"""`run.log`: lines for people, written while a run goes on and never in its way."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from headway.core.refusals import refusal
from headway.observe.standard_error import say


@contextmanager
def run_log(path: Path) -> Iterator[TextIO | None]:
    """The log, to append to. A log that cannot be written is said once, on standard error; the run does without it."""
    try:
        raw = _LogFile(path, "a")
    except OSError as error:
        _say(error, path)
        yield None
        return
    with io.TextIOWrapper(io.BufferedWriter(raw)) as log:
        yield log


class _LogFile(io.FileIO):
    """Takes whatever is written, also what no longer gets to the disk."""

    is_writable = True

    def write(self, data: Any) -> int:
        if self.is_writable:
            try:
                return super().write(data)
            except OSError as error:
                self.is_writable = False
                _say(error, self.name)
        return memoryview(data).nbytes


def _say(error: OSError, path: object) -> None:
    error.filename = error.filename or str(path)
    say(f"no more lines in the log of the run: {refusal(error)}")
