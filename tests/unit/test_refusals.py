"""What the operating system refuses, in one line: by real refusals."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from system_limits import file_size_limit, no_descriptor_left

from headway.core.os_errors import refusal
from headway.core.protocols import explain


def caught(wrong: Callable[[], object]) -> BaseException:
    with pytest.raises((OSError, MemoryError)) as found:
        wrong()
    return found.value


def test_a_full_disk_is_named_with_its_path() -> None:
    def fill() -> None:
        with open("/dev/full", "wb", buffering=0) as file:
            file.write(b"x")

    error = caught(fill)
    assert refusal(error) == "No space left on device"  # write() does not know the path: whoever writes adds it
    assert isinstance(error, OSError)
    error.filename = "/dev/full"
    assert refusal(error) == "/dev/full: No space left on device"


def test_a_file_that_is_too_large_is_named_with_the_limit(tmp_path: Path) -> None:
    with file_size_limit(8):
        error = caught(lambda: (tmp_path / "file").write_bytes(bytes(9)))
        line = refusal(error)
    assert line == "File too large (`ulimit -f` allows 8 bytes in a file)"


def test_too_many_open_files_are_nobodys_fault_but_the_limits(tmp_path: Path) -> None:
    with no_descriptor_left():
        error = caught(lambda: os.open(tmp_path, os.O_RDONLY))
        line = refusal(error)
    assert line is not None
    assert line.startswith("Too many open files (`ulimit -n` allows ")
    assert str(tmp_path) not in line  # any other file would not have been opened either


def test_a_path_that_cannot_be_is_named() -> None:
    assert refusal(caught(lambda: Path("/proc/nowhere/inside").mkdir())) == (
        "/proc/nowhere/inside: No such file or directory"
    )


def test_no_memory_is_said_in_words() -> None:
    assert refusal(caught(lambda: bytearray(1 << 62))) == "out of memory"
    assert refusal(MemoryError("Unable to allocate 8 PiB\nfor an array")) == "out of memory: Unable to allocate 8 PiB"


NO_THREADS = """
import resource, threading
from pathlib import Path
from headway.core.os_errors import refusal
pages = int(Path("/proc/self/statm").read_text().split()[0])
threading.stack_size(1 << 30)
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 29), resource.RLIM_INFINITY))
try:
    threading.Thread(target=print).start()
except RuntimeError as error:
    print(refusal(error))
"""


def test_a_thread_that_cannot_be_started_is_named_with_the_limits() -> None:
    done = subprocess.run([sys.executable, "-c", NO_THREADS], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("no further thread can be started (")
    assert "`ulimit -v` allows " in done.stdout


@pytest.mark.parametrize("error", [RuntimeError("something else"), TimeoutError("late"), ConnectionError("no Ray")])
def test_other_errors_are_left_alone(error: Exception) -> None:
    assert refusal(error) is None


def test_what_a_station_was_refused_names_the_limit_too() -> None:
    with no_descriptor_left():
        what, _, is_final = explain(caught(Path("/etc/hostname").read_text))
    assert what.startswith("OSError: [Errno 24] Too many open files: '/etc/hostname' (`ulimit -n` allows ")
    assert not is_final
