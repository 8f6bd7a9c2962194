"""The report: what its page says about runs with known numbers, how it is written and how it is served."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from virtual_runs import record, story_of
from waiting import patient

import headway
from headway.cli import main
from headway.cli.doctor import examine
from headway.coordinator.activities import CAUSES
from headway.core.events import Looked
from headway.core.types import Ticket
from headway.runs.folder import RunFolder
from headway.runs.folder_environment import describe_environment, git_commit
from headway.tools.report.recorded_run_run_history import read_story, tell
from headway.tools.report.report import (
    Seen,
    Setting,
    comparison,
    configuration,
    document,
    environment,
    facts,
    headline,
    histogram,
    labels,
    page,
    state,
)
from headway.tools.report.report_page import leave_report, look, see, write_report
from headway.tools.report.report_page_report_server import LiveReport, ReportServer
from headway.tools.report.series import MAX_POINTS, flows, learner, scores, thin, titles, training
from headway.tools.report.series_notable_moments import notices
from headway.tools.report.time_report import account
from headway.tools.report.timeline_slices import BUDGET, COLOURS, MAX_MARKS, MEANINGS, Palette, time_by_role, timeline
from headway.tools.simulate.workloads import Constant, Exponential, Lognormal, SteadyWorkload

Output = pytest.CaptureFixture[str]


def write_log(folder: Path, events: list[dict[str, Any]], *, last: int | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(event) + "\n" for event in events[:last]]
    (folder / "events.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def events() -> list[dict[str, Any]]:
    """Two collectors of 1 s and a learner of 1 s: 40 updates, evaluations of 3 s after 10, 20, 30 and 40."""
    return record(1.0, 1.0, 3.0, updates=40, evaluate_every=10, max_lead=2, collectors=2)[0]


@pytest.fixture
def run(tmp_path: Path, events: list[dict[str, Any]]) -> Path:
    return write_log(tmp_path / "run", events)


def data_in(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.DOTALL)
    assert found is not None
    content = json.loads(found[1])
    assert isinstance(content, dict)
    return content


# -- what it says -----------------------------------------------------------------------------------


def test_the_headline_says_what_the_overlap_bought_and_what_it_cost(run: Path) -> None:
    (seen,) = see([run])
    said = " ".join(headline(seen))
    assert "40 updates in 53.0s with max_lead=2 (virtual)" in said  # 1 + 40 * 1 + 4 * 3
    assert "without a lead the same work would have taken 92.0s" in said  # 40 * 2 + 4 * 3
    assert "1.74 times as fast" in said
    assert "versions old on average, at most 2 (bound 2)" in said


def test_the_headline_and_the_table_agree_about_a_short_run_whose_first_rollout_took_long() -> None:
    class SlowFirst(SteadyWorkload):
        def duration_s(self, role: str, method: str, args: tuple[Any, ...]) -> float:
            slow = 30.0 if method == "collect" and args[0].index == 0 else 0.0
            return slow + super().duration_s(role, method, args)

    work = SlowFirst(Constant(1.0), Constant(1.0))
    seen = look(story_of(workload=work, updates=40, max_lead=1), "run")
    rows = {row["lead"]: row for row in seen.simulated.rows}
    said = " ".join(headline(seen))
    assert rows["1"]["updates_per_s"] == pytest.approx(40 / 71, rel=0.01)  # 31 + 40
    assert rows["0"]["updates_per_s"] == pytest.approx(40 / 110, rel=0.01)  # 31 + 40 + 39
    assert f"the run was {rows['1']['speedup']:.2f} times as fast" in said
    assert "without a lead the same work would have taken 110" in said


@pytest.mark.parametrize(
    ("runtime", "cores", "is_shared"),
    [
        ("threads", 0.3, False),
        ("threads", 0.9, True),
        ("threads", None, True),  # nobody looked
        ("processes", 1.2, False),
        ("processes", 1.9, True),
        ("processes", None, False),
        ("virtual", None, False),
    ],
)
def test_where_roles_shared_cores_a_speed_up_is_an_upper_bound(
    events: list[dict[str, Any]], runtime: str, cores: float | None, is_shared: bool
) -> None:
    first, *rest = events
    end = {"t": 52.0, "e": "look", "lead": 2.0, "spent": {}, "rss": 0, **({} if cores is None else {"cpu": 52 * cores})}
    story = tell([{**first, "runtime": runtime}, *(e for e in rest if e["t"] <= 52), end])
    story.environment["cpus"] = 2
    seen = look(story, "run")
    said = " ".join(headline(seen))
    assert dict(facts(seen)).get("Cores in use") == (None if cores is None else f"{cores:.1f} of 2")
    assert ("the run was at most 1." in said) == is_shared
    assert ("Its roles shared cores" in said) == is_shared
    if is_shared and cores is not None:
        assert f"(they used {cores:.1f} of 2)" in said


def test_processor_time_of_a_run_is_in_its_log(tmp_path: Path) -> None:
    def burn(weights: float, ticket: Ticket) -> float:
        until = time.process_time() + 0.02
        while time.process_time() < until:
            pass
        return 0.0

    headway.run(burn, lambda weights, _: weights, weights=0.0, updates=10, max_lead=0, folder=tmp_path / "run")
    accounts = account(read_story(tmp_path / "run"))
    assert accounts.cores is not None
    assert 0.2 <= accounts.cores * accounts.wall_s <= 5  # ten times 20 ms, and what the coordinator took


def test_a_run_without_a_lead_is_told_what_one_would_bring() -> None:
    said = " ".join(headline(look(story_of(1.0, 1.0, max_lead=0), "serial")))
    assert "This run had no lead. With max_lead=1 the same work would be 1.98 times as fast" in said


@pytest.mark.parametrize(
    ("recipe", "config", "title", "steps"),
    [
        ("ppo", {"env": "LunarLander-v3"}, " on LunarLander-v3", "environment steps"),
        (
            "ppo",
            {"env": "/home/me/games.py:Maze", "frame_skip": 4},
            " on games.py:Maze",
            "environment steps of 4 frames",
        ),
        ("colorlines", {}, " on Colour Lines", "environment steps"),
        ("agent", {"env": "lights", "model": "made:lights"}, " on lights", "tokens"),
        ("", {}, "", "steps"),
    ],
)
def test_the_title_names_the_environment_and_the_axis_what_a_step_is(
    recipe: str, config: dict[str, Any], title: str, steps: str
) -> None:
    story = tell([{"t": 0.0, "e": "run", "max_lead": 1}], recipe=recipe, config=config)
    data = document([Seen(name="one", story=story, accounts=account(story))])
    assert data["title"] == f"Headway report: one{title}"
    assert data["runs"][0]["steps"] == steps


def test_the_data_of_the_page_are_the_numbers_of_the_run(run: Path) -> None:
    data = data_in(write_report([run]))
    (told,) = data["runs"]
    assert told["name"] == "run"
    assert told["scores"] == {
        "t": [14.0, 27.0, 40.0, 53.0],
        "u": [10.0, 20.0, 30.0, 40.0],
        "s": [10.0, 20.0, 30.0, 40.0],  # a step a rollout
        "v": [10.0, 20.0, 30.0, 40.0],
        "y": [10.0, 20.0, 30.0, 40.0],
    }
    assert told["staleness"] == {"0": 1, "1": 1, "2": 38}
    assert told["tickets"] == {"opened": 40, "learned": 40, "dropped": 0, "live": 0, "reissued": 0}
    assert told["length_bias"] == 0
    assert [row["lead"] for row in told["what_if"]["rows"]][:6] == ["0", "0.5", "1", "2", "4", "8"]
    assert [row["is_best"] for row in told["what_if"]["rows"]].count(True) == 1
    assert "(+0.0 %)" in told["what_if"]["fit"]
    assert sum(len(track["gap"]) for track in told["timeline"]["tracks"]) > 80


def test_per_role_the_parts_are_the_wall_clock(events: list[dict[str, Any]]) -> None:
    palette = Palette()
    rows = time_by_role(account(tell(events)).roles, palette)
    assert [row["role"] for row in rows] == ["learner", "collector-0", "collector-1", "evaluator"]
    for row in rows:
        assert row["sum_s"] == pytest.approx(row["whole_s"]) == pytest.approx(53.0)
    names = palette.causes()
    learnt = {names[cause]["name"]: seconds for cause, seconds in rows[0]["parts"]}
    assert (learnt["learn"], learnt["evaluation"]) == (pytest.approx(40.0), pytest.approx(12.0))


def test_many_collectors_are_one_row() -> None:
    rows = time_by_role(account(story_of(8.0, 1.0, collectors=20, max_lead=20)).roles, Palette())
    assert [row["role"] for row in rows] == ["learner", "collectors (20)"]
    assert rows[1]["sum_s"] == pytest.approx(20 * rows[0]["whole_s"])


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (None, "ended: reached 40 updates"),
        (150, "no end in the log: still running, or cut off; whether its process is alive is not known. Valid up to "),
        (0, "nothing is recorded yet"),
    ],
)
def test_the_state_of_a_run_is_said(events: list[dict[str, Any]], last: int | None, said: str) -> None:
    assert state(tell(events[:last])).startswith(said)


@pytest.mark.parametrize(
    ("host", "is_alive", "said"),
    [
        (None, True, "running. Valid up to its last event, at "),
        (None, False, "cut off: its process is gone. Valid up to its last event, at "),
        ("far-away", None, "it ran on far-away, and whether its process is alive cannot be seen from here"),
    ],
)
def test_a_run_without_an_end_is_alive_gone_or_not_known(
    tmp_path: Path, events: list[dict[str, Any]], host: str | None, is_alive: bool | None, said: str
) -> None:
    run = write_log(tmp_path / "run", events, last=150)
    write_environment(run, pid=os.getpid() if is_alive else pid_of_nobody(), host=host)
    watch = LiveReport([run])
    told = watch.newest()[0]
    assert said in told["state"]
    assert told["is_live"] == (is_alive is not False)
    assert said in data_in(write_report([run]))["state"]


def write_environment(run: Path, pid: int, host: str | None = None) -> None:
    session = {"began_at": 0.0, "clock_s": 0.0, "pid": pid}
    content = {"host": host or platform.node(), "began_at": 0.0, "sessions": [session]}
    (run / "environment.json").write_text(json.dumps(content))


def pid_of_nobody() -> int:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


def test_a_process_that_goes_away_makes_the_document_anew(tmp_path: Path, events: list[dict[str, Any]]) -> None:
    run = write_log(tmp_path / "run", events, last=150)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        write_environment(run, pid=process.pid)
        watch = LiveReport([run], clock=lambda: 0.0)
        assert watch.newest()[0]["is_live"]
        process.kill()
    told = watch.newest()[0]
    assert not told["is_live"]
    assert told["state"].startswith("cut off: its process is gone")


def test_a_failed_run_says_why() -> None:
    failed = [*record(updates=10)[0][:30], {"t": 9.0, "e": "fail", "why": "the learner died"}]
    assert state(tell(failed)) == "failed after 9.00s: the learner died"


def test_what_differs_from_the_defaults_is_marked() -> None:
    story = tell([], recipe="functions", config={"max_lead": 2.0, "seed": 0, "mine": [1, 2]})
    rows = configuration(story, {"max_lead": Setting(1.0, "how far"), "seed": Setting(0, "")})
    assert [(row["name"], row["value"], row["standard"], row["is_changed"]) for row in rows] == [
        ("recipe", "functions", "", True),
        ("max_lead", "2", "1", True),
        ("seed", "0", "0", False),
        ("mine", "1 2", "", True),
    ]


def test_ages_of_any_size_fit_into_a_histogram() -> None:
    assert histogram({}) == {}
    assert histogram({0: 3, 2: 1}) == {"0": 3, "1": 0, "2": 1}
    wide = histogram({0: 1, 240: 5})
    assert len(wide) == 22
    assert histogram({0: 3, 2: 1}, 11) == {"0-10": 4}, "beside it, in the same steps"
    assert (wide["0-10"], wide["231-241"], sum(wide.values())) == (1, 5, 6)


def test_runs_side_by_side_are_called_by_what_differs_between_them() -> None:
    def seen(name: str, recipe: str = "functions", **config: Any) -> Seen:
        story = tell([], recipe=recipe, config={"max_lead": 1.0, "collectors": 2, "seed": 0, **config})
        return Seen(name, story, account(story))

    assert labels([seen("one")]) == ["one"]
    assert labels([seen("one"), seen("two")]) == ["one", "two"], "nothing differs"
    assert labels([seen("one"), seen("two", max_lead=8.0)]) == ["max_lead=1", "max_lead=8"]
    assert labels([seen("one"), seen("two", max_lead="auto", mine=3)]) == ["max_lead=1", "max_lead=auto"]
    several = [seen("one", seed=1), seen("two", max_lead=2.0), seen("three", max_lead=2.0, collectors=None)]
    assert labels(several) == [
        "max_lead=1, collectors=2, seed=1",
        "max_lead=2, collectors=2, seed=0",
        "max_lead=2, collectors=none, seed=0",
    ]
    twice = [seen("one", max_lead=2.0), seen("two", max_lead=2.0), seen("three", recipe="cartpole")]
    assert labels(twice) == ["functions, max_lead=2 (one)", "functions, max_lead=2 (two)", "cartpole, max_lead=1"]


def test_the_comparison_has_the_numbers_of_each_run(run: Path) -> None:
    (seen,) = see([run])
    told = dict(comparison(seen))
    assert told["State"] == "ended"
    assert (told["Updates"], told["Updates per second"]) == ("40", "0.7547")
    assert told["Speed-up over lead 0, simulated"] == "1.74x"
    assert told["Staleness, mean / largest"] == "1.93 / 2"
    assert told["Learner waited for rollouts"] == "1.9 %"
    assert told["Score, last / best"] == "40 / 40"
    assert (told["Dropped"], told["Wall clock"]) == ("0", "53.0s")


def test_the_share_the_learner_worked_is_the_one_of_the_sentence(run: Path) -> None:
    (seen,) = see([run])
    worked = dict(map(tuple, facts(seen)))["Learner worked"]  # type: ignore[arg-type]
    assert f"the learner worked {worked} of the time" in seen.bottleneck


def test_alarms_and_failed_evaluations_are_said_and_marked(events: list[dict[str, Any]]) -> None:
    alarm = {"e": "alarm", "name": "effective_sample_size", "threshold": 0.5}
    failed = {"value": None, "error": "evaluate returned nan"}
    told = [{**event, **failed} if event["e"] == "score" and event["v"] < 30 else event for event in events]
    more = [
        {"t": 5.0, "on": True, "value": 0.1, **alarm},
        {"t": 8.0, "on": False, "value": 0.6, **alarm},
        {"t": 9.0, "on": True, "value": 0.2, **alarm},
        {"t": 9.5, "e": "restart", "role": "collector-1", "why": "it was late"},
        {"t": 9.6, "e": "publish_retry", "role": "learner", "v": 3, "why": "no answer"},
        {"t": 9.7, "e": "alarm", "name": "unheard_of", "threshold": 1, "value": 2, "on": True},
    ]
    story = tell(sorted([*told, *more], key=lambda event: float(event["t"])))
    assert notices(story) == [
        "ALARM: effective_sample_size is 0.1, below 0.5 (share of a batch that still counts after importance "
        "weighting): at 5.00s, the first of 2 times; still raised at the end.",
        "alarm unheard_of: 2 (threshold 1): at 9.70s; still raised at the end.",
        "2 of 4 evaluations gave no score. The first was that of version 10, at 14.0s: evaluate returned nan.",
    ]
    shown = timeline(story, Palette())["marks"]
    assert [(mark["t"], mark["kind"]) for mark in shown] == [
        (5.0, "alarm"),
        (8.0, "alarm over"),
        (9.0, "alarm"),
        (9.5, "restart"),
        (9.6, "publish retry"),
        (9.7, "alarm"),
        (14.0, "failed evaluation"),
        (27.0, "failed evaluation"),
    ]
    assert shown[6]["text"] == "the evaluation of version 10 gave no score: evaluate returned nan"


def test_marks_of_a_long_run_are_bounded(events: list[dict[str, Any]]) -> None:
    late = [{"t": 53.0, "e": "restart", "role": "learner", "why": str(n)} for n in range(1000)]
    told = timeline(tell([*events, *late]), Palette())
    assert len(told["marks"]) == MAX_MARKS
    assert told["note"] == "800 of 1000 marks are not shown; trace.json has everything."


def test_no_two_causes_have_the_same_colour() -> None:
    style = (files("headway.tools.report") / "page" / "page.css").read_text()
    themes = [theme for theme in re.findall(r"[{]([^{}]*)[}]", style) if "--collect" in theme]
    assert len(themes) == 3
    for theme in themes:
        values = dict(re.findall(r"(--[a-z-]+): (#[0-9a-f]{6})", theme))
        used = [values[COLOURS[name]] for name in MEANINGS]
        assert len(set(used)) == len(used)
    assert set(MEANINGS) >= set(CAUSES.values())


def test_memory_is_charted_for_everybody_who_has_some() -> None:
    story = story_of(max_lead=2)
    story.looks = [
        Looked(float(t), 0.0, {}, t * 2**20, {"collector-0": 2**20, "collector-1": 2**21, "learner": 2**22})
        for t in (1, 2, 3)
    ]
    for ticket in story.tickets.values():
        ticket.num_bytes = 2**20
    lines = flows(story)
    assert lines["memory"]["y"] == [1.0, 2.0, 3.0]
    assert lines["memory/collector"]["y"] == [3.0, 3.0, 3.0]
    assert lines["memory/learner"]["y"] == [4.0, 4.0, 4.0]
    assert lines["waiting_mib"]["y"] == pytest.approx(lines["ready"]["y"])
    named = dict(titles([lines]))
    assert named["memory/collector"] == "Memory of the collectors' processes together, MiB"
    assert named["memory/learner"] == "Memory of the learner's process, MiB"


def test_the_machine_and_the_commit_are_told() -> None:
    told = environment(tell([], environment={"cpu": "Fast", "memory_gib": 23.5, "gpus": ["H"] * 8, "git_commit": "ab"}))
    assert told == {"cpu": "Fast", "memory gib": "23.5", "gpus": "8 x H", "git commit": "ab"}


def test_the_commit_is_that_of_the_repository_around_a_folder(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    inside = repository / "deep" / "inside"
    inside.mkdir(parents=True)
    assert git_commit(inside) is None

    def git(*words: str) -> str:
        who = ["-c", "user.name=n", "-c", "user.email=n@n"]
        return subprocess.run(["git", *who, *words], cwd=repository, check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    assert git_commit(inside) is None, "nothing is committed yet"
    git("commit", "-q", "--allow-empty", "-m", "one")
    first = git("rev-parse", "HEAD").strip()
    assert git_commit(inside) == first
    git("pack-refs", "--all")
    assert git_commit(inside) == first
    git("worktree", "add", "-q", "-b", "other", str(tmp_path / "tree"))
    assert git_commit(tmp_path / "tree") == first
    git("checkout", "-q", "--detach")
    git("commit", "-q", "--allow-empty", "-m", "two")
    assert git_commit(inside) == git("rev-parse", "HEAD").strip() != first


def test_the_environment_names_the_machine_and_leaves_out_what_it_does_not_know() -> None:
    told = describe_environment()
    assert None not in told.values()
    if sys.platform == "linux":
        assert told["memory_gib"] > 0
        assert told["cpu"]


# -- numbers over time ------------------------------------------------------------------------------


def test_a_long_line_becomes_means_of_equal_stretches() -> None:
    x, y = thin([float(i) for i in range(1000)], [float(i % 2) for i in range(1000)], most=100)
    assert len(x) == len(y) == 100
    assert (x[0], x[-1]) == (4.5, 994.5)
    assert set(y) == {0.5}
    assert thin([1.0, 2.0], [None, float("nan")]) == [[1.0, 2.0], [None, None]]


def test_throughput_and_levels_add_up(events: list[dict[str, Any]]) -> None:
    story = tell(events)
    lines = flows(story)
    stretch = 50.0 / len(lines["updates_per_s"]["t"])  # from the first ticket to the last update
    assert sum(value * stretch for value in lines["updates_per_s"]["y"] if value) == pytest.approx(40)
    assert sum(value * stretch for value in lines["rollouts_per_s"]["y"] if value) == pytest.approx(40)
    ready_s = sum(value * stretch for value in lines["ready"]["y"] if value is not None)
    waited_s = sum(ticket.queue_s or 0 for ticket in story.tickets.values())
    assert ready_s == pytest.approx(waited_s)
    assert lines["lead"]["y"] == [2.0, 2.0]


def test_what_the_learner_reports_is_kept_and_what_is_no_number_is_not() -> None:
    story = story_of(max_lead=1)
    for update in story.updates:
        update.metrics = {
            "loss": 1 / update.number,
            "ess": 0.9,
            "reward": update.number,
            "bad": float("nan"),
            "text": "x",
        }
    lines, first = learner(story)
    assert set(lines) == {"loss", "ess", "reward"}
    assert first == ["ess"]
    curve = training(story)
    assert curve is not None
    assert (curve["name"], curve["u"][-1], curve["y"][-1]) == ("reward", 100.0, 100.0)
    assert training(story_of(max_lead=1)) is None
    assert scores(story)["y"] == []


# -- bounded ----------------------------------------------------------------------------------------


def test_a_run_of_any_length_makes_a_page_of_bounded_size() -> None:
    story = story_of(Lognormal(1.0, 0.5), Exponential(0.5), updates=6000, max_lead=4, collectors=4)
    data = document([look(story, "run")])
    (told,) = data["runs"]
    assert len(story.intervals) > BUDGET
    assert sum(len(track["gap"]) for track in told["timeline"]["tracks"]) <= BUDGET
    assert max(len(line["t"]) for line in told["flow"].values()) <= MAX_POINTS
    assert len(page(data)) < 500_000


def test_short_slices_are_put_together_and_no_time_is_lost() -> None:
    story = story_of(Lognormal(1.0, 2.0), Exponential(0.5), updates=2000, max_lead=4, collectors=2)
    palette = Palette()
    told = timeline(story, palette, budget=500)
    assert sum(len(track["gap"]) for track in told["tracks"]) <= 500
    assert "put together" in told["note"]
    spent = {"learner": 0.0}
    for interval in story.intervals:
        if interval.role == "learner" and interval.what == "learn":
            spent["learner"] += interval.seconds
    learn = palette.number("busy", "learn")
    (track,) = [track for track in told["tracks"] if track["name"] == "learner"]
    shown = 0.0
    for place, (length, cause) in enumerate(zip(track["length"], track["cause"], strict=True)):
        shares = track["mixed"].get(place, [[cause, 1.0]])
        shown += length * 1e-6 * sum(share for one, share in shares if one == learn)
    assert shown == pytest.approx(spent["learner"], rel=1e-3)


def test_slices_do_not_overlap_and_keep_their_numbers(events: list[dict[str, Any]]) -> None:
    told = timeline(tell(events), Palette())
    assert told["note"] == ""
    (track,) = [track for track in told["tracks"] if track["name"] == "collector-1"]
    assert min(track["gap"]) >= 0
    assert min(track["length"]) >= 0
    assert [number for number in track["number"] if number >= 0] == list(range(1, 40, 2))


def test_tracks_of_a_thousand_collectors_are_left_to_the_trace() -> None:
    told = timeline(story_of(60.0, 1.0, collectors=60, max_lead=60), Palette())
    assert len(told["tracks"]) == 41
    assert told["note"] == "20 of 60 collectors are not shown; trace.json has everything."


# -- the page ---------------------------------------------------------------------------------------


def test_the_page_is_whole_and_asks_for_nothing(run: Path) -> None:
    text = write_report([run]).read_text()
    assert text.startswith("<!doctype html>")
    assert not re.search(r'(?:src|href)="(?!#|data:,)', text)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert "/*DATA*/" not in text
    assert [path.name for path in run.iterdir() if path.name.startswith(".")] == []


def test_what_a_run_says_cannot_become_part_of_the_page(tmp_path: Path) -> None:
    evil = '</script><script>alert("x")</script><!--'
    story = tell(record(updates=6)[0], recipe=evil, config={"note": evil})
    text = page(document([Seen(evil, story, account(story))]))
    assert "alert(" in text
    assert "</script><script>alert" not in text
    path = tmp_path / "page.html"
    path.write_text(text)
    assert data_in(path)["runs"][0]["name"] == evil


def test_a_mark_in_the_data_is_data(tmp_path: Path) -> None:
    story = tell(record(updates=6)[0], config={"note": "/*SCRIPT*/ /*STYLE*/ /*DATA*/"})
    path = tmp_path / "page.html"
    path.write_text(page(document([Seen("run", story, account(story))])))
    assert data_in(path)["runs"][0]["config"][1]["value"] == "/*SCRIPT*/ /*STYLE*/ /*DATA*/"


def test_the_page_travels_with_the_package(tmp_path: Path) -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel")
    root = Path(__file__).parents[2]
    (built,) = wheel.WheelBuilder(str(root)).build(directory=str(tmp_path), versions=["standard"])
    listed = subprocess.run([sys.executable, "-m", "zipfile", "-l", built], capture_output=True, text=True, check=True)
    for name in ("page.html", "page.css", "page.js"):
        assert f"headway/tools/report/page/{name}" in listed.stdout


# -- commands ---------------------------------------------------------------------------------------


def test_the_command_writes_the_page_beside_the_run_or_where_it_is_told(
    run: Path, tmp_path: Path, capsys: Output
) -> None:
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"report: {run / 'report.html'}\n"
    elsewhere = tmp_path / "mine.html"
    assert main(["report", str(run), str(run), "--output", str(elsewhere)]) == 0
    assert [told["name"] for told in data_in(elsewhere)["runs"]] == ["run (1)", "run (2)"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["report"], "report needs the folder of a run: headway report RUN [RUN ...]"),
        (["report", "nowhere"], "no run folder at nowhere"),
        (["report", "."], ". is not a run folder: it has no events.jsonl"),
        (["report", "foreign"], "foreign/events.jsonl is not the log of a run: it begins with 'x'"),
        (["report", "corrupt"], "corrupt/events.jsonl, line 2: not an event"),
        (
            ["report", "run", "--outptu", "x"],
            "unknown option 'outptu'; did you mean 'output'? allowed: output, port, serve, whole",
        ),
        (["report", "run", "--output", "no/where.html"], "cannot write no/where.html: No such file or directory"),
        (["report", "run", "--port", "8000"], "--port is for --serve"),
        (
            ["report", "run", "--serve", "--output", "x.html"],
            "--output is for a page that is written; with --serve there is none",
        ),
        (
            ["report", "run", "--serve", "--port", "many"],
            "--port must be a whole number from 0 to 65535, received 'many'",
        ),
        (["doctor"], "doctor needs the folder of one run: headway doctor RUN"),
        (["doctor", "nowhere"], "no run folder at nowhere"),
    ],
)
def test_what_cannot_be_is_one_clear_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    events: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: Output,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "run", events)
    write_log(tmp_path / "foreign", [{"t": 0, "e": "x"}])
    with open(write_log(tmp_path / "corrupt", events, last=1) / "events.jsonl", "a") as log:
        log.write("{not json\n{}\n")
    assert main(words) == 2
    assert capsys.readouterr().err == f"headway: {message}\n"


@pytest.mark.parametrize("cut", [200, 1000, 4000, 9999])
def test_a_run_killed_at_any_byte_has_a_report(run: Path, cut: int) -> None:
    log = run / "events.jsonl"
    log.write_bytes(log.read_bytes()[:cut])
    (told,) = data_in(write_report([run]))["runs"]
    assert told["state"].startswith(("no end in the log", "nothing is recorded yet"))


def test_the_doctor_begins_with_why_a_run_failed_and_has_nothing_to_say_about_one_without_updates(
    tmp_path: Path, events: list[dict[str, Any]]
) -> None:
    end = {"t": 1.0, "e": "fail", "why": "learner.learn: RuntimeError: out of memory"}
    folder = write_log(tmp_path / "run", [*(event for event in events if event["t"] < 1.0), end])
    assert examine(folder).splitlines() == [
        "the run failed: learner.learn: RuntimeError: out of memory",
        "too early to tell: 0 updates so far",
    ]


def test_the_doctor_says_what_to_change(tmp_path: Path, capsys: Output) -> None:
    sick = write_log(tmp_path / "sick", record(1.0, 1.0, max_lead=0)[0])
    assert main(["doctor", str(sick)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("neither side: they wait for each other")
    assert "1. A lead of 0 is too small: both sides wait for each other (up to 50 % of the time)" in said
    assert "   try: --max_lead 1\n" in said
    well = write_log(tmp_path / "well", record(0.5, 1.0, max_lead=1)[0])
    assert examine(well).splitlines()[-1] == "nothing to change"


def test_the_end_of_a_run_leaves_a_page_or_a_reason(run: Path, tmp_path: Path) -> None:
    assert leave_report(RunFolder(run)) == f"report: {run / 'report.html'}"
    assert leave_report(RunFolder(tmp_path)) == f"no report: {tmp_path} is not a run folder: it has no events.jsonl"


def test_a_run_writes_its_report_unless_it_is_told_not_to(tmp_path: Path, capsys: Output) -> None:
    tiny = [
        "--updates",
        "6",
        "--collect_ms",
        "0",
        "--train_ms",
        "0",
        "--evaluate_ms",
        "0",
        "--runtime",
        "inline",
        "--quiet",
    ]
    for name, more in (("with", []), ("without", ["--report", "false"])):
        assert main(["run", "functions", *tiny, "--runs", str(tmp_path / name), *more]) == 0
        (folder,) = (tmp_path / name).iterdir()
        assert (folder / "report.html").exists() == (name == "with")
        assert ("report: " in capsys.readouterr().out) == (name == "with")


# -- serving ----------------------------------------------------------------------------------------


@contextmanager
def served(run: Path) -> Iterator[str]:
    with ReportServer([run], 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.address
        finally:
            server.shutdown()
            thread.join()


def ask(address: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=patient(10)) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


def test_a_served_run_is_followed_until_its_end(
    tmp_path: Path, events: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.tools.report.report_page_report_server.REST", 0.0)
    run = write_log(tmp_path / "run", events, last=150)
    with served(run) as address:
        status, headers, body = ask(address)
        assert status == 200
        assert headers["Content-Type"].startswith("text/html")
        assert b'"is_live":true' in body
        status, headers, body = ask(f"{address}data.json")
        first = json.loads(body)
        assert ask(f"{address}data.json", **{"If-None-Match": headers["ETag"]})[0] == 304
        write_log(run, events)
        last = json.loads(ask(f"{address}data.json")[2])
        assert not last["is_live"]
        assert len(last["runs"][0]["scores"]["y"]) > len(first["runs"][0]["scores"]["y"])
        assert ask(f"{address}etc/passwd")[0] == 404


def test_a_name_that_is_not_of_this_machine_is_not_answered(tmp_path: Path, events: list[dict[str, Any]]) -> None:
    run = write_log(tmp_path / "run", events)
    with served(run) as address:
        for host in ("localhost", "LOCALHOST:9000", "127.0.0.1:1", "[::1]:8642"):  # a port may be forwarded
            assert ask(f"{address}data.json", Host=host)[0] == 200, host
        for host in (
            "evil.example",
            "evil.example:8642",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "::1",
            " ",
        ):
            for path in ("", "data.json", "etc/passwd"):
                status, headers, body = ask(f"{address}{path}", Host=host)
                assert status == 421, host
                assert b"127.0.0.1" in body and b"scores" not in body and "ETag" not in headers


def test_a_document_is_made_again_only_when_the_log_has_grown_and_time_has_passed(
    tmp_path: Path, events: list[dict[str, Any]]
) -> None:
    run, now = write_log(tmp_path / "run", events, last=100), [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    watch = LiveReport([run], clock=clock)
    first = watch.newest()[2]
    assert watch.newest()[2] == first
    write_log(run, events, last=150)
    assert watch.newest()[2] == first  # making it took a second, so it is good for ten
    now[0] += 10
    assert watch.newest()[2] != first


def test_a_port_in_use_is_one_clear_line(run: Path, capsys: Output) -> None:
    with served(run) as address:
        port = address.rstrip("/").rpartition(":")[2]
        assert main(["report", "--serve", str(run), "--port", port]) == 2
        assert capsys.readouterr().err == (
            f"headway: cannot serve on port {port}: Address already in use; choose another with --port\n"
        )


def test_serving_ends_cleanly_on_ctrl_c(run: Path) -> None:
    words = [sys.executable, "-m", "headway.cli", "report", "--serve", str(run), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("report: http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=patient(30))
    assert (process.returncode, out, err) == (0, "ended\n", "")


class InterruptedLine(io.StringIO):
    """Ctrl-C comes when the first line has just been written."""

    def flush(self) -> None:
        if self.getvalue().count("\n") == 1:
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_in_the_middle_of_a_line_prints_it_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.cli.options_output.OUT", Console(file=(out := InterruptedLine())))
    before = signal.getsignal(signal.SIGINT)
    assert main(["report", "--serve", str(run), "--port", "0"]) == 0
    assert re.fullmatch(r"report: http://127\.0\.0\.1:\d+/ \(Ctrl-C ends it\)\nended\n", out.getvalue())
    assert signal.getsignal(signal.SIGINT) is before
