"""A root that leases tickets to branches: what holds whatever becomes of messages, clocks and processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from branch_auditor import Broken, Drawn, audited, draw
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headway.core.ledger import Ledger
from headway.core.rules import MaxLead
from headway.core.rules_order import OLDEST, Expiry, OnStale
from headway.core.types import DropReason, State, Ticket
from headway.simulate.branched_shape import Faults, Network
from headway.simulate.branches import BranchedRun
from headway.simulate.lease_messages import LeaseAnswer, LeaseTerms, Refusal, Report, Session
from headway.simulate.leases import BranchLedger, RootLedger

TERMS = LeaseTerms(block=3, term_s=10.0, drift=0.1)
BRANCHES = 3
BATCH = 2
RULE = MaxLead(2, BATCH)


def root_ledger() -> Ledger:
    return Ledger(RULE, order=OLDEST, tickets_per_batch=BATCH)


class AnyNetwork(RuleBasedStateMachine):
    """Whatever was sent may arrive now, later, twice or never; clocks are wrong by a tenth; anybody may die."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0
        self.root = RootLedger(root_ledger(), TERMS)
        self.branches: list[BranchLedger | None] = [None] * BRANCHES
        self.incarnations = [0] * BRANCHES
        self.flying: list[dict[int, Ticket]] = [{} for _ in range(BRANCHES)]
        self.to_root: list[tuple[int, int, float] | tuple[int, Report]] = []
        self.to_branch: list[tuple[int, int, float, Session] | tuple[int, LeaseAnswer | Refusal]] = []
        self.learned: set[int] = set()
        self.epoch = 0
        self.saved: tuple[State, set[int]] = (self.root.state_dict(), set())

    @initialize(rates=st.lists(st.sampled_from([0.9, 1.0, 1.1]), min_size=BRANCHES + 1, max_size=BRANCHES + 1))
    def begin(self, rates: list[float]) -> None:
        self.rates = rates

    def clock(self, branch: int) -> float:
        return self.rates[branch] * self.time

    def root_clock(self) -> float:
        return self.rates[BRANCHES] * self.time

    # -- branches -----------------------------------------------------------------------------------------

    @rule(branch=st.integers(0, BRANCHES - 1))
    def begin_anew(self, branch: int) -> None:
        """It has died, or gives up: nothing of before goes on."""
        self.branches[branch] = None
        self.flying[branch].clear()
        self.incarnations[branch] += 1
        self.to_root.append((branch, self.incarnations[branch], self.clock(branch)))

    @rule(branch=st.integers(0, BRANCHES - 1))
    def say(self, branch: int) -> None:
        ledger = self.branches[branch]
        if ledger is not None and not ledger.is_over(self.clock(branch)):
            self.to_root.append((branch, ledger.report(self.clock(branch))))

    @rule(branch=st.integers(0, BRANCHES - 1), seat=st.integers(0, 3))
    def take_off(self, branch: int, seat: int) -> None:
        ledger = self.branches[branch]
        ticket = ledger.start(seat, self.clock(branch)) if ledger is not None else None
        if ticket is not None:
            assert ticket.index not in self.flying[branch]
            self.flying[branch][ticket.index] = ticket

    @rule(branch=st.integers(0, BRANCHES - 1), how=st.sampled_from(["land", "land", "fail", "drop"]), data=st.data())
    def end_flight(self, branch: int, how: str, data: st.DataObject) -> None:
        ledger, flying = self.branches[branch], self.flying[branch]
        if ledger is None or not flying or ledger.is_over(self.clock(branch)):
            return
        index = data.draw(st.sampled_from(sorted(flying)))
        del flying[index]
        if how == "land":
            ledger.land(index)
        elif how == "fail":
            ledger.fail(index)
        else:
            ledger.drop(index, DropReason.FAILED)

    # -- the network --------------------------------------------------------------------------------------

    @precondition(lambda self: self.to_root)
    @rule(data=st.data(), stays=st.booleans())
    def reach_root(self, data: st.DataObject, stays: bool) -> None:
        place = data.draw(st.integers(0, len(self.to_root) - 1))
        message = self.to_root[place] if stays else self.to_root.pop(place)
        if len(message) == 3:
            branch, incarnation, asked_s = message
            session = self.root.join(branch, incarnation, self.root_clock())
            self.to_branch.append((branch, incarnation, asked_s, session))
        else:
            branch, report = message
            self.to_branch.append((branch, self.root.hear(report, self.root_clock())))

    @precondition(lambda self: self.to_branch)
    @rule(data=st.data(), stays=st.booleans())
    def reach_branch(self, data: st.DataObject, stays: bool) -> None:
        place = data.draw(st.integers(0, len(self.to_branch) - 1))
        message = self.to_branch[place] if stays else self.to_branch.pop(place)
        ledger = self.branches[message[0]]
        if len(message) == 4:
            branch, incarnation, asked_s, session = message
            if ledger is None and incarnation == self.incarnations[branch]:
                self.branches[branch] = BranchLedger(session, TERMS, 4, asked_s)
        elif ledger is not None and message[1].session == ledger.session:
            if isinstance(message[1], Refusal):
                self.begin_anew(message[0])
            else:
                ledger.hear(message[1], self.clock(message[0]))

    @rule(seconds=st.sampled_from([0.01, 1.0, 4.0, 15.0]))
    def wait(self, seconds: float) -> None:
        self.time += seconds
        for branch in self.root.expire(self.root_clock()):
            ledger = self.branches[branch]
            held = self.root.held_by(branch)
            assert not held
            assert ledger is None or ledger.is_over(self.clock(branch)) or ledger.session[0] != self.epoch
        for branch, answer in self.root.grant(self.root_clock()):
            self.to_branch.append((branch, answer))

    # -- the learner --------------------------------------------------------------------------------------

    @rule()
    def learn(self) -> None:
        batch = self.root.choose().batch
        if not batch:
            return
        for index in batch:
            span = self.root.ledger.entry(index).span
            assert span is not None
            assert 0 <= self.root.version - span.oldest <= RULE.staleness_bound() == 2
        self.root.ledger.take(batch, self.root.version)
        learned = self.root.publish()
        assert not self.learned & set(learned)
        self.learned |= set(learned)

    @rule()
    def save(self) -> None:
        self.saved = self.root.state_dict(), set(self.learned)

    @rule()
    def lose_root(self) -> None:
        self.epoch += 1
        self.root = RootLedger(root_ledger(), TERMS, epoch=self.epoch)
        self.root.restore(self.saved[0], self.root_clock())
        self.learned = set(self.saved[1])

    # -- what must hold -----------------------------------------------------------------------------------

    @invariant()
    def no_ticket_is_in_two_hands_and_slots_are_never_exceeded(self) -> None:
        if not hasattr(self, "rates"):
            return
        held: list[int] = []
        for branch, ledger in enumerate(self.branches):
            if ledger is not None and not ledger.is_over(self.clock(branch)):
                held += ledger.holds
                if ledger.session[0] == self.epoch:
                    assert set(ledger.holds) <= set(self.root.held_by(branch))
        assert len(held) == len(set(held)) <= RULE.slots == 6
        assert self.root.ledger.tally.live <= RULE.slots

    @invariant()
    def every_ticket_settles_once(self) -> None:
        tally = self.root.ledger.tally
        live = {entry.ticket.index for entry in self.root.ledger.live()}
        assert tally.opened == tally.learned + tally.dropped + tally.live
        assert tally.learned == len(self.learned)
        assert not live & self.learned


