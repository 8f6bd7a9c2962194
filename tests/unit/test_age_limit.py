"""Age in seconds and memory in bytes: what the ledger decides when it is told the time, and what the rule lets open."""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.ledger import Ledger
from headway.core.ledger_choosing import Choice
from headway.core.ledger_live_tickets import LedgerError
from headway.core.rules import AllOf, Bytes, MaxLead, Tally
from headway.core.rules_order import OLDEST, READY, Expiry, OnStale, Order, window
from headway.core.types import DropReason, Phase, size_of

stable = settings(max_examples=80, deadline=None, derandomize=True)
DISCARDS = [OnStale.DROP, OnStale.REQUEUE]


def landed(*times_s: float, on_stale: OnStale = OnStale.DROP, limit_s: float = 10.0, **more: Any) -> Ledger:
    """A ledger whose tickets landed at these times."""
    ledger = Ledger(MaxLead(len(times_s) - 1), expiry=Expiry(None, on_stale, limit_s), **more)
    for index, time_s in enumerate(times_s):
        ledger.open(0)
        ledger.start(index, 0, 0)
        ledger.land(index, now_s=time_s)
    return ledger


# -- the limit --------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), float("inf")])
def test_a_limit_in_seconds_is_a_positive_number(limit: float) -> None:
    with pytest.raises(ValueError, match="max_age_s must be a finite number > 0 or None, received"):
        Expiry(None, OnStale.DROP, limit)


def test_waiting_cannot_keep_a_limit_in_seconds() -> None:
    with pytest.raises(ValueError, match=r"max_age_s=5 with on_stale='wait' cannot hold: .* choose on_stale=drop, req"):
        Expiry(3, OnStale.WAIT, 5.0)


@pytest.mark.parametrize("on_stale", DISCARDS, ids=lambda p: p.value)
def test_a_rollout_that_waited_too_long_is_named_and_passed_over(on_stale: OnStale) -> None:
    ledger = landed(0.0, 6.0, 11.0, order=READY, tickets_per_batch=2, on_stale=on_stale)
    assert ledger.choose(0, now_s=10.0) == Choice((0, 1))
    assert ledger.choose(0, now_s=10.5) == Choice((1, 2), (0,))
    assert ledger.choose(0, now_s=20.0) == Choice((), (0, 1))
    assert ledger.choose_all(0, now_s=20.0) == Choice((2,), (0, 1))
    assert ledger.too_old(0, 0, now_s=20.0) is DropReason.EXPIRED
    assert ledger.too_old(2, 0, now_s=20.0) is None


def test_the_limit_in_versions_is_named_first() -> None:
    expiry = Expiry(1, OnStale.DROP, 10.0)
    assert expiry.reason(2, 11.0) is DropReason.STALE
    assert expiry.reason(1, 11.0) is DropReason.EXPIRED
    assert expiry.reason(1, 10.0) is None


def test_taking_what_waited_too_long_is_refused() -> None:
    ledger = landed(0.0)
    with pytest.raises(LedgerError, match=r"ticket 0 landed 10\.001 s ago, over max_age_s=10"):
        ledger.take([0], 0, now_s=10.001)
    assert ledger.entry(0).phase is Phase.READY
    ledger.take([0], 0, now_s=10.0)


def test_what_is_kept_in_spite_of_its_age_is_counted() -> None:
    ledger = landed(0.0, 1.0, on_stale=OnStale.KEEP)
    assert ledger.choose(0, now_s=30.0) == Choice((0,))
    ledger.take([0], 0, now_s=30.0)
    ledger.take([1], 0, now_s=2.0)
    found = ledger.statistics()
    assert (found.kept_expired, found.kept_stale) == (1, 0)
    assert (found.mean_age_s, found.max_age_s) == (15.5, 30.0)


def test_a_requeued_rollout_is_new_when_it_lands_again() -> None:
    ledger = landed(0.0, on_stale=OnStale.REQUEUE)
    ledger.requeue(0, 0)
    ledger.start(0, 3, 0)
    ledger.land(0, now_s=50.0)
    assert ledger.choose(3, now_s=55.0) == Choice((0,))


def test_what_is_put_back_was_never_taken() -> None:
    ledger = landed(0.0, 2.0, tickets_per_batch=2)
    ledger.take([0, 1], 0, now_s=9.0)
    assert ledger.statistics().max_age_s == 9.0
    ledger.put_back([0, 1], 0)
    assert (ledger.statistics().mean_age_s, ledger.statistics().max_age_s) == (0.0, 0.0)
    assert ledger.choose(0, now_s=12.0) == Choice((), (0,))  # ticket 1 is ten seconds old


