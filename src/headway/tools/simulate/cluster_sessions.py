"""A run on a cluster, from its first session to the end of its plan: whenever the learner dies, the run is resumed.

    session --learner dies--> (repaired) --resume from the last checkpoint--> session ... --plan reached--> costs

Each session is a coordinator of its own, as it is after `headway resume`; the clock goes on. What a failed learner
costs is what was done since the checkpoint: updates that are made again, rollouts that are collected again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headway.coordinator.checkpoint import CheckpointStore, RunState
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.role_calls import RunFailed
from headway.coordinator.roles import LEARNER, Stations
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Settings
from headway.runtimes.virtual import Virtual
from headway.tools.simulate.cluster import ClusterWorkload

MAX_SESSIONS_WITHOUT_PROGRESS = 200
WAITING_FOR_WEIGHTS = ("apply", "applying")


@dataclass(frozen=True, slots=True)
class ClusterCosts:
    """What a cluster cost a run, over all its sessions."""

    wall_s: float
    """With the time between two sessions."""
    learner_idle_s: float
    collectors_idle_s: float
    """Of all seats together, for want of a slot."""
    failures: Mapping[str, int]
    """Parts by their kind that failed."""
    lost_s: float
    """Of collectors, on rollouts that nobody has learned from because something failed."""
    collecting_s: float
    """Of collectors, on all rollouts."""
    reissued: int
    """Tickets that flew again after a failure; not those of a session that was resumed."""
    restarts: int
    """Of collectors, within sessions."""
    most_restarts: int
    """Of any one: what `max_restarts` has to allow."""
    resumes: int
    """After the learner died, or somebody else while the run was being resumed."""
    updates_again: int
    """Updates since the last checkpoint, each time the learner died."""
    publish_s: float
    """Of all seats together, waiting for weights."""
    coordinator_s: float
    """How long the coordinator worked."""
    seats: int

    @property
    def work_lost(self) -> float:
        """The share of collecting that was for nothing."""
        return self.lost_s / self.collecting_s if self.collecting_s else 0.0

    @property
    def publish_exposed(self) -> float:
        """The share of the seats' time that went into waiting for weights."""
        return self.publish_s / self.seats / self.wall_s

    @property
    def coordinator_busy(self) -> float:
        return self.coordinator_s / self.wall_s


class ForgottenCheckpoints(CheckpointStore):
    """Takes checkpoints and keeps none: the time is in the learner's call for its state."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))

    def save(self, state: RunState) -> Path:
        return self.folder


class LastCheckpoint(ForgottenCheckpoints):
    """Keeps the last one, here."""

    def __init__(self, work: ClusterWorkload) -> None:
        super().__init__()
        self._work = work
        self.state: RunState | None = None
        self.landed_s = 0.0
        """What had landed when it was written."""

    def save(self, state: RunState) -> Path:
        self.state, self.landed_s = state, self._work.landed_s
        return self.folder


class _Account:
    """What the sessions so far have cost."""

    def __init__(self, work: ClusterWorkload, store: LastCheckpoint | None) -> None:
        self._work = work
        self._store = store
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Of waiting and collecting, by what it was."""
        self.reissued = 0
        self.restarts: Counter[str] = Counter()
        self.resumes = 0
        self.updates_again = 0

    def add(self, coordinator: Coordinator, before: RunState | None) -> None:
        """A session is over."""
        spent = coordinator.board.time_spent()
        self.seconds["learner idle"] += spent.total(LEARNER, "data")
        self.seconds["collectors idle"] += spent.total("collector", "slot")
        self.seconds["publish"] += sum(spent.total("collector", name) for name in WAITING_FOR_WEIGHTS)
        self.seconds["collecting"] += spent.total("collector", "collect")
        self.restarts.update(coordinator.restarts)
        reissued = coordinator.ledger.counts.reissued - (before.ledger["counts"][0] if before else 0)
        self.reissued += max(0, reissued)  # less only where the session ended before it was restored

    def add_failed(self, coordinator: Coordinator, before: RunState | None) -> None:
        """A session has ended with its learner: what was done since the checkpoint is done again."""
        assert self._store is not None
        self.add(coordinator, before)
        work, store = self._work, self._store
        in_flight_s = self.seconds["collecting"] - work.landed_s - work.lost_s() - self.seconds["broken off"]
        self.seconds["broken off"] += in_flight_s
        self.seconds["lost"] += in_flight_s + work.landed_s - store.landed_s
        store.landed_s = work.landed_s
        self.resumes += 1
        self.updates_again += max(0, coordinator.updates - (store.state.updates if store.state else 0))

    def costs(self, runtime: Virtual, seats: int) -> ClusterCosts:
        """All of it."""
        ours = {role: count for role, count in self.restarts.items() if role.startswith("collector")}
        return ClusterCosts(
            wall_s=max(runtime.now(), 1e-12),
            learner_idle_s=self.seconds["learner idle"],
            collectors_idle_s=self.seconds["collectors idle"],
            failures=self._work.failures(),
            lost_s=self.seconds["lost"] + self._work.lost_s(),
            collecting_s=self.seconds["collecting"],
            reissued=self.reissued,
            restarts=sum(ours.values()),
            most_restarts=max(ours.values(), default=0),
            resumes=self.resumes,
            updates_again=self.updates_again,
            publish_s=self.seconds["publish"],
            coordinator_s=runtime.coordinator_s,
            seats=seats,
        )


def run_on_cluster(
    stations: Stations, settings: Settings, runtime: Virtual, work: ClusterWorkload, store: CheckpointStore | None
) -> tuple[RunResult, ClusterCosts]:
    """Run, resume after each failure of the learner, and say what it came to."""
    work.now = runtime.now
    kept = LastCheckpoint(work) if "learner" in work.cluster.failing else None
    account = _Account(work, kept)
    stuck = furthest = 0
    while True:
        before = kept.state if kept else None
        work.begin_session()
        coordinator = Coordinator(stations, settings, runtime, checkpoints=kept or store, resume=before)
        try:
            result = runtime.run(coordinator.run())
        except RunFailed:
            if kept is None or not work.has_ended_session:
                raise
        else:
            account.add(coordinator, before)
            return result, account.costs(runtime, settings.seats)
        account.add_failed(coordinator, before)
        stuck = 0 if coordinator.updates > furthest else stuck + 1
        furthest = max(furthest, coordinator.updates)
        if stuck == MAX_SESSIONS_WITHOUT_PROGRESS:
            raise ValueError(f"the learner fails too often to get beyond update {furthest} of {settings.plan.updates}")
