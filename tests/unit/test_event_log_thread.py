"""The event log is written beside the run: in order, whole at the end, and nearly whole after a kill."""

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
from patience import patient, wait_until

from headway.observe.recorder import PLAIN, EventLog, InBackground, MemoryRecorder, plain_line, read_events

ENCODE = json.JSONEncoder(separators=(",", ":"), default=str).encode

numbers = st.integers(0, 10**9)
floats = st.floats(allow_nan=True, allow_infinity=True)
values = st.one_of(
    numbers,
    floats,
    st.text(max_size=5),
    st.booleans(),
    st.none(),
    st.lists(numbers, max_size=4),
    st.tuples(numbers, numbers),
    st.lists(floats, max_size=2),
    st.dictionaries(st.text(max_size=5), st.one_of(floats, numbers, st.booleans(), st.text(max_size=3)), max_size=3),
)


FREQUENT: dict[str, dict[str, Any]] = {
    "open": {"k": 7},
    "start": {"k": 7, "c": 1, "v": 3},
    "land": {"k": 7, "v": [2, 3], "n": 64, "l": 64.0, "b": 0},
    "update": {"u": 1, "v": 0, "k": [7, 8]},
    "learn": {"u": 1, "v": 0, "k": [7], "d": 0.25, "m": {"loss/policy": 1e-9, 'a "name"': 1.0}},
    "publish": {"v": 1},
    "settle": {"k": (7, 8)},
    "wait": {"r": "collector-0/1", "w": "slot"},
    "busy": {"r": "learner", "w": "save"},
}


@settings(deadline=None, derandomize=True)
@given(st.sampled_from(sorted(FREQUENT)), st.data(), st.floats(0, 1e6))
def test_a_plain_line_is_what_the_encoder_would_write(kind: str, data: st.DataObject, time_s: float) -> None:
    right = FREQUENT[kind]
    names = data.draw(st.sampled_from([tuple(right), tuple(right)[::-1], (*right, "extra"), ("other",)]))
    kept = data.draw(st.sets(st.sampled_from(sorted(right))))
    fields = {name: right[name] if name in kept and name in right else data.draw(values) for name in names}
    line = plain_line(time_s, kind, fields)
    if line is not None:
        written = ENCODE({"t": time_s, "e": kind, **fields})
        assert json.loads(line) == json.loads(written)
        assert line == written or tuple(fields) != tuple(right)


@pytest.mark.parametrize("kind", FREQUENT)
def test_what_comes_with_every_ticket_is_written_the_short_way(kind: str) -> None:
    assert plain_line(1.5, kind, FREQUENT[kind]) == ENCODE({"t": 1.5, "e": kind, **FREQUENT[kind]})
    assert set(FREQUENT) == set(PLAIN)


def test_what_is_not_plain_is_left_to_the_encoder(tmp_path: Path) -> None:
    assert plain_line(0.0, "learn", {"u": 1, "v": 0, "k": [], "d": math.nan, "m": {}}) is None
    assert plain_line(0.0, "open", {"k": True}) is None
    assert plain_line(0.0, "look", {"lead": 1}) is None


def test_events_come_through_in_order_whoever_asks(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl", batch=7)
    recorder = InBackground(log, write=log.write)
    positions = []
    for number in range(5000):
        recorder.record(number / 1000, "open", {"k": number})
        if number % 700 == 0:
            positions.append((number, recorder.flush()))
    recorder.close()
    assert [event["k"] for event in read_events(tmp_path / "events.jsonl")] == list(range(5000))
    content = (tmp_path / "events.jsonl").read_bytes()
    for number, position in positions:
        assert content[:position].count(b"\n") == number + 1, "everything recorded before a flush lies before it"
    assert "event log" not in [thread.name for thread in threading.enumerate()]


def test_events_are_on_disk_within_a_moment_without_a_flush(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    recorder = InBackground(log, write=log.write)
    recorder.record(0.0, "open", {"k": 0})
    wait_until((tmp_path / "events.jsonl").read_bytes, 10)
    assert (tmp_path / "events.jsonl").read_bytes() == b'{"t":0.0,"e":"open","k":0}\n'
    recorder.close()


def test_nothing_starts_a_thread_before_the_first_event() -> None:
    recorder = InBackground(MemoryRecorder())
    assert "event log" not in [thread.name for thread in threading.enumerate()]
    recorder.close()


class FullDisk(MemoryRecorder):
    def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
        raise OSError(28, "No space left on device")


def test_a_full_disk_is_told_to_whoever_records() -> None:
    recorder = InBackground(FullDisk())

    def until_it_raises() -> None:
        wait_until(lambda: recorder.record(0.0, "open", {"k": 0}), 10)

    with pytest.raises(OSError, match="No space left"):
        until_it_raises()


KILLED = """
import sys, time
from pathlib import Path
from headway.observe.recorder import EventLog, InBackground
log = EventLog(Path(sys.argv[1]))
recorder = InBackground(log, write=log.write)
began = time.monotonic()
while True:
    now = time.monotonic() - began
    recorder.record(now, "open", {"k": 0})
    print(now, flush=True)
    time.sleep(0.0005)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs kill -9")
def test_a_killed_process_loses_a_fraction_of_a_second(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    command = [sys.executable, "-c", KILLED, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = 0.0
        while said < 1.0:
            said = float(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    written = [event["t"] for event in read_events(path)]
    assert said - written[-1] < patient(0.25)
