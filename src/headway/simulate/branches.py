"""Branches and their root on the virtual clock: messages, learner and faults around `leases.py`.

    learner <--take, publish--> root <--messages--> branch <--flights--> collectors

The root and every branch are threads of their own: what a ticket costs them passes one after the other. With a
network that delays, loses, doubles and cuts, clocks that are wrong, branches and collectors that die, and a root that
goes back to its checkpoint, it is the test bench of the design; with costs alone it says what the design would bring.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from headway.core.types import State
from headway.simulate.branch_world import BranchWorld, BusyThread
from headway.simulate.branched_shape import Branched, BranchedResult
from headway.simulate.lease_messages import LeaseAnswer, Refusal, Report
from headway.simulate.leases import RootLedger
from headway.simulate.simulated_branch import RETRIES_A_TERM, SimulatedBranch

PATIENCE_S = 1e4
"""When nothing goes wrong any more, the rest of the run may take so long."""


class Watcher:
    """Is told what happens. This one does not care."""

    def held(self, run: BranchedRun) -> None:
        """Something has changed hands."""

    def taken(self, run: BranchedRun, indices: tuple[int, ...]) -> None:
        """The learner has taken rollouts, at the root's version."""

    def settled(self, run: BranchedRun, indices: tuple[int, ...]) -> None:
        """They are learned."""

    def saved(self, run: BranchedRun) -> None:
        """The root has written a checkpoint."""

    def went_back(self, run: BranchedRun) -> None:
        """The root goes on from its last checkpoint."""


