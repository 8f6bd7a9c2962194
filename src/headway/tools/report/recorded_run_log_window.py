"""The last lines of a long log by themselves, in whichever of its parts they lie.

events-...jsonl.gz   events-...jsonl.gz   events.jsonl
                ... last `run` or `part` ... | the window |
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headway.core.types_opaque import JsonObject
from headway.runs.event_log import parse_event
from headway.runs.log_parts import all_parts, lines_from


@dataclass(frozen=True, slots=True)
class LogWindow:
    """The last lines of a log, in its parts."""

    position: int
    """Of the first of them."""
    head: JsonObject
    """The event that stands for everything before: with which settings the session had begun."""


def find_window(path: Path, num_bytes: int) -> LogWindow | None:
    """About so many bytes of a log, from a whole line on; None where that is all of it, or it does not say which run it
    is. Of what is before it only one part is read."""
    while True:
        parts = all_parts(path)
        wanted = parts[-1].end - num_bytes
        if wanted <= parts[0].begin:
            return None
        part = next(part for part in parts if part.end > wanted)
        try:
            with part.open() as file:
                before = file.read(wanted - part.begin) + file.readline()
        except FileNotFoundError:  # it was closed or compressed meanwhile, and has another name
            continue
        break
    last = max(before.rfind(b'"e":"run"'), before.rfind(b'"e":"part"'))
    if last < 0:
        return None
    line = before[before.rfind(b"\n", 0, last) + 1 : before.find(b"\n", last)]
    head = parse_event(line, path, 0)
    run = head.get("run", head)
    position = part.begin + len(before)
    first = next(lines_from(path, position), None)
    since = run["t"] if first is None else parse_event(first, path, 0)["t"]
    return LogWindow(position, {"t": since, "e": "part", "run": run})
