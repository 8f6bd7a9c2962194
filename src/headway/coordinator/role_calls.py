"""Calls to the roles of a run: each on the board, with a deadline; what dies or is late is restarted within a budget.

    call fails        raised           the station's own code: its state is put back, the caller decides
                      died, late       the place is gone or no longer trusted: restarted, state put back
    budget used up    the run fails, with one line that says which role and why

`CollectorCalls` and `LearnerCalls` know what is said to whom; this file knows how anything is said at all.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from headway.coordinator.activities_waits import Board
from headway.coordinator.journal import Journal
from headway.coordinator.roles import EVALUATOR, REANALYZER
from headway.coordinator.run_result_evaluations import evaluation_seed
from headway.coordinator.settings import Settings
from headway.core.events import Moved, PublishRetried, Restarted
from headway.core.protocols import GivesNotice, Reserves, Role, RoleError, RoleLate, RoleRaised, Runtime
from headway.core.types import Rollout, Score, Snapshot
from headway.core.types_opaque import RoleAnswer


class RunFailed(RuntimeError):
    """The run cannot go on. One line: what failed, on which ticket, version and role."""


def end_if_final(error: RoleError) -> None:
    """A collector that says it cannot go on is neither asked again nor replaced."""
    if isinstance(error, RoleRaised) and error.is_final:
        raise RunFailed(f"{error.role} cannot go on: {error.what}") from error


class SharedEvaluator(Protocol):
    """Whoever has a collector that evaluates as well: its role, and what follows from an evaluation there."""

    @property
    def evaluating_role(self) -> str: ...

    def has_evaluated(self, snapshot: Snapshot) -> None: ...

    async def see_to_evaluator(self, error: RoleError) -> None: ...


class RoleCalls:
    """Starts roles, calls them by name and brings them back."""

    def __init__(self, runtime: Runtime, board: Board, settings: Settings, journal: Journal) -> None:
        self.runtime = runtime
        self.board = board
        self.settings = settings
        self.journal = journal
        self.restarts: Counter[str] = Counter()
        """Role -> how often it was built anew in this session."""
        self.publish_retries = 0
        """Attempts to hand a version on that failed, in this session."""
        self.patience_s = settings.patience_s
        """The longest a healthy run can keep anyone waiting, with as many collectors as it has."""
        self.data_deadline_s = settings.data_deadline_s
        """How long a learner may wait for a batch."""

    def expect_from(self, collectors: int) -> None:
        """So many collectors share the tickets from now on."""
        settings = replace(self.settings, collectors=collectors)
        self.patience_s, self.data_deadline_s = settings.patience_s, settings.data_deadline_s

    async def start_all(self, roles: Iterable[Role]) -> None:
        """Build every role, all at once; where a runtime can, there is room for all of them first."""
        roles = list(roles)
        if isinstance(self.runtime, Reserves):
            await self.runtime.reserve(roles)
        try:
            async with asyncio.TaskGroup() as group:
                for role in roles:
                    group.create_task(self._start(role))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def call(
        self, role: str, method: str, doing: object, deadline_s: float, *args: object, name: str | None = None
    ) -> RoleAnswer:
        """One call, entered on the board under its method's name, for the role or for who is called `name` there."""
        name = name or role
        self.board.begin(name, method, doing, deadline_s)
        try:
            return await self.runtime.call(role, method, *args, deadline_s=deadline_s)
        finally:
            self.board.end(name)

    async def ask_at_start(self, role: str, method: str, name: str | None = None) -> RoleAnswer:
        """What a role says about itself before the run begins."""
        return await self.call(role, method, "set-up", self.settings.deadlines.start_s, name=name)

    async def restart(self, role: str, error: RoleError, name: str | None = None) -> None:
        """Build a role anew after `error`, again and again while the budget lasts."""
        name = name or role
        limit, budget = self.settings.deadlines.start_s, self.settings.retries.max_restarts
        while True:
            if self.restarts[role] >= budget:
                raise RunFailed(f"{error} (restarted {self.restarts[role]} times, max_restarts={budget})")
            self.restarts[role] += 1
            self.journal.write(Restarted, role, error.what)
            self.board.begin(name, "restart", "restarting", limit)
            try:
                async with asyncio.timeout(limit):
                    await self.runtime.restart(role)
                return
            except TimeoutError:
                error = RoleLate(role, "restart", f"not built within {limit:g} s")
            except RoleError as again:
                error = again
            finally:
                self.board.end(name)

    async def move(self, role: str) -> bool:
        """Let what was prepared for a role take over. False if there is nothing any more."""
        assert isinstance(self.runtime, GivesNotice)
        is_moved = await self.runtime.move(role)
        if is_moved:
            self.journal.write(Moved, role)
        return is_moved

    def note_retry(self, role: str, version: int, why: str) -> None:
        """Handing on a version failed once."""
        self.publish_retries += 1
        self.journal.write(PublishRetried, role, version, why)

    async def pause_before_retry(self, name: str) -> None:
        """Between two attempts to hand a version on."""
        delay_s = self.settings.retries.publish_delay_s
        await self.pause(name, f"its next attempt (publish_delay_s={delay_s:g})", delay_s)

    async def pause(self, name: str, what: str, delay_s: float) -> None:
        """Before something is tried again."""
        self.board.begin(name, "retry", what, delay_s)
        try:
            await asyncio.sleep(delay_s)
        finally:
            self.board.end(name)

    async def evaluate(self, snapshot: Snapshot, shared: SharedEvaluator | None = None) -> Score:
        """One evaluation of one version, by the evaluator or by who shares its role. A failed one is a score without a
        value, never an error."""
        settings = self.settings
        seed = evaluation_seed(settings.seed, snapshot.version)
        doing, limit = f"version {snapshot.version}", settings.deadlines.evaluate_s
        what = ""
        for _ in range(settings.retries.evaluate_attempts):
            try:
                role = EVALUATOR if shared is None else shared.evaluating_role
                score = await self.call(role, "evaluate", doing, limit, snapshot, seed, name=EVALUATOR)
                assert isinstance(score, Score)
                return score
            except RoleRaised as error:
                what = error.what
            except RoleError as error:
                what = error.what
                await (self.restart(EVALUATOR, error) if shared is None else shared.see_to_evaluator(error))
            finally:
                if shared is not None:
                    shared.has_evaluated(snapshot)
        return Score(snapshot.version, None, error=what)

    async def reanalyze(self, snapshot: Snapshot, work: Rollout) -> Rollout:
        """Newer targets for `work`. A reanalyzer that died or was late is built anew and does it again."""
        doing, limit = f"{work.steps} targets at version {snapshot.version}", self.settings.deadlines.learn_s
        while True:
            try:
                targets = await self.call(REANALYZER, "reanalyze_work", doing, limit, snapshot, work)
                assert isinstance(targets, Rollout)
                return targets
            except RoleRaised:
                raise
            except RoleError as error:
                await self.restart(REANALYZER, error)

    async def write_file(self, role: str, what: str, write: Callable[[], object]) -> None:
        """Write something to disk beside the loops, within its deadline; `role` is busy with it."""
        limit_s = self.settings.deadlines.save_s
        self.board.begin(role, "save", what, limit_s)
        try:
            async with asyncio.timeout(limit_s):
                await self.runtime.offload(write)
        except TimeoutError:
            raise RunFailed(f"the disk has not taken the {what} within save_deadline_s={limit_s:g}") from None
        finally:
            self.board.end(role)

    async def _start(self, role: Role) -> None:
        limit = self.settings.deadlines.start_s
        name = role.name if role.lanes == 1 else f"{role.name}/0"
        self.board.begin(name, "start", "starting", limit)
        try:
            async with asyncio.timeout(limit):
                await self.runtime.start(role)
        except TimeoutError:
            raise RoleLate(role.name, "start", f"not built within {limit:g} s") from None
        finally:
            self.board.end(name)
