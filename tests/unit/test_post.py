"""Seats, and the rule by which their tickets take off."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.coordinator.collectors_lanes import Post
from headway.coordinator.tickets_ticket_queue import TicketQueue
from headway.core.ledger import Ledger
from headway.core.protocols import Role
from headway.core.rules import MaxLead
from headway.core.text_naming import seat_name
from headway.core.types import Ticket

stable = settings(max_examples=300, deadline=None, derandomize=True)


def a_post(*, drains: bool = True, applied: int | None = None) -> Post:
    post = Post("collector-0", range(0, 8, 2))
    post.drains, post.applied = drains, applied
    return post


# -- seats ------------------------------------------------------------------------------------------


def test_seats_go_round_the_collectors() -> None:
    names = [seat_name(seat, 3, 2) for seat in range(6)]
    assert names == [f"collector-{number}/{lane}" for lane in range(2) for number in range(3)]
    assert [seat_name(seat, 3, 1) for seat in range(3)] == ["collector-0", "collector-1", "collector-2"]


def test_a_role_without_a_lane_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^a role needs at least one lane, received lanes=0$"):
        Role("collector-0", object, lanes=0)


def test_with_lanes_a_ticket_goes_to_the_collector_with_the_most_idle_ones() -> None:
    desk = TicketQueue(2, pinned=False, lanes=3)
    for seat in (0, 2, 1, 3, 5):  # two lanes of collector 0, three of collector 1
        desk.note_idle(seat)
    woken = [desk.put(Ticket(index, index)) for index in range(6)]
    assert woken == [1, 0, 3, 2, 5, None], "and of those to the one that is idle longest"


def test_whoever_may_not_have_a_ticket_names_somebody_else() -> None:
    desk = TicketQueue(2, pinned=False, lanes=2)
    for seat in (0, 1):
        desk.note_idle(seat)
    assert desk.another_idle() is None, "nothing to take"
    first = Ticket(0, 0)
    assert desk.put(first) == 0
    assert desk.first(0) == desk.first(3) == first
    assert desk.another_idle() == 1
    assert desk.another_idle() is None, "nobody else is idle"
    pinned = TicketQueue(1, pinned=True, lanes=2)
    pinned.put(Ticket(0, 0, collector=0))
    pinned.note_idle(1)
    assert (pinned.first(0), pinned.first(1)) == (Ticket(0, 0, collector=0), None)
    assert pinned.another_idle() is None, "it is nobody else's"


def test_a_resumed_run_may_have_more_or_fewer_seats() -> None:
    before = Ledger(MaxLead(5), pinned_collectors=6)
    tickets = [before.open(3) for _ in range(6)]
    assert [ticket.collector for ticket in tickets if ticket] == list(range(6))
    after = Ledger(MaxLead(5), pinned_collectors=2)
    after.load_state_dict(before.state_dict())
    assert [entry.ticket.collector for entry in after.live()] == [0, 1, 0, 1, 0, 1]
    assert {entry.ticket.version for entry in after.live()} == {3}


# -- taking off -------------------------------------------------------------------------------------


def test_a_version_has_the_collector_to_itself() -> None:
    post = a_post(applied=4)
    assert post.may_take_off(4, {4, 5})
    post.take_off(4)
    assert post.may_take_off(4, {4, 5})
    assert not post.may_take_off(5, {4, 5})
    assert post.why_not(5) == "collector-0 to finish 1 ticket of version 4 before version 5 is applied"
    post.take_off(4)
    assert post.why_not(5) == "collector-0 to finish 2 tickets of version 4 before version 5 is applied"
    post.land()
    post.land()
    assert not post.may_take_off(5, {4, 5}), "a ticket of version 4 is still in line"
    assert post.why_not(5) == "collector-0 to finish older tickets before version 5 is applied"
    assert post.may_take_off(5, {5, 6})
    assert not post.may_take_off(6, {5, 6})


def test_it_goes_back_to_an_older_version_only_when_nobody_wants_the_one_it_has() -> None:
    post = a_post(applied=6)
    assert post.may_take_off(6, {5, 6})
    assert not post.may_take_off(5, {5, 6})
    assert post.may_take_off(5, {5})


def test_where_weights_may_change_in_the_middle_nobody_waits() -> None:
    post = a_post(drains=False, applied=4)
    post.take_off(4)
    assert post.may_take_off(5, {5})
    assert not post.has(5)
    assert post.has(3), "newer weights will do"
    assert not a_post(applied=4).has(3), "but not where versions are kept apart"


def test_nothing_takes_off_from_a_collector_that_is_down() -> None:
    for drains in (True, False):
        post = a_post(drains=drains, applied=4)
        post.go_down()
        assert not post.may_take_off(4, {4})
        assert post.why_not(4) == "collector-0 to be restarted"
        assert not post.has(4), "its weights are gone"
        post.is_up = True
        assert post.may_take_off(4, {4})


def test_a_late_call_is_to_blame_for_its_own_incarnation_only() -> None:
    post = a_post()
    assert not post.was_given_up(post.incarnation)
    post.give_up(post.incarnation)
    assert post.was_given_up(0)
    post.go_down()
    assert not post.was_given_up(post.incarnation)


@stable
@given(
    lines=st.lists(st.lists(st.integers(0, 4), max_size=6), min_size=1, max_size=4),
    choices=st.lists(st.tuples(st.sampled_from(["take off", "land", "die"]), st.integers(0, 3)), max_size=60),
)
def test_there_is_always_a_ticket_that_may_take_off_and_one_version_in_flight(
    lines: list[list[int]], choices: list[tuple[str, int]]
) -> None:
    """Every seat has a line of tickets, in any order of versions. Whatever happens, no deadlock and no mixture."""
    post = a_post()
    flying: dict[int, int] = {}  # seat -> version
    total = Counter(version for line in lines for version in line)
    flown: Counter[int] = Counter()

    def wanted() -> set[int]:
        return {line[0] for line in lines if line}

    def try_to_take_off(seat: int) -> bool:
        if seat in flying or not lines[seat] or not post.may_take_off(lines[seat][0], wanted()):
            return False
        version = flying[seat] = lines[seat].pop(0)
        post.take_off(version)
        post.applied = version
        return True

    def land(seat: int) -> None:
        flown[flying.pop(seat)] += 1
        post.land()

    for action, number in choices:
        seat = number % len(lines)
        if action == "take off":
            try_to_take_off(seat)
        elif action == "land" and seat in flying:
            land(seat)
        elif action == "die":  # all that is in flight is in line again, first
            post.go_down()
            for lost, version in flying.items():
                lines[lost].insert(0, version)
                post.land()
            flying.clear()
            assert not any(try_to_take_off(other) for other in range(len(lines)))
            post.is_up = True
        assert len(set(flying.values())) <= 1
        assert post.in_flight == len(flying)
    while flying or any(lines):
        for seat in list(flying):
            land(seat)
        moved = [try_to_take_off(seat) for seat in range(len(lines))]
        assert any(moved) or not wanted(), "a deadlock"
    assert flown == total
