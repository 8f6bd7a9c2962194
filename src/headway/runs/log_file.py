"""A log that a thread of its own writes: whoever hands lines over never waits for the disk, and never hears of it.

    write(lines) --> [ pending ] --thread--> the file, in parts (`log_parts.py`)
    sync(mark)   --> the mark is told when everything before it is on the disk

    writing --(the disk is full, say)--> held back: tried again every second --(it works again)--> writing
       |                                      |
       +------(more than `hold_bytes` wait, or the disk has not answered for `silent_s`)------> off

Being held back and being off is said once each. What waits is kept in memory, up to `hold_bytes`. A log that is off
ends somewhere, at most with one line that is not whole, and the run goes on without it.

A log may have a limit: then its oldest parts are let go, which is said when the first of them goes. A log of text has
two parts at most, the one that is being written and the one before (`run.log`, `run.before.log`).
"""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from typing import Protocol

from headway.core.text_messages import Say, to_stderr
from headway.runs.log_parts import (
    KNOWN_BY_BYTES,
    begin_of_last_part,
    close_part,
    closed_parts,
    compress,
    let_oldest_go,
    log_begin,
)
from headway.runs.log_worker import Worker

PART_BYTES = 16 * 2**20
LEAST_PARTS = 4
"""That a limit has room for: the one being written, one being compressed, and others."""
TEXT_BYTES = 16 * 2**20
LOG_LIMIT_MB = 10 * 1024
"""Of an event log, unless it is said: with 50 bytes a ticket, compressed, some 2 * 10^8 of them."""
HOLD_BYTES = 64 * 2**20
AGAIN_EVERY_S = 1.0
SILENT_S = 60.0
CLOSE_WITHIN_S = 30.0


def wrong_log_limit(limit_mb: int) -> str:
    """What is wrong with a limit in MiB, or nothing. 0 is none."""
    least = LEAST_PARTS * PART_BYTES >> 20
    if limit_mb == 0 or limit_mb >= least:
        return ""
    return f"log_limit_mb must be 0 (no limit) or at least {least}, received {limit_mb!r}"


class FullParts(Protocol):
    """What becomes of a part that is full. Both are called by the thread that writes, and may be called again."""

    def close(self, path: Path) -> None:
        """The file at `path` is full: afterwards there is none."""

    def tidy(self, path: Path) -> None:
        """The next part is being written."""


class Compressed:
    """Compresses parts that are full, and lets the oldest go where there is a limit in bytes."""

    def __init__(self, limit_bytes: int = 0, part_bytes: int = PART_BYTES, *, say: Say = to_stderr) -> None:
        if limit_bytes and limit_bytes < LEAST_PARTS * part_bytes:
            raise ValueError(f"a limit must have room for {LEAST_PARTS} parts of {part_bytes} bytes: {limit_bytes}")
        self._closed_bytes = limit_bytes and limit_bytes - 2 * part_bytes
        self._say = say

    def close(self, path: Path) -> None:
        close_part(path)

    def tidy(self, path: Path) -> None:
        compress(closed_parts(path)[-1].path)
        was_whole = log_begin(path) == 0
        if self._closed_bytes and let_oldest_go(path, self._closed_bytes) and was_whole:
            self._say(
                f"{path} has come to its limit (log_limit_mb): from now on its oldest part is let go whenever a new "
                "one begins. The run goes on, and cannot be replayed from its beginning"
            )


class OneBefore:
    """Keeps the last part that was full, beside."""

    def close(self, path: Path) -> None:
        os.replace(path, path.with_name(f"{path.stem}.before{path.suffix}"))

    def tidy(self, path: Path) -> None: ...


class Mark:
    """A place in a log. `position` is None until it is known; `is_durable` is set when all before it is on the disk, or
    when waiting for that is pointless: the log is off, or held back."""

    def __init__(self) -> None:
        self.position: int | None = None
        self.check: int | None = None
        """CRC-32 of the last bytes before it: a log that has others there is another one."""
        self.metrics: bytes | None = None
        """The metrics at this place, pickled, where somebody keeps any."""
        self.is_durable = threading.Event()

    @classmethod
    def at(cls, position: int) -> Mark:
        """One that is known already."""
        mark = cls()
        mark.position = position
        mark.is_durable.set()
        return mark

    def wait(self, within_s: float) -> Mark:
        self.is_durable.wait(within_s)
        return self


class _Item(Enum):
    """What stands among the lines besides marks."""

    NEW_PART = auto()


