"""headway watch RUN [--checkpoint best|last|VERSION] [--seed N] [--max_moves N] [--quiet]: a policy plays a game.

Only runs of colorlines can be watched; the newest checkpoint is, unless another is named. Checkpoints are pickles:
watch only runs you trust.
"""

from __future__ import annotations

from pathlib import Path

from headway.cli import output
from headway.cli.output import say
from headway.cli.words import UsageError, needs_games, read_options, whole_numbers
from headway.coordinate.best_weights import LAST
from headway.observe.folder import RunFolder


def command(words: list[str]) -> int:
    """The command."""
    if not words or words[0].startswith("-"):
        raise UsageError("watch needs the folder of a run: headway watch RUN")
    folder = RunFolder.existing(Path(words[0]))
    with needs_games():
        from headway.cli.watching import MAX_MOVES, PAGE, watch
    options = read_options(words[1:])
    which = options.pop("checkpoint", LAST)
    options = whole_numbers(options, seed=0, max_moves=MAX_MOVES, quiet=False)
    frames = watch(folder, None if options.pop("quiet") else output.OUT, checkpoint=which, **options)
    say(f"{frames[-1].score} points; the game as a page: {folder.path / PAGE}")
    return 0
