"""headway scale RUN --collectors N [--within SECONDS]

Adds collectors to a run that goes on, or takes some away: those with the highest numbers, when what they have in
flight has landed. Says what came of it, or why the number stays; after --within seconds (default 150) that the run has
not answered. Only the user who runs the run may do so. In a pinned run the change holds from the next ticket on, and
whoever is taken away leaves when its last ticket has settled."""

from __future__ import annotations

from pathlib import Path

from headway.cli.options_output import say
from headway.cli.options_words import UsageError, read_options
from headway.core.text_naming import unknown
from headway.runs.folder import RunFolder
from headway.runs.requests import ask_to_scale
from headway.tools.sweep.grid_folder import SweepFolder

WITHIN_S = 150.0
"""Longer than a role may take to start, by default."""


def command(words: list[str]) -> int:
    """The command."""
    if not words or words[0].startswith("-"):
        raise UsageError("scale needs the folder of a run: headway scale RUN --collectors N")
    path, options = Path(words[0]), read_options(words[1:])
    if SweepFolder.is_one(path):
        raise UsageError(f"{path} is a sweep: scale one of its runs")
    for name in options:
        if name not in ("collectors", "within"):
            raise UsageError(unknown("option", name, ("collectors", "within")))
    if options.get("collectors", True) is True:  # not there, or there and no number behind it
        raise UsageError(f"how many? headway scale {path} --collectors N")
    collectors, within_s = options["collectors"], options.get("within", WITHIN_S)
    if not isinstance(collectors, int) or isinstance(collectors, bool) or collectors < 1:
        raise UsageError(f"--collectors must be a whole number from 1 on, received {collectors!r}")
    if not isinstance(within_s, int | float) or isinstance(within_s, bool) or within_s <= 0:
        raise UsageError(f"--within must be a number of seconds, received {within_s!r}")
    say(ask_to_scale(RunFolder(path), collectors, within_s))
    return 0
