"""What the Python sandbox starts: sets its own limits, closes its own doors, then runs the program it reads.

It is run as a script, with the standard library alone, in an interpreter that sees no environment and no installed
packages. See python_sandbox.py for what this protects against and what not.
"""

from __future__ import annotations

import ast
import os
import resource
import signal
import sys
from typing import Any

CLOSED_DOORS = (
    "socket.",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.startfile",
    "os.kill",
    "os.killpg",
    "pty.spawn",
    "ctypes.",
    "signal.pthread_kill",
    "mmap.__new__",
    "sys.addaudithook",
    "resource.setrlimit",
    "resource.prlimit",
    "fcntl.",
    "syslog.",
    "webbrowser.",
    "gc.",
)
"""Audit events, by how they begin, that are refused."""
CLOSED_MODULES = {"ctypes", "_ctypes", "_posixsubprocess", "_multiprocessing", "_posixshmem"}
WRITING = {  # events whose first arguments are paths that are changed
    "os.remove": 1,
    "os.rmdir": 1,
    "os.mkdir": 1,
    "os.rename": 2,
    "os.link": 2,
    "os.symlink": 2,
    "os.chmod": 1,
    "os.chown": 1,
    "os.truncate": 1,
    "os.utime": 1,
    "os.setxattr": 1,
    "os.mkfifo": 1,
    "os.mknod": 1,
}
O_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
NEW_USER, NEW_NET = 0x10000000, 0x40000000
SET_PARENT_DEATH_SIGNAL, NO_NEW_PRIVILEGES = 1, 38


def ask_the_kernel(parent: int) -> None:
    """Ends with the parent; no network and no new privileges, as far as the kernel agrees."""
    if sys.platform != "linux":
        return
    import ctypes

    libc = ctypes.CDLL(None)
    libc.prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    if libc.unshare(NEW_USER | NEW_NET):
        libc.unshare(NEW_NET)  # where the user is root but may not make users
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("ctypes", "_ctypes")]:
        del sys.modules[name]


def set_limits(cpu_s: int, memory_bytes: int, file_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing too much is an OSError


def close_doors(folder: str) -> None:
    """From now on whatever Python itself does is looked at first."""
    realpath, fsdecode = os.path.realpath, os.fsdecode

    def is_inside(path: object) -> bool:
        if isinstance(path, int):
            return True  # a file that is open already
        if not isinstance(path, (str, bytes)):
            return False
        real = realpath(fsdecode(path))
        return real == folder or real.startswith(folder + "/") or real == "/dev/null"

    def guard(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(CLOSED_DOORS):
            raise PermissionError(f"{event} is not allowed here")
        if event == "import" and arguments[0].partition(".")[0] in CLOSED_MODULES:
            raise ModuleNotFoundError(f"{arguments[0]} is not available here")
        if event == "open":
            path, mode, flags = arguments
            writes = flags & O_WRITES if isinstance(flags, int) else any(sign in (mode or "r") for sign in "wax+")
            if writes and not is_inside(path):
                raise PermissionError(f"only files in the working folder can be written, not {path!r}")
        for path in arguments[: WRITING.get(event, 0)]:
            if not is_inside(path):
                raise PermissionError(f"only files in the working folder can be changed, not {path!r}")

    sys.addaudithook(guard)


def run(text: str) -> None:
    """Runs the program; a last line that is an expression prints its value, as in a console."""
    space: dict[str, object] = {"__name__": "__main__", "__builtins__": __builtins__}
    tree = ast.parse(text, "program")
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        del tree.body[-1]
    exec(compile(tree, "program", "exec"), space)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), "program", "eval"), space)
        if value is not None:
            print(repr(value))


def say_error(error: BaseException) -> None:
    """The lines of the program that led to it, without ours."""
    if isinstance(error, SyntaxError):
        print(f"line {error.lineno}: {type(error).__name__}: {error.msg}")
        return
    at, line = error.__traceback__, 0
    while at is not None:
        if at.tb_frame.f_code.co_filename == "program":
            line = at.tb_lineno
        at = at.tb_next
    print(f"line {line}: {type(error).__name__}: {error}" if str(error) else f"line {line}: {type(error).__name__}")


def main() -> None:
    cpu_s, memory_bytes, file_bytes, parent = map(int, sys.argv[1:])
    text = sys.stdin.buffer.read().decode("utf-8", "replace")
    ask_the_kernel(parent)
    set_limits(cpu_s, memory_bytes, file_bytes)
    close_doors(os.path.realpath(os.getcwd()))
    code = 0
    try:
        run(text)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:  # noqa: BLE001 - whatever the program raises is printed
        say_error(error)
        code = 1
    sys.stdout.flush()
    os._exit(code & 255)


if __name__ == "__main__":
    main()
