"""Memory without a name, which processes share by handing on its file descriptor."""

from __future__ import annotations

import mmap
import os
import pickle
import struct
import sys
import tempfile

from headway.core.types_opaque import Payload

ALIGNMENT = 64


def create_memory(size: int) -> int:
    """A file descriptor of so many bytes. They are gone with the last process that holds it, whatever ends it."""
    if sys.platform == "linux":
        fd = os.memfd_create("headway")
    else:
        with tempfile.TemporaryFile() as file:  # unlinked from the start
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, size)
    except OSError:
        os.close(fd)
        raise
    return fd


def write_value(value: object) -> tuple[bytes, int]:
    """A value in memory of its own, for any number of processes: what to tell them, and the descriptor to hand on.

    The bytes of arrays and tensors are written once and not pickled.
    """
    buffers: list[pickle.PickleBuffer] = []
    header = pickle.dumps(value, 5, buffer_callback=buffers.append)
    parts = [memoryview(header), *(buffer.raw() for buffer in buffers)]
    fd = create_memory(0)
    try:
        with open(fd, "wb", closefd=False) as memory:
            for part in parts:
                memory.write(part)
                memory.write(bytes(-part.nbytes % ALIGNMENT))
    except BaseException:
        os.close(fd)
        raise
    return struct.pack(f"<{len(parts)}Q", *(part.nbytes for part in parts)), fd


def read_value(table: bytes, fd: int) -> Payload:
    """The value, over a private view of the memory: it may be kept and changed. The descriptor can be closed."""
    memory = memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_COPY))
    parts, start = [], 0
    for (size,) in struct.iter_unpack("<Q", table):
        parts.append(memory[start : start + size])
        start += size + -size % ALIGNMENT
    header, *buffers = parts
    return pickle.loads(header, buffers=buffers)
