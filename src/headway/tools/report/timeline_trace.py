"""A run as a trace for Perfetto (https://ui.perfetto.dev, "Open trace file"): `trace.json` in the run's folder.

    version      |   version 0   |   version 1   |   version 2        a track: each lasts until the next is published
    learner      | data |  learn |    learn     ...                   a track a role: busy, or waiting for something
                                                                      (other lines have versions and a learner too)
    collector-0  |  collect |  collect | slot |     ...
    queue, lead  counters
    instants     alarms, failed evaluations, restarts, notices, moves, publish retries, changes of the lead;
                 each published version
    arrows       from a rollout to the update that consumed it (into the replay, where there is one),
                 from a version to the first rollout that took off with it

The file is JSON in the Trace Event format: an object with `traceEvents`, times in microseconds. It is made from the
story alone, so a run that was killed or goes on has one too, up to its last event.
"""

from __future__ import annotations

import bisect
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from headway.coordinator.activities import WAITS_FOR
from headway.coordinator.state_files_whole_files import write_whole
from headway.core.history import FIRST_LINE
from headway.core.history_records import PHASES, RoleInterval
from headway.core.text_naming import learner_name
from headway.core.types_opaque import JsonObject
from headway.runs.folder import RunFolder
from headway.tools.report.recorded_run_run_history import read_story
from headway.tools.report.recorded_run_story_records import LineStory, Story
from headway.tools.report.series_notable_moments import notable_moments

Event = JsonObject
PROCESS = 1
VERSIONS = 1  # the first track
ROLLOUT, WEIGHTS = "rollout", "weights"


def write_trace(run: RunFolder, path: Path | None = None) -> Path:
    """Read the story of a run and leave its trace in the folder, whole or not at all."""
    path = run.trace if path is None else path
    write_whole(path, trace_text(read_story(run)))
    return path


def trace_text(story: Story) -> str:
    """The file: an event a line, so that it can be looked at with other tools too."""
    about = {"recipe": story.recipe, "seed": story.seed, "began_at": story.began_at, "settings": story.settings}
    events = ",\n".join(json.dumps(event, separators=(",", ":")) for event in trace_events(story))
    return f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about, default=str)},\n"traceEvents":[\n{events}\n]}}\n'


def trace_events(story: Story) -> Iterator[Event]:
    """Names of the tracks, slices, instants, counters, arrows."""
    tracks = {role: VERSIONS + 1 + place for place, role in enumerate(story.roles)}
    others = {line: VERSIONS + 1 + len(tracks) + place for place, line in enumerate(story.other_lines)}
    yield _name("process_name", 0, f"headway {story.recipe}".strip())
    named = [(VERSIONS, "version"), *((track, role) for role, track in tracks.items())]
    for track, name in [*named, *((track, f"version of {line}") for line, track in others.items())]:
        yield _name("thread_name", track, name)
        yield {"ph": "M", "pid": PROCESS, "tid": track, "name": "thread_sort_index", "args": {"sort_index": track}}
    scores = {evaluation.version: evaluation.value for evaluation in story.evaluations}
    for interval in story.intervals:
        yield _slice(interval, tracks[interval.role], scores)
    yield from _versions(story.first, VERSIONS, story.end_s)
    yield from _instants(story, tracks)
    yield from _counters(story.first)
    numbers = itertools.count(1)
    yield from _arrows(story, FIRST_LINE, tracks, VERSIONS, numbers)
    for line, track in others.items():
        yield from _versions(story.lines[line], track, story.end_s)
        yield from _counters(story.lines[line], f" of {line}")
        yield from _arrows(story, line, tracks, track, numbers)


def _name(what: str, track: int, name: str) -> Event:
    return {"ph": "M", "pid": PROCESS, "tid": track, "name": what, "args": {"name": name}}


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


def _slice(interval: RoleInterval, track: int, scores: dict[int, float | None]) -> Event:
    args: JsonObject = {}
    for name in ("ticket", "version", "update"):
        value = getattr(interval, name)
        if value is not None:
            args[name] = value
    if interval.what == "evaluate" and interval.version in scores:
        args["score"] = scores[interval.version]
    if interval.kind == "blocked":
        args["waits for"] = WAITS_FOR.get(interval.what, interval.what)
    return {
        "ph": "X",
        "pid": PROCESS,
        "tid": track,
        "ts": _us(interval.begin),
        "dur": max(1, _us(interval.end) - _us(interval.begin)),
        "cat": interval.kind,
        "name": interval.what if interval.kind == "busy" else f"wait: {interval.what}",
        "args": args,
    }


