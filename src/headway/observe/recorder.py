"""The event log: every ticket's life and every version, one JSON object a line.

`events.jsonl` is append-only. A line is `{"t": seconds, "e": kind, ...}`; `docs/events.md` lists the kinds.
Lines are buffered and written in order; `flush` is called at every checkpoint, which remembers the size
of the file, so that a resumed run can cut off what happened after it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol


class Recorder(Protocol):
    """Takes events as they happen. Must be quick, and must not raise."""

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None: ...

    def flush(self) -> int:
        """Make everything durable; returns a position to resume from."""
        ...

    def close(self) -> None: ...


class NoRecorder:
    """Records nothing."""

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        pass

    def flush(self) -> int:
        return 0

    def close(self) -> None:
        pass


class MemoryRecorder:
    """Keeps events as dictionaries: for tests, and for runs without a folder."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        self.events.append({"t": time_s, "e": kind, **fields})

    def flush(self) -> int:
        return len(self.events)

    def close(self) -> None:
        pass


class PrintingRecorder:
    """Prints every event as it happens, and passes it on."""

    def __init__(self, behind: Recorder) -> None:
        self._behind = behind

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        details = " ".join(f"{name}={value}" for name, value in fields.items())
        print(f"[{time_s:.3f}] {kind} {details}", file=sys.stderr)
        self._behind.record(time_s, kind, fields)

    def flush(self) -> int:
        return self._behind.flush()

    def close(self) -> None:
        self._behind.close()


class EventLog:
    """Writes events to a file, in batches."""

    def __init__(self, path: Path, *, position: int | None = None, batch: int = 256) -> None:
        """With `position`, go on there: what lies behind it is moved to `<name>.discarded-<n>`."""
        self._batch = batch
        self._lines: list[str] = []
        if position is not None and path.exists() and path.stat().st_size > position:
            _set_tail_aside(path, position)
        self._file = open(path, "ab")  # noqa: SIM115 - open for the life of the run
        self._encode = json.JSONEncoder(separators=(",", ":"), default=str).encode

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        self._lines.append(self._encode({"t": round(time_s, 6), "e": kind, **fields}))
        if len(self._lines) >= self._batch:
            self._write()

    def flush(self) -> int:
        self._write()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        if not self._file.closed:
            self.flush()
            self._file.close()

    def _write(self) -> None:
        if self._lines:
            self._file.write(("\n".join(self._lines) + "\n").encode())
            self._file.flush()
            self._lines.clear()


def _set_tail_aside(path: Path, position: int) -> None:
    number = 0
    while (aside := path.with_suffix(f".discarded-{number}.jsonl")).exists():
        number += 1
    with open(path, "r+b") as file:
        file.seek(position)
        aside.write_bytes(file.read())
        file.truncate(position)


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a run, in order. A last line cut off by a crash is left out; any other is an error."""
    try:
        log = open(path, "rb")  # noqa: SIM115 - only opening may fail for a reason worth telling
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    with log as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                event = json.loads(line)
            except ValueError:
                raise ValueError(f"{path}, line {number}: not an event") from None
            if not isinstance(event, dict) or "e" not in event or "t" not in event:
                raise ValueError(f"{path}, line {number}: not an event")
            yield event
