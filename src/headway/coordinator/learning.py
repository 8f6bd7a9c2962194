"""The learn loop of a line: batches in, versions out.

    feed --batch--> learn --> account --> (publish_every updates) --> publish --> settle, admit --> evaluate, save

What follows a publish of the first line (an evaluation, a checkpoint, newer targets) is handed in as `after_publish`;
the other lines have none of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from headway.coordinator.learning_feed import AnyFeed
from headway.coordinator.line import Line
from headway.coordinator.role_calls import RoleCalls
from headway.coordinator.run_result_control import RunControl
from headway.coordinator.tickets_flights import Flights
from headway.core.events import LeadMoved, UpdateBegan, Updated
from headway.core.protocols import PayloadLost
from headway.core.types import Batch, Snapshot
from headway.runs.event_log import settled
from headway.runs.samples import SampleLog


class Learning:
    """Trains one learner and publishes its versions."""

    def __init__(
        self,
        line: Line,
        feed: AnyFeed,
        flights: Flights,
        calls: RoleCalls,
        control: RunControl,
        *,
        after_publish: Callable[[], Awaitable[None]],
        after_update: Callable[[], object] | None = None,
        on_publish: Callable[[], None] | None = None,
        samples: SampleLog | None = None,
    ) -> None:
        """`after_update` looks whether the plan is reached. `on_publish` is called when a version exists, before slots
        come free; `after_publish` is awaited when they have."""
        self._line = line
        self._feed = feed
        self._flights = flights
        self._calls = calls
        self._control = control
        self._after_update = after_update
        self._on_publish = on_publish
        self._after_publish = after_publish
        self._samples = samples

    async def loop(self) -> None:
        """Consumes ready rollouts, produces versions. Waits for: a batch in the chosen order (and credit from the
        replay ratio). Woken by: a landing, a drop, a stop. Ends: when the plan of the run is reached.
        """
        warmup_s = self._calls.settings.plan.warmup_s
        if warmup_s and not self._line.updates:
            await self._warm_up(warmup_s)
        while True:
            async with self._line.turn:
                batch = await self._feed.next_batch()
                if batch is None:
                    break
                await self._learn(batch)
            self.look()
        await self._feed.finish()

    def look(self) -> None:
        """Between two updates: is the plan reached?"""
        if self._after_update is not None:
            self._after_update()

    async def _learn(self, batch: Batch) -> None:
        """One update; publish if it completes a version."""
        line, journal, now = self._line, self._calls.journal, self._calls.runtime.now
        completes = line.updates_in_version + 1 >= line.settings.publish_every
        tickets = self._feed.tickets_of(batch)
        began = now()
        journal.write_at(began, UpdateBegan, line.updates + 1, batch.version, tickets, line.name)
        try:
            report, snapshot, problem = await self._feed.learn(batch, line.version + 1 if completes else None)
        except PayloadLost as lost:
            self._flights.put_back(line, batch, lost)
            return
        line.updates += 1
        line.updates_in_version += 1
        ended = now()
        line.metrics, samples = self._feed.account(batch, report)
        line.lead.note(report.effective_sample_size)
        if self._samples is not None:
            self._samples.learned(line.updates, batch)
        if journal.is_on:
            seconds, metrics = round(ended - began, 6), settled(line.metrics)
            journal.write_at(ended, Updated, line.updates, batch.version, tickets, seconds, metrics, samples, line.name)
        self._feed.take_back(batch, report)
        if completes and snapshot is None:  # not before the update is recorded: others may ask for these weights
            snapshot = await line.learner.stage_again(line.version + 1, problem)
        if snapshot is not None:
            await self.publish(snapshot)
        else:
            journal.look_if_due()

    async def publish(self, snapshot: Snapshot) -> None:
        """The version exists: settle what made it, free its slots, then see to what follows."""
        line = self._line
        line.updates_in_version = 0
        line.publishing.put(snapshot)
        self._calls.journal.look_if_due()
        if self._feed.settles_with_publish():
            self._flights.settle(line)
        if self._on_publish is not None:
            self._on_publish()
        lead = line.lead.moved(line.version, self._calls.runtime.now(), self._calls.board)
        if lead is not None:
            self._calls.journal.write(LeadMoved, line.version, lead, line.name)
        self._flights.admit(line)
        await self._after_publish()

    @property
    def is_in_a_version(self) -> bool:
        """Is there something learned that is not published?"""
        return self._line.updates_in_version > 0

    async def publish_last(self, saved: Mapping[str, Snapshot]) -> None:
        """The run ends in the middle of a version, which is published as it is."""
        snapshot = saved.get(self._line.name) or await self._line.learner.stage(self._line.version + 1)
        await self.publish(snapshot)

    async def _warm_up(self, seconds: float) -> None:
        board, now = self._calls.board, self._calls.runtime.now
        handle = asyncio.get_running_loop().call_later(seconds, board.wake, self._line.role)
        ends_at = now() + seconds
        while now() < ends_at and not self._control.stop_reason:  # landings wake the learner too
            await board.wait(self._line.role, "warm-up", f"the warm-up of {seconds:g} s", seconds + 60)
        handle.cancel()
