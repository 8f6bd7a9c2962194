"""Random runs for the virtual runtime: what is decided before each begins.

    number --draw--> Schedule: settings, stations, durations, chances of faults, stops, kills, resumes

A schedule is a function of its number alone. `schedule_runs.py` runs it and checks it.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Any

from hash_chain_stations import COLLECTORS, SAMPLES, SECOND, Nature

from headway.coordinator.settings import Deadlines, Plan, Retries, Settings
from headway.coordinator.settings_line_settings import LineSettings
from headway.core.rules import ReplayRatio
from headway.core.rules_order import OLDEST, READY, OnStale, window
from headway.core.types import Ticket
from headway.runtimes.virtual import Fault
from headway.tools.simulate.workloads import COLLECTING, Constant, Duration, Exponential, Lognormal, unit


@dataclass(frozen=True)
class Ending:
    """How a session is ended from outside, if it is not over before."""

    kind: str
    """stop: it is asked to end, and saves. kill: all that is not in a checkpoint is gone."""
    after_events: int


@dataclass(frozen=True)
class Scaling:
    """From outside the run is told to have so many collectors."""

    after_events: int
    """Of its session."""
    collectors: int


@dataclass(frozen=True)
class Schedule:
    """Everything that is decided before a run begins."""

    number: int
    settings: Settings
    nature: Nature
    collect: Duration
    learn: Duration
    evaluate: Duration
    ticks: bool
    """Does everything take whole ticks, so that much happens at once?"""
    slow_steps: bool
    """Do inserting, saving, applying and restarting take their time?"""
    chances: dict[str, float]
    """Of each fault, for one call."""
    is_patient: bool
    """Can no budget be used up?"""
    endings: tuple[Ending, ...]
    resumes_after_failure: float
    takes_older: float
    """The chance that a resume takes the checkpoint before the last one."""
    changes: bool
    """May settings change with a resume?"""
    goes_on: int
    """Updates that are added when the run has finished; it is resumed then."""
    mortals: tuple[str, ...] = ("learner", "replay", "reanalyzer")
    """The roles that may die for good, so that the run fails."""
    scalings: tuple[Scaling, ...] = ()
    """In every session."""

    def lines(self) -> list[str]:
        """For people who look into one schedule."""
        settings = asdict(self.settings)
        plan = settings.pop("plan")
        told = {**plan, **settings, "replay": self.settings.replay and self.settings.replay.describe()}
        told["order"], told["on_stale"] = str(self.settings.order), self.settings.on_stale.value
        told["dispatch"] = "pinned" if self.settings.is_pinned else "free"
        endings = ", ".join(f"{ending.kind} after {ending.after_events} events" for ending in self.endings)
        scalings = ", ".join(f"{one.collectors} after {one.after_events} events" for one in self.scalings)
        return [
            f"schedule {self.number}",
            "  settings: " + " ".join(f"{name}={value}" for name, value in told.items()),
            "  stations: " + " ".join(f"{name}={value}" for name, value in asdict(self.nature).items()),
            f"  durations: collect {self.collect}, learn {self.learn}, evaluate {self.evaluate}, ticks {self.ticks}, "
            f"slow steps {self.slow_steps}",
            "  chances: " + " ".join(f"{name}={chance}" for name, chance in self.chances.items() if chance),
            f"  sessions: {endings or 'one'}; resumed after a failure {self.resumes_after_failure}, from an older "
            f"checkpoint {self.takes_older}, with changes {self.changes}, longer by {self.goes_on} updates",
            f"  collectors: {scalings or 'as many as at the beginning'}",
        ]


EVALUATIONS: tuple[Duration, ...] = (Constant(0.5), Exponential(3.0), Exponential(12.0))


def draw(number: int, lines: int | None = None) -> Schedule:
    """Schedule `number`; with `lines=2` another one of that number, which has two lines."""
    if lines not in (None, 2):
        raise ValueError(f"schedules have as many lines as chance says (None) or 2, received {lines!r}")
    rng = random.Random(f"schedule {number}" if lines is None else f"schedule {number} of {lines} lines")
    is_patient = rng.random() < 0.2
    replays = rng.random() < (0.2 if lines is None else 0.5)
    settings = _draw_settings(rng, is_patient=is_patient, replays=replays)
    if lines is None:
        settings = _with_second_line(settings, random.Random(f"second line {number}"))
    else:
        while settings.on_stale is OnStale.REQUEUE:
            settings = _draw_settings(rng, is_patient=is_patient, replays=replays)
        settings = _with_any_second_line(settings, rng)
    settings = _with_several_tickets_a_call(settings, random.Random(f"tickets of a call {number}"))
    loses = rng.choice([0.0, 0.0, 0.0, 0.04])
    mixes = settings.on_publish == "partial"
    kinds = ["engine"] if mixes else ["concurrent", "engine"] if settings.lanes > 1 else list(COLLECTORS)
    nature = Nature(
        publish_every=settings.publish_every,
        collector=rng.choice(kinds),
        mixes=mixes,
        filters=rng.random() < 0.2,
        uneven=rng.random() < (0.2 if replays else 0.5),
        replay=rng.choice(["inside", "shared"]) if replays else "",
        reanalyzer=rng.choice(["", "targets", ""]) if replays else rng.choice([""]),
        decay=rng.choice([0.0, 0.2]),
        publish_fails=rng.choice([0.0, 0.0, 0.08]),
        final=0.0 if is_patient else rng.choice([0.0, 0.0, 0.0, 0.0, 0.003]),
        loses=loses > 0,
        second_publish_every=settings.lines[SECOND].publish_every if settings.lines else 0,
        second_replays=bool(settings.lines) and settings.lines[SECOND].replay is not None,
    )
    quiet = rng.random() < 0.15
    chances = {
        "crash": rng.choice([0, 0, 0.04]),
        "hang": rng.choice([0, 0, 0.02]),
        "raise": rng.choice([0, 0, 0.04]),
        "slow": rng.choice([0, 0, 0.04]),
        "lose": loses,
        "restart fails": rng.choice([0, 0, 0.2]),
        "learner dies": 0 if is_patient else rng.choice([0, 0, 0.01]),
        "start fails": 0 if is_patient else rng.choice([0, 0, 0.005]),
    }
    endings = tuple(
        Ending(rng.choice(["stop", "kill"]), int(math.exp(rng.uniform(math.log(4), math.log(700)))))
        for _ in range(rng.choice([0, 0, 1, 1, 2, 4]))
    )
    return Schedule(
        number,
        settings,
        nature,
        collect=Lognormal(1.0, rng.choice([0.2, 1.5])),
        learn=Exponential(rng.choice([0.2, 1.0])),
        evaluate=rng.choice(EVALUATIONS),
        ticks=rng.random() < 0.3,
        slow_steps=rng.random() < 0.5,
        chances={name: 0 if quiet and name != "lose" else float(chance) for name, chance in chances.items()},
        is_patient=is_patient,
        endings=endings,
        resumes_after_failure=rng.choice([0.0, 0.7, 1.0]),
        takes_older=rng.choice([0.0, 0.3]),
        changes=rng.random() < 0.15,
        goes_on=rng.choice([0, 0, 0, 0, 5]),
        mortals=("learner", "replay", "reanalyzer") if lines is None else MORTALS_OF_TWO_LINES,
        scalings=_draw_scalings(random.Random(f"scalings {number} {lines}")),
    )


def _draw_scalings(rng: random.Random) -> tuple[Scaling, ...]:
    """In two of five schedules collectors come and go, sometimes faster than they can."""
    count = rng.choice([0, 0, 0, 1, 6])
    return tuple(
        Scaling(int(math.exp(rng.uniform(math.log(8), math.log(500)))), rng.randint(1, 6)) for _ in range(count)
    )


def _with_second_line(settings: Settings, rng: random.Random) -> Settings:
    """In one of six schedules there is a second line, where the settings of the first allow it."""
    if rng.random() > 1 / 6 or settings.on_stale is OnStale.REQUEUE:
        return settings
    while True:
        lead = rng.choice([0, 0.5, 1, 2, 4])
        try:
            line = LineSettings(
                max_lead=lead,
                order=rng.choice([OLDEST, OLDEST, window(3), READY]),
                max_staleness=rng.choice([None, None, 0, 1, 2]),
                on_stale=rng.choice([OnStale.WAIT, OnStale.DROP, OnStale.KEEP]),
                tickets_per_batch=rng.randint(1, 3),
                publish_every=rng.randint(1, 3),
                queue_capacity=rng.choice([None, None, 6]),
                every=rng.choice([1, 1, 2, 3]),
            )
            return replace(settings, lines={SECOND: line})
        except ValueError:
            continue


def _with_several_tickets_a_call(settings: Settings, rng: random.Random) -> Settings:
    """In one of four schedules, where each collector has one lane and no pace."""
    if rng.random() > 1 / 4 or settings.lanes > 1 or settings.pacing_s:
        return settings
    return replace(settings, tickets_per_call=rng.choice([2, 3, 7]))


def _with_any_second_line(settings: Settings, rng: random.Random) -> Settings:
    """A second line with whatever a line may have."""
    replays = rng.random() < 0.25
    while True:
        lead: Any = rng.choice([0, 0.5, 1, 2, 4, "auto"])
        try:
            line = LineSettings(
                max_lead=lead,
                order=rng.choice([OLDEST, OLDEST, window(3), READY]),
                max_staleness=rng.choice([None, None, 0, 1, 2]),
                on_stale=rng.choice([OnStale.WAIT, OnStale.DROP, OnStale.KEEP]),
                max_age_s=rng.choice([None, None, None, 3.0, 12.0]),
                tickets_per_batch=rng.randint(1, 3),
                publish_every=rng.randint(1, 3),
                queue_capacity=rng.choice([None, None, 6]),
                queue_bytes_limit=rng.choice([None, None, None, 1, 60, 150]),
                lead_interval=rng.choice([1, 4, 8]),
                replay=_draw_ratio(rng) if replays else None,
                every=rng.choice([1, 1, 2, 3, 5]),
            )
            return replace(settings, lines={SECOND: line})
        except ValueError:
            continue


def _draw_settings(rng: random.Random, *, is_patient: bool, replays: bool) -> Settings:
    """Any combination that the constructor accepts."""
    retries = Retries(
        attempts_on_error=rng.choice([1, 4]),
        attempts_on_loss=rng.choice([2, 6]),
        on_failure=rng.choice(["stop", "stop", "drop"]),
        max_restarts=rng.choice([1, 60]),
        publish_attempts=rng.choice([2, 8]),
        evaluate_attempts=rng.choice([1, 2]),
    )
    if is_patient:
        retries = Retries(attempts_on_error=60, attempts_on_loss=60, max_restarts=999, publish_attempts=60)
    pins = rng.random() < 0.25
    if pins:
        retries = replace(retries, on_failure="stop")
    waits = not pins and not replays and rng.random() < 0.1
    while True:
        by_steps = rng.random() < 0.1
        lead: Any = rng.choice([0, 0.5, 1, 2, 4, 1 if pins or waits else "auto"])
        try:
            return Settings(
                plan=Plan(
                    updates=None if by_steps else rng.randint(3, 16),
                    steps=rng.randint(5, 30) if by_steps else None,
                    evaluate_every=rng.choice([0, 0, 1, 3]),
                    evaluate_first=rng.random() < 0.2,
                    save_every=rng.choice([0, 1, 1, 2, 5]),
                    warmup_s=rng.choice([0.0, 0.0, 3.0]),
                ),
                collectors=rng.randint(1, 4),
                lanes=rng.choice([1, 1, 1, 2, 3]),
                on_publish="drain" if pins else rng.choice(["drain", "drain", "partial"]),
                max_lead=lead,
                order=OLDEST if pins else READY if waits else rng.choice([OLDEST, window(3), READY]),
                max_staleness=math.ceil(lead) if waits else rng.choice([None, None, 0, 1, 2, 4]),
                on_stale=OnStale.WAIT if waits else rng.choice(list(OnStale)),
                max_age_s=rng.choice([None, None, None, 3.0, 12.0]),
                dispatch="pinned" if pins else rng.choice([None, None, "free"]),
                tickets_per_batch=rng.randint(1, 3),
                publish_every=rng.randint(1, 3),
                queue_capacity=rng.choice([None, None, 3, 6]),
                queue_bytes_limit=rng.choice([None, None, None, 1, 60, 150]),
                pacing_s=rng.choice([0.0, 0.0, 0.4]),
                evaluate_in_background=rng.random() < 0.5,
                lead_interval=rng.choice([1, 4, 8]),
                replay=_draw_ratio(rng) if replays else None,
                seed=rng.randrange(1000),
                deadlines=Deadlines(
                    collect_s=rng.choice([4, 30]), learn_s=60, evaluate_s=rng.choice([4, 60]), publish_s=10, start_s=20
                ),
                retries=retries,
            )
        except ValueError:
            continue


def _draw_ratio(rng: random.Random) -> ReplayRatio:
    inserts = rng.choice([1.0, 3.0, 4.5])
    slack = rng.choice([None, None, (SAMPLES + inserts) / 2])
    return ReplayRatio(inserts, rng.choice([1, 4]), slack, samples_per_update=SAMPLES, steps_per_ticket=1)


def traits(schedule: Schedule) -> list[str]:
    """What a schedule is an example of, for the table."""
    settings = schedule.settings
    names = [
        f"order {settings.effective_order}",
        "pinned" if settings.is_pinned else "free",
        "lanes" if settings.lanes > 1 else "one lane",
        f"replay {schedule.nature.replay}" if schedule.nature.replay else "queue",
    ]
    if settings.max_staleness is not None:
        names.append(f"max_staleness, {settings.on_stale.value}")
    if settings.max_age_s is not None:
        names.append(f"max_age_s, {settings.on_stale.value}")
    if settings.max_lead == "auto":
        names.append("auto lead")
    if settings.queue_bytes_limit is not None:
        names.append("queue_bytes_limit")
    if schedule.nature.reanalyzer == "targets":
        names.append("reanalysis")
    if settings.tickets_per_call != "auto":
        names.append("several tickets a call")
    if settings.on_publish == "partial":
        names.append("partial")
    if schedule.scalings:
        names.append("scaled")
    if settings.lines:
        names.append("two lines, pinned" if settings.is_pinned else "two lines, free")
        names += _traits_of_second(settings.lines[SECOND])
    if settings.plan.evaluate_every:
        names.append("evaluates in background" if settings.evaluate_in_background else "evaluates, blocking")
    return names


def _traits_of_second(line: LineSettings) -> list[str]:
    names = ["second replay" if line.replay is not None else "second queue"]
    names += ["second every > 1"] if line.every > 1 else []
    names += ["second auto lead"] if line.max_lead == "auto" else []
    names += [f"second max_staleness, {line.on_stale.value}"] if line.max_staleness is not None else []
    names += [f"second max_age_s, {line.on_stale.value}"] if line.max_age_s is not None else []
    return names


class Faults:
    """A workload that goes wrong by chance, and counts it."""

    def __init__(self, schedule: Schedule, rng: random.Random, count: Counter[str]) -> None:
        self._schedule = schedule
        self._chances = schedule.chances
        self._random = rng
        self.count = count

    def duration_s(self, role: str, method: str, args: tuple[Any, ...]) -> float:
        schedule, seconds = self._schedule, 0.0
        limits = schedule.settings.deadlines
        if method == "collect":  # late only by chance: a ticket that takes too long would do so at every attempt
            seconds = self._collect_s(args[0])
        elif method == "collect_several":
            seconds = sum(self._collect_s(ticket) for _, tickets in args[0] for ticket in tickets)
        elif method == "learn":
            seconds = min(schedule.learn.quantile(self._random.random()), 0.9 * limits.learn_s)
        elif method == "evaluate":
            seconds = min(schedule.evaluate.quantile(self._random.random()), 0.9 * limits.evaluate_s)
        elif method in SLOW_STEPS and schedule.slow_steps:
            seconds = self._random.choice([0.0, 0.25, 0.5, 1.0])
        if method in (*COLLECTING, "evaluate") and self._random.random() < self._chances["slow"]:
            self.count["slow"] += 1
            seconds *= 100
        return math.ceil(4 * seconds) / 4 if schedule.ticks else seconds

    def _collect_s(self, ticket: Ticket) -> float:
        return min(
            self._schedule.collect.quantile(unit(ticket.seed)), 0.9 * self._schedule.settings.deadlines.collect_s
        )

    def fault(self, role: str, method: str, args: tuple[Any, ...]) -> Fault | None:
        if method in NEEDS_PAYLOADS and self._happens("lose"):
            return Fault.LOSE
        if method in (*COLLECTING, "evaluate", "apply", "reanalyze_work"):
            if self._happens("crash"):
                return Fault.CRASH
            if self._happens("hang"):
                return Fault.HANG
            if method != "reanalyze_work" and self._happens("raise"):
                return Fault.RAISE
        elif method == "restart":
            return Fault.CRASH if self._happens("restart fails") else None
        elif method == "start":
            return Fault.CRASH if self._happens("start fails") else None
        elif role in self._schedule.mortals and self._happens("learner dies"):
            return self._random.choice([Fault.CRASH, Fault.HANG])
        return None

    def _happens(self, name: str) -> bool:
        chance = self._chances[name]
        if not chance or self._random.random() >= chance:
            return False
        self.count[name] += 1
        return True


MORTALS_OF_TWO_LINES = ("learner", f"{SECOND}/learner", "replay", "reanalyzer")
SLOW_STEPS = frozenset(("insert", "state", "apply", "restart", "reanalyze_work", "sample", "refresh", "restore"))
NEEDS_PAYLOADS = frozenset((*COLLECTING, "learn", "insert", "apply", "evaluate", "reanalyze", "reanalyze_work"))
