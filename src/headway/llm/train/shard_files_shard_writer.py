"""Writes what is being trained into files while training goes on.

    begin(parts) --> a thread: block after block of every tensor, copied --> written --> a note that all of it is there
    learn        --> passes, which only read weights --> before_change() --> a step of the optimizer

So a save and the passes of the next update go on at the same time. A step changes everything: what is not written by
then is copied to the machine's memory first, AHEAD_BYTES of it at most; if there is more, the step waits until the rest
is so small. Beside the tensors themselves a save never needs more than that and one block (llm/train/shard_files.py).
"""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from headway.coordinator.state_files_whole_files import write_whole
from headway.llm.train.shard_files import Rows, as_rows, write_shard

AHEAD_BYTES = 1 << 30
"""Of a state that a rank keeps in the machine's memory so that a step need not wait for the disk."""


@dataclass(slots=True)
class _Source:
    """Rows of one tensor that are still to be written, from number `first` of them on."""

    rows: Tensor
    first: int = 0
    is_copy: bool = False

    @property
    def num_bytes(self) -> int:
        return self.rows.numel() * self.rows.element_size()


class ShardWriter:
    """Writes one state at a time. What it was given must not change without `before_change`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sources: dict[str, _Source] = {}  # in the order in which they are written
        self._is_writing = False
        self._thread: threading.Thread | None = None
        self.peak_bytes = 0
        """The most that was copied at once, of all saves so far."""

    def begin(self, folder: Path, number: int, parts: Mapping[str, Rows]) -> str:
        """Begins to write a shard; returns the name of the file that says when it is there, or why it is not. A save
        that is still going on is waited for."""
        self.wait()
        folder.mkdir(parents=True, exist_ok=True)
        self._sources = {name: _Source(as_rows(part.tensor)) for name, part in parts.items()}
        self._is_writing = True
        device = next((part.tensor.device for part in parts.values()), torch.device("cpu"))
        ready = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None
        note = f"shard-{number:05d}.note"
        work = folder, number, dict(parts), note, device, ready
        self._thread = threading.Thread(target=self._write, args=work, name="headway shard writer", daemon=True)
        self._thread.start()
        return note

    def before_change(self) -> None:
        """Returns when the tensors may change. (Who waits here for a disk has the deadline of its own call.)"""
        if not self._is_writing:
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._is_writing or self._live_bytes() <= AHEAD_BYTES)
            for source in self._sources.values():
                if not source.is_copy:
                    source.rows, source.is_copy = source.rows.to("cpu", copy=True), True
            self.peak_bytes = max(self.peak_bytes, sum(source.num_bytes for source in self._sources.values()))

    def wait(self) -> None:
        """Returns when nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _live_bytes(self) -> int:
        return sum(source.num_bytes for source in self._sources.values() if not source.is_copy)

    # -- in the thread ----------------------------------------------------------------------------------

    def _write(
        self,
        folder: Path,
        number: int,
        parts: dict[str, Rows],
        note: str,
        device: torch.device,
        ready: torch.cuda.Event | None,
    ) -> None:
        try:
            with torch.cuda.stream(None if ready is None else torch.cuda.Stream(device)):
                if ready is not None:
                    ready.wait()
                said: dict[str, object] = {"files": write_shard(folder, number, parts, self._read_block)}
        except (OSError, RuntimeError) as error:  # torch says so when there is no memory
            with suppress(OSError):  # perhaps that makes room for the note
                (folder / f"shard-{number:05d}.safetensors").unlink()
            code = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
            what = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            said = {"error": what, "errno": code, "path": getattr(error, "filename", None) or str(folder)}
        finally:
            with self._changed:
                self._sources = {}
                self._is_writing = False
                self._changed.notify_all()
        with suppress(OSError):  # who waits for the note has a deadline, and says whose is not there
            write_whole(folder / note, json.dumps(said, default=str))

    def _read_block(self, name: str, low: int, high: int) -> Tensor:
        with self._changed:
            for earlier in list(self._sources):  # written to the end, and let go
                if earlier == name:
                    break
                del self._sources[earlier]
            source = self._sources[name]
            block = source.rows[low - source.first : high - source.first]
            if not source.is_copy:
                block = block.to("cpu", copy=True)
            source.rows, source.first = source.rows[high - source.first :], high
            self._changed.notify_all()
        return block
