"""The Python sandbox: programs run, and their limits really bite."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sandbox_escapes as escapes
from running_processes import all_children, title
from waiting import patient

from headway.agents import included_tools_python_sandbox as python_sandbox
from headway.agents import sandbox_walls
from headway.agents.included_tools_python_sandbox import ProgramEnd, SandboxLimits, run_python

pytestmark = pytest.mark.timeout(60)
TESTS = Path(escapes.__file__).parent


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


def tried(user: str, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What became of these programs. Each attacks the process that runs it, its other child, and a folder."""
    command = [sys.executable, str(TESTS / "sandbox_escapes.py"), "kernel", user, *names]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=patient(100))
    if "no user namespace" in ran.stderr:
        pytest.skip("this machine gives no user namespace to be an ordinary user in")
    found = {one["name"]: one for one in map(json.loads, ran.stdout.splitlines())}
    assert list(found) == list(names), ran.stderr
    assert {name: one["harm"] for name, one in found.items() if one["harm"]} == {}
    return found


@pytest.mark.parametrize("user", ["root", "nobody"])
@pytest.mark.timeout(240)
def test_nothing_outside_is_read_changed_or_reached_by_programs_that_try(user: str) -> None:
    """`root`: the user who runs this test."""
    found = tried(user, escapes.ATTACKS)
    assert [found[name] for name in escapes.programs(escapes.REFUSED) if found[name]["end"] != "error"] == []


@pytest.mark.timeout(240)
def test_programs_that_take_all_they_can_get_are_stopped_and_leave_nothing() -> None:
    waiting = escapes.programs(escapes.WAITING)
    ends = {name: one["end"] for name, one in tried("root", [*escapes.programs(escapes.BOMBS), *waiting]).items()}
    assert {ends[name] for name in waiting} == {"time"}
    assert ends["starts threads without end"] == "threads"
    assert ends["writes files without end"] == ends["makes files without end"] == "files"
    assert ends["closes what it prints to and writes files without end"] == "files"
    assert ends["prints without end"] == ends["prints errors without end"] == "output"


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("writes", "file kept"),
        ("has sqlite make a file", "file new"),
        ("kills the victim by pidfd", "victim"),
        ("has a pipe signal the victim", "victim"),
        ("renices the parent", "parent"),
        ("writes the victim's memory", "victim's memory"),
        ("starts a daemon with fork", "children"),
        ("sends a packet", "reached"),
        ("reads the parent's variables", "read"),
    ],
)
def test_the_same_programs_do_harm_without_walls(name: str, harm: str) -> None:
    """Otherwise it would mean nothing that they do none behind them."""
    command = [sys.executable, str(TESTS / "sandbox_escapes.py"), "none", "root", name]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=patient(30))
    assert harm in json.loads(ran.stdout)["harm"], ran.stderr