def test_what_is_kept_and_put_back_is_counted_when_it_is_taken_for_good() -> None:
    ledger = landed(0.0, on_stale=OnStale.KEEP)
    ledger.take([0], 0, now_s=20.0)
    ledger.put_back([0], 0)
    assert ledger.statistics().kept_expired == 0
    ledger.take([0], 0, now_s=25.0)
    ledger.settle()
    assert (ledger.statistics().kept_expired, ledger.statistics().max_age_s) == (1, 25.0)


def test_the_time_a_run_is_down_makes_no_rollout_older() -> None:
    ledger = landed(0.0, 4.0, 8.0, order=READY)
    ledger.take([0], 0, now_s=9.0)
    state = json.loads(json.dumps(ledger.state_dict(now_s=9.0)))
    resumed = Ledger(ledger.rule, order=READY, expiry=ledger.expiry)
    resumed.load_state_dict(state, now_s=1000.0)
    assert resumed.statistics() == ledger.statistics()
    assert resumed.choose(0, now_s=1005.0) == Choice((1,))  # five seconds old then, five more now
    assert resumed.choose(0, now_s=1005.5) == Choice((2,), (1,))
    resumed.settle()
    assert resumed.statistics().max_age_s == 9.0


def test_dropping_by_age_shows_in_the_length_bias() -> None:
    """Long rollouts land first here and wait longest: dropping them leaves short ones, and the price is seen."""
    ledger = Ledger(MaxLead(3), order=READY, expiry=Expiry(None, OnStale.DROP, 5.0))
    for index, (time_s, length) in enumerate([(0.0, 90.0), (1.0, 90.0), (8.0, 10.0), (9.0, 10.0)]):
        ledger.open(0)
        ledger.start(index, 0, 0)
        ledger.land(index, length=length, now_s=time_s)
    choice = ledger.choose(0, now_s=10.0)
    for index in choice.expired:
        ledger.drop(index, DropReason.EXPIRED)
    ledger.take(choice.batch, 0, now_s=10.0)
    ledger.take(ledger.choose(0, now_s=10.0).batch, 0, now_s=10.0)
    found = ledger.statistics()
    assert found.dropped == {"expired": 2}
    assert found.length_bias == pytest.approx(10 / 50 - 1)


@dataclass
class Clocked:
    """Random progress over a ledger on a clock of its own, as the coordinator's loops make it."""

    ledger: Ledger
    random: Random
    now_s: float = 100.0
    version: int = 0

    def __post_init__(self) -> None:
        self.landed_s: dict[int, float] = {}
        self.ages_s: list[float] = []
        self.admit()

    def admit(self) -> None:
        while self.ledger.open(self.version) is not None:
            pass

    def step(self) -> None:
        self.now_s += self.random.choice([0.0, 0.1, 1.0, 4.0])
        phases = {entry.ticket.index: entry.phase for entry in self.ledger.live()}
        index = self.random.choice(list(phases))
        if phases[index] is Phase.OPEN:
            self.ledger.start(index, self.version, 0)
        elif phases[index] is Phase.IN_FLIGHT:
            size = self.random.choice([1, 10, 100])
            self.ledger.land(index, size=size, now_s=self.now_s, length=float(size))
            self.landed_s[index] = self.now_s
        else:
            self.take()

    def take(self) -> None:
        choice = self.ledger.choose(self.version, now_s=self.now_s)
        for index in choice.expired:
            assert self.ledger.too_old(index, self.version, now_s=self.now_s) is DropReason.EXPIRED
            if self.ledger.expiry.on_stale is OnStale.DROP:
                self.ledger.drop(index, DropReason.EXPIRED)
            else:
                self.ledger.requeue(index, self.version)
        if choice.batch:
            self.ledger.take(choice.batch, self.version, now_s=self.now_s)
            if self.random.random() < 0.2:
                self.ledger.put_back(choice.batch, self.version)
                return
            self.ages_s += [self.now_s - self.landed_s[index] for index in choice.batch]
            self.ledger.settle()
            self.version += 1
        self.admit()

    def restart(self) -> None:
        """Down for a while, in a process whose clock says something else."""
        state = json.loads(json.dumps(self.ledger.state_dict(now_s=self.now_s)))
        before = self.now_s
        self.now_s = self.random.choice([0.0, 7.0, 5000.0])
        again = Ledger(
            self.ledger.rule,
            order=self.ledger.order,
            expiry=self.ledger.expiry,
            tickets_per_batch=self.ledger.tickets_per_batch,
        )
        again.load_state_dict(state, now_s=self.now_s)
        self.landed_s = {index: time_s + self.now_s - before for index, time_s in self.landed_s.items()}
        assert again.statistics() == self.ledger.statistics()
        assert again.tally == self.ledger.tally
        self.ledger = again


