"""The event log is written beside the run: in order, whole at the end, nearly whole after a kill. Nobody waits."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import patient, wait_until

from headway.core.events import Opened
from headway.core.events_written_events import KINDS, written
from headway.runs.event_log import EventLog, InBackground, MemoryRecorder, event_of, line_of, read_events
from headway.runs.log_file import LogFile, Mark
from headway.runs.log_parts import closed_parts, crc_before, cut, go_on_at, lines_from, log_size

ENOUGH_S = patient(30)

numbers = st.integers(-(10**12), 10**12)
floats = st.floats(allow_nan=True, allow_infinity=True)
values = st.recursive(
    st.one_of(numbers, floats, st.text(max_size=5), st.booleans(), st.none(), st.integers(2**63, 2**70)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)

BRIEF: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "open": ((7,), {"k": 7}),
    "start": ((7, 1, 3), {"k": 7, "c": 1, "v": 3}),
    "land": ((7, [2, 3], 64, 64.0, 0), {"k": 7, "v": [2, 3], "n": 64, "l": 64.0, "b": 0}),
    "update": ((1, 0, [7, 8]), {"u": 1, "v": 0, "k": [7, 8]}),
    "learn": (
        (1, 0, [7], 0.25, {"loss": 1.0}, 8.0),
        {"u": 1, "v": 0, "k": [7], "d": 0.25, "m": {"loss": 1.0}, "n": 8.0},
    ),
    "publish": ((1,), {"v": 1}),
    "settle": (([7, 8],), {"k": [7, 8]}),
    "wait": (("collector-0/1", "slot"), {"r": "collector-0/1", "w": "slot"}),
    "busy": (("learner", "save"), {"r": "learner", "w": "save"}),
}


# -- a line -----------------------------------------------------------------------------------------


@settings(deadline=None, derandomize=True)
@given(st.floats(0, 1e6), st.dictionaries(st.text(min_size=1, max_size=5), values, max_size=4))
def test_a_line_holds_what_the_event_says_whatever_that_is(time_s: float, fields: dict[str, Any]) -> None:
    event = {**fields, "t": time_s, "e": "odd"}
    line = line_of(event)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert repr(json.loads(line)) == repr(json.loads(json.dumps(event))), "numbers that are not finite stay"


def test_what_comes_with_every_ticket_gets_its_names_from_its_order() -> None:
    for kind, (brief, fields) in BRIEF.items():
        assert written(event_of((1.5, KINDS[kind], brief))) == {"t": 1.5, "e": kind, **fields}
    assert event_of((1.23456789, Opened, (3,))).time_s == 1.234568


def test_what_is_not_finite_can_be_read_again(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.record(0.0, "learn", {"m": {"loss": math.nan, "top": math.inf, "none": None}})
    log.close()
    (event,) = read_events(tmp_path / "events.jsonl")
    assert math.isnan(event["m"]["loss"])
    assert (event["m"]["top"], event["m"]["none"]) == (math.inf, None)


# -- the thread that records ------------------------------------------------------------------------


def test_events_come_through_in_order_and_marks_stand_where_they_were_put(tmp_path: Path) -> None:
    recorder = InBackground(EventLog(tmp_path / "events.jsonl"))
    marks = []
    for number in range(5000):
        recorder.append((number / 1000, KINDS["open"], (number,)))
        if number % 700 == 0:
            marks.append((number, recorder.mark()))
    recorder.close()
    assert [event["k"] for event in read_events(tmp_path / "events.jsonl")] == list(range(5000))
    content = (tmp_path / "events.jsonl").read_bytes()
    for number, mark in marks:
        assert mark.is_durable.is_set()
        assert mark.position is not None
        assert content[: mark.position].count(b"\n") == number + 1, "everything recorded before a mark lies before it"
        assert mark.check == crc_before(tmp_path / "events.jsonl", mark.position)
    assert not {"recording", "writes events.jsonl"}.intersection(thread.name for thread in threading.enumerate())


def test_events_are_on_disk_within_a_moment_without_a_mark(tmp_path: Path) -> None:
    recorder = InBackground(EventLog(tmp_path / "events.jsonl"))
    recorder.start()
    recorder.append((0.0, Opened, (0,)))
    wait_until(lambda: (tmp_path / "events.jsonl").read_bytes() == b'{"t":0.0,"e":"open","k":0}\n')
    recorder.close()


def test_nothing_starts_a_thread_before_it_is_told_to() -> None:
    recorder = InBackground(MemoryRecorder())
    assert "recording" not in [thread.name for thread in threading.enumerate()]
    recorder.close()


class Broken(MemoryRecorder):
    def take(self, events: Any) -> None:
        raise RuntimeError("a bug")


def test_recording_that_breaks_is_said_once_and_nobody_who_records_hears_of_it() -> None:
    said: list[str] = []
    recorder = InBackground(Broken(), say=said.append)
    recorder.start()
    recorder.append((0.0, Opened, (0,)))
    wait_until(lambda: bool(said))
    recorder.append((0.0, Opened, (1,)))
    assert recorder.mark().wait(ENOUGH_S).position is None, "a checkpoint hears that there is no place in the log"
    recorder.close()
    assert said == ["recording is off, the run goes on without it: RuntimeError: a bug"]


def test_without_a_further_thread_recording_is_off_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    said: list[str] = []
    recorder = InBackground(EventLog(tmp_path / "events.jsonl", say=said.append), say=said.append)
    recorder.start()
    recorder.append((0.0, Opened, (0,)))
    assert recorder.mark().wait(ENOUGH_S).position is None
    recorder.close()
    log = EventLog(tmp_path / "other.jsonl", say=said.append)
    log.record(0.0, "open", {"k": 0})
    log.close()
    assert said == [
        "recording is off, the run goes on without it: RuntimeError: can't start new thread",
        f"{tmp_path / 'other.jsonl'} is off, the run goes on without it: can't start new thread",
    ]


# -- the disk ---------------------------------------------------------------------------------------


def test_a_full_disk_holds_a_log_back_and_the_run_goes_on(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "events.jsonl").symlink_to("/dev/full")
    log = LogFile(tmp_path / "events.jsonl", say=said.append)
    log.write(b"a line\n")
    wait_until(lambda: bool(said))
    assert "No space left on device; the run goes on" in said[0]
    log.write(b"another\n")
    log.close(within_s=ENOUGH_S)
    assert len(said) == 2
    assert "is off, the run goes on without it" in said[1]


def test_nobody_waits_for_a_log_that_is_held_back(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "events.jsonl").symlink_to("/dev/full")
    log = LogFile(tmp_path / "events.jsonl", say=said.append)
    log.write(b"a line\n")
    wait_until(lambda: bool(said))
    mark = Mark()
    log.sync(mark)
    assert mark.is_durable.is_set()
    assert mark.position == 7, "it is known all the same"
    log.close(within_s=ENOUGH_S)


def test_a_disk_with_room_again_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    full = threading.Event()
    full.set()
    write = os.write

    def limited(file: int, content: Any) -> int:
        if not full.is_set() or threading.current_thread().name != "writes events.jsonl":
            return write(file, content)
        if len(content) > 3:
            return write(file, content[:3])  # as far as there is room
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", limited)
    log = LogFile(tmp_path / "events.jsonl", say=said.append)
    log.write(b"first line\n")
    wait_until(lambda: bool(said))
    log.write(b"second line\n")
    mark = Mark()
    log.sync(mark)
    full.clear()
    assert mark.wait(ENOUGH_S).position == 23
    log.close()
    assert (tmp_path / "events.jsonl").read_bytes() == b"first line\nsecond line\n"
    assert said[1:] == [f"{tmp_path / 'events.jsonl'} is written again; nothing of it is lost"]


def test_a_log_that_holds_too_much_back_is_off_and_marks_say_so(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "events.jsonl").symlink_to("/dev/full")
    log = LogFile(tmp_path / "events.jsonl", say=said.append, hold_bytes=100)
    waiting = Mark()
    log.write(b"a line\n")
    log.sync(waiting)
    log.write(b"x" * 200)
    later = Mark()
    log.sync(later)
    assert waiting.wait(ENOUGH_S).position is None
    assert later.wait(ENOUGH_S).position is None
    log.close()
    assert [line for line in said if "is off" in line], said


def test_a_disk_that_does_not_answer_keeps_nobody_waiting(tmp_path: Path) -> None:
    """A pipe that nobody reads is such a disk."""
    said: list[str] = []
    os.mkfifo(tmp_path / "events.jsonl")
    reader = os.open(tmp_path / "events.jsonl", os.O_RDONLY | os.O_NONBLOCK)
    log = LogFile(tmp_path / "events.jsonl", say=said.append, silent_s=0.05)
    log.write(b"x" * (1 << 20))  # more than a pipe takes
    mark = Mark()
    log.sync(mark)
    wait_until(lambda: log.write(b"more\n") or said)  # whoever writes finds out, and does not wait
    assert "the disk has not answered for 0.05 s" in said[0]
    assert mark.wait(ENOUGH_S).position is None
    os.close(reader)  # the writer's thread ends with a broken pipe, which is nobody's business any more
    log.close(ENOUGH_S)
    assert len(said) == 1


KILLED = """
import sys, time
from pathlib import Path
from headway.core.events import Opened
from headway.runs.event_log import EventLog, InBackground
recorder = InBackground(EventLog(Path(sys.argv[1])))
recorder.start()
began = time.monotonic()
while True:
    now = time.monotonic() - began
    print(now, flush=True)  # first: what is in the log was said
    recorder.append((now, Opened, (0,)))
    time.sleep(0.0005)
