"""Random runs in virtual time, with faults, stops, kills and resumes; and what is wrong with each.

    number --draw--> Schedule --run_schedule--> sessions on the virtual runtime --> Outcome
                                                     |     ^
                                         checkpoints |     | resume: from the last one, or the one before it
                                                     v     |
                                     finished, stopped, killed, failed --> audit of the log so far

A schedule is a function of its number alone. Every session's log is audited (`auditor.py`), what the stations noticed
is added (`hash_chain_stations.py`), and the run as a whole must hold what it promises:

* it ends within bounded time, with a result or with one of the declared errors, for a reason the schedule contains;
* where the seed decides every bit, the weights and the sequence of batches are those of a run that nobody disturbed,
  and those of a plain serial program that knows no coordinator;
* the log of a finished run, executed again, gives the same weights.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import pickle
import random
import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fault_schedules import Ending, Faults, Scaling, Schedule, draw, traits
from hash_chain_stations import COLLECTORS, FIRST, SECOND, ChainLearner, Nature, Notes, Weights

from headway.coordinator.activities_waits import Stalled
from headway.coordinator.checkpoint import CheckpointStore, RunState
from headway.coordinator.coordinator import Coordinator
from headway.coordinator.rerun import Replayed, ReplayError, replay
from headway.coordinator.role_calls import RunFailed
from headway.coordinator.run_result import RunResult
from headway.coordinator.scaling import CollectorChange, ScaleRefused
from headway.coordinator.settings import Settings
from headway.core.rules_order import OnStale
from headway.core.types import Batch, Rollout, Snapshot, Ticket, derive_seed
from headway.runs.log_file import Mark
from headway.runtimes.virtual import Deadlock, Virtual
from headway.testing.auditor import Terms, Violation, audit
from headway.tools.simulate.workloads import Constant

MOST_SESSIONS = 6
MOST_EVENTS = 60_000
"""In one session. Runs of this size have some hundreds."""

PROMISES = {
    "ends": "a run ends within bounded time and never waits for ever",
    "reason": "a run fails only with a declared error, in one line, and for a reason that was injected",
    "patience": "with enough patience every run finishes",
    "stations": "stations are given the right weights, and nothing twice",
    "same bits": "a pinned run that was disturbed is the one that was not",
    "plain program": "a pinned run is the plain serial program",
    "same again": "the log of a finished run, executed again, gives its weights",
    "time adds up": "the activities of a role add up to the time it was there",
}
"""What is checked here, besides the auditor's rules."""


@dataclass
class Outcome:
    """What became of a schedule."""

    number: int
    end: str = ""
    """finished, stopped (with no session left to go on), failed or stalled."""
    why: str = ""
    violations: list[Violation] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    """Of events and drops in the log that is left at the end."""
    sessions: int = 0
    resumes: int = 0
    tickets: int = 0
    """Of all sessions, each as often as it was audited."""
    traits: list[str] = field(default_factory=list)
    digest: int = 0
    """Of all events of all sessions: equal for equal runs."""
    log: list[dict[str, Any]] = field(default_factory=list)

    def wrong(self, rule: str, what: str, at: int = -1) -> None:
        self.violations.append(Violation(rule, at, what))


class Killed(Exception):
    """The process is gone."""


class Endless(Exception):
    """So much happened, or so much time has passed, that this run will never end."""


