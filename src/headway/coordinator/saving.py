"""What must survive a restart is gathered between two updates, written beside the loops, and put back on resume.

    gather   between two updates: the states of learners and replays, the ledgers, what is held
    write    the learner waits for it; or, where it writes its own files while it learns (`SavedSoon`), beside it:
             the checkpoint is made when the last file is there. One at a time: what comes due meanwhile is skipped

A checkpoint of several lines is taken when none of them is in the middle of an update: their states belong together.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from headway.coordinator.checkpoint import CheckpointError, CheckpointStore, LineState, RunState
from headway.coordinator.collectors_collector_calls import CollectorCalls
from headway.coordinator.evaluating import Evaluating
from headway.coordinator.learning_feed import AnyFeed
from headway.coordinator.line import Line
from headway.coordinator.role_calls import RoleCalls, RunFailed
from headway.coordinator.roles import LEARNER, WRITER
from headway.coordinator.settings import Settings
from headway.coordinator.state_files_saved_beside import SavedSoon
from headway.coordinator.tickets_flights import Flights
from headway.core.events import Resumed, Saved, SaveSkipped
from headway.core.protocols import PayloadLost
from headway.core.rules_order import OnStale
from headway.core.types import Snapshot, State
from headway.core.types_opaque import SavedState, Weights
from headway.runs.log_file import Mark

LOG_WITHIN_S = 10.0
"""How long a checkpoint waits for the event log to be on the disk; then it is written all the same."""
MAX_SHARE_OF_SAVING = 0.05
"""Of a run's time, where it saves by the clock: what takes long to save is saved less often."""
LOOK_S = 0.05
"""Between two looks whether the files of a learner are there."""


