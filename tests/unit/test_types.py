"""What moves through a run: spans, seeds, payloads, and errors that cross process boundaries."""

from __future__ import annotations

import pickle
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.protocols import RoleDied, RoleError, RoleLate, RoleRaised
from headway.core.types import (
    Batch,
    DropReason,
    LearnReport,
    Phase,
    Rollout,
    Snapshot,
    Span,
    Ticket,
    derive_seed,
    map_payloads,
)

stable = settings(max_examples=100, deadline=None, derandomize=True)


# -- spans and tickets ------------------------------------------------------------------------------


@pytest.mark.parametrize(("oldest", "newest"), [(-1, 0), (-2, -1), (1, 0), (5, 4)])
def test_a_span_refuses_versions_that_do_not_exist_or_run_backwards(oldest: int, newest: int) -> None:
    with pytest.raises(ValueError, match=rf"received {oldest}\.\.{newest}"):
        Span(oldest, newest)


@stable
@given(st.integers(0, 1000), st.integers(0, 1000))
def test_a_span_accepts_every_forward_range_of_versions(oldest: int, width: int) -> None:
    span = Span(oldest, oldest + width)
    assert (span.oldest, span.newest) == (oldest, oldest + width)


def test_a_ticket_says_only_what_is_known_about_it() -> None:
    assert str(Ticket(7, seed=1)) == "ticket 7"
    assert str(Ticket(7, seed=1, version=3, collector=0)) == "ticket 7 at version 3"
    assert str(Ticket(7, seed=1, version=3, attempt=1)) == "ticket 7 at version 3 (attempt 2)"


def test_phases_and_drop_reasons_survive_a_trip_through_their_names() -> None:
    for phase in Phase:
        assert Phase(phase.value) is phase
    for reason in DropReason:
        assert DropReason(reason.value) is reason


def test_a_report_without_importance_weights_has_no_effective_sample_size() -> None:
    assert LearnReport().effective_sample_size is None
    assert LearnReport({"ess": 0.5}).effective_sample_size == 0.5


# -- seeds ------------------------------------------------------------------------------------------


def test_a_derived_seed_is_the_same_on_every_machine_and_in_every_release() -> None:
    assert derive_seed(0, "ticket", 0) == 6080362345113116085
    assert derive_seed(1234, "evaluate", 56) == 4273371529135552292


def test_ten_thousand_tickets_have_ten_thousand_seeds() -> None:
    seeds = {derive_seed(0, "ticket", index) for index in range(10_000)}
    assert len(seeds) == 10_000


def test_neighbouring_run_seeds_share_no_ticket_seed() -> None:
    seeds = {derive_seed(seed, "ticket", index) for seed in range(100) for index in range(100)}
    assert len(seeds) == 10_000


@stable
@given(st.integers(), st.lists(st.integers() | st.text(max_size=8), max_size=4))
def test_a_derived_seed_fits_a_signed_64_bit_integer(seed: int, path: list[int | str]) -> None:
    assert 0 <= derive_seed(seed, *path) < 2**63
    assert derive_seed(seed, *path) == derive_seed(seed, *path)


# -- payloads ---------------------------------------------------------------------------------------


def test_payloads_are_changed_wherever_rollouts_and_snapshots_hide() -> None:
    rollout, snapshot = Rollout(1, steps=3, ticket=4), Snapshot(2, 10)
    batch = Batch(5, (rollout, Rollout(2)))
    value = (rollout, (snapshot, ("text", batch)), 7, None)

    changed = map_payloads(value, lambda payload: -payload)

    assert changed == (
        Rollout(-1, steps=3, ticket=4),
        (Snapshot(2, -10), ("text", Batch(5, (Rollout(-1, steps=3, ticket=4), Rollout(-2))))),
        7,
        None,
    )
    assert value[0] is rollout
    assert rollout.payload == 1  # the original is untouched


def test_everything_but_the_payload_survives_the_change() -> None:
    rollout = Rollout("x", steps=9, length=2.5, span=Span(1, 3), info={"a": 1}, filtered=True, ticket=11)
    assert map_payloads(map_payloads(rollout, lambda p: [p]), lambda p: p[0]) == rollout


def test_the_feedback_of_a_report_is_a_payload_if_there_is_any() -> None:
    report = LearnReport({"loss": 1.0}, samples=3, feedback=4)
    assert map_payloads((report, None), lambda payload: -payload) == (LearnReport({"loss": 1.0}, 3, -4), None)
    silent = LearnReport({"loss": 1.0})
    assert map_payloads(silent, lambda payload: -payload) is silent


def test_what_is_inside_a_payload_is_left_alone() -> None:
    inner = Rollout(1)
    assert map_payloads(Snapshot(0, (inner,)), lambda payload: payload) == Snapshot(0, (inner,))


class Pair(NamedTuple):
    first: Rollout
    second: int


def test_values_that_only_resemble_a_tuple_are_passed_on_as_they_are() -> None:
    for value in (Pair(Rollout(1), 2), [Rollout(1)], {"rollout": Rollout(1)}, Ticket(0, 0), "text"):
        assert map_payloads(value, lambda payload: payload + 1) is value


nested = st.recursive(
    st.builds(Rollout, st.integers()) | st.builds(Snapshot, st.integers(0, 9), st.integers()) | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.lists(st.builds(Rollout, st.integers()), max_size=3).map(lambda rollouts: Batch(0, tuple(rollouts)))
    ),
    max_leaves=12,
)


def payloads_in(value: object) -> list[int]:
    """The slow obvious walk."""
    if isinstance(value, Rollout | Snapshot):
        return [value.payload]
    if isinstance(value, Batch):
        return [rollout.payload for rollout in value.rollouts]
    if isinstance(value, tuple):
        return [payload for item in value for payload in payloads_in(item)]
    return []


@stable
@given(nested)
def test_every_payload_is_changed_exactly_once_and_can_be_changed_back(value: object) -> None:
    seen: list[int] = []

    def shift(payload: int) -> int:
        seen.append(payload)
        return payload + 1

    shifted = map_payloads(value, shift)
    assert seen == payloads_in(value)
    assert payloads_in(shifted) == [payload + 1 for payload in seen]
    assert map_payloads(shifted, lambda payload: payload - 1) == value


# -- errors that travel -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [RoleError, RoleDied, RoleLate, RoleRaised])
def test_a_role_error_survives_pickling(kind: type[RoleError]) -> None:
    error = kind("collector-3", "collect", "no answer")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (copy.role, copy.method, copy.what) == ("collector-3", "collect", "no answer")
    assert str(copy) == str(error) == "collector-3.collect: no answer"


def test_what_a_station_raised_travels_with_its_traceback() -> None:
    def station() -> None:
        raise KeyError("missing weights")

    try:
        station()
    except KeyError as cause:
        error = RoleRaised.of("learner", "learn", cause)

    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == "learner.learn: KeyError: 'missing weights'"
    assert "in station" in copy.details
    assert copy.details == error.details
