"""The coordinator: collection, learning and evaluation at the same time, under the ledgers' rules.

           tickets                 rollouts               versions
    queue ---------> collect loop ----------> learn loop ----------> newest snapshot
      ^              (one a seat)             (one a line)               |
      |                                           |   +--> evaluate loop <+
      +--------------- slots freed ---------------+

One asyncio task group in one thread: whatever stands between two awaits happens at once, so there are no
locks but the one between the updates of several lines. The coordinator decides and waits; it never computes. All work
is a call to a role (`RoleCalls`), all waiting is on the `Board`, all counting in the `Ledger` of each `Line`.

    loop       file             consumes         produces           waits for                   woken by
    collect    collecting.py    open tickets     rollouts           a ticket (a slot)           publish, drop, reissue
    learn      learning.py      ready rollouts   versions           a batch in order; credit    a landing
    evaluate   evaluating.py    a snapshot       a score            an evaluation that is due   publish
    reanalyze  reanalyzing.py   old targets      newer ones         a newer version             publish
    push       collecting.py    a snapshot       (in a collector)   a newer version             publish
    moving     moving.py        notices          roles elsewhere    a place that goes away      the runtime

Stopping: the learn loop of the first line ends when the plan is reached or a stop is requested; the other lines learn
from what is there; then all others are taken along. What is in flight then is returned to the ledgers and, with a
checkpoint, collected again on resume.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace

from headway.coordinator.activities import WAITS
from headway.coordinator.activities_waits import Board, Stalled
from headway.coordinator.checkpoint import CheckpointStore, RunState
from headway.coordinator.checkpoint_best_weights import BestWeights
from headway.coordinator.coordinator_parts import wire
from headway.coordinator.journal import Journal
from headway.coordinator.role_calls import RoleCalls, RunFailed
from headway.coordinator.roles import EVALUATOR, LEARNER, REANALYZER, Stations, publisher_name
from headway.coordinator.run_result import LineResult, RunResult
from headway.coordinator.run_result_control import INTERRUPTED, RunControl
from headway.coordinator.run_result_evaluations import Evaluations
from headway.coordinator.saving import with_number_in_force
from headway.coordinator.scaling import CollectorChange
from headway.coordinator.settings import Settings
from headway.core.events import Ended, EvaluationAbandoned, Failed, RoleBusy, RoleWaits, RunBegan, Stopped
from headway.core.ledger import Ledger
from headway.core.os_errors import refusal
from headway.core.protocols import RoleError, RoleRaised, Runtime
from headway.core.text_naming import learner_name
from headway.core.types_opaque import JsonObject, SettingValue
from headway.runs.event_log import Recorder
from headway.runs.samples import SampleLog

CLOCK_S = 1.0
"""Between two looks whether a run that ends by the clock has enough time left for its last evaluation."""


class Coordinator:
    """Runs the loops. Give it stations, settings and a runtime, then `runtime.run(coordinator.run())`."""

    def __init__(
        self,
        stations: Stations,
        settings: Settings,
        runtime: Runtime,
        *,
        recorder: Recorder | None = None,
        checkpoints: CheckpointStore | None = None,
        best: BestWeights | None = None,
        samples: SampleLog | None = None,
        resume: RunState | None = None,
        config: Mapping[str, object] | None = None,
        when_begun: Callable[[], None] | None = None,
    ) -> None:
        """`config` is what the recipe was told, for the log: whoever does the run again needs it. `when_begun` is
        called once, when every role has started and what was saved is restored."""
        if set(settings.lines) != set(stations.lines):
            raise ValueError(
                f"the settings have the lines {sorted(settings.lines)}, the stations {sorted(stations.lines)}"
            )
        if not (settings.plan.evaluates_last or settings.plan.evaluate_first):
            stations = replace(stations, evaluator=None)  # nobody would ever ask it
        if stations.shares_collector and (settings.evaluate_in_background or settings.parks):
            raise ValueError(
                "an evaluator that shares a collector needs evaluations that pause the run and let what is in flight "
                "land: evaluate_in_background=False, evaluation_waits_for='landed'"
            )
        configured, settings = settings.collectors, with_number_in_force(settings, resume)
        self.settings = settings
        self.runtime = runtime
        self.board = Board(runtime.now, None if recorder is None else self._tell)
        self._stations = stations
        self._resume = resume
        self._begun = _Begun(config, when_begun, runtime.now())
        self._journal = Journal(recorder, runtime.now, begin_s=resume.events_s if resume else 0.0)
        self._calls = calls = RoleCalls(runtime, self.board, settings, self._journal)
        self._control = RunControl(self.board)
        self._task: asyncio.Task[object] | None = None
        self._parts = parts = wire(
            calls,
            self._control,
            has_evaluator=stations.evaluator is not None,
            rooted=(*map(learner_name, settings.all_lines), *self._stations.replay_names),
            stop=self.request_stop,
            wall_s=lambda: self.wall_s,
            after_publish=self._after_publish,
            after_publish_of_others=self._wake_publishers,
            store=checkpoints,
            best=best,
            samples=samples,
        )
        self.lines = parts.lines
        parts.scaling.stations = stations
        self._collecting, self._evaluating = parts.collecting, parts.evaluating
        self._evaluating.is_shared = stations.shares_collector
        self._checkpointing, self._reanalyzing = parts.checkpointing, parts.reanalyzing
        self._checkpointing.configured_collectors = configured

    # -- for whoever runs it ------------------------------------------------------------------------

    async def run(self) -> RunResult:
        """Start the roles, run the loops, evaluate and save at the end, close everything."""
        self._task = asyncio.current_task()
        described = {"runtime": self.runtime.name, **self.settings.describe()}
        self._journal.write(RunBegan, described, self._begun.config)
        try:
            await self._begin()
            await self._run_loops()
            return await self._finish()
        except (RoleError, RunFailed, Stalled, ConnectionError) as error:
            self._journal.write(Failed, str(error))
            if isinstance(error, ConnectionError):  # the runtime found no place to run in
                raise RunFailed(str(error)) from error
            if isinstance(error, RoleError):
                raise RunFailed(f"{error}{self._way_back(error)}") from error
            raise
        except (OSError, MemoryError, RuntimeError) as error:
            if (why := refusal(error)) is not None:  # `launch` says how to go on: here the way back may be shut too
                self._journal.write(Failed, why)
            raise
        finally:
            self._parts.scaling.end()
            self.board.stop_checking()
            await self._checkpointing.close()
            await self.runtime.close()
            self._journal.close()

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run `callback` in the coordinator's thread, at once if it is waiting. For signal handlers."""
        if self._task is None:
            callback()
        elif not self._task.get_loop().is_closed():
            self._task.get_loop().call_soon_threadsafe(callback)

    def abort(self) -> None:
        """End without saving: roles are stopped, nothing is left running."""
        if self._task is not None:
            self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    def request_stop(self, reason: str = INTERRUPTED) -> None:
        """Finish the update under way, save, and end. Safe to call at any time, more than once.

        An interruption abandons the evaluation under way, also that of the last version, when the plan is reached.
        """
        self._control.stop_now(reason)
        if reason.startswith(INTERRUPTED):
            self._evaluating.abandon()
            self.board.wake(LEARNER)

    def scale(self, collectors: int, answer: Future[CollectorChange], ticket: int | None = None) -> None:
        """Have so many collectors from now on, in a pinned run from `ticket` on if that is said; the answer may be
        `ScaleRefused`. To be called in the run's thread."""
        self._parts.scaling.ask(collectors, answer, ticket)

    def why(self) -> str:
        """Who does what or waits for what, since when, at which version."""
        return "\n".join([*(line.why() for line in self.lines), self.board.why()])

    @property
    def ledger(self) -> Ledger:
        """That of the first line, as are `version`, `updates`, `lead` and `metrics`."""
        return self.lines[0].ledger

    @property
    def version(self) -> int:
        return self.lines[0].version

    @property
    def updates(self) -> int:
        return self.lines[0].updates

    @property
    def lead(self) -> float:
        return self.lines[0].lead.current

    @property
    def metrics(self) -> JsonObject:
        return self.lines[0].metrics

    @property
    def evaluations(self) -> Evaluations:
        return self._evaluating.evaluations

    @property
    def engines(self) -> dict[str, tuple[float, Mapping[str, float]]]:
        """Collector -> when it landed, and what its engine said of itself then."""
        return self._collecting.engines

    @property
    def wall_s(self) -> float:
        """Seconds of this run, earlier sessions included."""
        earlier_s = 0.0 if self._resume is None else self._resume.wall_s
        return earlier_s + self.runtime.now() - self._begun.first_ticket_at

    @property
    def elapsed_s(self) -> float:
        """The clock of the event log: it goes on where the last session's checkpoint left it."""
        return self._journal.time_s

    @property
    def publish_retries(self) -> int:
        """Attempts to hand a version on that failed, in this session."""
        return self._calls.publish_retries

    @property
    def restarts(self) -> Counter[str]:
        """Role -> how often it was built anew in this session."""
        return self._calls.restarts

    # -- beginning ----------------------------------------------------------------------------------

    async def _begin(self) -> None:
        settings, stations, plan = self.settings, self._stations, self.settings.plan
        self.board.rest(self._role_names(), "starting", "the others to start")
        await self._calls.start_all(stations.roles(settings.collectors, settings.lanes))
        for line in self.lines:
            shared = stations.lines[line.name].replay if line.name else stations.replay
            is_reanalyzed = stations.reanalyzer is not None and not line.name
            await line.learner.check(shares_replay=shared is not None, has_reanalyzer=is_reanalyzed)
        await self._collecting.check()
        self._begun.first_ticket_at = self.runtime.now()
        self._checkpointing.begin(self.runtime.now())
        if self._resume is None:
            for line in self.lines:
                await line.publishing.begin()
            self._parts.flights.companions.begin()
            if stations.evaluator is not None and plan.evaluate_first:
                self._evaluating.hold()
        else:
            await self._checkpointing.restore(self._resume, evaluates_last=self._evaluates_last)
        if self._begun.tell is not None:
            await self.runtime.offload(self._begun.tell)
        if not self._evaluating.has_loop:
            await self._evaluating.evaluate_meanwhile()
        self._parts.learnings[0].look()
        self._collecting.open_first()

    @property
    def _evaluates_last(self) -> bool:
        return self.settings.plan.evaluates_last and self._stations.evaluator is not None

    def _role_names(self) -> list[str]:
        """Who stands on the board from the beginning to the end; with lanes, the seats."""
        stations = self._stations
        beside = [EVALUATOR] if stations.evaluator is not None else []
        beside += [REANALYZER] if stations.reanalyzer is not None else []
        return [*(line.role for line in self.lines), *self._collecting.names, *beside, *self._stations.replay_names]

    def _rest_on_call(self) -> None:
        """Who has a loop is between two things when it does nothing; others wait until somebody asks them."""
        asked = self._stations.replay_names
        self.board.rest(name for name in self._role_names() if name != EVALUATOR and name not in asked)
        if self._stations.evaluator is not None:
            self.board.rest([EVALUATOR], "due", "an evaluation that is due")
        self.board.rest(asked, "asked", "the next call")

    # -- the loops ----------------------------------------------------------------------------------

    async def _run_loops(self) -> None:
        self._rest_on_call()
        try:
            async with asyncio.TaskGroup() as group:
                self._parts.scaling.begin(group)
                try:
                    await self._run_beside_collectors(group)
                finally:
                    self._parts.scaling.end()
        except BaseExceptionGroup as failures:
            first: BaseException = failures
            while isinstance(first, BaseExceptionGroup):  # the moving loop has a group of its own
                first = first.exceptions[0]
            raise first from first.__cause__

    async def _run_beside_collectors(self, group: asyncio.TaskGroup) -> None:
        settings = self.settings
        loops: list[asyncio.Task[None]] = []
        if self._evaluating.has_loop:
            loops.append(group.create_task(self._evaluating.loop()))
        if self._stations.reanalyzer is not None and not self._reanalyzing.is_in_turn:
            loops.append(group.create_task(self._reanalyzing.loop()))
        if self._parts.moving.is_possible(self.runtime):
            loops.append(group.create_task(self._parts.moving.loop()))
        if settings.plan.wall_s is not None:
            loops.append(group.create_task(self._watch_the_clock(settings.plan.wall_s)))
        await self._learn_in_all_lines(group)
        if settings.evaluate_in_background:
            await self._evaluating.wait_for_all()
        self.board.rest(self.board.roles, "ending", "the end of the run")
        self._parts.scaling.end()
        for loop in loops:
            loop.cancel()

    async def _learn_in_all_lines(self, group: asyncio.TaskGroup) -> None:
        """Until the first line has reached the plan and the others have learned from what is there.

        What was learned since the last version is saved before it is published: whoever goes on from here completes
        that version, and starts no short one.
        """
        others = [group.create_task(learning.loop()) for learning in self._parts.learnings[1:]]
        await self._parts.learnings[0].loop()
        for line in self.lines[1:]:
            self.board.wake(line.role)
        for other in others:
            self.board.begin(LEARNER, "lines", "the other lines to learn from what is there", self.settings.patience_s)
            try:
                await asyncio.wait([other])
            finally:
                self.board.end(LEARNER)
        unfinished = [learning for learning in self._parts.learnings if learning.is_in_a_version]
        if unfinished and not self._control.is_interrupted:
            saved = await self._checkpointing.save(is_end=True)
            self._checkpointing.is_saved = True
            for learning in unfinished:
                await learning.publish_last(saved)

    async def _after_publish(self) -> None:
        """A version of the first line exists, and its slots are free."""
        self.board.wake(REANALYZER)
        if self._reanalyzing.is_in_turn:
            await self._reanalyzing.in_turn()
        await self._wake_publishers()
        if self._evaluating.is_asked_for:
            await self._evaluating.ask()
        await self._checkpointing.save_if_due()

    async def _wake_publishers(self) -> None:
        if self.settings.on_publish == "partial":
            for number in range(self._parts.scaling.collectors):
                self.board.wake(publisher_name(number))

    async def _watch_the_clock(self, wall_s: float) -> None:
        """Stop learning so early that the last evaluation ends in time, if it takes no longer than those before."""
        while True:
            needed_s = self._evaluating.seconds_to_the_last() if self._evaluates_last else 0.0
            left_s = wall_s - min(needed_s, wall_s / 2) - self.wall_s
            if left_s <= 0:
                break
            await asyncio.sleep(min(left_s, CLOCK_S))  # an evaluation that ends meanwhile may have taken longer
        self.request_stop(f"reached {wall_s:g} seconds")
        if self._evaluating.has_loop and self.version not in self.evaluations.waiting:
            self._evaluating.skip_waiting()

    # -- the end ------------------------------------------------------------------------------------

    async def _finish(self) -> RunResult:
        """Evaluate the last version, save, close the ledgers."""
        self._journal.write(Stopped, self._control.stop_reason)
        won = await self._evaluating.winning_weights()
        if self._evaluates_last and not won and not self._control.abandons_evaluations:
            await self._evaluating.evaluate_last()
        wall_s = self.runtime.now() - self._begun.first_ticket_at
        if not self._checkpointing.is_saved:
            await self._checkpointing.save()
        results: dict[str, LineResult] = {}
        time_spent = self.board.time_spent()
        for line in self.lines:
            weights = await line.publishing.newest_weights(line.role)
            if not line.name:
                time_spent = self.board.time_spent()
            results[line.name] = line.close(weights)
        abandoned = self._evaluating.abandoned(evaluates_last=self._evaluates_last and not won)
        for version in abandoned:
            self._journal.write(EvaluationAbandoned, version)
        first = results.pop("")
        others = {name: [one.version, one.updates, one.ledger.returned] for name, one in results.items()}
        self._journal.write(Ended, first.version, first.updates, first.ledger.returned, others)
        if won:
            first = replace(first, version=won[""].version, weights=won[""].payload)
            results = {
                name: replace(one, version=won[name].version, weights=won[name].payload)
                for name, one in results.items()
            }
        return RunResult(
            stop_reason=self._control.stop_reason,
            version=first.version,
            updates=first.updates,
            weights=first.weights,
            scores=tuple(self.evaluations.scores),
            ledger=first.ledger,
            time_spent=time_spent,
            wall_s=wall_s,
            settings=self.settings,
            restarts=sum(self.restarts.values()),
            evaluations_skipped=self.evaluations.skipped,
            lead=first.lead,
            metrics=first.metrics,
            evaluations_abandoned=abandoned,
            lines=results,
        )

    def _way_back(self, error: RoleError) -> str:
        """What to do about a role that took with it what nobody else has, or about an update that failed."""
        way_back = self._checkpointing.way_back()
        if error.method == "learn":
            return f"; {way_back or 'no checkpoint was saved yet'}" if self._checkpointing.store else ""
        if error.role not in self._stations.replay_names or error.method == "start" or isinstance(error, RoleRaised):
            return ""
        if way_back is None:
            return "; what it held is gone, and there is no checkpoint to go back to yet"
        return f"; what it held is gone: {way_back}"

    def _tell(self, role: str, activity: str) -> None:
        """A role turns to something that no other event tells of."""
        self._journal.write(RoleWaits if activity in WAITS else RoleBusy, role, activity)


@dataclass(slots=True)
class _Begun:
    """How a run begins: what the recipe was told, who is told when it has begun, and when that was."""

    config: Mapping[str, SettingValue] | None
    tell: Callable[[], None] | None
    first_ticket_at: float
