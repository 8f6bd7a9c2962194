"""A run that was recorded before a run could have several lines: its folder is read, repeated and told as ever."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headway.cli import main
from headway.core.events import Unknown
from headway.core.events_written_events import as_event
from headway.core.history import RunHistory
from headway.runs.event_log import read_events
from headway.runs.folder import RunFolder
from headway.runs.metrics import Metrics
from headway.testing.auditor import audit
from headway.tools.report.recorded_run_run_history import read_story
from headway.tools.report.status import read_end_status, read_whole_status
from headway.tools.report.what_if_fitting import fit

RECORDED = Path(__file__).parents[1] / "recorded" / "run-of-one-line"


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A copy, for commands that write into it."""
    return Path(shutil.copytree(RECORDED, tmp_path / "run"))


def test_every_event_of_an_earlier_log_is_known_and_of_the_first_line() -> None:
    history = RunHistory()
    for line in read_events(RECORDED / "events.jsonl"):
        event = as_event(line)
        assert not isinstance(event, Unknown), line
        history.apply(event)
    assert list(history.lines) == [""]
    assert history.first.counts["learned"] == history.first.updates == history.first.version == 8
    assert history.first.sizes == [0, 0, 0, 0]
    assert history.first.lead == 2


def test_an_earlier_log_breaks_no_rule() -> None:
    assert audit(list(read_events(RECORDED / "events.jsonl"))) == []


def test_the_story_the_status_and_the_numbers_of_an_earlier_run_are_what_its_summary_says(earlier: Path) -> None:
    story = read_story(earlier)
    assert story.summary is not None
    assert (story.version, len(story.updates)) == (story.summary["version"], story.summary["updates"])
    assert [evaluation.value for evaluation in story.evaluations] == [s["value"] for s in story.summary["scores"]]
    end = read_end_status(RunFolder(earlier))
    assert end is not None
    for status in (read_whole_status(RunFolder(earlier)).status, end.status):
        assert (status.done, status.version, status.lead, status.lines) == (8, 8, 2, ())
    metrics = Metrics()
    points = [metrics.apply(as_event(line)) for line in read_events(RECORDED / "events.jsonl")]
    assert [point.values["tickets/learned"] for point in points if point and "tickets/learned" in point.values][-1] == 8
    assert fit(story).lines == {}


@pytest.mark.parametrize("command", ["status", "doctor", "report", "trace"])
def test_every_command_reads_an_earlier_run(command: str, earlier: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, str(earlier)]) == 0
    assert capsys.readouterr().out


def test_an_earlier_run_is_repeated_and_its_settings_make_the_same_run_today(
    earlier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both are compared with each other: the bits depend on the machine."""
    main(["run", "--replay", str(earlier)])
    repeated = capsys.readouterr().out
    assert repeated.startswith("replayed 8 updates to version 8: weights ")
    weights = repeated.split("weights ")[1].split()[0]
    config = str(earlier / "config.yaml")
    assert main(["run", "--config", config, "--runs", str(tmp_path / "runs"), "--quiet"]) == 0
    assert f"weights {weights}, version 8" in capsys.readouterr().out
