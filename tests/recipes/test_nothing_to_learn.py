"""A run that learns nothing says so while it runs, and the doctor begins with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from grpo_runs import make_material, tiny_values

from headway.cli import main
from headway.tools.report.recorded_run_run_history import read_story

ALWAYS_WRONG = """
def share_of_digits(prompt, response, truth, info):
    return 0.0
"""


def test_a_run_whose_replies_are_all_worth_the_same_rings_and_is_diagnosed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = make_material(tmp_path / "material", reward=ALWAYS_WRONG)
    values = tiny_values(folder, updates=12, metrics_interval_s=0, runtime="inline", tickets_per_batch=1)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    assert main(["run", "grpo", "--config", "config.yaml", "--quiet"]) == 0
    assert "ALARM: nothing_to_learn is 1, above 0.99" in capsys.readouterr().err
    (run,) = (tmp_path / "runs").iterdir()
    assert [(alarm.name, alarm.on) for alarm in read_story(run).alarms] == [("nothing_to_learn", True)]
    assert main(["doctor", str(run)]) == 0
    assert capsys.readouterr().out.startswith("1. Nothing to learn from: every reply is worth the same")