@dataclass(frozen=True, slots=True)
class _Gathered:
    """A run between two updates, before its files are there."""

    state: RunState
    mark: Mark
    held: Mapping[str, list[Snapshot]]
    """Of each line, the snapshots whose weights are still to be taken. They are held until then."""


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
        bring_back: Callable[[], Awaitable[None]],
    ) -> None:
        """`bring_back` starts those collectors again that were leaving and still have tickets."""
        self.store = store
        self._bring_back = bring_back
        self._feeds = feeds
        self._flights = flights
        self._collectors = collectors
        self._evaluating = evaluating
        self._calls = calls
        self._wall_s = wall_s
        self.configured_collectors = calls.settings.collectors
        """How many the run was told to have."""
        self.is_saved = False
        """Has the state that the run ends with been written?"""
        self._saves_at = math.inf  # by the clock, if nobody saves before
        self._writing: asyncio.Task[None] | None = None  # beside the learner

    def begin(self, now: float) -> None:
        if self.store is not None:
            self._saves_at = now + (self._calls.settings.plan.save_every_s or math.inf)

    async def save_if_due(self) -> None:
        if self._writing is not None and self._writing.done():
            await self._end_of_writing()
        plan, version, now = self._calls.settings.plan, self._flights.first.version, self._calls.runtime.now
        is_due = self.store is not None and bool(plan.save_every) and version % plan.save_every == 0
        if self.is_saved or not (is_due or now() >= self._saves_at):
            return
        if self._writing is not None:
            if is_due:  # by the clock it stays due
                self._calls.journal.write(SaveSkipped, version)
            return
        async with self._flights.turns_of_others():
            began = now()
            states, _ = await self._states(holds=True)
            gathered = self._gathered(states)
            if any(isinstance(state["learner"], SavedSoon) for state in states.values()):
                self._calls.board.rest([WRITER], "asked", "the next checkpoint")
                self._writing = asyncio.create_task(self._write(gathered, WRITER))
            else:
                await self._write(gathered, LEARNER)
        self._note_cost(began)

    async def save(self, *, is_end: bool = False) -> dict[str, Snapshot]:
        """Write a checkpoint, and wait for it. Called between updates only, so whatever is taken has been trained on.

        A run that ends in the middle of a version publishes what it has. That is staged here, after the learner's
        state was taken, and kept beside that state: it is what the run came to. Returns it for each such line.
        """
        if self.store is None:
            return {}
        await self._end_of_writing()
        began = self._calls.runtime.now()
        states, lasts = await self._states(holds=False, is_end=is_end)
        await self._write(self._gathered(states), LEARNER)
        self._note_cost(began)
        return lasts

    def way_back(self) -> str | None:
        """In words, how a run that cannot go on is resumed, if there is a checkpoint."""
        if self.store is None or not (saved := self.store.all()):
            return None
        return f"`headway resume {self.store.folder.parent}` goes back to checkpoint {saved[-1].name}"

    async def close(self) -> None:
        """Nothing is written any more; what was not whole is no checkpoint."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait([self._writing])
            if not self._writing.cancelled():
                self._writing.exception()  # the run ends with another error, or with this one

    async def _end_of_writing(self) -> None:
        """Wait for the checkpoint that is being written, if there is one; an error there ends the run here."""
        task, self._writing = self._writing, None
        if task is not None:
            await task

    def _note_cost(self, began: float) -> None:
        now, every_s = self._calls.runtime.now(), self._calls.settings.plan.save_every_s
        if every_s:
            self._saves_at = now + max(every_s, (now - began) / MAX_SHARE_OF_SAVING)

    # -- gather -------------------------------------------------------------------------------------

    async def _states(self, *, holds: bool, is_end: bool = False) -> tuple[dict[str, State], dict[str, Snapshot]]:
        """Of each line, what has to be asked for: its learner's and its replay's state, its weights, and at the end
        the version it ends with. Weights of a learner that goes on are not there yet, but held."""
        assert self.store is not None
        first = self._flights.first
        states: dict[str, State] = {}
        lasts: dict[str, Snapshot] = {}
        for line in self._flights.lines:
            folder = partial(self.store.beside, line.name)
            state = states[line.name] = {"learner": await line.learner.state(first.role, folder())}
            if holds and isinstance(state["learner"], SavedSoon):
                state["held"] = line.publishing.hold_all()
            else:
                state["weights"] = await line.publishing.all_weights(first.role, folder)
            if is_end and line.updates_in_version:
                last, weights = await line.publishing.stage_last(line.version + 1, first.role, folder)
                if last is not None:
                    lasts[line.name], state["last"] = last, (last.version, weights)
        for line in reversed(
            self._flights.lines
        ):  # that of the first one last: it may be given newer targets meanwhile
            states[line.name]["replay"] = await self._feeds[line.name].state()
        return states, lasts

    def _gathered(self, states: dict[str, State]) -> _Gathered:
        flights = self._flights
        rollouts = flights.fetch_ready()  # before the ledger is looked at: what is lost is open again
        now = self._calls.runtime.now()
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
            settings={**self._calls.settings.describe(), "collectors": self._collectors.posts.num},
            configured_collectors=self.configured_collectors,
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
        return _Gathered(run_state, mark, {name: state["held"] for name, state in states.items() if "held" in state})

    # -- write --------------------------------------------------------------------------------------

    async def _write(self, gathered: _Gathered, role: str) -> None:
        """`role` is who is busy with it, on the board."""
        store, mark, what = self.store, gathered.mark, f"checkpoint of version {gathered.state.version}"
        assert store is not None
        try:
            weights = await self._taken(gathered.held, role)
        except PayloadLost:  # with the node that had them; the next checkpoint has those that are staged again
            self._calls.journal.write(SaveSkipped, gathered.state.version)
            return
        state = gathered.state
        main = replace(_main_state(state), snapshots=weights.get("", state.snapshots))
        main = replace(main, learner=await self._files_of(main.learner, role, what))
        lines = {
            name: replace(
                part,
                learner=await self._files_of(part.learner, role, what),
                snapshots=weights.get(name, part.snapshots),
            )
            for name, part in (state.lines or {}).items()
        }
        state = replace(state, learner=main.learner, snapshots=main.snapshots, lines=lines or None)

        def write() -> None:
            known = mark.wait(LOG_WITHIN_S)
            store.save(replace(state, events_position=known.position, events_check=known.check, metrics=known.metrics))

        await self._calls.write_file(role, what, write)
        self._calls.journal.write(Saved, state.version)

    async def _taken(self, held: Mapping[str, list[Snapshot]], role: str) -> dict[str, dict[int, Weights]]:
        """Of the lines whose weights were held, those weights by their versions."""
        assert self.store is not None
        found: dict[str, dict[int, Weights]] = {}
        try:
            for line in self._flights.lines:
                folder = partial(self.store.beside, line.name)
                for snapshot in held.get(line.name, ()):
                    weights = await line.publishing.weights_of(snapshot, role, folder)
                    found.setdefault(line.name, {})[snapshot.version] = weights
        finally:
            for line in self._flights.lines:
                line.publishing.let_go_of(held.get(line.name, ()))
        return found

    async def _files_of(self, state: SavedState, role: str, what: str) -> SavedState:
        """What a learner has saved, once all of its files are there."""
        if not isinstance(state, SavedSoon):
            return state
        limit_s = self._calls.settings.deadlines.save_s
        self._calls.board.begin(role, "save", f"the files of the {what}", limit_s)
        try:
            async with asyncio.timeout(limit_s):
                while (found := await self._calls.runtime.offload(state.when_written)) is None:
                    await asyncio.sleep(LOOK_S)
                return found
        except TimeoutError:
            raise RunFailed(
                f"the {what} was not written within save_deadline_s={limit_s:g}: no {state.unwritten()}"
            ) from None
        finally:
            self._calls.board.end(role)

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
        await self._bring_back()
        for line in flights.lines:
            line.ledger.postpone(self._calls.runtime.now() - now)
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
    weights = state.get("weights", {})
    return LineState(
        version=line.version,
        updates=line.updates,
        updates_in_version=line.updates_in_version,
        ledger=line.ledger.state_dict(now_s=now),
        lead=line.lead.state_dict(),
        learner=state["learner"],
        snapshots={snapshot.version: weights[snapshot.version] for snapshot in line.snapshots.all() if weights},
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


def with_number_in_force(settings: Settings, state: RunState | None) -> Settings:
    """A run that was scaled goes on with as many collectors as it had, unless it is told another number than before."""
    if state is None or state.configured_collectors != settings.collectors:
        return settings
    return replace(settings, collectors=state.settings["collectors"])


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
