"""The roles of a run: started together, called by name, kept alive within a budget.

    call fails        raised           the station's own code: its state is put back, the caller decides
                      died, late       the place is gone or no longer trusted: restarted, state put back
    budget used up    the run fails, with one line that says which role and why

Handing on a snapshot has two phases. The learner *stages* it: the runtime freezes the weights and gives
back a reference. A collector that holds weights itself *applies* it and acknowledges by returning; only
then does a ticket take off there, stamped with exactly that version. Both are retried under a deadline.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from headway.coordinate.roles import EVALUATOR, LEARNER, REANALYZER, Stations, collector_name
from headway.coordinate.settings import Settings
from headway.coordinate.waits import Board
from headway.core.protocols import Role, RoleError, RoleLate, RoleRaised, Runtime
from headway.core.types import Batch, LearnReport, Rollout, Score, Snapshot, Ticket, derive_seed


class RunFailed(RuntimeError):
    """The run cannot go on. One line: what failed, on which ticket, version and role."""


class Crew:
    """Speaks to the roles; knows what each collector carries and which version it holds."""

    def __init__(self, runtime: Runtime, board: Board, settings: Settings, record: Callable[..., None]) -> None:
        self._runtime = runtime
        self._board = board
        self._settings = settings
        self._record = record
        self._names = [collector_name(number) for number in range(settings.collectors)]
        self._collect_s = settings.deadlines.collect_s
        self._stateful = self._holds_weights = False
        self._applied: dict[int, int] = {}  # collector -> version it acknowledged
        self.carried: dict[int, Any] = {}  # collector -> its state after its last landed rollout
        self.restarts: Counter[str] = Counter()

    async def start(self, stations: Stations) -> None:
        """Build every role, all at once."""
        try:
            async with asyncio.TaskGroup() as group:
                for role in stations.roles(self._settings.collectors):
                    group.create_task(self._start(role))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        has_replay = await self.call(LEARNER, "has_replay", "set-up", self._settings.deadlines.start_s)
        if has_replay and self._settings.replay is None:
            raise RunFailed("the learner keeps a replay (it has an insert method): set `replay`")
        if not has_replay and self._settings.replay is not None:
            raise RunFailed("`replay` is set, but the learner has no insert method")
        self._stateful, self._holds_weights = await self.call(
            self._names[0], "traits", "set-up", self._settings.deadlines.start_s
        )

    async def call(self, role: str, method: str, doing: object, deadline_s: float, *args: Any) -> Any:
        """One call, entered on the board under its method's name."""
        self._board.begin(role, method, doing, deadline_s)
        try:
            return await self._runtime.call(role, method, *args, deadline_s=deadline_s)
        finally:
            self._board.end(role)

    # -- collectors ---------------------------------------------------------------------------------

    async def collect(self, number: int, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        role = self._names[number]
        if self._holds_weights and self._applied.get(number) != snapshot.version:
            await self._apply(number, snapshot)
        self._board.begin(role, "collect", ticket, self._collect_s)
        try:  # as in `call`, without a frame more: this is the path every ticket takes
            answer = await self._runtime.call(role, "collect", ticket, snapshot, deadline_s=self._collect_s)
        finally:
            self._board.end(role)
        rollout: Rollout = answer[0]
        if self._stateful:
            self.carried[number] = answer[1]
        return rollout

    async def recover(self, number: int, error: RoleError) -> None:
        """Bring a collector back to where it was after its last landed rollout."""
        role = self._names[number]
        while True:
            if not isinstance(error, RoleRaised):
                await self._restart(role, error)
                self._applied.pop(number, None)
            if number not in self.carried:
                return
            try:
                return await self.restore_collector(number, self.carried[number])
            except RoleRaised:
                raise
            except RoleError as again:
                error = again

    async def restore_collector(self, number: int, carried: Any) -> None:
        self.carried[number] = carried
        limit = self._settings.deadlines.start_s
        await self.call(self._names[number], "restore", "its state", limit, carried)

    async def _apply(self, number: int, snapshot: Snapshot) -> None:
        role = self._names[number]
        retries, limit = self._settings.retries, self._settings.deadlines.publish_s
        for attempt in range(retries.publish_attempts):
            try:
                await self.call(role, "apply", f"applying version {snapshot.version}", limit, snapshot)
            except RoleRaised as error:
                self._record("publish_retry", role=role, v=snapshot.version, why=error.what)
                if attempt + 1 == retries.publish_attempts:
                    raise RoleLate(role, "apply", f"quarantined: {error.what}") from error
                await asyncio.sleep(retries.publish_delay_s)
            else:
                self._applied[number] = snapshot.version
                return

    # -- learner and evaluator ----------------------------------------------------------------------

    async def learn(self, batch: Batch, publish_as: int | None) -> tuple[LearnReport, Snapshot | None]:
        doing = f"{len(batch.rollouts)} rollouts at version {batch.version}"
        report, snapshot, problem = await self.call(
            LEARNER, "learn", doing, self._settings.deadlines.learn_s, batch, publish_as
        )
        if publish_as is not None and snapshot is None:
            self._record("publish_retry", role=LEARNER, v=publish_as, why=problem)
            snapshot = await self.stage(publish_as, attempts_made=1)
        return report, snapshot

    async def insert(self, batch: Batch) -> None:
        doing = f"{len(batch.rollouts)} rollouts for the replay"
        await self.call(LEARNER, "insert", doing, self._settings.deadlines.learn_s, batch)

    async def stage(self, version: int, attempts_made: int = 0) -> Snapshot:
        """The learner's weights, frozen, as `version`."""
        retries, limit = self._settings.retries, self._settings.deadlines.publish_s
        what = "no attempt was left"
        for attempt in range(attempts_made, retries.publish_attempts):
            if attempt:
                await asyncio.sleep(retries.publish_delay_s)
            try:
                snapshot = await self.call(LEARNER, "snapshot", f"version {version}", limit, version)
                assert isinstance(snapshot, Snapshot)
                return snapshot
            except RoleRaised as error:
                self._record("publish_retry", role=LEARNER, v=version, why=error.what)
                what = error.what
        raise RunFailed(f"version {version} could not be published in {retries.publish_attempts} attempts: {what}")

    async def evaluate(self, snapshot: Snapshot) -> Score:
        """One evaluation of one version. A failed one is a score without a value, never an error."""
        settings = self._settings
        seed = derive_seed(settings.seed, "evaluate", snapshot.version)
        what = ""
        for _ in range(settings.retries.evaluate_attempts):
            try:
                score = await self.call(
                    EVALUATOR,
                    "evaluate",
                    f"version {snapshot.version}",
                    settings.deadlines.evaluate_s,
                    snapshot,
                    seed,
                )
                assert isinstance(score, Score)
                return score
            except RoleRaised as error:
                what = error.what
            except RoleError as error:
                what = error.what
                await self._restart(EVALUATOR, error)
        return Score(snapshot.version, None, error=what)

    async def reanalyze(self, snapshot: Snapshot) -> bool:
        doing = f"targets at version {snapshot.version}"
        return bool(await self.call(REANALYZER, "reanalyze", doing, self._settings.deadlines.learn_s, snapshot))

    # -- keeping them alive -------------------------------------------------------------------------

    async def _start(self, role: Role) -> None:
        limit = self._settings.deadlines.start_s
        self._board.begin(role.name, "start", "starting", limit)
        try:
            async with asyncio.timeout(limit):
                await self._runtime.start(role)
        except TimeoutError:
            raise RoleLate(role.name, "start", f"not built within {limit:g} s") from None
        finally:
            self._board.end(role.name)

    async def _restart(self, role: str, error: RoleError) -> None:
        limit, budget = self._settings.deadlines.start_s, self._settings.retries.max_restarts
        while True:
            if self.restarts[role] >= budget:
                raise RunFailed(f"{error} (restarted {self.restarts[role]} times, max_restarts={budget})")
            self.restarts[role] += 1
            self._record("restart", role=role, why=error.what)
            self._board.begin(role, "restart", "restarting", limit)
            try:
                async with asyncio.timeout(limit):
                    await self._runtime.restart(role)
                return
            except TimeoutError:
                error = RoleLate(role, "restart", f"not built within {limit:g} s")
            except RoleError as again:
                error = again
            finally:
                self._board.end(role)
