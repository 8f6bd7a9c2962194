"""Looks at a run while it goes on: its status for the console, and what no event says by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from headway.coordinator.coordinator import Coordinator
from headway.coordinator.line import Line
from headway.coordinator.run_result import RunResult
from headway.core.types_opaque import CoroutineOf
from headway.runs import console_episodes_in_words as episodes_in_words
from headway.runs.console import REFRESH_S, LineStatus, RoleStatus, Status
from headway.runs.monitor_alarms import Alarms
from headway.runs.sinks import Look, MetricsRecorder, processor_s_of, resident_bytes, resident_bytes_of

LOOK_EVERY_S = 1.0  # at the clock, whether a look at the run is due


def look_at(coordinator: Coordinator, *, began_s: float = 0.0) -> Look:
    """What no event says by itself. To be called in the coordinator's thread. `began_s` is the processor time that this
    process had used when the run began."""
    spent: dict[str, dict[str, float]] = {}
    for role, activities in coordinator.board.time_spent().seconds.items():
        kind = spent.setdefault(role.partition("-")[0], {})
        for activity, seconds_ in activities.items():
            kind[activity] = kind.get(activity, 0.0) + seconds_
    rounded = {kind: {name: round(s, 6) for name, s in by.items()} for kind, by in spent.items()}
    runtime = coordinator.runtime
    pids: dict[str, int] = runtime.pids() if isinstance(runtime, HasProcesses) else {}  # of roles on this machine
    sizes = {role: size for role, pid in pids.items() if (size := resident_bytes_of(pid)) is not None}
    cpu_s = time.process_time() - began_s + sum(processor_s_of(pid) for pid in pids.values())
    others = {line.name: line.lead.current for line in coordinator.lines[1:]}
    return Look(coordinator.lead, rounded, resident_bytes(), sizes, round(cpu_s, 3), others or None)


@runtime_checkable
class HasProcesses(Protocol):
    """A runtime whose roles run in processes of their own."""

    def pids(self) -> dict[str, int]: ...


class LatestStatus:
    """Looks at the coordinator in its own thread, where nothing moves meanwhile; others read the last look."""

    def __init__(self, coordinator: Coordinator, alarms: Alarms) -> None:
        self._coordinator = coordinator
        self._alarms = alarms
        self._status = status_of(coordinator)

    def get(self) -> Status:
        return self._status

    async def follow(self, main: CoroutineOf[RunResult]) -> RunResult:
        result = await _with_beside(main, self._watch())
        self._status = status_of(self._coordinator, self._alarms.lines())  # how it ended is seen too
        return result

    async def _watch(self) -> None:
        while True:
            self._status = status_of(self._coordinator, self._alarms.lines())
            await asyncio.sleep(REFRESH_S)


def status_of(coordinator: Coordinator, alarms: Sequence[str] = ()) -> Status:
    """A moment of the run. To be called in the coordinator's thread."""
    plan = coordinator.settings.plan
    statistics = coordinator.ledger.statistics()
    done, total, unit = float(coordinator.updates), plan.updates, "update"
    if plan.updates is None and plan.steps is not None:
        done, total, unit = statistics.steps, plan.steps, "step"
    elif plan.updates is None and plan.wall_s is not None:
        done, total, unit = coordinator.wall_s, int(plan.wall_s), "second"
    scores = [score for score in coordinator.evaluations.scores if score.value is not None]
    wall_s = max(coordinator.wall_s, 1e-9)
    restarts = coordinator.restarts
    return Status(
        done=done,
        total=total,
        unit=unit,
        version=coordinator.version,
        lead=coordinator.lead,
        staleness=statistics.mean_staleness,
        updates_per_s=coordinator.updates / wall_s,
        score=scores[-1].value if scores else None,
        roles=tuple(
            RoleStatus(doing.role, doing.activity, doing.words, doing.since_s, doing.answered_s, restarts[doing.role])
            for doing in coordinator.board.doing()
        ),
        max_staleness=statistics.max_staleness,
        rollouts_per_s=statistics.landed / wall_s,
        steps_per_s=statistics.steps / wall_s,
        score_version=scores[-1].version if scores else None,
        drops=dict(statistics.dropped),
        restarts=sum(restarts.values()),
        alarms=tuple(alarms),
        lines=tuple(_line_status(line) for line in coordinator.lines[1:]),
        episodes=episodes_in_words.in_words(coordinator.metrics),
    )


def _line_status(line: Line) -> LineStatus:
    statistics = line.ledger.statistics()
    staleness = statistics.mean_staleness, statistics.max_staleness
    return LineStatus(line.name, line.updates, line.version, line.lead.current, *staleness, dict(statistics.dropped))


async def look_by_the_clock(
    main: CoroutineOf[RunResult], coordinator: Coordinator, recorder: MetricsRecorder
) -> RunResult:
    """`main`, and beside it looks at a run that makes no updates: alarms ring all the same."""

    async def watch() -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            recorder.look_by_the_clock(coordinator.elapsed_s)

    return await _with_beside(main, watch())


async def _with_beside(main: CoroutineOf[RunResult], endless: CoroutineOf[None]) -> RunResult:
    """`main`, and beside it what goes on for as long as that does."""
    going_on = asyncio.create_task(endless)
    try:
        return await main
    finally:
        going_on.cancel()
