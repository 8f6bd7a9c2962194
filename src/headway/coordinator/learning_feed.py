"""Where the next batch of a line comes from: a queue of rollouts that are used once, or a replay.

    QueueFeed     ready rollouts --choose, take--> a batch
    ReplayFeed    ready rollouts --take--> insert;   credit from the ratio --> a draw (or an empty batch, if the learner
                  keeps the replay and draws by itself)

No other file asks which of them a line has. Of several lines the first one says when the run is over; the others then
learn from what is there, and end when that is not enough for another batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from headway.coordinator.activities_waits import Stalled
from headway.coordinator.learning_draws import Draws
from headway.coordinator.learning_ending import Ending
from headway.coordinator.line import Line
from headway.coordinator.role_calls import RoleCalls, RunFailed
from headway.coordinator.roles import STATISTICS
from headway.coordinator.run_result_control import RunControl
from headway.coordinator.tickets_flights import Flights
from headway.core.events import Inserted
from headway.core.ledger_choosing import WAIT
from headway.core.protocols import PayloadLost
from headway.core.types import MEASURES, Batch, LearnReport, Snapshot
from headway.core.types_opaque import JsonObject, SavedState

Learned = tuple[LearnReport, Snapshot | None, str]


class Feed:
    """What both kinds share: waiting for rollouts, and knowing when there will be no more."""

    def __init__(
        self,
        line: Line,
        flights: Flights,
        calls: RoleCalls,
        control: RunControl,
        ending: Ending,
        why_no_ticket: Callable[[], str],
    ) -> None:
        self._line = line
        self._ledger = line.ledger
        self._flights = flights
        self._calls = calls
        self._control = control
        self._ending = ending
        self._why_no_ticket = why_no_ticket
        self._now = calls.runtime.now

    @property
    def max_tickets(self) -> float:
        """More than this can never be learned from."""
        return math.inf

    @property
    def is_first(self) -> bool:
        return not self._line.name

    @property
    def _is_over(self) -> bool:
        """Is no further batch wanted? Other lines than the first learn from what is there before they end."""
        return bool(self._control.stop_reason) and (self.is_first or self._control.is_interrupted)

    async def _wait_for_rollouts(self, explain: Callable[[], str]) -> bool:
        """Wait for news. False: there will be none."""
        control = self._control
        if not self.is_first:
            if control.stop_reason:
                return False
        elif not self._ledger.tally.live and not control.stop_reason:
            self._flights.admit(self._line)
            if not self._ledger.tally.live:
                if self._ending.look_without_update():
                    return False
                raise Stalled(f"no ticket is live and none may open: {self._why_no_ticket()}")
        await self._line.turn.wait_outside("data", explain, self._calls.data_deadline_s)
        return True

    # -- what a queue has none of -------------------------------------------------------------------

    async def finish(self) -> None:
        """No further update comes."""

    async def state(self) -> SavedState:
        return None

    async def restore(self, state: object) -> None:
        """Nothing is kept here."""


class QueueFeed(Feed):
    """Rollouts that are used once, in the chosen order."""

    @property
    def max_tickets(self) -> float:
        updates = self._calls.settings.plan.updates
        return math.inf if updates is None else updates * self._line.settings.tickets_per_batch

    def has_news(self) -> bool:
        """A rollout has landed: could the learner go on?"""
        return self._ledger.may_choose()

    async def next_batch(self) -> Batch | None:
        """None when a stop was asked for instead."""
        line, ledger, flights = self._line, self._ledger, self._flights
        left = line.settings.publish_every - line.updates_in_version
        gives_up_at = self._now() + self._calls.data_deadline_s
        while not self._is_over:
            now = self._now()
            choice = ledger.choose(line.version, left, now_s=now)
            if not self._are_for_all(choice.batch):
                choice = WAIT
            for index in choice.expired:
                flights.expire(line, index, now)
            filtered = flights.drop_filtered(line, choice.batch)
            if choice.batch and not filtered:
                return flights.take(line, choice.batch, now)
            if choice.expired and line.settings.max_age_s is not None and now > gives_up_at:
                raise Stalled(self._why_no_batch())
            if filtered or choice.expired:
                continue
            if not await self._wait_for_rollouts(lambda: ledger.waiting_for(line.version, left)):
                break
        return None

    def _are_for_all(self, indices: tuple[int, ...]) -> bool:
        """May this line learn from these tickets, whatever the first one does with them?

        In a pinned run with a replay the plan may be reached before the first line has taken all that has landed: how
        much more another line learns must not depend on which was quicker, so it is never ahead of the first.
        """
        first = self._flights.first
        if self.is_first or first.settings.replay is None or not self._calls.settings.is_pinned:
            return True
        return all(index < first.ledger.tally.opened - first.ledger.tally.untaken for index in indices)

    def _why_no_batch(self) -> str:
        """Every landing ends the learner's wait; so what expires again and again needs a deadline of its own."""
        settings = self._line.settings
        return (
            f"no batch of {settings.tickets_per_batch} rollouts came together within "
            f"{self._calls.data_deadline_s:g} s: each waited longer than "
            f"max_age_s={settings.max_age_s:g} for the others; raise max_age_s or collectors, or lower "
            "tickets_per_batch"
        )

    async def learn(self, batch: Batch, publish_as: int | None) -> Learned:
        return await self._line.learner.learn(batch, publish_as)

    def tickets_of(self, batch: Batch) -> list[int]:
        return [rollout.ticket for rollout in batch.rollouts]

    def account(self, batch: Batch, report: LearnReport) -> tuple[JsonObject, float]:
        """Count what an update trained on; the metrics it is shown with, and that count."""
        samples = float(len(batch.rollouts) if report.samples is None else report.samples)
        self._ledger.count_samples(samples)
        measured = [rollout.info[MEASURES] for rollout in batch.rollouts if MEASURES in rollout.info]
        return {**report.metrics, **_means(measured)}, samples

    def take_back(self, batch: Batch, report: LearnReport) -> None:
        """The update is done and recorded."""
        if report.feedback is not None:
            raise RunFailed("learn reported feedback, but no replay has its own role to take it")

    def settles_with_publish(self) -> bool:
        """A version was published: is everything learned that was taken?"""
        return True

    def opens_when_resumed(self) -> bool:
        """Would a run that was not interrupted here open tickets now?"""
        return True

    def check_saved(self, replay: object) -> str:
        """What is wrong with a checkpoint of this line, if anything is."""
        return "" if replay is None else "with"


