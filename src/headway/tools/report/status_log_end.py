"""The end of a long log: who does what now, and how it stands with the numbers, without reading all of it.

    events.jsonl   ... last `run` ... last word of a role that has been silent for long ... |  the tail  |
    metrics.jsonl  a line a second or so: totals, ages, scores

The numbers are those of the last look; what came after it is about a second.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from headway.core.text_naming import learner_name, seat_name
from headway.core.types_opaque import JsonObject
from headway.runs.event_log import parse_event
from headway.runs.log_parts import lines_from, log_begin
from headway.runs.parsed_json import parsed
from headway.tools.report.recorded_run_run_history import tell_end
from headway.tools.report.recorded_run_story_records import EVALUATOR, LEARNER, Story

TAIL_BYTES = 1 << 18
OTHERS = (LEARNER, EVALUATOR, "reanalyzer", "replay")


@dataclass(slots=True)
class Numbers:
    """What the points of a run come to."""

    last: dict[str, float] = field(default_factory=dict)
    """The last look."""
    staleness: float = 0.0
    max_staleness: float = 0.0
    steps: float = 0.0
    """That came in."""
    score: float | None = None
    score_version: int | None = None


def read_numbers(path: Path) -> Numbers:
    """Everything `metrics.jsonl` says that a status needs."""
    numbers, taken, aged = Numbers(), 0.0, 0.0
    with open(path, "rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            point = orjson.loads(line)
            if point.get("evaluate/score") is not None:
                numbers.score, numbers.score_version = point["evaluate/score"], int(point["evaluate/version"])
            if "tickets/taken" not in point:  # no look: a score, an alarm, a resume
                continue
            count = _since(numbers.last, point, "tickets/taken")
            if count and point.get("staleness/mean") is not None:
                taken, aged = taken + count, aged + count * point["staleness/mean"]
                numbers.max_staleness = max(numbers.max_staleness, point["staleness/max"])
            rollouts_per_s = point.get("throughput/rollouts_per_s")
            if rollouts_per_s:
                steps = point["throughput/steps_per_s"] / rollouts_per_s
                numbers.steps += steps * _since(numbers.last, point, "tickets/landed")
            numbers.last = point
    numbers.staleness = aged / taken if taken else 0.0
    return numbers


def first_moment(path: Path) -> float:
    """When the first event of a log was; 0 where its oldest parts were let go."""
    if log_begin(path):
        return 0.0
    line = next(lines_from(path), None)
    return 0.0 if line is None else float(parse_event(line, path, 0)["t"])


def _since(before: dict[str, float], point: dict[str, float], name: str) -> float:
    """By how much a total has grown."""
    return max(0.0, point[name] - before.get(name, 0.0))


def read_end(path: Path, *, tail_bytes: int = TAIL_BYTES) -> Story | None:
    """The story of the last lines, with what every role does; None where the log does not say which run it is."""
    if not path.stat().st_size:  # a part that has just begun
        return None
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as log:
        end = log.rfind(b"\n") + 1
        begin = log.rfind(b"\n", 0, max(0, end - tail_bytes)) + 1
        last_run = max(log.rfind(b'"e":"run"', 0, end), log.rfind(b'"e":"part"', 0, end))
        if last_run < 0:
            return None
        head = _line_at(log, path, last_run)
        run = head.get("run", head)  # a part of a log begins with the settings of its session
        begin_of_run = _begin_of(log, last_run)
        places = {_begin_of(log, at) for at in _last_mentions(log, run, last_run, begin)}
        places |= {_begin_of(log, at) for at in _last_alarms(log, begin)}
        heads = [_line_at(log, path, at) for at in sorted(places - {begin_of_run}) if at < begin]
        if begin_of_run >= begin:  # a session that has just begun: what was before it is over
            begin = log.find(b"\n", begin_of_run) + 1
        tail = log[begin:end].splitlines()
    return tell_end([run, *heads, *(parse_event(line, path, 0) for line in tail)])


def _begin_of(log: mmap.mmap, place: int) -> int:
    """Where the line around a place begins."""
    return log.rfind(b"\n", 0, place) + 1


def _line_at(log: mmap.mmap, path: Path, place: int) -> JsonObject:
    return parse_event(log[_begin_of(log, place) : log.find(b"\n", place)], path, 0)


def _last_mentions(log: mmap.mmap, run: JsonObject, since: int, until: int) -> Iterator[int]:
    """The last line before the tail about each role; none where its flight has ended since."""
    collectors, lanes = run.get("collectors", 1), run.get("lanes", 1)
    changes = list(_changes(log, since, until))
    yield from changes
    told = [parsed(log[_begin_of(log, at) : log.find(b"\n", at)]) for at in changes]
    most = max([collectors, *(change.get("collectors", 0) for change in told)])
    seats = {seat_name(seat, collectors, lanes): seat for seat in range(most * lanes)}
    learners = map(learner_name, run.get("lines", ()))
    for role in (*OTHERS, *learners, *seats):
        at = log.rfind(f'"r":{json.dumps(role)}'.encode(), since, until)
        if role in seats:
            at = max(at, log.rfind(f'"c":{seats[role]},"v"'.encode(), since, until))
        if at < 0:
            continue
        ticket = parsed(log[_begin_of(log, at) : log.find(b"\n", at)]).get("k")
        has_landed = ticket is not None and log.find(f'"e":"land","k":{ticket},'.encode(), at, until) >= 0
        if not has_landed:
            yield at


def _changes(log: mmap.mmap, since: int, until: int) -> Iterator[int]:
    """Where collectors were added, were taken away, and left."""
    for kind in (b'"e":"scale"', b'"e":"leave"'):
        at = log.find(kind, since, until)
        while at >= 0:
            yield at
            at = log.find(kind, at + 1, until)


def _last_alarms(log: mmap.mmap, until: int) -> Iterator[int]:
    """Of every name: the last line before the tail."""
    known: set[bytes] = set()
    at = log.rfind(b'"e":"alarm"', 0, until)
    while at >= 0:
        name = log[at : log.find(b'"on"', at)]
        if name not in known:
            known.add(name)
            yield at
        at = log.rfind(b'"e":"alarm"', 0, at)
