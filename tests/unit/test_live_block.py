"""What a person sees while a run goes on: on a real pseudo-terminal, in a recorded console, in the log file."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from waiting import patient

import headway
from headway.core.types import Ticket
from headway.runs import console
from headway.runs.console import MAX_ROWS, RoleStatus, Status, duration, roles_table


def shown(part: Any, width: int = 160) -> str:
    recorded = Console(record=True, width=width, file=io.StringIO())
    recorded.print(part)
    return recorded.export_text()


def status(**changes: Any) -> Status:
    values: dict[str, Any] = {
        "done": 3.0,
        "total": 10.0,
        "unit": "update",
        "version": 2,
        "lead": 1.0,
        "staleness": 0.5,
        "updates_per_s": 12.34,
        "score": 181.0,
        "roles": (
            RoleStatus("evaluator", "due", "waits for an evaluation that is due", 200.0, 201.0),
            RoleStatus("collector-0", "slot", "waits for a ticket: 2 of 2 slots occupied", 0.42, 0.42, 1),
            RoleStatus("learner", "learn", "is busy: learn, 4 rollouts at version 412", 0.1, 0.11),
        ),
    }
    return Status(**(values | changes))


def test_the_block_shows_every_role_what_it_does_since_when_and_its_health() -> None:
    text = shown(status().block())
    assert re.search(r"learner +is busy: learn, 4 rollouts at version 412 +0\.1 s +answered 0\.1 s ago", text)
    assert re.search(r"collector-0 +waits for a ticket: 2 of 2 slots occupied +0\.4 s +answered 0\.4 s ago, r", text)
    assert re.search(r"evaluator +waits for an evaluation that is due +3 min +answered 3 min ago", text)
    assert text.index("learner") < text.index("collector-0") < text.index("evaluator")


def test_the_block_shows_versions_staleness_throughput_score_drops_and_alarms() -> None:
    text = shown(
        status(
            max_staleness=3,
            rollouts_per_s=53.21,
            steps_per_s=3405.4,
            score_version=1,
            drops={"stale": 2, "failed": 0, "filtered": 1},
            restarts=1,
            alarms=("ALARM: error_rate is 0.3, above 0.1 (share of the flights that failed)",),
        ).block()
    )
    assert (
        "version 2, lead 1, staleness 0.50 mean / 3 max, 12.3 updates/s, 53.2 rollouts/s, 3405 steps/s, "
        "score 181 (version 1)" in text
    )
    assert "dropped 2 stale, 1 filtered, 1 restarts" in text
    assert text.rstrip().endswith("ALARM: error_rate is 0.3, above 0.1 (share of the flights that failed)")


def test_many_collectors_are_counted_instead_of_listed() -> None:
    some = [RoleStatus(f"collector-{n}", "collect", "is busy: collect, ticket", 1.0) for n in range(MAX_ROWS)]
    assert shown(roles_table(some)).count("collector-") == MAX_ROWS
    more = [*some, RoleStatus("collector-99", "slot", "waits", 1.0, restarts=2)]
    more.append(RoleStatus("learner", "data", "waits", 1.0))
    text = shown(roles_table(more))
    assert re.search(rf"{MAX_ROWS} collectors +is busy: collect", text)
    assert re.search(r"1 collectors +waits for a free slot", text)
    assert "restarted 2x in all" in text
    assert "learner" in text
    assert "collector-" not in text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (9.9, "9.9 s"), (42.3, "42 s"), (150, "2 min"), (9000, "2.5 h")]
)
def test_a_duration_is_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# -- a real terminal --------------------------------------------------------------------------------


def on_a_terminal(command: list[str]) -> str:
    """What the command writes to a pseudo-terminal as its standard error; it has 24 lines of 120 characters."""
    ours, theirs = os.openpty()
    try:
        os.set_blocking(ours, False)
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "24"}
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, env=environment) as process:
            os.close(theirs)
            parts = []
            while True:
                try:
                    part = os.read(ours, 65536)
                except BlockingIOError:
                    if process.poll() is not None:
                        break
                    time.sleep(0.01)
                    continue
                except OSError:  # the other end is closed
                    break
                parts.append(part)
                if not part:
                    break
        assert process.returncode == 0
    finally:
        os.close(ours)
    return b"".join(parts).decode()


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="pseudo-terminals are a matter of Unix")
def test_on_a_real_terminal_the_block_lives_at_four_frames_a_second_and_is_gone_at_the_end(tmp_path: Path) -> None:
    wall_s = min(50, round(patient(1)))
    command = [sys.executable, "-m", "headway.cli", "run", "functions", "--runs", str(tmp_path)]
    command += ["--collect_ms", "4", "--train_ms", "4", "--collectors", "2", "--evaluate_every", "20"]
    command += ["--updates", "100000", "--tensorboard", "false", "--alarms", "idle_learner=0.0001"]
    command += ["--metrics_interval_s", "0.1", "--wall_s", str(wall_s)]
    text = on_a_terminal(command)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    frames = plain.count("100000 0:00:")
    assert 2 <= frames <= 6 * wall_s, "about four a second"
    assert re.search(r"learner +(is busy: learn|waits for|is idle)", plain)
    assert re.search(r"collector-1 +(is busy: collect|waits for|is idle)", plain)
    assert re.search(
        r"version \d+, lead 1, staleness \d\.\d\d mean / 1 max, \d+\.\d updates/s, \d+\.\d rollouts/s", plain
    )
    assert "ALARM: idle_learner" in plain
    assert "\x1b[?25l" in text and "\x1b[?25h" in text, "the cursor is hidden meanwhile, and comes back"
    assert text.rstrip().endswith("\x1b[2K"), "the block is erased at the end"


# -- the log file -----------------------------------------------------------------------------------


def collect(weights: float, ticket: Ticket) -> float:
    time.sleep(0.01)
    return 1.0


def train(weights: float, rollouts: list[float]) -> float:
    return weights + 1


def test_a_run_with_a_folder_writes_what_its_parts_do_into_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "LINE_EVERY_S", 0.05)
    headway.run(collect, train, weights=0.0, updates=60, folder=tmp_path)
    text = (tmp_path / "run.log").read_text()
    assert re.search(r"^update \d+/60, version \d+, lead 1, mean staleness", text, re.MULTILINE)
    assert re.search(r"^  collector-0 (is busy: collect|waits for|is idle)", text, re.MULTILINE)
    assert re.search(r"^  learner ", text, re.MULTILINE)
