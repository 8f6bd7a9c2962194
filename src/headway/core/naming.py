"""One clear line for a name nobody knows: what was received, what is allowed, the nearest known one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown(kind: str, received: str, allowed: Iterable[str]) -> str:
    """`unknown runtime 'thread'; did you mean 'threads'? allowed: inline, processes, threads`"""
    known = sorted(allowed)
    near = difflib.get_close_matches(received, known, n=1, cutoff=0.5)
    hint = f" did you mean {near[0]!r}?" if near else ""
    return f"unknown {kind} {received!r};{hint} allowed: {', '.join(known)}"
