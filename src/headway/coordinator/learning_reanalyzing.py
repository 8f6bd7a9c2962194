"""The reanalyze loop: the oldest targets of the first line's replay are made again with its newest weights."""

from __future__ import annotations

from headway.coordinator.learning_draws import Draws
from headway.coordinator.learning_feed import AnyFeed, ReplayFeed
from headway.coordinator.line import Line
from headway.coordinator.role_calls import RoleCalls
from headway.coordinator.roles import REANALYZER
from headway.core.events import Refreshed, WorkGiven
from headway.core.protocols import PayloadLost
from headway.core.types import Rollout


class Reanalyzing:
    """Brings work from a replay to the reanalyzer, and newer targets back."""

    def __init__(self, line: Line, feed: AnyFeed, calls: RoleCalls) -> None:
        self._line = line
        self._feed = feed
        self._calls = calls

    @property
    def _draws(self) -> Draws:
        assert isinstance(self._feed, ReplayFeed)
        return self._feed.draws

    @property
    def is_in_turn(self) -> bool:
        """After each publish, before anything else is asked of the replay. A pinned run needs that, or timing would
        decide which draw sees which targets; and a replay inside the learner has no time beside it."""
        return self._line.learner.offers_targets and (
            self._calls.settings.is_pinned or not self._line.learner.shares_replay
        )

    async def in_turn(self) -> None:
        """All that is due at this version. The learner stands by; collection goes on."""
        line, board = self._line, self._calls.board
        work = await self._draws.oldest(line.version)
        while work is not None:  # when a stop was asked for, too: what the replay has given out it will not give again
            doing = f"newer targets at version {line.version}"
            board.begin(line.role, "reanalysis", doing, self._calls.settings.patience_s)
            try:
                await self._reanalyze(work, line.version)
            finally:
                board.end(line.role)
            work = await self._draws.oldest(line.version)

    async def loop(self) -> None:
        """Consumes old targets and snapshots, produces newer targets. Waits for: a newer version, once there was
        nothing to do. Woken by: publish. Ends: with the learn loop.
        """
        line = self._line
        while True:
            version = line.version
            work = await self._draws.oldest(version)
            if work is not None:
                await self._reanalyze(work, version)
            while work is None and line.version == version:
                await self._calls.board.wait(REANALYZER, "version", "a newer version", float("inf"))

    async def _reanalyze(self, work: Rollout, asked_at: int) -> None:
        """Make the targets of `work` again with the newest weights, and hand them back. The replay was asked for it at
        version `asked_at`."""
        line, runtime, journal = self._line, self._calls.runtime, self._calls.journal
        journal.write(WorkGiven, asked_at, work.steps, self._draws.delivered)
        began, version = runtime.now(), line.version
        snapshot = line.snapshots.hold(version)
        try:
            targets = await self._calls.reanalyze(snapshot, work)
            await self._draws.refresh(targets)
        except PayloadLost as lost:  # whatever it was, the replay will give the same segments again
            if lost.versions:
                await line.publishing.stage_again(REANALYZER, snapshot)
            return
        finally:
            line.snapshots.let_go(version)
            runtime.release(work.payload)
        seconds = round(runtime.now() - began, 6)
        journal.write(Refreshed, version, work.steps, seconds, self._draws.delivered)
        runtime.release(targets.payload)
