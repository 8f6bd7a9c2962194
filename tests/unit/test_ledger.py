"""The tally of a run: every move and refusal, the invariants by name, and a machine that tries everything.

The state machine at the end drives a ledger the way the coordinator does (open where slots come free, start
with the newest version, take, settle at a publish) next to a model made of plain dictionaries.
"""

from __future__ import annotations

import copy
import json
import math
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headway.core.ledger import Ledger
from headway.core.ledger_choosing import WAIT, Choice
from headway.core.ledger_counts import LedgerStatistics
from headway.core.ledger_live_tickets import LedgerError
from headway.core.ledger_terms import check_expiry
from headway.core.rules import AllOf, Budget, Capacity, MaxLead
from headway.core.rules_order import OLDEST, READY, Expiry, OnStale, Order, window
from headway.core.types import DropReason, Phase, Span, Ticket, derive_seed

stable = settings(max_examples=60, deadline=None, derandomize=True)

ORDERS = [OLDEST, window(2), window(5), READY]
EXPIRIES = [Expiry()] + [Expiry(limit, on_stale) for limit in (0, 1, 2) for on_stale in OnStale]


def a_ledger(lead: float = 1, per_version: int = 1, **more: Any) -> Ledger:
    return Ledger(MaxLead(lead, per_version), **more)


def open_all(ledger: Ledger, version: int = 0) -> list[Ticket]:
    tickets = []
    while (ticket := ledger.open(version)) is not None:
        tickets.append(ticket)
    return tickets


def fly(ledger: Ledger, *indices: int, version: int = 0, land: bool = True) -> None:
    for index in indices:
        ledger.start(index, version, collector=0)
        if land:
            ledger.land(index)


def phases(ledger: Ledger) -> dict[int, Phase]:
    return {entry.ticket.index: entry.phase for entry in ledger.live()}


def through_json(ledger: Ledger) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(json.dumps(ledger.state_dict()))
    return state


def like(ledger: Ledger) -> Ledger:
    """An empty ledger with the same settings."""
    return Ledger(
        ledger.rule,
        order=ledger.order,
        expiry=ledger.expiry,
        tickets_per_batch=ledger.tickets_per_batch,
        updates_per_version=ledger.updates_per_version,
        seed=ledger.seed,
        pinned_collectors=ledger.pinned_collectors,
    )


# -- settings that cannot work ----------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "updates"), [(0, 1), (1, 0), (-1, 1)])
def test_a_batch_or_a_version_of_nothing_is_refused(batch: int, updates: int) -> None:
    with pytest.raises(ValueError, match=f"received {batch} and {updates}"):
        a_ledger(tickets_per_batch=batch, updates_per_version=updates)


@pytest.mark.parametrize("order", [window(2), READY])
def test_only_the_strict_order_can_be_pinned(order: Order) -> None:
    with pytest.raises(ValueError, match="cannot be pinned"):
        a_ledger(order=order, pinned_collectors=2)


@pytest.mark.parametrize(("lead", "limit"), [(1, 0), (2, 1), (8, 3)])
def test_a_limit_that_waiting_cannot_keep_is_refused(lead: float, limit: int) -> None:
    with pytest.raises(ValueError, match=rf"max_staleness={limit} .* max_lead={lead} \(rollouts reach age {lead}\)"):
        check_expiry(MaxLead(lead, 4), Expiry(limit, OnStale.WAIT))
    for on_stale in (OnStale.DROP, OnStale.REQUEUE, OnStale.KEEP):
        check_expiry(MaxLead(lead, 4), Expiry(limit, on_stale))


@pytest.mark.parametrize(("lead", "limit"), [(0, 0), (1, 1), (1.5, 2), (0.5, 1), (3, 9)])
def test_a_limit_that_waiting_can_keep_is_accepted(lead: float, limit: int) -> None:
    check_expiry(MaxLead(lead, 4), Expiry(limit, OnStale.WAIT))


# -- a ticket's life --------------------------------------------------------------------------------


def test_a_ticket_opens_with_the_next_index_and_a_seed_of_its_own() -> None:
    ledger = a_ledger(lead=2, seed=5)
    assert open_all(ledger) == [Ticket(index, derive_seed(5, "ticket", index)) for index in range(3)]


def test_no_ticket_opens_when_the_slots_are_occupied() -> None:
    ledger = a_ledger(lead=1)
    open_all(ledger)
    assert not ledger.may_open()
    assert ledger.open(0) is None
    assert ledger.tally.opened == ledger.tally.live == 2


def test_a_free_ticket_takes_off_with_the_version_and_collector_it_is_given() -> None:
    ledger = a_ledger()
    ticket = ledger.open(0)
    assert ticket is not None
    assert ticket.version is None
    assert ledger.start(0, 7, 3) == Ticket(0, ticket.seed, 7, 3)
    assert ledger.entry(0).version == 7


def test_a_pinned_ticket_is_born_at_opening_with_version_and_collector() -> None:
    ledger = a_ledger(lead=4, pinned_collectors=2)
    assert [(t.version, t.collector) for t in open_all(ledger, version=3)] == [(3, 0), (3, 1), (3, 0), (3, 1), (3, 0)]


def test_a_pinned_ticket_refuses_another_version_or_collector() -> None:
    ledger = a_ledger(lead=1, pinned_collectors=2)
    open_all(ledger, version=3)
    with pytest.raises(LedgerError, match="ticket 1 is pinned to version 3 on collector 1, not to version 4"):
        ledger.start(1, 4, 1)
    with pytest.raises(LedgerError, match="not to version 3 on collector 0"):
        ledger.start(1, 3, 0)
    assert ledger.start(1, 3, 1).version == 3


def test_a_rollout_without_a_span_was_made_by_its_birth_version() -> None:
    ledger = a_ledger()
    open_all(ledger)
    fly(ledger, 0, version=4, land=False)
    assert ledger.land(0) == Span(4, 4)


def test_a_rollout_may_not_reach_back_before_its_birth() -> None:
    ledger = a_ledger()
    open_all(ledger)
    fly(ledger, 0, version=4, land=False)
    with pytest.raises(LedgerError, match="ticket 0 was born at version 4, its rollout claims 3"):
        ledger.land(0, span=Span(3, 5))
    assert ledger.entry(0).phase is Phase.IN_FLIGHT
    assert ledger.land(0, span=Span(5, 6)) == Span(5, 6)


def test_a_landing_is_tallied() -> None:
    ledger = a_ledger()
    open_all(ledger)
    fly(ledger, 0, 1, land=False)
    ledger.land(0, steps=10)
    ledger.land(1, steps=5)
    assert (ledger.tally.ready, ledger.tally.waiting_steps, ledger.tally.inserted) == (2, 15, 0)
    ledger.take([0], 0)
    assert (ledger.tally.ready, ledger.tally.waiting_steps, ledger.tally.inserted) == (1, 5, 10)
    assert ledger.tally.untaken == 1


def test_a_reissued_ticket_asks_the_same_question_again() -> None:
    ledger = a_ledger()
    seed = open_all(ledger)[0].seed
    fly(ledger, 0, version=2, land=False)
    assert ledger.reissue(0) == Ticket(0, seed, attempt=1)
    assert ledger.start(0, 5, 1) == Ticket(0, seed, 5, 1, attempt=1)
    assert ledger.reissue(0).attempt == 2
    ledger.start(0, 5, 1)
    assert ledger.reissue(0, is_attempt=False).attempt == 2
    assert ledger.statistics().reissued == 3


