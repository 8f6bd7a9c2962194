"""The process that writes for a run with many events: the same lines and points, whatever ends first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patience import patient, wait_until

import headway
from headway.core.types import Ticket
from headway.observe import recorder as recording
from headway.observe.alarms import Alarms
from headway.observe.metrics import Metrics, Point, metrics_of
from headway.observe.points import Points
from headway.observe.recorder import Brief, EventLog, InBackground, read_events
from headway.observe.writer_process import WriterProcess, is_plain


def events_of(tickets: int) -> Iterator[Brief]:
    """A run with a look every hundred tickets, in brief where the coordinator is."""
    yield 0.0, "run", {"publish_every": 1, "max_age_s": None}
    for index in range(tickets):
        time_s = index / 1000
        yield time_s, "open", index
        yield time_s, "start", index, 0, index
        yield time_s + 0.0001, "land", index, (index, index), 64, 64.0, 0
        yield time_s + 0.0002, "update", index + 1, index, [index]
        yield time_s + 0.0004, "learn", index + 1, index, [index], 0.0002, {"loss": 1 / (index + 1), "note": "text"}
        yield time_s + 0.0004, "publish", index + 1
        yield time_s + 0.0004, "settle", (index,)
        yield time_s + 0.0005, "wait", "learner", "data"
        if index % 100 == 99:
            spent = {"learner": {"learn": index * 2e-4, "data": index * 8e-4}}
            yield time_s + 0.0006, "look", {"lead": 1, "spent": spent, "rss": 2**20, "memory": {}}


ALARMS = {"idle_learner": 0.1}


def written_here(path: Path, events: list[Brief]) -> tuple[list[Point], list[str]]:
    seen: list[Point] = []
    said: list[str] = []
    points = Points(EventLog(path), seen.append, Metrics(), aliases=True, alarms=Alarms(ALARMS), say=said.append)
    points.record_many(events)
    points.close()
    return seen, said


def test_another_process_writes_the_same_lines_and_points(tmp_path: Path) -> None:
    events = list(events_of(1000))
    here, said_here = written_here(tmp_path / "here.jsonl", events)
    there: list[Point] = []
    said: list[str] = []
    alarms = Alarms(ALARMS)
    path = tmp_path / "there.jsonl"
    writer = WriterProcess(path, Metrics(), put=there.append, say=said.append, aliases=True, alarms=alarms)
    for begin in range(0, len(events), 777):
        writer.record_many(events[begin : begin + 777])
    position = writer.flush()
    assert position == path.stat().st_size
    writer.close()
    assert path.read_bytes() == (tmp_path / "here.jsonl").read_bytes()
    assert there == here
    assert said == said_here
    assert len(said) == 1
    assert list(alarms.raised) == ["idle_learner"], "the live block shows what rings over there"


def test_a_log_that_moves_in_the_middle_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "ROUNDS_TO_MOVE", 1)
    path = tmp_path / "events.jsonl"
    log, moved = EventLog(path), threading.Event()
    metrics, seen = Metrics(), []

    def move() -> WriterProcess:
        log.close()
        moved.set()
        return WriterProcess(path, metrics, put=seen.append, say=print, aliases=False, alarms=None)

    points = Points(log, seen.append, metrics, aliases=False, alarms=None, say=print)
    background = InBackground(points, write=log.write, move=move)
    events = list(events_of(1200))
    for event in events[:3000]:
        background.take(event)
    assert moved.wait(patient(30))
    for event in events[3000:]:
        background.take(event)
    assert background.flush() == path.stat().st_size
    background.close()
    whole = list(read_events(path))
    assert len(whole) == len(events)
    assert [point.values for point in metrics_of(whole)] == [point.values for point in seen]
    assert len(seen) == 12


def test_what_is_no_plain_value_arrives_as_the_log_has_it(tmp_path: Path) -> None:
    fields = {"v": 1, "value": np.float64(0.5), "m": {"a": np.float32(2.0), "b": (1, [True])}, "error": None}
    log = EventLog(tmp_path / "here.jsonl")
    log.record(0.0, "score", fields)
    log.close()
    writer = WriterProcess(
        tmp_path / "there.jsonl", Metrics(), put=lambda point: None, say=print, aliases=False, alarms=None
    )
    writer.record(0.0, "score", fields)
    writer.close()
    assert (tmp_path / "there.jsonl").read_bytes() == (tmp_path / "here.jsonl").read_bytes()
    assert b"b'" not in (tmp_path / "there.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (1, True),
        ({"a": [1, (2.0, None)], "b": {"c": "d"}}, True),
        (np.float64(1.0), False),
        ([np.int64(1)], False),
        (b"bytes", False),
        ({1: 2}, False),
        ({"a": {2}}, False),
    ],
)
def test_plain_is_what_marshal_and_json_agree_about(value: Any, plain: bool) -> None:
    assert is_plain(value) == plain


def quiet_writer(path: Path) -> WriterProcess:
    return WriterProcess(path, Metrics(), put=lambda point: None, say=print, aliases=False, alarms=None)


def test_a_writer_that_is_killed_is_told_to_whoever_records(tmp_path: Path) -> None:
    writer = quiet_writer(tmp_path / "events.jsonl")
    writer.flush()
    os.kill(writer.pid, signal.SIGKILL)
    with pytest.raises(OSError, match=r"writes the event log has ended \(exit code -9\)"):
        writer.flush()
    with pytest.raises(OSError, match="exit code -9"):
        writer.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_over_there_is_told_here() -> None:
    writer = quiet_writer(Path("/dev/full"))
    writer.record(0.0, "open", {"k": 0})
    with pytest.raises(OSError, match="No space left"):
        writer.flush()
    with pytest.raises(OSError, match="No space left"):
        writer.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_that_ask_the_run_to_save_do_not_end_its_writer(number: signal.Signals, tmp_path: Path) -> None:
    writer = quiet_writer(tmp_path / "events.jsonl")
    writer.flush()
    os.kill(writer.pid, number)
    writer.record(0.0, "open", {"k": 0})
    assert writer.flush() > 0
    writer.close()


def test_who_resumes_waits_for_the_last_lines_of_the_session_before(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    writer = quiet_writer(path)
    writer.record(0.0, "open", {"k": 0})
    position = writer.flush()
    writer.record(1.0, "open", {"k": 1})
    resumed: list[EventLog] = []
    thread = threading.Thread(target=lambda: resumed.append(EventLog(path, position=position)))
    thread.start()
    thread.join(0.2)
    assert not resumed
    writer.close()
    thread.join(patient(30))
    resumed[0].close()
    assert [event["k"] for event in read_events(path)] == [0]
    assert [event["k"] for event in read_events(tmp_path / "events.discarded-0.jsonl")] == [1]


# -- whole runs -------------------------------------------------------------------------------------


def collect(weights: float, ticket: Ticket) -> float:
    return weights


def train(weights: float, rollouts: list[float]) -> float:
    return weights + 1


@pytest.mark.parametrize("runtime", ["threads", "inline"])
def test_a_run_with_many_events_moves_and_leaves_what_it_always_leaves(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    begin = WriterProcess.__init__

    def noted(self: WriterProcess, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        started.append(self.pid)

    monkeypatch.setattr(WriterProcess, "__init__", noted)
    monkeypatch.setattr(recording, "ROUNDS_TO_MOVE", 1)
    monkeypatch.setattr(recording, "MANY_IN_A_ROUND", 1)
    result = headway.run(
        collect,
        train,
        weights=0.0,
        wall_s=0.6,
        max_lead=4,
        folder=tmp_path / "run",
        runtime=runtime,
        save_every=500,
        metrics_interval_s=0.1,
    )
    assert len(started) == 1
    assert not Path(f"/proc/{started[0]}").exists()
    events = list(read_events(tmp_path / "run" / "events.jsonl"))
    assert events[0]["e"] == "run"
    assert events[-1]["e"] == "end"
    assert sum(len(event["k"]) for event in events if event["e"] == "settle") == result.ledger.learned
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == len(list(metrics_of(events)))
    assert (tmp_path / "run" / "trace.json").is_file()
    more = headway.run(collect, train, weights=0.0, updates=result.updates + 300, max_lead=4, resume=True,
                       folder=tmp_path / "run", runtime=runtime)  # fmt: skip
    assert more.updates == result.updates + 300
    learned = [event["u"] for event in read_events(tmp_path / "run" / "events.jsonl") if event["e"] == "learn"]
    assert learned == list(range(1, more.updates + 1))


WITHOUT_GUARD = """
import os, sys, time
import headway
from headway.observe import recorder
recorder.ROUNDS_TO_MOVE = 1
print("imported", flush=True)