AnyNetwork.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None, derandomize=True)
test_whatever_becomes_of_messages_the_rules_hold = AnyNetwork.TestCase


# -- random runs in virtual time, audited -----------------------------------------------------------------


def test_random_runs_with_every_fault_keep_the_rules() -> None:
    """`bench/branches.py --schedules` makes thousands of them."""
    taken_back = went_back = at_bound = 0
    for number in range(40):
        result, auditor, run = audited(draw(number))
        taken_back += result.reclaimed
        went_back += run.deaths_of_root
        at_bound += auditor.oldest_taken == auditor.max_staleness
    assert taken_back > 60, "or nothing was tried"
    assert went_back > 10
    assert at_bound > 10, "or the bound is too wide"


def test_the_same_run_is_the_same_run() -> None:
    assert audited(draw(5))[0] == audited(draw(5))[0]


def with_clocks_that_are_wrong(number: int) -> Drawn:
    drawn = draw(number)
    terms = LeaseTerms(block=4, term_s=4.0, drift=0.3)
    faults = Faults(until_s=60.0, cut_s=8.0, cut_lasts_s=12.0, clocks=0.3)
    shape = replace(drawn.shape, branches=3, seats=4, terms=terms, faults=faults, network=Network())
    return replace(drawn, shape=replace(shape, message_s=0.0, root_ticket_s=0.0, report_every_s=0.05))


