"""The whole story of a run, told from its event log: `read_story(folder)`.

    events.jsonl ---> RunHistory ---> Story: settings, roles and what each did when, evaluations, looks, alarms;
    config.yaml                              for each line its tickets, updates, versions, queue sizes, lead, drops

Everything that is shown of a run afterwards (the accounts, the trace, the report, the advice) is made from it, and so
is the status of a run that is still going on. It needs the standard library only. Who looks at a run again and again
keeps a `StoryReader`: it goes on where it was, and reads only what the log has gained. Of a long log it can be content
with the end, which takes as long whatever the length.

The run may be finished, running or killed in the middle: the story ends with the last whole line of the log (`end_s`),
and what was under way then ends there too (`under_way` says which intervals those are). Times are seconds on the clock
of the event log; `began_at` says when that clock stood at zero, where it is known. A resumed run is one story with
several `sessions`.

    RoleInterval  a role, busy with or blocked by something, from `begin` to `end`. Those of one role do not overlap;
                  what lies between two of them is the coordinator's own moment
    TicketLife    one unit of experience in one line, and how it ended
    staleness     version being trained minus the oldest version of the span, when the learner took the rollout.
                  `stale_in_flight` of it had come up when the rollout landed (where tickets are pinned: since their
                  version was fixed), `stale_in_queue` while it waited for the learner
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from headway.core import events as ev
from headway.core.events_written_events import as_event, written_kind
from headway.core.history import RunHistory
from headway.core.text_one_line import shortened
from headway.core.types_opaque import JsonObject, SettingValue
from headway.runs.event_log import parse_event
from headway.runs.folder import RunFolder
from headway.runs.log_parts import crc_before, lines_from, log_size
from headway.runs.parsed_json import parsed
from headway.tools.report.recorded_run_log_window import LogWindow, find_window
from headway.tools.report.recorded_run_story_records import Story

LoggedEvent = ev.Event | Mapping[str, SettingValue]
"""An event, typed or as it stands in the log."""


LONG_BYTES = 20 * 2**20
"""Of a log: some 60,000 tickets. What is longer is told by its end where that is enough."""
WINDOW_BYTES = 2**20
ONLY_ITS_END = "only the end of the log is told"


def read_story(folder: Path | RunFolder, *, whole: bool = True) -> Story:
    """The story of the run in this folder; anything that is no run is one clear line (ValueError)."""
    return StoryReader(folder, whole=whole).read()


class StoryReader:
    """Reads the story of a run again and again, each time only the lines that have come since.

    A log that was cut back or replaced (the run was resumed, or is another one) is read from its beginning. Unless it
    is to be `whole`, of a log beyond `LONG_BYTES` the last `WINDOW_BYTES` are read, and the story says so (`gap`).
    """

    def __init__(self, folder: Path | RunFolder, *, whole: bool = True) -> None:
        self._run = folder if isinstance(folder, RunFolder) else RunFolder(folder)
        self._whole = whole
        self._begin()

    def _begin(self, window: LogWindow | None = None) -> None:
        story = Story(self._run.path, "", {}, {}, None, None, gap="" if window is None else ONLY_ITS_END)
        self._teller = _Teller(story)
        self._first = self._position = 0
        self._check = 0  # of the bytes that lie before it, by which it knows the log again
        if window is not None:
            self._first = self._position = window.position
            self._check = crc_before(self._run.events, window.position)
            self._teller.tell(window.head, str(self._run.events))

    def read(self) -> Story:
        """The story up to the last whole line. It is the same object each time, and grows with the log."""
        run = self._run
        if not run.path.is_dir():
            raise ValueError(f"no run folder at {run.path}")
        if not run.events.is_file():
            raise ValueError(f"{run.path} is not a run folder: it has no {run.events.name}")
        try:
            story = self._read_log()
            describe(story, run)
        except ValueError:
            self._begin()  # what cannot be told once cannot be gone on with
            raise
        return story

    def _read_log(self) -> Story:
        path = self._run.events
        try:
            if crc_before(path, self._position) != self._check:
                self._begin()
            if not self._whole and log_size(path) - self._first > LONG_BYTES:
                self._begin(find_window(path, WINDOW_BYTES))
            teller, story = self._teller, self._teller.story
            teller.go_on()
            begin = self._position
            for line in lines_from(path, begin):
                teller.tell(parse_event(line, path, story.num_events + 1), str(path))
                self._position += len(line)
            if self._position > begin:
                self._check = crc_before(path, self._position)
        except OSError as error:
            raise ValueError(f"cannot read {path}: {error.strerror or error}") from None
        teller.finish()
        return story


def describe(story: Story, run: RunFolder) -> None:
    """Add to a story what lies beside the log: the folder, the settings, the machine, how the run ended."""
    story.folder = run.path
    story.recipe, story.config = run.read_config() if run.config.is_file() else ("", {})
    story.environment = _read_object(run.environment)
    story.began_at = story.environment.get("began_at")
    story.summary = _read_object(run.summary) or None


def tell(
    events: Iterable[LoggedEvent],
    *,
    folder: Path | None = None,
    recipe: str = "",
    config: JsonObject | None = None,
    environment: JsonObject | None = None,
    summary: JsonObject | None = None,
) -> Story:
    """The story that events in memory tell."""
    environment = environment or {}
    story = Story(folder, recipe, config or {}, environment, environment.get("began_at"), summary)
    return _tell_all(_Teller(story), events, "the log" if folder is None else str(folder / "events.jsonl"))


def tell_end(events: Iterable[LoggedEvent]) -> Story:
    """What the last events of a log say: who does what, the newest version, how it ended. A `run` event comes first.

    Of a ticket whose beginning is not among them nothing is known but that it was there.
    """
    story = Story(None, "", {}, {}, None, None, gap=ONLY_ITS_END)
    return _tell_all(_Teller(story), events, "the end of the log")


def _tell_all(teller: _Teller, events: Iterable[LoggedEvent], where: str) -> Story:
    for event in events:
        teller.tell(event, where)
    teller.finish()
    return teller.story


def _read_object(path: Path) -> JsonObject:
    """A JSON object; empty if there is none."""
    try:
        value = parsed(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold an object, received {type(value).__name__}")
    return value


class _Teller:
    """Lets a history follow the events, and the story keep what it says.

    tell, tell, ... finish: the story is whole --> go_on: as if it had not been --> tell, tell, ... finish
    """

    def __init__(self, story: Story) -> None:
        self.story = story
        self._history = RunHistory(story, is_whole=not story.gap)
        self._unfinished = 0  # intervals that were under way when the log ended, and are told up to there

    def tell(self, event: LoggedEvent, where: str) -> None:
        """The next event of the log `where`."""
        story = self.story
        if not story.num_events and _kind(event) not in ("run", "gap", "part"):
            raise ValueError(f"{where} is not the log of a run: it begins with {shortened(repr(_kind(event)))}")
        try:
            typed = as_event(event)
            self._history.apply(typed)
            keep = _KEPT.get(type(typed))
            if keep is not None:
                keep(story, typed)
        except ValueError as error:
            raise ValueError(f"{where}, line {story.num_events + 1}: {shortened(error)}") from None
        except (KeyError, TypeError, IndexError) as error:
            what = f"not a {shortened(repr(_kind(event)))} event of a run ({shortened(repr(error))})"
            raise ValueError(f"{where}, line {story.num_events + 1}: {what}") from None
        story.num_events += 1

    def finish(self) -> None:
        """The log is over: whatever is under way ends here."""
        story, now = self.story, self._history.time_s
        assert self._history.roles is not None
        under_way = self._history.roles.under_way
        if story.sessions:
            story.sessions[-1].end = now
        for interval in under_way.values():
            interval.end = now
        unfinished = [interval for interval in under_way.values() if interval.seconds > 0]
        story.intervals += unfinished
        self._unfinished = len(unfinished)
        story.under_way = {} if story.is_over else dict(under_way)

    def go_on(self) -> None:
        """The log has grown: what was under way still is."""
        if self._unfinished:
            del self.story.intervals[-self._unfinished :]
            self._unfinished = 0


def _kind(event: LoggedEvent) -> str:
    return written_kind(event) if isinstance(event, tuple) else event["e"]


def _keep_requeued(story: Story, event: ev.Requeued) -> None:
    story.lines[event.line].requeued.append((event.time_s, event.ticket))


def _keep_lost(story: Story, event: ev.Lost) -> None:
    """Several lines may lose a rollout at once."""
    lost = (event.time_s, event.ticket, event.why)
    if story.lost[-1:] != [lost]:
        story.lost.append(lost)


def _keep_gap(story: Story, event: ev.GapFound) -> None:
    story.gap = event.why


def _keep_part(story: Story, event: ev.PartBegan) -> None:
    if not story.num_events:
        story.gap = story.gap or "its oldest parts were let go"


_KEPT: dict[type[object], Callable[[Story, Any], None]] = {
    ev.Reissued: lambda story, event: story.reissued.append((event.time_s, event.ticket, event.why)),
    ev.Requeued: _keep_requeued,
    ev.Lost: _keep_lost,
    ev.PublishRetried: lambda story, event: story.publish_retries.append(tuple(event)),
    ev.EvaluationSkipped: lambda story, event: story.skipped.append(event.version),
    ev.Restarted: lambda story, event: story.restarts.append(tuple(event)),
    ev.Scaled: lambda story, event: story.scaled.append(event),
    ev.Left: lambda story, event: story.left.append(event),
    ev.Noticed: lambda story, event: story.notices.append(tuple(event)),
    ev.Moved: lambda story, event: story.moves.append(tuple(event)),
    ev.GapFound: _keep_gap,
    ev.PartBegan: _keep_part,
    ev.Saved: lambda story, event: story.saves.append(tuple(event)),
    ev.SaveSkipped: lambda story, event: story.saves_skipped.append(event.version),
    ev.Looked: lambda story, event: story.looks.append(event),
    ev.Alarmed: lambda story, event: story.alarms.append(event),
}
"""What a story keeps as it is written."""
