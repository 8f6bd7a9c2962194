"""Which collector and lane a seat is, and which seat collects a ticket of a pinned run, when collectors come and go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from headway.core.ledger import Ledger
from headway.core.ledger_seat_plan import SeatPlan
from headway.core.rules import MaxLead
from headway.core.text_naming import place_of, seat_name, seats_of


@given(some.integers(1, 6), some.integers(1, 4), some.integers(0, 12))
def test_every_seat_is_a_lane_of_one_collector_however_many_came_later(collectors: int, lanes: int, later: int) -> None:
    seats = [seat for number in range(collectors + later) for seat in seats_of(number, collectors, lanes)]
    assert sorted(seats) == list(range((collectors + later) * lanes))
    for number in range(collectors + later):
        places = [place_of(seat, collectors, lanes) for seat in seats_of(number, collectors, lanes)]
        assert places == [(number, lane) for lane in range(lanes)]


def test_seats_that_come_later_have_names_of_their_own() -> None:
    assert [seat_name(seat, 2, 2) for seat in range(6)] == [
        "collector-0/0", "collector-1/0", "collector-0/1", "collector-1/1", "collector-2/0", "collector-2/1",
    ]  # fmt: skip
    assert seat_name(7, 2, 1) == "collector-7"


def test_a_plan_deals_tickets_round_the_seats_and_from_a_ticket_on_round_others() -> None:
    plan = SeatPlan(3)
    plan.change(5, [0, 1])
    plan.change(8, [0, 1, 2, 3])
    assert [plan.seat(index) for index in range(12)] == [0, 1, 2, 0, 1, 1, 0, 1, 0, 1, 2, 3]


def test_two_changes_at_one_ticket_are_one_and_none_comes_before_another() -> None:
    plan = SeatPlan(2)
    plan.change(4, [0])
    plan.change(4, [0, 1, 2])
    assert [plan.seat(index) for index in range(4, 8)] == [1, 2, 0, 1]
    with pytest.raises(ValueError, match="tickets from 4 on are planned already, received 3"):
        plan.change(3, [0])


def test_a_ledger_that_goes_on_deals_as_the_one_before() -> None:
    before, after = Ledger(MaxLead(9), pinned_collectors=4), Ledger(MaxLead(9), pinned_collectors=2)
    for _ in range(6):
        before.open(0)
    before.seats.change(6, [0, 1])
    after.load_state_dict(before.state_dict())
    assert [entry.ticket.collector for entry in after.live()] == [0, 1, 2, 3, 0, 1]
    assert [ticket.collector for ticket in (after.open(0), after.open(0)) if ticket is not None] == [0, 1]


def test_a_ledger_whose_seats_are_called_otherwise_deals_anew() -> None:
    before, after = Ledger(MaxLead(9), pinned_collectors=4), Ledger(MaxLead(9), pinned_collectors=3)
    for _ in range(5):
        before.open(0)
    after.load_state_dict(before.state_dict())
    assert [entry.ticket.collector for entry in after.live()] == [0, 1, 2, 0, 1]
