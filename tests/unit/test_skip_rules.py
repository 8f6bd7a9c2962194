"""What continuous integration may skip, and that its session fails on anything else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_machines import FORBIDDEN
from skip_rules import ALLOWED, is_allowed
from waiting import patient

TESTS = """
import pytest

@pytest.mark.skipif(True, reason="{mark}")
def test_that_is_marked() -> None: ...

def test_that_skips_while_it_runs() -> None:
    pytest.skip("{inside}")

@pytest.mark.xfail(reason="known")
def test_that_is_known_to_fail() -> None:
    assert False

def test_that_passes() -> None: ...
"""
MODULE = 'import pytest\npytest.importorskip("no_such_package", reason="needs no_such_package")\n'
GPU, VLLM = "needs a GPU", "vLLM is not installed: make vllm"
GAMES = "a library of games is not installed: pip install gem-llm"


def session(folder: Path, *options: str, ci: str = "true") -> tuple[int, str]:
    """A session of pytest of its own over the tests in this folder: its exit code and what it says."""
    environment = {**os.environ, "CI": ci, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "pytest", "-p", "skip_rules", "-p", "no:cacheprovider", *options, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(60), env=environment, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("workers", [0, 2])
def test_a_session_fails_on_a_skip_that_is_not_allowed_and_names_it(tmp_path: Path, workers: int) -> None:
    (tmp_path / "test_some.py").write_text(TESTS.format(mark=GPU, inside="Chromium is missing"))
    (tmp_path / "test_more.py").write_text(TESTS.format(mark=VLLM, inside="Chromium is missing"))
    (tmp_path / "test_module.py").write_text(MODULE)
    code, said = session(tmp_path, "-n", str(workers))
    assert code == pytest.ExitCode.TESTS_FAILED, said
    assert "5 skips, 2 of them allowed" in said
    assert "ERROR 2 times, which is not allowed here: Chromium is missing" in said
    assert "ERROR 1 times, which is not allowed here: needs no_such_package" in said
    assert session(tmp_path, "-n", str(workers), ci="")[0] == pytest.ExitCode.OK, "elsewhere everybody may lack it"


def test_a_session_passes_where_all_skips_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS.format(mark=GPU, inside=VLLM))
    code, said = session(tmp_path, "-n", "2")
    assert code == pytest.ExitCode.OK and "2 skips, 2 of them allowed" in said, said


def test_the_session_of_all_tests_counts_its_skips(request: pytest.FixtureRequest) -> None:
    assert request.config.pluginmanager.has_plugin("skip_rules")


def test_only_a_gpu_vllm_libraries_of_games_files_of_a_user_and_namespaces_may_be_missing() -> None:
    assert len(ALLOWED) == 6
    theirs = "a story file of the user is not on this machine: zork1.z5", "the data set is not on this machine"
    assert all(map(is_allowed, (GPU, VLLM, GAMES, FORBIDDEN, *theirs)))
    assert not is_allowed("needs Chromium: make browser") and not is_allowed("EnvPool is not installed")
