"""What the Python sandbox starts: sets its own limits, builds its own walls, then runs the program it reads.

It is run as a script, with the standard library alone, in an interpreter that sees no environment and no installed
packages. See python_sandbox.py for what this protects against and what not.
"""

from __future__ import annotations

import ast
import os
import resource
import signal
import sys

READY = b"\x06"
"""Is printed before all else: from here on the program speaks."""
SET_PARENT_DEATH_SIGNAL = 1


def end_with(parent: int) -> None:
    """Ends this process when its parent does."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def build_walls() -> None:
    """Leaves the program its folder. Ends in a line where this kernel cannot."""
    sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
    from sandbox_walls import shut_in  # type: ignore[import-not-found]

    del sys.path[0]
    try:
        shut_in(os.getcwd())
    except OSError as error:
        print(error, flush=True)
        os._exit(1)
    os.chmod = os.utime = change_nothing  # type: ignore[assignment]


def change_nothing(
    path: int | str, *_: object, dir_fd: int | None = None, follow_symlinks: bool = True, **__: object
) -> None:
    """Stands for changes of modes and times, which the walls refuse, so that files can be copied and unpacked."""
    os.stat(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)


def set_limits(cpu_s: int, memory_bytes: int, file_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing too much is an OSError


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
    cpu_s, memory_bytes, file_bytes, parent, has_walls = map(int, sys.argv[1:])
    text = sys.stdin.buffer.read().decode("utf-8", "replace")
    end_with(parent)
    set_limits(cpu_s, memory_bytes, file_bytes)
    if has_walls:
        build_walls()
    os.write(1, READY)
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
