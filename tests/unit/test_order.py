"""Which rollout goes next, and what a limit on age demands of the next batch."""

from __future__ import annotations

import itertools
import math
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.rules_order import OLDEST, READY, Expiry, OnStale, Order, parse_order, required_by_age, window

stable = settings(max_examples=400, deadline=None, derandomize=True)


# -- orders -----------------------------------------------------------------------------------------


def test_an_order_is_parsed_from_the_word_it_prints() -> None:
    assert parse_order("oldest") is OLDEST
    assert parse_order("ready") is READY
    assert parse_order("window(8)") == window(8)
    assert parse_order("window( 8 )") == window(8)
    for order in (OLDEST, READY, window(2), window(64)):
        assert parse_order(str(order)) == order


@pytest.mark.parametrize(
    "text",
    ["", "newest", "Oldest", "window", "window()", "window(-1)", "window(1.5)", "window(2", "win(2)"],
)
def test_an_unknown_order_is_refused_with_the_received_text_and_the_known_ones(text: str) -> None:
    with pytest.raises(ValueError, match=r"unknown order .* allowed: oldest, window") as refusal:
        parse_order(text)
    assert repr(text) in str(refusal.value)


@pytest.mark.parametrize("width", [0, -1, 0.5, 1.5, math.nan, -math.inf])
def test_a_window_that_is_no_whole_number_of_tickets_is_refused(width: float) -> None:
    with pytest.raises(ValueError, match=f"received {width!r}"):
        Order(width)


def test_a_window_of_none_is_refused_when_parsed_too() -> None:
    with pytest.raises(ValueError, match="received 0"):
        parse_order("window(0)")


def test_a_window_of_one_is_the_strict_order() -> None:
    assert window(1) == OLDEST
    assert str(window(1)) == "oldest"
    assert OLDEST.is_strict
    assert not OLDEST.is_first_come


def test_an_endless_window_is_first_come_first_served() -> None:
    assert Order(math.inf) == READY
    assert READY.is_first_come
    assert not READY.is_strict
    assert not window(5).is_strict
    assert not window(5).is_first_come


def test_a_window_bounds_how_many_may_overtake() -> None:
    assert OLDEST.overtakers == 0
    assert window(2).overtakers == 1
    assert window(8).overtakers == 7
    assert READY.overtakers is None


# -- the limit on age -------------------------------------------------------------------------------


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="max_staleness must be >= 0 or None, received -1"):
        Expiry(-1)


def test_a_rollout_is_stale_only_beyond_the_limit() -> None:
    limit = Expiry(2, OnStale.DROP)
    assert [limit.is_stale(age) for age in range(5)] == [False, False, False, True, True]
    assert not Expiry().is_stale(10**9)


def test_only_a_limit_with_wait_waits() -> None:
    assert Expiry(0, OnStale.WAIT).waits
    assert not Expiry(None, OnStale.WAIT).waits
    for on_stale in (OnStale.DROP, OnStale.REQUEUE, OnStale.KEEP):
        assert not Expiry(3, on_stale).waits


# -- what the next batch must contain ---------------------------------------------------------------


def required(untaken: dict[int, int], **settings: int) -> list[tuple[int, int]]:
    given = {"version": 0, "max_staleness": 0, "updates_left": 1, "updates_per_version": 1, "tickets_per_batch": 1}
    return required_by_age(untaken, **(given | settings))  # type: ignore[arg-type]


def test_a_ticket_in_its_last_update_is_required() -> None:
    assert required({0: 1}, version=3, max_staleness=3) == [(0, 1)]
    assert required({0: 1}, version=3, max_staleness=3, updates_left=2) == []
    assert required({0: 1}, version=2, max_staleness=3) == []


def test_a_crowd_is_required_before_its_last_update() -> None:
    assert required({0: 2}, max_staleness=1) == [(0, 1)]
    assert required({0: 3}, max_staleness=1, tickets_per_batch=2) == [(0, 1)]
    assert required({0: 4}, max_staleness=1, tickets_per_batch=2) == [(0, 2)]


def test_younger_tickets_are_required_when_older_ones_take_the_remaining_batches() -> None:
    # At version 1 with a limit of 1, one batch of two remains for those born at version 1 after this one.
    assert required({0: 1, 1: 1}, version=1, max_staleness=1, tickets_per_batch=2) == [(0, 1)]
    assert required({0: 1, 1: 3}, version=1, max_staleness=1, tickets_per_batch=2) == [(0, 1), (1, 2)]