def test_a_pinned_ticket_keeps_its_birth_when_reissued() -> None:
    ledger = a_ledger(pinned_collectors=1)
    ticket = open_all(ledger, version=2)[0]
    ledger.start(0, 2, 0)
    again = ledger.reissue(0)
    assert (again.version, again.collector, again.seed, again.attempt) == (2, 0, ticket.seed, 1)


def test_a_requeued_ticket_starts_over_with_a_clean_record() -> None:
    ledger = a_ledger()
    seed = open_all(ledger)[0].seed
    fly(ledger, 0, land=False)
    ledger.reissue(0)
    fly(ledger, 0)
    assert ledger.requeue(0, 3) == Ticket(0, seed)
    assert phases(ledger)[0] is Phase.OPEN
    assert (ledger.tally.ready, ledger.tally.waiting_steps, ledger.tally.live) == (0, 0, 2)
    assert ledger.statistics().requeued == 1


def test_a_pinned_ticket_is_born_anew_when_requeued() -> None:
    ledger = a_ledger(lead=0, pinned_collectors=1)
    ticket = open_all(ledger, version=2)[0]
    ledger.start(0, 2, 0)
    ledger.land(0)
    assert ledger.requeue(0, 5) == Ticket(0, ticket.seed, version=5, collector=0)
    ledger.start(0, 5, 0)
    assert ledger.land(0) == Span(5, 5)


def test_a_ticket_whose_rollout_is_lost_is_collected_again_in_the_same_slot() -> None:
    ledger = a_ledger()
    seed = open_all(ledger)[0].seed
    fly(ledger, 0)
    assert ledger.lose(0, 3) == Ticket(0, seed, attempt=1)
    assert phases(ledger)[0] is Phase.OPEN
    assert (ledger.tally.ready, ledger.tally.waiting_steps, ledger.tally.live) == (0, 0, 2)
    assert not ledger.may_open()
    fly(ledger, 0, version=3)
    ledger.take([0], 3)
    assert ledger.settle() == (0,)
    end = ledger.statistics()
    assert (end.lost, end.landed, end.learned, end.reissued, end.requeued) == (1, 2, 1, 0, 0)
    assert end.offered_length == 1.0


@pytest.mark.parametrize("lost", [(), (0,), (2, 4)])
def test_a_batch_that_was_put_back_is_as_if_it_had_never_been_taken(lost: tuple[int, ...]) -> None:
    ledger = ready_in_order(READY, [4, 2, 0, 1], batch=3, expiry=Expiry(0, OnStale.KEEP))
    before = ledger.statistics()
    ledger.take([0, 2, 4], 1)
    assert ledger.statistics().kept_stale == 3
    ledger.put_back([0, 2, 4], 1)
    assert ledger.statistics() == before
    assert (ledger.tally.ready, ledger.tally.taken, ledger.tally.inserted) == (4, 0, 0)
    for index in lost:
        ledger.lose(index, 1)
    left = [index for index in (0, 2, 4, 1) if index not in lost]
    assert ledger.choose(1).batch == (tuple(sorted(left[:3])) if len(left) >= 3 else ())


def test_what_was_put_back_has_its_place_in_the_ticket_order_again() -> None:
    ledger = ready_in_order(window(4), [2])
    ledger.take([2], 0)
    ledger.land(0)  # while the learner had 2
    ledger.put_back([2], 0)
    assert ledger.choose(0).batch == (0,)


def test_putting_back_all_or_nothing() -> None:
    ledger = ready_in_order(OLDEST, [0, 1, 2])
    ledger.take([0, 1], 0)
    before = ledger.state_dict()
    with pytest.raises(LedgerError, match="cannot put back ticket 2: it is ready, not taken"):
        ledger.put_back([0, 2], 0)
    assert ledger.state_dict() == before
    ledger.put_back([0, 1], 0)
    assert ledger.settle() == ()


@pytest.mark.parametrize("is_lost", [True, False], ids=["rollout", "weights"])
def test_a_pinned_ticket_is_born_anew_when_what_it_needs_is_lost(is_lost: bool) -> None:
    ledger = a_ledger(lead=0, pinned_collectors=1)
    ticket = open_all(ledger, version=2)[0]
    ledger.start(0, 2, 0)
    if is_lost:
        ledger.land(0)
        again = ledger.lose(0, 5)
    else:
        again = ledger.reissue(0, version=5)
    assert again == Ticket(0, ticket.seed, version=5, collector=0, attempt=1)
    ledger.start(0, 5, 0)
    assert ledger.land(0) == Span(5, 5)


def test_samples_are_counted_as_the_learner_reports_them() -> None:
    ledger = a_ledger()
    ledger.count_samples(32)
    ledger.count_samples(0.5)
    assert ledger.tally.sampled == 32.5


def test_closing_returns_what_is_live_and_the_account_closes() -> None:
    ledger = a_ledger(lead=4)
    open_all(ledger)
    fly(ledger, 0, 1, 2)
    ledger.take([0], 0)
    ledger.settle()
    ledger.take([1], 1)
    fly(ledger, 3, land=False)
    ledger.drop(4, DropReason.FAILED)
    assert ledger.close() == (1, 2, 3)
    end = ledger.statistics()
    assert (end.opened, end.learned, end.dropped, end.returned, end.live) == (5, 1, {"failed": 1}, 3, 0)
    assert end.closes
    assert (ledger.tally.ready, ledger.tally.taken, ledger.tally.waiting_steps) == (0, 0, 0)


def test_an_account_that_lost_a_ticket_does_not_close() -> None:
    end = a_ledger().statistics()
    assert end.closes
    assert not LedgerStatistics(**{**fields_of(end), "opened": 1}).closes


def fields_of(statistics: LedgerStatistics) -> dict[str, Any]:
    return {name: getattr(statistics, name) for name in LedgerStatistics.__dataclass_fields__}


def test_live_tickets_can_be_looked_at() -> None:
    ledger = a_ledger(lead=1)
    open_all(ledger)
    assert [entry.ticket.index for entry in ledger.live()] == [0, 1]
    assert ledger.entry(1).phase is Phase.OPEN
    ledger.drop(0, DropReason.FAILED)
    assert [ledger.is_live(index) for index in range(3)] == [False, True, False]


# -- refusals ---------------------------------------------------------------------------------------

MOVES: dict[str, tuple[Phase, Callable[[Ledger], object]]] = {
    "start": (Phase.OPEN, lambda ledger: ledger.start(0, 0, 0)),
    "land": (Phase.IN_FLIGHT, lambda ledger: ledger.land(0)),
    "reissue": (Phase.IN_FLIGHT, lambda ledger: ledger.reissue(0)),
    "take": (Phase.READY, lambda ledger: ledger.take([0], 0)),
    "requeue": (Phase.READY, lambda ledger: ledger.requeue(0, 0)),
    "lose": (Phase.READY, lambda ledger: ledger.lose(0, 0)),
    "put back": (Phase.TAKEN, lambda ledger: ledger.put_back([0], 0)),
}


def in_phase(phase: Phase) -> Ledger:
    """A ledger whose ticket 0 is in `phase`."""
    ledger = a_ledger(lead=0)
    open_all(ledger)
    if phase is not Phase.OPEN:
        fly(ledger, 0, land=phase is not Phase.IN_FLIGHT)
    if phase is Phase.TAKEN:
        ledger.take([0], 0)
    return ledger


