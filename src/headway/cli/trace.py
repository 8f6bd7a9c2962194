"""headway trace RUN [--out FILE]: write trace.json for Perfetto, also of a run that goes on or was killed."""

from __future__ import annotations

from pathlib import Path

from headway.cli.options_output import say
from headway.cli.options_words import UsageError, one_run, read_options
from headway.core.text_naming import unknown
from headway.runs.folder import RunFolder
from headway.tools.report.timeline_trace import write_trace


def command(words: list[str]) -> int:
    """The command."""
    path, options = one_run("trace", words[:1]), read_options(words[1:])
    out = options.pop("out", None)
    for name in options:
        raise UsageError(unknown("option", name, ["out"]))
    written = write_trace(RunFolder(path), None if out is None else Path(str(out)))
    say(f"{written}: open it at https://ui.perfetto.dev")
    return 0
