"""Real processes, really killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from log_totals import audit
from running_processes import assert_no_more_shared_memory
from waiting import patient, wait_until

from headway.coordinator.coordinator import Coordinator
from headway.coordinator.role_calls import RunFailed
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Deadlines, Plan, Settings
from headway.core.rules_order import READY
from headway.runs.event_log import MemoryRecorder
from headway.runs.fingerprint import fingerprint
from headway.runtimes.processes import Processes
from headway.testing.toy_stations import Pause, pinned_loop, toy_stations


class Saboteur(MemoryRecorder):
    """Sends a signal to a role's process at a given event."""

    def __init__(self, runtime: Processes, kind: str, number: int, role: str, what: signal.Signals) -> None:
        super().__init__()
        self._runtime = runtime
        self._when = (kind, number)
        self._role = role
        self._what = what
        self.killed = 0

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        super().record(time_s, kind, fields)
        if self._when in ((kind, fields.get("k")), (kind, fields.get("v"))) and not self.killed:
            self.killed = self._runtime.pid(self._role)
            os.kill(self.killed, self._what)


def run_sabotaged(
    settings: Settings, kind: str, number: int, role: str, what: signal.Signals
) -> tuple[RunResult, Saboteur]:
    runtime = Processes()
    saboteur = Saboteur(runtime, kind, number, role, what)
    coordinator = Coordinator(toy_stations(Pause(0.01)), settings, runtime, recorder=saboteur)
    return runtime.run(coordinator.run()), saboteur


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0]


@pytest.mark.parametrize("what", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("order", ["pinned", "free"])
def test_a_collector_killed_or_frozen_in_the_middle_is_replaced_and_nothing_is_lost(
    what: signal.Signals, order: str
) -> None:
    more: dict[str, Any] = {"order": READY} if order == "free" else {}
    settings = Settings(
        plan=Plan(updates=40),
        collectors=2,
        max_lead=2,
        deadlines=Deadlines(collect_s=patient(2.0)),
        **more,
    )
    result, log = run_sabotaged(settings, "start", 20, "collector-0" if order == "pinned" else "collector-1", what)
    assert log.killed
    assert not is_running(log.killed)
    seen = audit(log.events)
    assert seen.kinds["restart"] == result.restarts == 1
    assert seen.kinds["reissue"] == result.ledger.reissued >= 1
    assert sorted(seen.learned) == list(range(40))
    assert set(seen.learned.values()) == {1}
    if order == "pinned":
        assert fingerprint(result.weights) == fingerprint(pinned_loop(settings))


def test_an_evaluator_killed_in_the_middle_is_replaced() -> None:
    settings = Settings(plan=Plan(updates=20, evaluate_every=5), max_lead=1)
    result, log = run_sabotaged(settings, "evaluate", 10, "evaluator", signal.SIGKILL)
    assert log.killed
    assert [score.version for score in result.scores] == [5, 10, 15, 20]
    assert all(score.value is not None for score in result.scores)


def test_a_learner_that_dies_ends_the_run_with_one_clear_line() -> None:
    settings = Settings(plan=Plan(updates=20), max_lead=1)
    with pytest.raises(RunFailed, match=r"^learner\.\w+: .*SIGKILL"):
        run_sabotaged(settings, "land", 5, "learner", signal.SIGKILL)


def test_a_finished_run_leaves_no_process_and_no_shared_memory() -> None:
    before = set(os.listdir("/dev/shm"))
    _, log = run_sabotaged(Settings(plan=Plan(updates=10), max_lead=1), "start", 3, "collector-0", signal.SIGKILL)
    assert not is_running(log.killed)
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    names = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children if Path(f"/proc/{pid}").exists()]
    assert not [name for name in names if b"spawn_main" in name]
    assert_no_more_shared_memory(before)


def test_when_the_driver_is_killed_its_processes_go_too(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headway.cli", "run", "functions", "--runs", str(tmp_path)]
    driver = subprocess.Popen([*command, "--runtime", "processes", "--updates", "100000", "--save_every", "5"])
    try:
        events = wait_for_file(tmp_path, "*/checkpoints/*-v5/manifest.json", driver)
        assert events
        children = all_children(driver.pid)
        assert len(children) >= 3
    finally:
        driver.kill()
        driver.wait()
    wait_until(lambda: not any(map(is_running, children)), what="no orphans")


def all_children(pid: int) -> list[int]:
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *all_children(int(child))]
    return found


def wait_for_file(root: Path, pattern: str, process: subprocess.Popen[Any]) -> list[Path]:
    def is_there() -> bool:
        assert process.poll() is None, "the run ended early"
        return any(root.glob(pattern))

    wait_until(is_there, 60, pattern)
    return list(root.glob(pattern))
