"""The report page of a run with two lines, in Chromium: what it shows of each line is what the log says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.cli.report import write_report
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.settings import Plan, Settings
from headway.coordinator.settings_line_settings import LineSettings
from headway.core.rules_order import READY, OnStale
from headway.runs.event_log import MemoryRecorder
from headway.runtimes.virtual import Virtual
from headway.testing.two_lines import SECOND, two_line_stations
from headway.tools.simulate.workloads import Exponential, FaultyWorkload

pytestmark = pytest.mark.timeout(120)
Events = list[dict[str, Any]]


def record(max_lead: int) -> Events:
    """The second line takes every other rollout, and drops what is not of its newest version."""
    second = LineSettings(
        max_lead=2, tickets_per_batch=2, publish_every=1, every=2, order=READY, max_staleness=0, on_stale=OnStale.DROP
    )
    plan = Plan(updates=60, evaluate_every=20)
    settings = Settings(plan=plan, max_lead=max_lead, collectors=3, tickets_per_batch=2, seed=5, lines={SECOND: second})
    place, recorder = Virtual(FaultyWorkload(Exponential(2.0), Exponential(1.0), seed=1)), MemoryRecorder()
    place.run(Coordinator(two_line_stations(), settings, place, recorder=recorder).run())
    return recorder.events


@pytest.fixture(scope="module")
def events() -> Events:
    return record(2)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, events: Events) -> list[Path]:
    root = tmp_path_factory.mktemp("lines")
    logs = {"run": events, "other": record(3)}
    for name, log in logs.items():
        (root / name).mkdir()
        (root / name / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in log))
    return [root / name for name in logs]


def of_line(events: Events, kind: str, line: str) -> Events:
    return [event for event in events if event["e"] == kind and event.get("line", "") == line]


def bars(page: Any, chart: str) -> dict[str, int]:
    found = page.locator(f"svg#{chart} rect").evaluate_all(
        "all => all.map(one => [one.dataset.name, Number(one.dataset.value)])"
    )
    return {name: count for name, count in found if count}


def ages(events: Events, line: str) -> dict[str, int]:
    """Of what was taken: the version that was trained less the oldest that made the rollout."""
    landed = {event["k"]: event for event in events if event["e"] == "land"}
    oldest = {k: (event["others"][line][0] if line else event["v"][0]) for k, event in landed.items()}
    taken = Counter(event["v"] - oldest[k] for event in of_line(events, "learn", line) for k in event["k"])
    return {str(age): count for age, count in taken.items()}


def test_a_page_shows_the_ages_and_the_drops_of_each_line(
    show: Callable[..., Any], folders: list[Path], events: Events
) -> None:
    page = show(write_report(folders[:1]))
    assert bars(page, "ages") == ages(events, "")
    assert bars(page, f"ages-{SECOND}") == ages(events, SECOND)
    assert len(ages(events, "")) > 1
    dropped = Counter(event["reason"] for event in of_line(events, "drop", SECOND))
    assert dropped
    assert bars(page, f"reasons-{SECOND}") == dict(dropped)
    assert page.locator("svg#reasons").count() == 0, "the first line dropped nothing"
    rows = page.locator("#drops > table tbody tr, #drops table tbody tr").all_inner_texts()
    opened = [str(len(of_line(events, "open", line))) for line in ("", SECOND)]
    assert [row.split("\t")[1] for row in rows if row.startswith(("first line", SECOND))] == opened


def test_a_page_shows_two_ladders_and_the_pace_and_the_time_of_each_learner(
    show: Callable[..., Any], folders: list[Path], events: Events
) -> None:
    page = show(write_report(folders[:1]))
    assert page.locator("svg#ladders path[data-series]").evaluate_all("all => all.map(one => one.dataset.series)") == [
        "first line",
        SECOND,
    ]
    label = page.locator("svg#ladders").get_attribute("aria-label")
    newest = [of_line(events, "publish", line)[-1]["v"] for line in ("", SECOND)]
    assert f"first line: from 0 to {newest[0]}" in label
    assert f"{SECOND}: from 0 to {newest[1]}" in label
    for chart in ("lines-updates_per_s", "lines-ready", "lines-staleness", "lines-lead"):
        assert page.locator(f"svg#{chart} path[data-series]").count() == 2, chart
    roles = page.locator(".stacks > div:not(.whole)").all_inner_texts()
    assert roles[:2] == ["learner", "second/learner"]
    said = page.locator("#summary, section").first.inner_text()
    assert f"Line {SECOND}: {len(of_line(events, 'learn', SECOND))} updates, version {newest[1]}" in said


def test_the_curves_of_both_learners_are_there(show: Callable[..., Any], folders: list[Path]) -> None:
    page = show(write_report(folders[:1]))
    headings = page.locator("#learner h3").all_inner_texts()
    assert headings == ["First line", f"Line {SECOND}"]
    page.locator("#learner summary", has_text=f"the learner of line {SECOND}").click()
    page.locator(f"svg#learn-{SECOND}-norm path[data-series]").wait_for()
    page.locator("#learner summary", has_text="What else the learner reports").click()
    page.locator("svg#learn-norm path[data-series]").wait_for()


def test_two_runs_with_two_lines_stand_side_by_side(
    show: Callable[..., Any], folders: list[Path], tmp_path: Path
) -> None:
    page = show(write_report(folders, tmp_path / "both.html"))
    assert page.locator("svg#ladders path[data-series]").count() == 4
    labels = page.locator(f"svg#ages-{SECOND}").get_attribute("aria-label")
    assert "max_lead=2: second" in labels
    assert "max_lead=3: second" in labels
