"""The run of a soak: sessions one after another in one process, with stations that go wrong now and then.

    launch --SIGINT--> saved and ended --> launch(resume=True) --SIGINT--> ...    until `wall_s` seconds of running

A collector raises for one ticket of `RAISES_EVERY` (it is tried again, and dropped), an evaluation of one version of
`HANGS_EVERY` never comes back. What kills and stops processes is outside (`soak.py`). Every station leaves a file with
its role and process in `<folder>/roles`, so that it can be found.
"""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from pathlib import Path

import numpy as np

from headway.coordinator.roles import Stations
from headway.coordinator.settings import Deadlines, Plan, Retries, Settings
from headway.core.rules_order import READY, OnStale
from headway.core.types import SAMPLES, Batch, LearnReport, Rollout, Score, Snapshot, Ticket
from headway.runs import files_run_files as run_files
from headway.runs import launch_session as launching
from headway.runs import launch_session as session
from headway.runs import log_file, samples, tensorboard_sink
from headway.runs import sinks_json_lines as json_lines
from headway.runs import sinks_spacing as spacing
from headway.runs.event_log import EventLog
from headway.runs.folder import RunFolder
from headway.runs.log_file import TextLog
from headway.runs.samples import SampleLog
from headway.runs.sinks_json_lines import JsonLines
from headway.runs.sinks_metric_sinks import build_sinks
from headway.runs.sinks_spacing import Spacing

RAISES_EVERY = 200
HANGS_EVERY = 7
EVALUATE_EVERY = 25
ROLLOUT_BYTES = 64 << 10
WEIGHT_BYTES = 256 << 10
COLLECTORS = 3
LATE_S = 10.0


def leave_name(roles: Path, role: str) -> None:
    """So that whoever kills knows whom."""
    (roles / f"{os.getpid()}.{role}").touch()


class SoakCollector:
    def __init__(self, roles: Path, number: int) -> None:
        leave_name(roles, "collector")

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        if ticket.seed % RAISES_EVERY == 0:
            raise RuntimeError(f"the environment of ticket {ticket.index} raises")
        random = np.random.default_rng(ticket.seed)
        payload = random.integers(256, size=ROLLOUT_BYTES, dtype=np.uint8)
        versions = (snapshot.version, snapshot.version)
        text = {"uid": str(ticket.index), "prompt": "a" * 200, "reply": "b" * 400, "reward": 1.0, "versions": versions}
        return Rollout(payload, steps=8, info={SAMPLES: (text,)} if ticket.index % 8 == 0 else {})


class SoakLearner:
    def __init__(self, roles: Path) -> None:
        leave_name(roles, "learner")
        self._weights = np.zeros(WEIGHT_BYTES // 8)

    def learn(self, batch: Batch) -> LearnReport:
        for rollout in batch.rollouts:
            self._weights[0] += float(rollout.payload.sum())
        return LearnReport({"loss": 1 / (1 + self._weights[0]), "ess": 0.9, "kl": 0.01})

    def snapshot(self) -> np.ndarray:
        return self._weights

    def state_dict(self) -> np.ndarray:
        return self._weights

    def load_state_dict(self, state: np.ndarray) -> None:
        self._weights = state.copy()


class SoakEvaluator:
    def __init__(self, roles: Path) -> None:
        leave_name(roles, "evaluator")

    def evaluate(self, snapshot: Snapshot, seed: int) -> Score:
        if snapshot.version // EVALUATE_EVERY % HANGS_EVERY == HANGS_EVERY - 1:
            threading.Event().wait()
        return Score(snapshot.version, float(snapshot.payload[0] % 1000))


def settings(wall_s: float, per_s: float) -> Settings:
    return Settings(
        plan=Plan(wall_s=wall_s, evaluate_every=EVALUATE_EVERY, save_every_s=60.0),
        collectors=COLLECTORS,
        pacing_s=COLLECTORS / per_s,
        tickets_per_batch=2,
        max_lead=4,
        order=READY,
        max_staleness=6,
        on_stale=OnStale.DROP,
        dispatch="free",
        evaluate_in_background=True,
        deadlines=Deadlines(collect_s=LATE_S, evaluate_s=LATE_S, learn_s=120.0, start_s=120.0),
        retries=Retries(on_failure="drop", attempts_on_error=2, attempts_on_loss=20, max_restarts=1_000_000),
    )


LOG_PARTS = 4
"""That the event log may have, where limits are shrunk."""


def shrink_limits(by: int) -> None:
    """Make every limit on a file so many times smaller: what a run of weeks comes to is reached in minutes."""

    def event_log(path: Path, **_: object) -> EventLog:
        part_bytes = log_file.PART_BYTES // by
        return EventLog(path, part_bytes=part_bytes, limit_bytes=LOG_PARTS * part_bytes)

    run_files.EventLog = event_log  # type: ignore[misc,assignment]
    run_files.JsonLines = partial(JsonLines, limit_bytes=json_lines.LIMIT_BYTES // by)  # type: ignore[misc,assignment]
    run_files.SampleLog = partial(SampleLog, limit_bytes=samples.LIMIT_BYTES // by)  # type: ignore[misc,assignment]
    session.TextLog = partial(TextLog, part_bytes=log_file.TEXT_BYTES // by)  # type: ignore[misc,assignment]
    tensorboard_sink.Spacing = partial(Spacing, spacing.LOOKS // by)  # type: ignore[misc,assignment]


def run_all(folder: RunFolder, runtime: str, wall_s: float, per_s: float, shrink: int) -> int:
    """Sessions until the plan is over; returns how many there were."""
    if shrink > 1:
        shrink_limits(shrink)
    run_files.TRACE_UP_TO_BYTES = 0  # it takes memory at the end of a session, of which the allocator keeps some
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # between two sessions
    roles = folder.path / "roles"
    roles.mkdir(parents=True, exist_ok=True)
    stations = Stations(partial(SoakCollector, roles), partial(SoakLearner, roles), partial(SoakEvaluator, roles))
    sessions, is_over = 0, False
    while not is_over:
        result = launching.launch(
            stations,
            settings(wall_s, per_s),
            runtime=runtime,
            folder=folder,
            resume=folder.events.exists(),
            sinks=build_sinks(folder),
            alarms={"stale_samples_ratio": 1.0},
        )
        sessions += 1
        is_over = not result.stop_reason.startswith("interrupted")
    return sessions
