"""The timeline of a page: what each role did when, in a bounded number of slices.

    intervals   |learn|wait|learn|w|l|w|l|w|l|w|l|wait      |learn      |
    slices      |learn|wait|learn|   mixed (l 60 %)|wait    |learn      |

A run of any length gives at most about `budget` slices. Those shorter than what that allows are put together into one
that says how much of each there was; the long ones stay as they are. Times are whole numbers of `unit_s`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headway.coordinator.activities import CAUSES
from headway.core.history_records import RoleInterval
from headway.core.types_opaque import JsonObject
from headway.tools.report.recorded_run_story_records import Story
from headway.tools.report.series_notable_moments import notable_moments
from headway.tools.report.time_report import RoleAccount

BUDGET = 16_000
MAX_COLLECTORS = 40  # with a track of their own
MAX_MARKS = 200
UNIT_S = 1e-6
MEANINGS = {
    "collect": "collects",
    "learn": "learns",
    "evaluate": "evaluates",
    "reanalyze": "reanalyzes",
    "reanalysis": "waits for reanalyzed targets",
    "apply": "applies weights",
    "snapshot": "takes a snapshot",
    "insert": "takes rollouts into the replay",
    "sample": "draws from the replay",
    "update": "takes priorities back",
    "state": "hands out its state",
    "save": "writes a file",
    "start": "starts",
    "restart": "is restarted",
    "slot": "waits for a free slot",
    "data": "waits for rollouts",
    "weights": "waits for weights",
    "evaluation": "waits for an evaluation",
    "other lines": "waits for another line",
    "pause": "is paced or warms up",
    "starting": "waits for the others to start",
    "ending": "waits for the end of the run",
    "nothing to do": "has nothing to do",
    "between": "between two calls",
}
"""A role ..."""
SAME = {"traits": "start", "has_replay": "start", "restore": "start", "begin_anew": "start"}
COLOURS = {name: f"--{name.replace(' ', '-')}" for name in MEANINGS}
"""A cause has a colour of its own: a variable of the page's style."""


class Palette:
    """The causes a page shows, by number, in the order in which they came up."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}

    def number(self, kind: str, name: str) -> int:
        """`kind` is busy, blocked or between; a blocked role's name is the heading in the accounts."""
        return self._numbers.setdefault((kind, SAME.get(name, name)), len(self._numbers))

    def of(self, interval: RoleInterval) -> int:
        is_busy = interval.kind == "busy"
        return self.number(interval.kind, interval.what if is_busy else CAUSES.get(interval.what, interval.what))

    def causes(self) -> list[dict[str, str]]:
        return [
            {"name": name, "kind": kind, "meaning": MEANINGS.get(name, name), "colour": COLOURS.get(name, "--other")}
            for kind, name in self._numbers
        ]