def collect(weights, ticket):
    return weights

def train(weights, rollouts):
    if os.path.exists(sys.argv[2]):
        os.remove(sys.argv[2])
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
    return weights + 1

headway.run(collect, train, weights=0, updates=10**9, max_lead=4, folder=sys.argv[1], metrics_interval_s=0.1)
"""


def writers_of(folder: Path) -> list[int]:
    """The processes that hold the log of a run open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            files = [os.readlink(file) for file in (process / "fd").iterdir()]
        except OSError:
            continue
        if str(folder / "events.jsonl") in files:
            found.append(int(process.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks at open files")
@pytest.mark.parametrize("way", ["alone", "fork"])
def test_a_killed_run_leaves_a_whole_log_and_no_process(way: str, tmp_path: Path) -> None:
    """The script has no guard around its last line: only the run itself imports it."""
    script, folder = tmp_path / "script.py", tmp_path / "run"
    script.write_text(WITHOUT_GUARD)
    fork_now = tmp_path / "fork now"
    command = [sys.executable, str(script), str(folder), str(fork_now)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        wait_until(lambda: bool(ids := writers_of(folder)) and process.pid not in ids)
        if way == "fork":
            fork_now.touch()
            wait_until(lambda: not fork_now.exists())
        size = (folder / "events.jsonl").stat().st_size
        wait_until(lambda: (folder / "events.jsonl").stat().st_size > size + 10**6)
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_until(lambda: not writers_of(folder), 5.0)
        assert process.stdout is not None
        if way == "alone":  # the child that was forked holds the other end
            assert process.stdout.read() == "imported\n"
    content = (folder / "events.jsonl").read_bytes()
    assert content.endswith(b"\n"), "nothing is half-written"
    events = list(read_events(folder / "events.jsonl"))
    learned = [event["u"] for event in events if event["e"] == "learn"]
    assert learned == list(range(1, len(learned) + 1))
    assert len(learned) > 500
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["time_s"] for line in lines] == [point.moment.time_s for point in metrics_of(events)]
    from headway.reporting import write_report

    assert write_report([folder]).stat().st_size > 10_000
