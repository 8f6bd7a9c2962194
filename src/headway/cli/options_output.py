"""What the commands print goes through this file: sentences without markup, and tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from headway.core.text_one_line import visible
from headway.runs.console import Terminal

OUT = Terminal(highlight=False, soft_wrap=True, emoji=False)  # `textworld:cooking:` is a name


def say(text: str | None, style: str | None = None) -> None:
    """Print a text as it stands."""
    OUT.print(None if text is None else visible(text, 100_000), markup=False, style=style)


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under these heads."""
    table = Table(box=None, pad_edge=False)
    for place, head in enumerate(heads):
        table.add_column(head, overflow="fold", no_wrap=place == 0)
    for row in rows:
        table.add_row(*(cell.replace("[", "\\[") for cell in row))
    OUT.print(table)