@pytest.mark.parametrize("phase", [Phase.OPEN, Phase.IN_FLIGHT, Phase.READY, Phase.TAKEN], ids=lambda p: p.value)
@pytest.mark.parametrize("verb", MOVES)
def test_a_move_is_refused_in_every_phase_but_its_own(verb: str, phase: Phase) -> None:
    allowed, move = MOVES[verb]
    ledger = in_phase(phase)
    if phase is allowed:
        move(ledger)
        return
    before = ledger.state_dict()
    with pytest.raises(LedgerError, match=f"cannot {verb} ticket 0: it is {phase.value}, not {allowed.value}"):
        move(ledger)
    assert ledger.state_dict() == before


@pytest.mark.parametrize("verb", MOVES)
def test_a_ticket_that_was_never_opened_cannot_move(verb: str) -> None:
    with pytest.raises(LedgerError, match=f"cannot {verb} ticket 0: it is not live"):
        MOVES[verb][1](a_ledger())


def test_what_is_not_live_cannot_be_dropped() -> None:
    ledger = in_phase(Phase.READY)
    ledger.drop(0, DropReason.FILTERED)
    for index in (0, 1):
        with pytest.raises(LedgerError, match=f"ticket {index} cannot be dropped: it is not live"):
            ledger.drop(index, DropReason.FILTERED)


@pytest.mark.parametrize("reason", [reason for reason in DropReason if reason is not DropReason.FAILED])
def test_what_the_learner_has_can_only_fail(reason: DropReason) -> None:
    ledger = in_phase(Phase.TAKEN)
    with pytest.raises(LedgerError, match=f"ticket 0 cannot be dropped as {reason.value}: the learner has it"):
        ledger.drop(0, reason)
    ledger.drop(0, DropReason.FAILED)
    assert ledger.settle() == ()
    assert ledger.statistics().dropped == {"failed": 1}
    assert (ledger.tally.taken, ledger.tally.live) == (0, 0)
    assert ledger.may_open()


def test_a_rollout_beyond_the_limit_cannot_be_taken() -> None:
    ledger = a_ledger(expiry=Expiry(1, OnStale.DROP))
    open_all(ledger)
    fly(ledger, 0)
    with pytest.raises(LedgerError, match="ticket 0 is 2 versions old at version 2, over max_staleness=1"):
        ledger.take([0], 2)
    assert phases(ledger)[0] is Phase.READY


def test_a_ledger_in_use_cannot_be_loaded_into() -> None:
    ledger = a_ledger()
    open_all(ledger)
    with pytest.raises(LedgerError, match="has opened tickets"):
        ledger.load_state_dict(a_ledger().state_dict())


def test_an_age_that_can_no_longer_be_kept_is_said_and_no_larger_batch_is_made() -> None:
    """A version that was published early (the run ended in the middle of it) leaves too little time."""
    ledger = a_ledger(1, 2, order=READY, expiry=Expiry(1), updates_per_version=2)
    open_all(ledger)
    fly(ledger, 0, 1, 2, 3)
    ledger.take([0], 0)
    ledger.settle()
    with pytest.raises(LedgerError, match="max_staleness=1 cannot be kept at version 1: 2 tickets born at version 0"):
        ledger.choose(1, updates_left=2)


# -- choosing ---------------------------------------------------------------------------------------


def ready_in_order(order: Order, landings: list[int], *, batch: int = 1, slots: int = 6, **more: Any) -> Ledger:
    """All slots in flight, then these land."""
    ledger = Ledger(MaxLead(slots - 1), order=order, tickets_per_batch=batch, **more)
    open_all(ledger)
    fly(ledger, *range(slots), land=False)
    for index in landings:
        ledger.land(index)
    return ledger


def test_the_oldest_goes_first_and_is_waited_for() -> None:
    ledger = ready_in_order(OLDEST, [1, 2, 3])
    assert not ledger.may_choose()
    assert ledger.choose(0) is WAIT
    assert ledger.waiting_for(0) == "the rollout of ticket 0 (order=oldest)"
    ledger.land(0)
    assert ledger.choose(0) == Choice((0,))


def test_a_batch_of_the_oldest_has_no_gaps() -> None:
    ledger = ready_in_order(OLDEST, [3, 0, 2], batch=2)
    assert not ledger.may_choose()
    assert ledger.choose(0) is WAIT
    ledger.land(1)
    assert ledger.may_choose()
    assert ledger.choose(0) == Choice((0, 1))


def test_a_window_lets_the_learner_look_past_the_oldest_missing_rollout() -> None:
    assert ready_in_order(window(2), [2, 3, 4]).choose(0) is WAIT
    assert ready_in_order(window(2), [4, 1]).choose(0) == Choice((1,))
    assert ready_in_order(window(3), [4, 2]).choose(0) == Choice((2,))
    assert ready_in_order(window(3), [2, 1]).choose(0) == Choice((1,))  # within the window, the oldest first


def test_a_window_is_counted_from_the_oldest_missing_ticket_even_when_others_were_taken() -> None:
    ledger = ready_in_order(window(3), [1, 2, 3, 4])
    ledger.take([1, 2], 0)
    assert ledger.choose(0) is WAIT
    assert ledger.waiting_for(0) == "the rollout of ticket 0 (order=window(3))"
    ledger.land(0)
    assert ledger.choose(0) == Choice((0,))


def test_first_come_is_first_served() -> None:
    ledger = ready_in_order(READY, [4, 2, 5, 0])
    served = []
    while batch := ledger.choose(0).batch:
        served += batch
        ledger.take(batch, 0)
    assert served == [4, 2, 5, 0]
    assert ledger.waiting_for(0) == "1 more of 1 rollouts"


def test_a_batch_is_listed_in_ticket_order_whatever_came_first() -> None:
    assert ready_in_order(READY, [5, 3, 1, 4], batch=3).choose(0) == Choice((1, 3, 5))


def test_expired_rollouts_are_named_and_passed_over() -> None:
    ledger = ready_in_order(READY, [2, 0], expiry=Expiry(1, OnStale.DROP))
    ledger.reissue(1)
    fly(ledger, 1, version=2)
    assert ledger.choose(2) == Choice((1,), (2, 0))
    assert ledger.choose(1) == Choice((2,))


def test_expired_rollouts_are_named_even_when_there_is_no_batch() -> None:
    ledger = ready_in_order(OLDEST, [0, 2], batch=3, expiry=Expiry(0, OnStale.REQUEUE))
    assert ledger.may_choose()
    assert ledger.choose(0) is WAIT
    assert ledger.choose(1) == Choice((), (0,))  # ticket 2 is behind one that is missing


def test_a_stale_rollout_that_is_kept_is_counted() -> None:
    ledger = ready_in_order(OLDEST, [0, 1], expiry=Expiry(1, OnStale.KEEP))
    assert ledger.choose(5) == Choice((0,))
    ledger.take([0], 5)
    ledger.take([1], 1)
    assert ledger.statistics().kept_stale == 1
    assert ledger.statistics().max_staleness == 5


def test_waiting_holds_the_learner_back_for_a_rollout_that_would_become_too_old() -> None:
    ledger = Ledger(MaxLead(1), order=READY, expiry=Expiry(1))
    open_all(ledger)
    fly(ledger, 0, 1, land=False)
    ledger.land(1)
    assert ledger.choose(0) == Choice((1,))  # one more version, and ticket 0 is still in time
    ledger.take([1], 0)
    ledger.settle()
    open_all(ledger, 1)
    fly(ledger, 2, version=1)
    assert ledger.choose(1) is WAIT
    assert ledger.waiting_for(1) == "ticket 0: tickets born at version 0 would otherwise exceed max_staleness=1"
    ledger.land(0)
    assert ledger.choose(1) == Choice((0,))


