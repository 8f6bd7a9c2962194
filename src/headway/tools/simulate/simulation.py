"""What each lead would give: the real coordinator on a virtual clock, with drawn or recorded durations."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from headway.coordinator.coordinator import Coordinator
from headway.coordinator.roles import LEARNER, LineStations, Stations
from headway.coordinator.run_result import RunResult
from headway.coordinator.settings import Deadlines, Plan, Retries, Settings
from headway.coordinator.settings_line_settings import LineSettings
from headway.core.protocols import Collector, Learner
from headway.core.rules import ReplayRatio
from headway.core.rules_order import parse_on_stale, parse_order
from headway.core.text_naming import learner_name
from headway.runtimes.virtual import Virtual
from headway.tools.simulate.cluster import Cluster, ClusterCollector, ClusterWorkload, HoldingClusterCollector
from headway.tools.simulate.cluster_sessions import ClusterCosts, ForgottenCheckpoints, run_on_cluster
from headway.tools.simulate.workloads import (
    Constant,
    Duration,
    HoldingCollector,
    RecordedCollector,
    RecordedFlights,
    SimulatedCollector,
    SimulatedEvaluator,
    SimulatedLearner,
    SimulatedReplayLearner,
    SteadyWorkload,
)

NO_TIME = Constant(0.0)
NO_DEADLINES = Deadlines(collect_s=1e9, learn_s=1e9, evaluate_s=1e9, start_s=1e9, publish_s=1e9)
NO_BUDGETS = Retries(attempts_on_loss=10**6, max_restarts=10**6)
WORTH_A_VERSION = 0.02  # a larger lead must bring at least this much more throughput


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What is simulated: durations in seconds, and how the run is cut."""

    collect: Duration
    learn: Duration
    evaluate: Duration = NO_TIME
    evaluate_every: int = 0
    evaluate_in_background: bool = False
    awaits_scores: bool = False
    """The run has a target score. It is not reached here; but a pinned run waits for the score before, each time."""
    collectors: int = 1
    lanes: int = 1
    tickets_per_batch: int = 1
    publish_every: int = 1
    order: str = "oldest"
    max_staleness: int | None = None
    on_stale: str = "wait"
    max_age_s: float | None = None
    dispatch: Literal["pinned", "free"] | None = None
    queue_capacity: int | None = None
    replay: ReplayRatio | None = None
    insert: Duration = NO_TIME
    """Handing rollouts to the replay."""
    pacing_s: float = 0.0
    warmup_s: float = 0.0
    save: Duration = NO_TIME
    save_every: int = 0
    holds_weights: bool = False
    """Collectors hold weights themselves, so that their lanes drain before each version."""
    decay: float = 0.0
    """The effective sample size falls as exp(-decay * mean age of the batch)."""
    lead_limit: int = 64
    lead_buffer_size: int | None = None
    lead_interval: int = 8
    target_effective_sample_size: float = 0.7
    updates: int = 500
    seed: int = 0
    lines: Mapping[str, SimulatedLine] = field(default_factory=dict)
    """Other lines than the first, by name: they keep their lead while that of the first is varied."""
    save_every_s: float = 0.0
    """Seconds between checkpoints; 0: not by the clock."""
    cluster: Cluster | None = None
    """What the run stands on, where that may fail or stand in the way."""


@dataclass(frozen=True, slots=True)
class SimulatedLine:
    """Another line than the first: how long its updates take, and how it keeps step with collection."""

    learn: Duration
    settings: LineSettings


@dataclass(frozen=True, slots=True)
class LineOutcome:
    """What another line came to."""

    lead: float
    updates_per_s: float
    staleness_mean: float
    staleness_max: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """One lead, simulated."""

    lead: float
    updates_per_s: float
    learner_idle: float
    """Share of the time the learner waited for rollouts."""
    collectors_idle: float
    staleness_mean: float
    staleness_p99: int
    staleness_max: int
    dropped: int
    length_bias: float
    wall_s: float
    lines: Mapping[str, LineOutcome] = field(default_factory=dict)
    cluster: ClusterCosts | None = None
    """What the cluster cost, if there was one."""