def test_nothing_is_required_when_nothing_is_under_way() -> None:
    assert required({}, version=7, max_staleness=2) == []


def test_a_ticket_that_is_already_too_old_is_required_at_most_once() -> None:
    assert required({0: 2}, version=9, max_staleness=1, tickets_per_batch=4) == [(0, 2)]


Groups = tuple[tuple[int, int], ...]


def batches(untaken: Groups, tickets_per_batch: int) -> list[tuple[int, ...]]:
    """Every way to fill a batch from these groups; the rest of it may come from tickets yet to be born."""
    choices = itertools.product(*(range(min(count, tickets_per_batch) + 1) for _, count in untaken))
    return [taken for taken in choices if sum(taken) <= tickets_per_batch]


def without(untaken: Groups, taken: tuple[int, ...]) -> Groups:
    left = ((birth, count - n) for (birth, count), n in zip(untaken, taken, strict=True))
    return tuple((birth, count) for birth, count in left if count)


@cache
def is_feasible(untaken: Groups, version: int, updates_left: int, limit: int, per_version: int, per_batch: int) -> bool:
    """Is there any schedule of future batches in which every ticket is taken within its limit? Tries all."""
    if not untaken:
        return True
    if any(version - birth > limit for birth, _ in untaken):
        return False
    after = (version, updates_left - 1) if updates_left > 1 else (version + 1, per_version)
    return any(
        is_feasible(without(untaken, taken), *after, limit, per_version, per_batch)
        for taken in batches(untaken, per_batch)
    )


@st.composite
def situations(draw: st.DrawFn) -> tuple[Groups, dict[str, int]]:
    limit = draw(st.integers(0, 3), label="max_staleness")
    version = draw(st.integers(limit, limit + 2), label="version")
    births = st.integers(version - limit, version)
    untaken = draw(st.dictionaries(births, st.integers(1, 3), max_size=3), label="untaken by birth")
    per_version = draw(st.integers(1, 2), label="updates_per_version")
    return tuple(sorted(untaken.items())), {
        "version": version,
        "max_staleness": limit,
        "updates_left": draw(st.integers(1, per_version), label="updates_left"),
        "updates_per_version": per_version,
        "tickets_per_batch": draw(st.integers(1, 3), label="tickets_per_batch"),
    }


@stable
@given(situations())
def test_a_batch_keeps_every_limit_within_reach_exactly_when_it_contains_what_is_required(
    situation: tuple[Groups, dict[str, int]],
) -> None:
    untaken, s = situation
    demands = required_by_age(dict(untaken), **s)
    after = (
        (s["version"], s["updates_left"] - 1) if s["updates_left"] > 1 else (s["version"] + 1, s["updates_per_version"])
    )
    for taken in batches(untaken, s["tickets_per_batch"]):
        obeys = all(
            sum(n for (born, _), n in zip(untaken, taken, strict=True) if born <= birth) >= count
            for birth, count in demands
        )
        can_go_on = is_feasible(
            without(untaken, taken), *after, s["max_staleness"], s["updates_per_version"], s["tickets_per_batch"]
        )
        assert obeys == can_go_on, f"batch {taken} of {untaken}"


@stable
@given(situations())
def test_a_demand_beyond_one_batch_means_that_no_schedule_exists(situation: tuple[Groups, dict[str, int]]) -> None:
    untaken, s = situation
    fits = all(count <= s["tickets_per_batch"] for _, count in required_by_age(dict(untaken), **s))
    assert fits == is_feasible(
        untaken,
        s["version"],
        s["updates_left"],
        s["max_staleness"],
        s["updates_per_version"],
        s["tickets_per_batch"],
    )


@stable
@given(situations())
def test_demands_grow_with_the_births_they_cover(situation: tuple[Groups, dict[str, int]]) -> None:
    untaken, s = situation
    demands = required_by_age(dict(untaken), **s)
    assert [birth for birth, _ in demands] == sorted({birth for birth, _ in demands})
    for birth, count in demands:
        assert 1 <= count <= sum(n for born, n in untaken if born <= birth)
