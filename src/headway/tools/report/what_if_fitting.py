"""The simulator, fitted to a recorded run.

    story --fit--> workshop, which `simulate` runs, and `what_if` under every lead

Durations are those of the run in their order: ticket 7 takes as long as ticket 7 took, update 9 as long as update 9.
So what drifts (episodes that grow longer), repeats (a slow problem) or is paid once (a compiler) stays in its place,
and the leads are compared on the same work. What the coordinator and the runtime added between two calls is part of
each duration. A long run is thinned evenly; every lead gets as many updates
as the run made, so that what was paid once weighs the same in all of them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median, pstdev
from typing import Any, TypeVar

from headway.coordinator.settings_line_settings import LineSettings
from headway.core.history_records import TicketLife
from headway.core.rules import ReplayRatio
from headway.core.rules_order import parse_on_stale, parse_order
from headway.tools.report.recorded_run_story_records import LEARNER, WRITER, LineStory, Story
from headway.tools.simulate.simulation import NO_TIME, SimulatedLine, Workshop
from headway.tools.simulate.workloads import Duration, Recorded, RecordedFlights

MAX_TICKETS = 800  # a simulated ticket takes about 0.15 ms, and there are seven leads
MIN_UPDATES = 100  # a run with many tickets an update is not thinned further

T = TypeVar("T")


def fit(story: Story) -> Workshop:
    """The workshop of a recorded run: its durations as they were, cut as it was."""
    landed = [ticket for ticket in story.tickets.values() if ticket.began is not None and ticket.ended is not None]
    if not landed or not story.updates:
        raise ValueError("the run has no finished collection or no update to fit durations to")
    settings = story.settings
    tickets_per_update = len(landed) / len(story.updates)
    updates = min(len(story.updates), max(MIN_UPDATES, math.ceil(MAX_TICKETS / tickets_per_update)))
    share = updates / len(story.updates)
    collectors = settings["collectors"]
    is_free = settings["dispatch"] == "free"
    evaluations = [e.end - e.begin for e in story.evaluations if e.end is not None and e.version]
    replay = settings.get("replay")
    return Workshop(
        collect=_flights(story, landed, share, is_free),
        learn=Recorded(_thin(_learn_s(story), updates), warm_up=1),
        evaluate=Recorded(evaluations) if evaluations else NO_TIME,
        evaluate_every=_evaluate_every(story) if evaluations else 0,
        evaluate_in_background=settings["evaluate_in_background"],
        awaits_scores=settings.get("target_score", story.config.get("target_score")) is not None,
        insert=_recorded(interval.seconds for interval in story.intervals if interval.what == "insert"),
        save=_recorded(_save_s(story)),
        save_every=settings.get("save_every", 0),
        collectors=collectors,
        lanes=settings.get("lanes", 1),
        tickets_per_batch=settings["tickets_per_batch"],
        publish_every=settings["publish_every"],
        order=str(story.config.get("order", settings["order"])),  # a run without a lead has recorded `oldest`
        max_staleness=settings["max_staleness"],
        on_stale=settings["on_stale"],
        max_age_s=settings.get("max_age_s"),
        dispatch="free" if is_free or story.config.get("dispatch") == "free" else None,
        queue_capacity=settings.get("queue_capacity"),
        replay=None if replay is None else ReplayRatio(**replay),
        pacing_s=settings.get("pacing_s", 0.0),
        warmup_s=settings.get("warmup_s", 0.0),
        holds_weights=settings.get("lanes", 1) > 1 and any(interval.what == "drain" for interval in story.intervals),
        decay=_decay(story),
        **{name: settings[name] for name in AUTO if name in settings},
        updates=updates,
        seed=settings["seed"],
        lines={name: _line(story.lines[name], told, share) for name, told in settings.get("lines", {}).items()},
    )


def _line(line: LineStory, told: Mapping[str, Any], share: float) -> SimulatedLine:
    """Another line than the first, as it was."""
    seconds = [update.end - update.begin for update in line.updates]
    replay = told["replay"]
    settings = LineSettings(
        max_lead=told["max_lead"],
        order=parse_order(told["order"]),
        max_staleness=told["max_staleness"],
        on_stale=parse_on_stale(told["on_stale"]),
        max_age_s=told["max_age_s"],
        tickets_per_batch=told["tickets_per_batch"],
        publish_every=told["publish_every"],
        queue_capacity=told["queue_capacity"],
        replay=None if replay is None else ReplayRatio(**replay),
        every=told["every"],
        **{name: told[name] for name in AUTO},
    )
    return SimulatedLine(Recorded(_thin(seconds, math.ceil(share * len(seconds)))) if seconds else NO_TIME, settings)


AUTO = ("lead_limit", "lead_buffer_size", "lead_interval", "target_effective_sample_size")


def _flights(story: Story, landed: Sequence[TicketLife], share: float, is_free: bool) -> RecordedFlights:
    """Every ticket up to the last that landed; for one that never did, what the one before it was like. Of a story
    that does not begin with the first ticket, those that it tells."""
    reactions = _clipped(_reactions(story, landed))
    collectors = story.settings["collectors"]
    durations = _durations(landed, story.settings.get("lanes", 1))
    paces = _paces(landed, durations, collectors) if is_free else [1.0]
    known: dict[int, tuple[float, TicketLife]] = {}
    for ticket, reaction in zip(landed, reactions, strict=True):
        pace = paces[(ticket.collector or 0) % len(paces)]
        known[ticket.index] = ((reaction + durations[ticket.index]) / pace, ticket)
    here = known[min(known)]
    every = []
    for index in sorted(known) if story.gap else range(max(known) + 1):
        here = known.get(index, here)
        every.append(here)
    chosen = _thin(every, math.ceil(share * len(every)))
    return RecordedFlights(
        [seconds for seconds, _ in chosen],
        steps=[ticket.steps for _, ticket in chosen],
        lengths=[ticket.length for _, ticket in chosen],
        filtered=[ticket.reason == "filtered" for _, ticket in chosen],
        paces=paces,
        warm_up=collectors * story.settings.get("lanes", 1),
    )


def _reactions(story: Story, landed: Sequence[TicketLife]) -> list[float]:
    """From the moment a seat could have taken off to the moment it did. With lanes there is more that it waits for."""
    if story.settings.get("lanes", 1) > 1 or story.settings.get("pacing_s", 0.0):
        return [0.0] * len(landed)
    pauses = [] if story.settings["evaluate_in_background"] else _evaluation_ends(story)
    before: dict[str | None, float] = {}
    reactions: dict[int, float] = {}
    for ticket in sorted(landed, key=_began):
        free = max(ticket.opened, before.get(ticket.role, 0.0), _last(pauses, _began(ticket)))
        reactions[ticket.index] = max(0.0, _began(ticket) - free) if ticket.flights == 1 else 0.0
        before[ticket.role] = ticket.ended or 0.0
    return [reactions[ticket.index] for ticket in landed]


def _began(ticket: TicketLife) -> float:
    assert ticket.began is not None
    return ticket.began


def _durations(landed: Sequence[TicketLife], lanes: int) -> dict[int, float]:
    """Seconds of each flight. Tickets of one call have equal shares of it: they begin and land together."""
    if lanes > 1:
        return {ticket.index: (ticket.ended or 0.0) - _began(ticket) for ticket in landed}
    calls: dict[str | None, list[TicketLife]] = {}  # the last call of each collector
    durations: dict[int, float] = {}
    for ticket in sorted(landed, key=_began):
        call = calls.setdefault(ticket.role, [])
        if call and _began(ticket) >= (call[0].ended or 0.0):
            call.clear()
        call.append(ticket)
        seconds = max(one.ended or 0.0 for one in call) - _began(call[0])
        durations.update((one.index, seconds / len(call)) for one in call)
    return durations


def _paces(landed: Sequence[TicketLife], durations: Mapping[int, float], collectors: int) -> list[float]:
    """How slow each collector is, as a factor: 1 unless its flights differ from all by three standard errors."""
    logs: list[list[float]] = [[] for _ in range(collectors)]
    for ticket in landed:
        seconds = durations[ticket.index]
        if seconds > 0:
            logs[(ticket.collector or 0) % collectors].append(math.log(seconds))
    if min(map(len, logs)) < 8:
        return [1.0] * collectors
    means = [fmean(one) for one in logs]
    whole = fmean(value for one in logs for value in one)
    spread = pstdev([value - own for one, own in zip(logs, means, strict=True) for value in one])
    apart = [own - whole for own in means]
    errors = [3 * spread / math.sqrt(len(one)) for one in logs]
    return [math.exp(by) if abs(by) > error else 1.0 for by, error in zip(apart, errors, strict=True)]


def _learn_s(story: Story) -> list[float]:
    """Each update, and what passed between the moment everything for it was there and its beginning."""
    stops = [interval.end for interval in story.intervals if interval.role == LEARNER and interval.what not in OF_LEARN]
    stops += [] if _saves_beside(story) else [at for at, _ in story.saves]
    stops += [interval.end for interval in story.intervals if interval.what == "insert"]
    stops += [] if story.settings["evaluate_in_background"] else _evaluation_ends(story)
    stops.sort()
    gaps = []
    ended = None
    for update in story.updates:
        ready = [story.tickets[index].ended or 0.0 for index in update.tickets]
        floor = max([*ready, _last(stops, update.begin), ended or 0.0])
        begins_session = ended is None or any(ended <= session.begin < update.begin for session in story.sessions)
        gaps.append(0.0 if begins_session else max(0.0, update.begin - floor))
        ended = update.end
    return [gap + update.seconds for gap, update in zip(_clipped(gaps), story.updates, strict=True)]


OF_LEARN = ("learn", "data", "draw")  # the wait for a draw is part of an update, as its draw is not simulated


def _saves_beside(story: Story) -> bool:
    return any(interval.role == WRITER for interval in story.intervals)


def _save_s(story: Story) -> list[float]:
    """Checkpoints, from the end of what came before; of those written beside the learner, what it was asked for."""
    if _saves_beside(story):
        return [one.seconds for one in story.intervals if one.role == LEARNER and one.what == "state"]
    ends = sorted([update.end for update in story.updates] + _evaluation_ends(story))
    return [at - before for at, _ in story.saves if (before := _last(ends, at)) > 0]


def _evaluation_ends(story: Story) -> list[float]:
    return [evaluation.end for evaluation in story.evaluations if evaluation.end is not None]


def _evaluate_every(story: Story) -> int:
    every = story.settings.get("evaluate_every", 0)
    versions = [evaluation.version for evaluation in story.evaluations]
    gaps = [after - before for before, after in pairwise(versions) if after > before]
    return int(every) or (max(1, round(sum(gaps) / len(gaps))) if gaps else max(1, story.version))


def _decay(story: Story) -> float:
    """How fast the effective sample size falls with age: ess = exp(-decay * age), by least squares of its logarithm."""
    products = squares = 0.0
    for update in story.updates:
        size = update.metrics.get("ess")
        ages = [old for index in update.tickets if (old := story.tickets[index].staleness) is not None]
        if isinstance(size, int | float) and 0 < size <= 1 and ages:
            age = sum(ages) / len(ages)
            products -= age * math.log(size)
            squares += age * age
    return max(0.0, products / squares) if squares > 0 else 0.0


def _recorded(values: Iterable[float]) -> Duration:
    seen = list(values)
    return Recorded(seen) if seen else NO_TIME


def _last(times: Sequence[float], until: float) -> float:
    """The last of these that is not later, or 0. The log rounds to a millionth of a second."""
    place = bisect_right(times, until + 2e-6)
    return times[place - 1] if place else 0.0


def _clipped(gaps: Sequence[float]) -> list[float]:
    """Gaps that are far beyond the usual are no hand-over: something else was waited for."""
    if not gaps:
        return []
    limit = 20 * median(gaps) + 0.005
    return [min(gap, limit) for gap in gaps]


def _thin(values: Sequence[T], count: int) -> list[T]:
    """`count` of them, evenly spaced; all if there are no more."""
    if len(values) <= count:
        return list(values)
    return [values[int((place + 0.5) * len(values) / count)] for place in range(count)]
