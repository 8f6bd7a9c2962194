"""How large the lead is: the fixed one stays, the auto lead finds its place in small closed loops."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.rules_lead import AutoLead, FixedLead, Interval, Lead, starting_lead

stable = settings(max_examples=200, deadline=None, derandomize=True)


# -- fixed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lead", [-1, -0.5, math.nan, math.inf])
def test_a_fixed_lead_that_is_no_number_of_versions_is_refused(lead: float) -> None:
    with pytest.raises(ValueError, match=f"max_lead must be a finite number >= 0 or 'auto', received {lead!r}"):
        FixedLead(lead)


@pytest.mark.parametrize("chosen", [0, 0.5, 1, 64])
def test_a_fixed_lead_does_not_move_whatever_it_sees(chosen: float) -> None:
    lead: Lead = FixedLead(chosen)
    for interval in (Interval(1, 1), Interval(0, 0), Interval(1, 0, 0.01)):
        assert lead.observe(interval) == chosen
    assert lead.current == lead.limit == chosen
    lead.load_state_dict(lead.state_dict())
    assert lead.current == chosen


# -- where auto starts ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("buffer_size", "batch_size", "lead"), [(1, 1, 1), (99, 10, 1), (1000, 10, 10), (1009, 10, 10), (640, 32, 2)]
)
def test_auto_starts_from_a_tenth_of_the_buffer_in_batches(buffer_size: int, batch_size: int, lead: int) -> None:
    assert starting_lead(buffer_size, batch_size) == lead


@stable
@given(st.integers(0, 10**6), st.integers(1, 10**4))
def test_auto_never_starts_below_one(buffer_size: int, batch_size: int) -> None:
    assert starting_lead(buffer_size, batch_size) == max(1, (buffer_size // batch_size) // 10)


@pytest.mark.parametrize(("start", "limit"), [(0, 4), (5, 4), (-1, -1), (1, 0)])
def test_a_start_outside_the_limits_is_refused(start: int, limit: int) -> None:
    with pytest.raises(ValueError, match=f"received start={start}, limit={limit}"):
        AutoLead(start, limit)


@pytest.mark.parametrize("target", [0, -0.1, 1.1, math.nan])
def test_a_target_that_no_batch_can_meet_is_refused(target: float) -> None:
    with pytest.raises(ValueError, match=f"target_effective_sample_size must be in .* received {target!r}"):
        AutoLead(target_effective_sample_size=target)


@pytest.mark.parametrize("idle", [0, 1, -0.1, math.nan])
def test_a_share_of_idle_time_that_is_all_or_nothing_is_refused(idle: float) -> None:
    with pytest.raises(ValueError, match=f"negligible_idle must be in .* received {idle!r}"):
        AutoLead(negligible_idle=idle)


# -- one look ---------------------------------------------------------------------------------------


CALM, STARVING = Interval(0.0, 0.5), Interval(learner_idle=0.5, collectors_blocked=0.5)


def settled(start: int, patience: int = 8) -> AutoLead:
    """One that knows roughly which lead is needed."""
    lead = AutoLead(start, patience=patience)
    lead.load_state_dict({**lead.state_dict(), "is_searching": False})
    return lead


def test_a_learner_that_works_half_of_the_time_gets_twice_the_lead_while_nothing_is_known() -> None:
    lead = AutoLead(4)
    assert [lead.observe(STARVING) for _ in range(3)] == [8, 16, 32]
    assert AutoLead(4).observe(Interval(learner_idle=0.9, collectors_blocked=0.5)) == 12, "three times at most"
    assert AutoLead(9).observe(Interval(learner_idle=0.25, collectors_blocked=0.5)) == 12


def test_where_staleness_may_hurt_the_search_is_more_careful() -> None:
    assert AutoLead(8).observe(Interval(0.9, 0.5, effective_sample_size=0.99)) == 16, "twice at most"
    assert AutoLead(8).observe(Interval(0.9, 0.5, effective_sample_size=0.8)) == 12, "by half"


def test_the_search_is_over_when_the_learner_has_not_waited_for_several_looks() -> None:
    lead = AutoLead(8, patience=8)
    seen = []
    for interval in (CALM, CALM, CALM, STARVING, CALM, CALM, CALM, CALM):
        lead.observe(interval)
        seen.append(lead.is_searching)
    assert seen == [True] * 7 + [False]


def test_a_known_lead_is_raised_by_the_share_waited_and_by_half_at_most() -> None:
    assert settled(24).observe(Interval(learner_idle=0.25, collectors_blocked=0.5)) == 30, "a quarter more"
    assert settled(24).observe(Interval(learner_idle=0.9, collectors_blocked=0.5)) == 36, "half as many more"


def test_waiting_on_both_sides_raises_the_lead_by_one() -> None:
    assert settled(3).observe(STARVING) == 4


def test_little_blocking_is_not_worth_a_version() -> None:
    assert AutoLead(3).observe(Interval(learner_idle=0.5, collectors_blocked=0.03)) == 3


def test_a_learner_that_waits_while_no_collector_is_blocked_leaves_the_lead_alone() -> None:
    assert AutoLead(3).observe(Interval(learner_idle=0.9, collectors_blocked=0.0)) == 3


def test_a_learner_that_hardly_waits_for_some_time_lowers_the_lead_by_one() -> None:
    lead = AutoLead(3, patience=8)
    assert [lead.observe(Interval(learner_idle=0.01, collectors_blocked=0.8)) for _ in range(5)] == [3, 3, 3, 2, 2]


def test_a_large_lead_comes_down_in_larger_steps() -> None:
    lead = AutoLead(32, patience=2)
    assert [lead.observe(CALM) for _ in range(4)] == [28, 25, 22, 20]


def test_a_lead_at_which_staleness_hurt_is_not_tried_again_for_long() -> None:
    lead = settled(4, patience=4)
    assert [lead.observe(Interval(0.5, 0.5, effective_sample_size=0.5)) for _ in range(2)] == [4, 2]
    path = [lead.observe(STARVING) for _ in range(17)]
    assert path == [3] * 16 + [4]


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 1), (3, 1), (8, 4), (9, 4)])
def test_a_small_effective_sample_size_halves_the_lead_when_it_is_seen_twice(before: int, after: int) -> None:
    lead = AutoLead(before)
    starving = Interval(learner_idle=0.9, collectors_blocked=0.9, effective_sample_size=0.69)
    assert [lead.observe(starving) for _ in range(2)] == [before, after]


@stable
@given(st.integers(1, 32), st.booleans(), st.floats(0, 0.69), st.integers(0, 10))
def test_one_small_effective_sample_size_costs_one_look(start: int, is_settled: bool, ess: float, wait: int) -> None:
    """Whenever it comes, the lead goes on from the next look on as if it had not been."""
    with_it, without = (settled(start) if is_settled else AutoLead(start) for _ in range(2))
    fine = Interval(learner_idle=0.5, collectors_blocked=0.5, effective_sample_size=0.95)
    for lead in (with_it, without):
        for _ in range(wait):
            lead.observe(fine)
    before = with_it.current
    assert with_it.observe(Interval(0.5, 0.5, effective_sample_size=ess)) == before
    assert [with_it.observe(fine) for _ in range(30)] == [without.observe(fine) for _ in range(30)]


def test_small_effective_sample_sizes_at_the_smallest_lead_do_not_hold_it_down_for_long() -> None:
    lead = AutoLead(1, patience=8)
    for _ in range(2):
        lead.observe(Interval(0.5, 0.5, effective_sample_size=0.3))
    path = [lead.observe(Interval(0.5, 0.5, effective_sample_size=0.95)) for _ in range(40)]
    assert path.index(2) == 4 * 8


@stable
@given(st.integers(0, 10**6), st.sampled_from([4, 12, 24]))
def test_rare_outliers_do_not_keep_the_lead_below_what_is_needed(seed: int, enough: int) -> None:
    """One look in fifty is an outlier; the rest is far from hurting."""
    rng, lead, path = random.Random(seed), AutoLead(1, 64), []
    for _ in range(400):
        idle = learner_bound(lead.current, enough)
        ess = 0.4 if rng.random() < 0.02 else 0.95
        path.append(lead.observe(Interval(idle.learner_idle, idle.collectors_blocked, ess)))
    assert sum(path[50:]) / len(path[50:]) >= 0.85 * enough


def test_an_effective_sample_size_on_target_changes_nothing() -> None:
    assert settled(4).observe(Interval(0.4, 0.9, effective_sample_size=0.7)) == 5
    assert AutoLead(4).observe(Interval(0.9, 0.0, effective_sample_size=0.7)) == 4


def test_the_lead_does_not_return_at_once_to_where_the_learner_was_seen_waiting() -> None:
    lead = settled(3, patience=8)
    lead.observe(STARVING)
    path = [lead.observe(CALM) for _ in range(60)]
    assert path[:8] == [4] * 8
    assert 3 in path  # it asks again after a while


# -- closed loops -----------------------------------------------------------------------------------


def learner_bound(lead: float, enough: float) -> Interval:
    """Collectors are fast on average but uneven: from a lead of `enough` on, the learner never waits."""
    return Interval(learner_idle=max(0.0, 1 - lead / enough) * 0.5, collectors_blocked=0.4)


def collector_bound(lead: float) -> Interval:
    """The learner waits for collectors that never stand before occupied slots, once there is any lead."""
    return Interval(learner_idle=0.6, collectors_blocked=0.1 if lead < 2 else 0.0)


def follow(lead: AutoLead, world: object, looks: int) -> list[float]:
    return [lead.observe(world(lead.current)) for _ in range(looks)]  # type: ignore[operator]


@pytest.mark.parametrize("enough", [1, 2, 5, 12])
@pytest.mark.parametrize("start", [1, 4, 32])
def test_a_learner_bound_run_settles_at_the_smallest_lead_without_idle_time(start: int, enough: int) -> None:
    path = follow(AutoLead(start, 64), lambda lead: learner_bound(lead, enough), 400)[100:]
    assert set(path) <= {enough - 1, enough}
    assert path.count(enough) >= 0.8 * len(path)  # below it only to ask again, now and then


@pytest.mark.parametrize("start", [1, 7])
def test_a_collector_bound_run_does_not_run_away_to_the_limit(start: int) -> None:
    path = follow(AutoLead(start, 64), collector_bound, 200)
    assert max(path) <= max(2, start)
    assert set(path[40:]) == {1, 2}
    assert path[40:].count(2) >= 0.8 * len(path[40:])  # below it only to ask again, now and then


def test_the_lead_follows_a_world_that_changes() -> None:
    lead = AutoLead(1, 64)
    assert follow(lead, lambda lead: learner_bound(lead, 10), 100)[-1] in (9, 10)
    assert follow(lead, lambda lead: learner_bound(lead, 3), 200)[-1] in (2, 3)
    assert follow(lead, lambda lead: learner_bound(lead, 6), 100)[-1] in (5, 6)


def test_staleness_that_hurts_keeps_the_lead_below_where_it_hurts() -> None:
    """The learner would like a lead of 40; the effective sample size falls with the lead, to 0.7 at 10."""

    def world(lead: float) -> Interval:
        idle = learner_bound(lead, 40)
        return Interval(idle.learner_idle, idle.collectors_blocked, effective_sample_size=1 - 0.03 * lead)

    path = follow(AutoLead(32, 64), world, 200)[10:]
    assert max(path) <= 11  # two looks above, then halved
    assert min(path) >= 5
    assert max(path) - min(path) >= 5  # additive increase, multiplicative decrease


@stable
@given(st.integers(4, 48), st.integers(8, 30), st.integers(0, 29))
def test_the_quiet_between_two_stragglers_does_not_lower_the_lead_much(enough: int, every: int, phase: int) -> None:
    """The learner waits in one look of `every`, and then for most of it, unless the lead is large enough."""
    lead = AutoLead(1, 64)
    path = []
    for look in range(800):
        idle = 0.6 if look % every == phase % every and lead.current < enough else 0.0
        path.append(lead.observe(Interval(idle, 0.5)))
    assert max(path) <= max(2, 1.5 * enough)
    late = path[400:]
    assert sum(late) / len(late) >= 0.7 * enough


@stable
@given(st.integers(2, 64))
def test_a_world_in_which_the_learner_never_waits_brings_the_lead_down_to_one(start: int) -> None:
    assert follow(AutoLead(start, 64), lambda lead: CALM, 250)[-1] == 1


def test_a_learner_that_always_waits_takes_the_lead_to_the_limit_and_no_further() -> None:
    assert follow(AutoLead(1, 5), lambda lead: Interval(0.5, 0.5), 20)[3:] == [5] * 17


def test_a_resumed_lead_remembers_how_long_it_has_been_calm() -> None:
    lead, resumed = settled(3, patience=8), AutoLead(3, patience=8)
    lead.observe(STARVING)
    while lead.observe(CALM) == 4:
        resumed.load_state_dict(lead.state_dict())
    assert resumed.current == 4
    assert resumed.observe(CALM) == 3


shares = st.floats(0, 1)
intervals = st.lists(st.builds(Interval, shares, shares, st.none() | shares), max_size=60)


@stable
@given(intervals, st.integers(1, 20), st.integers(0, 20), st.integers(1, 10))
def test_the_lead_never_leaves_its_limits(seen: list[Interval], start: int, room: int, patience: int) -> None:
    lead = AutoLead(start, start + room, patience=patience)
    for interval in seen:
        before, was_searching = lead.current, lead.is_searching
        after = lead.observe(interval)
        assert after == lead.current
        assert 1 <= after <= lead.limit
        assert after == int(after)
        assert after <= before + max(1, (2 if was_searching else 0.5) * before)
        if interval.learner_idle <= lead.negligible_idle or interval.collectors_blocked <= 2 * lead.negligible_idle:
            assert after <= before, "nothing is raised that would spare no waiting"


@stable
@given(intervals, intervals)
def test_a_resumed_lead_goes_on_as_if_nothing_had_happened(before: list[Interval], after: list[Interval]) -> None:
    lead, resumed = AutoLead(4), AutoLead(4)
    for interval in before:
        lead.observe(interval)
    resumed.load_state_dict(json.loads(json.dumps(lead.state_dict())))
    assert resumed.current == lead.current
    assert [resumed.observe(interval) for interval in after] == [lead.observe(interval) for interval in after]
