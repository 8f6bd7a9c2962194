"""What the operating system refused, in one line: the path, the reason, and the limit that was reached."""

from __future__ import annotations

import errno
import resource

from headway.core.text_one_line import first_line, said

UNLIMITED = resource.RLIM_INFINITY
FILES = "ulimit -n", resource.RLIMIT_NOFILE, "open files"
FILE_SIZE = "ulimit -f", resource.RLIMIT_FSIZE, "bytes in a file"
MEMORY = "ulimit -v", resource.RLIMIT_AS, "bytes of memory"
THREADS = "ulimit -u", resource.RLIMIT_NPROC, "processes and threads of this user"
NO_THREAD = "can't start new thread"
"""Python's own message, the only sign by which such an error is known."""


def refusal(error: BaseException) -> str | None:
    """One line about an error of the operating system; None for any other error.

    An `OSError` without a number comes from a library (a connection that was given up, say) and is not one of these.
    """
    if isinstance(error, OSError) and error.errno is not None:
        is_anywhere = error.filename is None or error.errno in (errno.EMFILE, errno.ENFILE)  # it could be any file
        where = "" if is_anywhere else f"{error.filename}: "
        what = error.strerror or errno.errorcode.get(error.errno, f"error {error.errno}")
        return f"{where}{what}{limit_reached(error)}"
    if isinstance(error, MemoryError):
        more = f": {first_line(error)}" if said(error) else ""
        return f"out of memory{more}{limit_reached(error)}"
    if _is_about_threads(error):
        return f"no further thread can be started{limit_reached(error)}"
    return None


def limit_reached(error: BaseException) -> str:
    """Which limit of this process an error comes from and what it is now, in brackets; nothing where none is known."""
    number = error.errno if isinstance(error, OSError) else None
    limits: list[tuple[str, int, str]] = []
    if number == errno.EMFILE:
        limits = [FILES]
    elif number == errno.EFBIG:
        limits = [FILE_SIZE]
    elif number == errno.ENOMEM or isinstance(error, MemoryError):
        limits = [MEMORY]
    elif number == errno.EAGAIN or _is_about_threads(error):
        limits = [THREADS, MEMORY]  # a thread needs memory for its stack
    now = [(command, resource.getrlimit(limit)[0], what) for command, limit, what in limits]
    said = [f"`{command}` allows {allowed} {what}" for command, allowed, what in now if allowed != UNLIMITED]
    return f" ({', '.join(said)})" if said else ""


def _is_about_threads(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and said(error) == NO_THREAD