class Log:
    """Keeps the events of a run, and ends a session after so many of them."""

    def __init__(
        self,
        kept: list[dict[str, Any]],
        ending: Ending | None,
        latest_s: float,
        scalings: Sequence[Scaling] = (),
        changes: Sequence[tuple[int, int]] = (),
    ) -> None:
        """`changes` are made one after another, each from its ticket on: (collectors, ticket)."""
        self.events = kept
        self._changes = list(changes)
        self._is_changing = not changes
        self.answers: list[Future[CollectorChange]] = []
        """To each scaling that was asked for."""
        self._scalings = {one.after_events: one.collectors for one in scalings}
        self._first = len(kept)
        self._ending = ending
        self._latest_s = latest_s
        self._is_closed = False
        self._coordinator: Coordinator | None = None
        self._over: asyncio.Future[Exception] | None = None

    async def follow(self, coordinator: Coordinator) -> RunResult:
        """Its run, unless the log ends it before."""
        self._coordinator = coordinator
        self._over = asyncio.get_running_loop().create_future()
        running = asyncio.ensure_future(coordinator.run())
        await asyncio.wait((running, self._over), return_when=asyncio.FIRST_COMPLETED)
        if not self._over.done():
            return running.result()
        self._is_closed = True  # between two steps of the run: the log and the checkpoints are of one moment
        running.cancel()
        await asyncio.wait((running,))
        if not running.cancelled():
            running.exception()  # it failed at the same time
        raise self._over.result()

    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        if self._is_closed:
            return
        self.events.append({"t": time_s, "e": kind, **fields})
        count = len(self.events) - self._first
        assert self._over is not None
        if self._over.done():
            return
        if kind == "start" and not self._is_changing:
            self._is_changing = True
            asyncio.get_running_loop().call_soon(self._change_next)
        if count in self._scalings:
            asyncio.get_running_loop().call_soon(self._scale, self._scalings[count])
        if self._ending is not None and count == self._ending.after_events:
            if self._ending.kind == "kill":
                self._over.set_result(Killed())
            else:
                assert self._coordinator is not None
                asyncio.get_running_loop().call_soon(self._coordinator.request_stop)
        elif count > MOST_EVENTS or time_s > self._latest_s:
            self._over.set_result(Endless())

    def _scale(self, collectors: int, ticket: int | None = None) -> None:
        assert self._coordinator is not None
        self.answers.append(Future())
        self._coordinator.scale(collectors, self.answers[-1], ticket)

    def _change_next(self) -> None:
        loop = asyncio.get_running_loop()
        if self._changes and not loop.is_closed():
            self._scale(*self._changes.pop(0))
            self.answers[-1].add_done_callback(lambda _: loop.call_soon(self._change_next))

    def mark(self) -> Mark:
        return Mark.at(len(self.events))

    def close(self) -> None:
        self._is_closed = True


class MemoryCheckpoints(CheckpointStore):
    """The last two checkpoints, in memory."""

    def __init__(self) -> None:
        super().__init__(Path("run/checkpoints"))
        self._saved: list[bytes] = []

    def save(self, state: RunState) -> Path:
        self._saved = [*self._saved[1 - self.keep :], pickle.dumps(state, protocol=5)]
        return self.folder / f"v{state.version}"

    def beside(self, line: str = "", version: int | None = None) -> str:
        """No station of these runs writes files."""
        return str(self.folder / "beside")

    def all(self) -> list[Path]:
        return [self.folder / str(number) for number in range(len(self._saved))]

    def load(self, path: Path | None = None) -> RunState:
        """The last one, or the one at `path`, after which those behind it are forgotten."""
        self._saved = self._saved[: 1 + (len(self._saved) - 1 if path is None else int(path.name))]
        state = pickle.loads(self._saved[-1])
        assert isinstance(state, RunState)
        return state


def run_schedule(number: int, lines: int | None = None) -> Outcome:
    """Run schedule `number` (`draw`) to its end and check it."""
    return _Run(draw(number, lines)).to_the_end()


