"""The Python sandbox: programs run, and their limits really bite."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from running_processes import all_children, title
from waiting import patient

from headway.envs.agents.python_sandbox import ProgramEnd, SandboxLimits, run_python

pytestmark = pytest.mark.timeout(60)


def ran(program: str, **limits: float) -> ProgramEnd:
    """With time for a busy machine, where a test is not about time."""
    return run_python(program, SandboxLimits(**{"wall_s": patient(20), "cpu_s": 20, **limits}))  # type: ignore[arg-type]


def test_a_program_prints_and_its_last_expression_is_shown() -> None:
    assert ran("print('hello')\nx = 6\nx * 7") == ProgramEnd("hello\n42", "ok")
    assert ran("import math, json, re\nprint(json.dumps([1, 'é']))").text == '[1, "\\u00e9"]'
    assert ran("x = 1") == ProgramEnd("(no output)", "ok")
    assert ran("print('é😀')").text == "é😀"


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("1 / 0", "line 1: ZeroDivisionError: division by zero"),
        ("x = 1\ndef f():\n    raise KeyError('k')\nf()", "line 3: KeyError: 'k'"),
        ("def f(:", "line 1: SyntaxError: invalid syntax"),
        ("input()", "line 1: EOFError: EOF when reading a line"),
        ("raise SystemExit(3)", "(it ended with code 3)"),
        ("import numpy", "line 1: ModuleNotFoundError: No module named 'numpy'"),
    ],
)
def test_an_error_of_the_program_is_a_line_of_text(program: str, text: str) -> None:
    assert ran(program) == ProgramEnd(text, "error")


def test_a_program_that_does_not_end_is_stopped_after_its_wall_time() -> None:
    began = time.monotonic()
    ended = ran("print('begun', flush=True)\nimport time\ntime.sleep(600)", wall_s=1.5)
    assert ended.end == "time" and ended.text.endswith("(stopped: it ran longer than 1.5 s)")
    assert time.monotonic() - began < patient(20)


def test_a_program_that_computes_without_end_is_stopped_by_its_cpu_time() -> None:
    assert ran("while True: pass", cpu_s=1) == ProgramEnd("(stopped: it computed longer than 1 s)", "time")


def test_a_program_cannot_take_more_memory_than_it_is_given() -> None:
    assert ran("x = bytearray(10**9)") == ProgramEnd("line 1: MemoryError", "error")
    assert ran("x = []\nwhile True:\n    x.append('a' * 10**6)").text == "line 3: MemoryError"
    assert ran("x = bytearray(10**8)\nlen(x)").text == "100000000"


def test_a_flood_of_output_is_stopped_and_cut() -> None:
    ended = ran("while True: print('x' * 999)", output_bytes=1000)
    assert ended.end == "output" and ended.text == "x" * 999 + "\n(stopped: it printed more than 1000 bytes)"


@pytest.mark.parametrize(
    "program",
    [
        "import socket\nsocket.create_connection(('127.0.0.1', PORT))",
        "import socket\nsocket.socket()",
        "import _socket\n_socket.socket()",
        "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:PORT')",
    ],
)
def test_there_is_no_network(program: str) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        ended = ran(program.replace("PORT", str(server.getsockname()[1])))
        server.settimeout(0.05)
        with pytest.raises(TimeoutError):
            server.accept()
    assert ended.end == "error" and "not allowed here" in ended.text


@pytest.mark.parametrize(
    "program",
    [
        "import os\nos.fork()",
        "import os\nos.system('ls')",
        "import os\nos.execv('/bin/ls', ['ls'])",
        "import os\nos.kill(os.getppid(), 9)",
        "import subprocess\nsubprocess.run(['ls'])",
        "import ctypes",
        "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (99, 99))",
    ],
)
def test_other_programs_processes_and_libraries_are_out_of_reach(program: str) -> None:
    ended = ran(program)
    assert ended.end == "error" and ("not allowed here" in ended.text or "not available here" in ended.text)


def test_files_are_written_in_a_folder_of_its_own_which_is_gone_afterwards() -> None:
    ended = ran(
        "import os\nopen('a.txt', 'w').write('here')\nprint(open('a.txt').read(), os.listdir('.'))\nos.getcwd()"
    )
    text, folder = ended.text.splitlines()
    assert text == "here ['a.txt']"
    assert not Path(folder.strip("'")).exists()


def test_files_elsewhere_cannot_be_written_changed_or_removed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("kept")
    for program in (
        f"open({str(kept)!r}, 'w')",
        f"open({str(kept)!r}, 'r+')",
        f"import os\nos.open({str(kept)!r}, os.O_WRONLY | os.O_TRUNC)",
        f"import os\nos.remove({str(kept)!r})",
        f"import os\nos.rename({str(kept)!r}, 'mine')",
        f"from pathlib import Path\nPath({str(tmp_path / 'new')!r}).mkdir()",
        f"import os\nos.symlink({str(tmp_path)!r}, 'way')\nopen('way/new', 'w')",
    ):
        ended = ran(program)
        assert ended.end == "error" and "only files in the working folder" in ended.text, program
    assert kept.read_text() == "kept" and os.listdir(tmp_path) == ["kept"]


def test_a_file_cannot_grow_beyond_its_limit() -> None:
    assert "File too large" in ran("open('a', 'w').write('x' * 10**7)", file_mb=1).text


def test_the_environment_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THIS_TEST", "hidden")
    assert "SECRET" not in ran("import os\ndict(os.environ)").text


def test_nothing_is_left_of_programs_that_ran_at_the_same_time() -> None:
    threads, files = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    with ThreadPoolExecutor(4) as callers:
        ends = list(callers.map(lambda number: ran(f"print({number})"), range(8)))
    assert [ended.text for ended in ends] == [str(number) for number in range(8)]
    assert set(threading.enumerate()) <= threads and len(os.listdir("/proc/self/fd")) == files
    assert not [pid for pid in all_children(os.getpid()) if "sandboxed" in title(pid)]


def test_limits_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="wall_s must be above 0, received 0"):
        SandboxLimits(wall_s=0)
    with pytest.raises(ValueError, match="memory_mb must be at least 64"):
        SandboxLimits(memory_mb=8)
