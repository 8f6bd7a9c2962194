"""What must survive a restart is gathered between two updates, written beside the loops, and put back on resume.

A checkpoint of several lines is taken when none of them is in the middle of an update: their states belong together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from headway.coordinate.checkpoint import CheckpointError, CheckpointStore, LineState, RunState
from headway.coordinate.collector_calls import CollectorCalls
from headway.coordinate.evaluating import Evaluating
from headway.coordinate.feed import AnyFeed
from headway.coordinate.flights import Flights
from headway.coordinate.line import Line
from headway.coordinate.role_calls import RoleCalls
from headway.coordinate.roles import LEARNER
from headway.coordinate.settings import Settings
from headway.core.events import Resumed, Saved
from headway.core.order import OnStale
from headway.core.types import Snapshot, State

LOG_WITHIN_S = 10.0
"""How long a checkpoint waits for the event log to be on the disk; then it is written all the same."""
MAX_SHARE_OF_SAVING = 0.05
"""Of a run's time, where it saves by the clock: what takes long to save is saved less often."""


class Checkpointing:
    """Saves a run when that is due, and goes on from what was saved."""

    def __init__(
        self,
        store: CheckpointStore | None,
        feeds: dict[str, AnyFeed],
        flights: Flights,
        collectors: CollectorCalls,
        evaluating: Evaluating,
        calls: RoleCalls,
        wall_s: Callable[[], float],
    ) -> None:
        self.store = store
        self._feeds = feeds
        self._flights = flights
        self._collectors = collectors
        self._evaluating = evaluating
        self._calls = calls
        self._wall_s = wall_s
        self.is_saved = False
        """Has the state that the run ends with been written?"""
        self._saves_at = math.inf  # by the clock, if nobody saves before

    def begin(self, now: float) -> None:
        if self.store is not None:
            self._saves_at = now + (self._calls.settings.plan.save_every_s or math.inf)

    async def save_if_due(self) -> None:
        plan, version = self._calls.settings.plan, self._flights.first.version
        is_due = self.store is not None and plan.save_every and version % plan.save_every == 0
        if (is_due or self._calls.runtime.now() >= self._saves_at) and not self.is_saved:
            async with self._flights.turns_of_others():
                await self.save()

    async def save(self, *, is_end: bool = False) -> dict[str, Snapshot]:
        """Write a checkpoint. Called between updates only, so whatever is taken has been trained on.

        A run that ends in the middle of a version publishes what it has. That is staged here, after the learner's
        state was taken, and kept beside that state: it is what the run came to. Returns it for each such line.
        """
        if self.store is None:
            return {}
        flights, first, runtime = self._flights, self._flights.first, self._calls.runtime
        began = runtime.now()
        states: dict[str, State] = {}
        lasts: dict[str, Snapshot] = {}
        for line in flights.lines:
            folder = partial(self.store.beside, line.name)
            state = states[line.name] = {"learner": await line.learner.state(first.role, folder())}
            state["weights"] = await line.publishing.all_weights(first.role, folder)
            if is_end and line.updates_in_version:
                last, weights = await line.publishing.stage_last(line.version + 1, first.role, folder)
                if last is not None:
                    lasts[line.name], state["last"] = last, (last.version, weights)
        for line in reversed(flights.lines):  # that of the first line last: it may be given newer targets meanwhile
            states[line.name]["replay"] = await self._feeds[line.name].state()
        rollouts = flights.fetch_ready()  # before the ledger is looked at: what is lost is open again
        now = runtime.now()
        parts = {line.name: _line_state(line, states[line.name], now) for line in flights.lines}
        main = parts.pop("")
        evaluations = self._evaluating.evaluations
        run_state = RunState(
            version=main.version,
            updates=main.updates,
            updates_in_version=main.updates_in_version,
            wall_s=self._wall_s(),
            ledger=main.ledger,
            lead=main.lead,
            learner=main.learner,
            rollouts=rollouts,
            snapshots=main.snapshots,
            collectors=dict(self._collectors.carried),
            evaluations_due=evaluations.unfinished,
            scores=tuple(evaluations.scores),
            evaluations_skipped=evaluations.skipped,
            events_position=None,
            events_s=self._calls.journal.time_s,
            settings=self._calls.settings.describe(),
            replay=main.replay,
            last=main.last,
            lines=parts or None,
            companions=(
                dict(flights.companions.of_tickets),
                dict(flights.companions.of_newest),
                dict(self._evaluating.companions),
                {line.name: dict(line.births) for line in flights.lines[1:]},
            ),
        )
        mark = self._calls.journal.mark()  # nothing happens between the ledger's state and this
        store = self.store

        def write() -> None:
            known = mark.wait(LOG_WITHIN_S)
            store.save(
                replace(run_state, events_position=known.position, events_check=known.check, metrics=known.metrics)
            )

        await self._calls.write_file(LEARNER, f"checkpoint of version {first.version}", write)
        now, every_s = runtime.now(), self._calls.settings.plan.save_every_s
        if every_s:
            self._saves_at = now + max(every_s, (now - began) / MAX_SHARE_OF_SAVING)
        self._calls.journal.write(Saved, first.version)
        return lasts

    async def restore(self, state: RunState, *, evaluates_last: bool) -> None:
        """Go on where the checkpoint was written: the same slots, tickets, weights and carried states."""
        settings, flights = self._calls.settings, self._flights
        check_same_run(state, settings)
        parts = {"": _main_state(state), **(state.lines or {})}
        if set(parts) != {line.name for line in flights.lines}:
            named = ", ".join(sorted(filter(None, parts))) or "none"
            raise CheckpointError(f"the checkpoint was written with other lines ({named}): it goes on as it was")
        for line in flights.lines:
            held = self._feeds[line.name].check_saved(parts[line.name].replay)
            if held:
                raise CheckpointError(
                    f"the checkpoint was written {held} a replay in its own role: it goes on as it was"
                )
        for line in flights.lines:
            await self._restore_line(line, parts[line.name])
        for number, carried in state.collectors.items():
            if number < settings.collectors:
                await self._collectors.restore_collector(number, carried)
            else:  # a later session may have it again
                self._collectors.carried[number] = carried
        now = self._calls.runtime.now()  # now: restoring roles makes nothing older
        for line in flights.lines:
            line.ledger.load_state_dict(parts[line.name].ledger, now_s=now)
            line.publishing.restore(parts[line.name].version, parts[line.name].snapshots)
        if state.companions is None:  # of a run with one line, recorded before there could be several
            evaluated_with: Mapping[int, Mapping[str, int]] = {}
        else:
            of_tickets, of_newest, evaluated_with, births = state.companions
            flights.companions.restore(of_tickets, of_newest)
            for line in flights.lines[1:]:
                line.restore_births(births[line.name])
        flights.restore(state.rollouts)
        due = state.evaluations_due if evaluates_last else ()  # they may have been turned off since
        self._evaluating.restore(state.scores, state.evaluations_skipped, due, evaluated_with)
        for line in flights.lines:
            line.snapshots.forget_unheld()
        others = {name: [part.version, part.updates] for name, part in parts.items() if name}
        self._calls.journal.write(Resumed, state.version, state.updates, others)

    async def _restore_line(self, line: Line, part: LineState) -> None:
        line.updates, line.updates_in_version = part.updates, part.updates_in_version
        line.lead.load_state_dict(part.lead)
        await line.learner.restore(part.learner)
        await self._feeds[line.name].restore(part.replay)


