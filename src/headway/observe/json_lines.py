"""`metrics.jsonl`: a file of points, a line each."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from headway.observe.metrics import Moment


class JsonLines:
    """`metrics.jsonl`: a line a point. What is no finite number is null there."""

    def __init__(self, path: Path, *, until_s: float | None = None) -> None:
        """With `until_s`, go on there: later points are cut off, they will be made again."""
        if until_s is not None and path.exists():
            _cut(path, until_s)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - a line is one write: whole, or not there

    def write(self, moment: Moment, values: Mapping[str, float]) -> None:
        where = {"time_s": moment.time_s, "update": moment.update, "version": moment.version}
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        self._file.write(json.dumps({**where, **finite}, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        self._file.close()


def _cut(path: Path, until_s: float) -> None:
    """Drop the lines of later moments, and a last one that a crash has cut off."""
    keep = 0
    with open(path, "r+b") as file:
        for line in file:
            try:
                is_later = json.loads(line)["time_s"] > until_s + 1e-6  # as far as times are rounded
            except (ValueError, KeyError, TypeError):
                break
            if is_later or not line.endswith(b"\n"):
                break
            keep += len(line)
        file.truncate(keep)
