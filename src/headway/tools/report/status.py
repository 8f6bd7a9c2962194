"""One look at a run from its folder, from any process: `headway status RUN`."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from headway.coordinator.activities import in_words, were_in_words
from headway.core.history_records import RoleInterval
from headway.runs.console import LineStatus, RoleStatus, Status, duration
from headway.runs.console_episodes_in_words import in_words as in_words_of
from headway.runs.folder import RunFolder
from headway.runs.folder_environment import not_known, process_is_alive
from headway.runs.log_parts import log_size
from headway.runs.monitor_alarms import alarm_line
from headway.tools.report.agent_report import lately
from headway.tools.report.recorded_run_run_history import describe, read_story
from headway.tools.report.recorded_run_story_records import LineStory, Story
from headway.tools.report.status_log_end import TAIL_BYTES, Numbers, first_moment, read_end, read_numbers
from headway.tools.report.time_report import Ages, account, taken_in

UP_TO_BYTES = 2_000_000  # of a log that is read whole: about a second
UNWRITTEN_S = 30.0  # metrics and events are written together, every ten seconds at least


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A run as its folder shows it."""

    headline: str
    status: Status


def read_status(path: Path) -> RunStatus:
    """What a run does now, or how it ended. Up to a tenth of a second old."""
    run = RunFolder(path)
    is_long = run.events.is_file() and log_size(run.events) > UP_TO_BYTES
    seen = (read_end_status(run) if is_long and run.metrics.is_file() else None) or read_whole_status(run)
    return replace(seen, headline=f"{seen.headline}{_unwritten(run)}")


def read_whole_status(run: RunFolder) -> RunStatus:
    """From the whole log."""
    story = read_story(run)
    is_alive = None if story.is_over else process_is_alive(story.environment)
    silent_s = _silent_s(run)
    return RunStatus(_headline(story, is_alive, silent_s), _status(story, is_alive, 0.0 if story.is_over else silent_s))


def read_end_status(run: RunFolder, *, tail_bytes: int = TAIL_BYTES) -> RunStatus | None:
    """From the end of the log and the numbers beside it, however long it is; None where nobody has looked at it yet."""
    numbers = read_numbers(run.metrics)
    if not numbers.last:
        return None
    story = read_end(run.events, tail_bytes=tail_bytes) or read_story(run, whole=False)  # a part has just begun
    describe(story, run)
    is_alive = None if story.is_over else process_is_alive(story.environment)
    silent_s = _silent_s(run)
    last, per_s = numbers.last, 1 / max(story.end_s - first_moment(run.events), 1e-9)
    updates = story.updates[-1].number if story.updates else last["run/updates"]
    status = Status(
        done=float(updates),
        total=story.config.get("updates"),
        unit="update",
        version=story.version if story.versions else int(last["run/version"]),
        lead=last["run/lead"],
        staleness=numbers.staleness,
        updates_per_s=updates * per_s,
        score=numbers.score,
        roles=_roles(story, is_alive, 0.0 if story.is_over else silent_s),
        max_staleness=int(numbers.max_staleness),
        rollouts_per_s=last["tickets/landed"] * per_s,
        steps_per_s=numbers.steps * per_s,
        score_version=numbers.score_version,
        drops={name.removeprefix("drops/"): int(count) for name, count in last.items() if name.startswith("drops/")},
        restarts=int(last["run/restarts"]),
        alarms=tuple(_raised(story)),
        lines=tuple(_line_from_numbers(name, numbers) for name in story.settings.get("lines", ())),
        episodes=in_words_of({name.removeprefix("learn/"): value for name, value in last.items()}),
    )
    return RunStatus(_headline(story, is_alive, silent_s), status)


def _silent_s(run: RunFolder) -> float:
    return max(0.0, time.time() - run.events.stat().st_mtime)


def _unwritten(run: RunFolder) -> str:
    """Says that the event log is held back. Only the age of the metrics beside it shows that."""
    metrics, events = (path.stat().st_mtime if path.is_file() else 0.0 for path in (run.metrics, run.events))
    if metrics - events < UNWRITTEN_S:
        return ""
    return f"; {run.events.name} has not been written for {duration(metrics - events)}: this is the state before that"


def _headline(story: Story, is_alive: bool | None, silent_s: float) -> str:
    called = f" {story.config['name']}" if story.config.get("name") else ""
    name = f"{story.recipe or 'run'}{called} in {story.folder}"
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
    return Status(
        done=float(story.updates[-1].number if story.updates else 0),
        total=story.config.get("updates"),
        unit="update",
        version=story.version,
        lead=story.leads[-1][1] if story.leads else 0.0,
        staleness=sums.staleness.mean,
        updates_per_s=sums.updates_per_s,
        score=scores[-1].value if scores else None,
        roles=_roles(story, is_alive, silent_s),
        max_staleness=int(sums.staleness.max),
        rollouts_per_s=sums.rollouts_per_s,
        steps_per_s=sums.steps_per_s,
        score_version=scores[-1].version if scores else None,
        drops=dict(story.drops),
        restarts=len(story.restarts),
        alarms=tuple(_raised(story)),
        lines=tuple(_line_status(name, line) for name, line in story.lines.items() if name),
        episodes=in_words_of({name: lately(story, name) for name in _reported(story)}),
    )


def _reported(story: Story) -> list[str]:
    return list(story.updates[-1].metrics) if story.updates else []


def _line_status(name: str, line: LineStory) -> LineStatus:
    ages = Ages.of(taken_in(line)).staleness
    lead = line.leads[-1][1] if line.leads else 0.0
    return LineStatus(name, len(line.updates), line.version, lead, ages.mean, int(ages.max), dict(line.drops))


def _line_from_numbers(name: str, numbers: Numbers) -> LineStatus:
    """Of a long log: what stood in the last numbers, the ages in the last interval."""
    of = {key.removeprefix(f"{name}/"): value for key, value in numbers.last.items() if key.startswith(f"{name}/")}
    drops = {key.removeprefix("drops/"): int(count) for key, count in of.items() if key.startswith("drops/")}
    updates, version = int(of.get("run/updates", 0)), int(of.get("run/version", 0))
    mean, oldest = of.get("staleness/mean", 0.0), int(of.get("staleness/max", 0))
    return LineStatus(name, updates, version, of.get("run/lead", 0.0), mean, oldest, drops)


def _roles(story: Story, is_alive: bool | None, silent_s: float) -> tuple[RoleStatus, ...]:
    restarts = Counter(role for _, role, _ in story.restarts)
    is_gone = is_alive is False
    now = story.end_s if is_gone else story.end_s + silent_s  # what nobody does any more takes no longer
    return tuple(
        RoleStatus(role, interval.what, _words(interval, is_gone), now - interval.begin, None, restarts[role], is_gone)
        for role, interval in story.under_way.items()
    )


def _words(interval: RoleInterval, is_gone: bool) -> str:
    about = [f"{name} {value}" for name in ("ticket", "update") if (value := getattr(interval, name)) is not None]
    if interval.version is not None and interval.kind == "busy":
        about.append(f"version {interval.version}")
    return ", ".join([(were_in_words if is_gone else in_words)(interval.what), *about])


def _raised(story: Story) -> list[str]:
    last = {alarm.name: alarm for alarm in story.alarms}
    return [alarm_line(alarm) for alarm in last.values() if alarm.on]
