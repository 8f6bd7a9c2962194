"""Names: one clear line for one that nobody knows, and what the seats of a run are called."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

MANY = 40
"""Names beyond this are not listed where one of them is near: a reader looks for it, not for the others."""


def nearest(received: str, known: Iterable[str]) -> str | None:
    """The name that was meant, as far as one can tell: all but equal, one slip of the hand away, with the same
    beginning, or with the same words and more. None where every name is another one: a wild guess misleads."""
    names = sorted(known)
    close = difflib.get_close_matches(received, names, n=1, cutoff=0.8)
    if close:
        return close[0]
    said = set(WORD.findall(received.lower()))
    likely = [name for name in names if _is_one_slip(received, name) or _begin_alike(received, name)]
    if not likely and len(received) > 3:
        likely = [name for name in names if said and said < set(WORD.findall(name.lower()))]
    return next(iter(difflib.get_close_matches(received, likely, n=1, cutoff=0.0)), None)


WORD = re.compile(r"[a-z0-9]+")


def _is_one_slip(received: str, name: str) -> bool:
    """One letter is another one, or two neighbours have changed places."""
    wrong = [place for place, (one, other) in enumerate(zip(received, name, strict=False)) if one != other]
    if len(received) != len(name) or len(name) < 3 or not wrong:
        return False
    first, last = wrong[0], wrong[-1] + 1
    return len(wrong) == 1 or (last - first == 2 and received[first:last] == name[first:last][::-1])


def _begin_alike(received: str, name: str) -> bool:
    """One is the beginning of the other, and at least half of it."""
    short, long = sorted((received, name), key=len)
    return len(short) > 2 and long.startswith(short) and 2 * len(short) >= len(long)


def unknown(kind: str, received: str, allowed: Iterable[str], *, also: Iterable[str] = (), others: str = "") -> str:
    """`unknown runtime 'thread'; did you mean 'threads'? allowed: inline, processes, threads`

    `also` may be meant too, but is not listed. `others` says where many names are to be found, in place of a list.
    """
    known = sorted(set(allowed))
    near = nearest(received, {*known, *also})
    hint = f" did you mean {near!r}?" if near else ""
    if len(known) > MANY and (near or others):
        return f"unknown {kind} {received!r};{hint or f' {others}'}"
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