def test_nobody_waits_for_a_ticket_that_was_dropped() -> None:
    run = Run(Ledger(MaxLead(1), order=READY, expiry=Expiry(1)))
    fly(run.ledger, 0, 1, land=False)
    run.ledger.land(1)
    assert run.take() == (1,)
    run.learn()
    fly(run.ledger, 2, version=1)
    assert run.take() == ()  # ticket 0 is about to become too old
    run.ledger.drop(0, DropReason.FAILED)
    assert run.take() == (2,)


def test_waiting_never_overrules_the_order() -> None:
    """Ticket 1 would serve the limit as well as ticket 0, but the strict order wants ticket 0."""
    ledger = Ledger(MaxLead(1), order=OLDEST, expiry=Expiry(1))
    open_all(ledger)
    fly(ledger, 0, 1, land=False)
    ledger.land(1)
    assert not ledger.may_choose()
    assert ledger.choose(0) is WAIT
    assert ledger.waiting_for(0).startswith("ticket 0:")


def test_waiting_names_the_ticket_that_ages_rather_than_one_that_has_not_taken_off() -> None:
    run = Run(Ledger(MaxLead(2), order=READY, expiry=Expiry(2)))
    fly(run.ledger, 0, 1, 2, land=False)
    run.ledger.land(2)
    run.ledger.reissue(0)
    for taken in (2, 3):
        assert run.take() == (taken,)
        run.learn()
        fly(run.ledger, taken + 1, version=run.version)
    assert run.take() == ()
    assert run.ledger.waiting_for(2).startswith("ticket 1:")


def test_waiting_under_an_order_may_be_for_a_ticket_that_has_not_taken_off() -> None:
    ledger = Ledger(MaxLead(2), order=window(2), expiry=Expiry(2))
    open_all(ledger)
    fly(ledger, 0, 1, 2)
    ledger.requeue(0, 0)
    ledger.take([1], 0)
    ledger.settle()
    assert ledger.choose(2) is WAIT  # ticket 2 is due, but outside the window
    assert ledger.waiting_for(2).startswith("ticket 0:")
    fly(ledger, 0, version=2)
    assert ledger.choose(2) == Choice((2,))


def test_a_replay_takes_everything_that_is_here() -> None:
    ledger = ready_in_order(OLDEST, [3, 1], expiry=Expiry(1, OnStale.DROP), batch=4)
    assert ledger.choose_all(0) == Choice((1, 3))
    assert ledger.choose_all(2) == Choice((), (3, 1))
    assert a_ledger().choose_all(0) == WAIT


# -- the invariants, by name ------------------------------------------------------------------------


class Run:
    """The coordinator's loop without the waiting: admits, learns and publishes over a ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.version = 0
        self.updates_in_version = 0
        self.trained: list[int] = []
        self.ages: list[int] = []
        self.born: dict[int, int | None] = {}
        self.admit()

    @property
    def updates_left(self) -> int:
        return self.ledger.updates_per_version - self.updates_in_version

    def admit(self) -> list[Ticket]:
        tickets = open_all(self.ledger, self.version)
        self.born.update((ticket.index, ticket.version) for ticket in tickets)
        return tickets

    def take(self) -> tuple[int, ...]:
        """Expire and take as the coordinator's `_next_batch` does; empty when it would wait."""
        while True:
            choice = self.ledger.choose(self.version, self.updates_left)
            for index in choice.expired:
                if self.ledger.expiry.on_stale is OnStale.DROP:
                    self.ledger.drop(index, DropReason.STALE)
                    self.admit()
                else:
                    self.ledger.requeue(index, self.version)
            if choice.batch:
                for index in choice.batch:
                    span = self.ledger.entry(index).span
                    assert span is not None
                    self.ages.append(self.version - span.oldest)
                self.ledger.take(choice.batch, self.version)
                self.trained += choice.batch
                return choice.batch
            if not choice.expired:
                return ()

    def learn(self) -> None:
        """The update is over; publish if it completes a version."""
        self.updates_in_version += 1
        if not self.updates_left:
            self.version += 1
            self.updates_in_version = 0
            self.ledger.settle()
            self.admit()

    def in_phase(self, phase: Phase) -> list[int]:
        return [index for index, at in phases(self.ledger).items() if at is phase]

    def start(self, index: int) -> None:
        ticket = self.ledger.entry(index).ticket
        pinned = self.ledger.pinned_collectors is not None
        assert ticket.version is None or pinned
        version = ticket.version if pinned else self.version
        assert version is not None
        self.ledger.start(index, version, (ticket.collector or 0) if pinned else 0)

    def land_everything(self) -> None:
        for index in self.in_phase(Phase.OPEN):
            self.start(index)
        for index in self.in_phase(Phase.IN_FLIGHT):
            self.ledger.land(index)

    def shuffle(self, random: Random, updates: int) -> None:
        """Random progress until so many updates are made: landings in any order, some failures."""
        made = 0
        while made < updates:
            move = random.choice(["start", "land", "land", "fail", "learn", "learn"])
            if move == "learn":
                if batch := self.take():
                    if random.random() < 0.1:
                        self.lose_some(batch, random)
                        continue
                    self.learn()
                    made += 1
                continue
            phase = Phase.OPEN if move == "start" else Phase.IN_FLIGHT
            if candidates := self.in_phase(phase):
                index = random.choice(candidates)
                if move == "start":
                    self.start(index)
                elif move == "land":
                    self.ledger.land(index)
                elif random.random() < 0.3:
                    self.ledger.reissue(index)

    def lose_some(self, batch: tuple[int, ...], random: Random) -> None:
        """The learner could not be given the batch: it is put back, and what is lost is collected again."""
        self.ledger.put_back(batch, self.version)
        del self.trained[-len(batch) :], self.ages[-len(batch) :]
        for index in batch:
            if random.random() < 0.5:
                self.ledger.lose(index, self.version)


def test_every_ticket_settles_exactly_once() -> None:
    run = Run(a_ledger(2, 2, tickets_per_batch=2, order=READY, expiry=Expiry(1, OnStale.DROP)))
    run.shuffle(Random(0), updates=50)
    assert len(set(run.trained)) == len(run.trained) == 100
    for index in run.trained[:90]:
        assert not run.ledger.is_live(index)
        with pytest.raises(LedgerError, match=f"ticket {index} cannot be dropped: it is not live"):
            run.ledger.drop(index, DropReason.CLOSED)
        with pytest.raises(LedgerError, match=f"cannot take ticket {index}: it is not live"):
            run.ledger.take([index], run.version)
    run.ledger.close()
    assert run.ledger.statistics().closes
    assert run.ledger.statistics().dropped["stale"] > 0


def test_settling_twice_learns_nothing_twice() -> None:
    ledger = in_phase(Phase.TAKEN)
    assert ledger.settle() == (0,)
    assert ledger.settle() == ()
    assert ledger.tally.learned == 1


@pytest.mark.parametrize("lead", [0, 0.5, 1, 3])
@pytest.mark.parametrize("per_batch", [1, 3])
def test_slots_are_never_exceeded(lead: float, per_batch: int) -> None:
    rule = MaxLead(lead, per_batch * 2)
    ledger = Ledger(rule, order=READY, tickets_per_batch=per_batch, updates_per_version=2)
    run = Run(ledger)
    random = Random(1)
    for _ in range(60):
        run.shuffle(random, updates=1)
        assert ledger.tally.live <= rule.slots
        assert ledger.open(run.version) is None  # all that are free have been used


