"""What a report says of all of a run: its totals, and curves over its whole length.

    short: the story has everything                    Story ----------------------------> WholeRun
    long:  the story is that of the end of the log     metrics.jsonl --> an outline -----> WholeRun

An outline is a story with one update a look and one version a score. It draws the same curves, and nothing else is to
be read from it: what the learner reported is the mean between two looks, and tickets have no lives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from headway.core.history_records import Evaluation, FinishedUpdate, Version
from headway.core.text_statistics import seconds
from headway.tools.report import series
from headway.tools.report.recorded_run_story_records import LineStory, Story
from headway.tools.report.series import Line
from headway.tools.report.series_notable_moments import failed_evaluations
from headway.tools.report.time_report import Accounts

POINT = Mapping[str, float]
FLOWS = {
    "updates_per_s": "throughput/updates_per_s",
    "rollouts_per_s": "throughput/rollouts_per_s",
    "steps_per_s": "throughput/steps_per_s",
    "ready": "queue/ready",
    "in_flight": "queue/in_flight",
    "staleness": "staleness/mean",
    "lead": "run/lead",
    "waiting_mib": "queue/bytes",
    "memory": "run/memory_mb",
}
IN_BYTES = ("waiting_mib",)


@dataclass(frozen=True, slots=True)
class LineTotals:
    """What a line has come to."""

    updates: int
    version: int
    drops: Mapping[str, int]
    tickets: Mapping[str, int]
    """opened, learned, dropped, live, reissued."""


@dataclass(frozen=True, slots=True)
class WholeRun:
    """Totals and curves of all of a run."""

    wall_s: float
    steps: int
    lines: Mapping[str, LineTotals]
    """By name, the first one first, under the empty name."""
    outline: Story
    """What the curves are drawn from: the story, or less of it."""
    of_looks: Mapping[str, Line] | None = None
    """The flows, where the outline does not have what they are drawn from."""
    only_end: str = ""
    """Which part of the run everything else is said of; empty: all of it."""

    @property
    def first(self) -> LineTotals:
        return self.lines[""]

    def flows(self) -> Mapping[str, Line]:
        """Throughput, queue, lead and age over time, and the memory of the run."""
        return series.flows(self.outline) if self.of_looks is None else self.of_looks

    @property
    def scores(self) -> list[float]:
        return [e.value for e in self.outline.evaluations if e.value is not None]


def whole_of_story(story: Story, accounts: Accounts) -> WholeRun:
    """Of a story that has everything."""
    lines = {
        name: LineTotals(len(line.updates), line.version, dict(line.drops), _tickets(story, line))
        for name, line in story.lines.items()
    }
    steps = story.updates[-1].steps if story.updates else 0
    return WholeRun(accounts.wall_s, steps, lines, story)


def _tickets(story: Story, line: LineStory) -> dict[str, int]:
    told = tickets_of(line)
    of_run = len(story.reissued) + len(story.lost) if line is story.first else 0
    return told | {"reissued": told["reissued"] + of_run}


def tickets_of(line: LineStory) -> dict[str, int]:
    """What became of the tickets of a line."""
    ended = [ticket.how for ticket in line.tickets.values()]
    learned, dropped = ended.count("learned"), ended.count("dropped")
    return {
        "opened": len(ended),
        "learned": learned,
        "dropped": dropped,
        "live": len(ended) - learned - dropped,
        "reissued": len(line.requeued),
    }


def read_points(path: Path) -> list[POINT]:
    """The points of `metrics.jsonl`; none where there is no such file."""
    try:
        content = path.read_bytes()
    except OSError:
        return []
    return [orjson.loads(line) for line in content.splitlines(keepends=True) if line.endswith(b"\n")]


def whole_of_points(points: Sequence[POINT], story: Story) -> WholeRun | None:
    """Of a long run, whose story is that of its end; None where nobody has looked at it yet."""
    looks = [point for point in points if "run/updates" in point and "tickets/opened" in point]
    if not looks:
        return None
    outline = Story(story.folder, story.recipe, story.config, story.environment, story.began_at, story.summary)
    outline.sessions = story.sessions
    names = ["", *(name for name in story.lines if name)]
    outline.lines.update({name: _outline_of(looks, name) for name in names})
    for point in points:
        if point.get("evaluate/score") is not None:
            outline.evaluations.append(_evaluation(point))
            version = int(point["evaluate/version"])
            made = Version(version, point["time_s"], int(point["update"]), 0.0, steps=int(point["env_steps"]))
            outline.first.versions.append(made)
    outline.evaluations += failed_evaluations(story)  # the numbers only count them
    last = looks[-1]
    return WholeRun(
        wall_s=story.end_s,
        steps=int(last["env_steps"]),
        lines={name: _totals(last, name) for name in names},
        outline=outline,
        of_looks={name: _flow(looks, name, metric) for name, metric in FLOWS.items() if metric in last},
        only_end=f"its last {seconds(story.end_s - story.begin_s)} ({len(story.updates):,} updates)",
    )


def _outline_of(looks: Sequence[POINT], name: str) -> LineStory:
    behind, line = f"{name}/" if name else "", LineStory()
    learned = f"{behind}learn/"
    for point in looks:
        number, at = int(point.get(f"{behind}run/updates", 0)), point["time_s"]
        told = {key.removeprefix(learned): value for key, value in point.items() if key.startswith(learned)}
        steps = int(point.get(f"{behind}run/env_steps", 0))
        version = int(point.get(f"{behind}run/version", 0))
        line.updates.append(FinishedUpdate(number, at, at, version, [], told, steps))
    return line


def _evaluation(point: POINT) -> Evaluation:
    told = {name.removeprefix("evaluate/"): value for name, value in point.items() if name.startswith("evaluate/")}
    end = point["time_s"]
    begin = end - (point.get("time/evaluate_s") or 0.0)
    return Evaluation(int(point["evaluate/version"]), begin, end, point["evaluate/score"], told)


def _totals(last: POINT, name: str) -> LineTotals:
    behind = f"{name}/" if name else ""
    of = {key.removeprefix(behind): value for key, value in last.items() if key.startswith(behind)}
    drops = {
        key.removeprefix("drops/"): int(count)
        for key, count in of.items()
        if key.startswith("drops/") and not key.startswith("drops/filtered_") and count
    }
    opened, learned, dropped = int(of["tickets/opened"]), int(of["tickets/learned"]), sum(drops.values())
    again = sum(int(of.get(f"tickets/{kind}", 0)) for kind in ("reissued", "requeued", "lost"))
    tickets = {"opened": opened, "learned": learned, "dropped": dropped, "live": opened - learned - dropped}
    return LineTotals(int(of["run/updates"]), int(of["run/version"]), drops, tickets | {"reissued": again})


def _flow(looks: Sequence[POINT], name: str, metric: str) -> Line:
    scale = 1 / series.MIB if name in IN_BYTES else 1.0
    seen = [point.get(metric) for point in looks]
    values = [None if value is None else value * scale for value in seen]
    return dict(zip("ty", series.thin([point["time_s"] for point in looks], values), strict=True))
