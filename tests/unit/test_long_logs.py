"""What a run leaves on the disk is bounded, however long it lasts."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from headway.coordinator.functions import stations_from_functions
from headway.coordinator.rerun import ReplayError, replay
from headway.runs.bandit import FunctionsConfig
from headway.runs.event_log import EventLog, read_events
from headway.runs.files_recording import Recording
from headway.runs.launch_of_functions import run
from headway.runs.log_file import TextLog
from headway.runs.log_parts import (
    KEEP_DISCARDED,
    closed_parts,
    crc_before,
    cut,
    go_on_at,
    let_oldest_go,
    lines_from,
    log_begin,
    log_size,
)
from headway.runs.metrics import Moment
from headway.runs.sinks_json_lines import JsonLines
from headway.runs.sinks_spacing import Spacing
from headway.testing.auditor import audit
from headway.tools.report.recorded_run_run_history import read_story
from headway.tools.report.status_log_end import read_numbers

PART = 2000


def filled(
    folder: Path, events: int, limit_bytes: int = 0, said: list[str] | None = None, every: int = 1
) -> tuple[Path, list[int]]:
    """A log with so many events, and the position behind each, or behind one of `every`."""
    path, positions = folder / "events.jsonl", []
    lines = [] if said is None else said
    log = EventLog(path, part_bytes=PART, limit_bytes=limit_bytes, say=lines.append)
    log.record(0.0, "run", {"seed": 0})
    for number in range(events):
        log.record(float(number), "open", {"k": number})
        if (number + 1) % every == 0:
            mark = log.mark()
            assert mark.position is not None
            positions.append(mark.position)
    log.close()
    return path, positions


def on_disk(path: Path) -> int:
    return sum(other.stat().st_size for other in path.parent.glob(f"{path.stem}*.jsonl*"))


def tickets(path: Path) -> list[int]:
    return [event["k"] for event in read_events(path) if event["e"] == "open"]


# -- the event log ----------------------------------------------------------------------------------


def test_a_log_with_a_limit_lets_its_oldest_parts_go_and_says_so_once(tmp_path: Path) -> None:
    said: list[str] = []
    path, positions = filled(tmp_path, 4000, limit_bytes=4 * PART, said=said, every=1000)
    assert on_disk(path) <= 4 * PART
    assert log_begin(path) > 0
    assert log_size(path) == positions[-1], "positions stay what they were"
    kept = tickets(path)
    assert kept == list(range(kept[0], 4000)), "the newest stay, without a gap"
    assert len(said) == 1
    assert "log_limit_mb" in said[0]


def test_a_log_without_a_limit_keeps_all_of_its_parts(tmp_path: Path) -> None:
    path, _ = filled(tmp_path, 300)
    assert log_begin(path) == 0
    assert tickets(path) == list(range(300))


def test_the_newest_closed_part_stays_because_it_says_where_the_next_begins(tmp_path: Path) -> None:
    path, positions = filled(tmp_path, 300)
    assert let_oldest_go(path, 0) == 3
    assert len(closed_parts(path)) == 1
    assert log_size(path) == positions[-1]


def test_a_limit_that_has_no_room_for_its_parts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="room for 4 parts"):
        EventLog(tmp_path / "events.jsonl", part_bytes=PART, limit_bytes=3 * PART)
    with pytest.raises(ValueError, match=r"log_limit_mb must be 0 \(no limit\) or at least 64, received 63"):
        Recording(log_limit_mb=63)
    with pytest.raises(ValueError, match="at least 64, received 1"):
        FunctionsConfig(log_limit_mb=1)
    assert FunctionsConfig(log_limit_mb=0).log_limit_mb == 0


def test_a_run_whose_oldest_parts_went_goes_on_from_a_checkpoint_in_those_that_stayed(tmp_path: Path) -> None:
    path, positions = filled(tmp_path, 300)
    check = crc_before(path, positions[250])
    let_oldest_go(path, 500)
    assert go_on_at(path, positions[250], check) == ""
    kept = tickets(path)
    assert kept == list(range(kept[0], 251))


def test_a_checkpoint_from_before_the_parts_that_stayed_is_named(tmp_path: Path) -> None:
    path, positions = filled(tmp_path, 300)
    check = crc_before(path, positions[5])
    let_oldest_go(path, 500)
    missing = go_on_at(path, positions[5], check)
    assert missing.startswith("the parts of events.jsonl from before the checkpoint were let go")
    assert "events.discarded-0.jsonl" in missing
    assert not path.exists()


def test_tails_that_resumes_set_aside_do_not_pile_up(tmp_path: Path) -> None:
    path, positions = filled(tmp_path, 60)
    numbers = list(reversed(positions))[1:]
    for position in numbers[:20]:
        cut(path, position)
    found = {int(other.name.split("-")[1].removesuffix(".jsonl")) for other in tmp_path.glob("events.discarded-*")}
    assert found == set(range(20 - KEEP_DISCARDED, 20)), "the newest of them stay, and no number is used twice"


def test_a_log_whose_parts_went_is_told_from_its_first_part_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings: dict[str, Any] = {"weights": 0.0, "runtime": "inline", "folder": folder, "max_lead": 2}
    run(lambda weights, ticket: 1.0, lambda weights, rollouts: weights + 1.0, updates=200, **settings)
    whole = read_story(folder)
    lines = list(lines_from(folder / "events.jsonl"))
    parts = EventLog(tmp_path / "events.jsonl", part_bytes=20_000)
    for line in map(json.loads, lines):
        parts.record(line.pop("t"), line.pop("e"), line)
    parts.close()
    (folder / "events.jsonl").unlink()
    for part in tmp_path.glob("events*"):
        part.rename(folder / part.name)
    assert not audit(list(read_events(folder / "events.jsonl"))), "a part's first line is no step back in time"
    let_oldest_go(folder / "events.jsonl", 1)
    story = read_story(folder)
    assert story.gap == "its oldest parts were let go"
    assert 0 < len(story.updates) < len(whole.updates)
    assert story.updates[-1].number == 200
    assert whole.begin_s < story.begin_s < story.end_s == whole.end_s
    assert story.settings["max_lead"] == 2
    again = stations_from_functions(lambda w, ticket: 1.0, lambda w, rollouts: w + 1.0, weights=0.0)
    with pytest.raises(ReplayError, match=r"^the oldest parts of the log were let go \(log_limit_mb\)"):
        replay(again, read_events(folder / "events.jsonl"))


# -- what is written for people -----------------------------------------------------------------------


def test_a_log_of_text_keeps_what_is_being_written_and_the_part_before(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    with TextLog(path, part_bytes=1000) as log:
        for number in range(500):
            log.write(f"line {number}\n")
    assert sorted(other.name for other in tmp_path.iterdir()) == ["run.before.log", "run.log"]
    both = ((tmp_path / "run.before.log").read_text() + path.read_text()).split("\n")[:-1]
    assert both == [f"line {number}" for number in range(500 - len(both), 500)]
    assert 1000 < sum(other.stat().st_size for other in tmp_path.iterdir()) < 2200


# -- numbers ----------------------------------------------------------------------------------------


def look(number: int) -> dict[str, float]:
    of_interval = {"staleness/mean": 1.0, "staleness/max": 2.0}
    return {"run/updates": float(number), "tickets/taken": float(number), "tickets/landed": float(number)} | of_interval


def test_metrics_stay_below_their_limit_and_show_all_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonLines(path, limit_bytes=20_000)
    for second in range(5000):
        sink.write(Moment(float(second), second, second), look(second))
        if second % 500 == 0:
            sink.write(Moment(second + 0.5, second, second), {"evaluate/score": 1.0, "evaluate/version": float(second)})
        assert path.stat().st_size <= 20_000
    sink.close()
    points = [json.loads(line) for line in path.read_text().splitlines()]
    times = [point["time_s"] for point in points]
    assert times == sorted(times)
    looks = [point["time_s"] for point in points if "run/updates" in point]
    assert len(looks) > 30
    assert max(after - before for before, after in itertools.pairwise(looks)) < 500, "of every stretch"
    assert looks[-1] == 4999
    assert sum("evaluate/score" in point for point in points) == 10, "scores stay"
    numbers = read_numbers(path)
    assert numbers.last["run/updates"] == 4999
    assert (numbers.staleness, numbers.max_staleness, numbers.score_version) == (1.0, 2.0, 4500)


def test_even_scores_do_not_fill_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonLines(path, limit_bytes=20_000)
    for second in range(2000):
        sink.write(Moment(float(second), second, second), {"evaluate/score": 1.0, "evaluate/version": float(second)})
        assert path.stat().st_size <= 20_000
    sink.close()
    assert json.loads(path.read_text().splitlines()[-1])["update"] == 1999


def test_sinks_that_keep_everything_get_fewer_looks_the_longer_a_run_lasts() -> None:
    spacing = Spacing(looks=100)
    taken = [second for second in range(100_000) if spacing.takes(Moment(float(second), 0, 0), look(second))]
    assert taken[:100] == list(range(100))
    assert 600 < len(taken) < 900, "100 (1 + ln 1000)"
    assert all(after - before <= 1 + 0.02 * before for before, after in itertools.pairwise(taken))
    score = {"evaluate/score": 1.0}
    assert all(spacing.takes(Moment(float(second), 0, 0), score) for second in range(10)), "scores always"
