"""What happened at one moment of a run and should not be overlooked: on the page's timeline, and in the trace.

alarm, alarm over    a threshold was passed, or all is well again
failed evaluation    it ended without a score
restart              a role was built anew
notice               the place where a role runs is going away
move                 a role goes on in another place
publish retry        handing on a version failed once
lead                 the lead moved
collectors           some were added or taken away
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from headway.core.events import Alarmed
from headway.core.history_records import Evaluation
from headway.core.text_statistics import seconds
from headway.runs.monitor_alarms import KNOWN, alarm_line
from headway.tools.report.recorded_run_story_records import EVALUATOR, Story

MomentKind = Literal[
    "alarm", "alarm over", "failed evaluation", "restart", "notice", "move", "publish retry", "lead", "collectors"
]


@dataclass(frozen=True, slots=True)
class NotableMoment:
    """One moment."""

    time_s: float
    kind: MomentKind
    text: str
    role: str | None = None
    """Whom it happened to, if it was not the whole run."""


def notable_moments(story: Story) -> list[NotableMoment]:
    """All of them, in order."""
    found = [NotableMoment(a.time_s, "alarm" if a.on else "alarm over", _alarm_line(a)) for a in story.alarms]
    found += [
        NotableMoment(
            e.end, "failed evaluation", f"the evaluation of version {e.version} gave no score: {e.error}", EVALUATOR
        )
        for e in failed_evaluations(story)
        if e.end is not None
    ]
    found += [NotableMoment(at, "restart", f"{role} is built anew: {why}", role) for at, role, why in story.restarts]
    found += [NotableMoment(at, "notice", f"{role} has to leave: {why}", role) for at, role, why in story.notices]
    found += [NotableMoment(at, "move", f"{role} goes on in another place", role) for at, role in story.moves]
    found += [
        NotableMoment(at, "publish retry", f"handing version {version} to {role} failed: {why}", role)
        for at, role, version, why in story.publish_retries
    ]
    found += [
        NotableMoment(at, "lead", f"lead {before:g} to {lead:g}") for (_, before), (at, lead) in pairwise(story.leads)
    ]  # the first is where it began
    found += [NotableMoment(s.time_s, "collectors", f"{s.before} -> {s.collectors} collectors") for s in story.scaled]
    found += [
        NotableMoment(left.time_s, "collectors", f"{left.role} left, and could not be ended: {left.why}", left.role)
        for left in story.left
        if left.why
    ]
    return sorted(found, key=lambda moment: moment.time_s)


def failed_evaluations(story: Story) -> list[Evaluation]:
    """Those that ended without a score."""
    return [e for e in story.evaluations if e.end is not None and e.error is not None]


def notices(story: Story) -> list[str]:
    """Alarms and failed evaluations, a line each kind, however often it happened."""
    said = []
    for name in dict.fromkeys(alarm.name for alarm in story.alarms):
        rings = [alarm for alarm in story.alarms if alarm.name == name]
        raised = [alarm for alarm in rings if alarm.on]
        if raised:
            times = "" if len(raised) == 1 else f", the first of {len(raised)} times"
            last = rings[-1]
            end = "still raised at the end" if last.on else f"over at {seconds(last.time_s)}"
            said.append(f"{_alarm_line(raised[0])}: at {seconds(raised[0].time_s)}{times}; {end}.")
    failed = failed_evaluations(story)
    if failed:
        done = sum(1 for e in story.evaluations if e.end is not None)
        first = f"The first was that of version {failed[0].version}, at {seconds(failed[0].end or 0.0)}"
        said.append(f"{len(failed)} of {done} evaluations gave no score. {first}: {failed[0].error}.")
    return said


def _alarm_line(alarm: Alarmed) -> str:
    if alarm.name not in KNOWN:  # of a later or an earlier Headway
        return f"alarm {alarm.name}: {alarm.value:.3g} (threshold {alarm.threshold:g})"
    return alarm_line(alarm)
