"""A long run is looked at in the time that its end takes to read, and its totals and curves are of all of it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import headway
from headway.cli import main
from headway.core.history_records import FinishedUpdate
from headway.core.types import Ticket
from headway.runs.event_log import EventLog, read_events
from headway.runs.log_parts import all_parts, closed_parts, lines_from
from headway.tools.report.recorded_run_log_window import find_window
from headway.tools.report.recorded_run_run_history import ONLY_ITS_END, StoryReader, read_story
from headway.tools.report.recorded_run_story_records import Story
from headway.tools.report.report import document
from headway.tools.report.report_page import see, write_report
from headway.tools.report.report_page_report_server import LiveReport
from headway.tools.report.status import read_status

UPDATES = 400


def collect(weights: float, ticket: Ticket) -> float:
    return 1.0


def train(weights: float, rollouts: list[float]) -> tuple[float, dict[str, float]]:
    return weights + 1, {"return": weights}


def evaluate(weights: float) -> float:
    return weights


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose log has a dozen parts."""
    folder = tmp_path_factory.mktemp("long")
    settings: dict[str, Any] = {"max_lead": 2, "evaluate_every": 40, "runtime": "inline", "metrics_interval_s": 0}
    headway.run(collect, train, evaluate, weights=0.0, updates=UPDATES, folder=folder / "whole", **settings)
    log = EventLog(folder / "events.jsonl", part_bytes=30_000)
    for event in read_events(folder / "whole/events.jsonl"):
        log.record(event.pop("t"), event.pop("e"), event)
    log.close()
    (folder / "whole/events.jsonl").unlink()
    for part in folder.glob("events*"):
        part.rename(folder / "whole" / part.name)
    assert len(closed_parts(folder / "whole/events.jsonl")) > 5
    return folder / "whole"


