"""What a run has to say beside its files."""

from __future__ import annotations

import sys
from contextlib import suppress


def say(line: str) -> None:
    """A line on standard error. That may be a file on a full disk: then nobody hears it, and the run goes on."""
    with suppress(OSError):
        print(f"headway: {line}", file=sys.stderr, flush=True)
