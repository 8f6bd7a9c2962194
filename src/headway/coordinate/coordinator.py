"""The coordinator: collection, learning and evaluation at the same time, under the ledger's rule.

           tickets                 rollouts               versions
    desk ----------> collect loop ----------> learn loop ----------> shelf (newest snapshot)
      ^              (one a seat)                 |  \\                   |
      |                                           |   +--> evaluate loop <+
      +--------------- slots freed ---------------+

One asyncio task group in one thread: whatever stands between two awaits happens at once, so there are no
locks. The coordinator decides and waits; it never computes. All work is a call to a role (`RoleCalls`), all
waiting is on the `Board`, all counting in the `Ledger`.

    loop       consumes          produces            waits for                     woken by
    collect    open tickets      rollouts            a ticket (a slot)             publish, drop, reissue
    learn      ready rollouts    versions            a batch in order; credit      a landing
    evaluate   a snapshot        a score             an evaluation that is due     publish
    reanalyze  old targets       newer ones          a newer version               publish
    push       a snapshot        (in a collector)    a newer version               publish

A seat is a lane of a collector; a collector with one lane is one seat. Where collectors hold weights, a seat also waits
until its collector may change them (`lanes.py`); only with on_publish=partial there is a push loop for each.

Stopping: the learn loop ends when the plan is reached or a stop is requested, and takes the others along.
What is in flight then is returned to the ledger and, with a checkpoint, collected again on resume.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headway.coordinate.best_weights import BestWeights
from headway.coordinate.checkpoint import CheckpointError, CheckpointStore, RunState
from headway.coordinate.draws import Draws
from headway.coordinate.evaluations import Evaluations
from headway.coordinate.journal import Journal
from headway.coordinate.lanes import Post
from headway.coordinate.role_calls import RoleCalls, RunFailed, end_if_final
from headway.coordinate.roles import EVALUATOR, LEARNER, REANALYZER, REPLAY, STATISTICS, Stations, publisher_name
from headway.coordinate.settings import Settings
from headway.coordinate.snapshots import HeldSnapshots
from headway.coordinate.ticket_queue import TicketQueue
from headway.coordinate.waits import Board, Stalled, TimeSpent
from headway.core.events import (
    BegunAnew,
    BestKept,
    Dropped,
    Ended,
    EvaluationAbandoned,
    EvaluationBegan,
    EvaluationSkipped,
    Failed,
    Inserted,
    Landed,
    LeadMoved,
    Lost,
    Opened,
    Published,
    Refreshed,
    Reissued,
    Requeued,
    Restaged,
    Resumed,
    RoleBusy,
    RoleWaits,
    RunBegan,
    Saved,
    Scored,
    Settled,
    Started,
    Stopped,
    UpdateBegan,
    Updated,
    WorkGiven,
)
from headway.core.lead import Interval
from headway.core.ledger import WAIT, LedgerError
from headway.core.ledger_counts import LedgerStatistics
from headway.core.lent import Lent, LentLost
from headway.core.order import OnStale
from headway.core.protocols import PayloadLost, RoleError, RoleRaised, Runtime
from headway.core.refusals import refusal
from headway.core.rules import MaxLead
from headway.core.types import (
    HEALTH,
    Batch,
    DropReason,
    LearnReport,
    Phase,
    Rollout,
    Score,
    Snapshot,
    Ticket,
    anew_seed,
    map_payloads,
)
from headway.observe.activities import WAITS
from headway.observe.recorder import Recorder, settled
from headway.observe.samples import SampleLog

INTERRUPTED = "interrupted"
LOG_WITHIN_S = 10.0
"""How long a checkpoint waits for the event log to be on the disk; then it is written all the same."""
MAX_SHARE_OF_SAVING = 0.05
"""Of a run's time, where it saves by the clock: what takes long to save is saved less often."""


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
    evaluations_abandoned: tuple[int, ...] = ()
    """Versions whose evaluation was due or under way when the run was interrupted; a resumed run makes up for them."""

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
        best: BestWeights | None = None,
        samples: SampleLog | None = None,
        resume: RunState | None = None,
        config: Mapping[str, Any] | None = None,
        when_begun: Callable[[], None] | None = None,
    ) -> None:
        """`config` is what the recipe was told, for the log: whoever does the run again needs it. `when_begun` is
        called once, when every role has started and what was saved is restored."""
        if not (settings.plan.evaluates_last or settings.plan.evaluate_first):
            stations = replace(stations, evaluator=None)  # nobody would ever ask it
        self.settings = settings
        self._is_pinned = settings.is_pinned
        self._patience_s = settings.patience_s
        self._data_deadline_s = settings.data_deadline_s
        self.runtime = runtime
        self._now = runtime.now
        self.board = Board(runtime.now, None if recorder is None else self._tell)
        self.evaluations = Evaluations(settings.plan.evaluate_every if stations.evaluator else 0)
        self.version = 0
        self.updates = 0
        self.metrics: dict[str, float] = {}
        self._stations = stations
        self._lead = settings.build_lead()
        self._lead_rule = MaxLead(self._lead.current, settings.tickets_per_version)
        self._lead_watch = _LeadWatch(settings)
        self.ledger = settings.build_ledger(self._lead_rule)
        self._shelf = HeldSnapshots(self._release_weights)
        self._journal = Journal(recorder, runtime.now, begin_s=resume.events_s if resume else 0.0)
        self._crew = RoleCalls(runtime, self.board, settings, self._journal)
        self._seat_names = self._crew.names
        self._has_lanes = settings.lanes > 1
        self._desk = TicketQueue(settings.collectors, pinned=settings.is_pinned, lanes=settings.lanes)
        self._draws = Draws(
            self._crew,
            self.board,
            runtime.release,
            is_shared=stations.replay is not None,
            deadline_s=settings.deadlines.learn_s,
        )
        self._checkpoints = checkpoints
        self._best = best
        self._samples = samples
        self._resume = resume
        self._config = config
        self._when_begun = when_begun
        self._rollouts: dict[int, Rollout] = {}  # landed and not yet settled
        self.engines: dict[str, tuple[float, Mapping[str, float]]] = {}  # collector -> when it landed, its health then
        self._failures: Counter[str] = Counter()  # collector -> tickets in a row that were dropped as failed
        self._evaluates_last = settings.plan.evaluates_last and stations.evaluator is not None
        self._evaluating: asyncio.Task[Score] | None = None
        self._abandons_evaluations = False
        self._updates_in_version = 0
        self._max_tickets = math.inf  # more can never be learned from
        if settings.plan.updates is not None and settings.replay is None:
            self._max_tickets = settings.plan.updates * settings.tickets_per_batch
        self._stop_reason = ""
        self._paused = False
        self._is_saved = False
        self._saves_at = math.inf  # by the clock, if nobody saves before
        self._first_ticket_at = runtime.now()
        self._earlier_wall_s = resume.wall_s if resume else 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    # -- for whoever runs it ------------------------------------------------------------------------

    async def run(self) -> RunResult:
        """Start the roles, run the loops, evaluate and save at the end, close everything."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._journal.write(RunBegan, {"runtime": self.runtime.name, **self.settings.describe()}, self._config)
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
            self.board.stop_checking()
            await self.runtime.close()
            self._journal.close()

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
        """Finish the update under way, save, and end. Safe to call at any time, more than once.

        An interruption abandons the evaluation under way, also that of the last version, when the plan is reached.
        """
        if not self._stop_reason:
            self._stop_reason = reason
            self.board.wake_all()
        if reason.startswith(INTERRUPTED):
            self._abandons_evaluations = True
            if self._evaluating is not None:
                self._evaluating.cancel()
            self.board.wake(LEARNER)

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
    def elapsed_s(self) -> float:
        """The clock of the event log: it goes on where the last session's checkpoint left it."""
        return self._journal.time_s

    @property
    def lead(self) -> float:
        return self._lead_rule.max_lead

    @property
    def publish_retries(self) -> int:
        """Attempts to hand a version on that failed, in this session."""
        return self._crew.publish_retries

    @property
    def restarts(self) -> Counter[str]:
        """Role -> how often it was built anew in this session."""
        return self._crew.restarts

    # -- beginning and end --------------------------------------------------------------------------

    async def _begin(self) -> None:
        self.board.rest(self._role_names(), "starting", "the others to start")
        await self._crew.start(self._stations)
        self._first_ticket_at = self.runtime.now()
        self._saves_at = self._first_ticket_at + (self.settings.plan.save_every_s or math.inf)
        if self._resume is None:
            self._shelf.put(await self._crew.stage(0))
            self._journal.write(Published, 0)
            if self._stations.evaluator is not None and self.settings.plan.evaluate_first:
                self._hold_for_evaluation()
        else:
            await self._restore(self._resume)
        if self._when_begun is not None:
            await self.runtime.offload(self._when_begun)
        if not (self.evaluations.every and self.settings.evaluate_in_background):
            await self._evaluate_meanwhile()
        self._stop_reason = self._stop_reason or self._plan_reached()
        if not (self._is_pinned and self.settings.replay is not None and self._updates_in_version):
            self._admit()  # else nothing has come free: a run that was not interrupted here would open nothing either

    def _role_names(self) -> list[str]:
        """Who stands on the board from the beginning to the end; with lanes, the seats."""
        stations = self._stations
        beside = {EVALUATOR: stations.evaluator, REANALYZER: stations.reanalyzer, REPLAY: stations.replay}
        return [LEARNER, *self._seat_names, *(name for name, station in beside.items() if station is not None)]

    def _rest_on_call(self) -> None:
        """Who has a loop is between two things when it does nothing; others wait until somebody asks them."""
        names = self._role_names()
        self.board.rest(name for name in names if name not in (EVALUATOR, REPLAY))
        if EVALUATOR in names:
            self.board.rest([EVALUATOR], "due", "an evaluation that is due")
        if REPLAY in names:
            self.board.rest([REPLAY], "asked", "the next call")

    async def _run_loops(self) -> None:
        self._rest_on_call()
        try:
            async with asyncio.TaskGroup() as group:
                loops = [group.create_task(self._collect_loop(i)) for i in range(self.settings.seats)]
                if self.settings.on_publish == "partial":
                    loops += [group.create_task(self._push_loop(i)) for i in range(self.settings.collectors)]
                if self.evaluations.every and self.settings.evaluate_in_background:
                    loops.append(group.create_task(self._evaluate_loop()))
                if self._stations.reanalyzer is not None and not self._reanalyzes_in_turn:
                    loops.append(group.create_task(self._reanalyze_loop()))
                if self.settings.plan.wall_s is not None:
                    loops.append(group.create_task(self._watch_the_clock(self.settings.plan.wall_s)))
                await self._learn_loop()
                if self.settings.evaluate_in_background:
                    await self._wait_for_evaluation()
                self.board.rest(self.board.roles, "ending", "the end of the run")
                for loop in loops:
                    loop.cancel()
        except BaseExceptionGroup as failures:
            first = failures.exceptions[0]
            raise first from first.__cause__

    async def _finish(self) -> RunResult:
        """Evaluate the last version, save, close the ledger."""
        self._journal.write(Stopped, self._stop_reason)
        if self._evaluates_last and not self._abandons_evaluations:
            if not self.evaluations.has_seen(self.version):
                self._hold_for_evaluation()
            await self._evaluate_meanwhile()
        wall_s = self.runtime.now() - self._first_ticket_at
        if not self._is_saved:
            await self._save()
        weights = await self._newest_weights()
        time_spent = self.board.time_spent()
        self.ledger.close()
        statistics = self.ledger.statistics()
        if not statistics.closes:
            raise LedgerError(f"the ledger does not close: {statistics}")
        for version in self._abandoned():
            self._journal.write(EvaluationAbandoned, version)
        self._journal.write(Ended, self.version, self.updates, statistics.returned)
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
            evaluations_abandoned=self._abandoned(),
        )

    def _abandoned(self) -> tuple[int, ...]:
        """The versions whose evaluation an interruption cut off, or kept from beginning: a resumed run makes up for
        them."""
        if not self._abandons_evaluations:
            return ()
        unfinished = self.evaluations.unfinished
        is_done = self.evaluations.has_seen(self.version) or self.version in unfinished or self._is_interrupted
        return unfinished if is_done or not self._evaluates_last else (*unfinished, self.version)

    def _way_back(self, error: RoleError) -> str:
        """What to do about a role that took with it what nobody else has."""
        if error.role != REPLAY or error.method == "start" or isinstance(error, RoleRaised):
            return ""
        if self._checkpoints is None or not (saved := self._checkpoints.all()):
            return "; what it held is gone, and there is no checkpoint to go back to yet"
        run = self._checkpoints.folder.parent
        return f"; what it held is gone: `headway resume {run}` goes back to checkpoint {saved[-1].name}"

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
        """Consumes open tickets, produces rollouts. Waits for: a ticket it may have; with lanes, its collector to be
        ready for the ticket's version. Woken by: a publish or a drop that frees a slot, a reissued ticket, the end of
        a pause; the last landing of another version. Ends: with the learn loop.
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
            self._journal.write(Started, ticket.index, number, version)
            try:
                rollout = await self._crew.collect(number, ticket, snapshot)
            except RoleError as error:
                await self._collect_failed(number, ticket, snapshot, error)
            else:
                self._land(ticket, rollout)

    def _ticket_nowait(self, number: int) -> Ticket | None:
        """A ticket, if there is one this seat may have now; otherwise it is noted as idle, or as waiting."""
        if self._paused or self._stop_reason:
            self._desk.note_idle(number)
            return None
        if self._has_lanes and not self._may_take_off(number):
            return None
        return self._desk.take(number)

    def _may_take_off(self, seat: int) -> bool:
        """Is its collector ready for the seat's next ticket? If not, somebody else may have it meanwhile."""
        ticket = self._desk.first(seat)
        post = self._crew.post(seat)
        if ticket is None or post.may_take_off(self._version_for(ticket), self._wanted(post)):
            return True
        post.waiting[self._seat_names[seat]] = None
        other = self._desk.another_idle()
        if other is not None:
            self.board.wake(self._seat_names[other])
        return False

    def _version_for(self, ticket: Ticket) -> int:
        """What it takes off with: its own version (pinned) or the newest (free)."""
        return self.version if ticket.version is None else ticket.version

    def _wanted(self, post: Post) -> set[int]:
        """The versions of the next tickets of all seats of one collector."""
        if not self._is_pinned:
            return {self.version}
        tickets = map(self._desk.first, post.seats)
        return {self._version_for(ticket) for ticket in tickets if ticket is not None}

    def _why_not_yet(self, seat: int) -> str:
        ticket = self._desk.first(seat)
        return self._crew.post(seat).why_not(self.version if ticket is None else self._version_for(ticket))

    async def _next_ticket(self, number: int) -> Ticket:
        role = self._seat_names[number]
        turns = self._patience_s * self.settings.seats  # slots may be fewer than seats
        while True:
            if self._has_lanes and role in self._crew.post(number).waiting:
                await self.board.wait(role, "drain", lambda: self._why_not_yet(number), self._patience_s)
                self._crew.post(number).waiting.pop(role, None)
            else:
                await self.board.wait(role, self._blocked_by(), self._why_no_ticket, turns)
            ticket = self._ticket_nowait(number)
            if ticket is not None:
                return ticket

    async def _pace(self, number: int, next_start: float) -> None:
        """Keep the collector's distance between two starts."""
        pause_s = next_start - self.runtime.now()
        if pause_s > 0:
            self.board.begin(self._seat_names[number], "pacing", f"pacing_s={self.settings.pacing_s:g}", pause_s)
            await asyncio.sleep(pause_s)
            self.board.end(self._seat_names[number])

    def _blocked_by(self) -> str:
        """The cause of waiting for a ticket."""
        tally = self.ledger.tally
        if self._stop_reason or tally.learned + tally.live >= self._max_tickets:
            return "ending"
        return "paused" if self._paused else "slot"

    def _why_no_ticket(self) -> str:
        if self._stop_reason:
            return f"the end of the run ({self._stop_reason})"
        if self._paused:
            return "the evaluation to finish"
        return f"a ticket: {self.ledger.rule.why_not_open(self.ledger.tally) or 'all are under way'}"

    def _land(self, ticket: Ticket, rollout: Rollout) -> None:
        index = ticket.index
        length = float(rollout.steps if rollout.length is None else rollout.length)
        size = rollout.size or 0
        now = self._now()
        try:
            span = self.ledger.land(index, span=rollout.span, steps=rollout.steps, length=length, size=size, now_s=now)
        except LedgerError as error:
            raise RunFailed(f"{ticket} on {self._seat_names[ticket.collector or 0]}: {error}") from error
        assert ticket.version is not None
        self._shelf.let_go(ticket.version)
        self._rollouts[index] = rollout
        if self._failures:
            self._failures.pop(self._crew.post(ticket.collector or 0).role, None)
        if HEALTH in rollout.info:
            self.engines[self._crew.post(ticket.collector or 0).role] = self.runtime.now(), rollout.info[HEALTH]
        self._journal.write_at(now, Landed, index, [span.oldest, span.newest], int(rollout.steps), length, size)
        if rollout.filtered and not self._is_pinned:
            self._drop(index, DropReason.FILTERED)
        elif self.settings.queue_bytes_limit is not None:
            self._admit()  # how big it is may be news, or smaller than was expected
        if self._paused or self.settings.replay is not None or self.ledger.may_choose():
            self.board.wake(LEARNER)

    async def _collect_failed(self, number: int, ticket: Ticket, snapshot: Snapshot, error: RoleError) -> None:
        """Fly the ticket again, or give it up; then bring the collector back."""
        end_if_final(error)
        retries = self.settings.retries
        is_lost = isinstance(error, PayloadLost)
        raised = isinstance(error, RoleRaised) and not is_lost
        allowed = retries.attempts_on_error if raised else retries.attempts_on_loss
        is_innocent = self._crew.is_innocent(number, error)  # a node takes its idle collectors along, a lane others
        attempts = ticket.attempt + 1
        if is_innocent or attempts < allowed:
            if is_lost:
                await self._stage_again(self._seat_names[number], snapshot)
            again = self.ledger.reissue(ticket.index, self.version if is_lost else None, is_attempt=not is_innocent)
            if again.version != ticket.version:
                self._shelf.let_go(snapshot.version)
                if again.version is not None:
                    self._shelf.hold(again.version)
            self._journal.write(Reissued, ticket.index, number, again.attempt, error.what)
            self._put(again, first=True)
        elif retries.on_failure == "drop":
            assert ticket.version is not None
            self._shelf.let_go(ticket.version)
            self._drop(ticket.index, DropReason.FAILED, why=error.what)
            if not is_lost:
                self.board.wake(LEARNER)
                return await self._begin_anew(number, ticket, error)
        else:
            tries = "" if attempts == 1 else f" after {attempts} attempts"
            raise RunFailed(f"{ticket} failed on {self._seat_names[number]}{tries}: {error.what}") from error
        self.board.wake(LEARNER)
        await self._crew.recover(number, error)

    async def _begin_anew(self, number: int, ticket: Ticket, error: RoleError) -> None:
        """A ticket was dropped: its collector begins new episodes, for what it did would only fail again."""
        role, limit = self._crew.post(number).role, self.settings.retries.max_failures_in_a_row
        for attempt in itertools.count():
            self._failures[role] += 1
            if self._failures[role] >= limit:
                raise RunFailed(
                    f"{role} failed {limit} times in a row (max_failures_in_a_row={limit}), the last time on {ticket}: "
                    f"{error.what}"
                ) from error
            try:
                await self._crew.begin_anew(number, anew_seed(ticket.seed, attempt), error)
            except RoleError as again:
                end_if_final(again)
                error = again
            else:
                return self._journal.write(BegunAnew, ticket.index, number, attempt)

    def _admit(self) -> None:
        """Open tickets while the rule allows. Called exactly where slots come free."""
        if self._stop_reason:
            return
        while (ticket := self.ledger.open(self.version)) is not None:
            if ticket.version is not None:
                self._shelf.hold(ticket.version)
            self._journal.write(Opened, ticket.index)
            self._put(ticket)

    def _put(self, ticket: Ticket, *, first: bool = False) -> None:
        collector = self._desk.put(ticket, first=first)
        if collector is not None:
            self.board.wake(self._seat_names[collector])

    # -- push ---------------------------------------------------------------------------------------

    async def _push_loop(self, number: int) -> None:
        """Consumes snapshots, applies each to a collector in the middle of its work. Waits for: a newer version. Woken
        by: publish. Ends: with the learn loop.
        """
        name = publisher_name(number)
        while True:
            snapshot = self._shelf.hold(self.version)
            try:
                await self._crew.push(number, name, snapshot)
                is_done = True
            except PayloadLost:
                await self._stage_again(name, snapshot)
                is_done = False
            except RoleError as error:
                await self._crew.revive(number, name, error)
                is_done = False
            finally:
                self._shelf.let_go(snapshot.version)
            while is_done and self.version == snapshot.version:
                await self.board.wait(name, "version", "a newer version", float("inf"))

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
        await self._draws.deliver_feedback()
        if self._updates_in_version and not self._is_interrupted:
            # Saved before it is published: whoever goes on from here completes this version, and starts no short one.
            snapshot = await self._save(ends_with=self.version + 1) or await self._crew.stage(self.version + 1)
            self._is_saved = True
            await self._publish(snapshot)

    async def _next_batch(self) -> Batch | None:
        """The next batch of a queue; None when a stop was asked for instead."""
        left = self.settings.publish_every - self._updates_in_version
        gives_up_at = self.runtime.now() + self._data_deadline_s
        while not self._stop_reason:
            now = self.runtime.now()
            choice = self.ledger.choose(self.version, left, now_s=now)
            for index in choice.expired:
                self._expire(index, now)
            filtered = [index for index in choice.batch if self._rollouts[index].filtered]
            for index in filtered:
                self._drop(index, DropReason.FILTERED)
            if choice.batch and not filtered:
                return self._take(choice.batch, now)
            if choice.expired and self.settings.max_age_s is not None and now > gives_up_at:
                raise Stalled(self._why_no_batch())
            if not filtered and not choice.expired:
                await self._wait_for_rollouts(lambda: self.ledger.waiting_for(self.version, left))
        return None

    def _why_no_batch(self) -> str:
        """Every landing ends the learner's wait; so what expires again and again needs a deadline of its own."""
        return (
            f"no batch of {self.settings.tickets_per_batch} rollouts came together within {self._data_deadline_s:g} s: "
            f"each waited longer than max_age_s={self.settings.max_age_s:g} for the others; raise max_age_s or "
            "collectors, or lower tickets_per_batch"
        )

    async def _fill_replay(self) -> Batch | None:
        """Hand landed rollouts to the replay until the ratio allows an update, which gets what is drawn for it.

        A ticket counts as learned once the credit it brought is spent. Pinned runs spend it first and then
        insert one ticket, in order; free runs insert all that is there.
        """
        while not self._stop_reason:
            enough = self.ledger.rule.may_learn(self.ledger.tally)
            if not enough and self.ledger.tally.taken:  # their credit is spent, whether or not the next has landed
                self._settle()
                self._admit()
            now = self.runtime.now()
            if not self._is_pinned:
                choice = self.ledger.choose_all(self.version, now_s=now)
            else:
                choice = WAIT if enough else self.ledger.choose(self.version, now_s=now)
            for index in choice.expired:
                self._expire(index, now)
            filtered = [index for index in choice.batch if self._rollouts[index].filtered]
            for index in filtered:
                self._drop(index, DropReason.FILTERED)
            wanted = tuple(index for index in choice.batch if index not in filtered)
            if wanted and not await self._insert(wanted, now):
                continue
            if self.ledger.rule.may_learn(self.ledger.tally):
                return await self._draws.batch(self.version)
            if not choice.batch and not choice.expired:
                await self._wait_for_rollouts(lambda: self.ledger.rule.why_not_learn(self.ledger.tally))
        return None

    async def _insert(self, indices: tuple[int, ...], now: float) -> bool:
        """Hand these rollouts to the replay. False: some are lost, and none was handed over."""
        batch = self._take(indices, now)
        try:
            await self._draws.insert(batch)
        except PayloadLost as lost:
            self._put_back(batch, lost)
            return False
        seconds = self.runtime.now() - now
        self._journal.write(Inserted, indices, self.version, round(seconds, 6))
        return True

    async def _wait_for_rollouts(self, explain: Callable[[], str]) -> None:
        if not self.ledger.tally.live and not self._stop_reason:
            self._admit()
            if not self.ledger.tally.live:
                self._stop_reason = self._plan_reached()  # its last steps may not have been enough for an update
                if self._stop_reason:
                    return
                raise Stalled(f"no ticket is live and none may open: {self._why_no_ticket()}")
        await self.board.wait(LEARNER, "data", explain, self._data_deadline_s)

    def _take(self, indices: tuple[int, ...], now: float) -> Batch:
        """`now` is when they were chosen: what was young enough then is young enough."""
        self.ledger.take(indices, self.version, now_s=now)
        self._admit()  # a place in the buffer is free, if that was what held tickets back
        return Batch(self.version, tuple(self._rollouts[index] for index in indices))

    async def _learn(self, batch: Batch) -> None:
        """One update; publish if it completes a version."""
        completes = self._updates_in_version + 1 >= self.settings.publish_every
        tickets = [] if self._draws.is_shared else [rollout.ticket for rollout in batch.rollouts]
        began = self._now()
        self._journal.write_at(began, UpdateBegan, self.updates + 1, batch.version, tickets)
        learning = self._crew.learn(batch, self.version + 1 if completes else None)
        if self._may_draw_ahead(batch):
            learning = self._draws.beside(learning, self.version)
        try:
            report, snapshot, problem = await learning
        except PayloadLost as lost:
            self._put_back(batch, lost)
            return
        self.updates += 1
        self._updates_in_version += 1
        ended = self._now()
        self._account(batch, report)
        if self._samples is not None:
            self._samples.learned(self.updates, batch)
        if self._journal.is_on:
            seconds, metrics = round(ended - began, 6), settled(self.metrics)
            self._journal.write_at(ended, Updated, self.updates, batch.version, tickets, seconds, metrics)
        if self._draws.is_shared or report.feedback is not None:
            self._draws.give_back(batch, report)
        if completes and snapshot is None:  # not before the update is recorded: others may ask for these weights
            snapshot = await self._crew.stage_again(self.version + 1, problem)
        if snapshot is not None:
            await self._publish(snapshot)
        else:
            self._journal.look_if_due()

    def _may_draw_ahead(self, batch: Batch) -> bool:
        """Is the next update sure to come, and may its draw depend on when? A pinned run draws in turn."""
        plan, tally = self.settings.plan, self.ledger.tally
        if not self._draws.is_shared or self._is_pinned or self.updates + 1 == plan.updates:
            return False
        drawn = sum(draw.steps for draw in batch.rollouts)
        return self.ledger.rule.may_learn(replace(tally, sampled=tally.sampled + drawn))

    def _account(self, batch: Batch, report: LearnReport) -> None:
        samples, draws = report.samples, batch.rollouts if self._draws.is_shared else ()
        if samples is None:
            if self.settings.replay is not None and not draws:
                raise RunFailed("learn must report how many samples it drew from its replay: LearnReport(samples=...)")
            samples = sum(draw.steps for draw in draws) if draws else len(batch.rollouts)
        self.ledger.count_samples(float(samples))
        self.metrics = dict(report.metrics)
        for draw in draws:
            self.metrics.update(draw.info[STATISTICS])
        self._lead_watch.note(report.effective_sample_size)

    async def _publish(self, snapshot: Snapshot) -> None:
        """The version exists: settle what made it, free its slots, then evaluate and save if due."""
        self.version = snapshot.version
        self._updates_in_version = 0
        self._shelf.put(snapshot)
        self._journal.write(Published, self.version)
        self._journal.look_if_due()
        if self.settings.replay is None or not self.ledger.rule.may_learn(self.ledger.tally):
            self._settle()
        evaluates = self.evaluations.is_due(self.version)
        self._paused = evaluates and not self.settings.evaluate_in_background
        self._retune()
        self._admit()
        self.board.wake(REANALYZER)
        if self._reanalyzes_in_turn:
            await self._reanalyze_in_turn()
        if self.settings.on_publish == "partial":
            for number in range(self.settings.collectors):
                self.board.wake(publisher_name(number))
        if evaluates:
            await self._ask_for_evaluation()
        plan = self.settings.plan
        is_due = plan.save_every and self.version % plan.save_every == 0
        if (is_due or self.runtime.now() >= self._saves_at) and not self._is_saved:
            await self._save()

    def _settle(self) -> None:
        settled = self.ledger.settle()
        for index in settled:
            rollout = self._rollouts.pop(index, None)  # none if it was taken before the run was resumed
            if rollout is not None:
                self.runtime.release(rollout.payload)
        if settled:
            self._journal.write(Settled, settled)

    def _expire(self, index: int, now: float) -> None:
        """A rollout is too old to be taken."""
        reason = self.ledger.too_old(index, self.version, now_s=now)
        assert reason is not None
        if self.settings.on_stale is OnStale.DROP:
            self._drop(index, reason)
        else:
            self._journal.write(Requeued, index, reason.value)
            self._fly_again(self.ledger.requeue(index, self.version))

    def _fly_again(self, ticket: Ticket) -> None:
        """Its rollout is of no use: the same ticket is collected again, before those that opened later."""
        self.runtime.release(self._rollouts.pop(ticket.index).payload)
        if ticket.version is not None:
            self._shelf.hold(ticket.version)
        self._put(ticket, first=True)

    def _put_back(self, batch: Batch, lost: PayloadLost) -> None:
        """Some rollouts of a batch are gone, so nobody got it: those are collected again, the rest is ready again."""
        indices = [rollout.ticket for rollout in batch.rollouts]
        gone = sorted(set(indices).intersection(lost.tickets), reverse=True)  # the oldest is put in line last: first
        if not gone:
            raise lost  # not a ticket's rollout, but a draw from the replay: that cannot be collected again
        self.ledger.put_back(indices, batch.version)
        retries = self.settings.retries
        for index in gone:
            ticket = self.ledger.entry(index).ticket
            if ticket.attempt + 1 < retries.attempts_on_loss:
                self._lose(index, lost.what)
            elif retries.on_failure == "drop":
                self._drop(index, DropReason.FAILED, why=lost.what)
            else:
                raise RunFailed(f"{ticket} failed after {ticket.attempt + 1} attempts: {lost.what}") from lost

    def _lose(self, index: int, why: str) -> None:
        """A rollout that had landed is gone."""
        self._journal.write(Lost, index, why)
        self._fly_again(self.ledger.lose(index, self.version))

    async def _stage_again(self, role: str, lost: Snapshot) -> None:
        """The newest weights are gone: `role` waits until the learner has staged them again, as they are now.

        Nothing is to be done if they are no longer the newest, or if somebody else was faster.
        """
        if self._shelf.newest is not lost:
            return
        snapshot = await self._crew.stage(lost.version, waiter=role)
        if self._shelf.newest is not lost:
            self._release_weights(snapshot.payload)
            return
        self._journal.write(Restaged, snapshot.version)
        if self._shelf.replace(snapshot) > self.settings.retries.publish_attempts:
            raise RunFailed(f"version {snapshot.version} was lost more than publish_attempts times")

    async def _newest_weights(self) -> Any:
        """The newest weights themselves, here."""
        while True:
            newest = self._shelf.newest
            try:
                return await self._weights_of(newest, LEARNER)
            except PayloadLost:
                await self._stage_again(LEARNER, newest)

    async def _weights_of(self, snapshot: Snapshot, role: str) -> Any:
        """The weights themselves, here. What the learner has lent is taken beside the loops; `role` waits for it."""
        payload = self.runtime.fetch(snapshot.payload)
        if not isinstance(payload, Lent):
            return payload
        self._shelf.hold(snapshot.version)
        self.board.begin(role, "weights", f"version {snapshot.version}", self.settings.deadlines.publish_s)
        try:
            return await self.runtime.offload(payload.take)
        except LentLost as error:
            raise PayloadLost("driver", "fetch", str(error), versions=[snapshot.version]) from error
        finally:
            self.board.end(role)
            self._shelf.let_go(snapshot.version)

    def _release_weights(self, payload: Any) -> None:
        if isinstance(payload, Lent):
            payload.give_back()
        else:
            self.runtime.release(payload)

    def _drop(self, index: int, reason: DropReason, why: str = "") -> None:
        self.ledger.drop(index, reason)
        rollout = self._rollouts.pop(index, None)
        if rollout is not None:
            self.runtime.release(rollout.payload)
        self._journal.write(Dropped, index, reason.value, why)
        self._admit()

    def _retune(self) -> None:
        """Let the auto lead look at what the last versions cost."""
        if self.settings.max_lead != "auto":
            return
        watch = self._lead_watch
        interval = watch.interval(self.version, self.runtime.now(), self.board, is_searching=self._lead.is_searching)
        if interval is not None:
            lead = self._lead.observe(interval)
            if lead != self._lead_rule.max_lead:
                self._journal.write(LeadMoved, self.version, lead)
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
            await self._evaluate_meanwhile()
            self._paused = False
            for number in self._desk.idle_with_work():
                self.board.wake(self._seat_names[number])
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
            self._journal.write(EvaluationSkipped, skipped)

    async def _wait_until_landed(self) -> None:
        while any(entry.phase is Phase.IN_FLIGHT for entry in self.ledger.live()) and not self._stop_reason:
            await self.board.wait(
                LEARNER, "landing", "what is in flight to land before an evaluation", self._patience_s
            )

    async def _wait_for_evaluation(self) -> None:
        while self.evaluations.unfinished and not self._abandons_evaluations:
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
            while not self.evaluations.waiting or self._abandons_evaluations:
                await self.board.wait(EVALUATOR, "due", "an evaluation that is due", float("inf"))
            await self._evaluate()

    async def _evaluate_meanwhile(self) -> None:
        """The learner stands by until every version that is due has its score."""
        if self.evaluations.waiting:
            version = self.evaluations.waiting[0]
            self.board.begin(LEARNER, "evaluation", f"the evaluation of version {version}", self._patience_s)
            try:
                await self._evaluate_all()
            finally:
                self.board.end(LEARNER)

    async def _evaluate_all(self) -> None:
        while self.evaluations.waiting and not self._abandons_evaluations:
            await self._evaluate()

    async def _evaluate(self) -> None:
        version = self.evaluations.begin()
        self._journal.write(EvaluationBegan, version)
        self._evaluating = asyncio.create_task(self._crew.evaluate(self._shelf.get(version)))
        try:
            score = await self._evaluating
        except asyncio.CancelledError:
            here = asyncio.current_task()
            if not self._abandons_evaluations or (here is not None and here.cancelling()):
                raise
            return  # it stays unfinished: a checkpoint remembers it
        finally:
            self._evaluating = None
        if score.samples:
            if self._samples is not None:
                self._samples.evaluated(score)
            score = replace(score, samples=())  # they are not kept twice
        if self._best is not None and self._best.is_beaten_by(score):
            await self._keep_best(self._best, score)
        self.evaluations.end(score)  # not before: the run may end when no evaluation is unfinished
        self._shelf.let_go(version)
        self._journal.write(Scored, version, score.value, dict(score.metrics), score.error)
        if not self._defers_target:  # whatever else is reached, the learn loop finds out between two updates
            self._stop_reason = self._stop_reason or self._target_reached()
        self.board.wake(LEARNER)

    async def _keep_best(self, best: BestWeights, score: Score) -> None:
        """Only a new best brings its weights here from where they are. The shelf still holds them."""
        try:
            weights = await self._weights_of(self._shelf.get(score.version), EVALUATOR)
        except PayloadLost:
            return  # gone with their node since the evaluation: the best before stays
        what = f"best weights so far, version {score.version}"
        await self._write_file(EVALUATOR, what, lambda: best.save(score, weights))
        assert score.value is not None
        self._journal.write(BestKept, score.version, score.value)

    # -- reanalyze ----------------------------------------------------------------------------------

    @property
    def _reanalyzes_in_turn(self) -> bool:
        """After each publish, before anything else is asked of the replay. A pinned run needs that, or timing would
        decide which draw sees which targets; and a replay inside the learner has no time beside it."""
        return self._crew.offers_targets and (self._is_pinned or not self._draws.is_shared)

    async def _reanalyze_in_turn(self) -> None:
        """All that is due at this version. The learner stands by; collection goes on."""
        work = await self._draws.oldest(self.version)
        while work is not None:  # when a stop was asked for, too: what the replay has given out it will not give again
            self.board.begin(LEARNER, "reanalysis", f"newer targets at version {self.version}", self._patience_s)
            try:
                await self._reanalyze(work, self.version)
            finally:
                self.board.end(LEARNER)
            work = await self._draws.oldest(self.version)

    async def _reanalyze(self, work: Rollout, asked_at: int) -> None:
        """Make the targets of `work` again with the newest weights, and hand them back. The replay was asked for it at
        version `asked_at`."""
        self._journal.write(WorkGiven, asked_at, work.steps, self._draws.delivered)
        began, version = self.runtime.now(), self.version
        snapshot = self._shelf.hold(version)
        try:
            targets = await self._crew.reanalyze_work(snapshot, work)
            await self._draws.refresh(targets)
        except PayloadLost as lost:  # whatever it was, the replay will give the same segments again
            if lost.versions:
                await self._stage_again(REANALYZER, snapshot)
            return
        finally:
            self._shelf.let_go(version)
            self.runtime.release(work.payload)
        seconds = self.runtime.now() - began
        self._journal.write(Refreshed, version, work.steps, round(seconds, 6), self._draws.delivered)
        self.runtime.release(targets.payload)

    async def _reanalyze_loop(self) -> None:
        """Consumes old targets and snapshots, produces newer targets. Waits for: a newer version, once there was
        nothing to do. Woken by: publish. Ends: with the learn loop.
        """
        while self._crew.offers_targets:
            version = self.version
            work = await self._draws.oldest(version)
            if work is not None:
                await self._reanalyze(work, version)
            while work is None and self.version == version:
                await self.board.wait(REANALYZER, "version", "a newer version", float("inf"))
        while True:
            snapshot = self._shelf.hold(self.version)
            try:
                did_something = await self._crew.reanalyze(snapshot)
            except PayloadLost:
                await self._stage_again(REANALYZER, snapshot)
                did_something = True
            finally:
                self._shelf.let_go(snapshot.version)
            while not did_something and self.version == snapshot.version:
                await self.board.wait(REANALYZER, "version", "a newer version", float("inf"))

    # -- surviving a restart ------------------------------------------------------------------------

    async def _save(self, *, ends_with: int | None = None) -> Snapshot | None:
        """Write a checkpoint. Called between updates only, so whatever is taken has been trained on.

        A run that ends in the middle of a version publishes what it has as `ends_with`. It is staged here, after the
        learner's state was taken, and kept beside that state: it is what the run came to. Returns it.
        """
        if self._checkpoints is None:
            return None
        began = self.runtime.now()
        learner = await self._crew.call(LEARNER, "state", "its state", self.settings.deadlines.learn_s)
        replay = await self._draws.state()
        weights = {self.version: await self._newest_weights()}
        for snapshot in self._shelf.all():
            if snapshot.version not in weights and self._shelf.has(snapshot.version):
                weights[snapshot.version] = await self._weights_of(snapshot, LEARNER)
        last, last_weights = (None, None) if ends_with is None else await self._stage_last(ends_with)
        rollouts = self._fetch_ready()  # before the ledger is looked at: what is lost is open again
        state = RunState(
            version=self.version,
            updates=self.updates,
            updates_in_version=self._updates_in_version,
            wall_s=self.wall_s,
            ledger=self.ledger.state_dict(now_s=self.runtime.now()),
            lead=self._lead.state_dict(),
            learner=learner,
            rollouts=rollouts,
            snapshots={snapshot.version: weights[snapshot.version] for snapshot in self._shelf.all()},
            collectors=dict(self._crew.carried),
            evaluations_due=self.evaluations.unfinished,
            scores=tuple(self.evaluations.scores),
            evaluations_skipped=self.evaluations.skipped,
            events_position=None,
            events_s=self.elapsed_s,
            settings=self.settings.describe(),
            replay=replay,
            last=None if last is None else (last.version, last_weights),
        )
        mark = self._journal.mark()  # nothing happens between the ledger's state and this
        store = self._checkpoints

        def write() -> None:
            known = mark.wait(LOG_WITHIN_S)
            store.save(replace(state, events_position=known.position, events_check=known.check, metrics=known.metrics))

        await self._write_file(LEARNER, f"checkpoint of version {self.version}", write)
        now = self.runtime.now()
        if self.settings.plan.save_every_s:
            self._saves_at = now + max(self.settings.plan.save_every_s, (now - began) / MAX_SHARE_OF_SAVING)
        self._journal.write(Saved, self.version)
        return last

    async def _stage_last(self, version: int) -> tuple[Snapshot | None, Any]:
        """The version a run ends with, and its weights, here; nothing if they were lost on the way."""
        snapshot = await self._crew.stage(version)
        try:
            payload = self.runtime.fetch(snapshot.payload)
            return snapshot, await self.runtime.offload(payload.take) if isinstance(payload, Lent) else payload
        except (PayloadLost, LentLost):
            self._release_weights(snapshot.payload)
            return None, None

    async def _write_file(self, role: str, what: str, write: Callable[[], Any]) -> None:
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

    def _fetch_ready(self) -> dict[int, Rollout]:
        """The rollouts that wait for the learner, payloads and all. What turns out to be lost is collected again."""
        fetched: dict[int, Rollout] = {}
        lost: dict[int, str] = {}
        for index, rollout in self._rollouts.items():
            if self.ledger.entry(index).phase is Phase.READY:
                try:
                    fetched[index] = map_payloads(rollout, self.runtime.fetch)
                except PayloadLost as error:
                    lost[index] = error.what
        for index in sorted(lost, reverse=True):
            self._lose(index, lost[index])
        return fetched

    async def _restore(self, state: RunState) -> None:
        """Go on where the checkpoint was written: the same slots, tickets, weights and carried states."""
        check_same_run(state, self.settings)
        if self._draws.is_shared != (state.replay is not None):
            held = "without" if state.replay is None else "with"
            raise CheckpointError(f"the checkpoint was written {held} a replay in its own role: it goes on as it was")
        self.version, self.updates = state.version, state.updates
        self._updates_in_version = state.updates_in_version
        self.evaluations.scores = list(state.scores)
        self.evaluations.skipped = state.evaluations_skipped
        self._lead.load_state_dict(state.lead)
        self._lead_rule.retune(self._lead.current)
        self._rollouts = dict(state.rollouts)
        limit = self.settings.deadlines.start_s
        await self._crew.call(LEARNER, "restore", "its state", limit, state.learner)
        if self._draws.is_shared:
            await self._crew.restore_replay(state.replay)
        for number, carried in state.collectors.items():
            if number < self.settings.collectors:
                await self._crew.restore_collector(number, carried)
            else:  # a later session may have it again
                self._crew.carried[number] = carried
        self.ledger.load_state_dict(state.ledger, now_s=self.runtime.now())  # now: restoring roles makes nothing older
        for version in sorted(state.snapshots):
            snapshot = Snapshot(version, state.snapshots[version])
            (self._shelf.put if version == state.version else self._shelf.put_older)(snapshot)
        for entry in self.ledger.live():
            if entry.phase is Phase.OPEN:
                if entry.ticket.version is not None:
                    self._shelf.hold(entry.ticket.version)
                self._put(entry.ticket)
        due = state.evaluations_due if self._evaluates_last else ()  # they may have been turned off since
        for version in due:
            self._shelf.hold(version)
        self.evaluations.waiting = list(due)
        self._shelf.forget_unheld()
        self._journal.write(Resumed, self.version, self.updates)

    def _tell(self, role: str, activity: str) -> None:
        """A role turns to something that no other event tells of."""
        self._journal.write(RoleWaits if activity in WAITS else RoleBusy, role, activity)


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