def timeline(story: Story, palette: Palette, *, budget: int = BUDGET) -> JsonObject:
    """Tracks of slices, marks, steps for the lead where it moves, and what was left out."""
    by_role: dict[str, list[RoleInterval]] = {}
    for interval in story.intervals:
        by_role.setdefault(interval.role, []).append(interval)
    collectors = [role for role in story.roles if role.startswith("collector")]
    left_out = set(collectors[MAX_COLLECTORS:])
    shown = [role for role in story.roles if role in by_role and role not in left_out]
    wall_s = max(story.end_s - story.begin_s, 1e-9)
    count = sum(len(by_role[role]) for role in shown)
    shortest = 0.0 if count <= budget else 2 * wall_s * len(shown) / budget
    tracks = [_track(role, sorted(by_role[role], key=_begin), shortest, palette) for role in shown]
    notes = []
    if left_out:
        notes.append(f"{len(left_out)} of {len(collectors)} collectors are not shown")
    if shortest:
        notes.append(f"what is shorter than {1000 * shortest:.3g} ms is put together")
    found = [mark for mark in notable_moments(story) if mark.kind != "lead"]  # that has steps of its own
    shown_marks = found[:: -(-len(found) // MAX_MARKS)] if found else []
    if len(shown_marks) < len(found):
        notes.append(f"{len(found) - len(shown_marks)} of {len(found)} marks are not shown")
    note = f"{' and '.join(notes)}; trace.json has everything." if notes else ""
    return {
        "unit_s": UNIT_S,
        "end_s": story.end_s,
        "tracks": tracks,
        "marks": [{"t": mark.time_s, "kind": mark.kind, "text": mark.text} for mark in shown_marks],
        "steps": _lead_steps(story),
        "note": note[:1].upper() + note[1:],
    }


def _begin(interval: RoleInterval) -> float:
    return interval.begin


def _lead_steps(story: Story) -> list[JsonObject]:
    if len(story.leads) < 2:
        return []
    return [{"name": "lead", "t": [at for at, _ in story.leads], "y": [lead for _, lead in story.leads]}]


def _track(role: str, intervals: Sequence[RoleInterval], shortest: float, palette: Palette) -> JsonObject:
    track: JsonObject = {"name": role, "mixed": {}}
    lists: dict[str, list[int]] = {name: [] for name in ("gap", "length", "cause", "number", "version")}
    now = 0

    def add(begin: float, end: float, cause: int, number: int, version: int) -> None:
        nonlocal now
        first, last = max(now, round(begin / UNIT_S)), round(end / UNIT_S)
        for name, value in zip(lists, (first - now, max(0, last - first), cause, number, version), strict=True):
            lists[name].append(value)
        now = max(now, last)

    crowd: list[RoleInterval] = []

    def end_crowd() -> None:
        if len(crowd) == 1:
            add_one(crowd[0])
        elif crowd:
            begin, end = crowd[0].begin, crowd[-1].end
            shares = _shares(crowd, end - begin, palette)
            track["mixed"][len(lists["gap"])] = shares
            add(begin, end, int(shares[0][0]), -1, -1)
        crowd.clear()

    def add_one(interval: RoleInterval) -> None:
        numbers = (interval.ticket, interval.update)
        number = next((one for one in numbers if one is not None), -1)
        version = -1 if interval.version is None else interval.version
        add(interval.begin, interval.end, palette.of(interval), number, version)

    for interval in intervals:
        if interval.seconds >= shortest:
            end_crowd()
            add_one(interval)
            continue
        crowd.append(interval)
        if interval.end - crowd[0].begin >= shortest:
            end_crowd()
    end_crowd()
    return track | lists


def _shares(crowd: Iterable[RoleInterval], seconds: float, palette: Palette) -> list[list[float]]:
    """[cause, share of the time], the largest first."""
    spent: dict[int, float] = {}
    for interval in crowd:
        cause = palette.of(interval)
        spent[cause] = spent.get(cause, 0.0) + interval.seconds
    ordered = sorted(spent.items(), key=lambda one: -one[1])
    return [[cause, round(total / seconds, 4) if seconds > 0 else 0.0] for cause, total in ordered]


def time_by_role(roles: Mapping[str, RoleAccount], palette: Palette, *, most: int = 12) -> list[JsonObject]:
    """Where the time went: each role, or all collectors together where there are many. The parts are the whole."""
    groups: dict[str, list[RoleAccount]] = {}
    for role, account in roles.items():
        together = len(roles) > most and role.startswith("collector")
        groups.setdefault("collectors" if together else role, []).append(account)
    rows = []
    for name, accounts in groups.items():
        spent: dict[int, float] = {}
        for account in accounts:
            parts = [("busy", what, seconds) for what, seconds in account.busy.items()]
            parts += [("blocked", cause, seconds) for cause, seconds in account.blocked.items()]
            parts.append(("between", "between", account.between_s))
            for kind, what, seconds in parts:
                if seconds > 0:
                    cause = palette.number(kind, what)
                    spent[cause] = spent.get(cause, 0.0) + seconds
        whole = sum(account.wall_s for account in accounts)
        rows.append(
            {
                "role": name if len(accounts) == 1 else f"{name} ({len(accounts)})",
                "seats": len(accounts),
                "whole_s": whole,
                "sum_s": sum(spent.values()),
                "busy_share": sum(account.busy_s for account in accounts) / whole if whole > 0 else 0.0,
                "parts": sorted(([cause, seconds] for cause, seconds in spent.items()), key=lambda part: -part[1]),
            }
        )
    return rows
