"""The statistics block at the end of a run, alone or side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

WIDTH = 80


def statistics_block(rows: Mapping[str, str], title: str = "Async Training Statistics") -> str:
    """The block users of the seed systems know: a title, then `name: value` lines between two rules."""
    lines = ["=" * WIDTH, f"{title}:"]
    lines += [f"  {name}: {value}" for name, value in rows.items()]
    lines.append("=" * WIDTH)
    return "\n".join(lines)


def side_by_side(columns: Mapping[str, Mapping[str, str]], title: str = "Async Training Statistics") -> str:
    """Several runs in one block, a column each."""
    names: list[str] = []
    for rows in columns.values():
        names += [name for name in rows if name not in names]
    first = max(len(name) for name in names)
    widths = [max(len(text) for text in (head, *rows.values())) for head, rows in columns.items()]
    lines = ["=" * WIDTH, f"{title}:", _line("", list(columns), first, widths)]
    for name in names:
        lines.append(_line(name, [rows.get(name, "-") for rows in columns.values()], first, widths))
    lines.append("=" * WIDTH)
    return "\n".join(lines)


def _line(name: str, values: Sequence[str], first: int, widths: Sequence[int]) -> str:
    cells = "  ".join(value.rjust(width) for value, width in zip(values, widths, strict=True))
    return f"  {name.ljust(first)}  {cells}".rstrip()


def seconds(value: float) -> str:
    """Short enough to compare, precise enough for milliseconds."""
    if value >= 10:
        return f"{value:.1f}s"
    return f"{value:.2f}s" if value >= 0.1 else f"{value * 1000:.2f}ms"