@stable
@given(
    st.integers(0, 2**32),
    st.sampled_from([OLDEST, window(3), READY]),
    st.sampled_from([OnStale.DROP, OnStale.REQUEUE, OnStale.KEEP]),
    st.sampled_from([0.5, 3.0, 20.0]),
    st.integers(1, 3),
    st.sampled_from([None, 5, 60, 300]),
)
def test_no_rollout_is_taken_beyond_the_limit_whatever_the_timing(
    seed: int, order: Order, on_stale: OnStale, limit_s: float, batch: int, max_bytes: int | None
) -> None:
    lead = MaxLead(2, batch)
    rule = AllOf(lead) if max_bytes is None else AllOf(lead, Bytes(max_bytes, tickets_per_batch=batch))
    expiry = Expiry(None, on_stale, limit_s)
    run = Clocked(Ledger(rule, order=order, expiry=expiry, tickets_per_batch=batch), Random(seed))
    for step in range(300):
        run.step()
        tally = run.ledger.tally
        assert tally.live > 0  # the limit on bytes never keeps the last batch from being collected
        assert tally.untaken >= batch or tally.taken or not rule.may_open(tally)
        ready = [entry for entry in run.ledger.live() if entry.phase is Phase.READY]
        assert tally.waiting_bytes == sum(entry.size for entry in ready)
        if step % 60 == 59:
            run.restart()
    found = run.ledger.statistics()
    if on_stale is OnStale.KEEP:
        assert found.kept_expired == sum(age_s > limit_s for age_s in run.ages_s)
    else:
        assert max(run.ages_s, default=0.0) <= limit_s
        assert found.kept_expired == 0
    assert found.max_age_s == pytest.approx(max(run.ages_s, default=0.0))
    assert found.mean_age_s == pytest.approx(sum(run.ages_s) / max(len(run.ages_s), 1))
    run.ledger.close()
    assert run.ledger.statistics().closes


# -- bytes ------------------------------------------------------------------------------------------


def test_a_limit_in_bytes_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="queue_bytes_limit must be >= 1, received 0"):
        Bytes(0)


def test_until_something_has_landed_one_batch_is_under_way() -> None:
    rule = Bytes(10**9, tickets_per_batch=3)
    assert rule.may_open(Tally(live=2))
    assert not rule.may_open(Tally(live=3))
    assert rule.why_not_open(Tally(live=3)) == "a first rollout, to know how many fit into queue_bytes_limit=1000000000"


def test_what_is_on_its_way_counts_with_the_mean_size() -> None:
    rule = Bytes(1000, tickets_per_batch=2)
    mean_100 = {"landed": 10, "landed_bytes": 1000}
    assert rule.may_open(Tally(live=8, ready=4, waiting_bytes=500, **mean_100))  # 500 + 4 * 100, and one more
    assert not rule.may_open(Tally(live=8, ready=3, waiting_bytes=500, **mean_100))
    assert rule.may_open(Tally(live=8, ready=3, taken=7, waiting_bytes=50_000, **mean_100))  # less than a batch
    full = Tally(live=8, ready=8, waiting_bytes=1000, **mean_100)
    assert rule.why_not_open(full) == (
        "rollouts that wait or are on their way take 1000 of queue_bytes_limit=1000 bytes"
    )


def test_a_batch_that_does_not_fit_is_collected_all_the_same() -> None:
    ledger = Ledger(AllOf(MaxLead(3, 2), Bytes(1, tickets_per_batch=2)), tickets_per_batch=2)
    for version in range(5):
        while (ticket := ledger.open(version)) is not None:
            ledger.start(ticket.index, version, 0)
            ledger.land(ticket.index, size=10**6)
        assert ledger.tally.untaken == 2
        ledger.take(ledger.choose(version).batch, version)
        ledger.settle()


@dataclass
class Parts:
    """A payload of the user's own kind."""

    numbers: np.ndarray
    name: str


def test_the_size_of_a_payload_is_that_of_what_is_in_it() -> None:
    assert size_of(np.zeros((3, 5), np.float32)) == 60
    assert size_of(torch.zeros(7, dtype=torch.int64)) == 56
    assert size_of({"a": np.zeros(4), "b": [np.zeros(2), "four"], "c": (1, 2.0, True)}) == 32 + 16 + 4 + 24
    assert size_of(Parts(np.zeros(3), "name")) == 28
    assert size_of(None) == size_of(object()) == 0
    assert size_of(b"12345") == 5
