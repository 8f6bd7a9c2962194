"""Scalars for TensorBoard, with the writer of the `tensorboard` package.

    tensorboard/                every number; the step is the update
    tensorboard/by_env_step/    returns, lengths and scores once more; the step is the environment step

A score stands at the update that made its version, or at the environment steps behind it, also when it comes late. The
time of a point is the moment it is about, on the machine's clock. Of a long run fewer looks are kept (`spacing.py`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from headway.observe.metric_names import by_env_step
from headway.observe.metrics import Moment
from headway.observe.spacing import Spacing


class _Scalars:
    """The event files of one folder, whose steps are all of one kind; nothing is there before the first point."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: EventFileWriter | None = None

    def write(self, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        if self._writer is None and (values or self._is_resumed):
            self._writer = self._open(step, wall_time)
        if self._writer is None or not values:
            return
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_event(Event(wall_time=wall_time, step=step, summary=Summary(value=scalars)))
        self._writer.flush()  # whoever watches sees it now, and a killed run has it

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    @property
    def _is_resumed(self) -> bool:
        """An earlier session wrote here."""
        return self._folder.is_dir() and any(path.is_file() for path in self._folder.iterdir())

    def _open(self, step: int, wall_time: float) -> EventFileWriter:
        is_resumed = self._is_resumed
        writer = EventFileWriter(str(self._folder))
        if is_resumed:  # TensorBoard forgets what the session before wrote from this step on
            start = SessionLog(status=SessionLog.START)
            writer.add_event(Event(wall_time=wall_time, step=step, session_log=start))
        return writer


class TensorBoardSink:
    """Event files in `folder`, by update and by environment step."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._by_update = _Scalars(folder)
        self._by_env_step = _Scalars(folder / "by_env_step")
        self._spacing = Spacing()
        self._began_at: float | None = None  # when the clock of the run stood at zero

    def __str__(self) -> str:
        return f"TensorBoard in {self._folder}"

    def write(self, moment: Moment, values: Mapping[str, float]) -> None:
        if not self._spacing.takes(moment, values):
            return
        if self._began_at is None:
            self._began_at = time.time() - moment.time_s
        wall_time = self._began_at + moment.time_s
        self._by_update.write(moment.update, wall_time, values)
        self._by_env_step.write(moment.env_steps, wall_time, by_env_step(values))

    def close(self) -> None:
        self._by_update.close()
        self._by_env_step.close()