def test_a_slot_comes_back_when_its_version_is_published_and_not_before() -> None:
    ledger = in_phase(Phase.READY)
    ledger.take([0], 0)
    assert not ledger.may_open()
    ledger.settle()
    assert ledger.may_open()


@pytest.mark.parametrize("phase", [Phase.OPEN, Phase.IN_FLIGHT, Phase.READY], ids=lambda p: p.value)
@pytest.mark.parametrize("reason", DropReason, ids=lambda r: r.value)
def test_dropping_frees_the_slot(phase: Phase, reason: DropReason) -> None:
    ledger = in_phase(phase)
    assert not ledger.may_open()
    ledger.drop(0, reason)
    assert ledger.may_open()
    assert (ledger.tally.live, ledger.tally.ready, ledger.tally.waiting_steps) == (0, 0, 0)
    assert ledger.statistics().dropped == {reason.value: 1}
    ticket = ledger.open(0)
    assert ticket is not None
    assert ticket.index == 1


def test_a_smaller_lead_takes_effect_as_tickets_settle() -> None:
    rule = MaxLead(3)
    run = Run(Ledger(rule))
    run.land_everything()
    rule.retune(1)
    live = []
    for _ in range(5):
        assert run.take()
        run.learn()
        run.land_everything()
        live.append(run.ledger.tally.live)
    assert live == [3, 2, 2, 2, 2]


def test_staleness_is_measured_when_taken_and_never_exceeds_the_limit() -> None:
    ledger = ready_in_order(OLDEST, [0, 1, 2], expiry=Expiry(2, OnStale.DROP))
    ledger.land(3, span=Span(2, 3))
    assert ledger.statistics().staleness == {}  # landing measures nothing
    ledger.take([0], 0)
    ledger.take([1], 2)
    with pytest.raises(LedgerError, match="ticket 2 is 3 versions old"):
        ledger.take([2], 3)
    ledger.take([3], 4)
    ledger.settle()
    assert ledger.statistics().staleness == {0: 1, 2: 2}


@stable
@given(st.integers(0, 2**32), st.sampled_from(ORDERS), st.sampled_from(EXPIRIES), st.sampled_from([0, 0.5, 1, 2]))
def test_no_limit_is_exceeded_whatever_the_order_and_the_timing(
    seed: int, order: Order, expiry: Expiry, lead: float
) -> None:
    rule = MaxLead(lead, 2)
    if expiry.waits:
        expiry = Expiry(rule.staleness_bound(), OnStale.WAIT)
    run = Run(Ledger(rule, order=order, expiry=expiry, updates_per_version=2))
    run.shuffle(Random(seed), updates=20)
    if expiry.max_staleness is not None and expiry.on_stale is not OnStale.KEEP:
        assert max(run.ages) <= expiry.max_staleness
    if order.overtakers is not None:
        assert max(run.ages) <= rule.staleness_bound(order.overtakers)
    assert run.ledger.statistics().staleness == Counter(run.ages)


def test_the_staleness_bound_is_reached_when_everyone_goes_before_the_slow_ticket_who_may() -> None:
    rule = MaxLead(2)
    run = Run(Ledger(rule, order=window(4)))
    fly(run.ledger, 2, land=False)  # two older tickets are live; three younger ones will overtake
    for index in (0, 1, 3, 4, 5):
        fly(run.ledger, index, version=run.version)
        assert run.take() == (index,)
        run.learn()
    fly(run.ledger, 6, version=run.version)
    assert run.take() == ()
    run.ledger.land(2)
    assert run.take() == (2,)
    assert run.ages[-1] == rule.staleness_bound(overtakers=3) == 5


@stable
@given(st.integers(0, 2**32), st.sampled_from(ORDERS), st.sampled_from([1, 1.5, 3]))
def test_resume_keeps_the_bound(seed: int, order: Order, lead: float) -> None:
    rule = MaxLead(lead, 2)
    limit = rule.staleness_bound(order.overtakers or 0)
    random = Random(seed)
    run = Run(Ledger(rule, order=order, expiry=Expiry(limit), updates_per_version=2))
    for _ in range(4):
        run.shuffle(random, updates=random.randrange(1, 6))
        assert run.ledger.tally.live <= rule.slots
        before = run.ledger.tally
        resumed = like(run.ledger)
        resumed.load_state_dict(through_json(run.ledger))
        assert resumed.tally == before
        run.ledger = resumed
        assert run.admit() == []  # no slot was won by restarting
    run.shuffle(random, updates=10)
    assert max(run.ages) <= limit
    assert len(run.trained) == len(set(run.trained))


def test_what_was_in_flight_is_open_after_a_resume_and_asks_the_same_question() -> None:
    ledger = ready_in_order(READY, [4, 1])
    ledger.reissue(0)
    ledger.take([4], 0)
    resumed = like(ledger)
    resumed.load_state_dict(through_json(ledger))
    assert phases(resumed) == {
        0: Phase.OPEN,
        1: Phase.READY,
        2: Phase.OPEN,
        3: Phase.OPEN,
        4: Phase.TAKEN,
        5: Phase.OPEN,
    }
    tickets = {entry.ticket.index: entry.ticket for entry in resumed.live()}
    assert tickets[0] == Ticket(0, derive_seed(0, "ticket", 0), attempt=1)
    assert tickets[2] == Ticket(2, derive_seed(0, "ticket", 2))
    assert resumed.settle() == (4,)
    opened = resumed.open(1)
    assert opened == Ticket(6, derive_seed(0, "ticket", 6))


def test_a_pinned_ticket_keeps_its_birth_through_a_resume() -> None:
    ledger = a_ledger(lead=2, pinned_collectors=2, seed=3)
    tickets = open_all(ledger, version=4)
    ledger.start(0, 4, 0)
    resumed = like(ledger)
    resumed.load_state_dict(through_json(ledger))
    assert [entry.ticket for entry in resumed.live()] == tickets
    assert set(phases(resumed).values()) == {Phase.OPEN}


def test_arrivals_keep_their_place_in_the_line_through_a_resume() -> None:
    ledger = ready_in_order(READY, [4, 1, 3])
    resumed = like(ledger)
    resumed.load_state_dict(through_json(ledger))
    assert resumed.choose(0) == ledger.choose(0) == Choice((4,))


def test_a_resumed_ledger_still_knows_which_ready_rollout_is_about_to_become_too_old() -> None:
    run = Run(Ledger(MaxLead(2), order=READY, expiry=Expiry(2)))
    fly(run.ledger, 2, land=False)
    for index in (0, 1):
        fly(run.ledger, index, version=run.version)
        assert run.take() == (index,)
        run.learn()
    fly(run.ledger, 3, 4, version=2)
    run.ledger.land(2)  # the last to arrive, and two versions old
    resumed = like(run.ledger)
    resumed.load_state_dict(through_json(run.ledger))
    assert resumed.choose(2) == run.ledger.choose(2) == Choice((2,))
    resumed.take([2], 2)
    assert resumed.choose(3) == Choice((3,))


@pytest.mark.parametrize("lead", [0, 0.5, 2])
@pytest.mark.parametrize(("per_batch", "updates"), [(1, 7), (3, 5), (4, 1)])
def test_nothing_is_collected_that_can_no_longer_be_learned(lead: float, per_batch: int, updates: int) -> None:
    budget = Budget(max_tickets=updates * per_batch)
    run = Run(Ledger(AllOf(MaxLead(lead, per_batch), budget), order=READY, tickets_per_batch=per_batch))
    random = Random(2)
    for update in range(updates):
        if update == updates // 2 and (late := run.in_phase(Phase.OPEN) + run.in_phase(Phase.IN_FLIGHT)):
            run.ledger.drop(late[0], DropReason.FAILED)  # made up for by one more ticket
            run.admit()
        run.shuffle(random, updates=1)
    end = run.ledger.statistics()
    assert (end.learned, end.live) == (updates * per_batch, 0)
    assert end.opened == end.learned + sum(end.dropped.values())
    assert not run.ledger.may_open()


