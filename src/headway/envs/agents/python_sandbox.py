"""Runs a policy's Python program in a process of its own, and never lets it take more than its limits.

    run_python(program) --> a fresh interpreter (sandboxed_program.py) in an empty folder, without any variable
                            --> what it printed, cut to size, and how it ended

What is enforced, and by whom:

| limit | by |
|---|---|
| wall time, size of what is printed | this process, which kills the program's whole process group |
| CPU time, memory (address space), size of a file, no core dumps | the kernel, `setrlimit` |
| network | the kernel, where it lets a user make a network namespace of its own; everywhere a Python audit hook |
| no other programs, no native libraries, no writing outside the folder | a Python audit hook |
| its end with this process | the kernel, on Linux |

This protects against mistakes and against what a policy stumbles on while it learns. It is no prison. An audit hook
guards Python's own doors: who finds a hole in the interpreter gets past it. Files that this user may read can be read.
The size of all files together is not limited. Programs of people who attack you belong in a virtual machine.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from headway.envs.agents.interface import EnvironmentLost

CHILD = Path(__file__).with_name("sandboxed_program.py")
End = Literal["ok", "error", "time", "output", "killed"]
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
    """`ok`; `error`: it raised; `time`, `output`: it took too much; `killed`: by a signal."""


def run_python(program: str, limits: SandboxLimits | None = None) -> ProgramEnd:
    """Runs a program and returns what it printed, errors included. The value of a last line that is an expression is
    printed, too. Whatever the program does is text; EnvironmentLost if no process can be started at all."""
    limits = limits or SandboxLimits()
    given = [limits.cpu_s, limits.memory_mb << 20, int(limits.file_mb * (1 << 20)), os.getpid()]
    command = [sys.executable, "-I", "-S", "-B", str(CHILD), *map(str, given)]
    with (
        tempfile.TemporaryDirectory(prefix="headway-program-", ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile() as source,
    ):
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
        return _followed(process, limits)


def _followed(process: subprocess.Popen[bytes], limits: SandboxLimits) -> ProgramEnd:
    """Reads what it prints until its end, or until it has taken too much."""
    assert process.stdout is not None
    printed, stopped = bytearray(), ""
    ends = time.monotonic() + limits.wall_s
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while True:
                left = ends - time.monotonic()
                if left <= 0 or not selector.select(left):
                    stopped = "time"
                    break
                chunk = os.read(process.stdout.fileno(), _READ_BYTES)
                if not chunk:
                    break
                printed += chunk
                if len(printed) > limits.output_bytes:
                    stopped = "output"
                    break
        if not stopped:  # it closed what it prints to, and should be gone in no time
            try:
                process.wait(max(ends - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                stopped = "time"
    finally:
        _end(process)
    return _told(bytes(printed), stopped, process.returncode, limits)


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
    elif code < 0:
        end, why = "killed", f"(killed by {signal.Signals(-code).name}: it took too much memory or CPU time)"
    elif code:
        end, why = "error", "" if text else f"(it ended with code {code})"
    else:
        end, why = "ok", "" if text else "(no output)"
    return ProgramEnd("\n".join(part for part in (text, why) if part), end)
