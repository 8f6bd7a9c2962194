"""Runs by the command line, small enough for a test, and the one line with which a command is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from waiting import patient

from headway.cli import main
from headway.runs.folder import RunFolder

START_S = patient(120)


def run_of(root: Path, recipe: str, **values: Any) -> RunFolder:
    """A run of the recipe with these settings; its folder."""
    root.mkdir(parents=True, exist_ok=True)
    settings = {"recipe": recipe, "tensorboard": False, "start_deadline_s": START_S, **values}
    (root / "tiny.yaml").write_text(yaml.safe_dump(settings))
    words = ["--config", str(root / "tiny.yaml"), "--runs", str(root / "runs"), "--quiet", "--report", "false"]
    assert main(["run", *words]) == 0
    return RunFolder(max((root / "runs").iterdir(), key=lambda path: path.stat().st_mtime))


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(list(words)) == 2
    line = capsys.readouterr().err
    assert line.startswith("headway: ")
    assert line.count("\n") == 1, f"more than one line: {line}"
    return line.removeprefix("headway: ").rstrip("\n")
