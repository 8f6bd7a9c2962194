"""Runs a policy's Python program in a process of its own, behind walls of the kernel and within limits.

    run_python(program) --> a fresh interpreter (sandboxed_program.py) in an empty folder, without any variable
                            --> limits, then walls (sandbox_walls.py), then the program
                            --> what it printed, cut to size, and how it ended

What is enforced, and by whom:

| limit | by |
|---|---|
| wall time, what is printed, size and number of all files, number of threads | this process, which kills the program |
| CPU time, memory (address space), size of a file, no core dumps | the kernel, `setrlimit` |
| writing in its folder only; reading there, in Python's installation and the system's libraries only | Landlock |
| no other processes, their signals, priorities, cores, limits or memory; no sockets | seccomp |
| its end with this process | the kernel, on Linux |

The walls need Linux 5.13 with Landlock, on x86_64 or aarch64; root or not makes no difference. Where they cannot be
built nothing runs, unless the caller says `sandbox="none"`: then only the limits hold, against mistakes, and what the
program does it does as this user.

They do not hide that a file elsewhere exists, how large and how old it is. They are as strong as this kernel: programs
of people who attack you belong in a virtual machine.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Literal
from uuid import uuid4

from headway.agents.env import BadEnvironment, EnvironmentLost
from headway.agents.sandboxed_program import READY

CHILD = Path(__file__).with_name("sandboxed_program.py")
End = Literal["ok", "error", "time", "output", "files", "threads", "killed"]
Sandbox = Literal["kernel", "none"]
MOST_FILES, MOST_THREADS = 1000, 64
_LOOK_S = 0.1
"""How often files and threads are counted."""
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """What one program may take."""

    wall_s: float = 5.0
    cpu_s: int = 4
    """Whole seconds of computing: the kernel counts no finer."""
    memory_mb: int = 256
    """Of address space, the interpreter's own included; numerical libraries need more."""
    output_bytes: int = 8_000
    file_mb: float = 1.0
    """Each file that it writes."""
    folder_mb: float = 16.0
    """All its files together."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ValueError(f"{field.name} must be above 0, received {getattr(self, field.name)!r}")
        if self.memory_mb < 64:
            raise ValueError(f"memory_mb must be at least 64 for the interpreter itself, received {self.memory_mb}")


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """What a program printed and how it ended."""

    text: str
    """For the policy; never empty."""
    end: End
    """`ok`; `error`: it raised; `time`, `output`, `files`, `threads`: it took too much; `killed`: by a signal."""


def run_python(program: str, limits: SandboxLimits | None = None, sandbox: Sandbox = "kernel") -> ProgramEnd:
    """Runs a program and returns what it printed, errors included. The value of a last line that is an expression is
    printed, too. Whatever the program does is text. Raises BadEnvironment where the kernel has no walls for it, and
    EnvironmentLost if no process can be started."""
    limits = limits or SandboxLimits()
    given = [limits.cpu_s, limits.memory_mb << 20, int(limits.file_mb * (1 << 20)), os.getpid(), sandbox != "none"]
    command = [sys.executable, "-I", "-S", "-B", str(CHILD), *(str(int(one)) for one in given)]
    with _folder() as folder, tempfile.TemporaryFile() as source:
        source.write(program.encode("utf-8", errors="replace"))
        source.seek(0)
        try:
            process = subprocess.Popen(
                command,
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={},
                start_new_session=True,
            )
        except OSError as error:
            raise EnvironmentLost(f"the Python sandbox cannot start a process: {error}") from error
        return _followed(process, folder, limits)


@cache
def need_walls() -> None:
    """Raises BadEnvironment if programs cannot be shut in on this machine."""
    run_python("", SandboxLimits(wall_s=60.0))


@contextmanager
def _folder() -> Iterator[str]:
    """An empty folder that is removed with all that a program has put into it.

    No link is followed and no mode changed. Folders in folders are moved up first: they may be thousands deep.
    """
    folder = tempfile.mkdtemp(prefix="headway-program-")
    try:
        yield folder
    finally:
        with suppress(OSError):  # what cannot be removed stays
            left = [folder]
            while left:
                here = left.pop()
                with os.scandir(here) as entries:
                    found = list(entries)
                for entry in found:
                    if entry.is_dir(follow_symlinks=False):
                        left.append(os.path.join(folder, uuid4().hex))
                        os.rename(entry.path, left[-1])
                    else:
                        os.unlink(entry.path)
                if here != folder:
                    os.rmdir(here)
            os.rmdir(folder)


def _followed(process: subprocess.Popen[bytes], folder: str, limits: SandboxLimits) -> ProgramEnd:
    """Reads what it prints until its end, or until it has taken too much."""
    assert process.stdout is not None
    printed, stopped, is_open = bytearray(), "", True
    now = time.monotonic()
    ends, looks = now + limits.wall_s, now + _LOOK_S
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not stopped:
                now = time.monotonic()
                if now >= ends:
                    stopped = "time"
                elif now >= looks:
                    stopped, looks = _too_much(process.pid, folder, limits), time.monotonic() + _LOOK_S
                elif not is_open:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(min(ends, looks) - now)
                        break
                elif selector.select(min(ends, looks) - now):
                    chunk = os.read(process.stdout.fileno(), _READ_BYTES)
                    is_open = bool(chunk)
                    printed += chunk
                    if len(printed) > limits.output_bytes + len(READY):
                        stopped = "output"
    finally:
        _end(process)
    if not printed.startswith(READY) and process.returncode > 0:
        why = printed.decode("utf-8", errors="replace").strip().rpartition("\n")[2]
        raise BadEnvironment(f"the Python sandbox cannot start: {why}; sandbox='none' runs programs without walls")
    return _told(bytes(printed[len(READY) :]), stopped, process.returncode, limits)


def _too_much(pid: int, folder: str, limits: SandboxLimits) -> str:
    """What it has too much of: threads or files."""
    try:
        if os.stat(f"/proc/{pid}/task").st_nlink - 2 > MOST_THREADS:
            return "threads"
    except OSError:
        pass  # gone, or another system
    count, left, folders = 0, limits.folder_mb * (1 << 20), [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    count += 1
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    left -= entry.stat(follow_symlinks=False).st_blocks * 512
                    if count > MOST_FILES or left < 0:
                        return "files"
        except FileNotFoundError:
            continue  # removed or moved meanwhile
        except OSError:
            return "files"  # too deep
    return ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills what is left of its process group, and leaves nothing of it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # all of it is gone
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def _told(printed: bytes, stopped: str, code: int, limits: SandboxLimits) -> ProgramEnd:
    text = printed[: limits.output_bytes].decode("utf-8", errors="replace").rstrip()
    end: End
    if stopped == "time" or code == -signal.SIGXCPU:
        end, why = "time", f"(stopped: it ran longer than {limits.wall_s:g} s)"
        if code == -signal.SIGXCPU:
            why = f"(stopped: it computed longer than {limits.cpu_s} s)"
    elif stopped == "output":
        end, why = "output", f"(stopped: it printed more than {limits.output_bytes} bytes)"
    elif stopped == "files":
        end, why = "files", f"(stopped: its files took more than {limits.folder_mb:g} MB, or were over {MOST_FILES})"
    elif stopped == "threads":
        end, why = "threads", f"(stopped: it had more than {MOST_THREADS} threads)"
    elif code < 0:
        end, why = "killed", f"(killed by {signal.Signals(-code).name}: it took too much memory or CPU time)"
    elif code:
        end, why = "error", "" if text else f"(it ended with code {code})"
    else:
        end, why = "ok", "" if text else "(no output)"
    return ProgramEnd("\n".join(part for part in (text, why) if part), end)