"""


def test_a_killed_process_leaves_whole_lines_up_to_a_moment_before(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    command = [sys.executable, "-c", KILLED, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = float(process.stdout.readline())
        wait_until(lambda: path.exists() and path.stat().st_size > 1000)
        process.send_signal(signal.SIGKILL)
        said = [float(line) for line in process.stdout.read().splitlines()]
    written = [event["t"] for event in read_events(path)]
    assert len(written) > 10
    assert written == [round(time_s, 6) for time_s in [first, *said]][: len(written)], "in order, without a hole"


# -- parts ------------------------------------------------------------------------------------------


def log_in_parts(folder: Path, events: int = 300, part_bytes: int = 1000) -> tuple[Path, list[int]]:
    """A log of several parts, and the position behind each event."""
    path = folder / "events.jsonl"
    log = EventLog(path, part_bytes=part_bytes)
    log.record(0.0, "run", {"seed": 0})
    positions = []
    for number in range(events):
        log.record(float(number), "open", {"k": number})
        mark = log.mark()
        assert mark.position is not None
        positions.append(mark.position)
    log.close()
    return path, positions


def tickets_of(path: Path) -> list[int]:
    return [event["k"] for event in read_events(path) if event["e"] == "open"]


def test_a_long_log_is_closed_in_parts_which_are_compressed_and_read_as_one(tmp_path: Path) -> None:
    path, positions = log_in_parts(tmp_path)
    parts = closed_parts(path)
    assert len(parts) > 5
    assert {part.path.suffix for part in parts} == {".gz"}
    assert [part.begin for part in parts[1:]] == [part.end for part in parts[:-1]]
    assert tickets_of(path) == list(range(300))
    assert log_size(path) == positions[-1] == sum(map(len, lines_from(path)))
    assert path.stat().st_size < 1100
    heads = [event for event in read_events(path) if event["e"] == "part"]
    assert len(heads) == len(parts)
    assert all(head["run"]["seed"] == 0 for head in heads), "each part says which run it is of"


@pytest.mark.parametrize("kept", [5, 100, 297, 300])
def test_a_log_in_parts_is_cut_where_a_checkpoint_was_and_goes_on(tmp_path: Path, kept: int) -> None:
    path, positions = log_in_parts(tmp_path)
    check = crc_before(path, positions[kept - 1])
    assert go_on_at(path, positions[kept - 1], check) == ""
    assert tickets_of(path) == list(range(kept))
    log = EventLog(path, part_bytes=1000)
    log.record(1e6, "open", {"k": 1000})
    log.close()
    assert tickets_of(path) == [*range(kept), 1000]
    aside = tmp_path / "events.discarded-0.jsonl"
    later = [event["k"] for event in read_events(aside) if event["e"] == "open"] if aside.exists() else []
    assert later == list(range(kept, 300))


def test_a_reader_that_comes_again_reads_what_is_new_across_parts(tmp_path: Path) -> None:
    path, positions = log_in_parts(tmp_path)
    for position in (0, positions[3], positions[150], positions[-1]):
        behind = [json.loads(line)["k"] for line in lines_from(path, position) if b'"open"' in line]
        assert behind == [number for number in range(300) if positions[number] > position]


def test_a_part_that_a_crash_left_twice_is_read_once(tmp_path: Path) -> None:
    path, _ = log_in_parts(tmp_path)
    part = closed_parts(path)[1]
    with part.open() as file:
        part.path.with_suffix("").write_bytes(file.read())
    assert tickets_of(path) == list(range(300))


# -- a log that is not what the checkpoint says -------------------------------------------------------


def test_a_log_that_is_too_short_keeps_its_whole_lines_and_the_gap_is_named(tmp_path: Path) -> None:
    path, positions = log_in_parts(tmp_path, events=20, part_bytes=10**6)
    check = crc_before(path, positions[-1])
    os.truncate(path, positions[10] + 4)
    missing = go_on_at(path, positions[-1], check)
    assert (
        missing
        == f"events.jsonl has {positions[10] + 4} bytes, and had {positions[-1]} when the checkpoint was written"
    )
    assert tickets_of(path) == list(range(11))


@pytest.mark.parametrize("content", [b"", b"\0" * 5000, b'{"t":0,"e":"open","k":9}\n' * 500])
def test_another_file_in_place_of_the_log_is_set_aside(tmp_path: Path, content: bytes) -> None:
    path, positions = log_in_parts(tmp_path, events=20, part_bytes=10**6)
    check = crc_before(path, positions[-1])
    path.write_bytes(content)
    missing = go_on_at(path, positions[-1], check)
    assert "events.jsonl" in missing
    assert not path.exists() or not path.read_bytes()
    if content:
        assert (tmp_path / "events.discarded-0.jsonl").read_bytes() == content


def test_a_log_that_is_gone_is_named(tmp_path: Path) -> None:
    assert go_on_at(tmp_path / "events.jsonl", 100, 1) == "events.jsonl is gone"


def test_a_log_as_the_checkpoint_has_it_is_cut_and_nothing_is_missing(tmp_path: Path) -> None:
    path, positions = log_in_parts(tmp_path, events=20, part_bytes=10**6)
    assert go_on_at(path, positions[9], None) == "", "a checkpoint of before there was a check"
    assert tickets_of(path) == list(range(10))
    cut(path, positions[4])
    assert tickets_of(path) == list(range(5))