@stable
@given(
    st.integers(0, 2**32),
    st.sampled_from([0, 0.3, 0.5, 1, 1.75, 3]),
    st.integers(1, 4),
    st.integers(1, 200),
    st.floats(0, 0.3),
)
def test_a_budget_of_steps_never_leaves_the_learner_before_half_a_batch(
    seed: int, lead: float, per_batch: int, max_steps: int, drop_share: float
) -> None:
    """Whatever lands and is dropped: until the steps are reached, a batch can be made of what is live."""
    random = Random(seed)
    budget = Budget(max_steps=max_steps, tickets_per_batch=per_batch)
    run = Run(Ledger(AllOf(MaxLead(lead, per_batch), budget), tickets_per_batch=per_batch))
    while run.ledger.tally.inserted < max_steps:
        for index in run.in_phase(Phase.OPEN):
            run.start(index)
        flying = run.in_phase(Phase.IN_FLIGHT)
        for index in random.sample(flying, len(flying)):
            run.ledger.land(index, steps=random.randrange(1, 20))
            if random.random() < drop_share:
                run.ledger.drop(index, DropReason.FILTERED)
                run.admit()
        if run.take():
            run.learn()
        else:
            assert run.in_phase(Phase.OPEN), f"stuck with {run.ledger.tally}"


@pytest.mark.parametrize("lead", [0, 0.1, 0.5, 1, 1.3, 4])
@pytest.mark.parametrize(("per_batch", "publish_every"), [(1, 1), (3, 1), (1, 4), (2, 5), (10, 1)])
def test_a_ticket_is_born_with_the_newest_snapshot(lead: float, per_batch: int, publish_every: int) -> None:
    """Pinned: openings follow from the order of learning alone, so the birth of ticket k has a formula."""
    per_version = per_batch * publish_every
    rule = MaxLead(lead, per_version)
    births = []
    for seed in (0, 1):  # two timings
        run = Run(Ledger(rule, tickets_per_batch=per_batch, updates_per_version=publish_every, pinned_collectors=3))
        run.shuffle(Random(seed), updates=6 * publish_every)
        births.append(run.born)
    assert births[0] == births[1]
    for index, version in births[0].items():
        assert version == max(0, math.ceil((index + 1 - rule.slots) / per_version))
    assert len(births[0]) == rule.slots + 6 * per_version


def test_a_free_ticket_takes_off_with_the_newest_snapshot_there_is_then() -> None:
    run = Run(a_ledger(lead=1))
    run.start(0)
    run.ledger.land(0)
    run.take()
    run.learn()
    run.start(1)  # opened at version 0
    assert run.ledger.entry(1).ticket.version == 1


# -- looking without touching -----------------------------------------------------------------------


@stable
@given(st.integers(0, 2**32), st.sampled_from(ORDERS), st.sampled_from(EXPIRIES), st.integers(1, 3))
def test_choosing_changes_nothing_and_a_quick_no_means_no(
    seed: int, order: Order, expiry: Expiry, per_batch: int
) -> None:
    rule = MaxLead(1, per_batch)
    if expiry.waits:
        expiry = Expiry(1)
    random = Random(seed)
    run = Run(Ledger(rule, order=order, expiry=expiry, tickets_per_batch=per_batch))
    for _ in range(10):
        run.shuffle(random, updates=random.randrange(2))
        for index in run.in_phase(Phase.OPEN):
            run.start(index)
        for index in run.in_phase(Phase.IN_FLIGHT):
            if random.random() < 0.4:
                run.ledger.land(index)
            before = run.ledger.state_dict()
            said = run.ledger.may_choose()
            choice = run.ledger.choose(run.version, run.updates_left)
            run.ledger.waiting_for(run.version, run.updates_left)
            assert run.ledger.choose(run.version, run.updates_left) == choice
            assert run.ledger.state_dict() == before
            assert said or choice == WAIT


# -- statistics -------------------------------------------------------------------------------------


def test_an_empty_run_has_empty_statistics() -> None:
    empty = a_ledger().statistics()
    assert empty.closes
    assert (empty.mean_staleness, empty.max_staleness, empty.length_bias) == (0, 0, 0)
    assert empty.staleness_quantile(0.5) == 0


@stable
@given(
    st.lists(st.tuples(st.integers(0, 9), st.floats(0.5, 100), st.booleans()), min_size=1, max_size=30),
    st.sampled_from([0, 0.1, 0.25, 0.5, 0.9, 0.95, 1]),
)
def test_statistics_are_what_direct_computation_gives(rollouts: list[tuple[int, float, bool]], share: float) -> None:
    """Rollouts of (age, length, is it taken or dropped), all taken at version 9."""
    ledger = Ledger(MaxLead(len(rollouts)))
    for index, (age, length, is_taken) in enumerate(rollouts):
        ledger.open(0)
        ledger.start(index, 9 - age, 0)
        ledger.land(index, steps=index + 1, length=length)
        if is_taken:
            ledger.take([index], 9)
        else:
            ledger.drop(index, DropReason.FILTERED)
    ledger.settle()
    seen = ledger.statistics()
    taken = [(age, length) for age, length, is_taken in rollouts if is_taken]
    offered_length = sum(length for _, length, _ in rollouts) / len(rollouts)
    assert seen.offered_length == pytest.approx(offered_length)
    assert seen.steps == sum(index + 1 for index, (_, _, is_taken) in enumerate(rollouts) if is_taken)
    assert (seen.opened, seen.learned, seen.live) == (len(rollouts), len(taken), 0)
    assert seen.closes
    if not taken:
        assert seen.trained_length == 0
        return
    ages = sorted(age for age, _ in taken)
    assert seen.staleness == Counter(ages)
    assert list(seen.staleness) == sorted(set(ages))
    assert seen.mean_staleness == pytest.approx(sum(ages) / len(ages))
    assert seen.max_staleness == max(ages)
    enough = (age for age in ages if sum(other <= age for other in ages) >= share * len(ages) - 1e-9)
    assert seen.staleness_quantile(share) == next(enough)
    trained_length = sum(length for _, length in taken) / len(taken)
    assert seen.trained_length == pytest.approx(trained_length)
    assert seen.length_bias == pytest.approx(trained_length / offered_length - 1)


def test_the_length_bias_shows_that_short_rollouts_go_first() -> None:
    ledger = ready_in_order(READY, [])
    ledger.land(5, length=1)
    ledger.land(0, length=3)
    ledger.take([5], 0)
    assert ledger.statistics().length_bias == pytest.approx(1 / 2 - 1)


def test_statistics_are_a_copy() -> None:
    ledger = in_phase(Phase.READY)
    before = ledger.statistics()
    ledger.take([0], 0)
    assert before.staleness == {}
    assert before.steps == 0


# -- a machine that tries everything ----------------------------------------------------------------


