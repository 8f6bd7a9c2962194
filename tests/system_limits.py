"""Real refusals of the operating system, by limits that need no privileges."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    """No file may grow beyond it: whoever tries is told `File too large`."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Every file that may be open is open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, before[1]))
    taken = []
    try:
        taken = fill_descriptors()
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def fill_descriptors() -> list[int]:
    taken = []
    while True:
        try:
            taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            return taken
