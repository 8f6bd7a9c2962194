"""Sinks: what each one leaves behind, and that none of them can hold up or end a run."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from waiting import patient

from headway.cli import main
from headway.coordinator.checkpoint import CheckpointStore
from headway.coordinator.checkpoint_best_weights import BestWeights
from headway.coordinator.functions import stations_from_functions
from headway.coordinator.rerun import ReplayError, replay
from headway.coordinator.roles import Stations
from headway.coordinator.settings import Plan, Settings
from headway.core.types import Rollout, Score, Snapshot, Ticket
from headway.runs.bandit import FunctionsConfig
from headway.runs.event_log import read_events
from headway.runs.folder import RunFolder
from headway.runs.launch_of_functions import run
from headway.runs.launch_session import launch
from headway.runs.metrics import ALIASES, Moment, Point, metrics_of
from headway.runs.prometheus_sink import PrometheusSink, exposition
from headway.runs.sinks import QUEUE_POINTS, Deliveries, JsonLines, resident_bytes
from headway.runs.sinks_metric_sinks import build_sinks
from headway.runs.tensorboard_sink import TensorBoardSink
from headway.runtimes.virtual import Virtual
from headway.tools.report.recorded_run_run_history import read_story
from headway.tools.simulate.workloads import Constant, SimulatedLearner, SteadyWorkload

WAIT_S = patient(30)
AT_ONCE = ["--collect_ms", "0", "--train_ms", "0", "--evaluate_ms", "0", "--quiet"]
Output = pytest.CaptureFixture[str]


class Kept:
    """A sink that keeps what it is given, and may do something first."""

    def __init__(self, before: Callable[[], object] = lambda: None, at_close: Callable[[], object] = lambda: None):
        self.points: list[Point] = []
        self.closed = 0
        self._before = before
        self._at_close = at_close

    def write(self, moment: Moment, values: Mapping[str, float]) -> None:
        self._before()
        self.points.append(Point(moment, dict(values)))

    def close(self) -> None:
        self.closed += 1
        self._at_close()


def fail() -> None:
    raise OSError("the disk\nis full")


def point(update: int) -> Point:
    return Point(Moment(update / 10, update, update), {"run/updates": float(update)})


def add(weights: int, ticket: Any) -> int:
    return 1


def total(weights: int, rollouts: list[int]) -> tuple[int, dict[str, float]]:
    return weights + sum(rollouts), {"size": float(len(rollouts))}


def lines(path: Path) -> list[dict[str, Any]]:
    text = path.read_text()
    assert text.endswith("\n")
    return [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]


# -- delivery ---------------------------------------------------------------------------------------


def test_every_sink_gets_every_point_in_order_and_is_closed_once() -> None:
    sinks = [Kept(), Kept()]
    with Deliveries(sinks[:1]) as deliveries:
        deliveries.add(sinks[1])
        for update in range(100):
            deliveries.put(point(update))
    for sink in sinks:
        assert [p.moment.update for p in sink.points] == list(range(100))
        assert sink.closed == 1


def test_a_sink_that_raises_is_named_once_and_the_others_go_on() -> None:
    said: list[str] = []
    broken, sound = Kept(before=fail), Kept()
    with Deliveries([broken, sound], say=said.append) as deliveries:
        for update in range(10):
            deliveries.put(point(update))
    assert said == ["the metrics sink Kept is off, the run goes on: write raised OSError: the disk is full"]
    assert len(sound.points) == 10
    assert broken.closed == 1


def test_a_sink_that_raises_when_closed_is_named() -> None:
    said: list[str] = []
    with Deliveries([Kept(at_close=fail)], say=said.append) as deliveries:
        deliveries.put(point(0))
    assert said == ["the metrics sink Kept is off, the run goes on: close raised OSError: the disk is full"]


def test_a_slow_sink_loses_points_which_are_counted_and_nobody_waits_for_it() -> None:
    said: list[str] = []
    go_on, writing = threading.Event(), threading.Event()

    def wait() -> None:
        writing.set()
        assert go_on.wait(WAIT_S)

    slow, quick = Kept(before=wait), Kept()
    with Deliveries([slow, quick], say=said.append) as deliveries:
        deliveries.put(point(0))
        assert writing.wait(WAIT_S)
        for update in range(1, QUEUE_POINTS + 11):
            deliveries.put(point(update))
        go_on.set()
    assert [p.moment.update for p in slow.points] == list(range(QUEUE_POINTS + 1))
    assert said[0] == f"the metrics sink Kept was too slow for 10 of {QUEUE_POINTS + 11} points"


def test_a_sink_that_never_ends_is_left_behind() -> None:
    said: list[str] = []
    go_on = threading.Event()
    with Deliveries([Kept(before=go_on.wait)], say=said.append, close_within_s=0.01) as deliveries:
        deliveries.put(point(0))
    assert said == ["the metrics sink Kept has not ended in time; what it still holds is lost"]
    go_on.set()


@pytest.mark.parametrize("runtime", ["inline", "threads"])
def test_a_run_goes_on_while_a_sink_stalls(runtime: str) -> None:
    go_on = threading.Event()
    stalled = Kept(before=lambda: go_on.wait(WAIT_S))

    def train(weights: int, rollouts: list[int]) -> int:
        if weights == 49:  # the fiftieth update: the sink has not written the first point yet
            assert not stalled.points
            go_on.set()
        return weights + 1

    done = run(add, train, weights=0, updates=60, runtime=runtime, sinks=[stalled], metrics_interval_s=0)
    assert (done.updates, go_on.is_set()) == (60, True)
    assert stalled.points[-1].values["run/updates"] == 60


def test_a_run_goes_on_when_a_sink_raises(capsys: Output, tmp_path: Path) -> None:
    broken = Kept(before=fail)
    done = run(add, total, weights=0, updates=5, runtime="inline", sinks=[broken], folder=tmp_path)
    assert done.weights == 5
    said = capsys.readouterr().err.splitlines()
    assert said == ["headway: the metrics sink Kept is off, the run goes on: write raised OSError: the disk is full"]
    assert lines(tmp_path / "metrics.jsonl")[-1]["run/updates"] == 5


def test_sinks_are_closed_when_the_run_is_refused_or_fails(tmp_path: Path) -> None:
    refused, failed = Kept(), Kept()
    with pytest.raises(ValueError, match="resume needs the folder of the run"):
        run(add, total, weights=0, updates=5, resume=True, sinks=[refused])
    with pytest.raises(RuntimeError, match=r"ticket 0 .* failed on collector-0"):
        run(lambda weights, ticket: 1 / 0, total, weights=0, updates=5, runtime="inline", sinks=[failed])
    assert (refused.closed, failed.closed) == (1, 1)
    assert failed.points[-1].values["tickets/opened"] > 0, "the last look of a run that fails"


def test_memory_is_that_of_this_process() -> None:
    assert 10 * 2**20 < resident_bytes() < 100 * 2**30
    before = resident_bytes()
    ballast = b"x" * (64 * 2**20)
    assert resident_bytes() - before > 32 * 2**20
    del ballast


# -- metrics.jsonl ----------------------------------------------------------------------------------


def test_a_line_is_a_point_and_what_is_not_finite_is_null(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path / "metrics.jsonl")
    sink.write(Moment(1.5, 3, 2, 40), {"learn/loss": 0.1, "learn/bad": math.nan, "learn/worse": -math.inf})
    sink.close()
    where = {"time_s": 1.5, "update": 3, "version": 2, "env_steps": 40}
    assert lines(tmp_path / "metrics.jsonl") == [where | {"learn/loss": 0.1, "learn/bad": None, "learn/worse": None}]


def test_a_point_is_on_disk_as_soon_as_it_is_written(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path / "metrics.jsonl")
    for update in range(3):
        sink.write(Moment(0.0, update, 0), {"x": 1.0})
        assert lines(tmp_path / "metrics.jsonl")[-1]["update"] == update
    sink.close()


@pytest.mark.parametrize("tail", [b"", b'{"time_s":0.2,"upd', b"\x00\x00\x00", b"[1]\n", b'{"t":1}\n'])
def test_a_file_goes_on_where_its_run_does(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    first = JsonLines(path)
    for update in range(1, 6):
        first.write(Moment(update / 10, update, update), {})
    first.close()
    path.write_bytes(path.read_bytes() + tail)
    second = JsonLines(path, until_s=0.3)
    second.write(Moment(0.31, 4, 4), {})
    second.close()
    assert [line["time_s"] for line in lines(path)] == [0.1, 0.2, 0.3, 0.31]


def test_a_file_cut_off_by_a_crash_loses_its_last_line_only(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"time_s":0.1}\n{"time_s":0.2,"upd')
    JsonLines(path, until_s=9.0).close()
    assert path.read_bytes() == b'{"time_s":0.1}\n'


def test_a_resumed_run_continues_its_numbers(tmp_path: Path) -> None:
    options: dict[str, Any] = {"weights": 0, "runtime": "inline", "folder": tmp_path, "metrics_interval_s": 0}
    run(add, total, updates=10, save_every=4, **options)
    run(add, total, updates=20, resume=True, **options)
    seen = lines(tmp_path / "metrics.jsonl")
    times = [line["time_s"] for line in seen]
    assert times == sorted(times)
    last = seen[-1]
    assert (last["run/updates"], last["tickets/learned"], last["run/steps"]) == (20, 20, 20)
    kept = [{**asdict(p.moment), **p.values} for p in metrics_of(read_events(tmp_path / "events.jsonl"))]
    assert kept == seen


def test_a_damaged_log_costs_the_totals_and_not_the_run(tmp_path: Path, capsys: Output) -> None:
    run(add, total, weights=0, updates=10, runtime="inline", folder=tmp_path)
    log = tmp_path / "events.jsonl"
    content = log.read_bytes().splitlines(keepends=True)
    content[7] = b"\x00" * (len(content[7]) - 1) + b"\n"
    log.write_bytes(b"".join(content))
    forget_metrics(CheckpointStore(tmp_path / "checkpoints"))  # as before checkpoints had them
    assert run(add, total, weights=0, updates=20, runtime="inline", folder=tmp_path, resume=True).updates == 20
    assert capsys.readouterr().err.splitlines() == [
        f"headway: the totals of the metrics start anew: {log}, line 8: not an event",
        f"headway: no trace: {log}, line 8: not an event",
    ]
    last = lines(tmp_path / "metrics.jsonl")[-1]
    assert (last["run/updates"], last["tickets/learned"]) == (20, 10)


def forget_metrics(store: CheckpointStore) -> None:
    store.save(replace(store.load(), metrics=None, events_check=None))


def test_a_checkpoint_has_the_totals_so_that_nobody_reads_the_log_again(tmp_path: Path, capsys: Output) -> None:
    run(add, total, weights=0, updates=10, runtime="inline", folder=tmp_path)
    (tmp_path / "events.jsonl").write_bytes(b"")
    run(add, total, weights=0, updates=20, runtime="inline", folder=tmp_path, resume=True)
    said = capsys.readouterr().err.splitlines()
    assert said == ["headway: events.jsonl is gone: the run goes on, but cannot be replayed from its beginning"]
    last = lines(tmp_path / "metrics.jsonl")[-1]
    assert (last["run/updates"], last["tickets/learned"]) == (20, 20)
    assert read_story(tmp_path).gap == "events.jsonl is gone"
    assert len(read_story(tmp_path).updates) == 10, "what is there can be read"
    with pytest.raises(ReplayError, match=r"a part of the log is missing: events\.jsonl is gone"):
        replay(stations_from_functions(add, total, weights=0), read_events(tmp_path / "events.jsonl"))


def killed_run(runs: Path, *words: str) -> Path:
    """A run that was ended with kill -9 after it had written a few points; returns its folder."""
    command = [sys.executable, "-m", "headway.cli", "run", "functions", "--runs", str(runs), *AT_ONCE]
    command += ["--updates", "1000000", "--evaluate_every", "50", "--collect_ms", "1", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            path = Path(process.stdout.readline().split(" in ")[1].strip())
            metrics, checkpoints = path / "metrics.jsonl", CheckpointStore(path / "checkpoints")
            while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 20 and checkpoints.all()):
                assert process.poll() is None  # the test's timeout bounds it
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL
    return path


def test_a_killed_run_leaves_its_numbers_and_goes_on_from_them(tmp_path: Path) -> None:
    folder = killed_run(tmp_path, "--metrics_interval_s", "0.01", "--save_every", "20")
    content = (folder / "metrics.jsonl").read_bytes()
    before = [json.loads(line) for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
    assert len(before) >= 20
    assert [line["time_s"] for line in before] == sorted(line["time_s"] for line in before)
    scalars = EventAccumulator(str(folder / "tensorboard"))
    scalars.Reload()
    assert scalars.Scalars("run/updates")[-1].value > 0
    updates = CheckpointStore(folder / "checkpoints").load().updates + 30
    assert main(["resume", str(folder), "--updates", str(updates), "--quiet"]) == 0
    after = lines(folder / "metrics.jsonl")
    assert after[-1]["run/updates"] == updates == after[-1]["tickets/learned"]
    looks = [line["update"] for line in after if "run/lead" in line]
    assert looks == sorted(looks), "no update is told twice"


# -- TensorBoard ------------------------------------------------------------------------------------


def scalars_in(folder: Path) -> dict[str, list[tuple[int, float]]]:
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]
    }


def test_tensorboard_gets_every_number_at_its_update(tmp_path: Path) -> None:
    options: dict[str, Any] = {"weights": 0, "runtime": "inline", "folder": tmp_path, "metrics_interval_s": 0}
    sink = TensorBoardSink(tmp_path / "tensorboard")
    run(add, total, float, updates=8, evaluate_every=4, sinks=[sink], **options)
    told: dict[str, list[tuple[int, float]]] = {}
    for line in lines(tmp_path / "metrics.jsonl"):
        update = line.pop("update")
        for name, value in line.items():
            if name not in ("time_s", "version", "env_steps"):
                told.setdefault(name, []).append((update, pytest.approx(value, rel=1e-6)))
    assert scalars_in(tmp_path / "tensorboard") == told
    assert told["evaluate/score"] == [(4, 4.0), (8, 8.0)]
    assert [step for step, _ in told["learn/size"]] == list(range(1, 9))


def test_tensorboard_forgets_what_a_resumed_run_does_again(tmp_path: Path) -> None:
    folder = tmp_path / "tensorboard"
    first = TensorBoardSink(folder)
    assert not folder.exists()
    for update in range(1, 11):
        first.write(Moment(0.1 * update, update, update), {"x": float(update)})
    first.close()
    second = TensorBoardSink(folder)
    second.write(Moment(0.6, 6, 6), {"run/updates": 6.0})  # as the resume of a run is told
    second.write(Moment(0.8, 8, 8), {"x": 800.0})
    second.close()
    assert scalars_in(folder)["x"] == [*((update, float(update)) for update in range(1, 6)), (8, 800.0)]


@pytest.mark.parametrize(
    "clock", [lambda number: 1000.0, lambda number: 1000.0 - 100 * number], ids=["one second", "back"]
)
def test_tensorboard_reads_sessions_in_their_order_whatever_the_clock_says(
    tmp_path: Path, clock: Callable[[int], float]
) -> None:
    for number in range(12):  # more than nine: names are compared letter by letter
        sink = TensorBoardSink(tmp_path, partial(clock, number))
        sink.write(Moment(0.1, number, number), {"x": float(number)})
        sink.close()
    assert scalars_in(tmp_path)["x"] == [(number, float(number)) for number in range(12)]


def test_tensorboard_has_returns_lengths_and_scores_by_environment_step_too(tmp_path: Path) -> None:
    folder = tmp_path / "tensorboard"
    first = TensorBoardSink(folder)
    first.write(Moment(1.0, 1, 1, 100), {"learn/return": 20.0, "learn/length": 25.0, "learn/loss": 0.5})
    first.write(Moment(2.0, 2, 2, 200), {"learn/return": 30.0, "learn/length": 35.0})
    first.write(Moment(3.0, 3, 3, 300), {"learn/return": 40.0})
    first.write(Moment(3.5, 2, 2, 200), {"evaluate/score": 7.0, "evaluate/length": 9.0})  # it comes late
    first.close()
    assert scalars_in(folder / "by_env_step") == {
        "by_env_step/return": [(100, 20.0), (200, 30.0), (300, 40.0)],
        "by_env_step/length": [(100, 25.0), (200, 35.0)],
        "by_env_step/score": [(200, 7.0)],
        "by_env_step/score_length": [(200, 9.0)],
    }
    second = TensorBoardSink(folder)  # a resume from update 2
    second.write(Moment(2.0, 2, 2, 200), {"run/updates": 2.0})
    second.write(Moment(2.8, 3, 3, 310), {"learn/return": 41.0})
    second.close()
    assert scalars_in(folder / "by_env_step")["by_env_step/return"] == [(100, 20.0), (310, 41.0)]
    assert [step for step, _ in scalars_in(folder)["learn/return"]] == [1, 3]


def test_tensorboard_has_one_clock_that_of_the_run(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    for time_s in (1.0, 5.0):
        sink.write(Moment(time_s, int(time_s), 1, 10), {"learn/return": time_s})
    sink.close()
    accumulator = EventAccumulator(str(tmp_path))
    accumulator.Reload()
    first, second = (event.wall_time for event in accumulator.Scalars("learn/return"))
    assert second - first == pytest.approx(4.0)


class OneStep:
    def __init__(self, number: int) -> None:
        pass

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        return Rollout(None)


class VersionScore:
    def evaluate(self, snapshot: Snapshot, seed: int) -> Score:
        return Score(snapshot.version, 100.0 + snapshot.version)


def test_a_late_background_score_stands_at_its_own_version(tmp_path: Path) -> None:
    kept, board = Kept(), TensorBoardSink(tmp_path)
    runtime = Virtual(SteadyWorkload(Constant(0.1), Constant(1.0), Constant(4.5)))  # an evaluation takes four updates
    plan = Plan(updates=60, evaluate_every=10)
    settings = Settings(plan=plan, publish_every=2, evaluate_in_background=True, max_lead=2)
    launch(Stations(OneStep, SimulatedLearner, VersionScore), settings, runtime=runtime, sinks=[kept, board])
    newest, behind = 0, []
    for told in kept.points:
        newest = max(newest, int(told.values.get("run/updates", 0)))
        if "evaluate/score" in told.values:
            assert told.moment.version == told.values["evaluate/version"] == told.values["evaluate/score"] - 100
            assert told.moment.update == 2 * told.moment.version
            behind.append(newest - told.moment.update)
    assert max(behind) >= 3, "the score came after later updates"
    assert scalars_in(tmp_path)["evaluate/score"] == [(20, 110.0), (40, 120.0), (60, 130.0)]


# -- Prometheus -------------------------------------------------------------------------------------

LINE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*) (NaN|[+-]Inf|-?[0-9.]+(?:e[+-]?[0-9]+)?)$")


def parse(text: str) -> dict[str, float]:
    """The text exposition format, as strictly as a scraper reads it."""
    found: dict[str, float] = {}
    typed: set[str] = set()
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert (kind, name in typed) == ("counter" if name.endswith("_total") else "gauge", False)
            typed.add(name)
        elif not line.startswith("# HELP "):
            match = LINE.match(line)
            assert match, line
            assert match[1] in typed
            assert match[1] not in found
            found[match[1]] = float(match[2])
    return found


def scrape(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=WAIT_S) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return str(answer.read().decode())


def test_prometheus_can_scrape_while_the_run_goes_on_and_not_after_it() -> None:
    sink = PrometheusSink(0)
    scraped: list[dict[str, float]] = []

    def train(weights: int, rollouts: list[int]) -> tuple[int, dict[str, float]]:
        while weights == 20 and not scraped:  # this update waits until the one before can be seen
            text = scrape(sink.port)
            found = parse(text) if text else {}
            # the score of that version is made beside the training, so it may be seen a little later
            if found.get("headway_run_updates_total") == 20 and found.get("headway_evaluate_version") == 20:
                scraped.append(found)
        return weights + 1, {"loss": 0.5}

    def score(weights: int) -> float:
        return weights / 2

    done = run(add, train, score, weights=0, updates=30, evaluate_every=10, sinks=[sink], metrics_interval_s=0)
    assert done.updates == 30
    (found,) = scraped
    assert found["headway_learn_loss"] == 0.5
    assert (found["headway_evaluate_score"], found["headway_evaluate_version"]) == (10, 20)
    assert found["headway_tickets_opened_total"] >= 20
    assert 0 <= found["headway_busy_learner"] <= 1
    with pytest.raises(urllib.error.URLError, match="refused"):
        scrape(sink.port)


def test_the_exposition_names_what_it_shows_and_writes_every_float() -> None:
    text = exposition({"run/updates": 3.0, "learn/a b-c": math.nan, "learn/up": math.inf, "learn/down": -math.inf})
    assert "# HELP headway_run_updates_total learn calls so far\n# TYPE headway_run_updates_total counter\n" in text
    found = parse(text)
    assert math.isnan(found.pop("headway_learn_a_b_c"))
    assert found == {"headway_run_updates_total": 3, "headway_learn_up": math.inf, "headway_learn_down": -math.inf}
    assert parse(exposition({"x": 1e-7, "y": 1e22, "x/": 2.0})) == {
        "headway_x": 1e-7,
        "headway_y": 1e22,
        "headway_x_": 2.0,
    }
    assert parse(exposition({"a/b": 1.0, "a_b": 2.0})) == {"headway_a_b": 2.0}, "two names that become one"


def test_the_exposition_says_which_run_it_is() -> None:
    text = exposition({}, run='a "b"\\c')
    assert text.splitlines()[-1] == r'headway_run_info{run="a \"b\"\\c"} 1.0'


def test_a_page_that_is_not_there_is_not_found() -> None:
    sink = PrometheusSink(0)
    try:
        with pytest.raises(urllib.error.HTTPError, match="404"):
            scrape(sink.port, "/else")
        assert scrape(sink.port, "/metrics?x=1") == ""
    finally:
        sink.close()


def test_a_port_in_use_is_refused_in_one_line_and_leaves_nothing(tmp_path: Path, capsys: Output) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = [
            "run",
            "functions",
            *AT_ONCE,
            "--updates",
            "3",
            "--runs",
            str(tmp_path),
            "--prometheus_port",
            str(port),
        ]
        assert main(words) == 2
    assert capsys.readouterr().err == f"headway: prometheus_port={port} on 127.0.0.1: Address already in use\n"
    assert list(tmp_path.iterdir()) == []


def test_an_address_that_is_not_ours_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^prometheus_port=0 on 192.0.2.1: Cannot assign requested address$"):
        PrometheusSink(0, host="192.0.2.1", token="x")
    with pytest.raises(ValueError, match=r"^prometheus_port=0 on no.such.host.invalid: "):
        PrometheusSink(0, host="no.such.host.invalid", token="x")


# -- Weights & Biases -------------------------------------------------------------------------------


def wandb_records(path: Path) -> Iterator[Any]:
    """An offline run's file: seven bytes, then blocks of 32 KiB with records cut to fit."""
    from wandb.proto import wandb_internal_pb2

    content, at, whole = path.read_bytes(), 7, b""
    assert content.startswith(b":W&B")
    while at + 7 <= len(content):
        left = 2**15 - at % 2**15
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", content, at)
        whole += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # complete, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def history(path: Path) -> list[dict[str, Any]]:
    rows = [record.history.item for record in wandb_records(path) if record.HasField("history")]
    return [{"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in row} for row in rows]


def headway(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: wandb leaves threads behind."""
    command = [sys.executable, "-W", "error", "-m", "headway.cli", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=WAIT_S * 2, env={**os.environ, **environment}, check=False
    )


def test_wandb_offline_leaves_a_run_to_be_synced_and_a_resume_goes_on_in_it(tmp_path: Path) -> None:
    words = ["--use_wandb", "true", "--wandb_mode", "offline", "--wandb_project", "toys", "--metrics_interval_s", "0"]
    done = headway("run", "functions", *AT_ONCE, "--updates", "12", "--runs", str(tmp_path), *words)
    assert done.returncode == 0, done.stderr
    assert "Weights & Biases project toys (offline)" in done.stdout
    (folder,) = tmp_path.iterdir()
    resumed = headway("resume", str(folder), "--updates", "15", "--quiet")
    assert resumed.returncode == 0, resumed.stderr
    first, second = sorted((folder / "wandb").glob("offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime)
    assert first.name == second.name, "one run there for one run here"
    (begun,) = [record.run for record in wandb_records(first) if record.HasField("run")]
    assert (begun.project, begun.display_name) == ("toys", folder.name)
    assert json.loads({item.key: item.value_json for item in begun.config.update}["updates"]) == 12
    rows, told = history(first), lines(folder / "metrics.jsonl")
    assert [row["update"] for row in rows][:5] == [line["update"] for line in told][:5]
    learned = [row for row in rows if "learn/reward" in row]
    assert [row["update"] for row in learned] == list(range(1, 13))
    assert learned[0]["learn/reward"] == pytest.approx(told[0]["learn/reward"])
    assert [row["update"] for row in history(second) if "learn/reward" in row] == [13, 14, 15]


def test_wandb_calls_a_run_as_it_was_named(tmp_path: Path) -> None:
    words = ["--use_wandb", "true", "--wandb_mode", "offline", "--name", "warm-start", "--report", "false"]
    done = headway("run", "functions", *AT_ONCE, "--updates", "3", "--runs", str(tmp_path), *words)
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.glob("functions-*-warm-start/wandb/offline-run-*/run-*.wandb")
    assert [record.run.display_name for record in wandb_records(file) if record.HasField("run")] == ["warm-start"]


def test_wandb_without_a_key_is_one_clear_line(tmp_path: Path) -> None:
    words = ["run", "functions", *AT_ONCE, "--updates", "3", "--runs", str(tmp_path / "runs"), "--use_wandb", "true"]
    home = {"HOME": str(tmp_path), "WANDB_API_KEY": "", "NETRC": str(tmp_path / "none"), "WANDB_DIR": str(tmp_path)}
    done = headway(*words, **home)
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("headway: Weights & Biases: ") and "wandb login" in last
    assert "--wandb_mode offline writes into the run's folder" in last
    assert list((tmp_path / "runs").iterdir()) == []


def test_wandb_can_be_disabled(tmp_path: Path) -> None:
    words = ["--use_wandb", "true", "--wandb_mode", "disabled"]
    done = headway("run", "functions", *AT_ONCE, "--updates", "3", "--runs", str(tmp_path), *words)
    assert done.returncode == 0, done.stderr
    assert "Weights & Biases project headway (disabled)" in done.stdout


def test_the_mode_of_wandb_is_what_its_variable_says_unless_it_is_set(tmp_path: Path) -> None:
    words = ["--use_wandb", "true", "--report", "false"]
    done = headway(
        "run", "functions", *AT_ONCE, "--updates", "3", "--runs", str(tmp_path), *words, WANDB_MODE="offline"
    )
    assert done.returncode == 0, done.stderr
    assert "Weights & Biases project headway (offline)" in done.stdout
    assert len(list(tmp_path.glob("functions-*/wandb/offline-run-*"))) == 1


# -- which sinks there are --------------------------------------------------------------------------


def make_absent(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = [name for name in sys.modules if name.startswith(f"{package}.")]
    for name in [*loaded, f"headway.runs.{package}_sink"]:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, package, None)


@pytest.mark.parametrize(
    ("package", "words", "line"),
    [
        ("wandb", ["--use_wandb", "true"], "use_wandb=true needs wandb: pip install 'headway[wandb]'"),
        (
            "tensorboard",
            ["--tensorboard", "true"],
            "tensorboard=true needs tensorboard: pip install 'headway[tensorboard]'",
        ),
    ],
)
def test_a_package_that_is_not_there_is_one_line_with_the_command_to_install_it(
    package: str, words: list[str], line: str, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_absent(package, monkeypatch)
    assert main(["run", "functions", *AT_ONCE, "--updates", "3", "--runs", str(tmp_path), *words]) == 2
    assert capsys.readouterr().err == f"headway: {line}\n"
    assert list(tmp_path.iterdir()) == []


def test_without_tensorboard_a_run_says_so_and_goes_on(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_absent("tensorboard", monkeypatch)
    assert main(["run", "functions", *AT_ONCE, "--updates", "3", "--runs", str(tmp_path)]) == 0
    said = capsys.readouterr().out.splitlines()[1]
    assert said.startswith("metrics: ")
    assert said.endswith("not for TensorBoard, which is not installed (pip install 'headway[tensorboard]')")
    assert not list(tmp_path.glob("*/tensorboard"))


def test_a_sink_that_cannot_be_built_closes_those_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_absent("wandb", monkeypatch)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ValueError, match="use_wandb=true needs wandb"):
        build_sinks(RunFolder(tmp_path), prometheus_port=port, use_wandb=True)
    PrometheusSink(port).close()  # it is free again


def folder_of(runs: Path, *words: str) -> Path:
    before = set(runs.iterdir()) if runs.is_dir() else set()
    tiny = ["--updates", "8", "--evaluate_every", "4", "--runtime", "inline"]
    assert main(["run", "functions", *AT_ONCE, *tiny, "--runs", str(runs), *words]) == 0
    (folder,) = set(runs.iterdir()) - before
    return folder


def test_every_setting_about_metrics_does_something(tmp_path: Path, capsys: Output) -> None:
    plain = folder_of(tmp_path)
    assert f"metrics: {plain / 'metrics.jsonl'}, TensorBoard in {plain / 'tensorboard'}\n" in capsys.readouterr().out
    assert BestWeights(plain / "checkpoints").score is not None
    assert len([line for line in lines(plain / "metrics.jsonl") if "run/lead" in line]) == 1
    words = ["--tensorboard", "false", "--metric_aliases", "true", "--metrics_interval_s", "0"]
    words += ["--keep_best", "false", "--prometheus_port", "0", "--prometheus_host", "localhost"]
    other = folder_of(tmp_path, *words)
    assert re.search(
        r"^metrics: \S+, Prometheus at http://localhost:\d+/metrics$", capsys.readouterr().out, re.MULTILINE
    )
    looks = [line for line in lines(other / "metrics.jsonl") if "run/lead" in line]
    assert len(looks) == 9
    assert set(ALIASES) <= set(looks[3])
    assert not (other / "tensorboard").exists()
    assert not BestWeights(other / "checkpoints").path.exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("metrics_interval_s", -1),
        ("wandb_mode", "onlin"),
        ("wandb_project", ""),
        ("prometheus_port", 70000),
        ("prometheus_port", -1),
        ("tensorboard", "perhaps"),
    ],
)
def test_a_setting_about_metrics_that_cannot_be_is_refused_in_one_line(
    name: str, value: Any, tmp_path: Path, capsys: Output
) -> None:
    words = ["run", "functions", *AT_ONCE, "--runs", str(tmp_path), f"--{name}={value}"]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"headway: {name}=")
    assert FunctionsConfig.model_fields[name].description
