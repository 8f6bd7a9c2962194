"""A worker of pytest-xdist dies: the session goes on to its end, and says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import patient

DIES = "import os\ndef test_first(): ...\ndef test_dies(): os._exit(1)\ndef test_last(): ...\n"
ALONE = "def test_alone(): ...\n"
SEVERAL = "def test_one(): ...\ndef test_two(): ...\ndef test_three(): ...\n"


@pytest.mark.parametrize(
    ("files", "passed", "workers"),
    [([SEVERAL, DIES], 5, 1), ([DIES, ALONE], 3, 1), ([ALONE, SEVERAL, DIES, ALONE], 7, 2)],
    ids=["the last file", "before a single test", "in the middle"],
)
def test_a_worker_that_dies_costs_one_test(tmp_path: Path, files: list[str], passed: int, workers: int) -> None:
    for number, text in enumerate(files):
        (tmp_path / f"test_{number}.py").write_text(text)
    plugins = ["-p", "file_scheduling", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-n", str(workers), "--dist", "loadfile", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=patient(40),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert f"1 failed, {passed} passed" in done.stdout, done.stdout
