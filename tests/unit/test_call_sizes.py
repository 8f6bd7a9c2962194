"""How many tickets a call brings follows from what was measured: the way of a call, and what a ticket takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.coordinator.collectors_call_sizes import MOST, FixedSize, MeasuredSizes

COLLECT_S = 100.0


def after(*calls: tuple[float, float], num_bytes: int = 0) -> MeasuredSizes:
    """Calls of one collector, each with as many tickets as it might have: seconds of the way, and for each ticket."""
    sizes = MeasuredSizes(COLLECT_S)
    for way_s, ticket_s in calls:
        tickets = sizes.limit(0)
        sizes.note(0, tickets, way_s + tickets * ticket_s, tickets * ticket_s, tickets * num_bytes)
    return sizes


def test_where_nothing_is_known_a_ticket_has_a_call_of_its_own() -> None:
    assert after().limit(0) == 1


def test_a_ticket_that_takes_longer_than_the_way_has_a_call_of_its_own() -> None:
    assert after(*[(0.002, 0.003)] * 20).limit(0) == 1


def test_short_tickets_come_together_more_with_every_call() -> None:
    assert [after(*[(0.002, 1e-5)] * calls).limit(0) for calls in range(7)] == [1, 2, 4, 8, 16, 16, 16]
    assert MOST == 16


def test_a_collector_that_takes_no_time_at_all_gets_the_most() -> None:
    assert after(*[(0.002, 0.0)] * 9).limit(0) == MOST


def test_one_long_ticket_ends_it_at_once_and_short_ones_begin_it_again() -> None:
    short = [(0.002, 0.0002)] * 9
    assert after(*short).limit(0) == 10
    assert after(*short, (0.002, 1.0)).limit(0) == 1
    assert after(*short, (0.002, 1.0), *short).limit(0) == 1  # not forgotten yet
    assert after(*short, (0.002, 1.0), *short * 3).limit(0) == 10


def test_after_a_failure_tickets_come_one_by_one_at_first() -> None:
    sizes = after(*[(0.002, 1e-5)] * 9)
    sizes.note_failure(0)
    assert sizes.limit(0) == 1


def test_each_collector_is_measured_by_itself() -> None:
    sizes = MeasuredSizes(COLLECT_S)
    sizes.note(0, 1, 0.002, 0.0, 0)
    assert [sizes.limit(0), sizes.limit(1)] == [2, 1]


def test_a_way_that_took_very_long_does_not_make_long_tickets_come_together() -> None:
    assert after(*[(60.0, 0.2)] * 9).limit(0) == 1


def test_rollouts_that_fill_a_call_by_their_size_come_in_smaller_numbers() -> None:
    limits = {size: after(*[(0.002, 0.0)] * 9, num_bytes=size).limit(0) for size in (1000, 100_000, 1 << 20, 1 << 30)}
    assert list(limits.values()) == [16, 10, 1, 1]


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=40))
def test_no_call_is_expected_to_collect_for_longer_than_its_way(calls: list[tuple[float, float]]) -> None:
    sizes = after(*calls)
    assert 1 <= sizes.limit(0) <= MOST
    if sizes.limit(0) > 1:
        assert sizes.limit(0) * calls[-1][1] <= sizes.within_s(0) * (1 + 1e-9)


def test_a_call_has_the_deadline_of_one_ticket_and_the_time_in_which_others_may_begin() -> None:
    sizes = after(*[(0.002, 0.0)] * 9)
    assert sizes.deadline_s(0, 1) == COLLECT_S
    assert COLLECT_S < sizes.deadline_s(0, 16) < COLLECT_S + 0.01


def test_with_a_number_that_is_asked_for_each_ticket_has_the_time_of_one() -> None:
    sizes = FixedSize(4, COLLECT_S)
    sizes.note(0, 4, 9.0, 9.0, 0)
    sizes.note_failure(0)
    assert sizes.limit(0) == 4
    assert sizes.deadline_s(0, 4) == 4 * COLLECT_S
