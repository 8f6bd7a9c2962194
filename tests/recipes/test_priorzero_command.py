"""PriorZero at the command line, as users of the original call it: a Z-machine file, a quick test, the statistics."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("jericho", reason="a library of games is not installed: jericho")
pytest.importorskip("textworld", reason="a library of games is not installed: textworld")

from story_files import small_story
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from headway.cli import main

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
SAFE = {"verbs": ["take", "drop", "open", "close"], "limit_s": 60.0}
"""Nothing that makes this story hang, and time for a busy machine."""
SMALL = ("embedding", "latent", "hidden", "table")


@pytest.mark.parametrize("degree", [0, 5, -1])
def test_a_quick_test_of_a_story_file_ends_with_the_statistics_of_both_lines(
    degree: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    story = small_story(tmp_path, 5)
    words = ["--env_id", str(story), "--quick_test", "--off_policy_degree", str(degree), "--runtime", "inline"]
    words += ["--enable_async_eval", str(degree != 0).lower(), "--env_options", json.dumps(SAFE), "--seed", "1"]
    words += [word for name in SMALL for word in (f"--{name}", "8")]
    assert main(["run", "priorzero", "--runs", str(tmp_path / "runs"), *words]) == 0
    said = capsys.readouterr().out
    for row in ("Async Training Statistics:", "Collect iterations", "Train iterations", "Final lag", "Avg eval time"):
        assert row in said
    assert re.search(r"Mode:? +(\w+)", said)[1] == ("ASYNCHRONOUS" if degree else "SYNCHRONOUS")  # type: ignore[index]
    (folder,) = (tmp_path / "runs").iterdir()
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["run/updates"] == 8
    assert last["prior/run/updates"] > 0
    both = {"run/version", "prior/run/version", "run/lead", "prior/run/lead", "learn/prior_asked", "learn/prior_late"}
    assert both <= set(last)
    assert "prior/learner" in (folder / "report.html").read_text()
    scalars = EventAccumulator(str(folder / "tensorboard"))
    scalars.Reload()
    assert both <= set(scalars.Tags()["scalars"])


def test_a_model_that_is_not_there_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", str(tmp_path / "nowhere"), "--quick_test", "--runtime", "inline"]
    assert main(["run", "priorzero", "--runs", str(tmp_path / "runs"), *words]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("headway: ")
    assert f"model '{tmp_path / 'nowhere'}' does not exist; allowed: 'smollm2', made:GAME" in last
