"""What is said to the learner of a line, and to its replay where that has a role of its own.

Handing on a snapshot has two phases. Here the learner *stages* it: the runtime freezes the weights and gives back a
reference. A collector that holds weights itself then *applies* it (`applying.py`). Both are retried under a
deadline.
"""

from __future__ import annotations

from headway.coordinator.role_calls import RoleCalls, RunFailed
from headway.coordinator.roles import REANALYZER, replay_name
from headway.core.events import Drawn
from headway.core.protocols import RoleRaised
from headway.core.text_naming import learner_name
from headway.core.types import Batch, LearnReport, Rollout, Snapshot
from headway.core.types_opaque import RoleAnswer, SavedState


class LearnerCalls:
    """Speaks to one learner, and to the replay it trains from."""

    def __init__(self, calls: RoleCalls, line: str) -> None:
        self._calls = calls
        self._line = line
        self.role = learner_name(line)
        self.replay_role = replay_name(line)
        self.shares_replay = False
        """Does the replay have a role of its own?"""
        self.offers_targets = False
        """Is there a replay that gives work to the reanalyzer?"""

    async def check(self, *, shares_replay: bool, has_reanalyzer: bool) -> None:
        """Find out where the replay is, and refuse settings that do not fit it."""
        has_replay = await self._calls.ask_at_start(self.role, "has_replay")
        self.shares_replay = shares_replay
        if has_reanalyzer and (has_replay or shares_replay):
            keeper = self.replay_role if shares_replay else self.role
            self.offers_targets = await self._calls.ask_at_start(keeper, "offers_targets")
        if has_replay and shares_replay:
            raise RunFailed("two replays: the learner keeps one (it has an insert method), and one has its own role")
        ratio = self._calls.settings.all_lines[self._line].replay
        if (has_replay or shares_replay) and ratio is None:
            owner = "there is a replay with its own role" if shares_replay else "the learner keeps a replay"
            raise RunFailed(f"{owner} (it has an insert method): set `replay`")
        if ratio is not None and not (has_replay or shares_replay):
            raise RunFailed("`replay` is set, but the learner has no insert method, and no replay has its own role")
        if has_reanalyzer and not self.offers_targets:
            raise RunFailed("a reanalyzer needs a replay that gives it work (methods oldest and refresh)")

    @property
    def _learn_s(self) -> float:
        return self._calls.settings.deadlines.learn_s

    # -- the learner --------------------------------------------------------------------------------

    async def learn(self, batch: Batch, publish_as: int | None) -> tuple[LearnReport, Snapshot | None, str]:
        """The report, and with `publish_as` the snapshot of that version, or why there is none."""
        doing = f"{len(batch.rollouts)} rollouts at version {batch.version}"
        answer: tuple[LearnReport, Snapshot | None, str] = await self._calls.call(
            self.role, "learn", doing, self._learn_s, batch, publish_as
        )
        return answer

    async def stage_again(self, version: int, problem: str) -> Snapshot:
        """The first attempt failed, with the update that made this version."""
        self._calls.note_retry(self.role, version, problem)
        return await self.stage(version, attempts_made=1)

    async def stage(self, version: int, attempts_made: int = 0, waiter: str | None = None) -> Snapshot:
        """The learner's weights, frozen, as `version`. Any other role that waits for them lets an update end first."""
        settings, board = self._calls.settings, self._calls.board
        retries, limit = settings.retries, settings.deadlines.publish_s
        waiter = waiter or self.role
        if waiter != self.role:
            limit += settings.deadlines.learn_s
        what = "no attempt was left"
        for attempt in range(attempts_made, retries.publish_attempts):
            if attempt:
                await self._calls.pause_before_retry(waiter)
            try:
                doing = "snapshot" if waiter == self.role else "weights"
                board.begin(waiter, doing, f"version {version}", limit)
                snapshot = await self._calls.runtime.call(self.role, "snapshot", version, deadline_s=limit)
                assert isinstance(snapshot, Snapshot)
                return snapshot
            except RoleRaised as error:
                self._calls.note_retry(self.role, version, error.what)
                what = error.what
            finally:
                board.end(waiter)
        raise RunFailed(f"version {version} could not be published in {retries.publish_attempts} attempts: {what}")

    async def state(self, waiter: str, folder: str | None = None) -> SavedState:
        """What must survive a restart; `waiter` is who asks for it, on the board. Files go into `folder`."""
        return await self._calls.call(self.role, "state", "its state", self._learn_s, folder, name=waiter)

    async def restore(self, state: object) -> None:
        await self._calls.call(self.role, "restore", "its state", self._calls.settings.deadlines.start_s, state)

    # -- the replay ---------------------------------------------------------------------------------

    async def insert(self, batch: Batch) -> None:
        doing = f"{len(batch.rollouts)} rollouts for the replay"
        role = self.replay_role if self.shares_replay else self.role
        await self._calls.call(role, "insert", doing, self._learn_s, batch)

    async def sample(self, version: int) -> Rollout:
        """A draw of the replay with its own role, recorded in the order in which the replay sees its calls."""
        self._calls.journal.write(Drawn, version, self._line)
        draw = await self._calls.call(self.replay_role, "sample", f"version {version}", self._learn_s, version)
        assert isinstance(draw, Rollout)
        return draw

    async def give_feedback(self, report: LearnReport) -> None:
        """What the learner says about a draw goes back to the replay that made it."""
        report = LearnReport(feedback=report.feedback)
        await self._calls.call(self.replay_role, "update", "the learner's feedback", self._learn_s, report)

    async def replay_state(self) -> SavedState:
        return await self._calls.call(self.replay_role, "state", "its content", self._learn_s)

    async def restore_replay(self, state: object) -> None:
        start_s = self._calls.settings.deadlines.start_s
        await self._calls.call(self.replay_role, "restore", "its content", start_s, state)

    async def oldest(self, version: int) -> Rollout | None:
        """What the replay, wherever it is, wants to have made again."""
        work = await self._ask_keeper("oldest", f"work at version {version}", version)
        assert work is None or isinstance(work, Rollout)
        return work

    async def refresh(self, targets: Rollout) -> None:
        await self._ask_keeper("refresh", "newer targets", targets)

    async def _ask_keeper(self, method: str, doing: str, *args: object) -> RoleAnswer:
        """A replay inside the learner is asked by the reanalyzer, as far as the board is concerned."""
        if self.shares_replay:
            return await self._calls.call(self.replay_role, method, doing, self._learn_s, *args)
        return await self._calls.call(self.role, method, doing, self._learn_s, *args, name=REANALYZER)
