"""The simulator fitted to recorded runs: on the virtual clock it must come out as it went in."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_runs import record

from headway.coordinator.coordinator import Coordinator
from headway.coordinator.roles import Stations
from headway.core.rules import ReplayRatio
from headway.core.rules_order import OnStale, parse_order
from headway.core.types import Rollout, Snapshot, Ticket
from headway.runs.bandit import FunctionsConfig, stations
from headway.runs.event_log import MemoryRecorder
from headway.runs.folder import RunFolder
from headway.runs.launch_session import launch
from headway.runtimes.build import build_runtime
from headway.tools.report.recorded_run_run_history import read_story, tell, tell_end
from headway.tools.report.recorded_run_story_records import Story
from headway.tools.report.what_if import LEADS, measure, repeat, what_if
from headway.tools.report.what_if_fitting import MAX_TICKETS, fit
from headway.tools.simulate.simulation import ForgottenCheckpoints, simulate
from headway.tools.simulate.workloads import (
    Constant,
    Exponential,
    HoldingCollector,
    Lognormal,
    Recorded,
    RecordedFlights,
    SimulatedLearner,
    SimulatedReplayLearner,
    SteadyWorkload,
)


def same_again(events: list[dict[str, Any]], result: Any, *, rel: float = 1e-6) -> None:
    """Fitted and simulated with its own lead, a virtual run is itself."""
    again = repeat(tell(events))
    assert again.simulated.wall_s == pytest.approx(result.wall_s, rel=rel)
    assert again.measured.updates == result.updates
    assert again.rate_error == pytest.approx(0, abs=rel)
    assert again.simulated.staleness_mean == pytest.approx(result.ledger.mean_staleness, rel=rel, abs=rel)
    assert again.measured.staleness_mean == pytest.approx(result.ledger.mean_staleness, rel=rel, abs=rel)


UNEVEN = (Lognormal(1.0, 1.0), Exponential(0.5), Constant(3.0))


@pytest.mark.parametrize(
    "cut",
    [
        {"max_lead": 0},
        {"max_lead": 0.5, "tickets_per_batch": 2},
        {"max_lead": 1, "collectors": 2, "tickets_per_batch": 4},
        {"max_lead": 4, "collectors": 3, "publish_every": 2},
        {"max_lead": 4, "collectors": 4, "order": parse_order("ready")},
        {"max_lead": 4, "collectors": 4, "order": parse_order("window(3)")},
        {"max_lead": 8, "collectors": 6, "order": parse_order("ready"), "max_staleness": 4, "on_stale": OnStale.DROP},
        {"max_lead": 2, "collectors": 2, "dispatch": "free", "queue_capacity": 2},
        {"max_lead": 2, "collectors": 2, "lanes": 2},
        {"max_lead": 2, "pacing_s": 1.5},
        {"max_lead": 1, "evaluate_every": 20},
        {"max_lead": 1, "evaluate_every": 10, "evaluate_in_background": True},
        {"max_lead": 1, "evaluate_every": 3, "evaluate_in_background": True, "plan": {"target_score": 1e9}},
        {"max_lead": 2, "plan": {"warmup_s": 7.0}},
    ],
    ids=str,
)
def test_a_recorded_virtual_run_simulated_again_is_the_same_run(cut: dict[str, Any]) -> None:
    same_again(*record(*UNEVEN, **cut))


def test_a_run_with_checkpoints_is_the_same_run() -> None:
    work = SteadyWorkload(*UNEVEN, save=Exponential(0.7))
    same_again(
        *record(workload=work, checkpoints=ForgottenCheckpoints(), plan={"save_every": 4}, max_lead=1, updates=99)
    )


@pytest.mark.parametrize("dispatch", ["pinned", "free"])
@pytest.mark.parametrize("lead", [0, 2, 8])
def test_a_replay_run_is_the_same_run(lead: int, dispatch: Any) -> None:
    """With the ratio, the steps of each rollout and the time it takes to hand them over."""
    steps = [3 + index % 5 for index in range(400)]
    times = [0.3 + 0.1 * (index % 7) for index in range(400)]
    flights = RecordedFlights(times, steps=steps, lengths=[float(n) for n in steps], filtered=[False] * 400)
    ratio = ReplayRatio(2.0, 20, samples_per_update=8, steps_per_ticket=5)
    workload = SteadyWorkload(flights, Exponential(0.4), insert=Constant(0.05))

    class Collecting:
        def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
            return flights.rollout(ticket.index)

    events, result = record(
        workload=workload,
        stations=Stations(lambda number: Collecting(), partial(SimulatedReplayLearner, 8.0)),
        replay=ratio,
        max_lead=lead,
        collectors=2,
        dispatch=dispatch,
    )
    same_again(events, result, rel=0.01)  # the log rounds, and an insert may come one update sooner or later
    shop = fit(tell(events))
    assert shop.replay is not None
    assert shop.replay.describe() == ratio.describe()


def test_lanes_that_drain_are_simulated_as_such() -> None:
    times = RecordedFlights([1.0, 2.0, 3.0, 4.0] * 60, steps=[1] * 240, lengths=[1.0] * 240, filtered=[False] * 240)
    events, result = record(
        workload=SteadyWorkload(times, Constant(0.5)),
        stations=Stations(lambda number: HoldingCollector(times), SimulatedLearner),
        max_lead=1,
        lanes=4,
        tickets_per_batch=4,
        updates=50,
    )
    assert fit(tell(events)).holds_weights
    same_again(events, result)


def test_filtered_rollouts_are_filtered_again() -> None:
    filtered = [i % 3 == 0 for i in range(200)]
    flights = RecordedFlights([1.0] * 200, steps=[1] * 200, lengths=[1.0] * 200, filtered=filtered)

    class Collecting:
        def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
            return flights.rollout(ticket.index)

    events, result = record(
        workload=SteadyWorkload(flights, Constant(1.0)),
        stations=Stations(lambda number: Collecting(), SimulatedLearner),
        max_lead=2,
        collectors=2,
        dispatch="free",
    )
    assert result.ledger.dropped["filtered"] > 40
    again = repeat(tell(events)).simulated
    assert again.dropped == result.ledger.dropped["filtered"]
    assert again.wall_s == pytest.approx(result.wall_s)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.integers(0, 6),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from(["oldest", "window(2)", "ready"]),
    st.integers(0, 1000),
)
def test_any_cut_comes_out_as_it_went_in(lead: int, collectors: int, batch: int, order: str, seed: int) -> None:
    events, _ = record(
        Lognormal(1.0, 0.8),
        Exponential(0.4),
        max_lead=lead,
        collectors=collectors,
        tickets_per_batch=batch,
        order=parse_order(order),
        seed=seed,
        updates=40,
    )
    again = repeat(tell(events))
    assert again.rate_error == pytest.approx(0, abs=0.02)
    assert abs(again.staleness_error) < 0.1


@pytest.mark.parametrize(("recorded_at", "asked"), [(0, 2), (2, 0), (1, 4), (4, 1)])
def test_another_lead_is_predicted(recorded_at: int, asked: int) -> None:
    """The durations do not depend on the lead here, so the prediction is the run."""
    shop = fit(tell(record(*UNEVEN, max_lead=recorded_at, evaluate_every=20)[0]))
    other = record(*UNEVEN, max_lead=asked, evaluate_every=20)[1]
    predicted = simulate(shop, asked)
    assert predicted.updates_per_s == pytest.approx(other.updates / other.wall_s, rel=0.01)
    assert predicted.staleness_mean == pytest.approx(other.ledger.mean_staleness, rel=0.02)


# -- what the log of a real run adds ----------------------------------------------------------------


def test_a_real_run_is_predicted() -> None:
    config = FunctionsConfig(
        max_lead=2, collectors=2, updates=60, collect_ms=8, train_ms=8, evaluate_ms=8, evaluate_every=20
    )
    recorder, runtime = MemoryRecorder(), build_runtime("threads")
    runtime.run(Coordinator(stations(config), config.settings(), runtime, recorder=recorder).run())
    again = repeat(tell(recorder.events))
    assert abs(again.rate_error) < 0.15  # generous: other work runs beside a test
    assert abs(again.staleness_error) < 0.2
    assert "updates/s where" in again.sentence()


def test_a_long_run_is_thinned_and_a_short_one_is_simulated_for_as_many_updates_as_it_made() -> None:
    long = tell(record(Lognormal(1.0, 0.5), 1.0, updates=3000, max_lead=1)[0])
    shop = fit(long)
    assert shop.updates == MAX_TICKETS
    assert shop.collect.mean == pytest.approx(1.0, rel=0.05)
    assert simulate(shop, 1).updates_per_s == pytest.approx(measure(long).updates_per_s, rel=0.03)
    short = tell(record(1.0, 1.0, updates=5, max_lead=1)[0])
    assert fit(short).updates == 5
    assert repeat(short).rate_error == pytest.approx(0)


def test_what_comes_again_leaves_the_warm_up_out() -> None:
    seen = Recorded([9.0, 1.0, 2.0, 3.0], warm_up=1)
    assert [seen.nth(index) for index in range(9)] == [9.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0, 2.0]
    assert Recorded([5.0], warm_up=1).nth(7) == 5.0


def test_a_cut_off_log_is_fitted_up_to_its_end() -> None:
    events, _ = record(*UNEVEN, max_lead=2)
    half = events[: len(events) // 2]
    assert abs(repeat(tell(half)).rate_error) < 0.05


def test_a_run_that_tells_nothing_cannot_be_fitted() -> None:
    events, _ = record(updates=5)
    with pytest.raises(ValueError, match="no finished collection or no update"):
        what_if(tell(event for event in events if event["e"] == "run"))


# -- the table --------------------------------------------------------------------------------------


def test_the_table_has_every_lead_and_the_smallest_good_one() -> None:
    table = what_if(tell(record(1.0, 1.0, max_lead=4)[0]))
    assert [lead for lead, _ in table.rows] == list(LEADS)
    rates = {lead: outcome.updates_per_s for lead, outcome in table.rows}
    assert rates[0] == pytest.approx(0.5)
    assert rates[0.5] == rates[0]  # half a version of one ticket is none
    assert rates[1] == pytest.approx(100 / 101)
    assert table.best == 1
    assert table.reason.startswith("the smallest fixed lead within 2 % of the best, 1.98 times as fast as lead 0")


def test_no_lead_is_recommended_where_none_helps() -> None:
    table = what_if(tell(record(0.001, 1.0, max_lead=4)[0]))
    assert table.best == 0
    assert table.reason == "no larger fixed lead brings 2 % more throughput"


def test_a_lead_that_would_make_the_data_useless_is_not_recommended() -> None:
    shop_events = record(Exponential(1.0), Exponential(1.0), max_lead=2, decay=0.2, updates=300)[0]
    story = tell(shop_events)
    assert fit(story).decay == pytest.approx(0.2, rel=0.01)
    table = what_if(story)
    assert table.best == 1
    assert "effective sample size of about" in table.reason
    fresh = what_if(tell(record(Exponential(1.0), Exponential(1.0), max_lead=2, updates=300)[0]))
    assert fresh.best in (4, 8)


def test_a_lead_that_the_settings_refuse_is_named() -> None:
    table = what_if(tell(record(max_lead=1, max_staleness=1)[0]))
    assert set(table.refused) == {"2", "4", "8", "auto"}
    assert [lead for lead, _ in table.rows] == [0, 0.5, 1]


def test_the_order_a_synchronous_run_was_set_to_is_kept_for_other_leads() -> None:
    story = tell(record(max_lead=0)[0], config={"order": "ready"})
    assert fit(story).order == "ready"
    assert simulate(fit(story), 0).updates_per_s == pytest.approx(0.5)


def test_a_workshop_with_other_collectors_is_another_run() -> None:
    shop = fit(tell(record(4.0, 1.0, max_lead=4, collectors=1)[0]))
    assert simulate(replace(shop, collectors=4), 4).updates_per_s > 3 * simulate(shop, 4).updates_per_s


def test_launched_runs_can_be_fitted_from_their_folder(tmp_path: Path) -> None:
    config = FunctionsConfig(updates=12, collect_ms=1, train_ms=1, evaluate_ms=1, evaluate_every=4)
    folder = RunFolder(tmp_path / "run")
    launch(stations(config), config.settings(), folder=folder)
    assert fit(read_story(folder)).evaluate_every == 4


def test_a_slow_collector_stays_slow_where_tickets_may_go_elsewhere() -> None:
    class OneSlow(SteadyWorkload):
        def duration_s(self, role: str, method: str, args: tuple[Any, ...]) -> float:
            seconds = super().duration_s(role, method, args)
            return 4 * seconds if (role, method) == ("collector-1", "collect") else seconds

    def run(lead: int) -> tuple[list[dict[str, Any]], Any]:
        work = OneSlow(Lognormal(1.0, 0.3), Constant(0.2))
        return record(
            workload=work, max_lead=lead, collectors=4, dispatch="free", order=parse_order("ready"), updates=200
        )

    shop = fit(tell(run(2)[0]))
    other = run(8)[1]
    assert simulate(shop, 8).updates_per_s == pytest.approx(other.updates / other.wall_s, rel=0.05)
    even = fit(tell(record(Lognormal(1.0, 1.0), 0.2, max_lead=4, collectors=4, dispatch="free")[0]))
    assert isinstance(even.collect, RecordedFlights)
    assert even.collect._paces == [1.0] * 4  # what differs by chance does not count


def test_a_run_that_is_told_by_its_end_is_fitted_to_the_tickets_of_its_end() -> None:
    events, result = record(*UNEVEN, updates=600, max_lead=4, collectors=3)
    half = next(place for place, event in enumerate(events) if event["e"] == "learn" and event["u"] == 300)
    end = tell_end([events[0], *events[half:]])
    again = repeat(end)
    assert again.measured.updates == pytest.approx(300, abs=1)
    assert again.simulated.updates_per_s == pytest.approx(result.updates / result.wall_s, rel=0.2)
    whole, told = fit(tell(events)).collect, fit(end).collect
    first = min(index for index, ticket in end.tickets.items() if None not in (ticket.began, ticket.ended))
    for place in (20, 200):
        assert told.of(Ticket(place, 0)) == pytest.approx(whole.of(Ticket(first + place, 0)))


def calls_of(work: Callable[[], object]) -> int:
    """How many functions are called for this: what it costs, however busy the machine is."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("dispatch", ["pinned", "free"])
def test_a_run_that_is_four_times_as_long_takes_four_times_the_work_to_fit(dispatch: Any) -> None:
    def told(updates: int) -> Story:
        return tell(record(*UNEVEN, updates=updates, max_lead=2, collectors=2, dispatch=dispatch)[0])

    short, long = told(150), told(600)
    assert calls_of(partial(fit, long)) < 6 * calls_of(partial(fit, short))


@pytest.mark.parametrize("per_call", [1, 4])
def test_tickets_of_one_call_are_fitted_with_their_share_of_its_time(per_call: int) -> None:
    events, _ = record(1.0, 0.1, updates=20, max_lead=2, tickets_per_batch=8, collectors=2, tickets_per_call=per_call)
    shop = fit(tell(events))
    assert [shop.collect.of(Ticket(index, 0)) for index in range(160)] == pytest.approx([1.0] * 160, abs=1e-4)
