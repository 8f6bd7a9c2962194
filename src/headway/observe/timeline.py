"""A stretch of a run as text: one line a role, a character a few milliseconds.

collector-0  ████████████████████░░░░░░░░████████████████████
learner      ░░░░░░░░░░░░░░░░░░░░████████████████████░░░░░░░░
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headway.core.naming import seat_name

BUSY, IDLE = "█", "·"
Interval = tuple[float, float]


def intervals(events: Iterable[dict[str, Any]]) -> dict[str, list[Interval]]:
    """When each role was busy, from the event log."""
    busy: dict[str, list[Interval]] = {}
    started: dict[tuple[str, int], tuple[str, float]] = {}
    collectors, lanes = 0, 1
    for event in events:
        kind, when = event["e"], event["t"]
        if kind == "run":
            collectors, lanes = event.get("collectors", 0), event.get("lanes", 1)
        elif kind == "start":
            started["collect", event["k"]] = (seat_name(event["c"], collectors or event["c"] + 1, lanes), when)
        elif kind in ("land", "reissue") and ("collect", event["k"]) in started:
            role, since = started.pop(("collect", event["k"]))
            busy.setdefault(role, []).append((since, when))
        elif kind == "learn":
            busy.setdefault("learner", []).append((when - event["d"], when))
        elif kind == "evaluate":
            started["evaluate", event["v"]] = ("evaluator", when)
        elif kind == "score" and ("evaluate", event["v"]) in started:
            role, since = started.pop(("evaluate", event["v"]))
            busy.setdefault(role, []).append((since, when))
    return {role: busy[role] for role in sorted(busy)}


def text_timeline(events: Iterable[dict[str, Any]], *, skip_s: float, seconds: float, width: int = 64) -> str:
    """The stretch from `skip_s` after the first collection, `seconds` long."""
    busy = intervals(events)
    if not busy:
        return "nothing happened"
    begin = min(since for spans in busy.values() for since, _ in spans) + skip_s
    cell = seconds / width
    names = max(len(role) for role in busy)
    lines = []
    for role, spans in busy.items():
        marks = [IDLE] * width
        for since, until in spans:
            first, last = (since - begin) / cell, (until - begin) / cell
            for place in range(max(0, round(first)), min(width, round(last))):
                marks[place] = BUSY
        lines.append(f"  {role.ljust(names)}  {''.join(marks)}")
    return "\n".join(lines)
