"""The coordinator: collection, learning and evaluation at the same time, under the ledger's rule.

           tickets                 rollouts               versions
    desk ----------> collect loop ----------> learn loop ----------> shelf (newest snapshot)
      ^              (one a collector)            |  \\                   |
      |                                           |   +--> evaluate loop <+
      +--------------- slots freed ---------------+

One asyncio task group in one thread: whatever stands between two awaits happens at once, so there are no
locks. The coordinator decides and waits; it never computes. All work is a call to a role (`Crew`), all
waiting is on the `Board`, all counting in the `Ledger`.

    loop       consumes          produces            waits for                     woken by
    collect    open tickets      rollouts            a ticket (a slot)             publish, drop, reissue
    learn      ready rollouts    versions            a batch in order; credit      a landing
    evaluate   a snapshot        a score             an evaluation that is due     publish
    reanalyze  a snapshot        fresher targets     a newer version               publish

Stopping: the learn loop ends when the plan is reached or a stop is requested, and takes the others along.
What is in flight then is returned to the ledger and, with a checkpoint, collected again on resume.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headway.coordinate.checkpoint import CheckpointError, CheckpointStore, RunState
from headway.coordinate.crew import Crew, RunFailed
from headway.coordinate.desk import Desk
from headway.coordinate.evaluations import Evaluations
from headway.coordinate.roles import EVALUATOR, LEARNER, REANALYZER, Stations, collector_name
from headway.coordinate.settings import Settings
from headway.coordinate.shelf import Shelf
from headway.coordinate.waits import Board, Stalled, TimeSpent
from headway.core.lead import Interval
from headway.core.ledger import WAIT, LedgerError, LedgerStatistics
from headway.core.order import OnStale
from headway.core.protocols import RoleError, RoleRaised, Runtime
from headway.core.rules import MaxLead
from headway.core.types import Batch, DropReason, LearnReport, Phase, Rollout, Score, Snapshot, Ticket, map_payloads
from headway.observe.recorder import NoRecorder, Recorder

INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run came to."""

    stop_reason: str
    version: int
    updates: int
    weights: Any
    """The last published weights."""
    scores: tuple[Score, ...]
    ledger: LedgerStatistics
    time_spent: TimeSpent
    wall_s: float
    """Seconds from the first ticket to the end, evaluations and checkpoints included."""
    settings: Settings
    restarts: int
    evaluations_skipped: int
    lead: float
    metrics: dict[str, float]
    """The metrics of the last update."""

    @property
    def is_complete(self) -> bool:
        """False if the run was interrupted and waits to be resumed."""
        return not self.stop_reason.startswith(INTERRUPTED)


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
        resume: RunState | None = None,
    ) -> None:
        self.settings = settings
        self._is_pinned = settings.is_pinned
        self._patience_s = settings.patience_s
        self._data_deadline_s = settings.data_deadline_s
        self.runtime = runtime
        self.board = Board(runtime.now)
        self.evaluations = Evaluations(settings.plan.evaluate_every if stations.evaluator else 0)
        self.version = 0
        self.updates = 0
        self.metrics: dict[str, float] = {}
        self._stations = stations
        self._lead = settings.build_lead()
        self._lead_rule = MaxLead(self._lead.current, settings.tickets_per_version)
        self._lead_watch = _LeadWatch(settings)
        self.ledger = settings.build_ledger(self._lead_rule)
        self._desk = Desk(settings.collectors, pinned=settings.is_pinned)
        self._shelf = Shelf(runtime.release)
        self._recorder = recorder or NoRecorder()
        self._is_recorded = recorder is not None
        self._record: Callable[..., None] = self._write_down if recorder else _ignore
        self._crew = Crew(runtime, self.board, settings, self._record)
        self._checkpoints = checkpoints
        self._resume = resume
        self._rollouts: dict[int, Rollout] = {}  # landed and not yet settled
        self._updates_in_version = 0
        self._stop_reason = ""
        self._paused = False
        self._is_saved = False
        self._created_at = self._first_ticket_at = runtime.now()
        self._earlier_wall_s = resume.wall_s if resume else 0.0
        self._earlier_events_s = resume.events_s if resume else 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    # -- for whoever runs it ------------------------------------------------------------------------

    async def run(self) -> RunResult:
        """Start the roles, run the loops, evaluate and save at the end, close everything."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._record("run", runtime=self.runtime.name, **self.settings.describe())
        try:
            await self._begin()
            await self._run_loops()
            return await self._finish()
        except (RoleError, RunFailed, Stalled) as error:
            self._record("fail", why=str(error))
            if isinstance(error, RoleError):
                raise RunFailed(str(error)) from error
            raise
        finally:
            self.board.stop_checking()
            await self.runtime.close()
            self._recorder.close()

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run `callback` in the coordinator's thread, at once if it is waiting. For signal handlers."""
        if self._loop is None:
            callback()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback)

    def abort(self) -> None:
        """End without saving: roles are stopped, nothing is left running."""
        if self._task is not None:
            self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    def request_stop(self, reason: str = INTERRUPTED) -> None:
        """Finish the update under way, save, and end. Safe to call at any time, more than once."""
        if not self._stop_reason:
            self._stop_reason = reason
            self.board.wake_all()

    def why(self) -> str:
        """Who does what or waits for what, since when, at which version."""
        tally = self.ledger.tally
        return (
            f"version {self.version}, update {self.updates}, lead {self.lead:g}: {tally.live} tickets live "
            f"({tally.ready} ready, {tally.taken} with the learner)\n{self.board.why()}"
        )

    @property
    def wall_s(self) -> float:
        """Seconds of this run, earlier sessions included."""
        return self._earlier_wall_s + self.runtime.now() - self._first_ticket_at

    @property
    def _elapsed_s(self) -> float:
        """The clock of the event log: it goes on where the last session's checkpoint left it."""
        return self._earlier_events_s + self.runtime.now() - self._created_at

    @property
    def lead(self) -> float:
        return self._lead_rule.max_lead

    # -- beginning and end --------------------------------------------------------------------------

    async def _begin(self) -> None:
        await self._crew.start(self._stations)
        self._first_ticket_at = self.runtime.now()
        if self._resume is None:
            self._shelf.put(await self._crew.stage(0))
            self._record("publish", v=0)
        else:
            await self._restore(self._resume)
        self._stop_reason = self._stop_reason or self._plan_reached()
        self._admit()

    async def _run_loops(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                loops = [group.create_task(self._collect_loop(i)) for i in range(self.settings.collectors)]
                if self.evaluations.every and self.settings.evaluate_in_background:
                    loops.append(group.create_task(self._evaluate_loop()))
                if self._stations.reanalyzer is not None:
                    loops.append(group.create_task(self._reanalyze_loop()))
                if self.settings.plan.wall_s is not None:
                    loops.append(group.create_task(self._watch_the_clock(self.settings.plan.wall_s)))
                await self._learn_loop()
                if self.settings.evaluate_in_background:
                    await self._wait_for_evaluation()
                for loop in loops:
                    loop.cancel()
        except BaseExceptionGroup as failures:
            first = failures.exceptions[0]
            raise first from first.__cause__

    async def _finish(self) -> RunResult:
        """Evaluate the last version, save, close the ledger."""
        self._record("stop", reason=self._stop_reason)
        if self.evaluations.every and not self._is_interrupted:
            if not self.evaluations.has_seen(self.version):
                self._hold_for_evaluation()
            await self._evaluate_all()
        wall_s = self.runtime.now() - self._first_ticket_at
        if not self._is_saved:
            await self._save()
        weights = self.runtime.fetch(self._shelf.newest.payload)
        time_spent = self.board.time_spent()
        self.ledger.close()
        statistics = self.ledger.statistics()
        if not statistics.closes:
            raise LedgerError(f"the ledger does not close: {statistics}")
        self._record("end", v=self.version, updates=self.updates, returned=statistics.returned)
        return RunResult(
            stop_reason=self._stop_reason,
            version=self.version,
            updates=self.updates,
            weights=weights,
            scores=tuple(self.evaluations.scores),
            ledger=statistics,
            time_spent=time_spent,
            wall_s=wall_s,
            settings=self.settings,
            restarts=sum(self._crew.restarts.values()),
            evaluations_skipped=self.evaluations.skipped,
            lead=self.lead,
            metrics=self.metrics,
        )

    @property
    def _is_interrupted(self) -> bool:
        return self._stop_reason.startswith(INTERRUPTED)

    def _plan_reached(self) -> str:
        """Why the run is over, or nothing."""
        plan = self.settings.plan
        if plan.updates is not None and self.updates >= plan.updates:
            return f"reached {plan.updates} updates"
        if plan.steps is not None and self.ledger.tally.inserted >= plan.steps:
            return f"reached {plan.steps} steps"
        if not self._defers_target and self._target_reached():
            return self._target_reached()
        if plan.wall_s is not None and self.wall_s >= plan.wall_s:
            return f"reached {plan.wall_s:g} seconds"
        return ""

    def _target_reached(self) -> str:
        target, best = self.settings.plan.target_score, self.evaluations.best
        if target is None or best is None or best < target:
            return ""
        return f"reached a score of {best:g} (target {target:g})"

    @property
    def _defers_target(self) -> bool:
        """A pinned run looks at a background score when the next evaluation is due, not when it arrives."""
        return self._is_pinned and self.settings.evaluate_in_background

    # -- collect ------------------------------------------------------------------------------------

    async def _collect_loop(self, number: int) -> None:
        """Consumes open tickets, produces rollouts. Waits for: a ticket it may have. Woken by: a publish
        or a drop that frees a slot, a reissued ticket, the end of a pause. Ends: with the learn loop.
        """
        next_start = -math.inf
        while True:
            if self.settings.pacing_s:
                await self._pace(number, next_start)
            ticket = self._ticket_nowait(number) or await self._next_ticket(number)
            if self.settings.pacing_s:
                next_start = self.runtime.now() + self.settings.pacing_s
            version = ticket.version if ticket.version is not None else self.version
            ticket = self.ledger.start(ticket.index, version, number)
            snapshot = self._shelf.get(version) if self._is_pinned else self._shelf.hold(version)
            if self._is_recorded:
                self._record("start", k=ticket.index, c=number, v=version)
            try:
                rollout = await self._crew.collect(number, ticket, snapshot)
            except RoleError as error:
                await self._collect_failed(number, ticket, error)
            else:
                self._land(ticket, rollout)

    def _ticket_nowait(self, number: int) -> Ticket | None:
        """A ticket, if there is one this collector may have now; otherwise it is noted as idle."""
        if self._paused or self._stop_reason:
            self._desk.note_idle(number)
            return None
        return self._desk.take(number)

    async def _next_ticket(self, number: int) -> Ticket:
        role = collector_name(number)
        turns = self._patience_s * self.settings.collectors  # slots may be fewer than collectors
        while True:
            cause = "paused" if self._paused else "slot"
            await self.board.wait(role, cause, self._why_no_ticket, turns)
            ticket = self._ticket_nowait(number)
            if ticket is not None:
                return ticket

    async def _pace(self, number: int, next_start: float) -> None:
        """Keep the collector's distance between two starts."""
        pause_s = next_start - self.runtime.now()
        if pause_s > 0:
            self.board.begin(collector_name(number), "pacing", f"pacing_s={self.settings.pacing_s:g}", pause_s)
            await asyncio.sleep(pause_s)
            self.board.end(collector_name(number))

    def _why_no_ticket(self) -> str:
        if self._stop_reason:
            return f"the end of the run ({self._stop_reason})"
        if self._paused:
            return "the evaluation to finish"
        return f"a ticket: {self.ledger.rule.why_not_open(self.ledger.tally) or 'all are under way'}"

    def _land(self, ticket: Ticket, rollout: Rollout) -> None:
        index = ticket.index
        length = float(rollout.steps) if rollout.length is None else rollout.length
        try:
            span = self.ledger.land(index, span=rollout.span, steps=rollout.steps, length=length)
        except LedgerError as error:
            raise RunFailed(f"{ticket} on {collector_name(ticket.collector or 0)}: {error}") from error
        assert ticket.version is not None
        self._shelf.let_go(ticket.version)
        self._rollouts[index] = rollout
        if self._is_recorded:
            self._record("land", k=index, v=[span.oldest, span.newest], n=rollout.steps, l=length)
        if rollout.filtered and not self._is_pinned:
            self._drop(index, DropReason.FILTERED)
        if self._paused or self.settings.replay is not None or self.ledger.may_choose():
            self.board.wake(LEARNER)

    async def _collect_failed(self, number: int, ticket: Ticket, error: RoleError) -> None:
        """Fly the ticket again, or give it up; then bring the collector back."""
        retries = self.settings.retries
        raised = isinstance(error, RoleRaised)
        allowed = retries.attempts_on_error if raised else retries.attempts_on_loss
        attempts = ticket.attempt + 1
        if attempts < allowed:
            again = self.ledger.reissue(ticket.index)
            if not self._is_pinned:
                assert ticket.version is not None
                self._shelf.let_go(ticket.version)
            self._record("reissue", k=ticket.index, c=number, why=error.what)
            self._put(again, first=True)
        elif retries.on_failure == "drop":
            assert ticket.version is not None
            self._shelf.let_go(ticket.version)
            self._drop(ticket.index, DropReason.FAILED, why=error.what)
        else:
            tries = "" if attempts == 1 else f" after {attempts} attempts"
            raise RunFailed(f"{ticket} failed on {collector_name(number)}{tries}: {error.what}") from error
        self.board.wake(LEARNER)
        await self._crew.recover(number, error)

    def _admit(self) -> None:
        """Open tickets while the rule allows. Called exactly where slots come free."""
        if self._stop_reason:
            return
        while (ticket := self.ledger.open(self.version)) is not None:
            if ticket.version is not None:
                self._shelf.hold(ticket.version)
            if self._is_recorded:
                self._record("open", k=ticket.index)
            self._put(ticket)

    def _put(self, ticket: Ticket, *, first: bool = False) -> None:
        collector = self._desk.put(ticket, first=first)
        if collector is not None:
            self.board.wake(collector_name(collector))

    # -- learn --------------------------------------------------------------------------------------

    async def _learn_loop(self) -> None:
        """Consumes ready rollouts, produces versions. Waits for: a batch in the chosen order (and credit
        from the replay ratio). Woken by: a landing, a drop, a stop. Ends: when the plan is reached.
        """
        if self.settings.plan.warmup_s and not self.updates:
            await self._warm_up(self.settings.plan.warmup_s)
        while not self._stop_reason:
            batch = await (self._next_batch() if self.settings.replay is None else self._fill_replay())
            if batch is not None:
                await self._learn(batch)
                self._stop_reason = self._stop_reason or self._plan_reached()
        if self._updates_in_version and not self._is_interrupted:
            # Saved first: whoever goes on from here completes this version instead of starting a short one.
            await self._save()
            self._is_saved = True
            await self._publish(await self._crew.stage(self.version + 1))

    async def _next_batch(self) -> Batch | None:
        """The next batch of a queue; None when a stop was asked for instead."""
        left = self.settings.publish_every - self._updates_in_version
        while not self._stop_reason:
            choice = self.ledger.choose(self.version, left)
            for index in choice.expired:
                self._expire(index)
            filtered = [index for index in choice.batch if self._rollouts[index].filtered]
            for index in filtered:
                self._drop(index, DropReason.FILTERED)
            if choice.batch and not filtered:
                return self._take(choice.batch)
            if not filtered and not choice.expired:
                await self._wait_for_rollouts(lambda: self.ledger.waiting_for(self.version, left))
        return None

    async def _fill_replay(self) -> Batch | None:
        """Hand landed rollouts to the replay until the ratio allows an update, which gets an empty batch.

        A ticket counts as learned once the credit it brought is spent. Pinned runs spend it first and then
        insert one ticket, in order; free runs insert all that is there.
        """
        while not self._stop_reason:
            if self._is_pinned:
                enough = self.ledger.rule.may_learn(self.ledger.tally)
                choice = WAIT if enough else self.ledger.choose(self.version)
            else:
                choice = self.ledger.choose_all(self.version)
            for index in choice.expired:
                self._expire(index)
            if choice.batch:
                self._record("insert", k=choice.batch, v=self.version)
                await self._crew.insert(self._take(choice.batch))
            if self.ledger.rule.may_learn(self.ledger.tally):
                return Batch(self.version, ())
            if self.ledger.tally.taken:  # their credit is spent
                self._settle()
                self._admit()
            elif not choice.expired:
                await self._wait_for_rollouts(lambda: self.ledger.rule.why_not_learn(self.ledger.tally))
        return None

    async def _wait_for_rollouts(self, explain: Callable[[], str]) -> None:
        if not self.ledger.tally.live and not self._stop_reason:
            self._admit()
            if not self.ledger.tally.live:
                raise Stalled(f"no ticket is live and none may open: {self._why_no_ticket()}")
        await self.board.wait(LEARNER, "data", explain, self._data_deadline_s)

    def _take(self, indices: tuple[int, ...]) -> Batch:
        self.ledger.take(indices, self.version)
        self._admit()  # a place in the buffer is free, if that was what held tickets back
        return Batch(self.version, tuple(self._rollouts[index] for index in indices))

    async def _learn(self, batch: Batch) -> None:
        """One update; publish if it completes a version."""
        completes = self._updates_in_version + 1 >= self.settings.publish_every
        began = self.runtime.now()
        report, snapshot = await self._crew.learn(batch, self.version + 1 if completes else None)
        self.updates += 1
        self._updates_in_version += 1
        self._account(batch, report, self.runtime.now() - began)
        if snapshot is not None:
            await self._publish(snapshot)

    def _account(self, batch: Batch, report: LearnReport, seconds: float) -> None:
        if report.samples is None and self.settings.replay is not None:
            raise RunFailed("learn must report how many samples it drew from its replay: LearnReport(samples=...)")
        self.ledger.count_samples(float(len(batch.rollouts)) if report.samples is None else report.samples)
        self.metrics = dict(report.metrics)
        self._lead_watch.note(report.effective_sample_size)
        self._record(
            "learn",
            u=self.updates,
            v=batch.version,
            k=[rollout.ticket for rollout in batch.rollouts],
            d=round(seconds, 6),
            m=self.metrics,
        )

    async def _publish(self, snapshot: Snapshot) -> None:
        """The version exists: settle what made it, free its slots, then evaluate and save if due."""
        self.version = snapshot.version
        self._updates_in_version = 0
        self._shelf.put(snapshot)
        self._record("publish", v=self.version)
        if self.settings.replay is None or not self.ledger.rule.may_learn(self.ledger.tally):
            self._settle()
        evaluates = self.evaluations.is_due(self.version)
        self._paused = evaluates and not self.settings.evaluate_in_background
        self._retune()
        self._admit()
        self.board.wake(REANALYZER)
        if evaluates:
            await self._ask_for_evaluation()
        plan = self.settings.plan
        if plan.save_every and self.version % plan.save_every == 0 and not self._is_saved:
            await self._save()

    def _settle(self) -> None:
        settled = self.ledger.settle()
        for index in settled:
            rollout = self._rollouts.pop(index, None)  # none if it was taken before the run was resumed
            if rollout is not None:
                self.runtime.release(rollout.payload)
        if settled:
            self._record("settle", k=settled)

    def _expire(self, index: int) -> None:
        """A rollout is too old to be taken."""
        if self.settings.on_stale is OnStale.DROP:
            self._drop(index, DropReason.STALE)
        else:
            self.runtime.release(self._rollouts.pop(index).payload)
            self._record("requeue", k=index)
            ticket = self.ledger.requeue(index, self.version)
            if ticket.version is not None:
                self._shelf.hold(ticket.version)
            self._put(ticket, first=True)

    def _drop(self, index: int, reason: DropReason, why: str = "") -> None:
        self.ledger.drop(index, reason)
        rollout = self._rollouts.pop(index, None)
        if rollout is not None:
            self.runtime.release(rollout.payload)
        self._record("drop", k=index, reason=reason.value, why=why)
        self._admit()

    def _retune(self) -> None:
        """Let the auto lead look at what the last versions cost."""
        if self.settings.max_lead != "auto":
            return
        interval = self._lead_watch.interval(self.version, self.runtime.now(), self.board)
        if interval is not None:
            lead = self._lead.observe(interval)
            if lead != self._lead_rule.max_lead:
                self._record("lead", v=self.version, lead=lead)
                self._lead_rule.retune(lead)

    async def _warm_up(self, seconds: float) -> None:
        handle = asyncio.get_running_loop().call_later(seconds, self.board.wake, LEARNER)
        ends_at = self.runtime.now() + seconds
        while self.runtime.now() < ends_at and not self._stop_reason:  # landings wake the learner too
            await self.board.wait(LEARNER, "warm-up", f"the warm-up of {seconds:g} s", seconds + 60)
        handle.cancel()

    async def _watch_the_clock(self, wall_s: float) -> None:
        await asyncio.sleep(max(0.0, wall_s - self.wall_s))
        self.request_stop(f"reached {wall_s:g} seconds")

    # -- evaluate -----------------------------------------------------------------------------------

    async def _ask_for_evaluation(self) -> None:
        """Blocking: wait for what is in flight, evaluate, go on. Background: leave it to the loop.

        A pinned run with a target score must not depend on how long an evaluation takes: it waits for the
        one before, and looks here whether that reached the target.
        """
        if not self.settings.evaluate_in_background:
            await self._wait_until_landed()
            self._hold_for_evaluation()
            await self._evaluate_all()
            self._paused = False
            for number in self._desk.idle_with_work():
                self.board.wake(collector_name(number))
        else:
            if self._defers_target and self.settings.plan.target_score is not None:
                await self._wait_for_evaluation()
                self._stop_reason = self._stop_reason or self._target_reached()
            self._hold_for_evaluation()
            self.board.wake(EVALUATOR)

    def _hold_for_evaluation(self) -> None:
        self._shelf.hold(self.version)
        skipped = self.evaluations.ask(self.version)
        if skipped is not None:
            self._shelf.let_go(skipped)
            self._record("skip_evaluation", v=skipped)

    async def _wait_until_landed(self) -> None:
        while any(entry.phase is Phase.IN_FLIGHT for entry in self.ledger.live()) and not self._stop_reason:
            await self.board.wait(
                LEARNER, "landing", "what is in flight to land before an evaluation", self._patience_s
            )

    async def _wait_for_evaluation(self) -> None:
        while self.evaluations.unfinished and not self._is_interrupted:
            await self.board.wait(
                LEARNER,
                "evaluation",
                lambda: f"the evaluation of version {self.evaluations.unfinished[0]}",
                self._patience_s,
            )

    async def _evaluate_loop(self) -> None:
        """Consumes due versions, produces scores. Waits for: a version that is due. Woken by: publish.
        Ends: with the learn loop, after the evaluation under way.
        """
        while True:
            while not self.evaluations.waiting:
                await self.board.wait(EVALUATOR, "due", "an evaluation that is due", float("inf"))
            await self._evaluate()

    async def _evaluate_all(self) -> None:
        while self.evaluations.waiting:
            await self._evaluate()

    async def _evaluate(self) -> None:
        version = self.evaluations.begin()
        self._record("evaluate", v=version)
        score = await self._crew.evaluate(self._shelf.get(version))
        self.evaluations.end(score)
        self._shelf.let_go(version)
        self._record("score", v=version, value=score.value, m=dict(score.metrics), error=score.error)
        self._stop_reason = self._stop_reason or self._plan_reached()
        self.board.wake(LEARNER)

    # -- reanalyze ----------------------------------------------------------------------------------

    async def _reanalyze_loop(self) -> None:
        """Consumes snapshots, produces fresher targets. Waits for: a newer version, once there was nothing
        to do. Woken by: publish. Ends: with the learn loop.
        """
        while True:
            snapshot = self._shelf.hold(self.version)
            try:
                did_something = await self._crew.reanalyze(snapshot)
            finally:
                self._shelf.let_go(snapshot.version)
            while not did_something and self.version == snapshot.version:
                await self.board.wait(REANALYZER, "version", "a newer version", float("inf"))

    # -- surviving a restart ------------------------------------------------------------------------

    async def _save(self) -> None:
        """Write a checkpoint. Called between updates only, so whatever is taken has been trained on."""
        if self._checkpoints is None:
            return
        learner = await self._crew.call(LEARNER, "state", "its state", self.settings.deadlines.learn_s)
        fetch = self.runtime.fetch
        state = RunState(
            version=self.version,
            updates=self.updates,
            updates_in_version=self._updates_in_version,
            wall_s=self.wall_s,
            ledger=self.ledger.state_dict(),
            lead=self._lead.state_dict(),
            learner=learner,
            rollouts={
                index: map_payloads(rollout, fetch)
                for index, rollout in self._rollouts.items()
                if self.ledger.entry(index).phase is Phase.READY
            },
            snapshots={snapshot.version: fetch(snapshot.payload) for snapshot in self._shelf.all()},
            collectors=dict(self._crew.carried),
            evaluations_due=self.evaluations.unfinished,
            scores=tuple(self.evaluations.scores),
            evaluations_skipped=self.evaluations.skipped,
            events_position=self._recorder.flush(),
            events_s=self._elapsed_s,
            settings=self.settings.describe(),
        )
        store = self._checkpoints
        self.board.begin(LEARNER, "save", f"checkpoint of version {self.version}", float("inf"))
        try:
            await self.runtime.offload(lambda: store.save(state))
        finally:
            self.board.end(LEARNER)
        self._record("save", v=self.version)

    async def _restore(self, state: RunState) -> None:
        """Go on where the checkpoint was written: the same slots, tickets, weights and carried states."""
        check_same_run(state, self.settings)
        self.version, self.updates = state.version, state.updates
        self._updates_in_version = state.updates_in_version
        self.evaluations.scores = list(state.scores)
        self.evaluations.skipped = state.evaluations_skipped
        self._lead.load_state_dict(state.lead)
        self._lead_rule.retune(self._lead.current)
        self.ledger.load_state_dict(state.ledger)
        self._rollouts = dict(state.rollouts)
        limit = self.settings.deadlines.start_s
        await self._crew.call(LEARNER, "restore", "its state", limit, state.learner)
        for number, carried in state.collectors.items():
            await self._crew.restore_collector(number, carried)
        for version in sorted(state.snapshots):
            snapshot = Snapshot(version, state.snapshots[version])
            (self._shelf.put if version == state.version else self._shelf.put_older)(snapshot)
        for entry in self.ledger.live():
            if entry.phase is Phase.OPEN:
                if entry.ticket.version is not None:
                    self._shelf.hold(entry.ticket.version)
                self._put(entry.ticket)
        for version in state.evaluations_due:
            self._shelf.hold(version)
        self.evaluations.waiting = list(state.evaluations_due)
        self._shelf.forget_unheld()
        self._record("resume", v=self.version, updates=self.updates)

    def _write_down(self, kind: str, **fields: Any) -> None:
        self._recorder.record(self._elapsed_s, kind, fields)


def check_same_run(state: RunState, settings: Settings) -> None:
    """What decides which tickets exist may not change in the middle of a run."""
    now = settings.describe()
    fixed = ["seed", "tickets_per_batch", "publish_every", "dispatch"]
    if settings.is_pinned:
        fixed += ["max_lead", "collectors"]
    if settings.on_stale is OnStale.WAIT:
        fixed.append("max_staleness")
    for name in fixed:
        if state.settings[name] != now[name]:
            raise CheckpointError(
                f"the checkpoint was written with {name}={state.settings[name]!r}; it cannot be resumed "
                f"with {name}={now[name]!r}"
            )


def _ignore(kind: str, **fields: Any) -> None:
    """Nobody records."""


class _LeadWatch:
    """Cuts the run into intervals for the auto lead and says what each one was like."""

    def __init__(self, settings: Settings) -> None:
        self._every = settings.lead_interval
        self._collectors = settings.collectors
        self._since = 0.0
        self._idle = self._blocked = 0.0
        self._sizes: list[float] = []

    def note(self, effective_sample_size: float | None) -> None:
        if effective_sample_size is not None:
            self._sizes.append(effective_sample_size)

    def interval(self, version: int, now: float, board: Board) -> Interval | None:
        if version % self._every:
            return None
        spent = board.time_spent()
        idle, blocked = spent.total(LEARNER, "data"), spent.total("collector", "slot")
        elapsed = max(now - self._since, 1e-9)
        interval = Interval(
            learner_idle=(idle - self._idle) / elapsed,
            collectors_blocked=(blocked - self._blocked) / elapsed / self._collectors,
            effective_sample_size=sum(self._sizes) / len(self._sizes) if self._sizes else None,
        )
        self._since, self._idle, self._blocked = now, idle, blocked
        self._sizes.clear()
        return interval