class _LeadWatch:
    """Cuts the run into intervals for the auto lead and says what each one was like."""

    def __init__(self, settings: Settings) -> None:
        self._every = settings.lead_interval
        self._seats = settings.seats
        self._since = 0.0
        self._idle = self._blocked = 0.0
        self._sizes: list[float] = []
        self._has_begun = False

    def note(self, effective_sample_size: float | None) -> None:
        if effective_sample_size is not None:
            self._sizes.append(effective_sample_size)

    def interval(self, version: int, now: float, board: Board, *, is_searching: bool) -> Interval | None:
        """After every so many versions; four times as often while nobody knows which lead is needed."""
        if version % (max(1, self._every // 4) if is_searching else self._every):
            return None
        spent = board.time_spent()
        idle, blocked = spent.total(LEARNER, "data"), spent.total("collector", "slot")
        elapsed = max(now - self._since, 1e-9)
        interval = Interval(
            learner_idle=(idle - self._idle) / elapsed,
            collectors_blocked=(blocked - self._blocked) / elapsed / self._seats,
            effective_sample_size=sum(self._sizes) / len(self._sizes) if self._sizes else None,
        )
        self._since, self._idle, self._blocked = now, idle, blocked
        self._sizes.clear()
        if not self._has_begun:  # the learner waits for the first rollouts under any lead: that says nothing
            self._has_begun = True
            return None
        return interval