def _versions(line: LineStory, track: int, end_s: float) -> Iterator[Event]:
    """A slice and an instant each."""
    ends = [version.published for version in line.versions[1:]] + [end_s]
    for version, end in zip(line.versions, ends, strict=False):  # one more if there is no version yet
        begin = _us(version.published)
        name = f"version {version.number}"
        where = {"pid": PROCESS, "tid": track, "ts": begin, "name": name}
        args = {"version": version.number, "update": version.update, "lag_s": version.lag_s}
        yield {"ph": "X", **where, "dur": max(1, _us(end) - begin), "cat": "version", "args": args}
        yield {"ph": "i", **where, "s": "p", "cat": "publish", "args": {"version": version.number}}


def _instants(story: Story, tracks: dict[str, int]) -> Iterator[Event]:
    """On the track of whom it happened to; what happened to the whole run goes through all of them."""
    for mark in notable_moments(story):
        lanes = (track for role, track in tracks.items() if mark.role in (role, role.partition("/")[0]))
        track = next(lanes, None)
        yield {
            "ph": "i",
            "pid": PROCESS,
            "tid": VERSIONS if track is None else track,
            "ts": _us(mark.time_s),
            "s": "p" if track is None else "t",
            "cat": mark.kind,
            "name": mark.kind if mark.kind != "lead" else mark.text,
            "args": {"what": mark.text},
        }


def _counters(line: LineStory, whose: str = "") -> Iterator[Event]:
    for time_s, *sizes in line.queue:
        yield _counter(f"tickets{whose}", time_s, dict(zip(PHASES, sizes, strict=True)))
    for time_s, lead in line.leads:
        yield _counter(f"lead{whose}", time_s, {"lead": lead})


def _counter(name: str, time_s: float, values: dict[str, float]) -> Event:
    return {"ph": "C", "pid": PROCESS, "tid": 0, "ts": _us(time_s), "name": name, "args": values}


def _arrows(story: Story, name: str, tracks: dict[str, int], versions: int, numbers: Iterator[int]) -> Iterator[Event]:
    """The arrows of a line. Both ends lie inside a slice, which is how they are bound to it."""
    line = story.lines[name]
    collected: dict[int, RoleInterval] = {}  # ticket -> its last flight
    flights: dict[tuple[int, float], RoleInterval] = {}  # ticket and when it took off -> that flight
    updates: dict[int, RoleInterval] = {}
    inserts: list[RoleInterval] = []
    for interval in story.intervals:
        if interval.ticket is not None:
            flights[interval.ticket, interval.begin] = interval
            if interval.what == "collect":
                collected[interval.ticket] = interval
        elif interval.update is not None:
            if interval.role == learner_name(name):
                updates[interval.update] = interval
        elif interval.what == "insert":
            inserts.append(interval)
    inserts.sort(key=lambda interval: interval.end)
    ends = [interval.end for interval in inserts]
    for ticket in line.tickets.values():
        source = collected.get(ticket.index)
        if source is None or ticket.taken is None:
            continue
        target = None if ticket.update is None else updates.get(ticket.update)
        if ticket.update is None and inserts:
            place = bisect.bisect_right(ends, ticket.taken)
            target = inserts[place] if place < len(inserts) else None
        if target is not None:
            number = next(numbers)
            yield _arrow("s", number, ROLLOUT, tracks[source.role], _last(source))
            yield _arrow("f", number, ROLLOUT, tracks[target.role], _us(target.begin))
    for version in line.versions:
        if version.first_ticket is None or version.first_used is None:
            continue
        first = flights.get((version.first_ticket, version.first_used))
        if first is not None:
            number = next(numbers)
            yield _arrow("s", number, WEIGHTS, versions, _us(version.published))
            yield _arrow("f", number, WEIGHTS, tracks[first.role], _us(first.begin))


def _last(interval: RoleInterval) -> int:
    """The last microsecond that belongs to it."""
    return max(_us(interval.begin), _us(interval.end) - 1)


def _arrow(phase: str, number: int, kind: str, track: int, time_us: int) -> Event:
    end = {"bp": "e"} if phase == "f" else {}
    return {
        "ph": phase,
        "pid": PROCESS,
        "tid": track,
        "ts": time_us,
        "id": number,
        "cat": kind,
        "name": kind,
        **end,
    }
