"""Admission: the formula of the lead, a replay ratio that cannot deadlock, budgets, and all of them at once."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headway.core.rules import AllOf, Budget, Capacity, MaxLead, ReplayRatio, Tally, slots_for

stable = settings(max_examples=200, deadline=None, derandomize=True)

NOT_A_LEAD = [-1, -0.001, math.nan, math.inf, -math.inf]


# -- MaxLead ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lead", "per_version", "slots"),
    [
        (0, 1, 1),
        (0, 7, 7),
        (1, 1, 2),
        (4, 8, 40),
        (0.1, 10, 11),
        (0.3, 10, 13),
        (0.7, 10, 17),
        (0.29, 100, 129),
        (0.57, 100, 157),
        (1.1, 10, 21),
        (0.5, 1, 1),
        (0.5, 3, 4),
        (1.99, 1, 2),
        (0.25, 4, 5),
    ],
)
def test_slots_are_one_plus_the_lead_in_versions_worth_of_tickets(lead: float, per_version: int, slots: int) -> None:
    assert MaxLead(lead, per_version).slots == slots


@stable
@given(st.integers(0, 64_000), st.integers(1, 4096))
def test_slots_are_what_exact_fractions_say(thousandths: int, per_version: int) -> None:
    exact = math.floor((1 + Fraction(thousandths, 1000)) * per_version)
    assert slots_for(thousandths / 1000, per_version) == exact


@pytest.mark.parametrize("lead", NOT_A_LEAD)
def test_a_lead_that_is_no_finite_number_of_versions_is_refused(lead: float) -> None:
    with pytest.raises(ValueError, match=f"max_lead must be a finite number >= 0, received {lead!r}"):
        MaxLead(lead)


@pytest.mark.parametrize("per_version", [0, -3])
def test_a_version_without_tickets_is_refused(per_version: int) -> None:
    with pytest.raises(ValueError, match=f"tickets_per_version must be >= 1, received {per_version}"):
        MaxLead(1, per_version)


def test_a_ticket_may_open_while_a_slot_is_free() -> None:
    rule = MaxLead(1, 2)
    assert [rule.may_open(Tally(live=live)) for live in range(6)] == [True] * 4 + [False] * 2
    assert rule.why_not_open(Tally(live=4)) == "all 4 slots of max_lead=1 are occupied"


def test_the_lead_never_holds_the_learner_back() -> None:
    assert MaxLead(0).may_learn(Tally())
    assert MaxLead(0).why_not_learn(Tally()) == ""


def test_retuning_moves_the_slots() -> None:
    rule = MaxLead(1, 10)
    rule.retune(0.1)
    assert (rule.max_lead, rule.slots) == (0.1, 11)
    assert not rule.may_open(Tally(live=20))  # a smaller lead waits until live tickets settle
    assert rule.may_open(Tally(live=10))
    rule.retune(3)
    assert (rule.max_lead, rule.slots) == (3, 40)


@pytest.mark.parametrize("lead", NOT_A_LEAD)
def test_retuning_refuses_what_the_constructor_refuses_and_changes_nothing(lead: float) -> None:
    rule = MaxLead(2, 3)
    with pytest.raises(ValueError, match=f"received {lead!r}"):
        rule.retune(lead)
    assert (rule.max_lead, rule.slots) == (2, 9)


@stable
@given(st.integers(0, 50), st.integers(1, 50))
def test_without_overtaking_a_whole_lead_is_the_staleness_bound(lead: int, per_version: int) -> None:
    assert MaxLead(lead, per_version).staleness_bound() == lead


@stable
@given(st.floats(0, 20), st.integers(1, 20), st.integers(0, 40))
def test_the_staleness_bound_counts_whole_versions_made_of_others(lead: float, per_version: int, more: int) -> None:
    """The oldest case, ticket by ticket: every other slot and every overtaker is learned from first."""
    rule = MaxLead(lead, per_version)
    version = in_version = 0
    for _ in range(rule.slots - 1 + more):
        in_version += 1
        if in_version == per_version:
            version, in_version = version + 1, 0
    assert rule.staleness_bound(more) == version


# -- ReplayRatio ------------------------------------------------------------------------------------

positive = st.floats(0.01, 20) | st.integers(1, 20)


@st.composite
def replay_ratios(draw: st.DrawFn) -> ReplayRatio:
    ratio, per_update, per_ticket = draw(positive), draw(positive), draw(positive)
    smallest = (per_update + ratio * per_ticket) / 2
    slack = draw(st.none() | st.just(smallest) | st.floats(1, 4).map(lambda times: times * smallest))
    min_size = draw(st.floats(0.01, 60) | st.integers(1, 60))
    return ReplayRatio(ratio, min_size, slack, samples_per_update=per_update, steps_per_ticket=per_ticket)


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
@pytest.mark.parametrize("name", ["samples_per_insert", "min_size", "samples_per_update", "steps_per_ticket"])
def test_a_replay_ratio_refuses_quantities_that_are_not_positive(name: str, value: float) -> None:
    given = {"samples_per_insert": 1.0, "min_size": 1.0, "samples_per_update": 1.0, "steps_per_ticket": 1.0}
    with pytest.raises(ValueError, match=f"{name} must be a finite number > 0, received {value!r}"):
        ReplayRatio(**(given | {name: value}))


def test_a_slack_that_deadlocks_is_refused_with_the_smallest_that_does_not() -> None:
    with pytest.raises(ValueError, match=r"slack=3\.9 deadlocks.* at least 4 ="):
        ReplayRatio(2, slack=3.9, samples_per_update=4, steps_per_ticket=2)
    ReplayRatio(2, slack=4, samples_per_update=4, steps_per_ticket=2)


def test_a_slack_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="slack"):
        ReplayRatio(1, slack=math.nan)


@stable
@given(positive, positive, positive, st.floats(0, 0.98))
def test_every_refused_slack_would_indeed_deadlock(
    ratio: float, per_update: float, per_ticket: float, share: float
) -> None:
    """Between the two sides lies a gap; from the middle of it neither may move."""
    rule = ReplayRatio(ratio, 1, samples_per_update=per_update, steps_per_ticket=per_ticket)
    slack = share * rule.slack / 2
    with pytest.raises(ValueError, match="deadlocks"):
        ReplayRatio(ratio, 1, slack, samples_per_update=per_update, steps_per_ticket=per_ticket)
    rule.slack = slack
    error = (per_update - ratio * per_ticket) / 2
    stuck = Tally(inserted=1000, sampled=ratio * 999 - error)
    assert not rule.may_open(stuck)
    assert not rule.may_learn(stuck)


def test_the_slack_defaults_to_one_ticket_and_one_update() -> None:
    assert ReplayRatio(0.5, samples_per_update=32, steps_per_ticket=8).slack == 36


def test_the_learner_waits_for_the_smallest_replay_and_says_so() -> None:
    rule = ReplayRatio(1, min_size=10)
    assert not rule.may_learn(Tally(inserted=9))
    assert rule.why_not_learn(Tally(inserted=9)) == "the replay holds 9 of min_size=10 steps"
    assert rule.may_learn(Tally(inserted=10))


def test_a_replay_ratio_bounds_the_tickets_ahead_whatever_the_lead() -> None:
    # an update draws 32 of 2 * 16 samples that a ticket pays for: 2 + 2 * 32 / 32 tickets
    assert ReplayRatio(2, samples_per_update=32, steps_per_ticket=16).max_tickets_ahead == 4
    # 8 updates a ticket: 2 + 2 / 8
    assert ReplayRatio(2, samples_per_update=4, steps_per_ticket=16).max_tickets_ahead == 2
    # an update for 4 tickets: 2 + 2 * 4
    assert ReplayRatio(2, samples_per_update=128, steps_per_ticket=16).max_tickets_ahead == 10


@stable
@given(replay_ratios(), st.data())
def test_no_run_has_more_tickets_ahead_than_the_replay_ratio_allows(rule: ReplayRatio, data: st.DataObject) -> None:
    tally = Tally()
    for _ in range(data.draw(st.integers(0, 80))):
        doings = ["open"] * rule.may_open(tally) + ["land"] * (tally.live > 0) + ["learn"] * rule.may_learn(tally)
        doing = data.draw(st.sampled_from(doings))
        if doing == "open":
            tally.live += 1
        elif doing == "land":
            tally.live -= 1
            tally.inserted += rule.steps_per_ticket
        else:
            tally.sampled += rule.samples_per_update
        assert tally.live <= rule.max_tickets_ahead or not tally.sampled


def test_collection_waits_for_a_learner_that_lags_and_says_so() -> None:
    rule = ReplayRatio(1, min_size=10, slack=3)
    assert rule.may_open(Tally(inserted=12))
    assert not rule.may_open(Tally(inserted=13))
    assert "drawn 0 samples for 13 inserted steps" in rule.why_not_open(Tally(inserted=13))
    assert not rule.may_open(Tally(inserted=10, live=3))  # tickets under way count as inserted
    assert not rule.may_open(Tally(inserted=13, live=3, taken=3))
    assert rule.may_open(Tally(inserted=12, live=3, taken=3))  # what the learner has is inserted already


def test_the_learner_waits_for_collection_that_lags_and_says_so() -> None:
    rule = ReplayRatio(1, min_size=10, slack=3)
    assert rule.may_learn(Tally(inserted=10, sampled=2))
    assert not rule.may_learn(Tally(inserted=10, sampled=3))
    assert "drawn 3 samples for 10 inserted steps" in rule.why_not_learn(Tally(inserted=10, sampled=3))


def test_the_smallest_slack_does_not_deadlock_on_the_last_bit() -> None:
    rule = ReplayRatio(1.0, 1, (3.19 + 0.69) / 2, samples_per_update=3.19, steps_per_ticket=0.69)
    balanced = Tally(inserted=21.39, sampled=19.14)  # exactly, both may go on; in binary, a hair short of it
    assert rule.may_open(balanced) or rule.may_learn(balanced)


@stable
@given(replay_ratios(), st.data())
def test_collection_and_learning_never_both_wait(rule: ReplayRatio, data: st.DataObject) -> None:
    """Tickets may bring more or fewer steps than planned, updates draw more or fewer samples."""
    tally = Tally()
    steps = st.just(rule.steps_per_ticket) | st.floats(0, 50)
    samples = st.just(rule.samples_per_update) | st.floats(0, 50)
    for _ in range(30):
        moves = []
        if rule.may_open(tally):
            moves.append("open")
        if rule.may_learn(tally):
            moves.append("learn")
        if tally.untaken:
            moves.append("insert")
        assert moves, f"deadlock at {tally}"
        move = data.draw(st.sampled_from(moves))
        if move == "open":
            tally.opened += 1
            tally.live += 1
        elif move == "insert":
            tally.live -= 1
            tally.inserted += data.draw(steps)
        else:
            tally.sampled += data.draw(samples)


@stable
@given(replay_ratios(), st.integers(0, 2**32), st.floats(0.05, 0.95))
def test_in_the_long_run_the_ratio_stays_within_the_slack(rule: ReplayRatio, seed: int, bias: float) -> None:
    """One side is faster than the other, by `bias`; both do exactly what was announced."""
    random = Random(seed)
    tally = Tally()
    ratio, offset = rule.samples_per_insert, rule.samples_per_insert * rule.min_size
    ahead = max(rule.slack, ratio * rule.steps_per_ticket)  # the ticket that completes min_size may overshoot
    rounding = 1e-6 * (1 + offset + rule.slack)
    for _ in range(300):
        opens, learns = rule.may_open(tally), rule.may_learn(tally)
        assert opens or learns or tally.untaken
        wants_to_learn = random.random() < bias
        if learns and (wants_to_learn or not (opens or tally.untaken)):
            assert tally.inserted >= rule.min_size
            tally.sampled += rule.samples_per_update
        elif tally.untaken and (not opens or random.random() < 0.5):
            tally.live -= 1
            tally.inserted += rule.steps_per_ticket
        else:
            tally.live += 1
        error = ratio * tally.inserted - tally.sampled - offset
        assert error <= ahead + rounding
        if tally.sampled:
            assert error >= -rule.slack - rounding


@stable
@given(replay_ratios(), st.floats(0, 1e6), st.floats(0, 1e6), st.integers(0, 100))
def test_below_the_smallest_replay_only_collection_goes_on(
    rule: ReplayRatio, inserted: float, sampled: float, live: int
) -> None:
    assume(inserted < rule.min_size)
    assert not rule.may_learn(Tally(inserted=inserted, sampled=sampled, live=live))
    assert rule.may_open(Tally(inserted=inserted, sampled=sampled))


# -- Capacity ---------------------------------------------------------------------------------------


def test_a_buffer_smaller_than_a_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="a buffer of 3 deadlocks: the learner waits for batches of 4"):
        Capacity(3, tickets_per_batch=4)
    with pytest.raises(ValueError, match="a buffer of 0 deadlocks"):
        Capacity(0)
    Capacity(4, tickets_per_batch=4)


def test_a_buffer_counts_what_is_in_it_and_on_its_way_but_not_what_the_learner_has() -> None:
    rule = Capacity(3)
    assert rule.may_open(Tally(live=2))
    assert not rule.may_open(Tally(live=3, ready=1))
    assert rule.may_open(Tally(live=5, taken=3))
    assert rule.why_not_open(Tally(live=3)) == "the buffer of 3 is full"
    assert rule.may_learn(Tally())
    assert rule.why_not_learn(Tally()) == ""


# -- Budget -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["max_tickets", "max_steps", "tickets_per_batch"])
@pytest.mark.parametrize("value", [0, -5])
def test_a_budget_of_nothing_is_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name} must be >= 1, received {value}"):
        Budget(**{name: value})


def test_a_budget_of_tickets_counts_what_is_learned_and_what_is_live() -> None:
    rule = Budget(max_tickets=5)
    assert rule.may_open(Tally(learned=2, live=2))
    assert not rule.may_open(Tally(learned=2, live=3))
    assert not rule.may_open(Tally(learned=5))
    assert rule.why_not_open(Tally(learned=5)) == "every ticket this run can still learn from is open"


def test_a_dropped_ticket_gives_its_place_in_the_budget_back() -> None:
    assert Budget(max_tickets=5).may_open(Tally(opened=9, learned=2, live=2, dropped=5))


def test_a_budget_of_steps_counts_what_was_handed_over_and_what_waits() -> None:
    rule = Budget(max_steps=100)
    assert rule.may_open(Tally(inserted=60, waiting_steps=39))
    assert not rule.may_open(Tally(inserted=60, waiting_steps=40))


def test_a_budget_of_steps_fills_the_batch_that_was_begun() -> None:
    rule = Budget(max_steps=100, tickets_per_batch=4)
    assert rule.may_open(Tally(inserted=80, waiting_steps=20, live=6, taken=4))
    assert not rule.may_open(Tally(inserted=80, waiting_steps=20, live=8, taken=4))
    assert not rule.may_open(Tally(inserted=80, waiting_steps=20))


def test_without_a_limit_a_budget_allows_everything() -> None:
    assert Budget().may_open(Tally(learned=10**9, inserted=1e12))


def test_a_budget_never_holds_the_learner_back() -> None:
    rule = Budget(max_tickets=1, max_steps=1)
    assert rule.may_learn(Tally(learned=7, inserted=7))
    assert rule.why_not_learn(Tally()) == ""


# -- AllOf ------------------------------------------------------------------------------------------


def test_no_rules_at_all_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one rule"):
        AllOf()


def test_the_first_rule_that_refuses_gives_the_reason() -> None:
    lead, ratio, budget = MaxLead(1), ReplayRatio(1, min_size=4, slack=1), Budget(max_tickets=2)
    rule = AllOf(lead, ratio, budget)
    crowded = Tally(live=2, taken=2, inserted=9)
    assert not rule.may_open(crowded)
    assert rule.why_not_open(crowded) == lead.why_not_open(crowded)
    assert AllOf(budget, lead).why_not_open(crowded) == budget.why_not_open(crowded)
    learned = Tally(learned=2)
    assert rule.why_not_open(learned) == budget.why_not_open(learned)
    assert not rule.may_learn(learned)
    assert rule.why_not_learn(learned) == ratio.why_not_learn(learned)


def test_when_all_agree_there_is_no_reason() -> None:
    rule = AllOf(MaxLead(1), Budget(max_tickets=5))
    assert rule.may_open(Tally())
    assert rule.may_learn(Tally())
    assert rule.why_not_open(Tally()) == ""
    assert rule.why_not_learn(Tally()) == ""


@stable
@given(st.integers(0, 8), st.integers(0, 8), st.integers(0, 3), st.integers(1, 8))
def test_all_of_them_is_their_conjunction(live: int, learned: int, lead: int, tickets: int) -> None:
    rules = (MaxLead(lead), Budget(max_tickets=tickets), ReplayRatio(1, min_size=3))
    tally = Tally(live=live, learned=learned)
    assert AllOf(*rules).may_open(tally) == all(rule.may_open(tally) for rule in rules)
    assert AllOf(*rules).may_learn(tally) == all(rule.may_learn(tally) for rule in rules)
