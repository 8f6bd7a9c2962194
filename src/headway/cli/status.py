"""headway status RUN: how far a run is and what each role does, from its folder, while it goes on or afterwards.

Of a sweep (headway status SWEEP) how far each of its runs is.
"""

from __future__ import annotations

from headway.cli import options_output as output
from headway.cli.options_output import say
from headway.cli.options_words import one_run
from headway.cli.sweep_table import table_of
from headway.tools.report.status import read_status
from headway.tools.sweep.grid_folder import SweepFolder


def command(words: list[str]) -> int:
    """The command."""
    path = one_run("status", words)
    if SweepFolder.is_one(path):
        folder = SweepFolder(path)
        sweep = folder.read_plan()
        output.OUT.print(table_of(folder, sweep, folder.live_states(sweep)))
        return 0
    seen = read_status(path)
    say(seen.headline)
    say(seen.status.line())
    output.OUT.print(seen.status.block_of_roles())
    return 0
