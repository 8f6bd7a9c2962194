"""Files and folders that appear whole or not at all, also if the power goes.

    write beside --> flush what was written --> rename --> flush the folder that holds the name

Without the last step the name itself may be lost with the power, although the content is safe. What could not be
written to its end is removed, and what was there before stays.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Put a file with this content in the place of `path`."""
    with written_beside(path) as beside:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """Gives a path beside `path`, for a file or a folder. It takes the place of `path` when the block ends, and is
    removed if the block raises. An error of the operating system names `path`, even if it came without a name."""
    beside = path.with_name(f".writing-{path.name}")
    _remove(beside)
    try:
        yield beside
        _flush(beside)
        os.replace(beside, path)
        flush_folder(path.parent)
    except BaseException as error:
        _remove(beside)
        if isinstance(error, OSError) and (error.filename is None or str(error.filename).startswith(str(beside))):
            error.filename, error.filename2 = str(path), None
        raise


def flush_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk. Some network file systems cannot, and do it by themselves."""
    try:
        _flush_one(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def _flush(path: Path) -> None:
    if not path.is_dir():
        _flush_one(path)
        return
    for inside in path.iterdir():
        _flush(inside)
    flush_folder(path)


def _flush_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(beside: Path) -> None:
    if beside.is_dir():
        shutil.rmtree(beside, ignore_errors=True)
        return
    with suppress(OSError):
        beside.unlink()
