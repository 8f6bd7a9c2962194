"""What is long, or has several lines, said in one short line."""

from __future__ import annotations


def in_a_line(error: BaseException, limit: int = 120) -> str:
    """`KeyError: 'x'`."""
    return f"{type(error).__name__}: {shortened(error, limit)}"


def shortened(text: object, limit: int = 120) -> str:
    """On one line."""
    line = " ".join(str(text).split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
