"""Runs with two lines whose processes are really killed: either learner, a collector. The whole run is killed in
`test_two_lines.py`."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from headway.coordinator.checkpoint import CheckpointStore
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.role_calls import RunFailed
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Plan, Settings
from headway.coordinator.settings_line_settings import LineSettings
from headway.core.rules import ReplayRatio
from headway.runs.event_log import MemoryRecorder
from headway.runs.fingerprint import fingerprint
from headway.runtimes.build import build_runtime
from headway.runtimes.processes import Processes
from headway.testing.auditor import Terms, audit
from headway.testing.two_lines import SECOND, two_line_stations

UPDATES = 16


def shape(first: str) -> Settings:
    """Either two queues, or a replay in the first line and a queue in the second, which takes every other rollout."""
    second = LineSettings(max_lead=1, tickets_per_batch=2, publish_every=2, every=2)
    more: dict[str, Any] = (
        {"replay": ReplayRatio(1.0, min_size=6, slack=9, samples_per_update=4, steps_per_ticket=4)}
        if first == "replay"
        else {}
    )
    plan = Plan(updates=UPDATES, save_every=2)
    return Settings(plan=plan, max_lead=2, collectors=2, seed=3, lines={SECOND: second}, **more)


class Killer(MemoryRecorder):
    """Kills a role's process in the middle of the run: at an event of its line, when another kind has come before."""

    def __init__(self, runtime: Processes, role: str, at: str, behind: str) -> None:
        super().__init__()
        self._runtime = runtime
        self._role = role
        self._at = at
        self._behind = behind
        self._line = role.rpartition("/")[0]
        self.killed = 0

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        super().record(time_s, kind, fields)
        is_late = any(event["e"] == self._behind for event in self.events)
        if is_late and kind == self._at and fields.get("line", "") == self._line and not self.killed:
            self.killed = self._runtime.pid(self._role)
            os.kill(self.killed, signal.SIGKILL)


def bits(result: RunResult) -> tuple[str, str]:
    return fingerprint(result.weights), fingerprint(result.lines[SECOND].weights)


def undisturbed(first: str) -> RunResult:
    place = build_runtime("inline")
    return place.run(Coordinator(two_line_stations(first_replays=first == "replay"), shape(first), place).run())


@pytest.mark.parametrize(
    ("role", "first"), [("learner", "queue"), ("learner", "replay"), (f"{SECOND}/learner", "replay")]
)
def test_a_run_whose_learner_was_killed_goes_on_to_the_same_bits_in_both_lines(
    role: str, first: str, tmp_path: Path
) -> None:
    settings, stations = shape(first), two_line_stations(first_replays=first == "replay")
    store = CheckpointStore(tmp_path)
    runtime = Processes()
    killer = Killer(runtime, role, "update", behind="save")
    coordinator = Coordinator(stations, settings, runtime, recorder=killer, checkpoints=store)
    with pytest.raises(RunFailed, match=rf"^{role}\.\w+: .*SIGKILL"):
        runtime.run(coordinator.run())
    assert killer.killed
    state = store.load()
    again, runtime = MemoryRecorder(), Processes()
    again.events = killer.events[: state.events_position]
    coordinator = Coordinator(stations, settings, runtime, recorder=again, checkpoints=store, resume=state)
    result, expected = runtime.run(coordinator.run()), undisturbed(first)
    assert bits(result) == bits(expected)
    assert audit(again.events, Terms(updates=UPDATES)) == []
    for ledger, whole in zip(ledgers(result), ledgers(expected), strict=True):
        assert ledger.closes
        assert ledger.learned == whole.learned


def ledgers(result: RunResult) -> list[Any]:
    return [result.ledger, result.lines[SECOND].ledger]


def test_a_collector_that_was_killed_is_replaced_and_neither_line_loses_or_repeats_anything() -> None:
    runtime = Processes()
    killer = Killer(runtime, "collector-0", "start", behind="publish")
    stations = two_line_stations(first_replays=True)
    result = runtime.run(Coordinator(stations, shape("replay"), runtime, recorder=killer).run())
    assert killer.killed
    assert bits(result) == bits(undisturbed("replay"))
    assert audit(killer.events, Terms(updates=UPDATES)) == []
    assert all(ledger.closes for ledger in ledgers(result))
