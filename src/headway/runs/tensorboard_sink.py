"""Scalars for TensorBoard, in the format of the `tensorboard` package.

    tensorboard/                every number; the step is the update
    tensorboard/by_env_step/    returns, lengths and scores once more; the step is the environment step

A score stands at the update that made its version, or at the environment steps behind it, also when it comes late. The
time of a point is the moment it is about, on the machine's clock. Of a long run fewer looks are kept (`spacing.py`).

A session writes a file of its own, and TensorBoard reads them in the order of their names, which begin with a second. A
later session has a later one, also when it begins in the same second or the clock was put back.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from headway.runs.metrics import Moment
from headway.runs.metrics_metric_names import by_env_step
from headway.runs.sinks_spacing import Spacing

FILES = "events.out.tfevents."
FORMAT = "brain.Event:2"
"""What the first record of a file says it is."""


class _Scalars:
    """The event files of one folder, whose steps are all of one kind; nothing is there before the first point."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self._folder = folder
        self._clock = clock
        self._writer: RecordWriter | None = None

    def write(self, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        if self._writer is None and (values or self._is_resumed):
            self._writer = self._open(step, wall_time)
        if self._writer is None or not values:
            return
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        _write(self._writer, Event(wall_time=wall_time, step=step, summary=Summary(value=scalars)))
        self._writer.flush()  # whoever watches sees it now, and a killed run has it

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    @property
    def _is_resumed(self) -> bool:
        """An earlier session wrote here."""
        return bool(self._seconds())

    def _seconds(self) -> list[int]:
        """Those of the files that are there."""
        parts = (path.name.removeprefix(FILES).split(".")[0] for path in self._folder.glob(f"{FILES}*"))
        return [int(part) for part in parts if part.isdigit()]

    def _open(self, step: int, wall_time: float) -> RecordWriter:
        before = self._seconds()
        second = max([int(self._clock()), *(other + 1 for other in before)])
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{FILES}{second:010d}.{socket.gethostname()}.{os.getpid()}"
        writer = RecordWriter(path.open("xb"))
        _write(writer, Event(wall_time=wall_time, file_version=FORMAT))
        if before:  # TensorBoard forgets what the session before wrote from this step on
            _write(writer, Event(wall_time=wall_time, step=step, session_log=SessionLog(status=SessionLog.START)))
        return writer


def _write(writer: RecordWriter, event: Event) -> None:
    writer.write(event.SerializeToString())


class TensorBoardSink:
    """Event files in `folder`, by update and by environment step."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._clock = clock
        self._by_update = _Scalars(folder, clock)
        self._by_env_step = _Scalars(folder / "by_env_step", clock)
        self._spacing = Spacing()
        self._began_at: float | None = None  # when the clock of the run stood at zero

    def __str__(self) -> str:
        return f"TensorBoard in {self._folder}"

    def write(self, moment: Moment, values: Mapping[str, float]) -> None:
        if not self._spacing.takes(moment, values):
            return
        if self._began_at is None:
            self._began_at = self._clock() - moment.time_s
        wall_time = self._began_at + moment.time_s
        self._by_update.write(moment.update, wall_time, values)
        self._by_env_step.write(moment.env_steps, wall_time, by_env_step(values))

    def close(self) -> None:
        self._by_update.close()
        self._by_env_step.close()
