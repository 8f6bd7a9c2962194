"""The doctor: runs built to have each disease, and healthy ones."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from virtual_runs import record, story_of

from headway.coordinator.roles import Stations
from headway.coordinator.settings import Retries
from headway.core.history_records import FinishedUpdate
from headway.core.rules import ReplayRatio
from headway.core.rules_order import READY, OnStale, parse_order
from headway.tools.report.advice import Finding, advise, bottleneck, without_findings
from headway.tools.report.recorded_run_run_history import tell
from headway.tools.report.recorded_run_story_records import LEARNER, Story
from headway.tools.report.time_report import account
from headway.tools.simulate.simulation import ForgottenCheckpoints
from headway.tools.simulate.workloads import (
    Constant,
    Exponential,
    FaultyWorkload,
    HoldingCollector,
    Lognormal,
    RecordedFlights,
    SimulatedCollector,
    SimulatedLearner,
    SimulatedReplayLearner,
    SteadyWorkload,
)


def findings(story: Story, **options: Any) -> dict[str, Finding]:
    found = advise(story, account(story), **options)
    order = [(not one.stops_learning, -one.gain) for one in found]
    assert order == sorted(order)
    assert all(0 <= one.gain <= 1 and any(map(str.isdigit, one.evidence)) for one in found)
    return {one.about: one for one in found}


def flight_times(seconds: list[float]) -> RecordedFlights:
    count = len(seconds)
    return RecordedFlights(seconds, steps=[1] * count, lengths=[1.0] * count, filtered=[False] * count)


# -- nothing to change ------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [(0.5, 1.0), (1.0, 1.0)])
def test_a_healthy_run_needs_no_change(times: tuple[float, float]) -> None:
    assert findings(story_of(*times, max_lead=1)) == {}


def test_where_no_rule_helps_a_learner_that_waits_it_is_not_said_that_all_is_well() -> None:
    story = story_of(0.5, 1.0, max_lead=1)
    well = account(story)
    assert without_findings(story, well)[0] == "Nothing to change"
    learner = well.roles[LEARNER]
    waited = replace(learner, blocked={**learner.blocked, "data": 0.67 * learner.wall_s})
    title, why = without_findings(story, replace(well, roles={**well.roles, LEARNER: waited}))
    assert title == "No option is known to help"
    assert "waited 67 % for rollouts" in why


def test_a_run_that_has_only_begun_gets_no_advice() -> None:
    story = story_of(1.0, 1.0, updates=3, max_lead=0)
    assert findings(story) == {}
    half = "too early to tell: 3 updates so far, and the learner waited 50 % of the time"  # each takes 1 s in turn
    assert bottleneck(story, account(story)) == half
    assert without_findings(story, account(story)) == (
        "Too early to tell",
        "Advice begins with 5 updates; 3 so far.",
    )
    empty = tell([])
    assert advise(empty, account(empty)) == []


# -- learning ---------------------------------------------------------------------------------------


def with_updates(story: Story, updates: list[FinishedUpdate]) -> Story:
    return replace(story, lines={**story.lines, "": replace(story.first, updates=updates)})


def reporting(story: Story, **metrics: float) -> Story:
    """As if its learner had reported these numbers in every update."""
    return with_updates(story, [replace(one, metrics={**one.metrics, **metrics}) for one in story.updates])


def test_what_keeps_a_run_from_learning_comes_before_what_makes_it_slow() -> None:
    slow = story_of(1.0, 1.0, max_lead=0)
    assert list(findings(slow)) == ["lead too small"]
    silent = reporting(slow, without_signal=1.0, silent_groups=1.0, reward=0.0, reward_std=0.0)
    found = findings(silent)
    assert list(found) == ["nothing to learn", "lead too small"]
    assert found["nothing to learn"].title == "Nothing to learn from: every reply is worth the same"
    assert "In the last 10 updates 100 % of the replies" in found["nothing to learn"].evidence
    divided = findings(reporting(slow, without_signal=0.95, reward=0.5, reward_std=0.5))["nothing to learn"]
    assert divided.title == "Nothing to learn from: the replies to a prompt are all worth the same"
    assert "nothing to learn" not in findings(reporting(slow, without_signal=0.6, reward=0.5, reward_std=0.5))


def test_only_the_newest_updates_say_whether_a_run_learns() -> None:
    story = reporting(story_of(1.0, 1.0, max_lead=1, updates=40), without_signal=1.0, reward_std=0.0)
    late = [replace(one, metrics={**one.metrics, "without_signal": 0.2}) for one in story.updates[-10:]]
    assert "nothing to learn" not in findings(with_updates(story, [*story.updates[:-10], *late]))


def test_replies_that_are_all_cut_off_call_for_more_tokens() -> None:
    story = reporting(story_of(1.0, 1.0, max_lead=1), cut_off=1.0, reply_tokens_max=16.0, without_signal=0.9)
    found = findings(story)["replies cut off"]
    assert found.change == "--max_tokens 32" and found.stops_learning
    learns = findings(reporting(story, without_signal=0.1))["replies cut off"]
    assert not learns.stops_learning  # what is cut off is worth something
    assert "replies cut off" not in findings(reporting(story, cut_off=0.9))


def test_an_engine_that_disagrees_keeps_a_run_from_learning_and_one_that_was_not_compared_is_told() -> None:
    story = reporting(story_of(1.0, 1.0, max_lead=1), token_staleness=1.0)
    assert findings(story)["engine not compared"].change == "--check_engine_every 4"
    assert findings(reporting(story, mismatch_mean=0.01)) == {}
    found = findings(reporting(story, mismatch_mean=0.4))
    assert list(found) == ["engine mismatch"] and found["engine mismatch"].stops_learning


# -- the lead ---------------------------------------------------------------------------------------


def test_a_lead_that_makes_both_sides_wait_is_too_small() -> None:
    story = story_of(1.0, 1.0, max_lead=0)
    found = findings(story)["lead too small"]
    assert found.change == "--max_lead 1"
    assert found.gain == pytest.approx(0.5, abs=0.02)  # half of the time is waiting, on either side
    assert "waited 50 % of the time" in found.evidence
    assert bottleneck(story, account(story)).startswith("neither side: they wait for each other")
    assert "lead too small" not in findings(story_of(1.0, 1.0, max_lead=1))


def test_the_lead_covers_the_collectors_there_are() -> None:
    assert findings(story_of(4.0, 1.0, max_lead=1, collectors=8))["lead too small"].change == "--max_lead 8"


def test_a_simulated_recommendation_is_taken_over() -> None:
    story = story_of(Exponential(1.0), Exponential(1.0), max_lead=1)
    assert findings(story, recommended_lead=4.0)["lead too small"].change == "--max_lead 4"
    assert "lead too small" not in findings(story, recommended_lead=1.0)  # more would bring less than it is worth


def test_rollouts_that_only_wait_mean_a_lead_that_is_too_large() -> None:
    found = findings(story_of(0.5, 1.0, max_lead=8))["lead too large"]
    assert found.change == "--max_lead 1"
    assert "lead too large" not in findings(story_of(0.5, 1.0, max_lead=1))
    assert findings(story_of(0.5, 1.0, max_lead=8), recommended_lead=2.0)["lead too large"].change == "--max_lead 2"


def test_a_lead_is_too_large_too_where_the_age_comes_up_in_flight() -> None:
    story = story_of(1.0, 1.0, max_lead=8)
    assert account(story).stale_in_flight > account(story).stale_in_queue
    found = findings(story, recommended_lead=1.0)["lead too large"]
    assert found.change == "--max_lead 1"
    assert "Simulated with a lead of 1 the run is as fast" in found.evidence
    assert "lead too large" not in findings(story_of(1.0, 1.0, max_lead=2), recommended_lead=2.0)


def test_data_that_are_too_old_call_for_the_lead_that_was_recommended() -> None:
    story = story_of(1.0, 1.0, max_lead=4, decay=0.9)
    assert findings(story, recommended_lead=0.0)["staleness hurts"].change == "--max_lead 0"
    assert findings(story, recommended_lead=4.0)["staleness hurts"].change == "--max_lead 2"


def test_evaluations_without_a_score_are_found_with_the_reason() -> None:
    events, _ = record(1.0, 1.0, updates=20, evaluate_every=5, max_lead=1)
    failed = [{**e, "value": None, "error": "evaluate returned nan"} if e["e"] == "score" else e for e in events]
    found = findings(tell(failed))["evaluations failed"]
    assert found.evidence == "4 of 4 evaluations failed; most often: evaluate returned nan."
    assert "evaluations failed" not in findings(tell(events))


def test_an_auto_lead_is_left_to_itself() -> None:
    assert not {"lead too small", "lead too large"} & set(findings(story_of(1.0, 1.0, max_lead="auto")))


# -- the sides --------------------------------------------------------------------------------------


def test_slow_collection_wants_collectors_and_no_lead() -> None:
    story = story_of(2.0, 0.5, max_lead=1)
    found = findings(story)
    assert "lead too small" not in found
    assert found["collection too slow"].change == "--collectors 4 --max_lead 4"
    assert bottleneck(story, account(story)).startswith("collection is the bottleneck: the learner worked 25 %")


def test_slow_learning_is_said_and_has_no_cure_here() -> None:
    story = story_of(0.25, 1.0, max_lead=1)
    assert bottleneck(story, account(story)).startswith("the learner is the bottleneck")
    assert findings(story) == {}


def test_lanes_are_what_an_engine_has_more_of() -> None:
    story = story_of(4.0, 0.5, max_lead=2, lanes=2)
    assert findings(story)["collection too slow"].change.startswith("--lanes 8")


def test_pacing_that_keeps_the_learner_waiting_is_found() -> None:
    found = findings(story_of(0.5, 0.5, max_lead=1, pacing_s=2.0))
    assert found["pacing"].change == "--pacing_s 1"


def test_a_replay_ratio_that_holds_both_sides_is_told_from_a_lead() -> None:
    ratio = ReplayRatio(1.0, 1, samples_per_update=1, steps_per_ticket=1)
    stations = Stations(lambda number: SimulatedCollector(Constant(1.0)), partial(SimulatedReplayLearner, 1.0))
    found = findings(story_of(1.0, 1.0, stations=stations, replay=ratio, max_lead=50, dispatch="free"))
    assert "lead too small" not in found
    bound = findings(story_of(1.0, 1.0, stations=stations, replay=ratio, max_lead=0))
    assert {"lead too small", "replay ratio"} & set(bound)


# -- staleness --------------------------------------------------------------------------------------


def test_old_data_that_count_for_little_are_found() -> None:
    found = findings(story_of(1.0, 1.0, max_lead=4, decay=0.3))["staleness hurts"]
    assert found.change == "--max_lead 2"
    assert "effective sample size is 0.32 over the last updates, under 0.7" in found.evidence
    assert found.gain == pytest.approx(0.68, abs=0.01)
    assert found.gain_text() == "up to 68 % of the data"
    assert "staleness hurts" not in findings(story_of(1.0, 1.0, max_lead=4, decay=0.01))
    assert "staleness hurts" not in findings(story_of(1.0, 1.0, max_lead=0, decay=0.3))


def test_a_sample_size_that_falls_is_found_before_it_is_too_small() -> None:
    story = story_of(1.0, 1.0, max_lead=2)
    for place, update in enumerate(story.updates):
        update.metrics = {"ess": 1.0 - 0.002 * place, "clip_fraction": 0.1}
    assert "fell by 0.15" in findings(story)["staleness hurts"].evidence
    for update in story.updates:
        update.metrics = {"ess": 0.9, "clip_fraction": 0.4}
    assert "40 % of the ratios are clipped" in findings(story)["staleness hurts"].evidence


def test_what_is_thrown_away_as_too_old_is_found() -> None:
    found = findings(
        story_of(
            Lognormal(1.0, 2.0),
            0.1,
            max_lead=8,
            collectors=8,
            order=READY,
            max_staleness=2,
            on_stale=OnStale.DROP,
            updates=200,
        )
    )["drops"]
    assert found.change == "--max_lead 4  (or --max_staleness 5)"
    assert "length bias -" in found.evidence


# -- evaluations and checkpoints --------------------------------------------------------------------


def test_evaluations_that_pause_the_run_are_found() -> None:
    found = findings(story_of(1.0, 1.0, 10.0, evaluate_every=10, max_lead=1))["evaluation blocks"]
    assert found.change == "--evaluate_in_background true"
    assert found.gain == pytest.approx(0.5, abs=0.1)
    beside = story_of(1.0, 1.0, 5.0, evaluate_every=10, max_lead=1, evaluate_in_background=True)
    assert "evaluation blocks" not in findings(beside)


def test_a_run_that_waits_for_scores_in_the_background_is_found() -> None:
    story = story_of(
        1.0, 1.0, 15.0, evaluate_every=10, max_lead=1, evaluate_in_background=True, plan={"target_score": 1e9}
    )
    assert findings(story)["evaluation blocks"].change == "--dispatch free"


def test_evaluations_that_take_each_others_place_are_found() -> None:
    story = story_of(1.0, 1.0, 35.0, evaluate_every=5, max_lead=1, evaluate_in_background=True)
    assert findings(story)["evaluations skipped"].change.startswith("--evaluate_every ")


def test_checkpoints_that_stop_the_learner_are_found() -> None:
    work = SteadyWorkload(Constant(1.0), Constant(1.0), save=Constant(2.0))
    story = story_of(workload=work, max_lead=1, checkpoints=ForgottenCheckpoints(), plan={"save_every": 5})
    assert findings(story)["checkpoints block"].change == "--save_every 20"


# -- stragglers, failures, weights ------------------------------------------------------------------


def test_slow_rollouts_that_hold_up_others_are_found() -> None:
    heavy = story_of(Lognormal(1.0, 3.0), 0.1, max_lead=16, collectors=8, updates=300)
    found = findings(heavy)["stragglers"]
    assert found.change == "--order 'window(10)'"
    loose = story_of(Lognormal(1.0, 3.0), 0.1, max_lead=16, collectors=8, updates=300, order=parse_order("ready"))
    assert "stragglers" not in findings(loose)


def test_a_collector_that_is_slower_than_the_others_is_named() -> None:
    times = flight_times([3.0 if index % 4 == 2 else 1.0 for index in range(400)])
    found = findings(story_of(workload=SteadyWorkload(times, Constant(0.1)), max_lead=8, collectors=4, updates=200))
    assert found["slow collector"].title == "collector-2 holds the others up"
    assert "collector-2 takes 3.0 times as long" in found["slow collector"].evidence


def test_collections_that_fail_are_found_with_the_commonest_reason() -> None:
    work = FaultyWorkload(Constant(1.0), Constant(1.0), error=0.1)
    story = story_of(workload=work, max_lead=1, retries=Retries(attempts_on_error=20))
    found = findings(story)["failures"]
    assert "injected error" in found.evidence
    assert found.change == ""


@pytest.mark.parametrize(("apply_s", "change"), [(0.0, "--on_publish partial"), (4.0, "--publish_every 2")])
def test_weights_that_stop_the_collectors_are_found(apply_s: float, change: str) -> None:
    times = flight_times([1.0, 2.0, 3.0, 4.0] * 25)

    class Applying(SteadyWorkload):
        def duration_s(self, role: str, method: str, args: tuple[Any, ...]) -> float:
            return apply_s if method == "apply" else super().duration_s(role, method, args)

    stations = Stations(lambda number: HoldingCollector(times), SimulatedLearner)
    story = story_of(
        workload=Applying(times, Constant(0.1)), stations=stations, max_lead=1, lanes=4, tickets_per_batch=4, updates=25
    )
    assert findings(story)["publish exposed"].change == change


def test_tickets_that_are_smaller_than_their_hand_over_are_found() -> None:
    story = story_of(0.001, 0.001, max_lead=1)
    accounts = account(story)
    learner = accounts.roles[LEARNER]
    slow = replace(learner, busy={"learn": 0.5 * learner.busy["learn"]})
    found = advise(story, replace(accounts, roles={**accounts.roles, LEARNER: slow}))
    assert [one.about for one in found] == ["tickets too small"]
    assert found[0].change.startswith("--tickets_per_batch 4")


def test_nothing_is_read_from_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    story = story_of(1.0, 1.0, max_lead=0)
    assert story.folder is None
    assert findings(story)
