"""What a report says of each line of a run that has several: its versions, ages, tickets, drops, curves and time."""

from __future__ import annotations

import math
from collections.abc import Mapping

from headway.core.history_records import settings_of_line
from headway.core.text_naming import learner_name
from headway.core.text_statistics import seconds
from headway.core.types_opaque import JsonObject
from headway.tools.report import series
from headway.tools.report.recorded_run_story_records import LineStory, Story
from headway.tools.report.report_texts import Seen, share_of_role
from headway.tools.report.series_whole_run import tickets_of
from headway.tools.report.time_report import Ages, Distribution, length_bias_of, taken_in

MAX_AGES = 24  # bars in the histogram
FIRST_LINE_TITLE = "first line"
FLOWS_OF_LINES = ("updates_per_s", "ready", "staleness", "lead")
"""What is drawn of the lines beside each other."""


def lines_of(run: Seen, age_step: int = 1) -> list[JsonObject]:
    """Every line, the first one first."""
    return [_line(run, name, line, age_step) for name, line in run.story.lines.items()]


def _line(run: Seen, name: str, line: LineStory, age_step: int) -> JsonObject:
    story = run.story
    ages, curves = Ages.of(taken_in(line)), series.line_flows(line, story.begin_s, story.end_s)
    learn, diagnostics = series.learner(line, with_losses=True)
    settings, learner = settings_of_line(story.settings, name), run.accounts.roles.get(learner_name(name))
    return {
        "name": name or FIRST_LINE_TITLE,
        "updates": len(line.updates),
        "version": line.version,
        "lead": line.leads[-1][1] if line.leads else None,
        "every": settings.get("every", 1),
        "update_s": seconds(Distribution.of(update.seconds for update in line.updates).mean),
        "worked": "-" if learner is None else share_of_role(learner, learner.busy.get("learn", 0.0)),
        "waited": "-" if learner is None else share_of_role(learner, learner.blocked.get("data", 0.0)),
        "ladder": series.ladder(line),
        "staleness": histogram(ages.counts, age_step),
        "mean": series.finite(ages.staleness.mean),
        "max": series.finite(ages.staleness.max),
        "bound": settings.get("staleness_bound"),
        "in_flight": series.finite(ages.in_flight),
        "in_queue": series.finite(ages.in_queue),
        "flow": {title: curves[title] for title in FLOWS_OF_LINES if title in curves},
        "drops": dict(line.drops),
        "tickets": tickets_of(line),
        "length_bias": series.finite(length_bias_of(line)),
        "learn": learn if name else {},  # those of the first line are the run's
        "diagnostics": diagnostics if name else [],
    }


def age_step_of(story: Story) -> int:
    """How many versions a bar stands for, where the ages of every line are to fit."""
    oldest = max((ticket.staleness or 0 for line in story.lines.values() for ticket in taken_in(line)), default=0)
    return _step(oldest)


def _step(oldest: int) -> int:
    return max(1, math.ceil((oldest + 1) / MAX_AGES))


def histogram(ages: Mapping[int, int], step: int = 1) -> dict[str, int]:
    """Age -> rollouts; in steps of several versions where there are many ages."""
    if not ages:
        return {}
    step = max(step, _step(max(ages)))
    bars: dict[str, int] = {}
    for first in range(0, max(ages) + 1, step):
        name = str(first) if step == 1 else f"{first}-{first + step - 1}"
        bars[name] = sum(ages.get(age, 0) for age in range(first, first + step))
    return bars
