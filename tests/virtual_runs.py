"""Runs on the virtual clock, recorded: stories with known numbers, in no time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from headway.coordinator.checkpoint import CheckpointStore, RunState
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.roles import Stations
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Plan, Settings
from headway.runs.event_log import MemoryRecorder
from headway.runtimes.virtual import Virtual, Workload
from headway.tools.report.recorded_run_run_history import tell
from headway.tools.report.recorded_run_story_records import Story
from headway.tools.simulate.workloads import (
    Constant,
    Duration,
    SimulatedCollector,
    SimulatedEvaluator,
    SimulatedLearner,
    SteadyWorkload,
)


def record(
    collect: Duration | float = 1.0,
    learn: Duration | float = 1.0,
    evaluate: Duration | float = 1.0,
    *,
    workload: Workload | None = None,
    stations: Stations | None = None,
    decay: float = 0.0,
    updates: int = 100,
    evaluate_every: int = 0,
    checkpoints: CheckpointStore | None = None,
    resume: RunState | None = None,
    plan: dict[str, Any] | None = None,
    scalings: Sequence[tuple[float, int]] = (),
    **settings: Any,
) -> tuple[list[dict[str, Any]], RunResult]:
    """The events of a run, and what it came to. `scalings`: at this second it is told to have so many collectors."""
    collect, learn, evaluate = (
        Constant(float(one)) if isinstance(one, int | float) else one for one in (collect, learn, evaluate)
    )
    runtime = Virtual(workload or SteadyWorkload(collect, learn, evaluate))
    duration = collect
    stations = stations or Stations(
        lambda number: SimulatedCollector(duration),
        lambda: SimulatedLearner(decay),
        SimulatedEvaluator if evaluate_every else None,
    )
    recorder = MemoryRecorder()
    given = Settings(plan=Plan(updates=updates, evaluate_every=evaluate_every, **(plan or {})), **settings)
    coordinator = Coordinator(stations, given, runtime, recorder=recorder, checkpoints=checkpoints, resume=resume)

    async def scaled() -> RunResult:
        for at_s, collectors in scalings:
            asyncio.get_running_loop().call_later(at_s, coordinator.scale, collectors, Future())
        return await coordinator.run()

    return recorder.events, runtime.run(scaled())


def story_of(*durations: Duration | float, **settings: Any) -> Story:
    """The story of such a run."""
    return tell(record(*durations, **settings)[0])
