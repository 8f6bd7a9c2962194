"""The events of a run as they are written: the one table of their names, and the way there and back.

Opened(time_s, ticket) --written--> {"t": 0.028, "e": "open", "k": 3} --> events.jsonl
events.jsonl --> {"t": 0.028, "e": "open", "k": 3} --read_event--> Opened(time_s, ticket)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from headway.core.events import (
    Alarmed,
    BegunAnew,
    BestKept,
    Drawn,
    Dropped,
    Ended,
    EvaluationAbandoned,
    EvaluationBegan,
    EvaluationEnded,
    EvaluationSkipped,
    Event,
    Failed,
    GapFound,
    Inserted,
    Landed,
    LeadMoved,
    Left,
    Looked,
    Lost,
    Moved,
    Noticed,
    Opened,
    PartBegan,
    Published,
    PublishRetried,
    Refreshed,
    Reissued,
    Requeued,
    Restaged,
    Restarted,
    Resumed,
    RoleBusy,
    RoleWaits,
    RunBegan,
    Saved,
    SaveSkipped,
    Scaled,
    Settled,
    Started,
    Stopped,
    Unknown,
    UpdateBegan,
    Updated,
    WorkGiven,
)
from headway.core.types_opaque import JsonObject

WRITTEN: dict[type[Event], tuple[str, ...]] = {
    Opened: ("open", "k"),
    Started: ("start", "k", "c", "v"),
    Landed: ("land", "k", "v", "n", "l", "b"),
    Reissued: ("reissue", "k", "c", "a", "why"),
    Requeued: ("requeue", "k", "reason"),
    Lost: ("lose", "k", "why"),
    Dropped: ("drop", "k", "reason", "why"),
    BegunAnew: ("anew", "k", "c", "a"),
    Settled: ("settle", "k"),
    UpdateBegan: ("update", "u", "v", "k"),
    Updated: ("learn", "u", "v", "k", "d", "m", "n"),
    Inserted: ("insert", "k", "v", "d"),
    Drawn: ("draw", "v"),
    WorkGiven: ("work", "v", "n", "f"),
    Refreshed: ("refresh", "v", "n", "d", "f"),
    Published: ("publish", "v"),
    Restaged: ("restage", "v"),
    PublishRetried: ("publish_retry", "role", "v", "why"),
    LeadMoved: ("lead", "v", "lead"),
    EvaluationBegan: ("evaluate", "v"),
    EvaluationEnded: ("score", "v", "value", "m", "error"),
    BestKept: ("best", "v", "value"),
    EvaluationAbandoned: ("abandon_evaluation", "v"),
    EvaluationSkipped: ("skip_evaluation", "v"),
    RoleBusy: ("busy", "r", "w"),
    RoleWaits: ("wait", "r", "w"),
    Restarted: ("restart", "role", "why"),
    Scaled: ("scale", "collectors", "before", "k"),
    Left: ("leave", "role", "why"),
    Noticed: ("notice", "role", "why"),
    Moved: ("move", "role"),
    RunBegan: ("run",),
    GapFound: ("gap", "why"),
    PartBegan: ("part", "run"),
    Resumed: ("resume", "v", "updates"),
    Saved: ("save", "v"),
    SaveSkipped: ("skip_save", "v"),
    Looked: ("look", "lead", "spent", "rss", "memory", "cpu"),
    Alarmed: ("alarm", "name", "on", "value", "threshold"),
    Stopped: ("stop", "reason"),
    Ended: ("end", "v", "updates", "returned"),
    Failed: ("fail", "why"),
}
"""Event -> the kind it is written as and the names of its fields, in their order. `line` and `others` come last under
their own names, and only where there is something to say."""

KINDS: dict[str, type[Event]] = {row[0]: event for event, row in WRITTEN.items()}
_OPTIONAL = ("line", "others")
_NAMES: dict[type[Event], tuple[str, ...]] = {
    event: ("t", "e", *row[1:], *(name for name in event._fields if name in _OPTIONAL))
    for event, row in WRITTEN.items()
}
_REQUIRED = object()
_DEFAULTS: dict[type[Event], tuple[tuple[str, Any], ...]] = {
    event: tuple(
        (name, event._field_defaults.get(field, _REQUIRED))
        for name, field in zip(names[2:], event._fields[1:], strict=True)
    )
    for event, names in _NAMES.items()
    if event is not RunBegan
}
_GETTERS: dict[type[Event], tuple[itemgetter[Any], int]] = {
    event: (itemgetter("t", *row[1:]), 1 + len(row)) for event, row in WRITTEN.items() if len(row) > 1
}


def _writer(word: str, *names: str) -> Callable[[Event], JsonObject]:
    """A function that gives the fields of an event their written names: compiled, for it runs with every event."""
    fields = "".join(f", {name!r}: event[{place}]" for place, name in enumerate(names, 1))
    write: Callable[[Event], JsonObject] = eval(f"lambda event: {{'t': event[0], 'e': {word!r}{fields}}}")
    return write


_WRITERS = {event: _writer(*row) for event, row in WRITTEN.items() if event is not RunBegan}


def written(event: Event) -> JsonObject:
    """The event as it stands in the log."""
    kind = type(event)
    write = _WRITERS.get(kind)
    if write is not None:
        line = write(event)
        if event[-1] and kind._fields[-1] in _OPTIONAL:
            line[kind._fields[-1]] = event[-1]
        return line
    if isinstance(event, RunBegan):
        told = {} if event.config is None else {"config": dict(event.config)}
        return {"t": event.time_s, "e": "run", **event.settings, **told}
    assert isinstance(event, Unknown)
    return {"t": event.time_s, "e": event.kind, **event.fields}


def read_event(line: Mapping[str, Any]) -> Event:
    """The event that stands in the log as `line`; ValueError if it is not one."""
    try:
        time_s, kind = line["t"], KINDS.get(line["e"])
    except KeyError as missing:
        raise ValueError(f"not an event: it has no {missing}") from None
    if kind is None or kind is RunBegan:
        fields = {name: value for name, value in line.items() if name not in ("t", "e")}
        if kind is None:
            return Unknown(time_s, line["e"], fields)
        return RunBegan(time_s, fields, fields.pop("config", None))
    get_all, num = _GETTERS[kind]
    event: Event
    if len(line) == num:  # nothing is left out and nothing is added, which is what most lines are like
        try:
            event = kind(*get_all(line))
            return event
        except KeyError:
            pass
    values = [time_s]
    for name, default in _DEFAULTS[kind]:
        value = line.get(name, default)
        if value is _REQUIRED:
            raise ValueError(f"not a {line['e']!r} event of a run: it has no {name!r}")
        values.append(value)
    event = kind(*values)
    return event


def as_event(event: Event | Mapping[str, Any]) -> Event:
    """The same event, whether it is one already or a line of the log."""
    return event if isinstance(event, tuple) else read_event(event)


def written_kind(event: Event) -> str:
    """The kind that an event is written as."""
    return event.kind if isinstance(event, Unknown) else WRITTEN[type(event)][0]