@pytest.fixture
def is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are long earlier."""
    monkeypatch.setattr("headway.tools.report.recorded_run_run_history.LONG_BYTES", 60_000)
    monkeypatch.setattr("headway.tools.report.recorded_run_run_history.WINDOW_BYTES", 40_000)
    monkeypatch.setattr("headway.tools.report.status.UP_TO_BYTES", 60_000)


def without_steps(story: Story) -> list[FinishedUpdate]:
    """The updates; how many steps are behind them is counted from where the story begins."""
    return [replace(update, steps=0) for update in story.updates]


@pytest.mark.parametrize("num_bytes", [1, 100, 5_000, 29_000, 31_000, 100_000])
def test_a_window_begins_with_a_whole_line_in_whichever_part_it_lies(run: Path, num_bytes: int) -> None:
    path = run / "events.jsonl"
    window = find_window(path, num_bytes)
    assert window is not None
    size = all_parts(path)[-1].end
    assert size - num_bytes <= window.position <= size
    ends, at = set(), 0
    for line in lines_from(path):
        at += len(line)
        ends.add(at)
    assert window.position in ends
    assert window.head["run"]["max_lead"] == 2


def test_a_log_that_is_short_has_no_window(run: Path) -> None:
    assert find_window(run / "events.jsonl", 10**9) is None


@pytest.mark.usefixtures("is_long")
def test_the_end_of_a_long_run_is_told_as_the_whole_story_tells_it(run: Path) -> None:
    whole, end = read_story(run), read_story(run, whole=False)
    assert (whole.gap, end.gap) == ("", ONLY_ITS_END)
    assert 10 < len(end.updates) < UPDATES / 2
    assert without_steps(end)[1:] == without_steps(whole)[-len(end.updates) + 1 :], "the first may have begun before"
    assert end.begin_s > whole.begin_s
    assert end.end_s == whole.end_s
    assert end.settings == whole.settings
    assert end.is_over


@pytest.mark.usefixtures("is_long")
def test_a_reader_that_follows_a_long_run_keeps_its_end_alone(run: Path, tmp_path: Path) -> None:
    log, reader, most = EventLog(tmp_path / "events.jsonl", part_bytes=30_000), StoryReader(tmp_path, whole=False), 0
    for number, event in enumerate(read_events(run / "events.jsonl")):
        if event["e"] != "part":
            log.record(event.pop("t"), event.pop("e"), event)
        if number % 200 == 0:
            log.mark().wait(10)
            most = max(most, len(reader.read().updates))
    log.close()
    story = reader.read()
    assert most < UPDATES / 2
    assert without_steps(story)[-1] == without_steps(read_story(run))[-1]


@pytest.mark.usefixtures("is_long")
def test_the_page_of_a_long_run_has_the_totals_and_curves_of_all_of_it(run: Path) -> None:
    (whole,) = document(see([run], whole=True))["runs"]
    (end,) = document(see([run]))["runs"]
    assert end["headline"][0].startswith(f"A long run: {UPDATES} tickets and {UPDATES} updates in ")
    assert not whole["headline"][0].startswith("A long run")
    for name in ("tickets", "drops", "failures", "training_lengths"):
        assert end[name] == whole[name], name
    assert [end["scores"][axis] for axis in "uvy"] == [whole["scores"][axis] for axis in "uvy"]
    of_all = {"Updates", "Version", "Score, last / best", "Steps", "Dropped"}
    assert [fact for fact in end["facts"] if fact[0] in of_all] == [
        fact for fact in whole["facts"] if fact[0] in of_all
    ]
    assert end["training"]["name"] == "return"
    assert end["training"]["u"][-1] == pytest.approx(whole["training"]["u"][-1], abs=2)
    assert end["training"]["u"][0] < 10, "from the beginning"
    assert {"updates_per_s", "ready", "lead", "memory"} <= end["flow"].keys()
    assert end["what_if"]["note"].endswith("headway doctor RUN does it.")
    assert end["name"] == whole["name"]


@pytest.mark.usefixtures("is_long")
@pytest.mark.parametrize("words", [["doctor"], ["simulate", "--leads", "0,2", "--run"]], ids=lambda words: words[0])
def test_the_simulator_is_fitted_to_the_end_of_a_long_run_alone(
    run: Path, tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    assert main([*words, str(copy)]) == 0
    said = capsys.readouterr().out
    oldest = closed_parts(copy / "events.jsonl")[1].path
    oldest.write_bytes(b"x" * oldest.stat().st_size)  # which nobody can read any more
    assert main([*words, str(copy)]) == 0
    assert capsys.readouterr().out == said


@pytest.mark.usefixtures("is_long")
def test_a_page_that_is_served_comes_at_once_and_the_simulation_after_it(run: Path) -> None:
    watch = LiveReport([run])
    first, _, tag = watch.newest()
    assert first["is_live"], "it asks again"
    assert first["runs"][0]["what_if"]["note"] == "The run is being simulated under other leads."
    second, _, other = watch.newest()
    assert tag != other
    assert second["runs"][0]["what_if"]["rows"]
    assert not second["is_live"], "the run is over"


@pytest.mark.usefixtures("is_long")
def test_the_command_reads_all_of_a_long_run_where_it_is_told_to(run: Path, tmp_path: Path) -> None:
    for words, is_end in (([], True), (["--whole"], False)):
        assert main(["report", str(run), "--output", str(tmp_path / "page.html"), *words]) == 0
        assert ("A long run: " in (tmp_path / "page.html").read_text()) == is_end
    assert main(["report", str(run), "--whole", "--serve"]) == 2
    assert write_report([run], tmp_path / "other.html").is_file()


@pytest.mark.usefixtures("is_long")
def test_a_status_is_there_when_a_part_has_just_begun(run: Path, tmp_path: Path) -> None:
    for other in run.glob("*.json*"):
        (tmp_path / other.name).write_bytes(other.read_bytes())
    last = all_parts(tmp_path / "events.jsonl")[-1]
    last.path.rename(tmp_path / f"events-{last.begin}-{last.end}.jsonl")
    (tmp_path / "events.jsonl").touch()
    known, told = read_status(run), read_status(tmp_path)
    assert told.status.done == known.status.done == UPDATES
    assert told.status.score == known.status.score


def test_points_without_a_long_run_change_nothing(run: Path) -> None:
    (seen,) = see([run])
    assert seen.whole is None
    points = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    looks = [point for point in points if "run/updates" in point]
    assert seen.of_all.first.tickets["opened"] == looks[-1]["tickets/opened"] == UPDATES
