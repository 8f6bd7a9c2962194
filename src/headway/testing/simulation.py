"""What each lead would give: the real coordinator on a virtual clock, with drawn or recorded durations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal

from headway.coordinate.coordinator import Coordinator, RunResult
from headway.coordinate.roles import LEARNER, Stations
from headway.coordinate.settings import Deadlines, Plan, Settings
from headway.core.order import parse_on_stale, parse_order
from headway.runtime.virtual import Virtual
from headway.testing.workloads import (
    Constant,
    Duration,
    Empirical,
    SimulatedCollector,
    SimulatedEvaluator,
    SimulatedLearner,
    SteadyWorkload,
)

NO_TIME = Constant(0.0)
WORTH_A_VERSION = 0.02  # a larger lead must bring at least this much more throughput


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What is simulated: durations in seconds, and how the run is cut."""

    collect: Duration
    learn: Duration
    evaluate: Duration = NO_TIME
    evaluate_every: int = 0
    evaluate_in_background: bool = False
    collectors: int = 1
    lanes: int = 1
    tickets_per_batch: int = 1
    publish_every: int = 1
    order: str = "oldest"
    max_staleness: int | None = None
    on_stale: str = "wait"
    dispatch: Literal["pinned", "free"] | None = None
    updates: int = 500
    seed: int = 0


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


def simulate(workshop: Workshop, max_lead: float | Literal["auto"]) -> Outcome:
    """Run the workshop under one lead."""
    deadline = Deadlines(collect_s=1e9, learn_s=1e9, evaluate_s=1e9)
    settings = Settings(
        plan=Plan(updates=workshop.updates, evaluate_every=workshop.evaluate_every),
        collectors=workshop.collectors,
        lanes=workshop.lanes,
        max_lead=max_lead,
        order=parse_order(workshop.order),
        max_staleness=workshop.max_staleness,
        on_stale=parse_on_stale(workshop.on_stale),
        dispatch=workshop.dispatch,
        tickets_per_batch=workshop.tickets_per_batch,
        publish_every=workshop.publish_every,
        evaluate_in_background=workshop.evaluate_in_background,
        seed=workshop.seed,
        deadlines=deadline,
    )
    runtime = Virtual(SteadyWorkload(workshop.collect, workshop.learn, workshop.evaluate, workshop.seed))
    stations = Stations(
        collector=partial(_collector, workshop.collect),
        learner=SimulatedLearner,
        evaluator=SimulatedEvaluator if workshop.evaluate_every else None,
    )
    return _outcome(runtime.run(Coordinator(stations, settings, runtime).run()))


def compare(workshop: Workshop, leads: Sequence[float]) -> list[Outcome]:
    """The same workshop, the same tickets, under each lead."""
    return [simulate(workshop, lead) for lead in leads]


def recommend(outcomes: Sequence[Outcome]) -> Outcome:
    """The smallest lead within two percent of the best throughput: more only makes the data older."""
    best = max(outcome.updates_per_s for outcome in outcomes)
    good = [outcome for outcome in outcomes if outcome.updates_per_s >= best * (1 - WORTH_A_VERSION)]
    return min(good, key=lambda outcome: outcome.lead)


def fit(events: Iterable[dict[str, Any]]) -> Workshop:
    """The workshop of a recorded run: its durations as they were, cut as it was."""
    collect: list[float] = []
    learn: list[float] = []
    evaluate: list[float] = []
    started: dict[tuple[str, int], float] = {}
    head: dict[str, Any] = {}
    versions: list[int] = []
    for event in events:
        kind, when = event["e"], event["t"]
        if kind == "run":
            head = event
        elif kind == "start":
            started["collect", event["k"]] = when
        elif kind == "land" and ("collect", event["k"]) in started:
            collect.append(when - started.pop(("collect", event["k"])))
        elif kind == "learn":
            learn.append(event["d"])
        elif kind == "evaluate":
            started["evaluate", event["v"]] = when
            versions.append(event["v"])
        elif kind == "score" and ("evaluate", event["v"]) in started:
            evaluate.append(when - started.pop(("evaluate", event["v"])))
    if not collect or not learn:
        raise ValueError("the run has no finished collection or no update to fit durations to")
    gaps = [after - before for before, after in pairwise(versions)]
    workshop = Workshop(
        collect=Empirical(collect),
        learn=Empirical(learn),
        collectors=head["collectors"],
        lanes=head.get("lanes", 1),
        tickets_per_batch=head["tickets_per_batch"],
        publish_every=head["publish_every"],
        order=head["order"],
        max_staleness=head["max_staleness"],
        on_stale=head["on_stale"],
        dispatch="free" if head["dispatch"] == "free" else None,
        evaluate_in_background=head["evaluate_in_background"],
        updates=max(len(learn), 100),
        seed=head["seed"],
    )
    if evaluate:
        every = max(1, round(sum(gaps) / len(gaps))) if gaps else len(learn)
        workshop = replace(workshop, evaluate=Empirical(evaluate), evaluate_every=every)
    return workshop


def _collector(duration: Duration, number: int) -> SimulatedCollector:
    return SimulatedCollector(duration)


def _outcome(result: RunResult) -> Outcome:
    ledger, spent = result.ledger, result.time_spent
    wall = max(result.wall_s, 1e-12)
    blocked = spent.total("collector", "slot") / wall / result.settings.seats
    return Outcome(
        lead=result.lead,
        updates_per_s=result.updates / wall,
        learner_idle=spent.total(LEARNER, "data") / wall,
        collectors_idle=blocked,
        staleness_mean=ledger.mean_staleness,
        staleness_p99=ledger.staleness_quantile(0.99),
        staleness_max=ledger.max_staleness,
        dropped=sum(ledger.dropped.values()),
        length_bias=ledger.length_bias,
        wall_s=result.wall_s,
    )
