"""headway status RUN: how far a run is and what each role does, from its folder, while it goes on or afterwards."""

from __future__ import annotations

from headway.cli import output
from headway.cli.output import say
from headway.cli.words import one_run
from headway.observe.status import read_status


def command(words: list[str]) -> int:
    """The command."""
    seen = read_status(one_run("status", words))
    say(seen.headline)
    say(seen.status.line())
    output.OUT.print(seen.status.block_of_roles())
    return 0
