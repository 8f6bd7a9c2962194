"""The evaluate loop: versions of the first line that are due, one at a time, each pinned to what it uses.

Two postures. Blocking: collection and learning pause, what is in flight lands or is parked where it is
(`evaluation_waits_for`), the evaluation runs, they go on. In the background: the evaluate loop takes a held snapshot
while everything else continues.

Where a run has several lines, an evaluation uses one version of each. In a pinned run those of the other lines are the
ones that the last rollout of the evaluated version was made with, so that scores do not depend on timing; the last
evaluation of a run, and those of a free run, use the newest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from headway.coordinator.checkpoint_best_weights import BestWeights
from headway.coordinator.collectors_collector_calls import CollectorCalls
from headway.coordinator.learning_ending import Ending
from headway.coordinator.role_calls import RoleCalls
from headway.coordinator.roles import EVALUATOR, LEARNER
from headway.coordinator.run_result_control import RunControl
from headway.coordinator.run_result_evaluations import Evaluations
from headway.coordinator.tickets_flights import Flights
from headway.core.events import BestKept, EvaluationBegan, EvaluationEnded, EvaluationSkipped
from headway.core.protocols import PayloadLost
from headway.core.types import Phase, Score, Snapshot
from headway.runs.samples import SampleLog


class Evaluating:
    """Asks for scores, keeps the best weights, and says when a target is reached."""

    def __init__(
        self,
        evaluations: Evaluations,
        flights: Flights,
        collectors: CollectorCalls,
        calls: RoleCalls,
        control: RunControl,
        ending: Ending,
        *,
        best: BestWeights | None = None,
        samples: SampleLog | None = None,
    ) -> None:
        self.evaluations = evaluations
        self._flights = flights
        self._first = flights.first
        self._collectors = collectors
        self._calls = calls
        self._board = calls.board
        self._control = control
        self._ending = ending
        self._best = best
        self._samples = samples
        self._in_background = calls.settings.evaluate_in_background
        self._under_way: asyncio.Task[Score] | None = None
        self._began_s = self._longest_s = 0.0  # the last evaluation's beginning, the longest one of this session
        self.is_shared = False
        """Does the first collector evaluate, in place of a role of its own?"""
        self.is_asked_for = False
        """Is an evaluation due of the version that was published last?"""
        self.companions: dict[int, Mapping[str, int]] = {}
        """Version that is due -> the versions of the other lines that are evaluated with it; held until then."""

    @property
    def has_loop(self) -> bool:
        return bool(self.evaluations.every) and self._in_background

    # -- asking -------------------------------------------------------------------------------------

    def pause_if_due(self) -> None:
        """A version was published. Is its evaluation due? If it blocks, nothing takes off until it is over."""
        self.is_asked_for = self.evaluations.is_due(self._first.version)
        self._control.is_paused = self.is_asked_for and not self._in_background

    async def ask(self) -> None:
        """Blocking: wait for what is in flight or park it, evaluate, go on. Background: leave it to the loop.

        A pinned run with a target score must not depend on how long an evaluation takes: it waits for the
        one before, and looks here whether that reached the target.
        """
        if not self._in_background:
            parks = self._calls.settings.parks
            await (self._collectors.park() if parks else self._wait_until_landed())
            self.hold()
            await self._with_others_at_rest()
            if parks:
                await self._collectors.go_on()
            self._control.is_paused = False
            self._flights.dispatch.wake_idle()
        else:
            if self._ending.defers_target and self._calls.settings.plan.target_score is not None:
                await self.wait_for_all()
            if self._ending.look_at_score():
                self._skip(self._first.version)
                return
            self.hold()
            self._board.wake(EVALUATOR)

    def hold(self, *, is_last: bool = False) -> None:
        """The newest version is to be evaluated."""
        first = self._first
        first.snapshots.hold(first.version)
        pinned = self._calls.settings.is_pinned and not is_last
        for line in self._flights.lines[1:]:
            version = self._flights.companions.of_newest[line.name] if pinned else line.version
            line.snapshots.hold(version)
            self.companions[first.version] = {**self.companions.get(first.version, {}), line.name: version}
        replaced = self.evaluations.ask(first.version)
        if replaced is not None:
            self._let_go(replaced)
            self._calls.journal.write(EvaluationSkipped, replaced)

    def _let_go(self, version: int) -> None:
        self._first.snapshots.let_go(version)
        companions = self.companions.pop(version, {})
        for line in self._flights.lines[1:]:
            line.snapshots.let_go(companions[line.name])

    async def _wait_until_landed(self) -> None:
        ledger = self._first.ledger
        while any(entry.phase is Phase.IN_FLIGHT for entry in ledger.live()) and not self._control.stop_reason:
            doing = "what is in flight to land before an evaluation"
            await self._board.wait(LEARNER, "landing", doing, self._calls.patience_s)

    async def _with_others_at_rest(self) -> None:
        """No learner of another line is in the middle of an update while a blocking evaluation runs."""
        async with self._flights.turns_of_others():
            await self.evaluate_meanwhile()

    async def wait_for_all(self) -> None:
        """Until no evaluation is unfinished."""
        while self.evaluations.unfinished and not self._control.abandons_evaluations:
            await self._board.wait(
                LEARNER,
                "evaluation",
                lambda: f"the evaluation of version {self.evaluations.unfinished[0]}",
                self._calls.patience_s,
            )

    # -- evaluating ---------------------------------------------------------------------------------

    async def loop(self) -> None:
        """Consumes due versions, produces scores. Waits for: a version that is due. Woken by: publish.
        Ends: with the learn loop of the first line, after the evaluation under way.
        """
        while True:
            while not self.evaluations.waiting or self._control.abandons_evaluations:
                await self._board.wait(EVALUATOR, "due", "an evaluation that is due", float("inf"))
            await self._evaluate()

    async def evaluate_meanwhile(self) -> None:
        """The learner stands by until every version that is due has its score."""
        if self.evaluations.waiting:
            version = self.evaluations.waiting[0]
            self._board.begin(LEARNER, "evaluation", f"the evaluation of version {version}", self._calls.patience_s)
            try:
                while self.evaluations.waiting and not self._control.abandons_evaluations:
                    await self._evaluate()
            finally:
                self._board.end(LEARNER)

    def abandon(self) -> None:
        """An interruption: the evaluation under way stays unfinished, and none begins."""
        self._control.abandons_evaluations = True
        if self._under_way is not None:
            self._under_way.cancel()

    async def _evaluate(self) -> None:
        version = self.evaluations.begin()
        snapshot = self._snapshot_of(version)
        others = {name: part.version for name, part in snapshot.others.items()}
        self._calls.journal.write(EvaluationBegan, version, others)
        shared = self._collectors if self.is_shared else None
        self._began_s = self._calls.runtime.now()
        self._under_way = asyncio.create_task(self._calls.evaluate(snapshot, shared))
        try:
            score = await self._under_way
        except asyncio.CancelledError:
            here = asyncio.current_task()
            if not self._control.abandons_evaluations or (here is not None and here.cancelling()):
                raise
            return  # it stays unfinished: a checkpoint remembers it
        finally:
            self._under_way = None
        self._longest_s = max(self._longest_s, self._calls.runtime.now() - self._began_s)
        if score.samples:
            if self._samples is not None:
                self._samples.evaluated(score)
            score = replace(score, samples=())  # they are not kept twice
        if self._best is not None and self._best.is_beaten_by(score):
            await self._keep_best(self._best, score)
        self.evaluations.end(score)  # not before: the run may end when no evaluation is unfinished
        if self._ending.winner is not score:
            self._let_go(version)
        self._calls.journal.write(EvaluationEnded, version, score.value, dict(score.metrics), score.error)
        # Whatever else is reached, the learn loop finds out between two updates.
        if not self._ending.defers_target and self._ending.look_at_score():
            self.skip_waiting()
        self._board.wake(LEARNER)

    def skip_waiting(self) -> None:
        """The run ends: with the version that reached the target, or with a newer one than waits."""
        for version in self.evaluations.waiting:
            self._let_go(version)
            self._skip(version)
        self.evaluations.waiting.clear()

    def _skip(self, version: int) -> None:
        self.evaluations.skipped += 1
        self._calls.journal.write(EvaluationSkipped, version)

    def _snapshot_of(self, version: int) -> Snapshot:
        parts = {"": self._first.snapshots.get(version)}
        for line in self._flights.lines[1:]:
            parts[line.name] = line.snapshots.get(self.companions[version][line.name])
        return self._flights.weights.joined(parts)

    async def _keep_best(self, best: BestWeights, score: Score) -> None:
        """Only a new best brings its weights here from where they are. They are still held."""
        try:
            weights = await self._first.publishing.weights_of(self._first.snapshots.get(score.version), EVALUATOR)
            others: dict[str, Snapshot] = {}
            for line in self._flights.lines[1:]:
                beside = line.snapshots.get(self.companions[score.version][line.name])
                others[line.name] = Snapshot(beside.version, await line.publishing.weights_of(beside, EVALUATOR))
        except PayloadLost:
            return  # gone with their node since the evaluation: the best before stays
        what = f"best weights so far, version {score.version}"
        await self._calls.write_file(EVALUATOR, what, lambda: best.save(score, weights, others))
        assert score.value is not None
        self._calls.journal.write(BestKept, score.version, score.value)

    # -- the end ------------------------------------------------------------------------------------

    async def evaluate_last(self) -> None:
        """The version a run ends with is evaluated, if it was not."""
        if not self.evaluations.has_seen(self._first.version):
            self.hold(is_last=True)
        await self.evaluate_meanwhile()

    def seconds_to_the_last(self) -> float:
        """What a run that stops soon still needs for evaluations, by the longest so far: for the one under way, the one
        that is about to begin and the last one."""
        version, running = self._first.version, self.evaluations.running
        left_s = 0.0 if running is None else self._longest_s - (self._calls.runtime.now() - self._began_s)
        is_known = version == running or self.evaluations.has_seen(version)
        return max(0.0, left_s) + self._longest_s * (len(self.evaluations.waiting) + (not is_known))

    async def winning_weights(self) -> dict[str, Snapshot]:
        """Line -> the version that reached the target, if that is why the run is over, and its weights."""
        winner = self._ending.winner
        if winner is None or self._control.stop_reason != self._ending.target_reached():
            return {}
        if not self._first.snapshots.has(winner.version):
            return {}  # of a checkpoint that did not keep it
        snapshot = self._snapshot_of(winner.version)
        try:
            return {
                line.name: Snapshot(part.version, await line.publishing.weights_of(part, LEARNER))
                for line, part in zip(self._flights.lines, (snapshot, *snapshot.others.values()), strict=True)
            }
        except PayloadLost:
            return {}  # gone with their node since the evaluation

    def abandoned(self, *, evaluates_last: bool) -> tuple[int, ...]:
        """The versions whose evaluation an interruption cut off, or kept from beginning: a resumed run makes up for
        them."""
        if not self._control.abandons_evaluations:
            return ()
        unfinished, version = self.evaluations.unfinished, self._first.version
        is_done = self.evaluations.has_seen(version) or version in unfinished or self._control.is_interrupted
        return unfinished if is_done or not evaluates_last else (*unfinished, version)

    def restore(
        self, scores: tuple[Score, ...], skipped: int, due: tuple[int, ...], companions: Mapping[int, Mapping[str, int]]
    ) -> None:
        """Go on with what a checkpoint remembers."""
        self.evaluations.scores = list(scores)
        self.evaluations.skipped = skipped
        winner = self._ending.winner
        held = list(due)
        if winner is not None and self._first.snapshots.has(winner.version):
            held.append(winner.version)
        for version in held:
            self._first.snapshots.hold(version)
            for line in self._flights.lines[1:]:
                line.snapshots.hold(companions[version][line.name])
        self.companions = {version: companions[version] for version in held if version in companions}
        self.evaluations.waiting = list(due)
