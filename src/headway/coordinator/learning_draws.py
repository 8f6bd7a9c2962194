"""What an update trains on when there is a replay.

    replay inside the learner     an empty batch: the learner draws by itself
    replay with its own role      pinned   sample --> learn --> update, sample --> learn --> update, sample --> ...
                                  free     sample --> learn ---------> learn ---------> learn --> ...
                                                      sample           update, sample   update, sample

In a pinned run the calls come in turn, so the seed decides every bit. In a free run the feedback of the last update and
the draw for the next one are handled beside the update, and the learner waits for neither.

A replay may give work to a reanalyzer (`oldest`) and take newer targets back (`refresh`), in turn or, where it has its
own role, from another loop beside all this.

Invariants: the replay gets one call at a time, in the order of the event log; it has the feedback of every update
before anything else is asked of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from headway.coordinator.activities_waits import Board
from headway.coordinator.role_calls import RunFailed
from headway.coordinator.role_calls_learner_calls import LearnerCalls
from headway.core.types import Batch, LearnReport, Rollout
from headway.core.types_opaque import CoroutineOf, Payload, SavedState

T = TypeVar("T")


class Draws:
    """All that is asked of the replay: rollouts in, draws out, and back what the learner says about them."""

    def __init__(
        self, learner: LearnerCalls, board: Board, release: Callable[[Payload], None], *, deadline_s: float
    ) -> None:
        self._learner = learner
        self._board = board
        self._release = release
        self._deadline_s = deadline_s
        self._ahead: Rollout | None = None
        self._reports: deque[LearnReport] = deque()  # whose feedback the replay has not seen
        self.delivered = 0
        """Reports whose feedback the replay has seen, in this session."""
        self._turn = asyncio.Lock()  # two loops ask: one call at a time, feedback first

    @property
    def is_shared(self) -> bool:
        """Has the replay a role of its own?"""
        return self._learner.shares_replay

    async def insert(self, batch: Batch) -> None:
        async with self._turn:
            await self._deliver()
            await self._learner.insert(batch)

    async def batch(self, version: int) -> Batch:
        """For an update at `version`: the draw that was made ahead, or one made now."""
        if not self.is_shared:
            return Batch(version, ())
        draw, self._ahead = self._ahead, None
        if draw is None:
            self._board.begin(self._learner.role, "draw", f"from the replay, at version {version}", self._deadline_s)
            try:
                draw = await self._sample(version)
            finally:
                self._board.end(self._learner.role)
        return Batch(version, (draw,))

    async def beside(self, learning: CoroutineOf[T], version: int) -> T:
        """Make the next draw while this update is trained."""
        try:
            async with asyncio.TaskGroup() as group:
                drawing = group.create_task(self._sample(version))
                result = await learning
        except BaseExceptionGroup as failures:
            first = failures.exceptions[0]
            raise first from first.__cause__
        self._ahead = drawing.result()
        return result

    def give_back(self, batch: Batch, report: LearnReport) -> None:
        """The update is done: its draw is not needed any more, its feedback is for the replay."""
        if not self.is_shared:
            raise RunFailed("learn reported feedback, but no replay has its own role to take it")
        for draw in batch.rollouts:
            self._release(draw.payload)
        if report.feedback is not None:
            self._reports.append(report)

    async def deliver_feedback(self) -> None:
        """In the order of the updates."""
        async with self._turn:
            await self._deliver()

    async def oldest(self, version: int) -> Rollout | None:
        """What is to be reanalyzed, if anything is."""
        async with self._turn:
            await self._deliver()
            return await self._learner.oldest(version)

    async def refresh(self, targets: Rollout) -> None:
        """Newer targets for what `oldest` gave."""
        async with self._turn:
            await self._deliver()
            await self._learner.refresh(targets)

    async def _deliver(self) -> None:
        """Before anything else is asked of the replay."""
        while self._reports:
            report = self._reports.popleft()
            await self._learner.give_feedback(report)
            self.delivered += 1
            self._release(report.feedback)

    async def state(self) -> SavedState:
        """What the replay holds; none of it is here if the learner has it."""
        async with self._turn:
            await self._deliver()
            return await self._learner.replay_state() if self.is_shared else None

    async def _sample(self, version: int) -> Rollout:
        async with self._turn:
            await self._deliver()
            return await self._learner.sample(version)