def simulate(workshop: Workshop, max_lead: float | Literal["auto"]) -> Outcome:
    """Run the workshop under one lead."""
    settings = Settings(
        plan=Plan(
            updates=workshop.updates,
            evaluate_every=workshop.evaluate_every,
            target_score=1e300 if workshop.awaits_scores and workshop.evaluate_every else None,
            save_every=workshop.save_every,
            save_every_s=workshop.save_every_s,
            warmup_s=workshop.warmup_s,
        ),
        collectors=workshop.collectors,
        lanes=workshop.lanes,
        max_lead=max_lead,
        order=parse_order(workshop.order),
        max_staleness=workshop.max_staleness,
        on_stale=parse_on_stale(workshop.on_stale),
        max_age_s=None if max_lead == 0 else workshop.max_age_s,  # nothing waits there
        dispatch=workshop.dispatch,
        tickets_per_batch=workshop.tickets_per_batch,
        publish_every=workshop.publish_every,
        queue_capacity=workshop.queue_capacity,
        replay=workshop.replay,
        pacing_s=workshop.pacing_s,
        evaluate_in_background=workshop.evaluate_in_background,
        lead_limit=workshop.lead_limit,
        lead_buffer_size=workshop.lead_buffer_size,
        lead_interval=workshop.lead_interval,
        target_effective_sample_size=workshop.target_effective_sample_size,
        seed=workshop.seed,
        deadlines=NO_DEADLINES,
        retries=Retries() if workshop.cluster is None else NO_BUDGETS,
        lines={name: line.settings for name, line in workshop.lines.items()},
    )
    work = _workload(workshop)
    runtime = Virtual(work, ticket_s=workshop.cluster.ticket_s if workshop.cluster else 0.0)
    stations = Stations(
        collector=partial(_collector, workshop, work),
        learner=partial(_learner, workshop.replay, workshop.decay),
        evaluator=SimulatedEvaluator if workshop.evaluate_every else None,
        lines={name: LineStations(partial(_learner, line.settings.replay)) for name, line in workshop.lines.items()},
    )
    store = ForgottenCheckpoints() if workshop.save_every or workshop.save_every_s else None
    with _rare_collections():
        if isinstance(work, ClusterWorkload):
            return _outcome(*run_on_cluster(stations, settings, runtime, work, store))
        return _outcome(runtime.run(Coordinator(stations, settings, runtime, checkpoints=store).run()), None)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """With ten thousand tasks alive, looking for cycles among them would take a third of the time."""
    young, *older = gc.get_threshold()
    gc.set_threshold(max(young, 100_000) if young else 0, *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)


def _workload(workshop: Workshop) -> SteadyWorkload:
    durations = workshop.collect, workshop.learn, workshop.evaluate, workshop.seed
    others: dict[str, Any] = {
        "insert": workshop.insert,
        "save": workshop.save,
        "learners": {learner_name(name): line.learn for name, line in workshop.lines.items()},
    }
    if workshop.cluster is None:
        return SteadyWorkload(*durations, **others)
    return ClusterWorkload(workshop.cluster, workshop.collectors, *durations, **others)


def compare(workshop: Workshop, leads: Sequence[float | Literal["auto"]]) -> list[Outcome]:
    """The same workshop, the same tickets, under each lead."""
    return [simulate(workshop, lead) for lead in leads]


def recommend(outcomes: Sequence[Outcome]) -> Outcome:
    """The smallest lead within two percent of the best throughput: more only makes the data older."""
    best = max(outcome.updates_per_s for outcome in outcomes)
    good = [outcome for outcome in outcomes if outcome.updates_per_s >= best * (1 - WORTH_A_VERSION)]
    return min(good, key=lambda outcome: outcome.lead)


def _collector(workshop: Workshop, work: SteadyWorkload, number: int) -> Collector:
    collector: Collector
    if not isinstance(workshop.collect, RecordedFlights):
        collector = SimulatedCollector(workshop.collect)
    else:
        collector = (HoldingCollector if workshop.holds_weights else RecordedCollector)(workshop.collect)
    if not isinstance(work, ClusterWorkload):
        return collector
    holds = workshop.holds_weights or work.cluster.broadcast is not None
    return (HoldingClusterCollector if holds else ClusterCollector)(collector, work)


def _learner(replay: ReplayRatio | None, decay: float = 0.0) -> Learner:
    return SimulatedLearner(decay) if replay is None else SimulatedReplayLearner(replay.samples_per_update)


def _outcome(result: RunResult, costs: ClusterCosts | None) -> Outcome:
    ledger, settings = result.ledger, result.settings
    if costs is None:
        wall_s = max(result.wall_s, 1e-12)
        learner_s = result.time_spent.total(LEARNER, "data")
        blocked_s = result.time_spent.total("collector", "slot")
    else:
        wall_s, learner_s, blocked_s = costs.wall_s, costs.learner_idle_s, costs.collectors_idle_s
    return Outcome(
        lead=result.lead,
        updates_per_s=result.updates / wall_s,
        learner_idle=learner_s / wall_s,
        collectors_idle=blocked_s / wall_s / settings.seats,
        staleness_mean=ledger.mean_staleness,
        staleness_p99=ledger.staleness_quantile(0.99),
        staleness_max=ledger.max_staleness,
        dropped=sum(ledger.dropped.values()),
        length_bias=ledger.length_bias,
        wall_s=wall_s if costs else result.wall_s,
        lines={
            name: LineOutcome(line.lead, line.updates / wall_s, line.ledger.mean_staleness, line.ledger.max_staleness)
            for name, line in result.lines.items()
        },
        cluster=costs,
    )
