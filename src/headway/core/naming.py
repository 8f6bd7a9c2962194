"""Names: one clear line for one that nobody knows, and what the seats of a run are called."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MANY = 40
"""Names beyond this are not listed where one of them is near: a reader looks for it, not for the others."""


def unknown(kind: str, received: str, allowed: Iterable[str], *, also: Iterable[str] = ()) -> str:
    """`unknown runtime 'thread'; did you mean 'threads'? allowed: inline, processes, threads`

    `also` may be meant too, but is not listed.
    """
    known = sorted(set(allowed))
    near = difflib.get_close_matches(received, sorted({*known, *also}), n=1, cutoff=0.6)
    hint = f" did you mean {near[0]!r}?" if near else ""
    if near and len(known) > MANY:
        return f"unknown {kind} {received!r};{hint}"
    return f"unknown {kind} {received!r};{hint} allowed: {', '.join(known)}"


def place_of(seat: int, collectors: int, lanes: int) -> tuple[int, int]:
    """The collector and the lane of a seat. Seats go round the `collectors` that a session begins with; each one that
    is added later has its seats behind all others, side by side."""
    later = seat - collectors * lanes
    return (seat % collectors, seat // collectors) if later < 0 else (collectors + later // lanes, later % lanes)


def seats_of(number: int, collectors: int, lanes: int) -> range:
    """The seats of a collector, in the order of its lanes."""
    if number < collectors:
        return range(number, collectors * lanes, collectors)
    return range(number * lanes, (number + 1) * lanes)


def seat_name(seat: int, collectors: int, lanes: int) -> str:
    """`collector-0`; with several lanes `collector-0/3`."""
    number, lane = place_of(seat, collectors, lanes)
    return f"collector-{number}" if lanes == 1 else f"collector-{number}/{lane}"


def learner_name(line: str) -> str:
    """`learner`; of another line than the first `<line>/learner`."""
    return f"{line}/learner" if line else "learner"
