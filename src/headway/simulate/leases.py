"""One ledger above others: a root that leases tickets, and branches that have them collected. A design, tried on the
virtual clock and not used by any run yet (docs/scale.md).

    root     Ledger: slots, order, staleness            learner, versions
               | lease: tickets, a version                 ^ group: rollouts that have landed
               v                                           |
    branch   Ledger: opens what is leased, flies it, lands it, hands it over  -->  collectors

    branch   out --join--> in --(a term without an answer, by its own clock)--> over --> out, one incarnation further
    ticket   open at the root --lease--> in flight there, open here --> flies --> lands --> in a group --> ready there
                      ^------------ reclaimed: its branch's session is over ------------'

Both are the ledger of every run (`core/ledger.py`), with the rule of every run at the root: a ticket that is leased
holds its slot at the root, wherever it is. So slots are counted in one place, and each ticket settles there, once. A
branch's rule is its credit: it opens what it was leased.

Messages may be lost, doubled, late and out of order. Leases and groups are numbered within a session and sent until the
other side says it has them; what belongs to another session is refused. Nothing here waits or knows a clock: whoever
drives it says what time it is, each by a clock of its own.

Invariants:
* a ticket is in the hands of one session at most. A branch counts its term from when it asked, the root from when it
  heard, and longer by what their clocks may differ: a branch is out before its tickets are leased again;
* tickets at the root and in all branches together never exceed the slots of the root's rule;
* a ticket is born, in its branch, with a version no older than the root's was when it was leased. So the bound of the
  root's rule on staleness holds as it stands: leasing adds nothing to it. What it adds is to the mean, by as many
  versions as are published while news of them is on its way.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

from headway.core.ledger import Ledger
from headway.core.ledger_choosing import Choice
from headway.core.rules import Tally
from headway.core.rules_order import READY, OnStale
from headway.core.types import DropReason, Phase, Span, State, Ticket
from headway.simulate.lease_messages import (
    LandedGroup,
    Landing,
    Lease,
    LeaseAnswer,
    LeaseTerms,
    Refusal,
    Report,
    Session,
)

# -- the root -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Member:
    """A branch that is in, as the root sees it."""

    branch: int
    incarnation: int
    ends_s: float
    unseen: deque[Lease] = field(default_factory=deque)
    """Leases that it has not said it has."""
    leases_seen: int = 0
    tickets_seen: int = 0
    """Of those leases."""
    groups_seen: int = 0
    report: int = 0
    """The newest one that was heard."""
    wanted: int = 0
    """Tickets it could have been leased in all by now."""
    leased: int = 0
    outstanding: dict[int, None] = field(default_factory=dict)
    """Leased and not handed over."""

    def note_seen(self, leases: int) -> None:
        """It has so many leases."""
        while self.leases_seen < leases:
            self.leases_seen += 1
            self.tickets_seen += len(self.unseen.popleft().tickets)


class RootLedger:
    """Leases tickets of one ledger to branches, and takes back what a branch that is gone had."""

    def __init__(self, ledger: Ledger, terms: LeaseTerms, *, epoch: int = 0) -> None:
        """`epoch` grows with each start of the root (the time it was started will do)."""
        if ledger.pinned_collectors is not None or ledger.expiry.on_stale is OnStale.REQUEUE:
            raise ValueError("branches need dispatch='free', and on_stale other than requeue: a branch is not a seat")
        self.ledger = ledger
        self.terms = terms
        self.version = 0
        self.reclaimed = 0
        """Tickets that were taken back so far."""
        self._epoch = epoch
        self._members: dict[Session, _Member] = {}
        self._sessions: dict[int, Session] = {}  # branch -> its newest
        self._opened_sessions = 0
        self._again: list[int] = []  # a heap of tickets to be leased again, oldest first
        self._grants_from_s = 0.0

    def join(self, branch: int, incarnation: int, now_s: float) -> Session:
        """A branch that does nothing (any more) opens a session; what an earlier incarnation had is taken back."""
        known = self._sessions.get(branch)
        if known in self._members:
            assert known is not None
            if self._members[known].incarnation >= incarnation:
                return known  # said again, or said late by who has been replaced: its session it has no use for
            self._end(known)
        session = self._epoch, self._opened_sessions
        self._opened_sessions += 1
        self._sessions[branch] = session
        self._members[session] = _Member(branch, incarnation, now_s + self.terms.reclaim_s)
        return session

    def hear(self, report: Report, now_s: float) -> LeaseAnswer | Refusal:
        """Take over what a branch hands over, and lease to it what it wants."""
        self.expire(now_s)
        member = self._members.get(report.session)
        if member is None:
            return Refusal(report.session)
        member.ends_s = max(member.ends_s, now_s + self.terms.reclaim_s)
        member.note_seen(report.leases_seen)
        if report.group is not None and report.group.number == member.groups_seen:
            member.groups_seen += 1
            for landing in report.group.landings:
                self._take_over(member, landing)
        if report.number > member.report:
            member.report, member.wanted = report.number, report.want + member.tickets_seen
        while self._lease(member, now_s):
            pass
        return self._answer(report.session, member, report.asked_s)

    def expire(self, now_s: float) -> list[int]:
        """End the sessions that nobody has been heard of in for too long; returns their branches."""
        over = [session for session, member in self._members.items() if member.ends_s <= now_s]
        branches = [self._members[session].branch for session in over]
        for session in over:
            self._end(session)
        return branches

    def grant(self, now_s: float) -> list[tuple[int, LeaseAnswer]]:
        """Slots have come free: lease them to who wants more, a block at a time in turn. Nobody asked."""
        self.expire(now_s)
        told: dict[Session, _Member] = {}
        is_any = True
        while is_any:
            is_any = False
            for session, member in self._members.items():
                if self._lease(member, now_s):
                    told[session] = member
                    is_any = True
        return [(member.branch, self._answer(session, member, None)) for session, member in told.items()]

    def choose(self) -> Choice:
        """What the learner should do next: the rule of the ledger."""
        return self.ledger.choose(self.version)

    def publish(self) -> tuple[int, ...]:
        """A version exists: what made it is learned."""
        self.version += 1
        return self.ledger.settle()

    def held_by(self, branch: int) -> tuple[int, ...]:
        """Tickets that are in its hands, as far as the root knows."""
        session = self._sessions.get(branch)
        return tuple(self._members[session].outstanding) if session in self._members else ()

    def _take_over(self, member: _Member, landing: Landing) -> None:
        del member.outstanding[landing.index]
        if landing.reason is not None:
            self.ledger.drop(landing.index, landing.reason)
        else:
            self.ledger.land(landing.index, span=landing.span, steps=landing.steps, length=landing.length)

    def _lease(self, member: _Member, now_s: float) -> bool:
        """A block, if it is wanted and there are slots."""
        tickets: list[Ticket] = []
        if now_s >= self._grants_from_s:
            room = min(member.wanted - member.leased, self.terms.block)
            while len(tickets) < room and (ticket := self._next()) is not None:
                tickets.append(self.ledger.start(ticket.index, self.version, member.branch))
        if not tickets:
            return False
        member.outstanding.update((ticket.index, None) for ticket in tickets)
        member.leased += len(tickets)
        member.unseen.append(Lease(self.version, tuple(tickets)))
        return True

    def _next(self) -> Ticket | None:
        """The oldest ticket that was taken back, or a new one if the rule allows."""
        while self._again:
            index = heapq.heappop(self._again)
            if self.ledger.is_live(index):
                return self.ledger.entry(index).ticket
        return self.ledger.open(self.version)

    def _end(self, session: Session) -> None:
        """Whoever had these tickets has stopped: they are leased again."""
        member = self._members.pop(session)
        for index in member.outstanding:
            self.ledger.reissue(index)
            heapq.heappush(self._again, index)
            self.reclaimed += 1

    def _answer(self, session: Session, member: _Member, asked_s: float | None) -> LeaseAnswer:
        leases = tuple(member.unseen)
        return LeaseAnswer(session, asked_s, member.leases_seen, leases, member.groups_seen, self.version)

    # -- surviving a restart --------------------------------------------------------------------------

    def state_dict(self) -> State:
        """With the learner's state, as in every run. Sessions are not saved: a root that is back knows none."""
        return {"ledger": self.ledger.state_dict(), "version": self.version}

    def restore(self, state: State, now_s: float) -> None:
        """Go on from there. Nothing is leased until every branch of the former root must have stopped."""
        self.ledger.load_state_dict(state["ledger"])
        self.version = state["version"]
        self._again = [entry.ticket.index for entry in self.ledger.live() if entry.phase is Phase.OPEN]
        heapq.heapify(self._again)
        self._grants_from_s = now_s + self.terms.reclaim_s