def never_over(self: BranchLedger, now_s: float) -> bool:
    return False


def at_once(self: RootLedger, state: State, now_s: float, _restore: Callable[..., None] = RootLedger.restore) -> None:
    _restore(self, state, now_s - 1e9)


@pytest.mark.parametrize(
    ("where", "name", "wrong", "case"),
    [
        (LeaseTerms, "reclaim_s", property(lambda terms: terms.term_s / 2), draw(0)),
        (LeaseTerms, "reclaim_s", property(lambda terms: terms.term_s), with_clocks_that_are_wrong(0)),
        (BranchLedger, "is_over", never_over, draw(2)),
        (RootLedger, "restore", at_once, draw(0)),
    ],
    ids=["takes back too soon", "trusts clocks", "branches go on for ever", "leases at once after a restart"],
)
def test_a_rule_that_is_left_out_is_noticed(
    where: type, name: str, wrong: object, case: Drawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    audited(case)
    monkeypatch.setattr(where, name, wrong)
    with pytest.raises(Broken, match=r"held by branches|has taken them back"):
        audited(case)


# -- one thing at a time ----------------------------------------------------------------------------------


def joined(root: RootLedger, room: int = 4, branch: int = 0, incarnation: int = 1, now_s: float = 0.0) -> BranchLedger:
    return BranchLedger(root.join(branch, incarnation, now_s), TERMS, room, now_s)


def talk(root: RootLedger, branch: BranchLedger, now_s: float = 0.0) -> LeaseAnswer:
    answer = root.hear(branch.report(now_s), now_s)
    assert isinstance(answer, LeaseAnswer)
    branch.hear(answer, now_s)
    return answer


def test_tickets_are_leased_in_blocks_up_to_the_room_of_a_branch_and_the_slots_of_the_root() -> None:
    root = RootLedger(root_ledger(), TERMS)
    first, second = joined(root), joined(root, branch=1)
    assert [len(lease.tickets) for lease in talk(root, first).leases] == [3, 1]
    assert [len(lease.tickets) for lease in talk(root, second).leases] == [2], "six slots in all"
    assert (first.holds, second.holds) == ((0, 1, 2, 3), (4, 5))
    assert talk(root, second).leases == ()


def test_a_lease_that_was_lost_is_sent_again_and_one_that_was_doubled_counts_once() -> None:
    root = RootLedger(root_ledger(), TERMS)
    branch = joined(root, room=2)
    root.hear(branch.report(0.0), 0.0)  # nobody hears the answer
    answer = talk(root, branch)
    branch.hear(answer, 0.0)
    assert branch.holds == (0, 1)
    assert root.ledger.tally.live == 2


def test_slots_that_come_free_go_to_who_wants_more() -> None:
    root = RootLedger(root_ledger(), TERMS)
    first, second = joined(root, room=6), joined(root, branch=1)
    talk(root, first)
    assert talk(root, second).leases == ()
    for _ in range(2):
        ticket = first.start(0, 0.0)
        assert ticket is not None
        first.land(ticket.index)
    talk(root, first)
    root.ledger.take(root.choose().batch, root.version)
    assert root.publish() == (0, 1)
    told = dict(root.grant(0.0))
    assert sum(len(lease.tickets) for answer in told.values() for lease in answer.leases) == 2
    assert all(lease.version == 1 for answer in told.values() for lease in answer.leases)


def test_a_branch_that_says_nothing_loses_its_tickets_after_the_term_and_they_fly_elsewhere() -> None:
    root = RootLedger(root_ledger(), TERMS)
    gone, other = joined(root), joined(root, branch=1)
    talk(root, gone)
    late = gone.report(0.0)
    assert gone.start(0, 9.9) is not None
    assert gone.start(0, 10.0) is None, "its own clock says that its term is over"
    assert gone.is_over(10.0)
    assert root.expire(12.2) == []
    talk(root, other, 5.0)
    assert root.expire(12.3) == [0], "10 s by the slowest clock, 12.2 by the quickest"
    assert root.reclaimed == 4
    talk(root, other, 12.3)
    assert set(other.holds) >= {0, 1}, "the oldest first"
    assert root.hear(late, 12.4) == Refusal(gone.session)


def test_who_begins_anew_gives_back_what_it_had() -> None:
    root = RootLedger(root_ledger(), TERMS)
    before = joined(root)
    talk(root, before)
    after = joined(root, incarnation=2)
    talk(root, after)
    assert after.holds == (0, 1, 2, 3)
    assert root.hear(before.report(0.0), 0.0) == Refusal(before.session)
    assert root.join(0, 1, 0.0) == after.session, "an old message changes nothing"
    assert root.held_by(0) == (0, 1, 2, 3)


def test_a_ticket_that_a_branch_drops_is_dropped_and_its_slot_is_free() -> None:
    root = RootLedger(root_ledger(), TERMS)
    branch = joined(root, room=6)
    talk(root, branch)
    ticket = branch.start(0, 0.0)
    assert ticket is not None
    branch.drop(ticket.index, DropReason.FAILED)
    report = branch.report(0.0)
    for _ in range(2):
        assert isinstance(root.hear(report, 0.0), LeaseAnswer)
    assert root.ledger.counts.drops[DropReason.FAILED] == 1
    assert root.ledger.tally.live == 6, "and leased again at once"


def test_a_root_that_is_back_leases_nothing_until_all_branches_must_have_stopped() -> None:
    root = RootLedger(root_ledger(), TERMS)
    talk(root, joined(root))
    again = RootLedger(root_ledger(), TERMS, epoch=1)
    again.restore(root.state_dict(), 100.0)
    branch = joined(again, now_s=100.0)
    assert talk(again, branch, 100.0).leases == ()
    assert talk(again, branch, 109.0).leases == ()
    assert [ticket.index for lease in talk(again, branch, 112.3).leases for ticket in lease.tickets] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"block": 0}, "block must be >= 1, received 0"),
        ({"term_s": 0}, "term_s must be above 0, received 0"),
        ({"drift": 1}, r"drift must be in \[0, 1\), received 1"),
    ],
)
def test_terms_that_cannot_be_are_refused(told: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LeaseTerms(**told)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "ledger",
    [
        Ledger(RULE, tickets_per_batch=BATCH, pinned_collectors=4),
        Ledger(RULE, tickets_per_batch=BATCH, expiry=Expiry(2, OnStale.REQUEUE)),
    ],
)
def test_a_ledger_that_branches_cannot_keep_is_refused(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="branches need dispatch='free', and on_stale other than requeue"):
        RootLedger(ledger, TERMS)


def test_a_run_that_stands_still_is_an_error() -> None:
    drawn = draw(0)
    shape = replace(drawn.shape, network=Network(lose=1.0), faults=Faults())
    with pytest.raises(RuntimeError, match="and it stands still"):
        BranchedRun(shape).run()
