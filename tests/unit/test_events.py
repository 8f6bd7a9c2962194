"""The events of a run: typed, and written under the names of one table."""

from __future__ import annotations

import typing
from typing import Any

import pytest

from headway.core import events
from headway.core.events import Event, Landed, Opened, RunBegan, Unknown
from headway.core.events_written_events import KINDS, WRITTEN, read_event, written
from headway.runs.event_log import event_of

EXAMPLES: dict[type[Any], Any] = {float: 1.5, int: 3, str: "x", bool: True}


def example(kind: type[Any]) -> Any:
    """An event of this kind with something in every field."""
    hints = typing.get_type_hints(kind)
    return kind(*(EXAMPLES.get(hints[name], {"a": 1.0}) for name in kind._fields))


def test_every_event_has_a_row_in_the_table_and_a_kind_of_its_own() -> None:
    assert set(WRITTEN) == set(typing.get_args(Event)) - {Unknown}
    assert len(KINDS) == len(WRITTEN)


@pytest.mark.parametrize("kind", WRITTEN, ids=lambda kind: kind.__name__)
def test_a_row_names_every_field_and_what_is_written_is_read_again(kind: type[Any]) -> None:
    named = [name for name in kind._fields[1:] if name not in ("line", "others")]
    assert kind is RunBegan or len(WRITTEN[kind]) == 1 + len(named)
    event = example(kind)
    assert read_event(written(event)) == event


def test_the_first_line_has_no_name_in_the_log_and_another_one_has() -> None:
    assert written(event_of((0.1234567, Opened, (3,)))) == {"t": 0.123457, "e": "open", "k": 3}
    assert written(Opened(1.0, 3, "prior")) == {"t": 1.0, "e": "open", "k": 3, "line": "prior"}


def test_a_log_without_what_came_later_is_read() -> None:
    line = {"t": 1.0, "e": "land", "k": 2, "v": [0, 1], "n": 5, "l": 5.0}
    assert read_event(line) == Landed(1.0, 2, [0, 1], 5, 5.0, 0)


def test_what_nobody_knows_is_kept_and_written_as_it_was() -> None:
    line = {"t": 1.0, "e": "later", "x": 2}
    assert read_event(line) == Unknown(1.0, "later", {"x": 2})
    assert written(read_event(line)) == line


@pytest.mark.parametrize("line", [{"t": 1.0, "e": "start", "k": 2}, {"e": "open", "k": 1}, {"t": 1.0, "k": 1}])
def test_what_is_no_event_is_one_line(line: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a"):
        read_event(line)


def test_the_events_of_the_module_are_those_of_the_union() -> None:
    classes = {value for value in vars(events).values() if isinstance(value, type) and hasattr(value, "_fields")}
    assert classes == set(typing.get_args(Event))
