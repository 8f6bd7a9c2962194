"""One look at a run from its folder, from any process: `headway status RUN`."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from headway.observe.accounts import account
from headway.observe.activities import in_words, were_in_words
from headway.observe.alarms import Ring
from headway.observe.console import RoleStatus, Status, duration
from headway.observe.environment import not_known, process_is_alive
from headway.observe.folder import RunFolder
from headway.observe.story import Interval, Story, read_story


@dataclass(frozen=True, slots=True)
class Glance:
    """A run as its folder shows it."""

    headline: str
    status: Status


def glance(path: Path) -> Glance:
    """What a run does now, or how it ended. Up to a tenth of a second old."""
    run = RunFolder(path)
    story = read_story(run)
    is_alive = None if story.is_over else process_is_alive(story.environment)
    silent_s = max(0.0, time.time() - run.events.stat().st_mtime)
    return Glance(_headline(story, is_alive, silent_s), _status(story, is_alive, 0.0 if story.is_over else silent_s))


def _headline(story: Story, is_alive: bool | None, silent_s: float) -> str:
    name = f"{story.recipe or 'run'} in {story.folder}"
    if story.is_over:
        last = story.sessions[-1]
        verb = "failed" if last.how == "fail" else "ended"
        return f"{name}: {verb} after {duration(story.end_s)}: {last.why}"
    if is_alive is False:
        to_go_on = f"; to go on: headway resume {story.folder}" if story.recipe else ""
        return f"{name}: its process is gone after {duration(story.end_s)}{to_go_on}"
    if is_alive:
        return f"{name}: running for {duration(story.end_s + silent_s)}, last event {duration(silent_s)} ago"
    why = not_known(story.environment)
    return f"{name}: not ended after {duration(story.end_s)}, last event {duration(silent_s)} ago; {why}"


def _status(story: Story, is_alive: bool | None, silent_s: float) -> Status:
    sums = account(story)
    scores = [evaluation for evaluation in story.evaluations if evaluation.value is not None]
    restarts = Counter(role for _, role, _ in story.restarts)
    is_gone = is_alive is False
    now = story.end_s if is_gone else story.end_s + silent_s  # what nobody does any more takes no longer
    return Status(
        done=float(story.updates[-1].number if story.updates else 0),
        total=story.config.get("updates"),
        unit="update",
        version=story.version,
        lead=story.leads[-1][1] if story.leads else 0.0,
        staleness=sums.staleness.mean,
        updates_per_s=sums.updates_per_s,
        score=scores[-1].value if scores else None,
        roles=tuple(
            RoleStatus(
                role, interval.what, _words(interval, is_gone), now - interval.begin, None, restarts[role], is_gone
            )
            for role, interval in story.under_way.items()
        ),
        max_staleness=int(sums.staleness.max),
        rollouts_per_s=sums.rollouts_per_s,
        steps_per_s=sums.steps_per_s,
        score_version=scores[-1].version if scores else None,
        drops=dict(story.drops),
        restarts=len(story.restarts),
        alarms=tuple(_raised(story)),
    )


def _words(interval: Interval, is_gone: bool) -> str:
    about = [f"{name} {value}" for name in ("ticket", "update") if (value := getattr(interval, name)) is not None]
    if interval.version is not None and interval.kind == "busy":
        about.append(f"version {interval.version}")
    return ", ".join([(were_in_words if is_gone else in_words)(interval.what), *about])


def _raised(story: Story) -> list[str]:
    last = {alarm["name"]: alarm for alarm in story.alarms}
    return [
        Ring(alarm["name"], True, alarm["value"], alarm["threshold"]).line() for alarm in last.values() if alarm["on"]
    ]
