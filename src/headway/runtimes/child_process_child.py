"""A helper process, seen from the one that starts it.

    started --> runs --> asked to end (its socket is closed), killed, or dead by itself --> reaped

It is a fresh interpreter with this process's sys.path, or any other command; it inherits the descriptors named here and
no others. Where nothing else is said it belongs to the process group of this process and gets its signals.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from multiprocessing import spawn

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
KILL_S = 10.0
"""A killed process is gone in milliseconds, unless the kernel itself holds it."""

Command = Callable[[Sequence[int]], Sequence[str]]
"""The command line of a helper that is given these descriptors."""


def python_command(module: str, title: str) -> Command:
    """Calls the module's `main` with the descriptors, in a fresh interpreter. Lists of processes show the title."""
    program = f"import sys; sys.path[:] = {sys.path!r}; from {module} import main; main(*map(int, sys.argv[1].split()))"
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    start = [os.fsdecode(spawn.get_executable()), *flags, "-c", program]
    return lambda fds: [*start, " ".join(map(str, fds)), title]


def thread_limits(num_threads: int) -> dict[str, str]:
    """The variables by which numeric libraries learn how many threads they may use."""
    return dict.fromkeys(THREAD_VARIABLES, str(num_threads))


class Child:
    """A helper process and this side of its socket.

    The command gets the number of its socket, then `fds`, then that of its lifeline if it has one. With `own_group` its
    own children are killed with it. With `stdout` it prints to that descriptor.
    """

    def __init__(
        self,
        command: Command,
        environment: Mapping[str, str],
        *,
        fds: Iterable[int] = (),
        own_group: bool = False,
        has_lifeline: bool = False,
        stdout: int | None = None,
    ) -> None:
        self._owner = os.getpid()
        self._has_own_group = own_group
        self._has_ended = False  # its number may be another process's by now
        self._lifeline: int | None = None  # nothing is ever written: its end is the end of this process
        with ExitStack() as unless_it_starts, ExitStack() as handed_on:
            self.socket, theirs = socket.socketpair()
            unless_it_starts.enter_context(self.socket)
            given = [handed_on.enter_context(theirs).fileno(), *fds]
            if has_lifeline:
                end, self._lifeline = os.pipe()
                handed_on.callback(os.close, end)
                unless_it_starts.callback(os.close, self._lifeline)
                given.append(end)
            self._process = subprocess.Popen(
                command(given),
                pass_fds=given,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                env={**os.environ, **environment},
                process_group=0 if own_group else None,
            )
            unless_it_starts.pop_all()
        _ALIVE.add(self)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def how_it_ended(self, wait_s: float, otherwise: str = "closed its end and does not exit") -> str:
        """`was killed by SIGKILL`; what is given if it is still there after so long."""
        try:
            code = self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return otherwise
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"

    def kill(self) -> None:
        """Does not wait. A fork of the process that started it has no say."""
        if os.getpid() != self._owner or self._has_ended:
            return
        if not self._has_own_group:
            self._process.kill()
            return
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def hang_up(self) -> None:
        """Say nothing more: a helper that listens ends by itself."""
        try:
            self.socket.shutdown(socket.SHUT_RDWR)  # whichever thread reads or writes it
        except OSError:
            pass  # it is gone, or closed already

    def end(self, grace_s: float = 0.0) -> None:
        """Ask it to end, wait for so long, kill it, and leave nothing of it. Calling it again does nothing."""
        self.hang_up()
        if os.getpid() == self._owner and not self._has_ended:
            try:
                self._process.wait(grace_s)
            except subprocess.TimeoutExpired:
                pass
            self.kill()
            try:
                self._process.wait(KILL_S)
            except subprocess.TimeoutExpired:
                pass  # only the kernel can hold it now, and it has been told
            self._has_ended = True
        self.socket.close()
        self._cut_lifeline()

    def _cut_lifeline(self) -> None:
        lifeline, self._lifeline = self._lifeline, None
        if lifeline is not None:
            os.close(lifeline)


_ALIVE: weakref.WeakSet[Child] = weakref.WeakSet()


def _let_go() -> None:
    """A fork of this process must not keep its helpers alive."""
    for child in _ALIVE:
        child.socket.close()
        child._cut_lifeline()


os.register_at_fork(after_in_child=_let_go)