ORDINARY = r"""
# computing
import collections, fractions, itertools, json, math, re, statistics, string
print(math.tau, json.dumps({'a': 1}))
# random numbers
import random
random.seed(1)
random.random()
# time zones
import datetime, zoneinfo
datetime.datetime(2026, 7, 1, tzinfo=zoneinfo.ZoneInfo('Europe/Paris')).utcoffset()
# hashes and sleep
import decimal, hashlib, time
time.sleep(0.01)
hashlib.sha256(str(decimal.Decimal(1) / 7).encode()).hexdigest()
# files
open('a', 'w').write('x\n')
open('a', 'a').write('y')
open('a').read()
# folders and links
import os
os.makedirs('a/b')
os.rename('a/b', 'c')
os.symlink('c', 'd')
print(os.listdir('d'), sorted(os.listdir()))
# hard links and truncation
import os
open('a', 'w').write('12345')
os.link('a', 'b')
os.truncate('b', 2)
open('a').read()
# pathlib
from pathlib import Path
Path('a').mkdir()
Path('a/b').touch()
list(Path('.').rglob('*'))
# copies of files
import shutil
open('a', 'w').write('1')
shutil.copy('a', 'b')
shutil.copy2('a', 'c')
open('c').read()
# copies of folders
import os, shutil
os.mkdir('a')
shutil.copytree('a', 'b')
shutil.move('b', 'c')
shutil.rmtree('a')
os.listdir()
# modes and times
import os
open('a', 'w')
os.chmod('a', 0o600)
os.utime('a')
# temporary files
import tempfile
with tempfile.NamedTemporaryFile() as f:
    f.write(b'1')
# temporary folders
import tempfile, os
with tempfile.TemporaryDirectory() as f:
    print(os.listdir(f))
# compression
import csv, gzip, bz2, lzma, zlib
with gzip.open('a', 'wt') as f:
    csv.writer(f).writerow([1])
gzip.open('a').read()
# zip files
import zipfile
with zipfile.ZipFile('a', 'w') as f:
    f.writestr('b', 'c')
zipfile.ZipFile('a').extractall()
open('b').read()
# tar files
import tarfile
open('a', 'w').write('1')
with tarfile.open('b', 'w') as f:
    f.add('a')
tarfile.open('b').extractall('c', filter='data')
open('c/a').read()
# a database
import sqlite3
c = sqlite3.connect('a')
print(c.execute('pragma journal_mode=wal').fetchall())
c.execute('create table a(b)')
c.execute('insert into a values (1)')
c.commit()
c.execute('select * from a').fetchall()
# a thread
import threading
t = threading.Thread(target=print, args=(1,))
t.start()
t.join()
# a pool of threads
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(4) as p:
    print(list(p.map(abs, range(9))))
# a timer
import signal
signal.signal(signal.SIGALRM, lambda *_: print('rang'))
signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.pause()
# a signal to itself
import signal
signal.signal(signal.SIGUSR1, lambda *_: print('heard'))
signal.raise_signal(signal.SIGUSR1)
# pipes
import os, select
r, w = os.pipe()
os.write(w, b'1')
print(len(select.select([r], [], [], 1)[0]), os.read(r, 1))
# selectors
import selectors, os
s = selectors.DefaultSelector()
r, w = os.pipe()
os.write(w, b'1')
s.register(r, 1)
len(s.select(1))
# kinds of files
import mimetypes
mimetypes.guess_type('a.html')
# the machine
import platform, os
print(platform.system(), os.cpu_count(), os.getcwd() == os.path.realpath('.'))
# secrets
import uuid, secrets
len(str(uuid.uuid4())) + len(secrets.token_bytes(3))
# sources of the library
import inspect, json
len(inspect.getsource(json.dumps)) > 100
# xml
import xml.etree.ElementTree as e
e.fromstring('<a b="1"/>').attrib
# logging
import ssl, unicodedata, logging
logging.warning('w')
unicodedata.name('é')
# standard error
import sys
sys.stderr.write('e')
open('/dev/null', 'w').write('1')
# maps of memory
import array, mmap
m = mmap.mmap(-1, 4096)
m[:1] = b'1'
m[:2]
# masks
import os
os.umask(0o22)
os.open('a', os.O_CREAT | os.O_RDWR | os.O_TRUNC) > 2
"""


@pytest.mark.parametrize("name", escapes.programs(ORDINARY))
def test_ordinary_programs_run_behind_walls_as_without(name: str) -> None:
    program = escapes.programs(ORDINARY)[name]
    ended = ran(program)
    assert ended.end == "ok", ended.text
    assert ended == run_python(program, SandboxLimits(wall_s=patient(20), cpu_s=20), "none")


def test_files_opened_for_reading_are_not_emptied_where_landlock_is_old(tmp_path: Path) -> None:
    """Its first versions, up to Linux 6.1, do not know that opening can empty a file."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "own").mkdir()
    kept = tmp_path / "lib" / "kept"
    kept.write_text("kept")
    program = f"""
import os, sys
sys.path[:0] = [{str(Path(python_sandbox.__file__).parent)!r}, {str(kept.parent)!r}]
from sandbox_walls import shut_in
shut_in(os.getcwd(), at_most=1)
print(open({str(kept)!r}).read())
for attack in (
    lambda: os.open({str(kept)!r}, os.O_RDONLY | os.O_TRUNC),
    lambda: os.open({str(kept)!r}, os.O_ACCMODE | os.O_TRUNC),
    lambda: os.truncate({str(kept)!r}, 0),
    lambda: open({str(kept)!r}, "r+"),
):
    try:
        attack()
    except PermissionError:
        print("refused")
