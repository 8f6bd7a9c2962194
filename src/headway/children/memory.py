"""Memory without a name, which processes share by handing on its file descriptor."""

from __future__ import annotations

import os
import sys
import tempfile


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