def _line_state(line: Line, state: State, now: float) -> LineState:
    weights = state["weights"]
    return LineState(
        version=line.version,
        updates=line.updates,
        updates_in_version=line.updates_in_version,
        ledger=line.ledger.state_dict(now_s=now),
        lead=line.lead.state_dict(),
        learner=state["learner"],
        snapshots={snapshot.version: weights[snapshot.version] for snapshot in line.snapshots.all()},
        replay=state["replay"],
        last=state.get("last"),
    )


def _main_state(state: RunState) -> LineState:
    return LineState(
        version=state.version,
        updates=state.updates,
        updates_in_version=state.updates_in_version,
        ledger=state.ledger,
        lead=state.lead,
        learner=state.learner,
        snapshots=state.snapshots,
        replay=state.replay,
        last=state.last,
    )


def check_same_run(state: RunState, settings: Settings) -> None:
    """What decides which tickets exist may not change in the middle of a run."""
    now = settings.describe()
    fixed = ["seed", "tickets_per_batch", "publish_every", "dispatch"]
    if settings.is_pinned:
        fixed += ["max_lead", "collectors"]
    if settings.on_stale is OnStale.WAIT:
        fixed.append("max_staleness")
    if settings.is_pinned and settings.lines:
        fixed.append("lines")
    for name in fixed:
        if state.settings.get(name) != now[name]:
            raise CheckpointError(
                f"the checkpoint was written with {name}={state.settings.get(name)!r}; it cannot be resumed "
                f"with {name}={now[name]!r}"
            )
