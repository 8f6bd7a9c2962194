"""A stretch of a run as text: one line a role, a character a few milliseconds.

collector-0  ████████████████████░░░░░░░░████████████████████
learner      ░░░░░░░░░░░░░░░░░░░░████████████████████░░░░░░░░
"""

from __future__ import annotations

from collections.abc import Iterable

from headway.core.history_records import RoleInterval
from headway.tools.report.recorded_run_run_history import LoggedEvent, tell

BUSY, IDLE = "█", "·"
WORK = ("collect", "apply", "learn", "evaluate")


def intervals(events: Iterable[LoggedEvent]) -> dict[str, list[RoleInterval]]:
    """When each role collected, learned or evaluated, from the event log."""
    busy: dict[str, list[RoleInterval]] = {}
    for interval in tell(events).intervals:
        if interval.what in WORK:
            busy.setdefault(interval.role, []).append(interval)
    return {role: busy[role] for role in sorted(busy)}


def text_timeline(events: Iterable[LoggedEvent], *, skip_s: float, seconds: float, width: int = 64) -> str:
    """The stretch from `skip_s` after the first collection, `seconds` long."""
    busy = intervals(events)
    if not busy:
        return "nothing happened"
    begin = min(work.begin for done in busy.values() for work in done) + skip_s
    cell = seconds / width
    names = max(len(role) for role in busy)
    lines = []
    for role, done in busy.items():
        cells = [IDLE] * width
        for work in done:
            first, last = (work.begin - begin) / cell, (work.end - begin) / cell
            for place in range(max(0, round(first)), min(width, round(last))):
                cells[place] = BUSY
        lines.append(f"  {role.ljust(names)}  {''.join(cells)}")
    return "\n".join(lines)
