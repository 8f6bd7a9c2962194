"""The shared memory that one process owns, cut into blocks.

    segment   anonymous memory (a memfd), mapped wherever its descriptor is sent; each is twice as big as the last
    block     a piece of a segment for one value, of a size class; freed ones are used again
    ref       names a block, or carries a small value in itself (`SharedRef`)

Invariants: a block has one owner, the arena that made it; a serial is never used twice.
"""

from __future__ import annotations

import itertools
import mmap
import os
import threading
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from headway.runtimes.child_process_memory import create_memory

FIRST_SEGMENT_BYTES = 8 << 20
"""Segments double from here; pages that were never written cost nothing."""
ALIGNMENT = 64

BlockKey = tuple[int, int]  # (owner, serial)
SegmentKey = tuple[int, int]  # (owner, index)


@dataclass(frozen=True, slots=True)
class SharedRef:
    """Where one encoded value is. Serial 0: nowhere, `inline` is the value itself."""

    owner: int
    serial: int
    segment: int
    offset: int
    size: int  # of the whole block
    sizes: tuple[int, ...]  # bytes of the header and of each buffer
    inline: bytes = b""

    @property
    def key(self) -> BlockKey:
        return self.owner, self.serial

    def pack(self) -> tuple[Any, ...]:
        """The ref as plain values, for frames: `SharedRef(*packed)`."""
        return self.owner, self.serial, self.segment, self.offset, self.size, self.sizes, self.inline

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedRef, self.pack()


@dataclass(frozen=True, slots=True)
class MemorySegment:
    """Anonymous memory that can be mapped wherever `fd` is sent."""

    index: int
    size: int
    fd: int


def create_segment(index: int, size: int) -> MemorySegment:
    return MemorySegment(index, size, create_memory(size))


def block_size(size: int) -> int:
    """The size class of a block: eight classes per doubling, so at most an eighth is wasted."""
    step = max(ALIGNMENT, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step


class Arena:
    """The blocks one process owns. Freed blocks are used again by their size class, the latest first."""

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.new_segments: list[MemorySegment] = []  # whoever takes one from here closes its fd
        self._segments: list[memoryview] = []
        self._unused = 0  # where the last segment has not been cut yet
        self._serials = itertools.count(1)
        self._live: dict[int, tuple[int, int, int]] = {}  # serial -> (block size, segment, offset)
        self._free: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)  # block size -> (segment, offset)

    @property
    def capacity_bytes(self) -> int:
        return sum(memory.nbytes for memory in self._segments)

    def allocate(self, sizes: tuple[int, ...], total: int) -> tuple[SharedRef, memoryview]:
        size = block_size(total)
        free = self._free[size]
        segment, offset = free.pop() if free else self._cut(size)
        serial = next(self._serials)
        self._live[serial] = size, segment, offset
        memory = self._segments[segment][offset : offset + total]
        return SharedRef(self.owner, serial, segment, offset, size, sizes), memory

    def free(self, serial: int) -> None:
        size, segment, offset = self._live.pop(serial)
        self._free[size].append((segment, offset))

    def take_new_segments(self) -> list[MemorySegment]:
        """Those made since the last time."""
        new, self.new_segments = self.new_segments, []
        return new

    def _cut(self, size: int) -> tuple[int, int]:
        if not self._segments or self._unused + size > self._segments[-1].nbytes:
            last = self._segments[-1].nbytes if self._segments else FIRST_SEGMENT_BYTES // 2
            segment = create_segment(len(self._segments), max(2 * last, _pages(size)))
            try:
                self._segments.append(memoryview(mmap.mmap(segment.fd, segment.size)))
            except OSError:
                os.close(segment.fd)
                raise
            self.new_segments.append(segment)
            self._unused = 0
        offset, self._unused = self._unused, self._unused + size
        return len(self._segments) - 1, offset


class GuardedArena(Arena):
    """An arena for several threads. They keep its books in turn, and write into their blocks at the same time."""

    def __init__(self, owner: int) -> None:
        super().__init__(owner)
        self._lock = threading.Lock()

    def allocate(self, sizes: tuple[int, ...], total: int) -> tuple[SharedRef, memoryview]:
        with self._lock:
            return super().allocate(sizes, total)

    def free(self, serial: int) -> None:
        with self._lock:
            super().free(serial)

    def take_new_segments(self) -> list[MemorySegment]:
        with self._lock:
            return super().take_new_segments()


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