class LedgerMachine(RuleBasedStateMachine):
    """A ledger and its learner under random legal moves, next to a model of plain dictionaries."""

    on_stale: OnStale | None  # None: no limit; each has a test case of its own below

    @initialize(
        lead=st.sampled_from([0, 0.25, 0.5, 1, 1.5, 2, 3]),
        order=st.sampled_from(ORDERS),
        limit=st.integers(0, 3),
        per_batch=st.integers(1, 3),
        updates_per_version=st.integers(1, 3),
        room=st.none() | st.integers(0, 4),
        seed=st.integers(0, 3),
    )
    def begin(
        self,
        lead: float,
        order: Order,
        limit: int,
        per_batch: int,
        updates_per_version: int,
        room: int | None,
        seed: int,
    ) -> None:
        self.rule = MaxLead(lead, per_batch * updates_per_version)
        if self.on_stale is None:
            expiry = Expiry()
        elif self.on_stale is OnStale.WAIT:
            expiry = Expiry(self.rule.staleness_bound() + max(0, limit - 2), self.on_stale)
            check_expiry(self.rule, expiry)
        else:
            expiry = Expiry(limit, self.on_stale)
        self.capacity = math.inf if room is None else per_batch + room
        buffer = [] if room is None else [Capacity(per_batch + room, tickets_per_batch=per_batch)]
        self.ledger = Ledger(
            AllOf(self.rule, *buffer),
            order=order,
            expiry=expiry,
            tickets_per_batch=per_batch,
            updates_per_version=updates_per_version,
            seed=seed,
        )
        self.version = 0
        self.updates_in_version = 0
        self.is_learning = False
        self.batch: tuple[int, ...] = ()
        # the model
        self.phase: dict[int, Phase] = {}
        self.seed: dict[int, int] = {}
        self.birth: dict[int, int] = {}
        self.oldest: dict[int, int] = {}
        self.steps: dict[int, int] = {}
        self.arrivals: list[int] = []
        self.drops: Counter[str] = Counter()
        self.ages: list[int] = []
        self.reissued = self.requeued = self.lost = 0
        self.inserted = 0
        self.room = self.capacity  # more than the capacity after a batch was put back, until it has drained
        self.admit()

    # -- the model's opinion -----------------------------------------------------------------------

    def at(self, *wanted: Phase) -> list[int]:
        return [index for index, phase in sorted(self.phase.items()) if phase in wanted]

    @property
    def live(self) -> list[int]:
        return self.at(Phase.OPEN, Phase.IN_FLIGHT, Phase.READY, Phase.TAKEN)

    @property
    def updates_left(self) -> int:
        return self.ledger.updates_per_version - self.updates_in_version

    def takeable(self) -> list[int]:
        """By the definition of the orders."""
        order = self.ledger.order
        if order.is_first_come:
            return list(self.arrivals)
        missing = min(self.at(Phase.OPEN, Phase.IN_FLIGHT), default=math.inf)
        return [index for index in self.at(Phase.READY) if index < missing + order.window]

    def can_keep_the_limit(self, untaken: list[int], updates_left: int) -> bool:
        """Earliest deadline first: of those due by each version there are no more than batches can hold."""
        limit = self.ledger.expiry.max_staleness
        assert limit is not None
        for due in {self.birth[index] + limit for index in untaken}:
            batches = updates_left + (due - self.version) * self.ledger.updates_per_version
            if sum(self.birth[i] + limit <= due for i in untaken) > batches * self.ledger.tickets_per_batch:
                return False
        return True

    def expected_without_waiting(self) -> Choice:
        expiry, wanted = self.ledger.expiry, self.ledger.tickets_per_batch
        batch: list[int] = []
        expired: list[int] = []
        for index in self.takeable():
            too_old = expiry.max_staleness is not None and self.version - self.oldest[index] > expiry.max_staleness
            if len(batch) == wanted:
                break
            if too_old and expiry.on_stale in (OnStale.DROP, OnStale.REQUEUE):
                expired.append(index)
            else:
                batch.append(index)
        return Choice(tuple(sorted(batch)) if len(batch) == wanted else (), tuple(expired))

    def check_choice(self, choice: Choice) -> None:
        if not self.ledger.expiry.waits:
            assert choice == self.expected_without_waiting()
            return
        assert not choice.expired
        started = self.at(Phase.IN_FLIGHT, Phase.READY)
        if choice.batch:
            assert len(choice.batch) == self.ledger.tickets_per_batch
            assert set(choice.batch) <= set(self.takeable())
            left = [index for index in started if index not in choice.batch]
            assert self.can_keep_the_limit(left, self.updates_left - 1)
        else:  # it waits only if even the most urgent batch would not do
            urgent = sorted(self.takeable(), key=lambda index: self.birth[index])[: self.ledger.tickets_per_batch]
            left = [index for index in started if index not in urgent]
            is_enough = len(urgent) == self.ledger.tickets_per_batch
            assert not (is_enough and self.can_keep_the_limit(left, self.updates_left - 1))

    # -- moves -------------------------------------------------------------------------------------

    def admit(self) -> None:
        while (ticket := self.ledger.open(self.version)) is not None:
            assert ticket.index == len(self.phase)
            self.phase[ticket.index] = Phase.OPEN
            self.seed[ticket.index] = ticket.seed

    def reopen(self, ticket: Ticket) -> None:
        assert ticket.seed == self.seed[ticket.index]
        assert ticket.version is None
        self.phase[ticket.index] = Phase.OPEN

    @precondition(lambda self: self.at(Phase.OPEN))
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from(self.at(Phase.OPEN)))
        ticket = self.ledger.start(index, self.version, 0)
        assert (ticket.version, ticket.seed) == (self.version, self.seed[index])
        self.phase[index] = Phase.IN_FLIGHT
        self.birth[index] = self.version

    @rule()
    def start_all(self) -> None:
        for index in self.at(Phase.OPEN):
            self.ledger.start(index, self.version, 0)
            self.phase[index] = Phase.IN_FLIGHT
            self.birth[index] = self.version

    @precondition(lambda self: self.at(Phase.IN_FLIGHT))
    @rule(data=st.data(), steps=st.integers(1, 5))
    def land(self, data: st.DataObject, steps: int) -> None:
        index = data.draw(st.sampled_from(self.at(Phase.IN_FLIGHT)))
        oldest = data.draw(st.just(self.birth[index]) | st.integers(self.birth[index], self.version))
        self.ledger.land(index, span=Span(oldest, self.version), steps=steps)
        self.phase[index] = Phase.READY
        self.oldest[index], self.steps[index] = oldest, steps
        self.arrivals.append(index)

    @precondition(lambda self: self.at(Phase.IN_FLIGHT))
    @rule(data=st.data())
    def reissue(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from(self.at(Phase.IN_FLIGHT)))
        self.reopen(self.ledger.reissue(index))
        self.reissued += 1

    @precondition(lambda self: self.at(Phase.READY))
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        self.requeue_one(data.draw(st.sampled_from(self.at(Phase.READY))))

    def requeue_one(self, index: int) -> None:
        self.reopen(self.ledger.requeue(index, self.version))
        self.arrivals.remove(index)
        self.requeued += 1

    @precondition(lambda self: self.at(Phase.READY))
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """A rollout turns out to be gone while it waits (when it is saved, say)."""
        self.lose_one(data.draw(st.sampled_from(self.at(Phase.READY))))

    def lose_one(self, index: int) -> None:
        self.reopen(self.ledger.lose(index, self.version))
        self.arrivals.remove(index)
        self.lost += 1

    @precondition(lambda self: self.is_learning)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        """Some of the batch is gone, so the learner never got it: the rest of it is ready again."""
        lost = data.draw(st.sets(st.sampled_from(self.batch)))
        self.ledger.put_back(self.batch, self.version)
        self.is_learning = False
        for index in self.batch:
            self.phase[index] = Phase.READY
            self.inserted -= self.steps[index]
        self.arrivals = [*self.batch, *self.arrivals]
        del self.ages[-len(self.batch) :]
        for index in sorted(lost):
            self.lose_one(index)
        self.room = max(self.room, len(self.live) - len(self.at(Phase.TAKEN)))

    @precondition(lambda self: self.at(Phase.OPEN, Phase.IN_FLIGHT, Phase.READY))
    @rule(data=st.data(), reason=st.sampled_from(DropReason))
    def drop(self, data: st.DataObject, reason: DropReason) -> None:
        self.drop_one(data.draw(st.sampled_from(self.at(Phase.OPEN, Phase.IN_FLIGHT, Phase.READY))), reason)

    def drop_one(self, index: int, reason: DropReason) -> None:
        self.ledger.drop(index, reason)
        if self.phase[index] is Phase.READY:
            self.arrivals.remove(index)
        self.phase[index] = Phase.DROPPED
        self.drops[reason.value] += 1
        self.admit()

    @precondition(lambda self: not self.is_learning)
    @rule()
    def take(self) -> None:
        """The coordinator's `_next_batch`, until it would wait."""
        while True:
            choice = self.ledger.choose(self.version, self.updates_left)
            for index in choice.expired:
                if self.ledger.expiry.on_stale is OnStale.DROP:
                    self.drop_one(index, DropReason.STALE)
                else:
                    self.requeue_one(index)
            if choice.batch:
                break
            if not choice.expired:
                return
        self.ledger.take(choice.batch, self.version)
        for index in choice.batch:
            self.phase[index] = Phase.TAKEN
            self.arrivals.remove(index)
            self.inserted += self.steps[index]
            self.ages.append(self.version - self.oldest[index])
        self.batch = choice.batch
        self.is_learning = True
        self.admit()

    @precondition(lambda self: self.is_learning)
    @rule()
    def learn(self) -> None:
        """The update ends; the last one of a version publishes it."""
        self.is_learning = False
        self.updates_in_version += 1
        if not self.updates_left:
            self.version += 1
            self.updates_in_version = 0
            assert sorted(self.ledger.settle()) == self.at(Phase.TAKEN)
            for index in self.at(Phase.TAKEN):
                self.phase[index] = Phase.LEARNED
            self.admit()

    @precondition(lambda self: self.is_learning)
    @rule()
    def fail_to_learn(self) -> None:
        """The update is lost with its batch, and counts for no version."""
        self.is_learning = False
        for index in self.batch:
            self.drop_one(index, DropReason.FAILED)

    @precondition(lambda self: not self.is_learning)
    @rule()
    def restart(self) -> None:
        """Save, lose everything, load: what was in flight is open again, the rest is as it was."""
        before = self.ledger.statistics()
        resumed = like(self.ledger)
        resumed.load_state_dict(through_json(self.ledger))
        assert resumed.tally == self.ledger.tally
        assert resumed.statistics() == before
        self.ledger = resumed
        for index in self.at(Phase.IN_FLIGHT):
            self.phase[index] = Phase.OPEN
        self.admit()

    # -- always ------------------------------------------------------------------------------------

    @invariant()
    def the_account_closes(self) -> None:
        seen = self.ledger.statistics()
        assert seen.closes
        assert (seen.opened, seen.live) == (len(self.phase), len(self.live))
        assert seen.learned == len(self.at(Phase.LEARNED))
        assert seen.dropped == self.drops
        assert (seen.reissued, seen.requeued, seen.lost) == (self.reissued, self.requeued, self.lost)
        assert self.ledger.tally.opened == seen.learned + self.ledger.tally.dropped + self.ledger.tally.live

    @invariant()
    def every_slot_is_used_and_none_exceeded(self) -> None:
        untaken = len(self.live) - len(self.at(Phase.TAKEN))
        assert len(self.live) <= self.rule.slots
        assert untaken <= self.room
        assert len(self.live) == self.rule.slots or untaken >= self.capacity
        self.room = max(self.capacity, min(self.room, untaken))

    @invariant()
    def the_phases_agree(self) -> None:
        assert phases(self.ledger) == {index: self.phase[index] for index in self.live}
        tally = self.ledger.tally
        assert tally.ready == len(self.at(Phase.READY)) == len(self.arrivals)
        assert tally.taken == len(self.at(Phase.TAKEN))
        assert tally.untaken == len(self.at(Phase.OPEN, Phase.IN_FLIGHT, Phase.READY))
        assert tally.waiting_steps == sum(self.steps[index] for index in self.arrivals)
        assert tally.inserted == self.inserted

    @invariant()
    def no_limit_is_exceeded(self) -> None:
        seen, expiry, order = self.ledger.statistics(), self.ledger.expiry, self.ledger.order
        assert seen.staleness == Counter(self.ages)
        over = sum(expiry.is_stale(age) for age in self.ages)
        assert seen.kept_stale == over
        if expiry.on_stale is not OnStale.KEEP:
            assert over == 0
        if order.overtakers is not None and expiry.max_staleness is None:
            assert seen.max_staleness <= self.rule.staleness_bound(order.overtakers)

    @invariant()
    def the_choice_is_right_changes_nothing_and_a_quick_no_means_no(self) -> None:
        before = self.ledger.state_dict()
        if not self.is_learning:
            choice = self.ledger.choose(self.version, self.updates_left)
            assert self.ledger.choose(self.version, self.updates_left) == choice
            self.check_choice(choice)
            assert self.ledger.may_choose() or choice == WAIT
            assert self.ledger.waiting_for(self.version, self.updates_left)
        assert self.ledger.state_dict() == before

    @invariant()
    def waiting_never_ends_in_a_corner(self) -> None:
        """When what is under way has landed, there is a batch, if there are enough for one."""
        if self.is_learning or not self.ledger.expiry.waits:
            return
        imagined = copy.deepcopy(self.ledger)
        for index in self.at(Phase.IN_FLIGHT):
            imagined.land(index)
        if imagined.order.is_first_come:
            is_enough = imagined.tally.ready >= imagined.tickets_per_batch
            assert bool(imagined.choose(self.version, self.updates_left).batch) == is_enough
        for index in self.at(Phase.OPEN):
            fly(imagined, index, version=self.version)
        assert imagined.choose(self.version, self.updates_left).batch

    def teardown(self) -> None:
        """From wherever the machine stopped: resume from a checkpoint, and learn everything there is."""
        if not hasattr(self, "ledger"):
            return
        if self.is_learning:
            self.learn()
        self.restart()
        last = self.version + 3 + self.rule.slots
        while self.version < last:
            self.start_all()
            for index in self.at(Phase.IN_FLIGHT):
                self.ledger.land(index)
                self.phase[index] = Phase.READY
                self.oldest[index], self.steps[index] = self.birth[index], 1
                self.arrivals.append(index)
            self.take()
            if self.is_learning:
                self.learn()
            else:
                assert self.at(Phase.OPEN), "everything is here, and nothing can be learned from"
            self.no_limit_is_exceeded()
        self.the_account_closes()
        assert set(self.ledger.close()) == set(self.live)
        assert self.ledger.statistics().closes


@pytest.mark.parametrize("on_stale", [None, *OnStale], ids=lambda o: o.value if o else "no limit")
def test_every_legal_history_leaves_the_ledger_and_the_model_in_agreement(on_stale: OnStale | None) -> None:
    run_state_machine_as_test(
        type("Machine", (LedgerMachine,), {"on_stale": on_stale}),
        settings=settings(
            max_examples=80,
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