print(open("a", "w").write("own"), open("a", "w").write(""), os.path.getsize("a"))
"""
    command = [sys.executable, "-I", "-S", "-c", program]
    ran = subprocess.run(command, cwd=tmp_path / "own", capture_output=True, text=True, timeout=patient(20))
    assert ran.stdout.split() == ["kept", *["refused"] * 4, "3", "0", "0"], ran.stderr
    assert kept.read_text() == "kept"


def test_a_machine_without_walls_is_refused_in_a_line_unless_none_are_wanted() -> None:
    program = """
import ctypes
ctypes.CDLL(None).personality(8)  # this machine says that it has 32 bits
from headway.agents import included_tools_python_sandbox as python_sandbox, sandbox_walls
from headway.agents.included_tools_python_sandbox import SandboxLimits
from headway.agents.included_tools_tools_included import python_tool
print(python_tool(SandboxLimits(wall_s=60), sandbox="none").call({"program": "6 * 7"}))
try:
    python_tool()
except ValueError as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=patient(60))
    why = "the Python sandbox cannot start: it needs Linux on x86_64 or aarch64"
    assert ran.stdout.splitlines() == ["42", f"{why}; sandbox='none' runs programs without walls"], ran.stderr


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("version", [1, 7])
def test_the_filter_allows_what_it_lists_and_nothing_else(machine: str, version: int) -> None:
    """The kernel's packet filter language, run by hand. Numbers are those of asm/unistd.h."""
    code = sandbox_walls.system_calls(machine, 77, version)
    arch = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]
    allow, refuse, unknown, kill = 0x7FFF0000, 0x50001, 0x50026, 0x80000000

    def answer(number: int, *given: int, arch: int = arch) -> int:
        words = [
            number,
            arch,
            0,
            0,
            *(half for one in (*given, *[0] * 6)[:6] for half in (one & 0xFFFFFFFF, one >> 32)),
        ]
        at, value = 0, 0
        while True:
            kind, true, false, constant = code[at]
            at += 1
            if kind == 0x20:
                value = words[constant // 4]
            elif kind == 0x54:
                value &= constant
            elif kind == 0x06:
                return constant
            else:
                at += true if (value == constant if kind == 0x15 else value >= constant) else false

    intel = machine == "x86_64"
    assert answer(0 if intel else 63) == allow  # read
    assert answer(202 if intel else 98) == allow  # futex
    assert answer(91 if intel else 52) == refuse  # fchmod
    assert answer(194 if intel else 11) == 0x50000 + 95  # listxattr
    assert answer(62 if intel else 129) == refuse  # kill
    assert answer(59 if intel else 221) == refuse  # execve
    assert answer(234 if intel else 131, 77) == allow and answer(234 if intel else 131, 78) == refuse  # tgkill
    assert answer(56 if intel else 220, 0x3D0F00) == allow and answer(56 if intel else 220, 17) == refuse  # clone
    limits = 302 if intel else 261  # prlimit64
    assert answer(limits, 0, 7, 0, 1 << 40) == allow
    assert answer(limits, 0, 7, 1 << 40, 0) == answer(limits, 5, 7, 0, 1 << 40) == refuse
    opened = 257 if intel else 56  # openat
    assert answer(opened, 0, 0, os.O_WRONLY | os.O_TRUNC) == allow
    assert answer(opened, 0, 0, os.O_TRUNC) == (refuse if version == 1 else allow)
    assert answer(424) == answer(435) == answer(0x40000000) == unknown
    assert answer(0 if intel else 63, arch=0x40000003) == kill
    by_hand = len([number for number in range(424) if answer(number, *[0] * 6) == allow])
    assert by_hand < 150


def test_files_are_written_in_a_folder_of_its_own_which_is_gone_afterwards() -> None:
    ended = ran(
        "import os\nopen('a.txt', 'w').write('here')\nprint(open('a.txt').read(), os.listdir('.'))\nos.getcwd()"
    )
    text, folder = ended.text.splitlines()
    assert text == "here ['a.txt']"
    assert not Path(folder.strip("'")).exists()


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
