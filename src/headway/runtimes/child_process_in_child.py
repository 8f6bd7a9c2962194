"""What a helper process does before anything else. Needs the standard library alone."""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import socket
import sys
from collections.abc import Iterable

from headway.runtimes.child_process_channel import Channel


def begin(
    fd: int, lifeline: int | None = None, *, ignored: Iterable[int] = (signal.SIGINT,), takes_fds: bool = True
) -> Channel:
    """The channel to the process that started this one, which from now on ends with that process.

    The `ignored` signals and SIGHUP go to the parent as well, and it decides. With a `lifeline` this process ends when
    the other end of that pipe is closed, else when the thread that started it has ended.
    """
    for number in (*ignored, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if lifeline is None:
        die_with_parent()
    else:
        die_with_pipe(lifeline)
    # The parent takes the end of the socket for the end of the process: the kernel, not an interpreter that is
    # still shutting down, must be the one to close `fd`, and no child of this process may keep it.
    channel = Channel(socket.socket(fileno=os.dup(fd)), takes_fds=takes_fds)
    os.set_inheritable(fd, False)
    kept = [fd]

    def let_go() -> None:
        channel.close()
        while kept:  # once: a fork of a fork may have another file under this number
            os.close(kept.pop())

    os.register_at_fork(after_in_child=let_go)
    return channel


def die_with_parent() -> None:
    """From now on the kernel ends this process when the thread that started it is gone, whatever ended that. On Linux;
    elsewhere the end of its socket has to do."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def die_with_pipe(lifeline: int) -> None:
    """Let the kernel end this process when the other end of the pipe is closed, whatever it is doing then.

    Unlike a death signal this does not depend on the thread that started the process: it may be used by another one.
    On other systems the end of the socket is seen, after the work under way.
    """
    os.set_inheritable(lifeline, False)
    if sys.platform != "linux":
        return
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    watch = select.poll()
    watch.register(lifeline, select.POLLIN)
    if watch.poll(0):  # it ended before we listened
        os._exit(1)