# -- a branch -------------------------------------------------------------------------------------------


class Credit:
    """The rule of a branch: it opens what it was leased."""

    def __init__(self) -> None:
        self.granted = 0

    def may_open(self, tally: Tally) -> bool:
        return tally.opened < self.granted

    def may_learn(self, tally: Tally) -> bool:
        return True

    def why_not_open(self, tally: Tally) -> str:
        return f"all {self.granted} tickets that were leased are under way"

    def why_not_learn(self, tally: Tally) -> str:
        return ""


class BranchLedger:
    """One session of a branch: has leased tickets collected and hands their rollouts over.

    The tickets of its own ledger are numbered as they come; outside they have the numbers of the root.
    """

    def __init__(self, session: Session, terms: LeaseTerms, room: int, joined_s: float) -> None:
        """`room` is how many tickets it can use at once; `joined_s` is when it asked for the session, by its clock."""
        self.session = session
        self.version = 0
        self._terms = terms
        self._room = room
        self._ends_s = joined_s + terms.term_s
        self._credit = Credit()
        self._ledger = Ledger(self._credit, order=READY)
        self._leased: list[Ticket] = []  # by their numbers here
        self._numbers: dict[int, int] = {}  # those of the root -> those here, of what is live
        self._leases_seen = 0
        self._reports = 0
        self._groups = 0
        self._group: LandedGroup | None = None
        self._dropped: list[Landing] = []
        self._again: deque[int] = deque()  # numbers here of those that fly again

    def is_over(self, now_s: float) -> bool:
        """Must it stop all its flights, by its own clock? The root may lease its tickets to others soon."""
        return now_s >= self._ends_s

    @property
    def holds(self) -> tuple[int, ...]:
        """The root's numbers of the tickets in its hands; those of a group that is under way are not."""
        here = [entry.ticket.index for entry in self._ledger.live() if entry.phase is not Phase.TAKEN]
        here += range(self._ledger.tally.opened, len(self._leased))
        return tuple(self._leased[number].index for number in here)

    def hear(self, answer: LeaseAnswer, now_s: float) -> None:
        """Leases, news of a version, and which group has arrived. What comes too late is as if it had been lost."""
        if answer.session != self.session or self.is_over(now_s):
            return
        if answer.asked_s is not None:
            self._ends_s = max(self._ends_s, answer.asked_s + self._terms.term_s)
        self.version = max(self.version, answer.version)
        for number, lease in enumerate(answer.leases, answer.first_lease):
            if number == self._leases_seen:
                self._leases_seen += 1
                self._leased += lease.tickets
                self._credit.granted += len(lease.tickets)
        if self._group is not None and answer.groups_seen > self._group.number:
            self._ledger.settle()
            self._group = None

    def start(self, seat: int, now_s: float) -> Ticket | None:
        """A ticket takes off with the newest version that is known here."""
        if self.is_over(now_s):
            return None
        if self._again:
            number = self._again.popleft()
        elif (ticket := self._ledger.open(self.version)) is not None:
            number = ticket.index
        else:
            return None
        self._ledger.start(number, self.version, seat)
        leased = self._leased[number]
        self._numbers[leased.index] = number
        return Ticket(leased.index, leased.seed, self.version, seat)

    def land(self, index: int, span: Span | None = None, *, steps: int = 1, length: float = 1.0) -> None:
        """The rollout is here, and waits to be handed over."""
        self._ledger.land(self._numbers[index], span=span, steps=steps, length=length)

    def fail(self, index: int) -> None:
        """Its collector failed: it flies again, here."""
        number = self._numbers.pop(index)
        self._ledger.reissue(number)
        self._again.append(number)

    def drop(self, index: int, reason: DropReason) -> None:
        """It ends here; the root hears of it with the next group."""
        number = self._numbers.pop(index)
        born = self._ledger.entry(number).version
        assert born is not None
        self._ledger.drop(number, reason)
        self._dropped.append(Landing(index, Span(born, born), reason=reason))

    @property
    def room(self) -> int:
        """For so many more tickets. Those that have landed take none."""
        tally = self._ledger.tally
        return max(0, self._room - (tally.untaken - tally.ready) - (self._credit.granted - tally.opened))

    @property
    def has_news(self) -> bool:
        """Is there something to hand over?"""
        return self._group is not None or bool(self._dropped) or self._ledger.tally.ready > 0

    def report(self, now_s: float) -> Report:
        """What it has for the root, and what it wants."""
        if self._group is None and self.has_news:
            self._group = self._make_group()
        self._reports += 1
        return Report(self.session, self._reports, now_s, self.room, self._leases_seen, self._group)

    def _make_group(self) -> LandedGroup:
        """Everything that has landed or was dropped since the last one."""
        landings, self._dropped = self._dropped, []
        indices = self._ledger.choose_all(self.version).batch
        for number in indices:
            entry = self._ledger.entry(number)
            assert entry.span is not None
            index = self._leased[number].index
            del self._numbers[index]
            landings.append(Landing(index, entry.span, entry.steps, entry.length))
        self._ledger.take(indices, self.version)
        self._groups += 1
        return LandedGroup(self._groups - 1, tuple(landings))
