"""Names: one clear line for one that nobody knows, and what the seats of a run are called."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown(kind: str, received: str, allowed: Iterable[str]) -> str:
    """`unknown runtime 'thread'; did you mean 'threads'? allowed: inline, processes, threads`"""
    known = sorted(allowed)
    near = difflib.get_close_matches(received, known, n=1, cutoff=0.6)
    hint = f" did you mean {near[0]!r}?" if near else ""
    return f"unknown {kind} {received!r};{hint} allowed: {', '.join(known)}"


def seat_name(seat: int, collectors: int, lanes: int) -> str:
    """`collector-0`; with several lanes `collector-0/3`. Seats go round the collectors."""
    name = f"collector-{seat % collectors}"
    return name if lanes == 1 else f"{name}/{seat // collectors}"


def learner_name(line: str) -> str:
    """`learner`; of another line than the first `<line>/learner`."""
    return f"{line}/learner" if line else "learner"
