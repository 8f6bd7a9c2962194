"""Scalars for TensorBoard, with the writer of the `tensorboard` package.

The step is the update. A score stands at the update that made its version, also when it comes late.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from headway.observe.metrics import Moment


class TensorBoardSink:
    """Event files in `folder`; nothing is there before the first point."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: EventFileWriter | None = None

    def __str__(self) -> str:
        return f"TensorBoard in {self._folder}"

    def write(self, moment: Moment, values: Mapping[str, float]) -> None:
        if self._writer is None:
            self._writer = self._open(moment)
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_event(Event(wall_time=time.time(), step=moment.update, summary=Summary(value=scalars)))
        self._writer.flush()  # whoever watches sees it now, and a killed run has it

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _open(self, moment: Moment) -> EventFileWriter:
        is_resumed = self._folder.is_dir() and any(self._folder.iterdir())
        writer = EventFileWriter(str(self._folder))
        if is_resumed:  # TensorBoard forgets what the session before wrote from this update on
            start = SessionLog(status=SessionLog.START)
            writer.add_event(Event(wall_time=time.time(), step=moment.update, session_log=start))
        return writer
