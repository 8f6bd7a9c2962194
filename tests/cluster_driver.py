"""A run of toys on a cluster, as a program: `cluster_driver.py JSON`, whose last line is a JSON object.

The toys' weights depend on every bit of every rollout and on their order, so one hash says whether anything was lost,
doubled or swapped.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headway.coordinator.roles import Stations
from headway.coordinator.settings import Deadlines, Plan, Retries, Settings
from headway.core.protocols import Placement
from headway.core.types import Batch, Rollout, Snapshot, Ticket
from headway.testing.toy_stations import Pause, ToyCollector, ToyLearner

HEAD, WORKER, FAR, ANY = "head", "worker", "far", "any"


@dataclass(frozen=True)
class Job:
    """What to run, where; seconds are those of a quiet machine and are made longer by whoever starts it."""

    folder: str
    address: str = ""
    updates: int = 40
    collectors: int = 2
    max_lead: int = 2
    collect_ms: float = 40.0
    publish_ms: float = 0.0
    save_ms: float = 0.0
    """How long the learner takes to give its weights away, and its state: time to cut it in the middle of that."""
    ballast: int = 0
    """Numbers that travel with every rollout and every snapshot."""
    learner_at: str = HEAD
    collector_at: str = WORKER
    save_every: int = 0
    deadlines: dict[str, float] = field(default_factory=dict)
    retries: dict[str, Any] = field(default_factory=dict)
    keeps_copies: bool = True
    resume: bool = False

    def settings(self) -> Settings:
        plan = Plan(updates=self.updates, save_every=self.save_every)
        return Settings(
            plan=plan,
            collectors=self.collectors,
            max_lead=self.max_lead,
            deadlines=Deadlines(**self.deadlines),
            retries=Retries(**self.retries),
        )

    def stations(self) -> Stations:
        return Stations(
            collector=partial(make_collector, self.ballast, self.collect_ms / 1000),
            learner=partial(HeavyLearner, self.ballast, self.publish_ms / 1000, self.save_ms / 1000),
            collector_placement=Placement(num_cpus=0.2, resources={self.collector_at: 1}),
            learner_placement=Placement(num_cpus=0.2, resources={self.learner_at: 1}),
        )


class HeavyCollector(ToyCollector):
    def __init__(self, number: int, pause_s: float, ballast: int) -> None:
        super().__init__(number, Pause(pause_s))
        self._ballast = ballast

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        rollout = super().collect(ticket, snapshot)
        ballast = np.full(self._ballast, float(ticket.index))
        return Rollout({**rollout.payload, "ballast": ballast}, steps=rollout.steps)


def make_collector(ballast: int, pause_s: float, number: int) -> HeavyCollector:
    return HeavyCollector(number, pause_s, ballast)


class HeavyLearner(ToyLearner):
    def __init__(self, ballast: int, publish_s: float, save_s: float) -> None:
        super().__init__()
        self._ballast, self._publish_s, self._save_s = ballast, publish_s, save_s

    def learn(self, batch: Batch) -> Any:
        for rollout in batch.rollouts:
            ballast, index = rollout.payload["ballast"], rollout.payload["ticket"][0]
            assert np.all(ballast == float(index)), "another ticket's rollout"
        return super().learn(batch)

    def state_dict(self) -> Any:
        time.sleep(self._save_s)
        return super().state_dict()

    def snapshot(self) -> dict[str, Any]:
        time.sleep(self._publish_s)
        return {**super().snapshot(), "ballast": np.zeros(self._ballast)}


def main(job: Job) -> dict[str, Any]:
    from headway import RunFailed
    from headway.core.protocols import RoleError
    from headway.runs.fingerprint import fingerprint
    from headway.runs.folder import RunFolder
    from headway.runs.launch_session import launch
    from headway.runtimes.ray_actors import RayActors

    runtime = RayActors(job.address, keeps_copies=job.keeps_copies)
    folder = RunFolder(Path(job.folder))
    try:
        result = launch(job.stations(), job.settings(), runtime=runtime, folder=folder, resume=job.resume)
    except (RunFailed, RoleError, ConnectionError) as error:
        return {"failed": str(error)}
    ledger = result.ledger
    return {
        "hash": fingerprint({"weights": result.weights["weights"]}),
        "updates": result.updates,
        "stopped": result.stop_reason,
        "restarts": result.restarts,
        "reissued": ledger.reissued,
        "lost": ledger.lost,
        "dropped": dict(ledger.dropped),
        "closes": ledger.closes,
    }


if __name__ == "__main__":
    print(json.dumps(main(Job(**json.loads(sys.argv[1])))), flush=True)