class BranchedRun:
    """Everything at once; `run` goes on until the updates are made."""

    def __init__(self, shape: Branched, watcher: Watcher | None = None) -> None:
        self.shape = shape
        self.watcher = watcher or Watcher()
        self.world = BranchWorld(shape)
        self.root_clock = self.world.clock(0)
        self.root = RootLedger(shape.ledger(), shape.terms)
        self.root_thread = BusyThread(self.world.loop)
        self.branches = [SimulatedBranch(self.world, self, number) for number in range(shape.branches)]
        self.updates = 0
        self.deaths_of_root = 0
        self._reclaimed = 0
        self._is_root_up = True
        self._is_learning = False
        self._saved: tuple[int, State] | None = None
        self._done: asyncio.Future[None]

    def run(self) -> BranchedResult:
        """To the end; a run that stands still is an error."""
        return self.world.loop.run(self._run())

    async def _run(self) -> BranchedResult:
        shape = self.shape
        self._done = self.world.loop.create_future()
        self._save()
        self._expire_every(shape.terms.term_s / RETRIES_A_TERM)
        for branch in self.branches:
            branch.join()
        for mean_s, strike in (
            (shape.faults.branch_dies_s, lambda: self.world.rng.choice(self.branches).die()),
            (shape.faults.cut_s, self._cut_off),
            (shape.faults.root_dies_s, self._lose_root),
        ):
            self._strike_every(mean_s, strike)
        self.world.later(shape.faults.until_s + PATIENCE_S, self._give_up)
        await self._done
        counts = self.root.ledger.counts
        return BranchedResult(
            self.world.loop.time(),
            self.root.ledger.tally.learned,
            sum(branch.flown for branch in self.branches),
            self._reclaimed + self.root.reclaimed,
            self.root_thread.busy_s,
            tuple(branch.thread.busy_s for branch in self.branches),
            dict(counts.staleness),
        )

    def _give_up(self) -> None:
        if not self._done.done():
            self._done.set_exception(
                RuntimeError(f"{self.updates} updates of {self.shape.updates}, and it stands still")
            )

    # -- faults ---------------------------------------------------------------------------------------

    def _strike_every(self, mean_s: float, strike: Callable[[], object]) -> None:
        if math.isinf(mean_s):
            return

        def struck() -> None:
            if self.world.is_bad:
                strike()
                self._strike_every(mean_s, strike)

        self.world.later(self.world.rng.expovariate(1 / mean_s), struck)

    def _cut_off(self) -> None:
        branch = self.world.rng.choice(self.branches)
        branch.cut = self.world.rng.choice([(True, True), (True, False), (False, True)])
        lasts_s = self.world.rng.expovariate(1 / self.shape.faults.cut_lasts_s)
        self.world.later(lasts_s, lambda: setattr(branch, "cut", (False, False)))

    def _lose_root(self) -> None:
        """It dies with the learner; it is back as it was at its checkpoint."""
        if self._is_root_up:
            self._is_root_up = False
            self.deaths_of_root += 1
            self._reclaimed += self.root.reclaimed
            self.world.later(self.shape.faults.root_back_s, self._bring_root_back)

    def _bring_root_back(self) -> None:
        assert self._saved is not None
        self.updates, state = self._saved
        self.root = RootLedger(self.shape.ledger(), self.shape.terms, epoch=self.deaths_of_root)
        self.root.restore(state, self.root_clock.now())
        self._is_root_up, self._is_learning = True, False
        self.watcher.went_back(self)
        self._learn()

    def _save(self) -> None:
        self._saved = self.updates, self.root.state_dict()
        self.watcher.saved(self)

    # -- messages -------------------------------------------------------------------------------------

    def _to_branch(self, branch: SimulatedBranch, deliver: Callable[[], object]) -> None:
        self.world.send(lambda: branch.cut[1], deliver)

    def hear_join(self, branch: SimulatedBranch, incarnation: int, asked_s: float) -> None:
        def heard() -> None:
            if self._is_root_up:
                session = self.root.join(branch.number, incarnation, self.root_clock.now())
                self._to_branch(branch, lambda: branch.joined(incarnation, asked_s, session))

        self.root_thread.do(self.shape.message_s, heard)

    def hear_report(self, branch: SimulatedBranch, report: Report) -> None:
        def heard() -> None:
            if not self._is_root_up:
                return
            self._answer(branch, self.root.hear(report, self.root_clock.now()))
            self._learn()

        handed_over = len(report.group.landings) if report.group else 0
        self.root_thread.do(self.shape.message_s + self.shape.root_ticket_s / 2 * handed_over, heard)

    def _answer(self, branch: SimulatedBranch, answer: LeaseAnswer | Refusal) -> None:
        self.watcher.held(self)
        leased = sum(len(lease.tickets) for lease in answer.leases) if isinstance(answer, LeaseAnswer) else 0
        self.root_thread.do(
            self.shape.root_ticket_s / 2 * leased, lambda: self._to_branch(branch, lambda: self._bring(branch, answer))
        )

    def _bring(self, branch: SimulatedBranch, answer: LeaseAnswer | Refusal) -> None:
        branch.hear(answer)
        self.watcher.held(self)

    def _expire_every(self, seconds: float) -> None:
        if self._is_root_up:
            self.root.expire(self.root_clock.now())
            self._grant()
        self.world.later(seconds, lambda: self._expire_every(seconds))

    def _grant(self) -> None:
        for number, answer in self.root.grant(self.root_clock.now()):
            self._answer(self.branches[number], answer)

    # -- the learner ----------------------------------------------------------------------------------

    def _learn(self) -> None:
        """The next batch, if it is here; what has expired is dropped."""
        root = self.root
        if self._is_learning or not self._is_root_up:
            return
        choice = root.choose()
        for index in choice.expired:
            reason = root.ledger.too_old(index, root.version)
            assert reason is not None
            root.ledger.drop(index, reason)
        if choice.batch:
            root.ledger.take(choice.batch, root.version)
            self._is_learning = True
            self.watcher.taken(self, choice.batch)
            self.world.later(self.shape.learn.quantile(self.world.rng.random()), lambda: self._publish(root))
        if choice.expired:
            self._grant()
            if not choice.batch:
                self._learn()

    def _publish(self, root: RootLedger) -> None:
        if root is not self.root or not self._is_root_up:
            return  # it died meanwhile
        self._is_learning = False
        self.watcher.settled(self, root.publish())
        self.updates += 1
        if self.updates == self.shape.updates:
            self._done.set_result(None)
            return
        if self.shape.save_every and self.updates % self.shape.save_every == 0:
            self._save()
        self._grant()
        self._learn()
