"""headway play [--seed N]: Colour Lines by hand."""

from __future__ import annotations

from headway.cli import output
from headway.cli.words import needs_games, read_options, whole_numbers


def command(words: list[str]) -> int:
    """The command."""
    with needs_games():
        from headway.cli.watching import play_by_hand
    play_by_hand(output.OUT, **whole_numbers(read_options(words), seed=0))
    return 0
