"""What a run leaves behind and what a person sees: event log, folder, fingerprint, statistics, status."""

from __future__ import annotations

import io
import json
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from waiting import patient

from headway.core.text_statistics import WIDTH, seconds, side_by_side, statistics_block
from headway.runs.console import RoleStatus, Status, StatusDisplay
from headway.runs.event_log import EventLog, MemoryRecorder, NoRecorder, PrintingRecorder, read_events
from headway.runs.fingerprint import fingerprint
from headway.runs.folder import RunFolder, write_whole
from headway.runs.log_parts import go_on_at

stable = settings(max_examples=100, deadline=None, derandomize=True)
WAIT_S = patient(10)


# -- event log --------------------------------------------------------------------------------------


def test_events_come_back_in_order_as_they_were(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.record(0.1234567, "open", {"k": 0})
    log.record(1.5, "learn", {"k": [0, 1], "m": {"loss": 0.5}})
    log.close()
    assert list(read_events(tmp_path / "events.jsonl")) == [
        {"t": 0.123457, "e": "open", "k": 0},
        {"t": 1.5, "e": "learn", "k": [0, 1], "m": {"loss": 0.5}},
    ]


def test_everything_before_a_mark_is_on_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    for number in range(5):
        log.record(number, "open", {})
    assert log.mark().wait(60).position == path.stat().st_size
    assert len(list(read_events(path))) == 5
    log.close()
    log.close()  # twice is once


def test_whatever_is_in_an_event_recording_does_not_raise(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.record(0, "odd", {"path": Path("x"), "nan": float("nan"), "array": np.float32(1), "text": "line\nbreak\ud800"})
    log.close()
    (event,) = read_events(tmp_path / "events.jsonl")
    assert (event["path"], event["array"]) == ("x", "1.0")


def test_a_resumed_log_goes_on_at_its_position_and_keeps_the_tail_aside(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.record(0, "open", {"k": 0})
    position = log.mark().position
    log.record(1, "open", {"k": 1})
    log.close()
    for session in range(2):  # two sessions that crash after the same checkpoint
        go_on_at(path, position, None)
        log = EventLog(path)
        log.record(2, "resume", {"session": session})
        log.close()
    assert [event["e"] for event in read_events(path)] == ["open", "resume"]
    assert list(read_events(tmp_path / "events.discarded-0.jsonl")) == [{"t": 1, "e": "open", "k": 1}]
    assert list(read_events(tmp_path / "events.discarded-1.jsonl")) == [{"t": 2, "e": "resume", "session": 0}]


def test_a_log_that_ends_at_its_position_has_nothing_to_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.record(0, "open", {})
    position = log.mark().position
    log.close()
    for file, end in ((path, position), (tmp_path / "new.jsonl", 0)):
        go_on_at(file, end, None)
        EventLog(file).close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["events.jsonl", "new.jsonl"]


def test_a_last_line_cut_off_by_a_crash_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"t":0,"e":"open"}\n{"t":1,"e":"la')
    assert [event["e"] for event in read_events(path)] == ["open"]


@pytest.mark.parametrize(
    "line",
    [b'{"t":1,"e":"la', b"", b"[1]", b'{"t":1}', b'{"e":"open"}', b"\xff\xfe", b"\x00" * 40, b"\xc3\x28"],
)
def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"t":0,"e":"open"}\n' + line + b'\n{"t":2,"e":"land"}\n')
    events = read_events(path)
    assert next(events)["e"] == "open"
    with pytest.raises(ValueError, match="not an event") as refused:
        next(events)
    assert str(refused.value) == f"{path}, line 2: not an event"


def test_a_log_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^cannot read .*absent.jsonl: No such file or directory$"):
        list(read_events(tmp_path / "absent.jsonl"))


def test_the_printing_recorder_prints_and_passes_on(capsys: pytest.CaptureFixture[str]) -> None:
    behind = MemoryRecorder()
    recorder = PrintingRecorder(behind)
    recorder.record(1.25, "land", {"k": 3, "n": 64})
    assert behind.events == [{"t": 1.25, "e": "land", "k": 3, "n": 64}]
    assert capsys.readouterr().err == "[1.250] land k=3 n=64\n"
    assert recorder.mark().position == 1
    recorder.close()


def test_the_recorder_that_records_nothing_has_nowhere_to_go_on_from() -> None:
    recorder = NoRecorder()
    recorder.record(0, "open", {})
    recorder.close()
    assert recorder.mark().position == 0


# -- run folder -------------------------------------------------------------------------------------


def test_two_runs_of_one_second_get_two_folders(tmp_path: Path) -> None:
    folders = [RunFolder.create(tmp_path / "runs", "toy") for _ in range(4)]
    assert len({folder.path for folder in folders}) == 4
    assert all(folder.path.is_dir() and folder.path.name.startswith("toy-") for folder in folders)


def test_a_folder_that_cannot_be_made_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"^cannot make a folder in .*file: Not a directory$"):
        RunFolder.create(tmp_path / "file", "toy")


def test_only_a_folder_with_a_config_is_a_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^no run folder at .*absent$"):
        RunFolder.existing(tmp_path / "absent")
    with pytest.raises(ValueError, match=r"is not a run folder: it has no config.yaml$"):
        RunFolder.existing(tmp_path)
    RunFolder(tmp_path).write_config("toy", {"updates": 3})
    assert RunFolder.existing(tmp_path).read_config() == ("toy", {"updates": 3})


def test_the_fingerprint_of_a_run_is_in_its_summary(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.recorded_fingerprint() is None
    folder.write_summary({"fingerprint": "abc", "wall_s": 1.0})
    assert folder.recorded_fingerprint() == "abc"
    assert json.loads(folder.summary.read_text()) == {"fingerprint": "abc", "wall_s": 1.0}


def test_a_file_appears_whole_or_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "half" * 10_000 + "\ud800")
    assert path.read_text() == "old"
    write_whole(path, "new")
    assert [file.name for file in tmp_path.iterdir()] == ["summary.json"]


# -- fingerprint ------------------------------------------------------------------------------------


class Thing:
    """Weights kept in an object."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


def test_the_order_of_a_dictionary_does_not_matter() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1}) == fingerprint(OrderedDict(b=2, a=1))


def test_how_an_array_lies_in_memory_does_not_matter() -> None:
    square = np.arange(12, dtype=np.float32).reshape(3, 4)
    view = np.zeros((6, 8), np.float32)
    view[::2, ::2] = square
    assert fingerprint(square) == fingerprint(np.asfortranarray(square)) == fingerprint(view[::2, ::2])
    assert fingerprint(square) == fingerprint(square.T.copy().T)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.float64]
)
def test_how_a_tensor_lies_in_memory_does_not_matter(dtype: torch.dtype) -> None:
    square = torch.arange(12).reshape(3, 4).to(dtype)
    padded = torch.zeros((6, 8), dtype=dtype)
    padded[::2, ::2] = square
    assert fingerprint(square) == fingerprint(padded[::2, ::2]) == fingerprint(square.t().contiguous().t())
    changed = square.clone()
    changed[2, 3] = 0
    assert fingerprint(changed) != fingerprint(square)


def test_gradients_and_parameters_do_not_matter() -> None:
    values = torch.tensor([1.0, 2.0])
    assert fingerprint(values) == fingerprint(torch.nn.Parameter(values))


def test_a_module_has_a_fingerprint_like_any_object() -> None:
    torch.manual_seed(0)
    module = torch.nn.Linear(3, 2)
    before = fingerprint(module)
    assert fingerprint(module) == before
    with torch.no_grad():
        module.bias[0] += 1
    assert fingerprint(module) != before


DIFFERENT: list[Any] = [
    0,
    0.0,
    -0.0,
    False,
    None,
    "",
    "0",
    b"0",
    [],
    [0],
    [[0]],
    [0, 0],
    {},
    {"a": 0},
    {"b": 0},
    {"a": 1},
    {0: 0},
    {"a": {"a": 0}},
    set(),
    {0},
    float("nan"),
    np.zeros(2, np.float32),
    np.zeros(2, np.float64),
    np.zeros(2, np.int32),
    np.zeros((1, 2), np.float32),
    np.zeros((2, 1), np.float32),
    np.zeros(3, np.float32),
    -np.zeros(2, np.float32),
    np.float32(0),
    np.nextafter(np.zeros(2, np.float32), np.float32(1)),
    torch.zeros(2),
    torch.zeros(2, dtype=torch.bfloat16),
    torch.zeros(2, dtype=torch.float16),
    torch.zeros(1, 2),
    torch.zeros(0),
    torch.zeros(0, 5),
    torch.tensor(0.0),
    Thing(a=0),
    Thing(a=1),
]


def test_different_bits_types_shapes_and_structures_have_different_fingerprints() -> None:
    prints = [fingerprint(value) for value in DIFFERENT]
    assert len(set(prints)) == len(DIFFERENT)
    assert all(len(text) == 16 and int(text, 16) >= 0 for text in prints)


@stable
@given(st.lists(st.floats(width=32), min_size=1, max_size=8), st.integers(0, 255))
def test_one_bit_changes_the_fingerprint(values: list[float], which: int) -> None:
    weights = np.array(values, np.float32)
    changed = weights.copy()
    bits = changed.view(np.uint8)
    bits[which % len(bits)] ^= 1 << which % 8
    assert fingerprint({"w": weights}) != fingerprint({"w": changed})
    bits[which % len(bits)] ^= 1 << which % 8
    assert fingerprint({"w": weights}) == fingerprint({"w": changed})


@pytest.mark.parametrize(
    ("value", "kind"),
    [(object(), "object"), (1 + 2j, "complex"), (range(3), "range"), ({"deep": [iter([])]}, "list_iterator")],
)
def test_what_has_no_bits_of_its_own_is_refused(value: Any, kind: str) -> None:
    with pytest.raises(TypeError, match=f"cannot take the fingerprint of a {kind}"):
        fingerprint(value)


def test_an_array_of_objects_is_refused_because_its_bytes_are_addresses() -> None:
    with pytest.raises(TypeError, match="cannot take the fingerprint of an array of objects"):
        fingerprint(np.array([object()]))


# -- statistics -------------------------------------------------------------------------------------


def test_the_block_is_a_title_and_lines_between_two_rules() -> None:
    assert statistics_block({"Mode": "SYNCHRONOUS", "Final lag": "0"}).splitlines() == [
        "=" * WIDTH,
        "Async Training Statistics:",
        "  Mode: SYNCHRONOUS",
        "  Final lag: 0",
        "=" * WIDTH,
    ]
    assert statistics_block({}, title="Mine").splitlines()[1] == "Mine:"


def test_side_by_side_has_a_column_per_run_and_a_dash_where_one_has_nothing() -> None:
    columns = {"sync": {"Mode": "S", "Updates": "1200"}, "lead 4": {"Mode": "A", "Drops": "3"}, "none": {}}
    assert side_by_side(columns).splitlines() == [
        "=" * WIDTH,
        "Async Training Statistics:",
        "           sync  lead 4  none",
        "  Mode        S       A     -",
        "  Updates  1200       -     -",
        "  Drops       -       3     -",
        "=" * WIDTH,
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.00ms"),
        (0.00123, "1.23ms"),
        (0.099, "99.00ms"),
        (0.1, "0.10s"),
        (9.5, "9.50s"),
        (10, "10.0s"),
        (3600, "3600.0s"),
    ],
)
def test_seconds_are_short_and_precise_enough(value: float, text: str) -> None:
    assert seconds(value) == text


# -- status -----------------------------------------------------------------------------------------


def status(**changes: Any) -> Status:
    values: dict[str, Any] = {
        "done": 3.0,
        "total": 10.0,
        "unit": "update",
        "version": 2,
        "lead": 1.0,
        "staleness": 0.5,
        "updates_per_s": 12.34,
        "score": 0.75,
        "roles": (RoleStatus("learner", "data", "waits for the rollout of ticket 7", 1.5, 0.2),),
    }
    return Status(**(values | changes))


def test_a_status_line_says_how_far_at_which_version_and_how_stale() -> None:
    line = "update 3/10, version 2, lead 1, mean staleness 0.50, 12.3 updates/s, score 0.75"
    assert status().line() == line
    assert status(total=None, score=None).line() == "update 3, version 2, lead 1, mean staleness 0.50, 12.3 updates/s"


def test_a_status_line_says_that_an_evaluation_is_what_goes_on() -> None:
    paused = (RoleStatus("learner", "evaluation", "waits for an evaluation", 250.0),)
    line = "update 10/10, evaluating for 4 min, version 2, lead 1, mean staleness 0.50, 0.0042 updates/s, score 0.75"
    assert status(done=10.0, updates_per_s=0.0042, roles=paused).line() == line


class Asked:
    """A status that tells the test when it was asked for the nth time."""

    def __init__(self, times: int, **changes: Any) -> None:
        self.enough = threading.Event()
        self._left = times
        self._status = status(**changes)

    def __call__(self) -> Status:
        self._left -= 1
        if self._left <= 0:
            self.enough.set()
        return self._status


@pytest.mark.parametrize("total", [10.0, None])
def test_on_a_terminal_the_block_is_live_and_gone_at_the_end(total: float | None) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, color_system=None)
    asked = Asked(3, total=total)
    with StatusDisplay(asked, console):
        assert asked.enough.wait(WAIT_S)
    text = out.getvalue()
    assert ("3/10" if total else "3/?") in text
    assert "version 2, lead 1, staleness 0.50 mean / 0 max, 12.3 updates/s, score 0.75" in text
    assert "learner  waits for the rollout of ticket 7  1.5 s  answered 0.2 s ago" in text
    assert "\x1b[?25l" in text  # the cursor was hidden
    assert text.rstrip().endswith("\x1b[2K")  # and the block erased


def test_elsewhere_a_plain_line_appears_now_and_then() -> None:
    out = io.StringIO()
    asked = Asked(3)
    with StatusDisplay(asked, Console(file=out, width=40), line_every_s=0.001):
        assert asked.enough.wait(WAIT_S)
    lines = out.getvalue().splitlines()
    assert len(lines) >= 2
    assert set(lines) == {status().line()}  # whole, though the console is narrow, and without control codes


def test_a_run_that_ends_before_the_first_line_prints_none() -> None:
    out = io.StringIO()
    with StatusDisplay(status, Console(file=out)):
        pass
    assert out.getvalue() == ""


def test_the_thread_ends_with_the_block_even_if_it_fails() -> None:
    with pytest.raises(LookupError), StatusDisplay(status, Console(file=io.StringIO())):
        raise LookupError
    assert "status" not in [thread.name for thread in threading.enumerate()]
