"""A line to whoever started a run."""

from __future__ import annotations

import sys
from collections.abc import Callable

from headway.core.text_one_line import visible

Say = Callable[[str], None]


def to_stderr(line: str) -> None:
    """On standard error, at once, if there is still somebody to read it."""
    try:
        print(f"headway: {visible(line, 10_000)}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass
