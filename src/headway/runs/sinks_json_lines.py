"""`metrics.jsonl`: a file of points, a line each.

The file is bounded: when it grows beyond its limit, of the points of each stretch of time only the last stays, and the
stretches are made longer until those that stay fill half of it. So a long run is seen as a whole, and of its end more
than of its beginning. Totals stay what they are; of what a point says of its own interval a part is gone. Scores and
alarms stay as long as they fill no more than a quarter of it.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from headway.coordinator.state_files_whole_files import written_beside
from headway.runs.metrics import Moment
from headway.runs.parsed_json import parsed

LIMIT_BYTES = 16 * 2**20


class JsonLines:
    """`metrics.jsonl`: a line a point. What is no finite number is null there."""

    def __init__(self, path: Path, *, until_s: float | None = None, limit_bytes: int = LIMIT_BYTES) -> None:
        """With `until_s`, go on there: later points are cut off, they will be made again."""
        if until_s is not None and path.exists():
            _cut(path, until_s)
        self._path = path
        self._limit_bytes = limit_bytes
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - a line is one write: whole, or not there

    def write(self, moment: Moment, values: Mapping[str, float]) -> None:
        where = asdict(moment)
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        self._file.write(json.dumps({**where, **finite}, separators=(",", ":")).encode() + b"\n")
        if self._file.tell() > self._limit_bytes:
            _thin(self._path, self._limit_bytes // 2)
            self._file.close()
            self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115

    def close(self) -> None:
        self._file.close()


def _cut(path: Path, until_s: float) -> None:
    """Drop the lines of later moments, and those at the end that a crash has damaged. Only what goes is looked at."""
    with open(path, "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        if end:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as lines:
                begin = lines.rfind(b"\n", 0, end - 1) + 1
                while end and not _is_until(lines[begin:end], until_s):
                    end, begin = begin, lines.rfind(b"\n", 0, max(0, begin - 1)) + 1
        file.truncate(end)


def _is_until(line: bytes, until_s: float) -> bool:
    try:
        return line.endswith(b"\n") and parsed(line)["time_s"] <= until_s + 1e-6  # as far as times are rounded
    except (ValueError, KeyError, TypeError):
        return False


def _thin(path: Path, num_bytes: int) -> None:
    """Write the file anew, beside it, with about so many bytes of it."""
    with open(path, "rb") as file:
        lines = [(json.loads(line), line) for line in file]
    looks = [(point["time_s"], place, len(line)) for place, (point, line) in enumerate(lines) if _is_look(point)]
    others = [(point["time_s"], place, len(line)) for place, (point, line) in enumerate(lines) if not _is_look(point)]
    kept = set(_last_of_stretches(others, num_bytes // 2))
    kept |= set(_last_of_stretches(looks, num_bytes - sum(len(lines[place][1]) for place in kept)))
    with written_beside(path) as beside, open(beside, "wb") as file:
        file.writelines(line for place, (_, line) in enumerate(lines) if place in kept)


def _is_look(point: Mapping[str, float]) -> bool:
    return "run/updates" in point and "evaluate/score" not in point


def _last_of_stretches(points: Sequence[tuple[float, int, int]], num_bytes: int) -> list[int]:
    """The places of these (time, place, bytes) that fit into so many bytes: all, or the last one of each second, of
    each two, four, eight."""
    kept, stretch_s = {place: size for _, place, size in points}, 0.5
    while sum(kept.values()) > num_bytes and len(kept) > 1:
        stretch_s *= 2
        last = {time_s // stretch_s: (place, size) for time_s, place, size in points}
        kept = dict(last.values())
    return list(kept)
