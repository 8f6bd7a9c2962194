"""Workloads and the simulator: distributions that have the mean they claim, throughput that can be computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.coordinator.coordinator import Coordinator
from headway.coordinator.roles import Stations
from headway.coordinator.settings import Plan, Settings
from headway.core.rules_order import READY
from headway.core.types import Batch, Rollout, Snapshot, Span, Ticket
from headway.runs.event_log import MemoryRecorder
from headway.runtimes.virtual import Fault, Virtual
from headway.tools.report.recorded_run_run_history import tell
from headway.tools.report.what_if_fitting import fit
from headway.tools.simulate.simulation import Outcome, Workshop, compare, recommend, simulate
from headway.tools.simulate.workloads import (
    Constant,
    Duration,
    Empirical,
    Exponential,
    FaultyWorkload,
    Lognormal,
    Pareto,
    SimulatedCollector,
    SimulatedEvaluator,
    SimulatedLearner,
    SteadyWorkload,
    parse_duration,
    seeds,
    unit,
)

stable = settings(max_examples=100, deadline=None, derandomize=True)


# -- durations --------------------------------------------------------------------------------------


def integral(duration: Duration, steps: int = 200_000) -> float:
    """The mean by its definition: the quantile function integrated over (0, 1).

    With u = 1 / (1 + exp(-x)) both ends are resolved far beyond what equal steps in u would see.
    """
    low, high = -34.0, 34.0
    width = (high - low) / steps
    total = 0.0
    for step in range(steps):
        u = 1 / (1 + math.exp(-(low + (step + 0.5) * width)))
        total += duration.quantile(u) * u * (1 - u)
    return total * width


@pytest.mark.parametrize(
    "duration",
    [
        Constant(0.7),
        Exponential(0.7),
        Lognormal(0.7, 0.3),
        Lognormal(0.7, 1.0),
        Lognormal(0.7, 2.0),
        Pareto(0.7, 1.5),
        Pareto(0.7, 3.0),
        Empirical([0.1, 0.4, 1.6]),
    ],
    ids=lambda duration: (
        f"{type(duration).__name__}-{duration.quantile(0.9):.3f}"
    ),  # an address would differ per process
)
def test_a_duration_has_the_mean_it_claims(duration: Duration) -> None:
    assert integral(duration, 20_000) == pytest.approx(duration.mean, rel=2e-3)


def test_the_cv_of_a_lognormal_is_its_deviation_over_its_mean() -> None:
    class Squared:
        mean = math.nan

        def quantile(self, u: float) -> float:
            return Lognormal(2.0, 0.5).quantile(u) ** 2

    assert math.sqrt(integral(Squared(), 20_000) - 2.0**2) == pytest.approx(0.5 * 2.0, rel=1e-3)


shapes = st.sampled_from(
    [Constant(1.0), Exponential(1.0), Lognormal(1.0, 1.0), Pareto(1.0, 1.5), Empirical([1.0, 2.0])]
)


@stable
@given(shapes, st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))
def test_a_quantile_function_never_falls_and_is_never_negative(duration: Duration, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert 0 <= duration.quantile(low) <= duration.quantile(high) < math.inf


@stable
@given(st.integers(0, 2**63 - 1), shapes)
def test_every_seed_gives_a_duration(seed: int, duration: Duration) -> None:
    assert 0 <= unit(seed) < 1
    assert 0 <= duration.quantile(unit(seed)) < math.inf


def test_the_largest_seed_is_still_below_one() -> None:
    assert unit(2**63 - 1) < 1


def test_an_empirical_distribution_gives_back_what_was_seen() -> None:
    seen = [3.0, 1.0, 2.0, 2.0]
    duration = Empirical(seen)
    assert [duration.quantile((i + 0.5) / 4) for i in range(4)] == sorted(seen)
    assert duration.mean == 2.0
    assert [duration.share_below(x) for x in (1.0, 2.0, 2.5, 9.0)] == [0.0, 0.25, 0.75, 1.0]
    with pytest.raises(ValueError, match="needs at least one value"):
        Empirical([])


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("0.5", Constant(0.5)),
        ("0", Constant(0.0)),
        ("1e-3", Constant(0.001)),
        ("constant:2", Constant(2.0)),
        ("exponential:0.5", Exponential(0.5)),
        ("lognormal:0.5,1", Lognormal(0.5, 1.0)),
        ("pareto: 0.5, 1.5", Pareto(0.5, 1.5)),
    ],
)
def test_a_duration_is_read_from_text(text: str, duration: Duration) -> None:
    assert parse_duration(text) == duration


ALLOWED = "allowed: SECONDS, exponential:MEAN, lognormal:MEAN,CV or pareto:MEAN,ALPHA"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"duration '' is not understood; {ALLOWED}"),
        ("fast", f"duration 'fast' is not understood; {ALLOWED}"),
        ("-1", f"duration '-1' is not understood; {ALLOWED}"),
        ("nan", f"duration 'nan' is not understood; {ALLOWED}"),
        ("inf", f"duration 'inf' is not understood; {ALLOWED}"),
        ("1,2", f"duration '1,2' is not understood; {ALLOWED}"),
        ("gamma:1", f"unknown duration 'gamma:1'; {ALLOWED}"),
        ("exponential:", f"duration 'exponential:' is not understood; {ALLOWED}"),
        ("exponential:1,2", f"duration 'exponential:1,2' is not understood; {ALLOWED}"),
        ("lognormal:1", f"duration 'lognormal:1' is not understood; {ALLOWED}"),
        ("lognormal:1,-1", f"duration 'lognormal:1,-1' is not understood; {ALLOWED}"),
        ("pareto:1,1", "pareto needs alpha > 1 to have a mean, received 1"),
        ("pareto:1,0.5", "pareto needs alpha > 1 to have a mean, received 0.5"),
    ],
)
def test_text_that_is_no_duration_is_refused_with_what_is(text: str, message: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_duration(text)
    assert str(refused.value) == message


# -- workloads --------------------------------------------------------------------------------------


def test_the_same_ticket_takes_the_same_time_whatever_else_happens() -> None:
    first, second = (SteadyWorkload(Exponential(1.0), Exponential(1.0), seed=3) for _ in range(2))
    tickets = [Ticket(index, seed) for index, seed in enumerate(seeds(0, 20))]
    forwards = [first.duration_s("collector-0", "collect", (ticket,)) for ticket in tickets]
    for _ in range(7):
        second.duration_s("learner", "learn", ())
    backwards = [second.duration_s("collector-5", "collect", (ticket,)) for ticket in reversed(tickets)]
    assert forwards == backwards[::-1]
    assert len(set(forwards)) == 20


def test_only_collecting_learning_and_evaluating_take_time() -> None:
    work = SteadyWorkload(Constant(1.0), Constant(2.0), Constant(3.0))
    ticket = Ticket(0, 0)
    methods = ("collect", "learn", "evaluate", "start", "snapshot", "state", "apply")
    assert [work.duration_s("r", method, (ticket,)) for method in methods] == [1.0, 2.0, 3.0, 0, 0, 0, 0]
    assert {work.fault("r", method, (ticket,)) for method in methods} == {None}


def test_faults_come_as_often_as_asked_and_only_where_they_may() -> None:
    work = FaultyWorkload(Constant(1.0), Constant(1.0), crash=0.1, hang=0.2, error=0.3, slow=0.25)
    drawn = [work.fault("collector-0", "collect", ()) for _ in range(4000)]
    for fault, chance in ((Fault.CRASH, 0.1), (Fault.HANG, 0.2), (Fault.RAISE, 0.3), (None, 0.4)):
        assert drawn.count(fault) / 4000 == pytest.approx(chance, abs=0.03)
    assert {work.fault("learner", "learn", ()) for _ in range(100)} == {None}
    times = [work.duration_s("collector-0", "collect", (Ticket(0, 0),)) for _ in range(4000)]
    assert set(times) == {1.0, 100.0}
    assert times.count(100.0) / 4000 == pytest.approx(0.25, abs=0.03)


def test_a_simulated_learner_loses_effective_samples_with_age() -> None:
    old, new = (Rollout(None, span=Span(version, version)) for version in (1, 5))
    learner = SimulatedLearner(decay=0.1)
    assert learner.learn(Batch(5, (new, new))).effective_sample_size == 1.0
    assert learner.learn(Batch(5, (old, new))).effective_sample_size == pytest.approx(math.exp(-0.2))
    assert SimulatedLearner().learn(Batch(5, (old,))).effective_sample_size is None
    assert SimulatedEvaluator().evaluate(Snapshot(7, None), 0).value == 7.0


# -- throughput by hand -----------------------------------------------------------------------------

TIMES = [(0.5, 0.5), (0.25, 1.0), (2.0, 0.5), (1.0, 0.125)]  # exact in binary


@pytest.mark.parametrize(("collect", "learn"), TIMES)
def test_lead_zero_pays_collection_and_learning_one_after_the_other(collect: float, learn: float) -> None:
    outcome = simulate(Workshop(collect=Constant(collect), learn=Constant(learn), updates=64), 0)
    assert outcome.wall_s == 64 * (collect + learn)
    assert outcome.updates_per_s == 1 / (collect + learn)
    assert outcome.learner_idle == collect / (collect + learn)
    assert (outcome.staleness_mean, outcome.staleness_max, outcome.lead) == (0, 0, 0)


@pytest.mark.parametrize(("collect", "learn"), TIMES)
@pytest.mark.parametrize("lead", [1, 4])
def test_with_a_lead_only_the_longer_of_the_two_is_paid(collect: float, learn: float, lead: int) -> None:
    outcome = simulate(Workshop(collect=Constant(collect), learn=Constant(learn), updates=64), lead)
    fill = min(collect, learn)  # the first collection or the last update overlaps with nothing
    assert outcome.wall_s == 64 * max(collect, learn) + fill
    assert outcome.staleness_max <= lead


@pytest.mark.parametrize("collectors", [1, 2, 4])
def test_collectors_share_a_batch_at_lead_zero(collectors: int) -> None:
    shop = Workshop(collect=Constant(1.0), learn=Constant(0.5), collectors=collectors, tickets_per_batch=4, updates=16)
    assert simulate(shop, 0).wall_s == 16 * (4 / collectors + 0.5)


def test_a_blocking_evaluation_is_paid_in_full_and_one_in_the_background_is_not() -> None:
    shop = Workshop(collect=Constant(1.0), learn=Constant(1.0), evaluate=Constant(2.0), evaluate_every=8, updates=32)
    plain = simulate(replace(shop, evaluate_every=0), 0).wall_s
    assert simulate(shop, 0).wall_s == plain + 4 * 2.0
    assert simulate(replace(shop, evaluate_in_background=True), 0).wall_s == plain + 2.0  # only the last is waited for


def test_the_first_come_order_prefers_short_rollouts_and_a_limit_drops() -> None:
    shop = Workshop(collect=Lognormal(1.0, 2.0), learn=Constant(0.1), collectors=8, order="ready", updates=300)
    loose = simulate(shop, 8)
    assert loose.staleness_max > 8  # the lead alone bounds the mean only
    limited = simulate(replace(shop, max_staleness=8, on_stale="drop"), 8)
    assert limited.staleness_max <= 8
    assert limited.dropped > 0
    assert limited.length_bias < -0.01
    assert simulate(replace(shop, order="oldest"), 8).length_bias == pytest.approx(0, abs=1e-9)


def test_the_same_seed_gives_the_same_outcome_and_another_another() -> None:
    shop = Workshop(collect=Exponential(1.0), learn=Exponential(1.0), updates=50)
    assert simulate(shop, 2) == simulate(shop, 2)
    assert simulate(shop, 2) != simulate(replace(shop, seed=1), 2)


def test_auto_can_be_simulated_too() -> None:
    shop = Workshop(collect=Exponential(1.0), learn=Exponential(1.0), updates=400)
    auto, serial = simulate(shop, "auto"), simulate(shop, 0)
    assert auto.lead > 1
    assert auto.updates_per_s > 1.3 * serial.updates_per_s


# -- recommend --------------------------------------------------------------------------------------


def outcome(lead: float, updates_per_s: float) -> Outcome:
    return Outcome(lead, updates_per_s, 0, 0, 0, 0, 0, 0, 0, 1.0)


@pytest.mark.parametrize(
    ("rates", "best"),
    [
        ({0: 1.0, 1: 2.0, 2: 2.0, 4: 2.0}, 1),
        ({0: 1.0, 1: 1.9, 2: 1.97, 4: 2.0}, 2),  # within two percent is as good
        ({0: 2.0, 1: 2.0}, 0),
        ({4: 2.0, 1: 1.0, 0: 1.99}, 0),  # in whatever order they come
        ({0: 1.0, 8: 1.03}, 8),
    ],
)
def test_the_smallest_lead_that_is_as_good_as_the_best_is_recommended(rates: dict[int, float], best: int) -> None:
    assert recommend([outcome(lead, rate) for lead, rate in rates.items()]).lead == best


def test_constant_times_need_a_lead_of_one() -> None:
    outcomes = compare(Workshop(collect=Constant(1.0), learn=Constant(1.0), updates=200), [0, 1, 2, 4])
    assert [each.lead for each in outcomes] == [0, 1, 2, 4]
    assert recommend(outcomes).lead == 1


def test_uneven_times_need_more() -> None:
    outcomes = compare(Workshop(collect=Exponential(1.0), learn=Exponential(1.0), updates=300), [0, 1, 2, 4, 8])
    rates = [each.updates_per_s for each in outcomes]
    assert rates == sorted(rates)
    assert recommend(outcomes).lead > 1


# -- fit --------------------------------------------------------------------------------------------


def recorded(
    collect: Duration, learn: Duration, evaluate: Duration, **values: Any
) -> tuple[list[dict[str, Any]], float]:
    """The events of a run on the virtual clock, and how long it took."""
    runtime = Virtual(SteadyWorkload(collect, learn, evaluate))
    recorder = MemoryRecorder()
    stations = Stations(lambda number: SimulatedCollector(collect), SimulatedLearner, SimulatedEvaluator)
    given_settings = Settings(**{"plan": Plan(updates=200, evaluate_every=20), **values})
    result = runtime.run(Coordinator(stations, given_settings, runtime, recorder=recorder).run())
    return recorder.events, result.wall_s


@pytest.mark.parametrize("lead", [0, 1, 3])
def test_a_fitted_workshop_repeats_a_run_of_constant_times_exactly(lead: int) -> None:
    events, wall_s = recorded(
        Constant(0.5), Constant(0.25), Constant(2.0), max_lead=lead, collectors=2, tickets_per_batch=4
    )
    shop = fit(tell(events))
    assert (shop.collect.mean, shop.learn.mean, shop.evaluate.mean) == (0.5, 0.25, 2.0)
    assert (shop.collectors, shop.tickets_per_batch, shop.evaluate_every, shop.updates) == (2, 4, 20, 200)
    assert simulate(shop, lead).wall_s == wall_s


def test_a_fitted_workshop_is_cut_as_the_run_was() -> None:
    events, _ = recorded(
        Constant(0.5),
        Constant(0.25),
        Constant(0.125),
        max_lead=2,
        order=READY,
        publish_every=2,
        seed=5,
        evaluate_in_background=True,
    )
    shop = fit(tell(events))
    assert (shop.order, shop.publish_every, shop.dispatch, shop.seed) == ("ready", 2, "free", 5)
    assert shop.evaluate_in_background


def test_a_fitted_workshop_comes_close_to_a_run_of_uneven_times() -> None:
    events, wall_s = recorded(Lognormal(1.0, 1.0), Exponential(0.5), Constant(1.0), max_lead=2, collectors=2)
    assert simulate(fit(tell(events)), 2).wall_s == pytest.approx(wall_s, rel=0.1)


def test_a_run_without_evaluations_is_fitted_without() -> None:
    events, _ = recorded(Constant(1.0), Constant(1.0), Constant(1.0), plan=Plan(updates=5))
    shop = fit(tell(events))
    assert shop.evaluate_every == 0
    assert shop.updates == 5


def test_a_run_in_which_nothing_was_learned_cannot_be_fitted() -> None:
    events, _ = recorded(Constant(1.0), Constant(1.0), Constant(1.0), plan=Plan(updates=5))
    with pytest.raises(ValueError, match="no finished collection or no update"):
        fit(tell(event for event in events if event["e"] not in ("learn", "settle")))
    with pytest.raises(ValueError, match="no finished collection or no update"):
        fit(tell([]))
