"""A wall clock that jumps (a clock that is set, a virtual machine that was paused) moves no deadline and no order."""

from __future__ import annotations

import ast
import functools
import itertools
import time
from pathlib import Path

import pytest
from log_totals import audit
from waiting import patient

import headway
from headway.coordinator.settings import Deadlines, Plan, Settings
from headway.runs.event_log import read_events
from headway.runs.fingerprint import fingerprint
from headway.runs.folder import RunFolder
from headway.runs.launch_session import launch
from headway.testing.toy_stations import pinned_loop, toy_stations

SOURCE = Path(headway.__file__).parent
WALL_CLOCKS = {"time", "time_ns", "localtime", "gmtime", "ctime", "now", "utcnow", "today"}
MAY_ASK_THE_WALL_CLOCK = {
    "agents/endpoint_server.py": "when an answer was made, which its protocol wants to know",
    "runs/folder.py": "when a session began, for people",
    "tools/report/report.py": "the same, in words",
    "tools/report/status.py": "how long a log has been silent, by the time its file system gave it",
    "runs/tensorboard_sink.py": "TensorBoard's stamps",
    "runtimes/ray_cluster_ray_notices.py": "how long a node has left, for people: Ray says it by the wall clock",
}


@functools.cache
def nodes() -> dict[Path, list[ast.AST]]:
    return {path: list(ast.walk(ast.parse(path.read_text()))) for path in SOURCE.rglob("*.py")}


def asks_the_wall_clock(path: Path) -> bool:
    """Calls a clock of `time` or `datetime` that can be set, or hands it on."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in WALL_CLOCKS
        and isinstance(node.value, ast.Name)
        and node.value.id in ("time", "datetime", "date")
        for node in nodes()[path]
    )


def test_only_what_is_meant_for_people_asks_a_clock_that_can_be_set() -> None:
    found = {str(path.relative_to(SOURCE)) for path in nodes() if asks_the_wall_clock(path)}
    assert found == set(MAY_ASK_THE_WALL_CLOCK)


def test_nobody_takes_a_clock_by_another_name() -> None:
    for path, found in nodes().items():
        for node in found:
            if isinstance(node, ast.ImportFrom) and node.module in ("time", "datetime"):
                assert not {name.name for name in node.names} & {*WALL_CLOCKS, "datetime", "date"}, path


@pytest.mark.parametrize("runtime", ["inline", "threads"])
def test_a_run_whose_clock_jumps_by_days_has_the_same_bits_and_misses_no_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str
) -> None:
    jumps, true_time = itertools.cycle((0.0, 86_400.0, -86_400.0, 3e8, -3e8)), time.time
    monkeypatch.setattr(time, "time", lambda: true_time() + next(jumps))
    deadlines = Deadlines(collect_s=patient(5), learn_s=patient(5), save_s=patient(5), publish_s=patient(5))
    settings = Settings(
        plan=Plan(updates=60, evaluate_every=20, save_every=10), collectors=2, max_lead=2, deadlines=deadlines
    )
    folder = RunFolder(tmp_path / "run")
    result = launch(toy_stations(), settings, runtime=runtime, folder=folder)
    assert fingerprint(result.weights) == fingerprint(pinned_loop(settings))
    assert (result.restarts, result.ledger.reissued, result.ledger.closes) == (0, 0, True)
    events = list(read_events(folder.events))
    times = [event["t"] for event in events]
    assert times == sorted(times) and times[-1] < patient(60), "the clock of the log is not that of the wall"
    assert audit(events).learned.total() == 60
