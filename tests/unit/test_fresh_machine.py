"""What continuous integration starts with: nothing but the repository, PATH, and what pip needs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "run"
MAKE = """#!/bin/sh
echo "$@" >> {root}/calls
env > {root}/environment
ls -A "$HOME" "$TMPDIR" > {root}/found
{more}
"""


def run(root: Path, more: str = "", **variables: str) -> int:
    """The script with a `make` that only notes how it is called."""
    (root / "bin").mkdir()
    (root / "home/.config/pip").mkdir(parents=True)
    (root / "home/.config/pip/pip.conf").write_text("[global]\n")
    (root / "bin/make").write_text(MAKE.format(root=root, more=more))
    (root / "bin/make").chmod(0o755)
    environment = {"PATH": f"{root / 'bin'}:{os.environ['PATH']}", "HOME": str(root / "home"), **variables}
    return subprocess.run(["bash", str(SCRIPT)], env=environment, stdout=subprocess.DEVNULL, check=False).returncode


def seen(root: Path) -> dict[str, str]:
    pairs = (line.partition("=") for line in (root / "environment").read_text().splitlines())
    return {name: value for name, _, value in pairs}


def test_every_command_of_the_readme_starts_with_an_empty_home_and_a_clean_environment(tmp_path: Path) -> None:
    kept = {"PIP_CERT": "a.crt", "SSL_CERT_FILE": "b.crt", "REQUESTS_CA_BUNDLE": "c.crt", "CI": "yes"}
    gone = {
        "HF_HOME": "/models",
        "PYTHONPATH": "/mine",
        "PIP_CACHE_DIR": "/cache",
        "XDG_CACHE_HOME": "/c",
        "MINE": "_CA_",
    }
    assert run(tmp_path, **kept, **gone) == 0
    calls = [call.split() for call in (tmp_path / "calls").read_text().splitlines()]
    assert [call[-1] for call in calls] == ["check", "browser", "demo", "test"]
    environment = seen(tmp_path)
    assert kept.items() <= environment.items() and not gone.keys() & environment.keys()
    assert environment["PIP_CONFIG_FILE"] == str(tmp_path / "home/.config/pip/pip.conf")
    home, temporary = Path(environment["HOME"]), Path(environment["TMPDIR"])
    assert (tmp_path / "found").read_text().split() == [f"{home}:", f"{temporary}:"], "both are empty"
    assert len(str(temporary)) < 20, "Ray's sockets lie in there, and their paths may have 107 bytes"
    assert {call[0] for call in calls} == {f"VENV={home.parent / 'venv'}"}
    assert not home.parent.exists(), "nothing is left"


@pytest.mark.parametrize("failing", ["check", "demo", "test"])
def test_what_fails_fails_the_whole_and_leaves_nothing(tmp_path: Path, failing: str) -> None:
    assert run(tmp_path, f'case "$*" in *{failing}) exit 3;; esac') != 0
    assert (tmp_path / "calls").read_text().split()[-1] == failing
    assert not Path(seen(tmp_path)["HOME"]).parent.exists()