class LogFile:
    """One log, open for the life of a run."""

    def __init__(
        self,
        path: Path,
        *,
        say: Say = to_stderr,
        head: Callable[[], bytes] = bytes,
        part_bytes: int = PART_BYTES,
        hold_bytes: int = HOLD_BYTES,
        silent_s: float = SILENT_S,
        parts: FullParts | None = None,
    ) -> None:
        """`head` makes the first line of every part but the first; `parts` has those that are full."""
        self.path = path
        self._say = say
        self._head = head
        self._parts = parts or Compressed(say=say)
        self._limits = (part_bytes, hold_bytes, silent_s)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        begin, size = begin_of_last_part(path), os.fstat(self._file).st_size
        self._position = begin + size  # as far as lines were handed over
        self._part_begins = begin
        self._last_bytes = _last_bytes(path, size)  # of this part: where one begins, the check covers less
        self._worker: Worker[bytes | Mark | _Item] = Worker(
            f"writes {path.name}", self._work, at_end=lambda: os.close(self._file)
        )
        self._lock = threading.RLock()
        self._num_bytes = 0  # that wait, or are being written
        self._answered = time.monotonic()  # when the disk last did, or nothing was asked of it
        self._is_held_back = False

    def write(self, lines: bytes) -> None:
        """Hand whole lines over."""
        if not lines or self._worker.is_off:
            return
        if self._position - self._part_begins >= self._limits[0]:
            self._part_begins, self._last_bytes = self._position, b""
            self._hand_over(_Item.NEW_PART)
            lines = self._head() + lines
        self._position += len(lines)
        self._last_bytes = (self._last_bytes + lines)[-KNOWN_BY_BYTES:]
        self._hand_over(lines)

    def sync(self, mark: Mark) -> None:
        """Tell the mark where it is now, and later that everything before it is on the disk."""
        if self._worker.is_off:
            mark.is_durable.set()
            return
        mark.position = self._position
        mark.check = zlib.crc32(self._last_bytes)
        if self._is_held_back:
            mark.is_durable.set()
        self._hand_over(mark)

    def close(self, within_s: float | None = None) -> None:
        """Everything is on the disk, or the time is up and it was said that the rest is lost."""
        within_s = CLOSE_WITHIN_S if within_s is None else within_s
        if self._worker.is_over:
            return
        if self._worker.has_begun:
            self.sync(Mark())
        self._worker.close()
        if not self._worker.has_begun:
            os.close(self._file)
        elif not self._worker.has_ended(within_s):
            self._turn_off(f"the disk has not answered within {within_s:g} s")

    def _hand_over(self, item: bytes | Mark | _Item) -> None:
        _, hold_bytes, silent_s = self._limits
        with self._lock:
            now = time.monotonic()
            if not self._worker and not self._num_bytes:
                self._answered = max(self._answered, now)
            self._num_bytes += len(item) if isinstance(item, bytes) else 0
            why = ""
            try:
                self._worker.put(item)
            except RuntimeError as error:  # no further thread
                why = str(error)
            if self._num_bytes > hold_bytes:
                why = f"{self._num_bytes / 2**20:.0f} MiB of it wait to be written"
            elif time.monotonic() - self._answered > silent_s:
                why = f"the disk has not answered for {silent_s:g} s"
        if why:
            self._turn_off(why)

    def _turn_off(self, why: str) -> None:
        waiting = self._worker.turn_off()
        if waiting is None:
            return
        for item in waiting:
            if isinstance(item, Mark):
                item.position = item.check = None
                item.is_durable.set()
        self._say(f"{self.path} is off, the run goes on without it: {why}")

    # -- the thread -----------------------------------------------------------------------------------

    def _work(self, item: bytes | Mark | _Item) -> None:
        if isinstance(item, bytes):
            self._write(item)
        elif isinstance(item, Mark):
            self._until_it_works(lambda: os.fsync(self._file))
            if self._worker.is_off:
                item.position = item.check = None
            item.is_durable.set()
        else:
            self._until_it_works(self._begin_part)

    def _write(self, lines: bytes) -> None:
        rest = memoryview(lines)

        def once() -> None:
            nonlocal rest
            while rest:
                rest = rest[os.write(self._file, rest) :]

        self._until_it_works(once)
        with self._lock:
            self._num_bytes -= len(lines)

    def _until_it_works(self, work: Callable[[], None]) -> None:
        while not self._worker.is_off:
            try:
                work()
            except OSError as error:
                self._answered = time.monotonic()
                self._hold_back(error)
            else:
                self._answered = time.monotonic()
                if self._is_held_back:
                    self._is_held_back = False
                    self._say(f"{self.path} is written again; nothing of it is lost")
                return

    def _hold_back(self, error: OSError) -> None:
        if self._worker.is_over:  # nobody would be there to try again
            self._turn_off(str(error.strerror))
        if self._worker.is_off:
            return
        if not self._is_held_back:
            self._is_held_back = True
            self._say(f"cannot write {self.path}: {error.strerror}; the run goes on, and this is tried again")
        self._worker.pause(AGAIN_EVERY_S)

    def _begin_part(self) -> None:
        """May be called again if it failed on the way."""
        os.fsync(self._file)
        if self.path.exists() and os.path.samestat(self.path.stat(), os.fstat(self._file)):
            self._parts.close(self.path)
        after = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.close(self._file)
        self._file = after
        try:
            self._parts.tidy(self.path)
        except OSError:
            pass  # a part that is not compressed is read as well; one that should have gone does so the next time


def _last_bytes(path: Path, size: int) -> bytes:
    if not size:
        return b""
    with open(path, "rb") as file:
        file.seek(max(0, size - KNOWN_BY_BYTES))
        return file.read(KNOWN_BY_BYTES)


class TextLog:
    """A log of text for people, written the same way. Of one that has become long only the part before is kept."""

    def __init__(self, path: Path, *, say: Say = to_stderr, part_bytes: int = TEXT_BYTES) -> None:
        self._file: LogFile | None = None
        try:
            self._file = LogFile(path, say=say, part_bytes=part_bytes, parts=OneBefore())
        except OSError as error:
            say(f"{path} is off, the run goes on without it: {error.strerror}")

    def write(self, text: str) -> None:
        if self._file is not None:
            self._file.write(text.encode(errors="backslashreplace"))

    def __enter__(self) -> TextLog:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