class ReplayFeed(Feed):
    """A replay, inside the learner or with a role of its own.

    A ticket counts as learned once the credit it brought is spent. Pinned runs spend it first and then insert one
    ticket, in order; free runs insert all that is there.
    """

    def __init__(
        self,
        line: Line,
        flights: Flights,
        calls: RoleCalls,
        control: RunControl,
        ending: Ending,
        why_no_ticket: Callable[[], str],
    ) -> None:
        super().__init__(line, flights, calls, control, ending, why_no_ticket)
        self._is_pinned = calls.settings.is_pinned
        self.draws = Draws(
            line.learner, calls.board, calls.runtime.release, deadline_s=calls.settings.deadlines.learn_s
        )

    def has_news(self) -> bool:
        return True

    async def next_batch(self) -> Batch | None:
        """What is drawn once the ratio allows an update; None when a stop was asked for instead."""
        line, ledger, flights = self._line, self._ledger, self._flights
        while not self._is_over:
            enough = ledger.rule.may_learn(ledger.tally)
            if not enough and ledger.tally.taken:  # their credit is spent, whether or not the next has landed
                flights.settle(line)
                flights.admit(line)
            now = self._now()
            if not self._is_pinned:
                choice = ledger.choose_all(line.version, now_s=now)
            else:
                choice = WAIT if enough else ledger.choose(line.version, now_s=now)
            for index in choice.expired:
                flights.expire(line, index, now)
            filtered = flights.drop_filtered(line, choice.batch)
            wanted = tuple(index for index in choice.batch if index not in filtered)
            if wanted and not await self._insert(wanted, now):
                continue
            for other in flights.lines[1:] if self.is_first and (choice.batch or choice.expired) else ():
                self._calls.board.wake(other.role)  # what the first has taken or dropped is theirs now
            if ledger.rule.may_learn(ledger.tally):
                return await self.draws.batch(line.version)
            if choice.batch or choice.expired:
                continue
            if not await self._wait_for_rollouts(lambda: ledger.rule.why_not_learn(ledger.tally)):
                break
        return None

    async def _insert(self, indices: tuple[int, ...], now: float) -> bool:
        """Hand these rollouts to the replay. False: some are lost, and none was handed over."""
        batch = self._flights.take(self._line, indices, now)
        try:
            await self.draws.insert(batch)
        except PayloadLost as lost:
            self._flights.put_back(self._line, batch, lost)
            return False
        seconds = round(self._now() - now, 6)
        self._calls.journal.write(Inserted, indices, self._line.version, seconds, self._line.name)
        return True

    async def learn(self, batch: Batch, publish_as: int | None) -> Learned:
        """Train, and make the next draw meanwhile where that may be."""
        learning = self._line.learner.learn(batch, publish_as)
        if self._may_draw_ahead(batch):
            return await self.draws.beside(learning, self._line.version)
        return await learning

    def _may_draw_ahead(self, batch: Batch) -> bool:
        """Is the next update sure to come, and may its draw depend on when? A pinned run draws in turn."""
        plan, tally = self._calls.settings.plan, self._ledger.tally
        is_last = self.is_first and self._line.updates + 1 == plan.updates
        if not self.draws.is_shared or self._is_pinned or is_last:
            return False
        drawn = sum(draw.steps for draw in batch.rollouts)
        return self._ledger.rule.may_learn(replace(tally, sampled=tally.sampled + drawn))

    def tickets_of(self, batch: Batch) -> list[int]:
        """A draw has none, and what the learner draws by itself is not in the batch."""
        return [] if self.draws.is_shared else [rollout.ticket for rollout in batch.rollouts]

    def account(self, batch: Batch, report: LearnReport) -> tuple[JsonObject, float]:
        samples, draws = report.samples, batch.rollouts if self.draws.is_shared else ()
        if samples is None:
            if not draws:
                raise RunFailed("learn must report how many samples it drew from its replay: LearnReport(samples=...)")
            samples = sum(draw.steps for draw in draws)
        self._ledger.count_samples(float(samples))
        metrics: JsonObject = dict(report.metrics)
        for draw in draws:
            metrics.update(draw.info[STATISTICS])
        return metrics, float(samples)

    def take_back(self, batch: Batch, report: LearnReport) -> None:
        """Its draw is not needed any more, its feedback is for the replay."""
        if self.draws.is_shared or report.feedback is not None:
            self.draws.give_back(batch, report)

    def settles_with_publish(self) -> bool:
        return not self._ledger.rule.may_learn(self._ledger.tally)

    def opens_when_resumed(self) -> bool:
        """In the middle of a version of a pinned run nothing has come free before all that was taken is learned from;
        then something has, and a run that was about to end did not open it."""
        return not (self._is_pinned and self._line.updates_in_version and self._ledger.tally.taken)

    async def finish(self) -> None:
        await self.draws.deliver_feedback()

    async def state(self) -> SavedState:
        """What the replay holds; none of it is here if the learner has it."""
        return await self.draws.state()

    async def restore(self, state: object) -> None:
        if self.draws.is_shared:
            await self._line.learner.restore_replay(state)

    def check_saved(self, replay: object) -> str:
        if self.draws.is_shared == (replay is not None):
            return ""
        return "without" if replay is None else "with"


AnyFeed = QueueFeed | ReplayFeed


def feed_for(line: Line) -> type[QueueFeed] | type[ReplayFeed]:
    """The one that fits what the line was told."""
    return QueueFeed if line.settings.replay is None else ReplayFeed


def _means(measures: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Of each name, over those that have it."""
    found: dict[str, list[float]] = {}
    for one in measures:
        for name, value in one.items():
            found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}
