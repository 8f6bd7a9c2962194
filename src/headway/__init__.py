"""Headway: asynchronous reinforcement learning with a bound on how stale the data may be.

                tickets            rollouts            batches             versions
   +----------+        +---------+         +--------+         +---------+
   |  ledger  | -----> | collect | ------> | buffer | ------> |  learn  | -----+
   +----------+        +---------+         +--------+         +---------+      |
        ^                   ^                                                  v
        | slots             | snapshot                                   +---------+      +----------+
        +-------------------+------------------------------------------- | publish | ---> | evaluate |
                                                                         +---------+      +----------+

A *ticket* is the permission to collect one unit of experience; it occupies a *slot* until the version
trained on it is published. `max_lead` bounds the slots, `order` says which rollout is learned next,
`max_staleness` bounds the age of each one. `max_lead=0` is the synchronous loop, bit for bit.

    result = headway.run(collect, train, evaluate, weights=weights, updates=1000, max_lead=2)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.agents.env import Step
    from headway.coordinator.activities_waits import Stalled
    from headway.coordinator.coordinator import Coordinator
    from headway.coordinator.facade import AsyncTrainingCoordinator
    from headway.coordinator.functions import stations_from_functions
    from headway.coordinator.role_calls import RunFailed
    from headway.coordinator.roles import LineStations, Stations
    from headway.coordinator.run_result import RunResult
    from headway.coordinator.settings import Deadlines, Plan, Retries, Settings
    from headway.coordinator.settings_line_settings import LineSettings
    from headway.core.protocols import CannotGoOn, Placement
    from headway.core.rules import ReplayRatio
    from headway.core.rules_order import OLDEST, READY, OnStale, Order, window
    from headway.core.types import Batch, DropReason, LearnReport, Rollout, Score, Snapshot, Span, Ticket
    from headway.runs.launch_background import Run
    from headway.runs.launch_of_functions import run
    from headway.runs.launch_session import launch
    from headway.runs.recipes_loading import load
    from headway.runs.start import start, train
    from headway.runtimes.build import build_runtime
    from headway.tools.sweep.runner_session import SweepFailed, sweep

__version__ = "0.1.0"


_HOMES = {
    "headway.coordinator.coordinator": ("Coordinator",),
    "headway.coordinator.run_result": ("RunResult",),
    "headway.coordinator.role_calls": ("RunFailed",),
    "headway.coordinator.facade": ("AsyncTrainingCoordinator",),
    "headway.coordinator.functions": ("stations_from_functions",),
    "headway.coordinator.settings_line_settings": ("LineSettings",),
    "headway.coordinator.roles": ("LineStations", "Stations"),
    "headway.coordinator.settings": ("Deadlines", "Plan", "Retries", "Settings"),
    "headway.coordinator.activities_waits": ("Stalled",),
    "headway.core.rules_order": ("OLDEST", "READY", "OnStale", "Order", "window"),
    "headway.core.protocols": ("CannotGoOn", "Placement"),
    "headway.core.rules": ("ReplayRatio",),
    "headway.core.types": ("Batch", "DropReason", "LearnReport", "Rollout", "Score", "Snapshot", "Span", "Ticket"),
    "headway.agents.env": ("Step",),
    "headway.runs.launch_background": ("Run",),
    "headway.runs.launch_session": ("launch",),
    "headway.runs.launch_of_functions": ("run",),
    "headway.runtimes.build": ("build_runtime",),
    "headway.runs.start": ("start", "train"),
    "headway.runs.recipes_loading": ("load",),
    "headway.tools.sweep.runner_session": ("SweepFailed", "sweep"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "OLDEST",
    "READY",
    "AsyncTrainingCoordinator",
    "Batch",
    "CannotGoOn",
    "Coordinator",
    "Deadlines",
    "DropReason",
    "LearnReport",
    "LineSettings",
    "LineStations",
    "OnStale",
    "Order",
    "Placement",
    "Plan",
    "ReplayRatio",
    "Retries",
    "Rollout",
    "Run",
    "RunFailed",
    "RunResult",
    "Score",
    "Settings",
    "Snapshot",
    "Span",
    "Stalled",
    "Stations",
    "Step",
    "SweepFailed",
    "Ticket",
    "build_runtime",
    "launch",
    "load",
    "run",
    "start",
    "stations_from_functions",
    "sweep",
    "train",
    "window",
]


def __getattr__(name: str) -> Any:
    """Public names are imported when first used, so that `import headway` stays light."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'headway' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