class _Run:
    """One run: its sessions, its log, its checkpoints."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._settings = schedule.settings
        self._random = random.Random(f"faults {schedule.number}")
        self._outcome = Outcome(schedule.number)
        self._notes = Notes()
        self._faults = Faults(schedule, self._random, self._outcome.faults)
        self._checkpoints = MemoryCheckpoints()
        self._events: list[dict[str, Any]] = []
        self._terms: list[Terms] = []
        self._digest = hashlib.blake2b(digest_size=8)

    def to_the_end(self) -> Outcome:
        schedule, outcome = self._schedule, self._outcome
        endings, longer, result = list(schedule.endings), schedule.goes_on, None
        while outcome.sessions < MOST_SESSIONS and not outcome.violations:
            is_last = outcome.sessions == MOST_SESSIONS - 1
            result = self._session(endings.pop(0) if endings and not is_last else None)
            if outcome.end == "finished":
                plan = self._settings.plan
                if not longer or plan.updates is None or is_last:
                    break
                self._settings = replace(self._settings, plan=replace(plan, updates=plan.updates + longer))
                longer = 0
            elif outcome.end in ("failed", "stalled") and not self._goes_on_after_failure():
                break
        self._check_the_whole(result)
        outcome.log = self._events
        outcome.kinds.update(event["e"] for event in self._events)
        outcome.kinds.update(f"drop {event['reason']}" for event in self._events if event["e"] == "drop")
        outcome.digest = int.from_bytes(self._digest.digest(), "big")
        outcome.traits = traits(schedule)
        return outcome

    def _goes_on_after_failure(self) -> bool:
        has_saved = bool(self._checkpoints.all())
        return has_saved and self._random.random() < self._schedule.resumes_after_failure

    # -- one session --------------------------------------------------------------------------------

    def _session(self, ending: Ending | None) -> RunResult | None:
        outcome, state = self._outcome, self._next_state()
        settings = self._settings
        latest_s = (self._events[-1]["t"] if self._events else 0.0) + _bound_s(settings)
        log = Log(self._events, ending, latest_s, self._schedule.scalings)
        before = outcome.faults.total()
        stations = self._schedule.nature.stations(self._notes, self._random, self._count)
        runtime = Virtual(self._faults)
        result: RunResult | None = None
        try:
            coordinator = Coordinator(
                stations, settings, runtime, recorder=log, checkpoints=self._checkpoints, resume=state
            )
            result = runtime.run(log.follow(coordinator))
            outcome.end, outcome.why = ("finished" if result.is_complete else "stopped"), result.stop_reason
        except Killed:
            outcome.end, outcome.why = "killed", f"killed after {len(self._events)} events"
        except Endless:
            outcome.end = "endless"
            outcome.wrong("ends", f"no end after {len(self._events)} events, {self._events[-1]['t']:g} s")
        except Deadlock as deadlock:
            outcome.end = "deadlock"
            outcome.wrong("ends", f"{deadlock}: {coordinator.why()}")
        except RunFailed as failure:
            outcome.end, outcome.why = "failed", str(failure)
            if reason := unexplained(str(failure), settings, outcome.faults, outcome.faults.total() - before):
                outcome.wrong("reason", f"{reason}: {failure}")
        except Stalled as stalled:
            outcome.end, outcome.why = "stalled", str(stalled)
            if not any(line.max_age_s is not None and line.expiry.discards for line in settings.all_lines.values()):
                outcome.wrong("reason", f"stalled: {stalled}")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not declared
            outcome.end, outcome.why = "broken", f"{type(error).__name__}: {error}"
            outcome.wrong("reason", f"undeclared {outcome.why}")
        outcome.sessions += 1
        for answer in log.answers:
            if not answer.done():
                outcome.wrong("scaling", "a change of the collectors has no answer")
            elif not isinstance(answer.exception(), ScaleRefused | None):
                outcome.wrong("scaling", f"a change of the collectors failed: {answer.exception()!r}")
        self._check_session(result)
        return result

    def _next_state(self) -> RunState | None:
        """Where the next session begins: at a checkpoint, or at the beginning."""
        saved, state = self._checkpoints.all(), None
        if saved:
            goes_back = len(saved) > 1 and self._random.random() < self._schedule.takes_older
            state = self._checkpoints.load(saved[-2] if goes_back else None)
            self._outcome.resumes += 1
            if self._schedule.changes:
                self._change_settings()
        self._events = self._events[: 0 if state is None else state.events_position]
        sessions = sum(event["e"] == "run" for event in self._events)
        settings, nature = self._settings, self._schedule.nature
        self._terms = [
            *self._terms[:sessions],
            Terms(
                updates=settings.plan.updates,
                steps=settings.plan.steps,
                evaluate_first=settings.plan.evaluate_first,
                holds_weights=nature.collector == "engine",
                may_lose_payloads=nature.loses,
            ),
        ]
        return state

    def _change_settings(self) -> None:
        """What a resumed run may have that it had not before."""
        rng, settings = self._random, self._settings
        try:
            if settings.is_pinned:
                self._settings = replace(settings, lanes=_other_lanes(settings, rng))
            else:
                lead = rng.choice([settings.max_lead, 0.5, 1, 3, "auto"])
                lanes, collectors = _other_lanes(settings, rng), rng.randint(1, 4)
                self._settings = replace(settings, collectors=collectors, lanes=lanes, max_lead=lead, dispatch="free")
        except ValueError:
            pass  # not together with the others

    def _count(self, name: str) -> None:
        self._outcome.faults[name] += 1

    def _check_session(self, result: RunResult | None) -> None:
        outcome, counts = self._outcome, None
        if result is not None:
            counts = {
                **asdict(result.ledger),
                **{name: getattr(result, name) for name in REPORTED},
                "scores": [(score.version, score.value) for score in result.scores],
                "lines": {
                    name: {**asdict(line.ledger), "version": line.version, "updates": line.updates, "lead": line.lead}
                    for name, line in result.lines.items()
                },
            }
            for ledger in (result.ledger, *(line.ledger for line in result.lines.values())):
                if not ledger.closes:
                    outcome.wrong("counts", f"the ledger does not close: {ledger}")
            for role, by in result.time_spent.seconds.items():
                comes_and_goes = self._schedule.scalings and role.startswith("collector")
                if (
                    not role.startswith("publisher")
                    and not comes_and_goes
                    and not math.isclose(
                        sum(by.values()), sum(result.time_spent.seconds["learner"].values()), abs_tol=1e-6
                    )
                ):
                    outcome.wrong("time adds up", f"{role}: {by}")
        outcome.violations += audit(self._events, self._terms, result=counts)
        outcome.violations += [Violation("stations", -1, wrong) for wrong in self._notes.wrong]
        outcome.tickets += sum(event["e"] == "open" for event in self._events)
        told = [
            event for event in self._events if event["e"] not in ("busy", "wait")
        ]  # whose order at a failure is open
        self._digest.update(json.dumps([outcome.end, outcome.why, told], sort_keys=True).encode())

    # -- the run as a whole -------------------------------------------------------------------------

    def _check_the_whole(self, result: RunResult | None) -> None:
        schedule, outcome, settings = self._schedule, self._outcome, self._settings
        if schedule.is_patient and outcome.end in ("failed", "killed"):
            outcome.wrong("patience", f"{outcome.end}: {outcome.why}")
        if result is None or outcome.end != "finished" or outcome.violations:
            return
        nature = schedule.nature
        # A draw that is made beside an update delays its event; weights staged again in between have it already.
        stages_unseen = nature.loses and nature.replay == "shared" and not settings.is_pinned
        if not nature.mixes and not stages_unseen:
            try:
                weights = _in_all_lines(replay(self._quiet_stations(), self._events))
            except ReplayError as error:
                outcome.wrong("same again", str(error))
            else:
                if weights != _in_all_lines(result):
                    outcome.wrong("same again", f"weights {_in_all_lines(result)}, executed again {weights}")
        leads = any(not line.is_synchronous for line in settings.all_lines.values())
        is_longer = schedule.goes_on > 0 and leads  # no line collected ahead of its first end
        chance_decides = schedule.nature.loses or settings.why_not_pinned != ""
        if not settings.is_pinned or chance_decides or is_longer:
            return
        follow = all(line.replay is None for line in settings.lines.values())  # a queue is never ahead of a replay
        is_exact = settings.plan.updates is not None and (settings.replay is None or follow)
        lines = list(settings.all_lines) if is_exact else [""]  # when the others end depends on when the first did
        batches = _batches(self._events, lines)
        changes = [(event["collectors"], event["k"]) for event in self._events if event["e"] == "scale"]
        calm = undisturbed(schedule, settings, lines, changes)
        if calm is None:
            return
        whole, weights = calm
        if batches != whole:
            first = next((pair for pair in zip(batches, whole, strict=False) if pair[0] != pair[1]), "their number")
            outcome.wrong("same bits", f"batches differ: {first}")
        elif weights != _in_all_lines(result, lines):
            outcome.wrong("same bits", f"weights {_in_all_lines(result, lines)}, undisturbed {weights}")
        if is_plain(schedule) and not changes and plain_program(schedule.nature, settings) != result.weights:
            outcome.wrong("plain program", f"weights {result.weights}")

    def _quiet_stations(self) -> Any:
        nature = replace(self._schedule.nature, publish_fails=0.0, final=0.0)
        return nature.stations(self._notes, self._random, self._count)


ROLES = ("busy", "wait")
"""Kinds of events whose order depends on memory addresses when all loops are cancelled at once."""
REPORTED = ("version", "updates", "stop_reason", "restarts", "evaluations_skipped", "lead")


def _other_lanes(settings: Settings, rng: random.Random) -> int:
    return settings.lanes if settings.lanes == 1 else rng.choice([2, 3])


def _bound_s(settings: Settings) -> float:
    """More than any healthy run of this size takes: every wait as long as it may be, for each update and evaluation."""
    updates = settings.plan.updates or settings.plan.steps or 1
    return 4 * (updates + 4) * settings.patience_s


def unexplained(message: str, settings: Settings, faults: Counter[str], new_faults: int) -> str:
    """What is wrong with this failure, if anything is."""
    if "\n" in message:
        return "more than one line"
    if not new_faults:
        return "nothing was injected"
    for pattern, kinds in REASONS.items():
        if re.search(pattern, message):
            return "" if any(faults[kind] for kind in kinds) else f"none of {', '.join(kinds)} was injected"
    return "unknown failure"


REASONS: dict[str, Sequence[str]] = {
    r"^ticket \d+.* failed": ("crash", "hang", "raise", "lose", "slow"),
    r"max_restarts=": ("crash", "hang", "restart fails", "raise", "slow"),
    r"could not be published in": ("publish fails",),
    r"was lost more than publish_attempts times": ("lose",),
    r"cannot go on": ("final",),
    r"\.start: crashed while starting": ("start fails",),
    r"^(learner|second/learner|replay|reanalyzer)\.\w+: (crashed|no answer|it is not running)": ("learner dies",),
    r"injected loss of the payloads": ("lose",),
    r"in a row": ("crash", "hang", "raise", "lose", "slow"),
}


# -- what it must equal -------------------------------------------------------------------------------


def _batches(events: Sequence[dict[str, Any]], lines: Sequence[str]) -> list[tuple[Any, ...]]:
    """Every update and insert, line by line: its version, its tickets and the versions these were born with."""
    born: dict[int, tuple[int, ...]] = {}
    batches: dict[str, list[tuple[Any, ...]]] = {line: [] for line in lines}
    for event in events:
        if event["e"] == "start":
            born[event["k"]] = (event["v"], *event.get("others", {}).values())
        elif event["e"] in ("learn", "insert") and event.get("line", "") in batches:
            births = tuple(born[index] for index in event["k"])
            batch = (event["e"], event.get("u"), event["v"], tuple(event["k"]), births)
            batches[event.get("line", "")].append(batch)
    return [batch for line in lines for batch in batches[line]]


def _in_all_lines(result: RunResult | Replayed, lines: Sequence[str] = ("", SECOND)) -> list[Any]:
    """The weights that each of these lines came to."""
    return [result.weights, *(result.lines[line].weights for line in lines if line in result.lines)]


def undisturbed(
    schedule: Schedule, settings: Settings, lines: Sequence[str], changes: Sequence[tuple[int, int]]
) -> tuple[list[tuple[Any, ...]], Any] | None:
    """The same run in one session, in which nothing fails and its collectors change at the same tickets: its batches
    and its weights. None if it opens one of these tickets before a collector that was taken away has come back."""
    calm = replace(
        schedule,
        nature=replace(schedule.nature, publish_fails=0.0, final=0.0),
        collect=Constant(1.0),
        learn=Constant(1.0),
        evaluate=Constant(1.0),
        slow_steps=False,
        chances=dict.fromkeys(schedule.chances, 0.0),
    )
    rng, count = random.Random(0), Counter[str]()
    runtime, log = Virtual(Faults(calm, rng, count)), Log([], None, math.inf, changes=changes)
    stations = calm.nature.stations(Notes(), rng, lambda name: None)
    result = runtime.run(log.follow(Coordinator(stations, settings, runtime, recorder=log)))
    made = [(event["collectors"], event["k"]) for event in log.events if event["e"] == "scale"]
    return (_batches(log.events, lines), _in_all_lines(result, lines)) if made == list(changes) else None


def is_plain(schedule: Schedule) -> bool:
    """Does every ticket end in a batch, at the version that the lead alone decides?"""
    settings = schedule.settings
    return (
        settings.replay is None
        and not settings.lines
        and not schedule.nature.filters
        and settings.queue_capacity is None
        and settings.queue_bytes_limit is None
        and settings.plan.updates is not None
        and (settings.max_staleness is None or settings.on_stale is not OnStale.DROP)
    )


def plain_program(nature: Nature, settings: Settings) -> Weights:
    """A pinned run as one serial loop: ticket k flies with version max(0, ceil((k + 1 - slots) / tickets per version)).

    It knows no lanes and no coordinator: ticket k is collected by collector k mod collectors.
    """
    assert settings.plan.updates is not None
    assert isinstance(settings.max_lead, int | float)
    notes, rng = Notes(), random.Random(0)
    calm = replace(nature, publish_fails=0.0, final=0.0)
    kind = "plain" if nature.collector == "engine" else nature.collector
    collectors = [COLLECTORS[kind](calm, notes, rng, lambda name: None) for _ in range(settings.collectors)]
    learner = ChainLearner(calm, notes, rng, lambda name: None)
    per_batch, per_version = settings.tickets_per_batch, settings.tickets_per_batch * settings.publish_every
    slots = math.floor((1 + settings.max_lead) * per_version + 1e-9)
    weights = [FIRST]
    for update in range(settings.plan.updates):
        rollouts: list[Rollout] = []
        for index in range(update * per_batch, (update + 1) * per_batch):
            version = max(0, -((slots - index - 1) // per_version))
            ticket = Ticket(index, derive_seed(settings.seed, "ticket", index), version)
            snapshot = Snapshot(version, weights[version])
            rollouts.append(replace(collectors[index % len(collectors)].collect(ticket, snapshot), ticket=index))
        learner.learn(Batch(len(weights) - 1, tuple(rollouts)))
        if (update + 1) % settings.publish_every == 0:
            weights.append(learner.snapshot())
    return learner.snapshot()
